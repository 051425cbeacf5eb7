//! The command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

#![forbid(unsafe_code)]

pub mod cli;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod log;
pub mod mmdb;
