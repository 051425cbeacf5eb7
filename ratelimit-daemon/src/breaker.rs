//! Circuit breaker that trips if a rule drops most of its packets for a while. In that case, the limit is more likely
//! wrong than the clients. Pure: times are durations since the daemon's start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ratelimit_common::layout::Tally;
use ratelimit_common::verdict::{Action, Reason};

use ratelimit_datapath::Reading;
use ratelimit_policy::desired::{Mode, Policy, Rule};

/// Minimum interval between two readings. Closer ones are ignored.
const SPAN_MIN: Duration = Duration::from_secs(1);
/// Minimum number of packets within the whole period. Fewer packets do not trip a rule.
const PACKETS_MIN: u64 = 100;

/// Share of packets that a rule may drop, and the time for which it may drop more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Share in percent, 1 to 100. At 100, nothing trips.
    pub(super) percent: u8,
    /// Time for which the share must be exceeded continuously.
    pub(super) hold: Duration,
}

/// State of the watched rules by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Breaker {
    watched: BTreeMap<String, Watched>,
    tripped: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    at: Duration,
    count: Count,
    /// Start of the continuous excess, and the counters at that time.
    over_since: Option<(Duration, Count)>,
}

/// Packets that a rule has judged since its counters began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    packets: u64,
    dropped: u64,
}

/// Rule that has tripped, with its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trip {
    /// Name of the rule.
    pub(super) rule: String,
    /// Packets that the rule judged in the period that made it trip.
    pub(super) packets: u64,
    /// Packets that the rule dropped in that period.
    pub(super) dropped: u64,
}

impl Breaker {
    /// Evaluates a reading. Returns newly tripped rules, each once until [`Breaker::close`]. Skips rules in dry run
    /// and rules that are expected to drop a lot.
    pub(super) fn observe(&mut self, policy: &Policy, reading: &Reading, at: Duration, share: Share) -> Vec<Trip> {
        let is_watched = |rule: &Rule| rule.mode == Mode::Enforce && !rule.under_attack_ok;
        self.watched.retain(|name, _| policy.rules.iter().any(|rule| rule.name == *name && is_watched(rule)));
        let mut trips = Vec::new();
        for (index, rule) in policy.rules.iter().enumerate().filter(|(_, rule)| is_watched(rule)) {
            let count = Count::of(reading, index);
            let watched = self.watched.entry(rule.name.clone());
            let watched = watched.or_insert(Watched { at, count, over_since: None });
            if let Some(since) = watched.step(count, at, share)
                && self.tripped.insert(rule.name.clone())
            {
                trips.push(Trip { rule: rule.name.clone(), packets: since.packets, dropped: since.dropped });
            }
        }
        trips
    }

    /// Returns true if a rule has tripped.
    pub(super) fn has_tripped(&self, rule: &str) -> bool {
        self.tripped.contains(rule)
    }

    /// Returns the names of the tripped rules.
    pub(super) fn tripped(&self) -> impl Iterator<Item = &str> {
        self.tripped.iter().map(String::as_str)
    }

    /// Resets the counts after a change of the configuration. Tripped rules stay tripped.
    pub(super) fn reset_counts(&mut self) {
        self.watched.clear();
    }

    /// Reverts a trip that was caused by another configuration.
    pub(super) fn take_back(&mut self, trip: &Trip) {
        self.tripped.remove(&trip.rule);
    }

    /// Resets the counts and all trips.
    pub(super) fn close(&mut self) {
        *self = Self::default();
    }
}

impl Watched {
    /// Returns the counts since the excess began, if the excess lasts long enough and covers enough packets.
    fn step(&mut self, count: Count, at: Duration, share: Share) -> Option<Count> {
        if at.saturating_sub(self.at) < SPAN_MIN {
            return None;
        }
        let began = self.over_since.unwrap_or((self.at, self.count));
        let is_over = count.since(self.count).exceeds(share);
        (self.at, self.count) = (at, count);
        self.over_since = is_over.then_some(began);
        let since = count.since(began.1);
        let is_long = at.saturating_sub(began.0) >= share.hold;
        (is_over && is_long && since.packets >= PACKETS_MIN).then_some(since)
    }
}

impl Count {
    /// Counts the packets that a rule judged. Excludes denied packets, which an administrator wants dropped.
    fn of(reading: &Reading, rule: usize) -> Self {
        let tallies = reading.interfaces.iter().filter_map(|interface| interface.rules.get(rule));
        let mut count = Self::default();
        for &(reason, Tally { packets, .. }) in tallies.flat_map(|of| &of.0) {
            if reason == Reason::Denied {
                continue;
            }
            count.packets = count.packets.saturating_add(packets);
            match reason.action() {
                Action::Drop => count.dropped = count.dropped.saturating_add(packets),
                Action::Pass => {}
            }
        }
        count
    }

