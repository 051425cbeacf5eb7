//! Reports for programs: the snapshot and its views, observations over time, metrics, and replays of captures and logs.
//! The crate has serializable values, and functions that build them from readings.

#![forbid(unsafe_code)]

pub mod busy;
pub mod entries;
pub mod event;
pub mod export;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
pub mod fleet;
pub mod history;
pub mod observe;
pub mod offenders;
pub mod origins;
pub mod replay;
pub mod snapshot;
