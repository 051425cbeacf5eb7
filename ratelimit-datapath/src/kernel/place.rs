//! Where the program goes on an interface: at XDP, or at TCX ingress where that is taken or frames have no Ethernet
//! header; and who has that place. Never in the place of a program that is not ours.

use std::path::Path;

use aya::programs::{ProgramError, ProgramInfo, loaded_programs};
use ratelimit_common::layout;

use super::{classifier, held, state};
use crate::interface::{self, Interface};
use crate::{Attachment, DatapathError, Hook, XdpMode, bpf, orphans, pins};
use ratelimit_policy::config::HookChoice;

/// Where a program that is not attached yet goes.
///
/// # Errors
/// Where there is no room for it, or the kernel has no such place.
pub(super) fn hook_for(found: &Interface, choice: HookChoice) -> Result<Hook, DatapathError> {
    let is_free = found.programs.is_empty();
    let hook = match choice {
        HookChoice::Xdp => Hook::Xdp,
        HookChoice::Tcx => Hook::Tcx,
        HookChoice::Auto if !found.has_ethernet_header() => Hook::Tcx,
        HookChoice::Auto if is_free || is_ours(found) || !classifier::is_there() => Hook::Xdp,
        HookChoice::Auto => Hook::Tcx,
    };
    match hook {
        Hook::Xdp if !found.has_ethernet_header() => Err(without_header(found, choice)),
        Hook::Xdp if !is_free => Err(occupied(found)),
        Hook::Tcx if !found.has_ethernet_header() && !found.is_headless() => Err(without_header(found, choice)),
        Hook::Tcx if !classifier::is_there() => Err(classifier::missing(&found.name)),
        Hook::Tcx if is_ours(found) => Err(occupied(found)),
        // Or one packet would be counted twice.
        Hook::Xdp | Hook::Tcx if at_tcx(found).is_some() => Err(occupied(found)),
        Hook::Xdp | Hook::Tcx => Ok(hook),
    }
}

/// The program would take the packet's first bytes for such a header, and pass everything as no IP.
fn without_header(found: &Interface, choice: HookChoice) -> DatapathError {
    let name = &found.name;
    let remedy = match choice {
        HookChoice::Xdp if found.is_headless() => "`--hook auto` limits it by TCX, with Linux 6.6 or later".to_owned(),
        HookChoice::Xdp | HookChoice::Auto | HookChoice::Tcx => {
            format!("attach to the Ethernet interface below {name} instead")
        }
    };
    DatapathError::Unsupported {
        what: format!("limit {name}"),
        why: format!("its packets have no Ethernet header, so nothing would be limited; {remedy}"),
    }
}

/// Whether a program at XDP there is ratelimitd's own: an interface is limited once.
fn is_ours(found: &Interface) -> bool {
    let root = Path::new(pins::ROOT);
    let held = held::all(root, std::slice::from_ref(found)).unwrap_or_default();
    !found.programs.is_empty()
        && (held.iter().any(|held| held.is_on(found.index))
            || pins::other_version_holding(root, &found.name).is_some()
            || found.programs.iter().any(|(_, id)| name_of(*id) == layout::PROGRAM))
}

/// The program of another limiter of this name, at TCX ingress.
fn at_tcx(found: &Interface) -> Option<u32> {
    bpf::tcx_programs(found.index).ok()?.into_iter().find(|id| name_of(*id) == layout::PROGRAM)
}

/// A program's name; empty where it may not be read, as under the unit: the kernel tells it to CAP_SYS_ADMIN alone.
fn name_of(id: u32) -> String {
    loaded_programs()
        .filter_map(Result::ok)
        .find(|program| ProgramInfo::id(program) == id)
        .and_then(|program| program.name_as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Who has XDP of an interface, in words; none where nobody has.
pub(super) fn holder(found: &Interface) -> Option<String> {
    let named = |(mode, id): &(XdpMode, u32)| match name_of(*id).as_str() {
        "" => format!("id {id}, {}", mode.label()),
        name => format!("{name:?}, id {id}, {}", mode.label()),
    };
    (!found.programs.is_empty()).then(|| found.programs.iter().map(named).collect::<Vec<_>>().join("; "))
}

/// The same of the interface with this index, where the program is attached elsewhere.
pub(super) fn holder_beside(attached: Attachment, index: u32, present: &[Interface]) -> Option<String> {
    match attached {
        Attachment::Xdp(_) => None,
        Attachment::Tcx => present.iter().find(|there| there.index == index).and_then(holder),
    }
}

/// Says who is there, and how to take it off.
pub(super) fn occupied(found: &Interface) -> DatapathError {
    let tcx = at_tcx(found).map(|id| format!("{:?}, id {id}, at TCX ingress", layout::PROGRAM));
    let is_other = tcx.is_some() || found.programs.iter().any(|(_, id)| name_of(*id) == layout::PROGRAM);
    let owner = holder(found).into_iter().chain(tcx).collect::<Vec<_>>().join("; ");
    let root = Path::new(pins::ROOT);
    let held = held::all(root, std::slice::from_ref(found)).unwrap_or_default();
    let interface = &found.name;
    let is_held = held.iter().any(|held| held.is_on(found.index));
    let remedy = if let Some(process) = orphans::holder(&pins::version_dir(root)).filter(|_| is_held) {
        format!("It is of ratelimitd, process {process}: `ratelimitd detach --socket PATH {interface}` takes it off")
    } else if is_held {
        format!(
            "It is ratelimitd's own, kept by an earlier run: `ratelimitd detach {interface}` takes it off, `--on-exit keep` takes it over"
        )
    } else if let Some(dir) = pins::other_version_holding(root, interface) {
        format!(
            "It is ratelimitd's own, kept by another version: `ratelimitd detach {interface}` of that version, or `rm -r {}`, takes it off",
            dir.display()
        )
    } else if is_other {
        format!(
            "It is that of a ratelimitd with another socket, which keeps nothing: `ratelimitd detach --socket PATH {interface}` takes it off"
        )
    } else if classifier::is_there() {
        "It is left alone; `--hook auto` attaches beside it, by TCX, or take it off with the tool that put it there, and start again"
            .to_owned()
    } else {
        "It is left alone; take it off with the tool that put it there, and start again".to_owned()
    };
    DatapathError::Occupied { interface: interface.clone(), owner: format!("{owner}. {remedy}") }
}

/// What the kernel's refusal to attach means, and what mends it.
pub(super) fn refused(found: &Interface, mode: XdpMode, error: ProgramError) -> DatapathError {
    let error = anyhow::Error::from(error);
    let what = format!("attach to {} in {} mode", found.name, mode.label());
    let unsupported = |why: String| DatapathError::Unsupported { what: what.clone(), why };
    match state::errno(&error) {
        Some(libc::EBUSY | libc::EEXIST) => {
            let now = interface::named(&found.name).ok().flatten();
            occupied(now.as_ref().unwrap_or(found))
        }
        Some(libc::EPERM | libc::EACCES) => state::denied(what),
        Some(libc::EOPNOTSUPP) => {
            unsupported("its driver has no native XDP; `--xdp-mode auto` or `generic` does without".into())
        }
        Some(libc::ERANGE | libc::EINVAL) => unsupported(format!(
            "its driver refuses ({error:#}); often the MTU of {} is too large, or LRO is on: try `ethtool -K {} lro off`, or a smaller MTU",
            found.mtu, found.name
        )),
        _ => DatapathError::Other(error.context(what)),
    }
}
