//! How long the store takes, and what follows for the bound. Pure: instants are handed in.
//!
//! A *trip* is one exchange: from the question to the answer. A *way* is a report's: from the reading of its counts in the
//! kernel to the answer, so what it waited for the calls before it is part of it. Neither is a mean. The bound holds for
//! the slowest report, so the longest of the last [`KEPT_SECONDS`] counts.

use std::time::Duration;

use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_policy::fleet::{DELAY_MAX, delay};

/// The seconds of which the longest trips are kept.
pub const KEPT_SECONDS: usize = 30;

/// A trip that is not quick.
pub const SLOW_FROM: Duration = Duration::from_millis(100);

/// In so many seconds of those kept a trip must have been slow before the store counts as slow, or as too far. One pause
/// of a busy machine, which delays many exchanges at once, is none of that.
pub const SECONDS_MIN: usize = 3;

/// How far the store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distance {
    /// It answers soon.
    #[default]
    Near,
    /// It answers late: reports take longer, and the bound is higher.
    Slow,
    /// It answers too late for sums: the store counts as away.
    Far,
}

/// What the last trips say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// How far the store is.
    pub distance: Distance,
    /// The longest trip; none before the first.
    pub round_trip: Option<Duration>,
    /// What a report takes at most; none before the first trip.
    pub delay: Option<Duration>,
}

/// The longest of one second.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// Which second; 0 is none.
    number: u64,
    trip: Duration,
    way: Duration,
}

impl Second {
    /// What a report takes at most. A way is up to two trips where nothing else waits.
    fn delay(&self) -> Duration {
        delay(self.trip.max(self.way / 2))
    }
}

/// The longest trips and ways of the last seconds.
#[derive(Clone, Debug, Default)]
pub struct Trips {
    seconds: [Second; KEPT_SECONDS],
}

impl Trips {
    /// Takes in that an answer came after `took`. `way` is the report's, where it was one.
    pub fn learn(&mut self, now: Nanos, took: Duration, way: Option<Duration>) {
        let number = number(now);
        let second = &mut self.seconds[place(number)];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second.trip = second.trip.max(took);
        second.way = second.way.max(way.unwrap_or_default());
    }

    /// Forgets all: they say nothing of another connection.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// What the last trips say.
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
    fn what_waits_for_others_counts_as_twice_its_way() {
        let mut trips = Trips::default();
        trips.learn(at(0), MS(10), Some(MS(19)));
        assert_eq!(trips.reach(at(0)).delay, Some(MS(120)), "four trips");
        trips.learn(at(0), MS(10), Some(MS(300)));
        assert_eq!(trips.reach(at(0)).delay, Some(MS(680)));
    }

    #[test]
    fn a_store_is_slow_from_the_third_second_with_a_late_answer_and_far_beyond_the_longest_delay() {
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
