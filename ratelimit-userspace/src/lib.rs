//! The daemon and command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

pub mod cli;
pub mod control;
pub mod daemon;
pub mod describe;
pub mod error;
pub mod export;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod fuzz;
pub mod log;
pub mod netlink;
pub mod observe;
pub mod replay;
pub mod snapshot;
pub mod view;

pub use ratelimit_datapath::{self as datapath, memory, privileges};
pub use ratelimit_policy::{access, config, desired, diagnostic, files, plan, safety, text};
