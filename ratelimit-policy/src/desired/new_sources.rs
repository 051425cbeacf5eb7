//! The budget of new sources.

/// The budget of new sources that a rule admits. Packets of new sources above it are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSources {
    /// How many in `window_ns`; all of them at once, or evenly.
    pub amount: u64,
    /// Nanoseconds.
    pub window_ns: u64,
}
