//! Time of a step. Every part of the daemon receives it, and none reads a clock.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Time of a step by three clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// Time by the runtime's clock.
    pub(super) at: Instant,
    /// Time since the daemon started.
    pub(super) uptime: Duration,
    /// Time by the wall clock.
    pub(super) wall: Timestamp,
}

impl Moment {
    /// Returns the current time of a daemon that started at `started`.
    pub(super) fn now(started: Instant) -> Self {
        let at = Instant::now();
        Self { at, uptime: at.duration_since(started), wall: Timestamp::now() }
    }
}
