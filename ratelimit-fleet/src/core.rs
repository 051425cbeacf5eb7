//! Decisions about what to report and when, and evaluation of the answers. Pure: time, sequence and counts are
//! arguments.
//!
//! A source is tracked from its first crossing of a step. Its counts are read at each crossing and once per interval.
//! They are reported at once if [`Terms::is_urgent`] or [`Terms::is_hot`] holds, otherwise at the next interval.

mod round;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_policy::fleet::{FleetLimit, Terms};

use crate::clock::Skew;
use crate::names::{HostId, Names};
use crate::tracked::{LimitId, Subject, Tracked, window};
use crate::wire::Sequence;

pub use round::Round;

/// Minimum time between two reads of the kernel's counts.
pub const LOOK_GAP: Duration = Duration::from_millis(20);

/// Delay before the sources of a failed call are tried again, unless the interval ends earlier.
pub const RETRY: Duration = Duration::from_millis(300);

/// Settings of the fleet, fixed at its start.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of hosts in the fleet.
    pub hosts: u32,
    /// Interval of reports that are not urgent.
    pub interval: Duration,
    /// Maximum number of tracked sources. Further sources are not reported, so other hosts do not count them.
    pub sources_max: usize,
    /// Maximum number of sources exchanged in one round. Further sources wait for the next round.
    pub round_max: usize,
    /// Percentage of each limit that counts of other hosts cannot take.
    pub floor_percent: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hosts: 2,
            interval: Duration::from_secs(1),
            sources_max: 32_768, // x 400 B = 13 MB
            round_max: 16_000,
            floor_percent: 0,
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Registers that the store accepted.
    pub reports: u64,
    /// Crossings and sources that were not reported because a queue, a table or a round was full.
    pub reports_lost: u64,
    /// Sums larger than all hosts together can have admitted.
    pub garbage: u64,
    /// Answers that arrived after later ones.
    pub late: u64,
    /// Number of times that the store lost its data.
    pub store_lost: u64,
}

impl Counters {
    /// Adds the counters of an earlier period.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            reports: self.reports + before.reports,
            reports_lost: self.reports_lost + before.reports_lost,
            garbage: self.garbage + before.garbage,
            late: self.late + before.late,
            store_lost: self.store_lost + before.store_lost,
        }
    }
}

/// Counts of one source in the fleet, for `check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Admissions of this host in the window, as of the last read.
    pub here: u64,
    /// Admissions of the other hosts in the window, as last reported.
    pub elsewhere: u64,
    /// Time of the last report from the other hosts.
    pub told_at: Option<Nanos>,
}

/// Fleet state of this host.
#[derive(Debug)]
pub struct Core {
    host: HostId,
    names: Names,
    settings: Settings,
    limits: Vec<(FleetLimit, Terms)>,
    tracked: HashMap<Subject, Tracked>,
    sequence: Sequence,
    /// Sequence of the last call made under earlier limits. Answers up to this sequence are discarded.
    outdated: Sequence,
    skew: Skew,
    counters: Counters,
    tick_at: Nanos,
    /// True if every tracked source is due, not only those that crossed a step.
    is_tick: bool,
    /// Time at which failed sources are tried again between ticks.
    retry_at: Option<Nanos>,
    is_retry: bool,
    /// Time of the earliest crossing that was not processed yet.
    crossed_at: Option<Nanos>,
    looked_at: Nanos,
    /// Time before which no bucket is final, because hosts may still repeat reports that the store lost or missed.
    unsettled_until: Nanos,
}

impl Core {
    /// Creates a host without counts from other hosts. Each limit's id is its index in `limits`.
    pub fn new(host: HostId, names: Names, settings: Settings, limits: Vec<FleetLimit>) -> Self {
        let mut core = Self {
            host,
            names,
            settings,
            limits: Vec::new(),
            tracked: HashMap::new(),
            sequence: Sequence::default(),
            outdated: Sequence::default(),
            skew: Skew::default(),
            counters: Counters::default(),
            tick_at: Nanos(0),
            is_tick: false,
            retry_at: None,
            is_retry: false,
            crossed_at: None,
            looked_at: Nanos(0),
            unsettled_until: Nanos(0),
        };
        core.set_limits(limits);
        core
    }

    /// Replaces the limits. Limits with unchanged identity and buckets keep their counts. The counts are written to the
    /// kernel again, because its windows may be new. Answers to calls in flight are discarded, because their limit ids
    /// refer to the earlier list.
    pub fn set_limits(&mut self, limits: Vec<FleetLimit>) {
        self.outdated = self.sequence;
        let hosts = self.settings.hosts;
        let with_terms = |limit: FleetLimit| (Terms::new(&limit, hosts), limit);
        let before: Vec<_> = std::mem::take(&mut self.limits);
        self.limits = limits.into_iter().map(with_terms).map(|(terms, limit)| (limit, terms)).collect();
        let same = |old: &FleetLimit, new: &FleetLimit| {
            old.identity == new.identity && old.bucket_ns == new.bucket_ns && old.full_buckets == new.full_buckets
        };
        let place = |id: LimitId| {
            let (old, _) = before.get(usize::from(id.0))?;
            let at = self.limits.iter().position(|(new, _)| same(old, new))?;
            u16::try_from(at).ok().map(LimitId)
        };
        let tracked = std::mem::take(&mut self.tracked);
        let moved = |(subject, mut known): (Subject, Tracked)| {
            known.tell_again();
            Some((Subject { limit: place(subject.limit)?, ..subject }, known))
        };
        self.tracked = tracked.into_iter().filter_map(moved).collect();
    }

