//! Access logs of servers, and the limits that their lines charge.

use std::fmt;
use std::path::PathBuf;

use super::{Limit, Per, WindowForm};

/// An access log that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessLog {
    /// A file or a FIFO.
    File(PathBuf),
    /// A datagram socket that the daemon creates.
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Name of the group that may write to the socket. None for the daemon's own group.
        group: Option<String>,
    },
}

impl fmt::Display for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Socket { path, group: None } => write!(f, "unix:{}", path.display()),
            Self::Socket { path, group: Some(group) } => write!(f, "unix:{} group={group}", path.display()),
        }
    }
}

impl Limit {
    /// Returns true if an access log corrects the limit: packets charge it requests per source, in buckets.
    pub fn is_reconciled(&self) -> bool {
        self.is_guardable() && self.per == Per::Source && self.form != WindowForm::Gcra
    }

    /// Returns true if log lines charge the limit, in a rule with an access log.
    pub fn is_logged(&self) -> bool {
        self.is_reconciled() || self.condition.is_some()
    }
}
