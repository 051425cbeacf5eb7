//! Choice of the rule that judges a packet, and of grants that override the rule's limits. [`crate::hold`] decides
//! whether the packet is within the limits.
//!
//! The code is generic over [`Rules`]: maps in the kernel, memory elsewhere.

use crate::access::{self, Grant};
use crate::layout::{Config, PortTable, Prefix, RULES_MAX, Rule, RuleSet};
use crate::packet::{Destination, Head, Packet, Target};
use crate::source::Address;
use crate::time::Nanos;
use crate::verdict::{Action, Reason, Verdict};

mod beside;

pub use beside::{Beside, Next};

/// Maximum number of ended rules that are skipped; the next rule judges. The daemon removes ended rules within seconds.
const ENDED_MAX: usize = 3;

/// Data that a choice reads for one packet.
pub trait Rules {
    /// Returns the configuration.
    fn config(&self) -> &Config;
    /// Returns the class of each port; None if the table cannot be read.
    fn ports(&self) -> Option<&PortTable>;
    /// Returns the facts about the longest prefix that holds this source. Called only if there are prefixes of its
    /// family.
    fn prefix(&self, source: Address) -> Option<&Prefix>;
    /// Returns [`Config::has_prefixes_v4`] or its IPv6 counterpart. May return 0 if no prefix holds any address of the
    /// source's client.
    #[inline(always)]
    fn has_prefixes(&self, source: Address) -> u8 {
        has_prefixes(self.config(), source)
    }
    /// Returns the rules that name the longest prefix that holds the packet's destination. Called only if there are
    /// such prefixes.
    fn target_rules(&self) -> RuleSet;
    /// Returns a time that is at most a timer tick behind.
    fn coarse(&self) -> Nanos;

    /// Returns the rule with this number.
    #[inline(always)]
    fn rule(&self, index: u32) -> &Rule {
        &self.config().rules[self.forget(index) as usize & (RULES_MAX - 1)]
    }

    /// Returns `value`. The compiler then knows nothing about the value, so it copies no loop that depends on it.
    #[inline(always)]
    fn unknown(value: usize) -> usize {
        value
    }

    /// Returns `value`. A verifier forgets here its knowledge about the value, which is less than the compiler's.
    #[inline(always)]
    fn forget(&self, value: u32) -> u32 {
        value
    }
}

/// Facts about a packet that decide which rule judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Source address, which may be forged.
    pub source: Address,
    /// Destination within the host: protocol and port.
    pub to: Destination,
    /// True for a later fragment that may belong to a TCP segment.
    pub may_be_tcp: bool,
}

impl From<&Packet> for Asked {
    fn from(packet: &Packet) -> Self {
        let may_be_tcp = matches!(packet.target, Target::Fragment { may_be_tcp: true });
        Self { source: packet.source, to: Head::from(packet).to, may_be_tcp }
    }
}

/// Result of the choice: the rule that judges a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Reason for the verdict; [`Reason::NotCounted`] if the rule's limits decide.
    pub reason: Reason,
    /// Number of the rule that judges, if one does.
    pub rule: Option<u32>,
    /// Further rules that are applied to the packet: a later fragment that may be TCP may belong to any of them.
    pub beside: RuleSet,
    /// True if all similar packets of the client get the same choice, whatever their destination. Then no list
    /// separates the client's addresses, and no rule has destinations.
    pub is_of_client: bool,
}

impl Choice {
    #[inline(always)]
    const fn unruled(reason: Reason) -> Self {
        Self { reason, rule: None, beside: 0, is_of_client: false }
    }
}

/// Returns the rules that protect the packet's port or protocol; None if the ports cannot be read.
#[inline(always)]
pub fn protecting<R: Rules>(rules: &R, to: Destination) -> Option<RuleSet> {
    let config = rules.config();
    let class = match to {
        Destination::Tcp { port, .. } => rules.ports()?.tcp[bounded(rules, port)],
        Destination::Udp { port } => rules.ports()?.udp[bounded(rules, port)],
        Destination::Fragment | Destination::UnparsableHeaders => return Some(config.portless_rules),
        Destination::Other => return Some(config.other_rules),
        Destination::ControlTraffic => return Some(0),
    };
    Some(config.class_rules[class as usize])
}

/// Returns which of the `protecting` rules judges the packet, and any grant of its source.
#[inline(always)]
pub fn choice<R: Rules>(rules: &R, asked: Asked, protecting: RuleSet) -> Choice {
    let config = rules.config();
    let has_prefixes = rules.has_prefixes(asked.source);
    let prefix = if has_prefixes == 0 { None } else { rules.prefix(asked.source) };
    let matching = matching(rules, protecting, prefix);
    let Some(index) = judging(rules, asked.to, matching) else { return Choice::unruled(Reason::NotProtected) };
    let is_of_client = prefix.is_none() && has_prefixes != 2 && config.has_targets == 0;
    let by = |reason| Choice { reason, rule: Some(index), beside: 0, is_of_client };
    match prefix.and_then(|prefix| granted(rules, prefix)) {
        Some(Grant::Exempt) => by(Reason::Exempt),
        Some(Grant::Denied) => by(Reason::Denied),
        None if is_unparsable(asked.to) && rules.rule(index).counts_unparsable == 0 => by(Reason::TooManyHeaders),
        None if matches!(asked.to, Destination::Fragment) && asked.may_be_tcp => {
            Choice { beside: matching & !(1 << index), ..by(Reason::NotCounted) }
        }
        None => by(Reason::NotCounted),
    }
}