    /// Records that a source's count in a bucket crossed a multiple of the limit's step in the kernel.
    pub fn crossed(&mut self, subject: Subject, bucket: BucketIndex, now: Nanos) {
        let Some((limit, _)) = self.limit(subject.limit) else {
            return;
        };
        if !window(limit, limit.bucket(now)).contains(&bucket.0) {
            return;
        }
        if self.tracked.len() >= self.settings.sources_max && !self.tracked.contains_key(&subject) {
            self.counters.reports_lost += 1;
            return;
        }
        self.tracked.entry(subject).or_default().has_crossed = true;
        self.crossed_at.get_or_insert(now);
    }

    /// Records that the kernel lost `count` crossings.
    pub fn crossings_lost(&mut self, count: u64) {
        self.counters.reports_lost += count;
    }

    /// Returns the time from which [`Core::due`] has work.
    pub fn wakes_at(&self) -> Nanos {
        let gap_ends = after(self.looked_at, LOOK_GAP);
        let crossing = self.crossed_at.map(|at| at.max(gap_ends));
        [crossing, self.retry_at].into_iter().flatten().fold(self.tick_at, Nanos::min)
    }

    /// Returns the sources to read from the kernel now, for [`Core::round`]. Empty before [`Core::wakes_at`].
    pub fn due(&mut self, now: Nanos) -> Vec<Subject> {
        if now < self.wakes_at() {
            return Vec::new();
        }
        self.crossed_at = None;
        self.looked_at = now;
        self.is_tick = now >= self.tick_at;
        self.is_retry = self.retry_at.is_some_and(|at| now >= at);
        if self.is_tick {
            self.tick_at = after(now, self.settings.interval);
        }
        if self.is_tick || self.is_retry {
            self.retry_at = None;
        }
        let mut due: Vec<(Option<Nanos>, Subject)> = self
            .tracked
            .iter()
            .filter(|(_, known)| known.has_crossed || self.is_tick || (self.is_retry && known.has_failed))
            .map(|(subject, known)| (known.tried_at, *subject))
            .collect();
        // Longest-waiting sources first, so that sources that exceed one round are served in the next.
        due.sort_unstable();
        due.into_iter().map(|(_, subject)| subject).collect()
    }

    /// Records that the store lost its data. All registers are reported again.
    pub fn store_lost(&mut self, now: Nanos) {
        self.counters.store_lost += 1;
        self.unsettle(now);
        self.tracked.values_mut().for_each(Tracked::store_lost);
    }

    /// Records that a host returned after an outage. Buckets that seemed final are requested again, at once.
    pub fn rejoined(&mut self, now: Nanos) {
        self.unsettle(now);
        self.tick_at = self.tick_at.min(now);
        self.tracked.values_mut().for_each(Tracked::ask_all);
    }

    /// Records that the counters of a source were reset on all hosts.
    pub fn reset(&mut self, source: ipnet::IpNet) {
        let covered = self.tracked.iter_mut().filter(|(subject, _)| source.contains(&subject.source));
        covered.for_each(|(_, known)| known.forget_others());
    }

    /// Records the store's time.
    pub fn learn_time(&mut self, asked: Nanos, answered: Nanos, theirs: Nanos) {
        self.skew.learn(asked, answered, theirs);
    }

    /// Returns this host's clock minus the store's, in nanoseconds. None before the first answer.
    pub fn ahead_ns(&self) -> Option<i64> {
        self.skew.ahead_ns()
    }

    /// Returns the limits that are not summed because the clocks differ by more than a quarter of their bucket.
    pub fn not_summed(&self) -> Vec<LimitId> {
        let is_off = |(_, (limit, _)): &(u16, &(FleetLimit, Terms))| !limit.is_summed_at(self.skew.certain());
        (0..).zip(&self.limits).filter(is_off).map(|(id, _)| LimitId(id)).collect()
    }

    /// Returns the counts of a source. None if the source is not tracked.
    pub fn standing(&self, subject: Subject, now: Nanos) -> Option<Standing> {
        let (limit, _) = self.limit(subject.limit)?;
        let known = self.tracked.get(&subject)?;
        let told_at = known.told_at;
        Some(Standing { here: known.own(limit, now), elsewhere: known.others(limit, now), told_at })
    }

    /// Returns the number of tracked sources.
    pub fn tracked(&self) -> usize {
        self.tracked.len()
    }

    /// Returns the counters since the start.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns this host's id.
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// Returns the configured number of hosts.
    pub const fn hosts(&self) -> u32 {
        self.settings.hosts
    }

    /// Returns the limits in the order of their ids.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &FleetLimit> {
        self.limits.iter().map(|(limit, _)| limit)
    }

    /// Returns the key and field names of this fleet.
    pub const fn names(&self) -> &Names {
        &self.names
    }

    fn unsettle(&mut self, now: Nanos) {
        self.unsettled_until = after(now, self.settings.interval * 3);
    }

    fn limit(&self, limit: LimitId) -> Option<&(FleetLimit, Terms)> {
        self.limits.get(usize::from(limit.0))
    }
}

/// Returns `at` plus `later`, saturating.
pub(crate) fn after(at: Nanos, later: Duration) -> Nanos {
    Nanos(at.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
}
