//! What is remembered of those who were blocked: an SQLite database that a thread of its own writes.
//!
//! A [`Recorder`] takes events without ever waiting; what finds no room in its queue is counted. A [`Reader`] answers questions. Whatever becomes of the database, the limiter
//! goes on: [`Recorder::health`] says what is wrong. Knows no datapath and no daemon.
//!
//! An episode that a daemon left open goes on in the next one, where its limit's window or its ban has not passed; else it has ended with its last
//! news.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::time::Duration;

mod book;
mod in_force;
mod losses;
mod mask;
mod prefix;
mod query;
mod record;
mod retain;
mod schema;
mod store;
mod writer;

pub use in_force::{EndCause, InForce, Judged, RuleInForce};
pub use mask::Mask;
pub use query::{Filter, Period, QueryError, Reader};
pub use record::{Progress, Recorder, Total};

/// The database's name in the directory of state.
pub const FILE_NAME: &str = "history.db";
/// How long what has ended is kept, unless it is said.
pub const KEEP_DEFAULT: Duration = Duration::from_secs(30 * 86_400);
/// How large the database may be, unless it is said.
pub const BYTES_MAX_DEFAULT: u64 = 256_000_000;

/// How history is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The database; its directory is made when there is none.
    pub path: PathBuf,
    /// How long what has ended is kept.
    pub keep: Duration,
    /// How large the database may be, in bytes; it may exceed that for a few seconds.
    pub bytes_max: u64,
    /// How much of addresses is kept.
    pub mask: Mask,
}

impl Settings {
    /// With every default.
    pub fn at(path: PathBuf) -> Self {
        Self { path, keep: KEEP_DEFAULT, bytes_max: BYTES_MAX_DEFAULT, mask: Mask::default() }
    }
}

#[cfg(test)]
mod tests;
