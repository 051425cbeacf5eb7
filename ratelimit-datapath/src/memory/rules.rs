//! A policy in the form that judges packets: the kernel's words, and prefixes in memory.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::choose;
use ratelimit_common::layout::{Config, PortTable, Prefix, Rule, RuleSet};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;

use super::address;
use crate::encode;
use ratelimit_policy::desired::Policy;

/// A policy, encoded for the core.
#[derive(Debug)]
pub struct Rules {
    policy: Policy,
    config: Box<Config>,
    ports: Box<PortTable>,
    prefixes: BTreeMap<IpNet, Prefix>,
    targets: BTreeMap<IpNet, RuleSet>,
}

impl Rules {
    /// Encodes a policy. Returns none if it is too large for the kernel's maps. Guards are left out, because only the
    /// kernel has them.
    pub fn new(policy: &Policy) -> Option<Self> {
        let encode::Encoded { config, ports, prefixes, targets } = encode::encode(policy).ok()?;
        let mut config = Box::new(config);
        for (row, rule) in (0..).zip(&mut config.rules) {
            (rule.row, rule.guard) = (row, 0);
        }
        let prefixes = prefixes.into_iter().map(|(net, prefix)| (net.trunc(), prefix)).collect();
        let targets = targets.into_iter().map(|(net, rules)| (net.trunc(), rules)).collect();
        Some(Self { policy: policy.clone(), config, ports, prefixes, targets })
    }

    /// Returns the policy that was encoded.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the rule with this number.
    pub fn rule(&self, index: u32) -> &Rule {
        &self.config.rules[index as usize]
    }

    /// Returns the generation of the kernel's Bloom filters at `now`. They know insertions of this generation and the
    /// last.
    #[cfg(any(test, feature = "fixture"))]
    #[expect(clippy::cast_possible_truncation, reason = "as a mark has it")]
    pub(super) const fn turn(&self, now: Nanos) -> u16 {
        (now.0 >> (self.config.generation_shift & 63)) as u16
    }

    /// Returns the view that one packet to this destination has.
    pub const fn asked_by(&self, to: Address, now: Nanos) -> AskedBy<'_> {
        AskedBy { rules: self, to, now }
    }
}

/// View of the rules for one packet.
#[derive(Clone, Copy)]
pub struct AskedBy<'a> {
    rules: &'a Rules,
    to: Address,
    now: Nanos,
}

impl choose::Rules for AskedBy<'_> {
    fn config(&self) -> &Config {
        &self.rules.config
    }

    fn ports(&self) -> Option<&PortTable> {
        Some(&self.rules.ports)
    }

    fn prefix(&self, source: Address) -> Option<&Prefix> {
        longest(&self.rules.prefixes, address(source))
    }

    fn target_rules(&self) -> RuleSet {
        longest(&self.rules.targets, address(self.to)).copied().unwrap_or(0)
    }

    fn coarse(&self) -> Nanos {
        self.now
    }
}

/// Returns the entry of the longest prefix that contains an address.
fn longest<V>(known: &BTreeMap<IpNet, V>, address: IpAddr) -> Option<&V> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (0..=bits).rev().find_map(|len| known.get(&IpNet::new(address, len).ok()?.trunc()))
}
