//! The daemon and command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

pub mod config;
pub mod control;
pub mod daemon;
pub mod datapath;
pub mod desired;
pub mod export;
#[cfg(test)]
mod fixture;
mod netlink;
pub mod pending;
pub mod privileges;
pub mod snapshot;
pub mod view;