/// Returns the verdict on a frame with more tags than are read. Its ports are unknown, so the rule that judges later
/// fragments judges it.
#[inline(always)]
pub fn too_many_tags<R: Rules>(rules: &R) -> Verdict {
    match first(rules, rules.config().portless_rules) {
        Some(index) => enforced(rules.rule(index), Reason::TooManyTags),
        None => Verdict::unruled(Reason::NotProtected),
    }
}

/// Returns the verdict of a rule with this reason. In dry run, a drop becomes a pass.
#[inline(always)]
pub const fn enforced(rule: &Rule, reason: Reason) -> Verdict {
    match (reason.action(), rule.is_dry_run()) {
        (Action::Pass, _) | (Action::Drop, false) => Verdict { reason, rule: rule.row },
        (Action::Drop, true) => Verdict { reason: Reason::DryRun, rule: rule.row },
    }
}

/// Returns the verdict after enforcement has lapsed: as if the rule were in dry run.
#[inline(always)]
pub const fn lapsed(verdict: Verdict) -> Verdict {
    match verdict.reason.action() {
        Action::Pass => verdict,
        Action::Drop => Verdict { reason: Reason::DryRun, ..verdict },
    }
}

/// Returns the number of the first of these rules.
#[inline(always)]
pub fn lowest<R: Rules>(rules: &R, of: RuleSet) -> Option<u32> {
    // The compiler knows that the result is below the number of bits; the verifier does not.
    if of == 0 { None } else { Some(rules.forget(of.trailing_zeros()) & LAST) }
}

/// Highest number of a rule.
#[expect(clippy::cast_possible_truncation, reason = "64 rules")]
const LAST: u32 = RULES_MAX as u32 - 1;

const _: () = assert!(RULES_MAX.is_power_of_two());

/// Returns whether there are prefixes of the source's family, in the codes of [`Config::has_prefixes_v4`].
#[inline(always)]
pub const fn has_prefixes(config: &Config, source: Address) -> u8 {
    match source {
        Address::V4(_) => config.has_prefixes_v4,
        Address::V6(_) => config.has_prefixes_v6,
    }
}

/// Returns whether the packet's headers cannot be parsed, though the network stack might parse them.
#[inline(always)]
const fn is_unparsable(to: Destination) -> bool {
    matches!(to, Destination::UnparsableHeaders)
}

/// Returns which of these rules are for packets from this source to this address.
#[inline(always)]
fn matching<R: Rules>(rules: &R, protecting: RuleSet, prefix: Option<&Prefix>) -> RuleSet {
    let config = rules.config();
    let from = config.from_any | prefix.map_or(0, |prefix| prefix.rules);
    let to = match config.has_targets {
        0 => RuleSet::MAX,
        _ => config.to_any | rules.target_rules(),
    };
    protecting & from & to
}

/// Returns which of these rules judges the packet. A later fragment may belong to any port, so the first rule that
/// counts packets or bytes judges it. A rule for connections before that one cannot be used to evade it.
#[inline(always)]
fn judging<R: Rules>(rules: &R, to: Destination, of: RuleSet) -> Option<u32> {
    if let Destination::Fragment = to
        && let Some(index) = first(rules, of & rules.config().volume_rules)
    {
        return Some(index);
    }
    first(rules, of)
}

/// Returns the first of these rules that has not ended.
#[inline(always)]
fn first<R: Rules>(rules: &R, of: RuleSet) -> Option<u32> {
    let mut of = of;
    for _ in 0..R::unknown(ENDED_MAX) {
        let index = lowest(rules, of)?;
        if !has_ended(rules, index) {
            return Some(index);
        }
        of &= of - 1;
    }
    lowest(rules, of)
}

/// Returns whether the rule with this number has ended.
#[inline(always)]
fn has_ended<R: Rules>(rules: &R, index: u32) -> bool {
    let until_ns = rules.rule(index).until_ns;
    until_ns != 0 && rules.coarse().0 >= until_ns
}

/// Returns the grant of the source that overrides the limits, if any.
#[inline(always)]
fn granted<R: Rules>(rules: &R, prefix: &Prefix) -> Option<Grant> {
    if prefix.access[0] == access::Step::default() {
        return None;
    }
    access::grant(prefix.access, rules.coarse())
}

/// Returns a port as an index. The verifier of Linux 6.12 does not know the range of a byte-swapped number. The bound
/// must be in the program, and the compiler would remove one that it knows to hold.
#[inline(always)]
fn bounded<R: Rules>(rules: &R, port: u16) -> usize {
    rules.forget(port as u32) as usize & 0xffff
}

#[cfg(test)]
mod tests;
