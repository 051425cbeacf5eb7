//! Counts of connections that were closed or should have been.

use serde::{Deserialize, Serialize};

/// Outcome for the connections of sources that were denied with `--kill`, or banned by a rule with `block_kill`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Number of closed connections.
    pub ended: u64,
    /// Number of connections beyond the budget of a second. They stay open, and their packets are dropped.
    pub left_open: u64,
    /// Number of sources that were not searched for connections, because too many came at one time.
    pub passed_over: u64,
}

impl Closed {
    /// Returns true if no connection was to be closed.
    pub const fn is_none(&self) -> bool {
        self.ended == 0 && self.left_open == 0 && self.passed_over == 0
    }
}