    const fn since(self, earlier: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            dropped: self.dropped.saturating_sub(earlier.dropped),
        }
    }

    fn exceeds(self, share: Share) -> bool {
        u128::from(self.dropped) * 100 > u128::from(self.packets) * u128::from(share.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_common::layout::Unit;
    use ratelimit_datapath::{InterfaceReading, Tallies};
    use ratelimit_report::fixture::{limit, policy};

    const SHARE: Share = Share { percent: 50, hold: Duration::from_secs(30) };

    /// Returns a reading of one rule on one interface with the given packets passed, dropped and denied.
    fn reading(passed: u64, dropped: u64, denied: u64) -> Reading {
        let tally = |reason, packets| (reason, Tally { packets, bytes: 0 });
        let of = [(Reason::WithinLimit, passed), (Reason::OverLimit, dropped), (Reason::Denied, denied)];
        Reading {
            interfaces: vec![InterfaceReading {
                name: "eth0".into(),
                attached: None,
                xdp_holder: None,
                unruled: Tallies::default(),
                rules: vec![Tallies(of.map(|(reason, packets)| tally(reason, packets)).to_vec())],
            }],
            ..Reading::fixture()
        }
    }

    /// Returns the seconds at which the rule trips, with a look every two seconds. `rate` returns the packets passed,
    /// dropped and denied per look.
    fn trips(policy: &Policy, rate: impl Fn(u64) -> (u64, u64, u64)) -> Vec<u64> {
        let mut breaker = Breaker::default();
        let mut sum = (1_000_000, 9_000_000, 0);
        let look = |second: &u64| {
            let (passed, dropped, denied) = rate(*second);
            sum = (sum.0 + passed, sum.1 + dropped, sum.2 + denied);
            let reading = reading(sum.0, sum.1, sum.2);
            let at = Duration::from_secs(*second);
            !breaker.observe(policy, &reading, at, SHARE).is_empty()
        };
        (0..=120).step_by(2).filter(look).collect()
    }

    fn one_rule() -> Policy {
        policy(vec![limit(3, Unit::Connections)])
    }

    #[test]
    fn more_than_the_share_for_thirty_seconds_trips_once() {
        assert_eq!(trips(&one_rule(), |_| (10, 11, 0)), [30]);
        assert_eq!(trips(&one_rule(), |_| (10, 10, 0)), [] as [u64; 0], "exactly the share is not more");
    }

    #[test]
    fn a_break_begins_the_time_anew() {
        assert_eq!(trips(&one_rule(), |second| if second == 20 { (10, 10, 0) } else { (10, 90, 0) }), [50]);
        let quiet = |second| if second % 20 == 0 { (0, 0, 0) } else { (0, 90, 0) };
        assert_eq!(trips(&one_rule(), quiet), [] as [u64; 0]);
    }

    #[test]
    fn a_handful_of_packets_says_nothing() {
        assert_eq!(trips(&one_rule(), |_| (0, 6, 0)), [34], "a hundred packets are enough, whenever they are there");
        assert_eq!(trips(&one_rule(), |second| (0, u64::from(second < 60), 0)), [] as [u64; 0]);
    }

    #[test]
    fn denials_expected_attacks_and_dry_run_do_not_trip_the_breaker() {
        assert_eq!(trips(&one_rule(), |_| (10, 0, 1_000)), [] as [u64; 0]);
        let mut policy = one_rule();
        policy.rules[0].under_attack_ok = true;
        assert_eq!(trips(&policy, |_| (0, 1_000, 0)), [] as [u64; 0]);
        let mut policy = one_rule();
        policy.rules[0].mode = Mode::DryRun;
        assert_eq!(trips(&policy, |_| (0, 1_000, 0)), [] as [u64; 0]);
    }

    #[test]
    fn closed_it_counts_from_zero() {
        let mut breaker = Breaker::default();
        let policy = one_rule();
        let look = |breaker: &mut Breaker, second: u64| {
            let at = Duration::from_secs(second);
            breaker.observe(&policy, &reading(0, second * 100, 0), at, SHARE)
        };
        look(&mut breaker, 0);
        let trip = Trip { rule: "default".into(), packets: 4_000, dropped: 4_000 };
        assert_eq!(look(&mut breaker, 40), [trip]);
        assert!(breaker.has_tripped("default"));
        breaker.close();
        assert_eq!(breaker.tripped().count(), 0);
        look(&mut breaker, 42);
        assert!(look(&mut breaker, 71).is_empty());
        assert_eq!(look(&mut breaker, 72).len(), 1);
    }
}
