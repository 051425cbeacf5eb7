//! A limit that the hosts of a fleet share: what is summed of it, and what it is called there. Pure.

use ratelimit_common::layout::Unit;
use ratelimit_common::verification::Side;

use super::{Limit, Policy, Rule, unit_label};
use crate::fleet::{FleetLimit, Sum};

/// How the hosts of a fleet share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// What is summed.
    pub sum: Sum,
    /// [`ratelimit_common::window::Parts::step_bits`].
    pub step_bits: u8,
}

impl Policy {
    /// The limits that the hosts of a fleet share, with their rules, in order: the place of each is its number there.
    pub fn fleet_limits(&self) -> impl Iterator<Item = (&Rule, &Limit, FleetLimit)> {
        self.rules.iter().flat_map(|rule| {
            rule.limits.iter().filter_map(move |limit| Some((rule, limit, limit.fleet_limit(&rule.name)?)))
        })
    }
}

impl Limit {
    /// What the hosts of a fleet call it, as a limit of `rule`; none where this host has it for itself. The amount is no
    /// part of the name: it may change on one host first.
    pub fn fleet_limit(&self, rule: &str) -> Option<FleetLimit> {
        let shared = self.shared?;
        let (unit, form, sum) = (unit_label(self.unit), self.form.label(), shared.sum.label());
        let identity = format!("{rule}/{unit}/{form}/{}x{}/{sum}", self.buckets, self.bucket_ns);
        let (amount, bucket_ns, full_buckets) = (self.amount, self.bucket_ns, self.full_buckets());
        Some(FleetLimit { identity, amount, bucket_ns, full_buckets, sum: shared.sum })
    }

    /// The sides whose steps are told to other hosts.
    pub fn told_sides(&self) -> &'static [Side] {
        match (self.shared.map(|shared| shared.sum), self.unit) {
            (None, _) => &[],
            (Some(Sum::All), Unit::Connections) => &[Side::Unverified],
            (Some(Sum::All), Unit::Requests | Unit::Packets | Unit::Bytes) => &[Side::Unverified, Side::Verified],
            (Some(Sum::Verified), Unit::Connections) => &[Side::Evidence],
            (Some(Sum::Verified), Unit::Requests | Unit::Packets | Unit::Bytes) => &[Side::Verified],
        }
    }

    /// Whether hosts sum the connections that a source has itself opened, which are counted for that.
    pub fn sums_evidence(&self) -> bool {
        self.told_sides().contains(&Side::Evidence)
    }
}
