//! Access logs of servers, and the limits that they charge.

use std::fmt;
use std::path::PathBuf;

use ratelimit_common::layout::Unit;

use super::{Limit, Per, WindowForm};

/// An access log, as the configuration names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessLog {
    /// A file or a FIFO.
    File(PathBuf),
    /// A datagram socket that the daemon makes.
    Socket(PathBuf),
}

impl fmt::Display for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Limit {
    /// Whether an access log can charge it: it counts requests of one source in buckets.
    pub fn is_reconciled(&self) -> bool {
        self.unit == Unit::Requests && self.per == Per::Source && self.form != WindowForm::Gcra
    }
}
