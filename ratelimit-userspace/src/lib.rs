//! The daemon and command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

pub mod access;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod datapath;
pub mod describe;
pub mod desired;
pub mod diagnostic;
pub mod error;
pub mod export;
pub mod files;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod fuzz;
pub mod log;
mod memory;
pub mod netlink;
pub mod observe;
pub mod plan;
pub mod privileges;
pub mod replay;
pub mod safety;
pub mod snapshot;
pub mod text;
pub mod view;
