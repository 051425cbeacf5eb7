//! Failures of the kernel side, each with its remedy.

/// Failure of a datapath operation. Every message names the object and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// The interface does not exist, at least not now.
    #[error("no interface {name}; there are {present}")]
    NoSuchInterface {
        /// Name of the requested interface.
        name: String,
        /// Existing interfaces, joined by commas.
        present: String,
    },
    /// Another XDP program is attached to the interface.
    #[error("interface {interface} already has an XDP program: {owner}")]
    Occupied {
        /// Interface name.
        interface: String,
        /// Name and id of the other program, its holder, and how to detach it.
        owner: String,
    },
    /// The kernel or the driver lacks a needed feature.
    #[error("{what}: {why}")]
    Unsupported {
        /// Attempted operation, in words.
        what: String,
        /// Missing feature, and what to do.
        why: String,
    },
    /// The process lacks privileges.
    #[error("{what}: permission denied; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")]
    NotPrivileged {
        /// Attempted operation, in words.
        what: String,
    },
    /// The operation was refused although the process has all needed capabilities. Some confinement forbids it.
    #[error(
        "{what}: refused, although it has CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; a seccomp or AppArmor profile, SELinux, \
         a user namespace, or the kernel's lockdown forbids it"
    )]
    Forbidden {
        /// Attempted operation, in words.
        what: String,
    },
    /// Another daemon owns the pinned state.
    #[error("the pinned state in {path} belongs to another running ratelimitd; {remedy}")]
    InUse {
        /// Directory of the pins.
        path: String,
        /// Advice on what to do.
        remedy: &'static str,
    },
    /// The pinned state is not in the layout that this version writes.
    #[error("pinned state in {path} does not fit: {why}")]
    Pins {
        /// Directory or pin.
        path: String,
        /// Problem, and what to do.
        why: String,
    },
    /// Two of the interfaces see the same packets.
    #[error("{what}; {instead}")]
    SharedPath {
        /// Both interfaces, and how packets go from one to the other.
        what: String,
        /// Interface to name instead, and why.
        instead: String,
    },
    /// Any other failure, with its causes.
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl DatapathError {
    /// Returns whether the other XDP mode would fail in the same way.
    pub const fn is_of_every_mode(&self) -> bool {
        matches!(self, Self::Occupied { .. } | Self::NotPrivileged { .. } | Self::Forbidden { .. })
    }
}
