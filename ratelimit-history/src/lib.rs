//! History of blocked sources: an SQLite database, written by a separate thread.
//!
//! A [`Recorder`] takes events without ever blocking. Events that do not fit into its queue are counted as lost. A
//! [`Reader`] answers questions. The limiter continues even if the database fails, and [`Recorder::health`] reports
//! problems. Independent of the datapath and the daemon.
//!
//! An episode that a daemon left open continues in the next one if its limit's window or its ban is not over.
//! Otherwise it has ended with its last news.

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

/// Name of the database in the state directory.
pub const FILE_NAME: &str = "history.db";
/// Default time for which ended episodes and acts are kept.
pub const KEEP_DEFAULT: Duration = Duration::from_secs(30 * 86_400);
/// Default maximum size of the database in bytes.
pub const BYTES_MAX_DEFAULT: u64 = 256_000_000;

/// Settings of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Path of the database. Its directory is created if necessary.
    pub path: PathBuf,
    /// Time for which ended episodes and acts are kept.
    pub keep: Duration,
    /// Maximum size of the database in bytes. It may be exceeded for a few seconds.
    pub bytes_max: u64,
    /// Maximum prefix lengths of stored addresses.
    pub mask: Mask,
}

impl Settings {
    /// Returns settings with this path and all defaults.
    pub fn at(path: PathBuf) -> Self {
        Self { path, keep: KEEP_DEFAULT, bytes_max: BYTES_MAX_DEFAULT, mask: Mask::default() }
    }
}

#[cfg(test)]
mod tests;
