//! What is reported, when, and what is made of the answers. Pure: time, sequence and counts are handed in.
//!
//! A source is tracked from its first crossing of a step on. It is looked up at a crossing and once an interval. What
//! it admitted is said at once where [`Terms::is_urgent`] or [`Terms::is_hot`] says so, else at the interval.

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

/// No source is looked up more often.
pub const LOOK_GAP: Duration = Duration::from_millis(20);

/// So long after a call failed its sources are tried again, if no interval ends before.
pub const RETRY: Duration = Duration::from_millis(300);

/// What a fleet is told once.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How many hosts there are.
    pub hosts: u32,
    /// What is not urgent is said so often.
    pub interval: Duration,
    /// Sources that are tracked; more are not reported, which forgives them.
    pub sources_max: usize,
    /// Sources that are exchanged in one round; more wait for the next.
    pub round_max: usize,
    /// Of each limit so much that no store can take, in percent.
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

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Registers that the store took.
    pub reports: u64,
    /// Crossings and sources that were not reported, for want of room.
    pub reports_lost: u64,
    /// Sums that were more than all hosts can have admitted.
    pub garbage: u64,
    /// Answers that came after later ones.
    pub late: u64,
    /// Times that the store had lost what it had.
    pub store_lost: u64,
}

impl Counters {
    /// The same, with what was counted before.
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

/// How a source stands, for `check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What this host admitted in the window, by the last look.
    pub here: u64,
    /// What the others did, as last told.
    pub elsewhere: u64,
    /// When that was told.
    pub told_at: Option<Nanos>,
}

/// The state of this host in its fleet.
#[derive(Debug)]
pub struct Core {
    host: HostId,
    names: Names,
    settings: Settings,
    limits: Vec<(FleetLimit, Terms)>,
    tracked: HashMap<Subject, Tracked>,
    sequence: Sequence,
    /// Of the last call that had other limits: what is answered to it, or one before, is of no use.
    outdated: Sequence,
    skew: Skew,
    counters: Counters,
    tick_at: Nanos,
    /// Whether what is due is all, not only what crossed.
    is_tick: bool,
    /// When what failed is tried again, between ticks.
    retry_at: Option<Nanos>,
    is_retry: bool,
    /// The earliest crossing that was not looked up.
    crossed_at: Option<Nanos>,
    looked_at: Nanos,
    /// Before this no bucket is final: hosts say again what the store lost, or could not be told.
    unsettled_until: Nanos,
}

impl Core {
    /// A host that knows nothing of the others yet. Each limit's id is its place in `limits`.
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

    /// Puts other limits in force. What is known of those that stay, by their identity and buckets, stays too; the kernel
    /// is told it again, as its windows may be new ones. Calls on their way name limits by places that others may have
    /// now: their answers are not taken.
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

    /// The kernel says that a source's count of a bucket crossed a multiple of the limit's step.
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

    /// The kernel says that it lost so many crossings.
    pub fn crossings_lost(&mut self, count: u64) {
        self.counters.reports_lost += count;
    }

    /// When [`Core::due`] has something to do.
    pub fn wakes_at(&self) -> Nanos {
        let gap_ends = after(self.looked_at, LOOK_GAP);
        let crossing = self.crossed_at.map(|at| at.max(gap_ends));
        [crossing, self.retry_at].into_iter().flatten().fold(self.tick_at, Nanos::min)
    }

    /// The sources to look up in the kernel now, for [`Core::round`]; none before [`Core::wakes_at`].
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
        // Those that waited longest first: what does not fit in a round is among them in the next.
        due.sort_unstable();
        due.into_iter().map(|(_, subject)| subject).collect()
    }

    /// The store lost what it had, for certain: all is said again.
    pub fn store_lost(&mut self, now: Nanos) {
        self.counters.store_lost += 1;
        self.unsettle(now);
        self.tracked.values_mut().for_each(Tracked::store_lost);
    }

    /// A host was away and is back: what it has to say of buckets that seemed final is asked for, at once.
    pub fn rejoined(&mut self, now: Nanos) {
        self.unsettle(now);
        self.tick_at = self.tick_at.min(now);
        self.tracked.values_mut().for_each(Tracked::ask_all);
    }

    /// The counters of a source were reset on all hosts.
    pub fn reset(&mut self, source: ipnet::IpNet) {
        let covered = self.tracked.iter_mut().filter(|(subject, _)| source.contains(&subject.source));
        covered.for_each(|(_, known)| known.forget_others());
    }

    /// The store said its time.
    pub fn learn_time(&mut self, asked: Nanos, answered: Nanos, theirs: Nanos) {
        self.skew.learn(asked, answered, theirs);
    }

    /// Ours minus the store's, in nanoseconds; none before the store said its time.
    pub fn ahead_ns(&self) -> Option<i64> {
        self.skew.ahead_ns()
    }

    /// The limits that are not summed, as the clocks differ by more than a quarter of their bucket.
    pub fn not_summed(&self) -> Vec<LimitId> {
        let is_off = |(_, (limit, _)): &(u16, &(FleetLimit, Terms))| !limit.is_summed_at(self.skew.certain());
        (0..).zip(&self.limits).filter(is_off).map(|(id, _)| LimitId(id)).collect()
    }

    /// How a source stands; none where it is not tracked.
    pub fn standing(&self, subject: Subject, now: Nanos) -> Option<Standing> {
        let (limit, _) = self.limit(subject.limit)?;
        let known = self.tracked.get(&subject)?;
        let told_at = known.told_at;
        Some(Standing { here: known.own(limit, now), elsewhere: known.others(limit, now), told_at })
    }

    /// How many sources are tracked.
    pub fn tracked(&self) -> usize {
        self.tracked.len()
    }

    /// What was counted.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// This host.
    pub const fn host(&self) -> HostId {
        self.host
    }

    /// How many hosts there are, as this one was told.
    pub const fn hosts(&self) -> u32 {
        self.settings.hosts
    }

    /// The limits, by their ids.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &FleetLimit> {
        self.limits.iter().map(|(limit, _)| limit)
    }

    /// The names of this fleet.
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

/// `later` after `at`.
pub(crate) fn after(at: Nanos, later: Duration) -> Nanos {
    Nanos(at.0.saturating_add(u64::try_from(later.as_nanos()).unwrap_or(u64::MAX)))
}
