//! When a step is taken: every part of the daemon is told, and none asks a clock.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// When a step is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// By the runtime's clock.
    pub(super) at: Instant,
    /// Since the daemon started.
    pub(super) uptime: Duration,
    /// By the wall clock.
    pub(super) wall: Timestamp,
}

impl Moment {
    /// Now, of a daemon that started then.
    pub(super) fn now(started: Instant) -> Self {
        let at = Instant::now();
        Self { at, uptime: at.duration_since(started), wall: Timestamp::now() }
    }
}
