//! Bridge between CrowdSec and ratelimitd. CrowdSec's decisions become a list file that the daemon watches, and the
//! daemon's bans become CrowdSec alerts.
//!
//! [`decision`] parses answers of the local API and [`book`] holds the active decisions. Both are pure. [`list`]
//! reads and writes the list file. [`client`] speaks HTTP, [`run`] pulls and writes, [`report`] sends bans. The
//! bridge needs no privileges, because the daemon sees only the file.

pub mod book;
pub mod client;
pub mod decision;
mod go_time;
pub mod list;
pub mod report;
mod run;

#[cfg(test)]
mod tests;

pub use self::run::{Error, Options, Trouble, run};
