//! From a parsed packet to its verdict: who judges it, what it costs, whether that fits. Arithmetic is in `ratelimit-common`.

use ratelimit_common::flow::{self, Datagram};
use ratelimit_common::layout::{self, CLASS_NONE, LIMITS_MAX, RULES_MAX, Rule, Source, Unit};
use ratelimit_common::packet::{Packet, Parsed, Target};
use ratelimit_common::source::{Address, cut_ipv4, cut_ipv6};
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verdict::{Action, Reason, Verdict};
use ratelimit_common::window::{self, Charge};

use crate::clock::Clock;
use crate::maps::{self, Active, FlowKey, Inserted, SourceV4, SourceV6, SourceV6Wide, Sources};

/// Judges one packet, and charges it where it is admitted.
#[inline(always)]
pub(crate) fn verdict(active: Active, parsed: Parsed) -> Verdict {
    let packet = match parsed {
        Parsed::NotIp => return Verdict::unruled(Reason::NotIp),
        Parsed::Malformed => return Verdict::unruled(Reason::Malformed),
        Parsed::TooManyTags => return too_many_tags(active),
        Parsed::Ip(packet) => packet,
    };
    let class = class(active, packet.target);
    if class == CLASS_NONE {
        return Verdict::unruled(Reason::NotProtected);
    }
    let index = class - 1;
    if index as usize >= RULES_MAX {
        return Verdict::unruled(Reason::InternalError);
    }
    let rule = &active.config.rules[index as usize];
    let reason = if is_exempt(active, packet.source) { Reason::Exempt } else { judge(active, rule, &packet) };
    enforced(rule, index, reason)
}

/// What is behind the tags cannot be told, so whoever has what has no port has this.
#[inline(always)]
fn too_many_tags(active: Active) -> Verdict {
    let index = active.config.portless_class.wrapping_sub(1);
    match active.config.rules.get(index as usize) {
        Some(rule) => enforced(rule, index, Reason::TooManyTags),
        None => Verdict::unruled(Reason::NotProtected),
    }
}

#[inline(always)]
fn enforced(rule: &Rule, index: u8, reason: Reason) -> Verdict {
    match (reason.action(), rule.dry_run) {
        (Action::Pass, _) | (Action::Drop, 0) => Verdict { reason, rule: index },
        (Action::Drop, _) => Verdict { reason: Reason::DryRun, rule: index },
    }
}

/// The class of what the packet is sent to.
#[inline(always)]
fn class(active: Active, target: Target) -> u8 {
    match target {
        Target::Tcp { port, .. } => active.ports.tcp[port as usize],
        Target::Udp { port, .. } => active.ports.udp[port as usize],
        Target::Fragment | Target::Unwalkable => active.config.portless_class,
        Target::Other => active.config.other_class,
        Target::Essential => CLASS_NONE,
    }
}

#[inline(always)]
fn is_exempt(active: Active, source: Address) -> bool {
    match source {
        Address::V4(address) => active.config.exempt_v4 != 0 && maps::is_exempt_v4(active.generation, address),
        Address::V6(address) => active.config.exempt_v6 != 0 && maps::is_exempt_v6(active.generation, address),
    }
}

/// What a packet costs, by unit.
#[derive(Clone, Copy)]
struct Cost {
    connections: u64,
    bytes: u64,
}

impl Cost {
    #[inline(always)]
    fn of(self, unit: u8) -> u64 {
        match Unit::from_code(unit) {
            Some(Unit::Connections) => self.connections,
            Some(Unit::Packets) => 1,
            Some(Unit::Bytes) => self.bytes,
            None => 0,
        }
    }
}

#[inline(always)]
fn judge(active: Active, rule: &Rule, packet: &Packet) -> Reason {
    let (opening, datagram) = match packet.target {
        Target::Tcp { opening, .. } => (opening, None),
        Target::Unwalkable => (true, None),
        Target::Udp { port, source_port, quic_initial } if rule.counts_connections != 0 => {
            let flow = FlowKey::new(packet.source, source_port, port);
            let now = Clock::new(active.config.wall_offset_ns).coarse();
            match flow::step(flow.known(), now, quic_initial) {
                Datagram::Continues(newest) => (false, Some((flow, newest))),
                Datagram::Opens(newest) => (true, Some((flow, newest))),
            }
        }
        Target::Udp { .. } | Target::Fragment | Target::Other | Target::Essential => (false, None),
    };
    let cost = Cost { connections: opening as u64, bytes: packet.ip_bytes as u64 };
    let reason = judge_cost(active, rule, packet.source, cost);
    // A flow that is refused opens again with its next datagram.
    if let (Action::Pass, Some((flow, newest))) = (reason.action(), datagram) {
        flow.remember(&newest);
    }
    reason
}

