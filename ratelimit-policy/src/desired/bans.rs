//! How long sources are banned.

/// How long a source is banned that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bans {
    /// For the first time, the second, and so on, the last for all after it: nanoseconds, 1 to
    /// [`ratelimit_common::layout::BAN_STEPS_MAX`].
    pub steps_ns: Vec<u64>,
    /// So long after the end of a ban the next is the first again.
    pub forget_ns: u64,
    /// Whether only verified traffic bans, see [`ratelimit_common::verification`].
    pub needs_proof: bool,
}

impl Bans {
    /// How long the ban is that is the `step`th in a row, from 1: nanoseconds. None where there are no steps.
    pub fn length_ns(&self, step: u32) -> Option<u64> {
        let place = usize::try_from(step.saturating_sub(1)).unwrap_or(usize::MAX);
        self.steps_ns.get(place).or(self.steps_ns.last()).copied()
    }
}
