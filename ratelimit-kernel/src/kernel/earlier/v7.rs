//! Layout 7: hashes had a key of 64 bits, counters had 16 reasons, and rules had no guard. Windows had other keys:
//! those of verified traffic flipped bit 31 of the slot, which today marks what the guard opens.

use ratelimit_common::ban;
use ratelimit_common::layout::{Counters, Tally};
use ratelimit_common::verification::Side;
use ratelimit_common::window::Parts;

use super::facts::{Facts, LIMITS, LimitFacts, Rest, RuleFacts};
use super::{Layout, SINCE_7, SideThen};

pub(super) const LAYOUT: Layout = Layout {
    version: 7,
    same: &[SINCE_7],
    windows: Some(&[
        SideThen { flipped: 0, side: Side::Unverified },
        SideThen { flipped: 1 << 31, side: Side::Verified },
        SideThen { flipped: 1 << 30, side: Side::Evidence },
    ]),
    counters: Some(super::read_counters::<Row>),
    config: super::read::<Config>,
};

/// Number of reasons in a row of counters. Today's reasons begin with these.
const REASONS: usize = 16;

/// Counters of one interface and rule on one CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::kernel) struct Row {
    by_reason: [Tally; REASONS],
}

const _: () = assert!(size_of::<Row>() == 256);

impl From<Row> for Counters {
    fn from(of: Row) -> Self {
        let mut counters = Self::default();
        counters.by_reason[..REASONS].copy_from_slice(&of.by_reason);
        counters
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Limit {
    amount: u64,
    bucket_ns: u64,
    slot: u32,
    unit: u8,
    behind: u8,
    count_bits: u8,
    is_gcra: u8,
    burst: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Rule {
    limits: [Limit; LIMITS],
    limits_len: u8,
    dry_run: u8,
    refuse_all: u8,
    counts_connections: u8,
    row: u8,
    shadows_len: u8,
    counts_requests: u8,
    proof: u8,
    asks_first: u32,
    reserved: u32,
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
    seed: u64,
    rest: Rest<Rule>,
}

const _: () = assert!(size_of::<Limit>() == 32);
const _: () = assert!(size_of::<Rule>() == 32 * LIMITS + 8 + 8 + 8 + 8 + 16 + 48);
const _: () = assert!(size_of::<Config>() == 8 + 8 + size_of::<Rest<Rule>>());

impl From<Config> for Facts {
    fn from(of: Config) -> Self {
        of.rest.facts(of.wall_offset_ns, None)
    }
}

impl From<Rule> for RuleFacts {
    fn from(of: Rule) -> Self {
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
        let Limit { amount, bucket_ns, slot, unit, behind, is_gcra, burst, .. } = of;
        let parts = Parts::alone(bucket_ns);
        Self { amount, bucket_ns, slot, unit, full_buckets: behind, is_gcra, burst, parts }
    }
}
