//! Layout 12: like layout 11, with other hosts' admissions in the cells of shared limits, and with the machine's
//! suspended time. Rules had no groups, so every limit counted by source.

use ratelimit_common::hash::HashKey;
use ratelimit_common::window::Parts;

use super::facts::{Facts, LimitFacts, Rest};
use super::v8::Rule;
use super::{Layout, SINCE_7, SINCE_8, SINCE_11, SINCE_12};

pub(super) const LAYOUT: Layout = Layout {
    version: 12,
    same: &[SINCE_7, SINCE_8, SINCE_11, SINCE_12],
    windows: None,
    counters: None,
    config: super::read::<Config>,
};

#[derive(Clone, Copy)]
#[repr(C)]
struct Limit {
    amount: u64,
    bucket_ns: u64,
    slot: u32,
    unit: u8,
    full_buckets: u8,
    told_sides: u8,
    is_gcra: u8,
    burst: u64,
    guarded_segments: u32,
    parts: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::kernel) struct Config {
    wall_offset_ns: u64,
    seed: HashKey,
    places: u64,
    rest: Rest<Rule<Limit>>,
}

const _: () = assert!(size_of::<Limit>() == 40);
const _: () = assert!(size_of::<Config>() == 8 + 16 + 8 + size_of::<Rest<Rule<Limit>>>());

impl From<Config> for Facts {
    fn from(of: Config) -> Self {
        of.rest.facts(of.wall_offset_ns, Some(of.seed))
    }
}

impl From<Limit> for LimitFacts {
    fn from(of: Limit) -> Self {
        let Limit { amount, bucket_ns, slot, unit, full_buckets, is_gcra, burst, parts, .. } = of;
        Self { amount, bucket_ns, slot, unit, full_buckets, is_gcra, burst, parts: Parts(parts) }
    }
}
