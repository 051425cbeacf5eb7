//! Layout 9: as 8, with a key of its own for places.

use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{CLASSES_MAX, INTERFACES_MAX, RULES_MAX, RuleSet};

use super::facts::{Facts, RuleFacts, rules};
use super::v8::Rule;
use super::{Layout, SAME_SINCE_8};

pub(super) const LAYOUT: Layout =
    Layout { version: 9, same: SAME_SINCE_8, windows: None, counters: None, config: super::read::<Config> };

/// A configuration of layouts 9 to 11.
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
    reserved: u32,
    generation_shift: u32,
    interfaces: [u32; INTERFACES_MAX],
    prefixes_generation: u32,
    has_prefixes_v4: u8,
    has_prefixes_v6: u8,
    has_targets: u8,
    ipv6_wide: u8,
    until_ns: u64,
    sets: [RuleSet; 5],
    class_rules: [RuleSet; CLASSES_MAX],
    rules: [Rule; RULES_MAX],
}

const _: () = assert!(
    size_of::<Config>()
        == 8 + 16 + 8 + 16 + 24 + 4 * INTERFACES_MAX + 8 + 8 * 6 + 8 * CLASSES_MAX + size_of::<[Rule; RULES_MAX]>()
);

impl From<Config> for Facts {
    fn from(of: Config) -> Self {
        Self {
            wall_offset_ns: of.wall_offset_ns,
            seed: Some(of.seed),
            ipv6_mask: of.ipv6_mask,
            ipv4_mask: of.ipv4_mask,
            ipv6_wide: of.ipv6_wide,
            interfaces: of.interfaces,
            until_ns: of.until_ns,
            rules: rules(&of.rules, |rule| rule.limits_len, RuleFacts::from),
        }
    }
}
