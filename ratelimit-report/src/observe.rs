//! What sources have wanted, and what other limits would have made of it: the material of `ratelimitd suggest`.
//!
//! In rounds, each a visit of every source. The cells of a window tell what was admitted in each bucket, and the
//! growth of its refusals what was not; together they are what the source wanted, its *demand*. Up to
//! [`CANDIDATES_MAX`](ratelimit_policy::config::rule::CANDIDATES_MAX) other amounts of each limit, the *candidates*, are held
//! against the same demand. Knows readings and policies. Must not know a map, a clock or a file: time is an argument.

use std::collections::HashMap;
use std::time::Duration;

use ipnet::IpNet;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::Nanos;
use ratelimit_common::window::amount_max;

use ratelimit_datapath::{SourceReading, Whose};
use ratelimit_policy::desired::{Limit, Per, Policy, Refuse, Rule, WindowForm};

mod limit;
mod once;
mod propose;
mod source;

#[cfg(test)]
mod tests;

pub use limit::{Candidate, Observed};
pub use propose::{Distribution, Gap, Proposal, Reason, SOURCES_MIN, gaps, propose, widest};

use limit::Observation;

/// Rounds are no closer than this: a window of one second has 8 buckets of 0.2 s in its ring, so none is missed.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Nor farther apart, so that sources that are evicted have been seen.
const INTERVAL_MAX: Duration = Duration::from_secs(30);
/// A round may take this part of the time between rounds. // 1/50 of one CPU
const REST: u32 = 50;

/// Room for refusals that is kept from round to round. // 1024 x 48 B = 49 KB
const OWED_KEPT: usize = 1_024;

/// Candidates of a limit unless they are said, as multiples of its amount.
const MULTIPLES: [(u64, u64); 8] = [(1, 8), (1, 4), (1, 2), (1, 1), (2, 1), (4, 1), (8, 1), (16, 1)];

/// Candidates of the rules that say some, by the rule's name.
pub type Candidates = [(String, Vec<Limit>)];

/// All that is observed.
#[derive(Debug, Default)]
pub struct Observer {
    /// What one client is.
    prefixes: (u8, u8),
    limits: Vec<Observation>,
    slots: HashMap<u32, usize>,
    /// Refusals of one limit that another of the same rule was not asked about: which, whose, how much.
    owed: Vec<(usize, Whose, u64)>,
}

/// One visit of every source.
#[derive(Debug)]
pub struct Round<'a> {
    observer: &'a mut Observer,
    refused_bytes: &'a [u64],
}

impl Observer {
    /// Observes the limits of this policy from now on, at most `sources_max` sources each. What of them was observed
    /// before goes on, with other amounts too; candidates that have changed start from zero.
    pub fn follow(&mut self, policy: &Policy, candidates: &Candidates, sources_max: usize, now: Nanos) {
        let prefixes = (policy.ipv4_prefix, policy.ipv6_prefix);
        let mut before = std::mem::take(&mut self.limits);
        if self.prefixes != prefixes {
            before.clear();
        }
        self.prefixes = prefixes;
        self.slots.clear();
        for (rule_index, rule) in policy.rules.iter().enumerate() {
            let first = self.limits.len();
            for limit in rule.limits.iter().filter(|limit| is_observed(limit)) {
                let amounts = amounts(rule, limit, candidates);
                let found = before.iter().position(|of| of.counts_like(limit));
                let mut of = found.map_or_else(|| Observation::new(*limit, now), |at| before.swap_remove(at));
                let is_logged = !rule.access_logs.is_empty() && limit.is_logged();
                of.follow(*limit, (rule_index, is_logged), amounts, sources_max, now);
                self.slots.insert(limit.slot, self.limits.len());
                self.limits.push(of);
            }
            let last = self.limits.len();
            let units: Vec<Unit> = self.limits[first..].iter().map(|of| of.limit().unit).collect();
            for at in first..last {
                let others = (first..last).filter(|other| *other != at);
                let shared = others.map(|other| (other, Weight::of(rule, units[at - first], units[other - first])));
                let shared = shared.filter(|(_, weight)| *weight != Weight::Unknown).collect();
                self.limits[at].weigh(Weight::of(rule, units[at - first], units[at - first]), shared);
            }
        }
    }

    /// Begins a round at `now` by the datapath's clock. `refused_bytes` is how long a refused packet of each rule is.
    pub fn round<'a>(&'a mut self, now: Nanos, refused_bytes: &'a [u64]) -> Round<'a> {
        self.owed.clear();
        self.limits.iter_mut().for_each(|of| of.begin(now));
        Round { observer: self, refused_bytes }
    }

