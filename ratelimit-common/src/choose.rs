//! Which rule judges a packet, and what its source is granted whatever that rule's limits say. [`crate::hold`] tells
//! whether the packet is within the limits.
//!
//! Written once, over a [`Rules`]: in the kernel that is maps, elsewhere memory.

use crate::access::{self, Grant};
use crate::layout::{Config, PortTable, Prefix, RULES_MAX, Rule, RuleSet};
use crate::packet::{Destination, Head, Packet, Target};
use crate::source::Address;
use crate::time::Nanos;
use crate::verdict::{Action, Reason, Verdict};

mod beside;

pub use beside::{Beside, Next};

/// Rules that have ended and still stand: the daemon takes them out within seconds. After so many the next judges.
const ENDED_MAX: usize = 3;

/// What a choice reads, for one packet.
pub trait Rules {
    /// The configuration.
    fn config(&self) -> &Config;
    /// The class of each port; none where that cannot be read.
    fn ports(&self) -> Option<&PortTable>;
    /// What is known of the longest prefix that holds this source. Asked only where there are prefixes of its family.
    fn prefix(&self, source: Address) -> Option<&Prefix>;
    /// Returns [`Config::has_prefixes_v4`] or the same of IPv6, or 0 where it is known that no prefix holds any address of
    /// the source's client.
    #[inline(always)]
    fn has_prefixes(&self, source: Address) -> u8 {
        has_prefixes(self.config(), source)
    }
    /// The rules that name the longest prefix that holds the packet's destination. Asked only where there are such
    /// prefixes.
    fn target_rules(&self) -> RuleSet;
    /// A time that is at most a timer tick behind.
    fn coarse(&self) -> Nanos;

    /// The rule with this number.
    #[inline(always)]
    fn rule(&self, index: u32) -> &Rule {
        &self.config().rules[self.forget(index) as usize & (RULES_MAX - 1)]
    }

    /// Returns `value`, of which the compiler then knows nothing where it would make many copies of a loop that goes
    /// on to it.
    #[inline(always)]
    fn unknown(value: usize) -> usize {
        value
    }

    /// Returns `value`. A verifier forgets here what it knows of it, which is less than the compiler does.
    #[inline(always)]
    fn forget(&self, value: u32) -> u32 {
        value
    }
}

/// What of a packet decides who judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Who sent it, or says so.
    pub source: Address,
    /// What it is sent to.
    pub to: Destination,
    /// Of a later fragment: whether it may be one of TCP.
    pub may_be_tcp: bool,
}

impl From<&Packet> for Asked {
    fn from(packet: &Packet) -> Self {
        let may_be_tcp = matches!(packet.target, Target::Fragment { may_be_tcp: true });
        Self { source: packet.source, to: Head::from(packet).to, may_be_tcp }
    }
}

/// Who judges a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What becomes of it; [`Reason::NotCounted`] where the limits of the rule decide.
    pub reason: Reason,
    /// The number of the rule that judges, if one does.
    pub rule: Option<u32>,
    /// The other rules that hold it too: a later fragment that may be of TCP may belong to any of them.
    pub beside: RuleSet,
    /// Whether all that its client sends like it is judged alike, wherever that is sent to: no list tells the client's
    /// addresses from each other, and no rule its destinations.
    pub is_of_client: bool,
}

impl Choice {
    #[inline(always)]
    const fn unruled(reason: Reason) -> Self {
        Self { reason, rule: None, beside: 0, is_of_client: false }
    }
}

/// The rules for what the packet is sent to, by its port or protocol; none where the ports cannot be read.
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

/// Which of the rules that are `protecting` what the packet is sent to judges it, and what its source is granted.
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

/// The verdict on a frame with more tags than are read. It has no known ports: the rule that judges fragments without
/// ports judges it.
#[inline(always)]
pub fn too_many_tags<R: Rules>(rules: &R) -> Verdict {
    match first(rules, rules.config().portless_rules) {
        Some(index) => enforced(rules.rule(index), Reason::TooManyTags),
        None => Verdict::unruled(Reason::NotProtected),
    }
}

/// The verdict of a rule that has found this.
#[inline(always)]
pub const fn enforced(rule: &Rule, reason: Reason) -> Verdict {
    match (reason.action(), rule.is_dry_run()) {
        (Action::Pass, _) | (Action::Drop, false) => Verdict { reason, rule: rule.row },
        (Action::Drop, true) => Verdict { reason: Reason::DryRun, rule: rule.row },
    }
}

/// The same where enforcement has lapsed: as if the rule were in dry run.
#[inline(always)]
pub const fn lapsed(verdict: Verdict) -> Verdict {
    match verdict.reason.action() {
        Action::Pass => verdict,
        Action::Drop => Verdict { reason: Reason::DryRun, ..verdict },
    }
}

/// The number of the first of these rules.
#[inline(always)]
pub fn lowest<R: Rules>(rules: &R, of: RuleSet) -> Option<u32> {
    // The verifier does not know what the compiler does, that there are no more than bits in a word.
    if of == 0 { None } else { Some(rules.forget(of.trailing_zeros()) & LAST) }
}

/// The number of the last rule that there can be.
#[expect(clippy::cast_possible_truncation, reason = "64 rules")]
const LAST: u32 = RULES_MAX as u32 - 1;

const _: () = assert!(RULES_MAX.is_power_of_two());

/// Whether there are prefixes of the source's family, as [`Config::has_prefixes_v4`] says it.
#[inline(always)]
pub const fn has_prefixes(config: &Config, source: Address) -> u8 {
    match source {
        Address::V4(_) => config.has_prefixes_v4,
        Address::V6(_) => config.has_prefixes_v6,
    }
}

/// Whether it cannot be told what it is, while the network stack might: as behind too many tags.
#[inline(always)]
const fn is_unparsable(to: Destination) -> bool {
    matches!(to, Destination::UnparsableHeaders)
}

/// Which of these rules are for packets from this source to this address.
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

/// Which of these rules judges the packet. A later fragment may belong to any port, and is held to volume if it is to
/// be held at all: by the first rule that counts that, so that a rule for connections before it is no way around.
#[inline(always)]
fn judging<R: Rules>(rules: &R, to: Destination, of: RuleSet) -> Option<u32> {
    if let Destination::Fragment = to
        && let Some(index) = first(rules, of & rules.config().volume_rules)
    {
        return Some(index);
    }
    first(rules, of)
}

/// The first of these rules that has not ended.
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

/// Whether the rule with this number has ended.
#[inline(always)]
fn has_ended<R: Rules>(rules: &R, index: u32) -> bool {
    let until_ns = rules.rule(index).until_ns;
    until_ns != 0 && rules.coarse().0 >= until_ns
}

/// What the source is granted whatever the limits say.
#[inline(always)]
fn granted<R: Rules>(rules: &R, prefix: &Prefix) -> Option<Grant> {
    if prefix.access[0] == access::Step::default() {
        return None;
    }
    access::grant(prefix.access, rules.coarse())
}

/// A port as an index. The verifier of Linux 6.12 knows nothing of a number whose bytes were swapped, so its bound
/// must be in the program, where the compiler leaves it out if it knows.
#[inline(always)]
fn bounded<R: Rules>(rules: &R, port: u16) -> usize {
    rules.forget(port as u32) as usize & 0xffff
}

#[cfg(test)]
mod tests;
