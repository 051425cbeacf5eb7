//! Demand of sources, and the effect that other limits would have had: the input of `ratelimitd suggest`.
//!
//! Observation runs in rounds, each of which visits every source. The cells of a window have the admissions of each
//! bucket. The growth of the refusal count is the refused amount. Their sum is the source's *demand*. Up to
//! [`CANDIDATES_MAX`](ratelimit_policy::config::rule::CANDIDATES_MAX) other amounts per limit, the *candidates*, are
//! applied to the demand. The module knows readings and policies. It must not know a map, a clock or a file: time is an
//! argument.

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

use crate::busy::Busy;
use limit::Observation;

/// Minimum interval between rounds. A window of 1 s has a ring of 8 buckets of 0.2 s, so none is missed.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum interval between rounds, so that sources are seen before their eviction.
const INTERVAL_MAX: Duration = Duration::from_secs(30);
/// Minimum interval as a multiple of a round's duration. // 1/50 of one CPU
const REST: u32 = 50;

/// Capacity for refusals that is kept from round to round. // 1024 x 48 B = 49 KB
const OWED_KEPT: usize = 1_024;

/// Default candidates of a limit, as fractions (numerator, denominator) of its amount.
const MULTIPLES: [(u64, u64); 8] = [(1, 8), (1, 4), (1, 2), (1, 1), (2, 1), (4, 1), (8, 1), (16, 1)];

/// Configured candidates by rule name. Rules without an entry use the default ones.
pub type Candidates = [(String, Vec<Limit>)];

/// Observations of all limits of a policy.
#[derive(Debug, Default)]
pub struct Observer {
    /// IPv4 and IPv6 prefix lengths of one client.
    prefixes: (u8, u8),
    limits: Vec<Observation>,
    slots: HashMap<u32, usize>,
    /// Refusals that ended a packet before another limit of the rule was checked: index of that limit, source, amount.
    owed: Vec<(usize, Whose, u64)>,
}

/// Round in progress, which visits every source once.
#[derive(Debug)]
pub struct Round<'a> {
    observer: &'a mut Observer,
    refused_bytes: &'a [u64],
}

impl Observer {
    /// Starts observing the limits of this policy, at most `sources_max` sources each. Limits that count like earlier
    /// ones keep their observations, even with other amounts. Changed candidates start from zero.
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

    /// Starts a round at `now` by the datapath's clock. `refused_bytes` is the mean length of a refused packet, by
    /// rule.
    pub fn round<'a>(&'a mut self, now: Nanos, refused_bytes: &'a [u64]) -> Round<'a> {
        self.owed.clear();
        self.limits.iter_mut().for_each(|of| of.begin(now));
        Round { observer: self, refused_bytes }
    }

    /// Records that nothing was counted between the last round and `now`, so that no bucket counts as missed.
    pub fn nothing_until(&mut self, now: Nanos) {
        self.limits.iter_mut().for_each(|of| of.nothing_until(now));
    }

    /// Returns the wait after a round of duration `took`: half the shortest bucket, within 1 s to 30 s, and at least 50
    /// times `took`.
    pub fn interval(&self, took: Duration) -> Duration {
        let shortest_ns = self.limits.iter().map(|of| of.limit().bucket_ns).min().unwrap_or(u64::MAX);
        Duration::from_nanos(shortest_ns / 2).clamp(INTERVAL_MIN, INTERVAL_MAX).max(took.saturating_mul(REST))
    }

    /// Returns the observations of a limit. Returns none for a limit without buckets, or before the first round.
    pub fn observed(&self, limit: &Limit) -> Option<Observed> {
        let of = self.limits.get(*self.slots.get(&limit.slot)?)?;
        of.has_begun().then(|| of.observed())
    }

    /// Returns the sources that exceeded `amount` in a window of the limit, sorted, each with the demand of its busiest
    /// window.
    pub fn over(&self, limit: &Limit, amount: u64) -> Vec<(IpNet, u64)> {
        let of = self.slots.get(&limit.slot).and_then(|at| self.limits.get(*at));
        of.map_or_else(Vec::new, |of| of.over(amount))
    }

    /// Returns the busiest prefixes under a limit, a limit for each of them that is at least `amount`, and a note if
    /// there is no such limit.
    pub(crate) fn busy(&self, limit: &Limit, amount: u64) -> (Busy, Option<String>) {
        let of = self.slots.get(&limit.slot).and_then(|at| self.limits.get(*at));
        of.map_or_else(Default::default, |of| of.busy(&Limit { amount, ..*limit }))
    }

    /// Returns the memory of all observed sources in bytes.
    pub fn bytes(&self) -> usize {
        self.limits.iter().map(Observation::bytes).sum()
    }
}

impl Round<'_> {
    /// Updates the observation from one window of one source. Windows of limits that are not observed are ignored.
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

    /// Ends the round and charges refusals to the other limits of their rules.
    pub fn finish(self) {
        for (at, source, amount) in self.observer.owed.drain(..) {
            self.observer.limits[at].owe(source, amount);
        }
        self.observer.limits.iter_mut().for_each(Observation::finish);
        self.observer.owed.shrink_to(OWED_KEPT);
    }
}

/// Amount of one refusal in the unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    One,
    /// Mean length of the rule's refused packets.
    Bytes,
    /// One unit in total for any number of refusals, because they stand for at least one unit.
    OneOfMany,
    /// No known amount, counted as 0.
    Unknown,
}

impl Weight {
    /// Returns the weight of a refusal by a limit that counts in `from`, for a limit that counts in `to`.
    const fn of(rule: &Rule, from: Unit, to: Unit) -> Self {
        match (to, from, rule.refuse) {
            (Unit::Packets, _, _) => Self::One,
            (Unit::Bytes, _, _) => Self::Bytes,
            (Unit::Requests, Unit::Requests, Refuse::Excess)
            | (Unit::Connections, Unit::Connections, Refuse::Excess) => Self::One,
            // Every packet of the source is refused, so counted and uncounted packets cannot be told apart.
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

/// Returns true if the limit is per source and has buckets, which tell when a source was admitted.
fn is_observed(limit: &Limit) -> bool {
    match limit.form {
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => limit.per == Per::Source,
        WindowForm::Gcra => false,
    }
}

/// Returns the candidate amounts of a limit, ascending: the configured ones, or else [`MULTIPLES`] of its own amount.
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
