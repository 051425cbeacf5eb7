//! Layout 8: like layout 7, with the guard, hashes with a key of 128 bits, 24 reasons, and today's keys of windows.

use ratelimit_common::ban;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::QUIC_PORTS_MAX;
use ratelimit_common::window::Parts;

use super::facts::{Facts, LIMITS, LimitFacts, Rest, RuleFacts};
use super::{Layout, SINCE_7, SINCE_8};

pub(super) const LAYOUT: Layout =
    Layout { version: 8, same: &[SINCE_7, SINCE_8], windows: None, counters: None, config: super::read::<Config> };

/// A limit of layouts 8 to 11.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Limit {
    amount: u64,
    bucket_ns: u64,
    slot: u32,
    unit: u8,
    full_buckets: u8,
    count_bits: u8,
    is_gcra: u8,
    burst: u64,
    guarded_segments: u64,
}

/// A rule of layouts 8 to 12, with limits of that layout.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Rule<L = Limit> {
    limits: [L; LIMITS],
    limits_len: u8,
    dry_run: u8,
    refuse_all: u8,
    counts_connections: u8,
    row: u8,
    shadows_len: u8,
    counts_requests: u8,
    proof: u8,
    asks_first: u32,
    flags: [u8; 4],
    quic_ports: [u16; QUIC_PORTS_MAX],
    name: u64,
    until_ns: u64,
    new_sources: u64,
    new_sources_ns: u64,
    bans: ban::Rule,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::kernel) struct Config {
    wall_offset_ns: u64,
    seed: HashKey,
    rest: Rest<Rule>,
}

const _: () = assert!(size_of::<Limit>() == 40);
const _: () = assert!(size_of::<Rule>() == 40 * LIMITS + 8 + 8 + 2 * QUIC_PORTS_MAX + 8 + 8 + 16 + 48);
const _: () = assert!(size_of::<Config>() == 8 + 16 + size_of::<Rest<Rule>>());

impl From<Config> for Facts {
    fn from(of: Config) -> Self {
        of.rest.facts(of.wall_offset_ns, Some(of.seed))
    }
}

impl<L> From<Rule<L>> for RuleFacts
where
    LimitFacts: From<L>,
{
    fn from(of: Rule<L>) -> Self {
        Self {
            name: of.name,
            row: of.row,
            dry_run: of.dry_run,
            limits_len: of.limits_len,
            shadows_len: of.shadows_len,
            limits: of.limits.map(LimitFacts::from),
            bans: of.bans,
        }
    }
}

impl From<Limit> for LimitFacts {
    fn from(of: Limit) -> Self {
        let Limit { amount, bucket_ns, slot, unit, full_buckets, is_gcra, burst, .. } = of;
        Self { amount, bucket_ns, slot, unit, full_buckets, is_gcra, burst, parts: Parts::alone(bucket_ns) }
    }
}
