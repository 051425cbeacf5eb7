//! Choice of the hook on an interface: XDP, or TCX ingress if XDP is taken or frames have no Ethernet header. Also
//! finds who holds the hook. A program of others is never replaced.

use std::path::Path;

use aya::programs::{ProgramError, ProgramInfo, loaded_programs};
use ratelimit_common::layout;

use super::{classifier, held, state};
use crate::interface::{self, Interface};
use crate::{Attachment, DatapathError, Hook, XdpMode, bpf, orphans, pins};
use ratelimit_policy::config::HookChoice;

/// Returns the hook for a program that is not attached yet.
///
/// # Errors
/// Fails if the hook is taken, or if the kernel lacks it.
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
        // Otherwise one packet would be counted twice.
        Hook::Xdp | Hook::Tcx if at_tcx(found).is_some() => Err(occupied(found)),
        Hook::Xdp | Hook::Tcx => Ok(hook),
    }
}

/// Returns the error for an interface without Ethernet header. The program would misread the first bytes and pass every
/// packet as non-IP.
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

/// Returns whether an XDP program there is ratelimitd's own. An interface is limited only once.
fn is_ours(found: &Interface) -> bool {
    let root = Path::new(pins::ROOT);
    let held = held::all(root, std::slice::from_ref(found)).unwrap_or_default();
    !found.programs.is_empty()
        && (held.iter().any(|held| held.is_on(found.index))
            || pins::other_version_holding(root, &found.name).is_some()
            || found.programs.iter().any(|(_, id)| name_of(*id) == layout::PROGRAM))
}

/// Returns the program at TCX ingress that has this limiter's name.
fn at_tcx(found: &Interface) -> Option<u32> {
    bpf::tcx_programs(found.index).ok()?.into_iter().find(|id| name_of(*id) == layout::PROGRAM)
}

/// Returns a program's name. Empty if it may not be read: the kernel shows names to CAP_SYS_ADMIN alone, which the unit
/// does not grant.
fn name_of(id: u32) -> String {
    loaded_programs()
        .filter_map(Result::ok)
        .find(|program| ProgramInfo::id(program) == id)
        .and_then(|program| program.name_as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Describes the XDP programs of an interface. None if there are none.
pub(super) fn holder(found: &Interface) -> Option<String> {
    let named = |(mode, id): &(XdpMode, u32)| match name_of(*id).as_str() {
        "" => format!("id {id}, {}", mode.label()),
        name => format!("{name:?}, id {id}, {}", mode.label()),
    };
    (!found.programs.is_empty()).then(|| found.programs.iter().map(named).collect::<Vec<_>>().join("; "))
}

/// Describes the XDP programs of an interface if our program is attached at TCX.
pub(super) fn holder_beside(attached: Attachment, index: u32, present: &[Interface]) -> Option<String> {
    match attached {
        Attachment::Xdp(_) => None,
        Attachment::Tcx => present.iter().find(|there| there.index == index).and_then(holder),
    }
}

/// Returns the error that names the existing program and how to detach it.
pub(super) fn occupied(found: &Interface) -> DatapathError {
    let tcx = at_tcx(found).map(|id| format!("{:?}, id {id}, at TCX ingress", layout::PROGRAM));
    let is_other = tcx.is_some() || found.programs.iter().any(|(_, id)| name_of(*id) == layout::PROGRAM);
    let owner = holder(found).into_iter().chain(tcx).collect::<Vec<_>>().join("; ");
    let root = Path::new(pins::ROOT);
    let held = held::all(root, std::slice::from_ref(found)).unwrap_or_default();
    let interface = &found.name;
    let is_held = held.iter().any(|held| held.is_on(found.index));
    let remedy = if let Some(process) = orphans::holder(&pins::version_dir(root)).filter(|_| is_held) {
        format!("It belongs to ratelimitd, process {process}; remove it: `ratelimitd detach --socket PATH {interface}`")
    } else if is_held {
        format!(
            "It is ratelimitd's own, kept by an earlier run; remove it with `ratelimitd detach {interface}`, or take \
             it over with `--on-exit keep`"
        )
    } else if let Some(dir) = pins::other_version_holding(root, interface) {
        format!(
            "It is ratelimitd's own, kept by another version; remove it with `ratelimitd detach {interface}` of that \
             version, or `rm -r {}`",
            dir.display()
        )
    } else if is_other {
        format!(
            "It belongs to a ratelimitd with another socket, which keeps nothing; remove it: `ratelimitd detach \
             --socket PATH {interface}`"
        )
    } else if classifier::is_there() {
        "It is not changed; `--hook auto` attaches beside it, by TCX; or remove it with the tool that put it there, \
         and start again"
            .to_owned()
    } else {
        "It is not changed; remove it with the tool that put it there, and start again".to_owned()
    };
    DatapathError::Occupied { interface: interface.clone(), owner: format!("{owner}. {remedy}") }
}

/// Converts the kernel's refusal to attach into an error with a remedy.
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
            unsupported("its driver has no native XDP; use `--xdp-mode auto` or `generic`".into())
        }
        Some(libc::ERANGE | libc::EINVAL) => unsupported(format!(
            "its driver refuses ({error:#}); often the MTU of {} is too large, or LRO is on: try `ethtool -K {} lro off`, or a smaller MTU",
            found.mtu, found.name
        )),
        _ => DatapathError::Other(error.context(what)),
    }
}
