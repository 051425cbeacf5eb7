//! Capabilities needed to start, and those that a running daemon keeps.

use std::io;

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

/// Capabilities needed to start, sorted. Without CAP_PERFMON, the verifier refuses arithmetic on packet pointers
/// (`allow_ptr_leaks`, kernel/bpf/verifier.c, Linux 6.1 to 6.18).
const NEEDED: [Capability; 3] = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN, Capability::CAP_PERFMON];

/// Capabilities that a running daemon keeps. Maps are reached through bpf(2), which needs CAP_BPF if
/// `kernel.unprivileged_bpf_disabled` is set. Attaching to an interface that comes back needs CAP_NET_ADMIN
/// (kernel/bpf/syscall.c, net/core/dev.c, Linux 6.18). Programs are loaded only at the start, so CAP_PERFMON is given
/// up.
const KEPT: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN];

/// Failure to give up capabilities.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// The kernel refused to change a set.
    #[error("give up capabilities: {0}")]
    Caps(#[from] CapsError),
    /// The kernel refused no_new_privs.
    #[error("set no_new_privs: {0}")]
    NoNewPrivileges(io::Error),
}

/// Privileges that remain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Capabilities of this thread and of threads started later, sorted.
    pub capabilities: Vec<String>,
    /// Number of other threads that hold more capabilities. Only a thread itself can give up its capabilities.
    pub threads_with_more: usize,
}

/// Returns the capabilities of [`NEEDED`] that this thread lacks, sorted. CAP_SYS_ADMIN includes CAP_BPF and
/// CAP_PERFMON, as in the kernel (`bpf_capable`, `perfmon_capable`, include/linux/capability.h, Linux 6.18).
pub fn missing() -> Vec<Capability> {
    let Ok(effective) = caps::read(None, CapSet::Effective) else { return Vec::new() };
    let is_admin = effective.contains(&Capability::CAP_SYS_ADMIN);
    let has = |needed: &Capability| effective.contains(needed) || (is_admin && *needed != Capability::CAP_NET_ADMIN);
    NEEDED.into_iter().filter(|needed| !has(needed)).collect()
}

/// Gives up all of this thread's capabilities but CAP_BPF and CAP_NET_ADMIN, in every set, and sets no_new_privs.
///
/// A call while the process has only one thread affects the whole process.
pub fn give_up() -> Result<Remaining, PrivilegesError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = KEPT.into_iter().filter(|kept| permitted.contains(kept)).collect();
    if permitted.contains(&Capability::CAP_SETPCAP) {
        for other in caps::read(None, CapSet::Bounding)?.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *other)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    nix::sys::prctl::set_no_new_privs().map_err(|errno| PrivilegesError::NoNewPrivileges(errno.into()))?;
    let mut capabilities: Vec<_> = kept.iter().map(Capability::to_string).collect();
    capabilities.sort();
    Ok(Remaining { capabilities, threads_with_more: threads_with_more(&kept) })
}

fn threads_with_more(kept: &CapsHashSet) -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let ids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let holds_more = |id: &i32| caps::read(Some(*id), CapSet::Permitted).is_ok_and(|of| !of.is_subset(kept));
    ids.filter(holds_more).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named_and_sys_admin_stands_for_two_of_three() {
        let lacks = |kept: &'static [Capability]| {
            std::thread::spawn(move || {
                let permitted = caps::read(None, CapSet::Permitted).unwrap();
                let kept: CapsHashSet = kept.iter().copied().filter(|of| permitted.contains(of)).collect();
                caps::set(None, CapSet::Effective, &kept).unwrap();
                let lacks = missing();
                (lacks.iter().map(Capability::to_string).collect::<Vec<_>>().join(" "), kept.len())
            })
            .join()
            .unwrap()
        };
        use Capability::{CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN};
        assert_eq!(lacks(&[]).0, "CAP_BPF CAP_NET_ADMIN CAP_PERFMON");
        for (kept, expected) in [
            (&NEEDED[..], ""),
            (&[CAP_BPF, CAP_NET_ADMIN], "CAP_PERFMON"),
            (&[CAP_PERFMON, CAP_NET_ADMIN], "CAP_BPF"),
            (&[CAP_SYS_ADMIN], "CAP_NET_ADMIN"),
        ] {
            let (lacks, had) = lacks(kept);
            // Without root, the thread has no capabilities to keep.
            assert!(lacks == expected || had < kept.len(), "{kept:?}: {lacks}");
        }
    }

    #[test]
    fn a_thread_keeps_bpf_and_net_admin_and_nothing_else() {
        let before = caps::read(None, CapSet::Permitted).unwrap();
        let (remaining, permitted, bounding) = std::thread::spawn(|| {
            let remaining = give_up().unwrap();
            let of = |set| caps::read(None, set).unwrap();
            (remaining, of(CapSet::Permitted), of(CapSet::Bounding))
        })
        .join()
        .unwrap();
        let expected: CapsHashSet = KEPT.into_iter().filter(|kept| before.contains(kept)).collect();
        assert_eq!(permitted, expected);
        assert_eq!(remaining.capabilities.len(), expected.len());
        if before.contains(&Capability::CAP_SETPCAP) {
            assert!(bounding.is_subset(&expected));
        }
        assert_eq!(caps::read(None, CapSet::Permitted).unwrap(), before, "this thread's own are untouched");
    }
}
