//! Budget of new sources.

/// Budget of new sources that a rule admits. Packets of new sources above the budget are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSources {
    /// Maximum number of new sources in `window_ns`, all at once or evenly distributed.
    pub amount: u64,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
}
