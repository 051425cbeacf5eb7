//! Identities of a policy's limits in a fleet: a number for each side of a limit that is summed. Pure.

use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::Side;

use ratelimit_datapath::{LimitAt, Reading};
use ratelimit_fleet::tracked::{LimitId, Subject};
use ratelimit_policy::desired::{Limit, Policy, Rule};
use ratelimit_policy::fleet::FleetLimit;
use ratelimit_report::snapshot::{Budget, CheckLimit, Unit};

/// Shared limits in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct SharedLimits(Vec<Shared>);

/// Shared side of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) rule: String,
    pub(super) limit: Limit,
    pub(super) named: FleetLimit,
    pub(super) at: LimitAt,
}

impl SharedLimits {
    /// Returns the shared limits of a policy, in its order.
    pub(super) fn of(policy: &Policy) -> Self {
        let named = |(rule, limit, at): (&Rule, &Limit, LimitAt)| {
            let named = limit.fleet_limit(&rule.name)?;
            let identity = identity(&named, at.side, limit.told_sides());
            Some(Shared { rule: rule.name.clone(), limit: *limit, named: FleetLimit { identity, ..named }, at })
        };
        Self(told_sides(policy).filter_map(named).collect())
    }

    /// Returns true if these are the policy's shared limits. Allocates nothing, because it runs many times per
    /// second.
    pub(super) fn are_of(&self, policy: &Policy) -> bool {
        told_sides(policy)
            .map(|(rule, limit, at)| (rule.name.as_str(), limit, at))
            .eq(self.0.iter().map(|Shared { rule, limit, at, named: _ }| (rule.as_str(), limit, *at)))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the limits in the fleet's form. The index is the number.
    pub(super) fn limits(&self) -> Vec<FleetLimit> {
        self.0.iter().map(|shared| shared.named.clone()).collect()
    }

    /// Iterates over the limits with their numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (LimitId, &Shared)> {
        (0..).map(LimitId).zip(&self.0)
    }

    /// Returns the number of a limit.
    pub(super) fn id(&self, at: LimitAt) -> Option<LimitId> {
        self.all().find(|(_, shared)| shared.at == at).map(|(id, _)| id)
    }

    /// Returns the limit that has this number in `list`, even if its number here differs.
    pub(super) fn named(&self, list: &[FleetLimit], id: LimitId) -> Option<&Shared> {
        let asked = list.get(usize::from(id.0))?;
        let same = |of: &FleetLimit| {
            of.identity == asked.identity && of.bucket_ns == asked.bucket_ns && of.full_buckets == asked.full_buckets
        };
        let here = self.0.get(usize::from(id.0)).filter(|shared| same(&shared.named));
        here.or_else(|| self.0.iter().find(|shared| same(&shared.named)))
    }

    /// Returns the fleet's subject for a row of `check` and a client.
    pub(in super::super) fn subject(&self, row: &CheckLimit, client: ipnet::IpNet) -> Option<Subject> {
        let is_row = |shared: &Shared| {
            let side = match row.budget {
                None => true,
                Some(Budget::Verified) => shared.at.side == Side::Verified,
                Some(Budget::Unverified) => shared.at.side != Side::Verified,
            };
            let limit = &shared.limit;
            side && shared.rule == row.rule
                && Unit::from(limit.unit) == row.unit
                && limit.amount == row.limit
                && limit.form == row.window
                && is_so_long(limit.bucket_ns, row.bucket_seconds)
                && is_so_long(limit.window_ns, row.window_seconds)
        };
        let (limit, _) = self.all().find(|(_, shared)| is_row(shared))?;
        Some(Subject { limit, source: client })
    }

    /// Returns the number of packets that the rules with shared limits admitted.
    pub(super) fn admitted(&self, reading: &Reading, policy: &Policy) -> u64 {
        let is_shared = |at: usize| self.0.iter().any(|shared| shared.at.rule == at);
        let of_rules = reading.interfaces.iter().flat_map(|interface| interface.rules.iter().enumerate());
        let tallies = of_rules.filter(|(at, _)| *at < policy.rules.len() && is_shared(*at));
        tallies.fold(0, |sum: u64, (_, tallies)| sum.saturating_add(tallies.of(Reason::WithinLimit).packets))
    }
}

/// Returns the shared sides of a policy's limits, in its order.
fn told_sides(policy: &Policy) -> impl Iterator<Item = (&Rule, &Limit, LimitAt)> {
    let of_rules = policy.rules.iter().enumerate().flat_map(|(rule, of)| {
        of.limits.iter().enumerate().flat_map(move |(limit, shared)| {
            shared.told_sides().iter().map(move |side| (of, shared, LimitAt { rule, limit, side: *side }))
        })
    });
    of_rules.take(u16::MAX.into())
}

/// Returns the identity of a side. The verified side gets a suffix if both sides of a limit are summed.
fn identity(named: &FleetLimit, side: Side, sides: &[Side]) -> String {
    match (sides, side) {
        ([_, _, ..], Side::Verified) => format!("{}/verified", named.identity),
        _ => named.identity.clone(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a length for people")]
fn is_so_long(ns: u64, seconds: f64) -> bool {
    (ns as f64 / 1e9 - seconds).abs() < 1e-6
}
