//! Gives up every capability that a running daemon does not need.

use std::io;

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

/// What stays: maps are reached through bpf(2), which asks for CAP_BPF where `kernel.unprivileged_bpf_disabled` is set, and
/// attaching to an interface that comes back asks for CAP_NET_ADMIN (kernel/bpf/syscall.c, net/core/dev.c, Linux 6.18).
const KEPT: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_NET_ADMIN];

/// Why capabilities could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// The kernel refused to change a set.
    #[error("give up capabilities: {0}")]
    Caps(#[from] CapsError),
    /// The kernel refused no_new_privs.
    #[error("set no_new_privs: {0}")]
    NoNewPrivileges(io::Error),
}

/// What is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// Capabilities of this thread and of those that it starts from now on, sorted.
    pub capabilities: Vec<String>,
    /// Other threads of the process that hold more: capabilities belong to threads, and only a thread gives up its own.
    pub threads_with_more: usize,
}

/// Gives up all of this thread's capabilities but CAP_BPF and CAP_NET_ADMIN, in every set, and sets no_new_privs.
///
/// Called while the process has one thread, it holds for the whole process.
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
