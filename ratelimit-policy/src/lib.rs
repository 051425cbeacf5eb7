//! Policy of ratelimitd: the configuration, the desired state that follows from it, the plan from one state to the
//! next, and the checks against a lockout. These are values. The crate reads only configuration, list and secret files,
//! and facts about the host.

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
