//! What the datapath holds, in the words of those who ask: the snapshot and its reports, what is observed over time, metrics, and what
//! a capture or a log would have met. Serializable values, and the functions that make them of readings.

#![forbid(unsafe_code)]

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
