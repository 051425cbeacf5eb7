//! Values carried over from the configuration of an earlier layout: those that a daemon reads of its predecessor.
//! Packets never read them, because a policy is applied before any packet arrives.

use ratelimit_common::ban;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{
    CLASSES_MAX, Config, INTERFACES_MAX, LIMITS_MAX, Limit, RULES_MAX, Rule, RuleSet, SHADOWS_MAX,
};
use ratelimit_common::window::Parts;

/// Number of limits and shadow limits of a rule, the same in every layout so far.
pub(super) const LIMITS: usize = LIMITS_MAX + SHADOWS_MAX;

/// A configuration, as far as it is carried over.
pub(super) struct Facts {
    pub(super) wall_offset_ns: u64,
    /// Seed of the hashes. None if the layout had a key of another length.
    pub(super) seed: Option<HashKey>,
    pub(super) ipv6_mask: [u64; 2],
    pub(super) ipv4_mask: u32,
    pub(super) ipv6_wide: u8,
    /// Value of [`Config::suspended`]. 0 until layout 11.
    pub(super) suspended: u32,
    pub(super) interfaces: [u32; INTERFACES_MAX],
    /// End of the trial, or 0 without a trial.
    pub(super) until_ns: u64,
    pub(super) rules: Vec<RuleFacts>,
}

/// A rule, as far as it is carried over.
pub(super) struct RuleFacts {
    pub(super) name: u64,
    pub(super) row: u8,
    pub(super) dry_run: u8,
    pub(super) limits_len: u8,
    pub(super) shadows_len: u8,
    pub(super) limits: [LimitFacts; LIMITS],
    pub(super) bans: ban::Rule,
}

/// A limit, as far as it is carried over.
#[derive(Clone, Copy)]
pub(super) struct LimitFacts {
    pub(super) amount: u64,
    pub(super) bucket_ns: u64,
    pub(super) slot: u32,
    pub(super) unit: u8,
    pub(super) full_buckets: u8,
    pub(super) is_gcra: u8,
    pub(super) burst: u64,
    /// Division of a cell. Until layout 11, a cell counted only its own host.
    pub(super) parts: Parts,
}

impl Facts {
    /// Writes these values into an empty configuration of today's layout.
    pub(super) fn write(&self, config: &mut Config, seed: HashKey) {
        (config.wall_offset_ns, config.seed) = (self.wall_offset_ns, self.seed.unwrap_or(seed));
        (config.ipv4_mask, config.ipv6_mask, config.ipv6_wide) = (self.ipv4_mask, self.ipv6_mask, self.ipv6_wide);
        (config.interfaces, config.until_ns) = (self.interfaces, self.until_ns);
        config.suspended = self.suspended;
        for (rule, of) in config.rules.iter_mut().zip(&self.rules) {
            *rule = of.layout();
        }
    }
}

impl RuleFacts {
    fn layout(&self) -> Rule {
        Rule {
            limits: self.limits.map(LimitFacts::layout),
            limits_len: self.limits_len,
            own_len: self.limits_len,
            shadows_len: self.shadows_len,
            refuses: self.dry_run,
            row: self.row,
            name: self.name,
            bans: self.bans,
            ..Rule::default()
        }
    }
}

impl LimitFacts {
    fn layout(self) -> Limit {
        let Self { amount, bucket_ns, slot, unit, full_buckets, is_gcra, burst, parts } = self;
        Limit { amount, bucket_ns, slot, unit, full_buckets, is_gcra, burst, parts, ..Limit::default() }
    }
}

/// Last part of a configuration of layouts 7 to 12, with rules of type `R`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Rest<R> {
    ipv6_mask: [u64; 2],
    ipv4_mask: u32,
    sets_mask: u32,
    insertions_max: u32,
    insertions_free: u32,
    suspended: u32,
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
    rules: [R; RULES_MAX],
}

const _: () =
    assert!(size_of::<Rest<u64>>() == 16 + 24 + 4 * INTERFACES_MAX + 8 + 8 * 6 + 8 * CLASSES_MAX + 8 * RULES_MAX);

impl<R: Copy> Rest<R>
where
    RuleFacts: From<R>,
{
    /// Returns the values of a configuration that begins with these two. The first rule without a limit ends the rules.
    pub(super) fn facts(&self, wall_offset_ns: u64, seed: Option<HashKey>) -> Facts {
        let rules = self.rules.iter().copied().map(RuleFacts::from).take_while(|rule| rule.limits_len != 0).collect();
        Facts {
            wall_offset_ns,
            seed,
            ipv6_mask: self.ipv6_mask,
            ipv4_mask: self.ipv4_mask,
            ipv6_wide: self.ipv6_wide,
            suspended: self.suspended,
            interfaces: self.interfaces,
            until_ns: self.until_ns,
            rules,
        }
    }
}
