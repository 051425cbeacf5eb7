//! `ratelimitd top`: what passes and what is refused, as it happens, in a terminal.
//!
//! [`state`] is what is shown and what keys make of it, [`view`] a frame of that, both pure. `run` alone has a terminal, a
//! clock and a daemon to ask. It must not know the datapath: what it shows is what `stats` and `check` say.

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
