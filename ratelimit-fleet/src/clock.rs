//! Offset between this host's clock and the store's. Pure: instants are arguments.
//!
//! The packet clock numbers the buckets, so the packet clock is compared. Every host compares with the same node of the
//! store. Of the last `SAMPLES` comparisons, the one with the shortest round trip counts: its error is at most half
//! its round trip.

use std::collections::VecDeque;
use std::time::Duration;

use ratelimit_common::time::Nanos;

const SAMPLES: usize = 8;

/// One request for the store's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// This host's clock minus the store's.
    ahead_ns: i64,
    way_ns: u64,
}

/// Estimated offset between the two clocks, from the last `SAMPLES` requests.
#[derive(Clone, Debug, Default)]
pub struct Skew {
    samples: VecDeque<Sample>,
}

impl Skew {
    /// Records that the store returned the time `theirs` between `asked` and `answered`, both by the packet clock.
    pub fn learn(&mut self, asked: Nanos, answered: Nanos, theirs: Nanos) {
        let way_ns = answered.0.saturating_sub(asked.0);
        let middle = asked.0.saturating_add(way_ns / 2);
        // The difference is computed in 128 bits and clamped, so an absurd store time cannot overflow.
        let ahead = i128::from(middle) - i128::from(theirs.0);
        let ahead_ns = i64::try_from(ahead).unwrap_or(if ahead < 0 { i64::MIN } else { i64::MAX });
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { ahead_ns, way_ns });
    }

    /// Returns this host's clock minus the store's, in nanoseconds. None before the first answer.
    pub fn ahead_ns(&self) -> Option<i64> {
        self.best().map(|sample| sample.ahead_ns)
    }

    /// Returns the smallest clock difference that is certain. Half the round trip is uncertainty.
    pub fn certain(&self) -> Duration {
        let Some(sample) = self.best() else {
            return Duration::ZERO;
        };
        Duration::from_nanos(sample.ahead_ns.unsigned_abs().saturating_sub(sample.way_ns / 2))
    }

    fn best(&self) -> Option<&Sample> {
        self.samples.iter().min_by_key(|sample| sample.way_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_difference_is_taken_from_the_middle_of_the_way() {
        let mut skew = Skew::default();
        assert_eq!(skew.ahead_ns(), None);
        skew.learn(Nanos(1000 * MS), Nanos(1010 * MS), Nanos(905 * MS));
        assert_eq!(skew.ahead_ns(), Some(100 * 1_000_000));
        assert_eq!(skew.certain(), Duration::from_millis(95));
    }

    #[test]
    fn the_answer_with_the_shortest_way_is_believed_for_a_while() {
        let mut skew = Skew::default();
        skew.learn(Nanos(0), Nanos(2 * MS), Nanos(MS));
        skew.learn(Nanos(0), Nanos(900 * MS), Nanos(MS));
        assert_eq!(skew.ahead_ns(), Some(0));
        for _ in 0..SAMPLES {
            skew.learn(Nanos(10_000 * MS), Nanos(10_004 * MS), Nanos(2 * MS));
        }
        assert_eq!(skew.ahead_ns(), Some(10_000 * 1_000_000), "old answers are left out");
    }

    #[test]
    fn no_time_of_the_store_overflows() {
        let mut skew = Skew::default();
        skew.learn(Nanos(0), Nanos(0), Nanos(u64::MAX));
        assert_eq!(skew.ahead_ns(), Some(i64::MIN));
        assert!(skew.certain() > Duration::from_secs(1_000_000));
    }
}
