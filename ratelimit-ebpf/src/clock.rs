//! The program's only source of time.

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

    /// Returns the exact time, which charges use. // about 20 ns
    #[inline(always)]
    pub(crate) fn precise(self) -> Nanos {
        // SAFETY: the helper has no preconditions.
        self.wall(|| unsafe { bpf_ktime_get_ns() })
    }

    /// Returns a time that is at most one timer tick (1 to 10 ms) behind. Refusals may use it, as they may come late by
    /// that much. Admissions may use it only where it surely falls in the same bucket as the exact time. // about 2 ns:
    /// the verifier makes the helper one load
    #[inline(always)]
    pub(crate) fn coarse(self) -> Nanos {
        self.wall(|| {
            // SAFETY: the helper has no preconditions.
            let tick = unsafe { bpf_jiffies64() };
            // SAFETY: the helper has no preconditions.
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
