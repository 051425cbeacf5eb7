//! The program's time: the kernel's clock converted to wall-clock time, or a time set by a test.

use std::time::Duration;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::Array;
use ratelimit_common::layout::map;
use ratelimit_common::time::{Nanos, SECOND_NS};

use super::{Clock, map_ref, state};
use crate::DatapathError;

/// Shortest suspension that is followed. A shorter one may come from rounding, or from two clocks that were not read at
/// once.
const SUSPENDED_MIN_NS: u64 = 2 * SECOND_NS;

/// The program's clock.
#[derive(Debug)]
pub(super) struct Time {
    clock: Clock,
    wall_offset_ns: u64,
    /// Part of the time since boot in suspension that `wall_offset_ns` includes.
    suspended_ns: u64,
}

impl Time {
    /// Returns a clock that is not set.
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock, wall_offset_ns: 0, suspended_ns: 0 }
    }

    /// Adopts the time base of earlier runs, if there is one, and the suspended time that it includes, if recorded.
    pub(super) fn take(&mut self, pinned: u64, suspended: u32) -> Result<(), DatapathError> {
        self.wall_offset_ns = match (self.clock, pinned) {
            (Clock::Injected, _) => 0,
            (Clock::Kernel, 0) => state::wall_offset_ns()?,
            (Clock::Kernel, pinned) => pinned,
        };
        self.suspended_ns = match (pinned, suspended.checked_sub(1)) {
            (0, _) | (_, None) => state::suspended_ns()?,
            (_, Some(seconds)) => u64::from(seconds) * SECOND_NS,
        };
        Ok(())
    }

    /// Advances by the time of suspension since the last call, which the kernel's monotonic clock does not include.
    /// Returns none if there was none.
    pub(super) fn catch_up(&mut self) -> Result<Option<Duration>, DatapathError> {
        match self.clock {
            Clock::Kernel => Ok(self.follow(state::suspended_ns()?)),
            Clock::Injected => Ok(None),
        }
    }

    fn follow(&mut self, suspended_ns: u64) -> Option<Duration> {
        let more_ns = suspended_ns.checked_sub(self.suspended_ns).filter(|more| *more >= SUSPENDED_MIN_NS)?;
        self.suspended_ns = suspended_ns;
        self.wall_offset_ns = self.wall_offset_ns.saturating_add(more_ns);
        Some(Duration::from_nanos(more_ns))
    }

    /// Returns the value for [`ratelimit_common::layout::Config::suspended`].
    pub(super) fn suspended(&self) -> u32 {
        u32::try_from((self.suspended_ns + SECOND_NS / 2) / SECOND_NS).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Returns whether a configuration has no time base, because a test or no run wrote it.
    pub(super) fn is_lost(&self, pinned: u64) -> bool {
        self.clock == Clock::Kernel && pinned == 0
    }

    /// Returns the nanoseconds to add to the kernel's clock.
    pub(super) const fn wall_offset_ns(&self) -> u64 {
        self.wall_offset_ns
    }

    /// Returns the current time.
    pub(super) fn now(&self, ebpf: &Ebpf) -> Result<Nanos, DatapathError> {
        match self.clock {
            Clock::Kernel => Ok(Nanos(state::monotonic_ns()?.wrapping_add(self.wall_offset_ns))),
            Clock::Injected => {
                let map: Array<_, u64> =
                    Array::try_from(map_ref(ebpf, map::INJECTED_NOW)?).context("open INJECTED_NOW")?;
                Ok(Nanos(map.get(&0, 0).context("read INJECTED_NOW")?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_base_of_earlier_runs_goes_on_and_a_test_has_none() {
        let mut time = Time::new(Clock::Kernel);
        time.take(7, 0).unwrap();
        assert_eq!(time.wall_offset_ns(), 7);
        time.take(0, 0).unwrap();
        assert!(time.wall_offset_ns() > 7, "it begins with the wall clock");
        assert!(time.is_lost(0) && !time.is_lost(7));
        let mut injected = Time::new(Clock::Injected);
        injected.take(7, 0).unwrap();
        assert_eq!(injected.wall_offset_ns(), 0);
        assert!(!injected.is_lost(0));
    }

    #[test]
    fn the_clock_goes_ahead_by_each_suspension_once_and_never_back() {
        const HOUR_NS: u64 = 3_600 * SECOND_NS;
        let mut time = Time::new(Clock::Kernel);
        time.take(7, 11).unwrap();
        assert_eq!(time.suspended(), 11, "ten seconds, as the run before has told");
        let mut follow = |suspended_ns| time.follow(suspended_ns).map(|more| more.as_secs());
        // Neither rounding nor a clock that was read late counts as a suspension.
        assert_eq!([10, 11].map(|seconds| follow(seconds * SECOND_NS + 900_000_000)), [None, None]);
        assert_eq!((follow(10 * SECOND_NS + HOUR_NS), follow(10 * SECOND_NS + HOUR_NS)), (Some(3_600), None));
        assert_eq!((follow(0), follow(10 * SECOND_NS + 2 * HOUR_NS)), (None, Some(3_600)));
        assert_eq!((time.wall_offset_ns(), time.suspended()), (7 + 2 * HOUR_NS, 7_211));
        // State of a run that recorded nothing begins with the current suspended time.
        let mut untold = Time::new(Clock::Kernel);
        untold.take(7, 0).unwrap();
        assert_eq!((untold.catch_up().unwrap(), untold.wall_offset_ns()), (None, 7));
    }
}