#[inline(always)]
fn judge_cost(active: Active, rule: &Rule, source: Address, cost: Cost) -> Reason {
    let config = active.config;
    let clock = Clock::new(config.wall_offset_ns);
    match source {
        Address::V4(address) => judge_source(&SourceV4(cut_ipv4(address, config.ipv4_mask)), rule, &cost, clock),
        Address::V6(address) => {
            let prefix = cut_ipv6(address, config.ipv6_mask);
            if config.ipv6_wide == 0 {
                judge_source(&SourceV6(prefix[0]), rule, &cost, clock)
            } else {
                judge_source(&SourceV6Wide(prefix), rule, &cost, clock)
            }
        }
    }
}

#[inline(always)]
fn arithmetic(limit: &layout::Limit) -> window::Limit {
    window::Limit { amount: limit.amount, behind: limit.behind, count_bits: limit.count_bits }
}

/// Holds a source to every limit of the rule: all are looked at before any is charged, and a charge that one of them
/// refuses after all, because another CPU was faster, is taken back from the others.
///
/// A function of its own for each family: inlined, the program would be three times as long.
#[inline(never)]
fn judge_source<S: Sources>(source: &S, rule: &Rule, cost: &Cost, clock: Clock) -> Reason {
    let mut is_counted = false;
    let coarse = clock.coarse();
    let mut known = None;
    for (at, limit) in rule.limits.iter().enumerate() {
        if at >= rule.limits_len as usize {
            break;
        }
        let amount = cost.of(limit.unit);
        is_counted |= amount != 0;
        if amount == 0 && rule.refuse_all == 0 {
            continue;
        }
        known = source.window(limit.slot);
        if let Some(window) = known
            // What is not counted itself is refused with the rest while not even one more would fit.
            && !window::has_room(&window, arithmetic(limit), coarse.bucket(limit.bucket_ns), if amount == 0 { 1 } else { amount })
        {
            window.count_refused();
            return Reason::OverLimit;
        }
    }
    if !is_counted {
        return Reason::NotCounted;
    }

    let now = clock.precise();
    let mut charged = [BucketIndex(0); LIMITS_MAX];
    let mut reason = Reason::WithinLimit;
    for at in 0..LIMITS_MAX {
        if at >= rule.limits_len as usize {
            break;
        }
        let limit = &rule.limits[at];
        let amount = cost.of(limit.unit);
        if amount == 0 {
            continue;
        }
        if rule.limits_len != 1 {
            known = source.window(limit.slot);
        }
        match charge(source, known, limit, now.bucket(limit.bucket_ns), amount) {
            Ok(Charge::Admitted(bucket)) => charged[at] = bucket,
            Ok(Charge::Refused) => {
                refund(source, rule, cost, &charged, at);
                return Reason::OverLimit;
            }
            Ok(Charge::Contended) => {
                refund(source, rule, cost, &charged, at);
                return Reason::Contended;
            }
            Err(NotRemembered) => reason = Reason::StateFull,
        }
    }
    reason
}

/// The map refused to remember the source.
struct NotRemembered;

#[inline(always)]
fn charge<S: Sources>(
    source: &S,
    known: Option<maps::SourceRef>,
    limit: &layout::Limit,
    now: BucketIndex,
    amount: u64,
) -> Result<Charge, NotRemembered> {
    let arithmetic = arithmetic(limit);
    let window = match known {
        Some(window) => window,
        None => {
            // One that does not fit an empty window is not worth remembering.
            let Some(cells) = window::opened(arithmetic, now, amount) else { return Ok(Charge::Refused) };
            match source.insert(limit.slot, &Source { refused: 0, cells }) {
                Inserted::New => return Ok(Charge::Admitted(now)),
                Inserted::Refused => return Err(NotRemembered),
                Inserted::Existed => match source.window(limit.slot) {
                    Some(window) => window,
                    None => return Err(NotRemembered),
                },
            }
        }
    };
    let charge = charge_window(window, limit, now, amount);
    if let Charge::Refused | Charge::Contended = charge {
        window.count_refused();
    }
    Ok(charge)
}

/// One function for all families: the tries are the longest part of the program, and the least often run.
#[inline(never)]
fn charge_window(window: maps::SourceRef, limit: &layout::Limit, now: BucketIndex, amount: u64) -> Charge {
    window::charge(&window, arithmetic(limit), now, amount)
}

/// Takes back what the limits before `refused` were charged.
#[inline(always)]
fn refund<S: Sources>(source: &S, rule: &Rule, cost: &Cost, charged: &[BucketIndex; LIMITS_MAX], refused: usize) {
    for at in 0..LIMITS_MAX {
        if at >= refused {
            break;
        }
        let limit = &rule.limits[at];
        let amount = cost.of(limit.unit);
        if amount != 0
            && let Some(window) = source.window(limit.slot)
        {
            window::refund(&window, arithmetic(limit), charged[at], amount);
        }
    }
}
