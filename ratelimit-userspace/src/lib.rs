//! The command line of ratelimitd. ARCHITECTURE.md has the map: who may use whom.

pub mod cli;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod log;
