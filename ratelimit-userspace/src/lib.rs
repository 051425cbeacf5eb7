//! The command line of ratelimitd. ARCHITECTURE.md says which crate may use which.

#![forbid(unsafe_code)]

pub mod cli;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod log;
pub mod mmdb;
