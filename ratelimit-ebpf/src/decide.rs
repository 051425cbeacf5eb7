//! From a parsed packet to its verdict: which rule judges it, and what that rule asks of its source. Whether it fits the
//! rule's limits is told by [`crate::limits`].

use ratelimit_common::access::{self, Grant};
use ratelimit_common::layout::{Prefix, RULES_MAX, Rule, RuleSet};
use ratelimit_common::packet::Target;
use ratelimit_common::source::{Address, cut_ipv4, cut_ipv6};
use ratelimit_common::verdict::{Action, Reason, Verdict};

use crate::clock::Clock;
use crate::conversations;
use crate::flows::{Part, Word, flow_v4, flow_v6, remember_pending};
use crate::limits::{
    Cost, ban_v4, ban_v6, ban_v6_wide, charge_all_v4, charge_all_v6, charge_all_v6_wide, room_v4, room_v6,
    room_v6_wide, shadow_v4, shadow_v6, shadow_v6_wide,
};
use crate::maps::{self, Active, NoPacket, Seen};
use crate::packet::{XdpFrame, forget};

/// Judges one packet, and charges it where it is admitted.
#[inline(always)]
pub(crate) fn verdict(active: Active, frame: &XdpFrame, seen: &Seen) -> Verdict {
    let target = match seen.target() {
        Err(NoPacket::NotIp) => return Verdict::unruled(Reason::NotIp),
        Err(NoPacket::Malformed) => return Verdict::unruled(Reason::Malformed),
        Err(NoPacket::TooManyTags) => return too_many_tags(active),
        Ok(target) => target,
    };
    let protecting = protecting(active, target);
    if protecting == 0 {
        return Verdict::unruled(Reason::NotProtected);
    }
    let prefix = prefix(active, seen.source());
    let Some(index) = judging(active, target, matching(active, seen, protecting, prefix)) else {
        return Verdict::unruled(Reason::NotProtected);
    };
    let rule = &active.config.rules[index as usize];
    let reason = match prefix.and_then(|prefix| granted(active, prefix)) {
        Some(Grant::Exempt) => Reason::Exempt,
        Some(Grant::Denied) => Reason::Denied,
        None => judge(active, frame, Judging { index, rule }, seen),
    };
    enforced(rule, reason)
}

/// What is behind the tags cannot be told, so whoever has what has no port has this.
#[inline(always)]
fn too_many_tags(active: Active) -> Verdict {
    match lowest(active.config.portless_rules) {
        Some(index) => enforced(&active.config.rules[index as usize], Reason::TooManyTags),
        None => Verdict::unruled(Reason::NotProtected),
    }
}

/// The rules for what the packet is sent to, by its port or protocol.
#[inline(always)]
fn protecting(active: Active, target: Target) -> RuleSet {
    let class = match target {
        Target::Tcp { port, .. } => active.ports.tcp[bounded(port)],
        Target::Udp { port, .. } => active.ports.udp[bounded(port)],
        Target::Fragment | Target::Unwalkable => return active.config.portless_rules,
        Target::Other => return active.config.other_rules,
        Target::Essential => return 0,
    };
    active.config.class_rules[class as usize]
}

/// What is known of the packet's source, where anything is known of any of its family.
#[inline(always)]
fn prefix(active: Active, source: Address) -> Option<&'static Prefix> {
    let Active { config, .. } = active;
    let has_prefixes = match source {
        Address::V4(_) => config.has_prefixes_v4,
        Address::V6(_) => config.has_prefixes_v6,
    };
    if has_prefixes == 0 { None } else { maps::prefix(config.prefixes_generation, source) }
}

/// Which of these rules are for packets from this source to this address.
#[inline(always)]
fn matching(active: Active, seen: &Seen, protecting: RuleSet, prefix: Option<&'static Prefix>) -> RuleSet {
    let Active { config, generation, .. } = active;
    let from = config.from_any | prefix.map_or(0, |prefix| prefix.rules);
    let to = match config.has_targets {
        0 => RuleSet::MAX,
        _ => config.to_any | maps::target_rules(generation, seen.destination()),
    };
    protecting & from & to
}

/// Which of these rules judges the packet. A later fragment may belong to any port, and is held to volume if it is to be held at
/// all: by the first rule that counts that, so that a rule for connections before it is no way around.
#[inline(always)]
fn judging(active: Active, target: Target, rules: RuleSet) -> Option<u32> {
    if let Target::Fragment = target
        && let Some(index) = first(active, rules & active.config.volume_rules)
    {
        return Some(index);
    }
    first(active, rules)
}

/// Rules that have ended and still stand: the daemon takes them out within seconds. After so many the next judges.
const ENDED_MAX: usize = 3;

/// The first of these rules that has not ended.
#[inline(always)]
fn first(active: Active, rules: RuleSet) -> Option<u32> {
    let mut rules = rules;
    for _ in 0..ENDED_MAX {
        let index = lowest(rules)?;
        let until_ns = active.config.rules[index as usize].until_ns;
        if until_ns == 0 || Clock::new(active.config.wall_offset_ns).coarse().0 < until_ns {
            return Some(index);
        }
        rules &= rules - 1;
    }
    lowest(rules)
}

/// The first of these rules. The verifier does not know what the compiler does, that there are no more than bits in a word.
#[inline(always)]
fn lowest(rules: RuleSet) -> Option<u32> {
    if rules == 0 { None } else { Some(forget(rules.trailing_zeros()) & (RULES_MAX as u32 - 1)) }
}

