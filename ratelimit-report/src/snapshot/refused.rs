//! Windows that refuse their source at a given time. Pure.

use std::collections::HashMap;

use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::window::FULL_BUCKETS_MAX;

use super::sources::WindowState;
use ratelimit_datapath::{EventLimit, SourceReading};
use ratelimit_policy::desired::{Limit, Mode, Policy};

/// Limits of a policy, indexed by the slots of their windows.
#[derive(Debug)]
pub struct RefusedNow<'a> {
    policy: &'a Policy,
    now: Nanos,
    /// Index of the rule in the policy and of the limit in the rule, by slot.
    limits: HashMap<u32, (usize, usize)>,
}

/// Limit that refuses a source now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedBy {
    /// Index of the rule in the policy.
    pub rule: usize,
    /// Index of the limit in the rule.
    pub limit: EventLimit,
    /// True if the rule is in dry run, so that nothing is dropped.
    pub would: bool,
    /// Amount used of the limit, in its unit.
    pub used: u64,
}

impl<'a> RefusedNow<'a> {
    /// Creates the index of this policy's limits, at `now` by the datapath's clock.
    pub fn new(policy: &'a Policy, now: Nanos) -> Self {
        let of_rule = |(at, rule): (usize, &'a _)| {
            let rule: &ratelimit_policy::desired::Rule = rule;
            rule.limits.iter().enumerate().map(move |(limit, of): (usize, &Limit)| (of.slot, (at, limit)))
        };
        Self { policy, now, limits: policy.rules.iter().enumerate().flat_map(of_rule).collect() }
    }

    /// Returns the limit that refuses the source of this window now, and has refused it recently. Returns none if an
    /// entry of the access list decides, and for the window of a shadow limit.
    pub fn by(&self, reading: &SourceReading) -> Option<RefusedBy> {
        let &(rule, limit) = self.limits.get(&reading.slot)?;
        let of = self.policy.rules.get(rule)?;
        let held = of.limits.get(limit)?;
        let state = WindowState::of_reading(of, held, Some(reading), self.now);
        let newest = BucketIndex(self.now.bucket(held.bucket_ns).0.saturating_add(u64::from(FULL_BUCKETS_MAX)));
        let is_cached = reading.refused_until.is_some_and(|until| self.now < until);
        let has_refused = is_cached || reading.window.refused.is_within(newest, FULL_BUCKETS_MAX);
        if !state.over || !has_refused || self.policy.grant_around(reading.prefix, self.now).is_some() {
            return None;
        }
        let would = match of.mode {
            Mode::Enforce => false,
            Mode::DryRun => true,
        };
        Some(RefusedBy { rule, limit: EventLimit::Held(limit), would, used: state.used })
    }
}
