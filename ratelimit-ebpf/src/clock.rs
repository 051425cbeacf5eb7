//! The only file of the program that asks what time it is.

use aya_ebpf::helpers::generated::{bpf_jiffies64, bpf_ktime_get_ns};
use ratelimit_common::time::Nanos;

use crate::maps::{self, CachedClock};

/// The packet path's time, which starts at 1970 and never follows a step of the wall clock.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    wall_offset_ns: u64,
}

impl Clock {
    #[inline(always)]
    pub(crate) const fn new(wall_offset_ns: u64) -> Self {
        Self { wall_offset_ns }
    }

    /// The time to charge at. // about 20 ns
    #[inline(always)]
    pub(crate) fn precise(self) -> Nanos {
        // SAFETY: the helper has no preconditions.
        self.wall(|| unsafe { bpf_ktime_get_ns() })
    }

    /// A time that is at most one timer tick (1 to 10 ms) behind: enough to refuse by, since a refusal may come late
    /// by that much, and to admit by only
    /// where it is sure to name the same bucket. // about 2 ns: the verifier makes the helper one load
    #[inline(always)]
    pub(crate) fn coarse(self) -> Nanos {
        self.wall(|| {
            // SAFETY: the helper has no preconditions.
            let tick = unsafe { bpf_jiffies64() };
            // SAFETY: likewise.
            let read = || unsafe { bpf_ktime_get_ns() };
            match maps::cached_clock() {
                Some(last) if last.tick == tick => last.monotonic_ns,
                Some(last) => {
                    *last = CachedClock { tick, monotonic_ns: read() };
                    last.monotonic_ns
                }
                None => read(),
            }
        })
    }

    #[inline(always)]
    fn wall(self, monotonic_ns: impl Fn() -> u64) -> Nanos {
        match maps::injected_now() {
            Some(now) => now,
            None => Nanos(monotonic_ns().wrapping_add(self.wall_offset_ns)),
        }
    }
}
