//! The daemon and command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

pub mod cli;
pub mod config;
pub mod datapath;
pub mod describe;
pub mod desired;
pub mod error;
pub mod log;
pub mod pending;
pub mod plan;
pub mod snapshot;