    /// Nothing was counted between the last round and `now`, so that no bucket is missed.
    pub fn nothing_until(&mut self, now: Nanos) {
        self.limits.iter_mut().for_each(|of| of.nothing_until(now));
    }

    /// How long to wait after a round that took so long.
    pub fn interval(&self, took: Duration) -> Duration {
        let shortest_ns = self.limits.iter().map(|of| of.limit().bucket_ns).min().unwrap_or(u64::MAX);
        Duration::from_nanos(shortest_ns / 2).clamp(INTERVAL_MIN, INTERVAL_MAX).max(took.saturating_mul(REST))
    }

    /// What was observed of a limit; none of one that has no buckets, or before the first round.
    pub fn observed(&self, limit: &Limit) -> Option<Observed> {
        let of = self.limits.get(*self.slots.get(&limit.slot)?)?;
        of.has_begun().then(|| of.observed())
    }

    /// The sources that wanted more than this in a window of the limit, and how much in their busiest, in order.
    pub fn over(&self, limit: &Limit, amount: u64) -> Vec<(IpNet, u64)> {
        let of = self.slots.get(&limit.slot).and_then(|at| self.limits.get(*at));
        of.map_or_else(Vec::new, |of| of.over(amount))
    }

    /// Bytes of memory that the sources take.
    pub fn bytes(&self) -> usize {
        self.limits.iter().map(Observation::bytes).sum()
    }
}

impl Round<'_> {
    /// Takes in one window of one source. Windows of no limit that is observed are passed over.
    pub fn visit(&mut self, reading: &SourceReading) {
        let Some(&at) = self.observer.slots.get(&reading.slot) else { return };
        let of = &mut self.observer.limits[at];
        let refused_bytes = self.refused_bytes.get(of.rule()).copied().unwrap_or(0);
        let refused = of.visit(reading, refused_bytes);
        if refused > 0 {
            let owed = of.shared().iter().map(|(other, weight)| (*other, weight.amount(refused, refused_bytes)));
            self.observer.owed.extend(owed.map(|(other, amount)| (other, reading.whose(), amount)));
        }
    }

    /// Ends it.
    pub fn finish(self) {
        for (at, source, amount) in self.observer.owed.drain(..) {
            self.observer.limits[at].owe(source, amount);
        }
        self.observer.limits.iter_mut().for_each(Observation::finish);
        self.observer.owed.shrink_to(OWED_KEPT);
    }
}

/// What one refusal is in the unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    One,
    /// As long as a refused packet of the rule is on average.
    Bytes,
    /// However many there are, one at least was meant.
    OneOfMany,
    /// It cannot be told.
    Unknown,
}

impl Weight {
    /// Of a refusal by a limit that counts in `from`, to one that counts in `to`.
    const fn of(rule: &Rule, from: Unit, to: Unit) -> Self {
        match (to, from, rule.refuse) {
            (Unit::Packets, _, _) => Self::One,
            (Unit::Bytes, _, _) => Self::Bytes,
            (Unit::Requests, Unit::Requests, Refuse::Excess)
            | (Unit::Connections, Unit::Connections, Refuse::Excess) => Self::One,
            // Whatever the source sends is refused, and what is counted is not told from the rest.
            (Unit::Requests, Unit::Requests, Refuse::All) | (Unit::Connections, Unit::Connections, Refuse::All) => {
                Self::OneOfMany
            }
            (Unit::Requests, Unit::Connections | Unit::Packets | Unit::Bytes, _)
            | (Unit::Connections, Unit::Requests | Unit::Packets | Unit::Bytes, _) => Self::Unknown,
        }
    }

    fn amount(self, refusals: u64, refused_bytes: u64) -> u64 {
        match self {
            Self::One => refusals,
            Self::Bytes => refusals.saturating_mul(refused_bytes),
            Self::OneOfMany => refusals.min(1),
            Self::Unknown => 0,
        }
    }
}

/// Whether a limit has buckets that tell what a source was admitted when.
fn is_observed(limit: &Limit) -> bool {
    match limit.form {
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => limit.per == Per::Source,
        WindowForm::Gcra => false,
    }
}

/// The amounts that are held against what a limit sees, ascending.
fn amounts(rule: &Rule, limit: &Limit, candidates: &Candidates) -> Vec<u64> {
    let said = candidates.iter().filter(|(name, _)| *name == rule.name).flat_map(|(_, limits)| limits);
    let mut amounts: Vec<u64> = said.filter(|other| other.slot == limit.slot).map(|other| other.amount).collect();
    if amounts.is_empty() {
        let most = amount_max(limit.bucket_ns);
        amounts.extend(MULTIPLES.map(|(by, part)| (limit.amount.saturating_mul(by) / part).clamp(1, most)));
    }
    amounts.sort_unstable();
    amounts.dedup();
    amounts
}
