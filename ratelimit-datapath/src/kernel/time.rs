//! What time it is for the program: the kernel's clock made wall-clock time, or one that a test sets.

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::Array;
use ratelimit_common::layout::map;
use ratelimit_common::time::Nanos;

use super::{Clock, map_ref, state};
use crate::DatapathError;

/// The program's clock.
#[derive(Debug)]
pub(super) struct Time {
    clock: Clock,
    wall_offset_ns: u64,
}

impl Time {
    /// One that nobody has set.
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock, wall_offset_ns: 0 }
    }

    /// Goes on with the time base of earlier runs, if there is one.
    pub(super) fn take(&mut self, pinned: u64) -> Result<(), DatapathError> {
        self.wall_offset_ns = match (self.clock, pinned) {
            (Clock::Injected, _) => 0,
            (Clock::Kernel, 0) => state::wall_offset_ns()?,
            (Clock::Kernel, pinned) => pinned,
        };
        Ok(())
    }

    /// Whether a configuration of this time base is that of a test, or of no run at all.
    pub(super) fn is_lost(&self, pinned: u64) -> bool {
        self.clock == Clock::Kernel && pinned == 0
    }

    /// What is added to the kernel's clock.
    pub(super) const fn wall_offset_ns(&self) -> u64 {
        self.wall_offset_ns
    }

    /// Now.
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
        time.take(7).unwrap();
        assert_eq!(time.wall_offset_ns(), 7);
        time.take(0).unwrap();
        assert!(time.wall_offset_ns() > 7, "it begins with the wall clock");
        assert!(time.is_lost(0) && !time.is_lost(7));
        let mut injected = Time::new(Clock::Injected);
        injected.take(7).unwrap();
        assert_eq!(injected.wall_offset_ns(), 0);
        assert!(!injected.is_lost(0));
    }
}
