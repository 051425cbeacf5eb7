//! Response times of the store, and their effect on the bound. Pure: instants are arguments.
//!
//! A *trip* is one exchange, from the request to the answer. A *way* is the time of one report, from the reading of its
//! counts in the kernel to the answer. It includes the time that the report waited for earlier calls. The bound must
//! hold for the slowest report, so the maximum of the last [`KEPT_SECONDS`] counts, not the mean.

use std::time::Duration;

use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_policy::fleet::{DELAY_MAX, delay};

/// Number of seconds for which the longest trips are kept.
pub const KEPT_SECONDS: usize = 30;

/// Shortest trip that counts as slow.
pub const SLOW_FROM: Duration = Duration::from_millis(100);

/// Number of kept seconds with a slow trip from which the store counts as slow or too far. A single pause of a busy
/// machine delays many exchanges at once and must not count.
pub const SECONDS_MIN: usize = 3;

/// Distance to the store, by its response time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distance {
    /// The store answers quickly.
    #[default]
    Near,
    /// The store answers late: reports take longer, and the bound is higher.
    Slow,
    /// The store answers too late for sums and counts as away.
    Far,
}

/// Summary of the recent trips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Distance to the store.
    pub distance: Distance,
    /// Longest trip. None before the first trip.
    pub round_trip: Option<Duration>,
    /// Maximum time that a report takes. None before the first trip.
    pub delay: Option<Duration>,
}

/// Longest trip and way within one second.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Number of the second. 0 marks an unused slot.
    number: u64,
    trip: Duration,
    way: Duration,
}

impl Second {
    /// Returns the maximum time that a report takes. A way is up to two trips if nothing else waits.
    fn delay(&self) -> Duration {
        delay(self.trip.max(self.way / 2))
    }
}

/// Longest trips and ways of the last [`KEPT_SECONDS`] seconds.
#[derive(Clone, Debug, Default)]
pub struct Trips {
    seconds: [Second; KEPT_SECONDS],
}

impl Trips {
    /// Records an answer that arrived after `took`. `way` is set if the exchange was a report.
    pub fn learn(&mut self, now: Nanos, took: Duration, way: Option<Duration>) {
        let number = number(now);
        let second = &mut self.seconds[place(number)];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second.trip = second.trip.max(took);
        second.way = second.way.max(way.unwrap_or_default());
    }

    /// Removes all trips. They do not apply to a new connection.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Summarises the trips of the last [`KEPT_SECONDS`] seconds.
    pub fn reach(&self, now: Nanos) -> Reach {
        let current = number(now);
        let kept = || {
            let is_kept = move |second: &&Second| second.number != 0 && second.number + (KEPT_SECONDS as u64) > current;
            self.seconds.iter().filter(is_kept)
        };
        let is_often = |is_so: &dyn Fn(&Second) -> bool| kept().filter(|second| is_so(second)).count() >= SECONDS_MIN;
        let distance = if is_often(&|second| second.delay() > DELAY_MAX) {
            Distance::Far
        } else if is_often(&|second| second.trip >= SLOW_FROM) {
            Distance::Slow
        } else {
            Distance::Near
        };
        Reach { distance, round_trip: kept().map(|second| second.trip).max(), delay: kept().map(Second::delay).max() }
    }
}

const fn number(now: Nanos) -> u64 {
    now.0 / SECOND_NS + 1
}

#[expect(clippy::cast_possible_truncation, reason = "less than KEPT_SECONDS")]
const fn place(number: u64) -> usize {
    (number % KEPT_SECONDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn at(seconds: u64) -> Nanos {
        Nanos(1_750_000_000 * SECOND_NS + seconds * SECOND_NS)
    }

    #[test]
    fn the_longest_trip_counts_for_half_a_minute_and_no_longer() {
        let mut trips = Trips::default();
        assert_eq!(trips.reach(at(0)), Reach::default());
        trips.learn(at(0), MS(90), None);
        (0..29).for_each(|second| trips.learn(at(second), MS(2), None));
        let reach = trips.reach(at(29));
        assert_eq!((reach.round_trip, reach.delay), (Some(MS(90)), Some(MS(440))));
        assert_eq!(trips.reach(at(30)).round_trip, Some(MS(2)));
        assert_eq!(trips.reach(at(90)), Reach::default());
    }

    #[test]
    fn waiting_for_others_counts_as_twice_the_trip() {
        let mut trips = Trips::default();
        trips.learn(at(0), MS(10), Some(MS(19)));
        assert_eq!(trips.reach(at(0)).delay, Some(MS(120)), "four trips");
        trips.learn(at(0), MS(10), Some(MS(300)));
        assert_eq!(trips.reach(at(0)).delay, Some(MS(680)));
    }

    #[test]
    fn a_store_is_slow_after_three_late_seconds_and_far_beyond_the_last_delay() {
        for (took, distance) in
            [(99, Distance::Near), (100, Distance::Slow), (230, Distance::Slow), (231, Distance::Far)]
        {
            let mut trips = Trips::default();
            for second in [0, 0, 0, 5, 5] {
                trips.learn(at(second), MS(took), None);
            }
            assert_eq!(trips.reach(at(5)).distance, Distance::Near, "{took} ms in two seconds");
            trips.learn(at(9), MS(took), None);
            assert_eq!(trips.reach(at(9)).distance, distance, "{took} ms in three");
            assert_eq!(trips.reach(at(31)).distance, Distance::Near, "{took} ms, long after");
        }
    }
}
