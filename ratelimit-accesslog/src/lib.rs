//! Access logs as a second count of requests: follows logs, and reconciles their lines with what the kernel counted.
//!
//! The kernel counts requests in packets, at once, but sees several multiplexed requests as one. The server's access
//! log has each request, a moment later. Together they are exact, with the log's delay.
//!
//! 1. A [`Follower`] reads one log, file, FIFO or socket, across rotation and restarts. It hands on whole lines.
//! 2. The caller parses each line, and a [`PeerCheck`] decides whether the line may charge its address.
//! 3. A [`Reconciler`], one for each rule, matches logged requests with counted ones, source by source. Logged
//!    requests without a counted match are charged as a correction. A correction is never taken back.
//! 4. A source that corrections took over its limit gets a multiplicity: the number of requests that the kernel
//!    charges for each turn, so that it refuses in time.
//! 5. A [`Position`] records how far a log was read. The caller stores it, so that a restart neither loses a line nor
//!    reads one twice.
//!
//! Nothing here reads a clock or starts a thread. `now` is an argument in nanoseconds, from any fixed point in time,
//! and never goes back. This crate knows no packet, no map and no daemon.

#![forbid(unsafe_code)]

mod beyond;
mod event;
mod file;
mod follower;
mod ledger;
mod lines;
mod open;
mod peers;
mod position;
mod reconciler;
mod socket;
mod watch;

pub use event::Event;
pub use follower::{Follower, Limits, Polled, State};
pub use open::Source;
pub use peers::{Judgement, Outcomes, PeerCheck, Peers};
pub use position::{FilePosition, Position};
pub use reconciler::{Reconciler, Settings};

#[cfg(test)]
mod tests;
