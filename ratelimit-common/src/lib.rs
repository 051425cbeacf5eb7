//! Every decision of ratelimitd, identical in the kernel, in tests and on the host.
//!
//! The crate handles packets as bytes, windows as words and verdicts as values. It must not use a clock, a map, a
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
