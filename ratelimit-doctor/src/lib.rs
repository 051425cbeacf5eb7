//! `doctor` and `bug-report`: finds possible faults of a host, and collects all facts about it in one file.
//!
//! [`read`] is the only reader; [`examine`] turns its facts into findings, and is pure. Nothing here changes anything,
//! except the file that a report is written to.

#![forbid(unsafe_code)]

mod bundle;
mod checks;
mod distribution;
pub mod facts;
mod finding;
mod mask;
mod reach;
mod read;
mod report;
mod servers;
mod words;

pub use bundle::{Bundle, BundleError, Entry};
pub use checks::examine;
pub use distribution::Distribution;
pub use finding::{Finding, Report, SCHEMA, State};
pub use reach::out_of_reach;
pub use read::{Asked, absent, available_memory, read};
pub use report::{Addresses, collect};
pub use words::words;
