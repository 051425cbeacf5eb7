//! Limits that the hosts of a fleet share: what packets say of them, and what is written for the others.

use ipnet::IpNet;
use ratelimit_common::layout::Step;
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verification::Side;
use ratelimit_policy::desired::Policy;

use crate::events;

/// Steps that [`crate::Datapath::steps`] visits at most.
pub const STEPS_PART: usize = 8192;

/// One side of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitAt {
    /// Index of the rule in the policy.
    pub rule: usize,
    /// Index of the limit in the rule.
    pub limit: usize,
    /// Which of its windows.
    pub side: Side,
}

/// What this host has admitted of a source has passed a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelStep {
    /// The source.
    pub client: IpNet,
    /// Of which limit.
    pub at: LimitAt,
    /// In which bucket.
    pub bucket: BucketIndex,
}

/// What other hosts have admitted of a source in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The source.
    pub client: IpNet,
    /// In which bucket.
    pub bucket: BucketIndex,
    /// How much, in units of the limit's [`ratelimit_common::window::Parts::unit_bits`].
    pub units: u64,
}

impl KernelStep {
    /// A step of the ring, by the names of this policy; none where it has no such limit any more.
    pub(crate) fn of(step: &Step, policy: &Policy) -> Option<Self> {
        let client = events::client(step.family, step.prefix, policy)?;
        let at = policy.rules.iter().enumerate().find_map(|(rule, of)| {
            let limit = of.limits.iter().position(|limit| limit.slot == step.slot)?;
            Some(LimitAt { rule, limit, side: Side::from_code(step.side.into()) })
        })?;
        Some(Self { client, at, bucket: BucketIndex(step.bucket) })
    }
}
