//! Layout 12, the worked example of a move: rules had no groups, so every limit counted its source.
//!
//! Types that have not changed since are today's.

use ratelimit_common::ban;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{
    self, CLASSES_MAX, INTERFACES_MAX, LIMITS_MAX, Limit, QUIC_PORTS_MAX, RULES_MAX, RuleSet, SHADOWS_MAX, map,
};

use super::{Earlier, Layout};
use crate::DatapathError;

pub(super) const LAYOUT: Layout = Layout { version: 12, same: SAME, carry_config };

const SAME: &[&str] = &[
    map::SOURCES_V4,
    map::SOURCES_V6,
    map::SOURCES_V6_WIDE,
    map::BANS_V4,
    map::BANS_V6,
    map::BANS_V6_WIDE,
    map::BANS_BEGUN,
    map::FLOWS_V4,
    map::FLOWS_V6,
    map::COUNTERS,
    map::FAULTS,
    map::EVENTS,
    map::EVENT_TALLIES,
    map::STEPS,
];

#[derive(Clone, Copy)]
#[repr(C)]
struct Rule {
    limits: [Limit; LIMITS_MAX + SHADOWS_MAX],
    limits_len: u8,
    refuses: u8,
    refuse_all: u8,
    counts_connections: u8,
    row: u8,
    shadows_len: u8,
    counts_requests: u8,
    evidence: u8,
    known_first: u32,
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
    places: u64,
    ipv6_mask: [u64; 2],
    ipv4_mask: u32,
    sets_mask: u32,
    insertions_max: u32,
    insertions_free: u32,
    suspended: u32,
    generation_shift: u32,
    interfaces: [u32; INTERFACES_MAX],
    prefixes_generation: u32,
    has_prefixes: [u8; 2],
    has_targets: u8,
    ipv6_wide: u8,
    until_ns: u64,
    sets: [RuleSet; 5],
    class_rules: [RuleSet; CLASSES_MAX],
    rules: [Rule; RULES_MAX],
}

const _: () =
    assert!(size_of::<Rule>() == 40 * (LIMITS_MAX + SHADOWS_MAX) + 8 + 8 + 2 * QUIC_PORTS_MAX + 8 + 8 + 16 + 48);
const _: () = assert!(
    size_of::<Config>()
        == 8 + 16 + 8 + 16 + 24 + 4 * INTERFACES_MAX + 8 + 8 * 6 + 8 * CLASSES_MAX + size_of::<[Rule; RULES_MAX]>()
);

fn carry_config(earlier: &Earlier, generation: u32, config: &mut layout::Config) -> Result<(), DatapathError> {
    let of: Config = super::read(earlier, map::CONFIG, generation)?;
    (config.wall_offset_ns, config.suspended, config.seed) = (of.wall_offset_ns, of.suspended, of.seed);
    (config.ipv4_mask, config.ipv6_mask, config.ipv6_wide) = (of.ipv4_mask, of.ipv6_mask, of.ipv6_wide);
    (config.interfaces, config.until_ns) = (of.interfaces, of.until_ns);
    // The first rule without a limit ends the rules.
    for (rule, of) in config.rules.iter_mut().zip(of.rules.iter().take_while(|of| of.limits_len != 0)) {
        let Rule { limits, limits_len, shadows_len, refuses, row, name, bans, .. } = *of;
        *rule = layout::Rule {
            limits,
            limits_len,
            own_len: limits_len,
            shadows_len,
            refuses,
            row,
            name,
            bans,
            ..layout::Rule::default()
        };
    }
    Ok(())
}
