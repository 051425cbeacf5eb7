//! `ratelimitd top`: a live view of passed and refused traffic in a terminal.
//!
//! [`state`] holds the displayed state and applies keys to it. [`view`] renders a frame from that state. Both are
//! pure. Only `run` uses a terminal, a clock and the daemon. The crate must not know the datapath: it shows only what
//! `stats` and `check` return.

#![forbid(unsafe_code)]

mod order;
mod rates;
mod run;
pub mod state;
pub mod view;

pub use order::{Lasts, Order, Verb};
pub use run::{TopError, run};
pub use view::Paint;

#[cfg(test)]
mod tests;
