//! CrowdSec beside ratelimitd: its decisions become a list file that the daemon watches, and our bans become its alerts.
//!
//! [`decision`] and [`book`] are pure: what the local API says, and what holds of it. [`list`] is the file. [`client`]
//! speaks HTTP, [`run`] pulls and writes, [`report`] tells of bans. Needs no privileges: the file is all that the daemon sees.

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
