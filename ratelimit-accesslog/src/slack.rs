//! Counted requests that stay without a line: how many a source was charged too much.

/// Least number of open requests of a source over the recent past.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slack {
    /// Beginning of the present period, in nanoseconds.
    since: u64,
    /// Least number in the period before.
    before: u64,
    /// Least number in the present period.
    present: u64,
}

impl Slack {
    /// Takes the present number of open requests. Begins a new period if the present one is at least `lag_ns` long.
    pub(crate) fn update(&mut self, now: u64, lag_ns: u64, open: u64) {
        self.present = self.present.min(open);
        if now.saturating_sub(self.since) >= lag_ns {
            *self = Self { since: now, before: self.present, present: open };
        }
    }

    /// Returns the number of requests that were open all the time, for one period or longer.
    pub(crate) fn unused(&self) -> u64 {
        self.before.min(self.present)
    }
}
