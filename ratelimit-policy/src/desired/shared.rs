//! Limits that the hosts of a fleet share: their sum and their name in the fleet. Pure.

use ratelimit_common::layout::Unit;
use ratelimit_common::verification::Side;

use super::{Limit, Policy, Rule, unit_label};
use crate::fleet::{FleetLimit, Sum};

/// Sharing of a limit by the hosts of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Traffic that is summed.
    pub sum: Sum,
    /// Base-2 logarithm of the step that is reported to other hosts, see
    /// [`ratelimit_common::window::Parts::step_bits`].
    pub step_bits: u8,
}

impl Policy {
    /// Returns the shared limits with their rules, in order. The position of a limit is its number in the fleet.
    pub fn fleet_limits(&self) -> impl Iterator<Item = (&Rule, &Limit, FleetLimit)> {
        self.rules.iter().flat_map(|rule| {
            rule.limits.iter().filter_map(move |limit| Some((rule, limit, limit.fleet_limit(&rule.name)?)))
        })
    }
}

impl Limit {
    /// Returns this limit of `rule` as the fleet knows it. None if this host keeps it for itself. The name leaves out
    /// the amount, which may change on one host first.
    pub fn fleet_limit(&self, rule: &str) -> Option<FleetLimit> {
        let shared = self.shared?;
        let (unit, form, sum) = (unit_label(self.unit), self.form.label(), shared.sum.label());
        let identity = format!("{rule}/{unit}/{form}/{}x{}/{sum}", self.buckets, self.bucket_ns);
        let (amount, bucket_ns, full_buckets) = (self.amount, self.bucket_ns, self.full_buckets());
        Some(FleetLimit { identity, amount, bucket_ns, full_buckets, sum: shared.sum })
    }

    /// Returns the sides with steps that are reported to other hosts.
    pub fn told_sides(&self) -> &'static [Side] {
        match (self.shared.map(|shared| shared.sum), self.unit) {
            (None, _) => &[],
            (Some(Sum::All), Unit::Connections) => &[Side::Unverified],
            (Some(Sum::All), Unit::Requests | Unit::Packets | Unit::Bytes) => &[Side::Unverified, Side::Verified],
            (Some(Sum::Verified), Unit::Connections) => &[Side::Evidence],
            (Some(Sum::Verified), Unit::Requests | Unit::Packets | Unit::Bytes) => &[Side::Verified],
        }
    }

    /// Returns true if hosts sum the connections that a source has verifiably opened, which are counted for that.
    pub fn sums_evidence(&self) -> bool {
        self.told_sides().contains(&Side::Evidence)
    }
}
