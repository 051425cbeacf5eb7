//! Connections that were ended, and those that should have been.

use serde::{Deserialize, Serialize};

/// What came of the connections of sources that were denied with `--kill`, or banned by a rule with `block_kill`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Ended.
    pub ended: u64,
    /// Beyond what is ended in a second, and open: what they send is dropped.
    pub left_open: u64,
    /// Sources whose connections were not looked for, as there were too many at one time.
    pub passed_over: u64,
}

impl Closed {
    /// What has come since these were counted.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            ended: self.ended.saturating_sub(before.ended),
            left_open: self.left_open.saturating_sub(before.left_open),
            passed_over: self.passed_over.saturating_sub(before.passed_over),
        }
    }

    /// Nothing was to end.
    pub const fn is_none(&self) -> bool {
        self.ended == 0 && self.left_open == 0 && self.passed_over == 0
    }
}
