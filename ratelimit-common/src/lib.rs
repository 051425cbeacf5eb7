//! Every decision of ratelimitd, the same in the kernel, in tests and on the host.
//!
//! Knows packets as bytes, windows as words, verdicts as values. Must not know a clock, a map, a
//! logger, a float or an allocation: time and storage are arguments.
#![cfg_attr(not(any(test, loom)), no_std)]

pub mod access;
pub mod admission;
pub mod ban;
pub mod choose;
pub mod conversation;
pub mod drop_cache;
mod endian;
pub mod events;
pub mod flow;
pub mod gcra;
pub mod hash;
pub mod hold;
pub mod layout;
pub mod multiplicity;
pub mod packet;
pub mod refusal;
pub mod refusals;
pub mod source;
pub mod time;
pub mod verdict;
pub mod verification;
pub mod window;