/// What the source is granted whatever the limits say.
#[inline(always)]
fn granted(active: Active, prefix: &'static Prefix) -> Option<Grant> {
    if prefix.access[0] == access::Step::default() {
        return None;
    }
    access::grant(prefix.access, Clock::new(active.config.wall_offset_ns).coarse())
}

/// A port as an index. The verifier of Linux 6.12 knows nothing of a number whose bytes were swapped, so its bound must be
/// in the program, where the compiler leaves it out if it knows.
#[inline(always)]
fn bounded(port: u16) -> usize {
    forget(port as u32) as usize & 0xffff
}

#[inline(always)]
fn enforced(rule: &Rule, reason: Reason) -> Verdict {
    match (reason.action(), rule.dry_run) {
        (Action::Pass, _) | (Action::Drop, 0) => Verdict { reason, rule: rule.row },
        (Action::Drop, _) => Verdict { reason: Reason::DryRun, rule: rule.row },
    }
}

/// The rule that judges a packet.
#[derive(Clone, Copy)]
struct Judging {
    index: u32,
    rule: &'static Rule,
}

#[inline(always)]
fn judge(active: Active, frame: &XdpFrame, judging: Judging, seen: &Seen) -> Reason {
    let rule = judging.rule;
    let Ok(target) = seen.target() else { return Reason::InternalError };
    let (opening, requests, pending) = match target {
        Target::Tcp { opening, segment, .. } if rule.counts_requests != 0 && segment.payload_bytes != 0 => {
            let judged = conversations::judge(frame, rule.counts_requests == 2);
            (opening, judged.requests(), if judged.is_pending() { Pending::Conversation } else { Pending::Nothing })
        }
        Target::Udp { port, source_port, quic_initial, quic_short, payload_bytes }
            if rule.counts_connections | rule.counts_requests != 0 =>
        {
            let ports = (source_port as u32) << 16 | port as u32;
            let part = flow(active, seen.source(), ports, Word::new(quic_initial, quic_short, payload_bytes));
            (part.opens(), part.requests(), Pending::Flow)
        }
        Target::Tcp { opening, .. } => (opening, 0, Pending::Nothing),
        // Whatever it is, it may be anything.
        Target::Unwalkable => (true, 1, Pending::Nothing),
        Target::Udp { .. } | Target::Fragment | Target::Other | Target::Essential => (false, 0, Pending::Nothing),
    };
    let reason = judge_source(active, judging, seen.source(), Cost::new(opening, requests, seen.ip_bytes()));
    let decisive = match pending {
        Pending::Nothing => return reason,
        Pending::Flow => reason,
        Pending::Conversation => enforced(rule, reason).reason,
    };
    if let Action::Pass = decisive.action() {
        let _always_zero = remember_pending();
    }
    reason
}

/// What is remembered of a packet beside its source, once it is admitted: what is refused is judged again when it is sent again.
#[derive(Clone, Copy)]
enum Pending {
    Nothing,
    /// Its connection. It goes on by whatever passes, in a dry run too.
    Conversation,
    /// Its flow. One that is refused opens again with each datagram, in a dry run too: so many would be dropped.
    Flow,
}

/// What a datagram is depends on its flow.
#[inline(always)]
fn flow(active: Active, source: Address, ports: u32, datagram: Word) -> Part {
    Part(match source {
        Address::V4(address) => flow_v4(address, ports, datagram.word(), active.generation),
        Address::V6([high, low]) => flow_v6(high, low, ports, datagram.word(), active.generation),
    })
}

/// Holds the source to the rule's limits, in the maps of its family.
#[inline(always)]
fn judge_source(active: Active, judging: Judging, source: Address, cost: Cost) -> Reason {
    let Active { config, generation, .. } = active;
    let Judging { index, rule } = judging;
    let code = match source {
        Address::V4(address) => {
            let prefix = cut_ipv4(address, config.ipv4_mask);
            hold(
                rule,
                || room_v4(prefix, generation, index, cost.word()),
                || charge_all_v4(prefix, generation, index, cost.word()),
                || ban_v4(prefix, generation, index),
                || shadow_v4(prefix, generation, index, cost.word()),
            )
        }
        Address::V6(address) => {
            let [high, low] = cut_ipv6(address, config.ipv6_mask);
            if config.ipv6_wide == 0 {
                hold(
                    rule,
                    || room_v6(high, generation, index, cost.word()),
                    || charge_all_v6(high, generation, index, cost.word()),
                    || ban_v6(high, generation, index),
                    || shadow_v6(high, generation, index, cost.word()),
                )
            } else {
                hold(
                    rule,
                    || room_v6_wide(high, low, generation, index, cost.word()),
                    || charge_all_v6_wide(high, low, generation, index, cost.word()),
                    || ban_v6_wide(high, low, generation, index),
                    || shadow_v6_wide(high, low, generation, index, cost.word()),
                )
            }
        }
    };
    Reason::from_code(code)
}

/// All limits are looked at before any is charged: most of what is refused ends with the look. Each is a function of its
/// own, called from here, so that their stacks do not add up.
#[inline(always)]
fn hold(
    rule: &Rule,
    room: impl FnOnce() -> u32,
    charge_all: impl FnOnce() -> u32,
    ban: impl FnOnce() -> u32,
    shadow: impl FnOnce() -> u32,
) -> u32 {
    let mut code = room();
    if code == Reason::WithinLimit as u32 {
        code = charge_all();
    }
    if code == Reason::OverLimit as u32 && rule.bans.steps_len != 0 && rule.dry_run == 0 {
        let _always_zero = ban();
    }
    // Whatever the limits say: what a wider one would let through counts too.
    if rule.shadows_len != 0 && code != Reason::Banned as u32 {
        let _always_zero = shadow();
    }
    code
}
