//! What ratelimitd is to do: the configuration, the desired state that follows from it, the plan from one to the next, and whom it
//! must not lock out. Values; what it reads are configuration and list files, and what the host says of itself.

#![forbid(unsafe_code)]

pub mod access;
pub mod config;
pub mod desired;
pub mod diagnostic;
pub mod files;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod fleet;
mod labels;
pub mod plan;
pub mod safety;
pub mod secret;
pub mod text;
