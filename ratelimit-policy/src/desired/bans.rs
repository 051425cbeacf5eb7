//! Lengths of the automatic bans.

/// Lengths of the bans for exceeding a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// Length of the first ban, the second and so on, in nanoseconds. The last applies to all later bans. 1 to
    /// [`ratelimit_common::layout::BAN_STEPS_MAX`] steps.
    pub steps_ns: Vec<u64>,
    /// Time after the end of a ban, in nanoseconds, after which the next ban has the first length again.
    pub forget_ns: u64,
    /// Set if only verified traffic can trigger a ban, see [`ratelimit_common::verification`].
    pub needs_proof: bool,
}

impl Bans {
    /// Returns the length in nanoseconds of the `step`th ban in a row, counted from 1. None if there are no steps.
    pub fn length_ns(&self, step: u32) -> Option<u64> {
        let place = usize::try_from(step.saturating_sub(1)).unwrap_or(usize::MAX);
        self.steps_ns.get(place).or(self.steps_ns.last()).copied()
    }
}
