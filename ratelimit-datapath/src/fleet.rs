//! Limits shared by the hosts of a fleet: steps reported by packets, and admissions written for other hosts.

use ipnet::IpNet;
use ratelimit_common::layout::Step;
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verification::Side;
use ratelimit_policy::desired::Policy;

use crate::events;

/// Maximum number of steps in one call of [`crate::Datapath::steps`].
pub const STEPS_PART: usize = 8192;

/// One side of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitAt {
    /// Index of the rule in the policy.
    pub rule: usize,
    /// Index of the limit in the rule.
    pub limit: usize,
    /// Side of the limit's window.
    pub side: Side,
}

/// A step: this host's admissions for a source have passed a reporting threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelStep {
    /// Source of the packets.
    pub client: IpNet,
    /// Limit that was charged.
    pub at: LimitAt,
    /// Bucket that was charged.
    pub bucket: BucketIndex,
}

/// Amount that other hosts admitted for one source in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Source of the packets.
    pub client: IpNet,
    /// Bucket of the admissions.
    pub bucket: BucketIndex,
    /// Amount, in units of the limit's [`ratelimit_common::window::Parts::unit_bits`].
    pub units: u64,
}

impl KernelStep {
    /// Translates a step of the ring to the rules of a policy. Returns none if the policy no longer has the limit.
    pub fn of(step: &Step, policy: &Policy) -> Option<Self> {
        let client = events::client(step.family, step.prefix, policy)?;
        let at = policy.rules.iter().enumerate().find_map(|(rule, of)| {
            let limit = of.limits.iter().position(|limit| limit.slot == step.slot)?;
            Some(LimitAt { rule, limit, side: Side::from_code(step.side.into()) })
        })?;
        Some(Self { client, at, bucket: BucketIndex(step.bucket) })
    }
}
