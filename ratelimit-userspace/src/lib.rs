//! The daemon and command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

pub mod config;
pub mod datapath;
pub mod desired;
pub mod snapshot;
