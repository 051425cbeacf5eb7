//! From a parsed packet to its verdict: who judges it, what it costs, whether that fits. Arithmetic is in `ratelimit-common`.

use ratelimit_common::access::{self, Grant};
use ratelimit_common::ban::Ban;
use ratelimit_common::gcra::{self, Rate};
use ratelimit_common::layout::{
    self, CHARGE_GENERATION, ChargeOrder, LIMITS_MAX, Prefix, RULES_MAX, Rule, RuleSet, Unit,
};
use ratelimit_common::packet::{Packet, Parsed, Target};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::source::{Address, cut_ipv4, cut_ipv6};
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verdict::{Action, Reason, Verdict};
use ratelimit_common::window::{self, Charge};

use crate::clock::Clock;
use crate::flows::{flow_v4, flow_v6, step};
use crate::maps::{self, Active, Inserted, SourceV4, SourceV6, SourceV6Wide, Sources};
use crate::packet::forget;

/// Judges one packet, and charges it where it is admitted.
#[inline(always)]
pub(crate) fn verdict(active: Active, parsed: Parsed) -> Verdict {
    let packet = match parsed {
        Parsed::NotIp => return Verdict::unruled(Reason::NotIp),
        Parsed::Malformed => return Verdict::unruled(Reason::Malformed),
        Parsed::TooManyTags => return too_many_tags(active),
        Parsed::Ip(packet) => packet,
    };
    let protecting = protecting(active, packet.target);
    if protecting == 0 {
        return Verdict::unruled(Reason::NotProtected);
    }
    let prefix = prefix(active, packet.source);
    let Some(index) = first(active, matching(active, &packet, protecting, prefix)) else {
        return Verdict::unruled(Reason::NotProtected);
    };
    let rule = &active.config.rules[index as usize];
    let reason = match prefix.and_then(|prefix| granted(active, prefix)) {
        Some(Grant::Exempt) => Reason::Exempt,
        Some(Grant::Denied) => Reason::Denied,
        None => judge(active, Judging { index, rule }, &packet),
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
fn matching(active: Active, packet: &Packet, protecting: RuleSet, prefix: Option<&'static Prefix>) -> RuleSet {
    let Active { config, generation, .. } = active;
    let from = config.from_any | prefix.map_or(0, |prefix| prefix.rules);
    let to = match config.has_targets {
        0 => RuleSet::MAX,
        _ => config.to_any | maps::target_rules(generation, packet.destination),
    };
    protecting & from & to
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
fn judge(active: Active, judging: Judging, packet: &Packet) -> Reason {
    let opening = match packet.target {
        Target::Tcp { opening, .. } => opening,
        Target::Unwalkable => true,
        Target::Udp { port, source_port, quic_initial } if judging.rule.counts_connections != 0 => {
            let ports = (source_port as u32) << 16 | port as u32;
            return judge_datagram(active, judging, packet, ports, quic_initial as u32);
        }
        Target::Udp { .. } | Target::Fragment | Target::Other | Target::Essential => false,
    };
    judge_source(active, judging, packet.source, Cost::new(opening, packet.ip_bytes))
}

/// Whether a datagram opens a connection depends on its flow. A flow that is refused opens again with its next datagram.
#[inline(always)]
fn judge_datagram(active: Active, judging: Judging, packet: &Packet, ports: u32, quic_initial: u32) -> Reason {
    let opens = match packet.source {
        Address::V4(address) => flow_v4(address, ports, quic_initial, step::LOOK, active.generation),
        Address::V6([high, low]) => flow_v6(high, low, ports, quic_initial | step::LOOK << 8, active.generation),
    };
    let reason = judge_source(active, judging, packet.source, Cost::new(opens != 0, packet.ip_bytes));
    if let Action::Pass = reason.action() {
        let _opens = match packet.source {
            Address::V4(address) => flow_v4(address, ports, quic_initial, step::REMEMBER, active.generation),
            Address::V6([high, low]) => {
                flow_v6(high, low, ports, quic_initial | step::REMEMBER << 8, active.generation)
            }
        };
    }
    reason
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
                || room_v4(prefix, generation, index, cost.0),
                || charge_all_v4(prefix, generation, index, cost.0),
                || ban_v4(prefix, generation, index),
                || shadow_v4(prefix, generation, index, cost.0),
            )
        }
        Address::V6(address) => {
            let [high, low] = cut_ipv6(address, config.ipv6_mask);
            if config.ipv6_wide == 0 {
                hold(
                    rule,
                    || room_v6(high, generation, index, cost.0),
                    || charge_all_v6(high, generation, index, cost.0),
                    || ban_v6(high, generation, index),
                    || shadow_v6(high, generation, index, cost.0),
                )
            } else {
                hold(
                    rule,
                    || room_v6_wide(high, low, generation, index, cost.0),
                    || charge_all_v6_wide(high, low, generation, index, cost.0),
                    || ban_v6_wide(high, low, generation, index),
                    || shadow_v6_wide(high, low, generation, index, cost.0),
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

/// The verifier walks a global function once, whatever it is called with, as long as its arguments are plain numbers;
/// inlined, the paths through these would multiply past the million instructions that it looks at. One of each for
/// each family.
macro_rules! families {
    ($($room:ident $ban:ident $charge_all:ident $charge_one:ident $shadow:ident $remember:ident $charge:ident $settle:ident $refund:ident ($($word:ident: $type:ty),*) = $source:expr;)*) => {
        $(
            /// [`look`]; returns a reason's code.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $room($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                look(&$source, generation, rule, Cost(cost)) as u32
            }

            /// [`ban`]; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $ban($($word: $type,)* generation: u32, rule: u32) -> u32 {
                ban(&$source, generation, rule);
                0
            }

            /// [`charge_all`]; returns a reason's code.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $charge_all($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                let call = Calls {
                    charge: |at, amount| {
                        let limit = LimitIndex::new(rule, at).0;
                        rounds(
                            || $charge($($word,)* generation, limit, amount),
                            || $remember($($word,)* generation, limit, amount),
                            |bucket| $settle($($word,)* generation, limit, bucket),
                        )
                    },
                    refund: |at, amount, bucket: BucketIndex| {
                        let _always_zero = $refund($($word,)* LimitIndex::new(rule, at).in_generation(generation), amount, bucket.0);
                    },
                };
                match maps::config(generation).and_then(|config| config.rules.get(rule as usize)) {
                    Some(rule) => charge_all(rule, Cost(cost), &call) as u32,
                    None => Reason::InternalError as u32,
                }
            }

            /// Charges the first limit of the first rule; returns the bucket, or a code above all buckets.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $charge_one($($word: $type,)* generation: u32, amount: u64) -> u64 {
                let limit = LimitIndex::new(0, 0).0;
                rounds(
                    || $charge($($word,)* generation, limit, amount),
                    || $remember($($word,)* generation, limit, amount),
                    |bucket| $settle($($word,)* generation, limit, bucket),
                )
            }

            /// Charges the rule's shadow limits, each for itself; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $shadow($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                let Some(of) = maps::config(generation).and_then(|config| config.rules.get(rule as usize)) else { return 0 };
                for (at, limit) in of.limits[LIMITS_MAX..].iter().enumerate() {
                    if at >= of.shadows_len as usize {
                        break;
                    }
                    let amount = Cost(cost).of(limit.unit);
                    if amount != 0 {
                        let limit = LimitIndex::new(rule, LIMITS_MAX + at).0;
                        let _whatever = rounds(
                            || $charge($($word,)* generation, limit, amount),
                            || $remember($($word,)* generation, limit, amount),
                            |bucket| $settle($($word,)* generation, limit, bucket),
                        );
                    }
                }
                0
            }

            /// [`remember`]; returns the same.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $remember($($word: $type,)* generation: u32, limit: u32, amount: u64) -> u64 {
                remember(&$source, generation, LimitIndex(limit), amount)
            }

            /// [`charge`]; returns the bucket, or a code above all buckets.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $charge($($word: $type,)* generation: u32, limit: u32, amount: u64) -> u64 {
                charge(&$source, generation, LimitIndex(limit), amount)
            }

            /// [`settle`]; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $settle($($word: $type,)* generation: u32, limit: u32, bucket: u64) -> u32 {
                settle(&$source, generation, LimitIndex(limit), BucketIndex(bucket));
                0
            }

            /// [`refund`]; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $refund($($word: $type,)* limit: u32, amount: u64, bucket: u64) -> u32 {
                refund(&$source, LimitIndex(limit), amount, BucketIndex(bucket));
                0
            }
        )*
    };
}

families! {
    room_v4 ban_v4 charge_all_v4 charge_one_v4 shadow_v4 remember_v4 charge_v4 settle_v4 refund_v4 (prefix: u32) = SourceV4(prefix.to_ne_bytes());
    room_v6 ban_v6 charge_all_v6 charge_one_v6 shadow_v6 remember_v6 charge_v6 settle_v6 refund_v6 (prefix: u64) = SourceV6(prefix.to_ne_bytes());
    room_v6_wide ban_v6_wide charge_all_v6_wide charge_one_v6_wide shadow_v6_wide remember_v6_wide charge_v6_wide settle_v6_wide refund_v6_wide (high: u64, low: u64)
        = SourceV6Wide([high.to_ne_bytes(), low.to_ne_bytes()]);
}

/// Charges one limit, and does before what the charge asks for.
#[inline(always)]
fn rounds(charge: impl Fn() -> u64, remember: impl Fn() -> u64, settle: impl Fn(u64) -> u32) -> u64 {
    for _ in 0..ROUNDS_MAX {
        let mut code = charge();
        if code == charged::NOT_KNOWN {
            code = remember();
        }
        if code & charged::UNSETTLED_MASK == charged::UNSETTLED {
            let _always_zero = settle(code ^ charged::UNSETTLED);
        } else if code != charged::NOT_KNOWN {
            return code;
        }
        // Another CPU remembered it in between, or it is settled now.
    }
    charged::CONTENDED
}

/// Charges or bans a source without a packet; false where it could not be charged.
#[inline(always)]
pub(crate) fn carry_out(order: &ChargeOrder) -> bool {
    let (amount, v4) = (
        order.amount,
        u32::from_ne_bytes([order.prefix[0][0], order.prefix[0][1], order.prefix[0][2], order.prefix[0][3]]),
    );
    let [high, low] = [u64::from_ne_bytes(order.prefix[0]), u64::from_ne_bytes(order.prefix[1])];
    let code = match (order.step, order.family) {
        (ChargeOrder::BAN, ChargeOrder::V4) => u64::from(ban_v4(v4, CHARGE_GENERATION, 0)),
        (ChargeOrder::BAN, ChargeOrder::V6) => u64::from(ban_v6(high, CHARGE_GENERATION, 0)),
        (ChargeOrder::BAN, _) => u64::from(ban_v6_wide(high, low, CHARGE_GENERATION, 0)),
        (_, ChargeOrder::V4) => charge_one_v4(v4, CHARGE_GENERATION, amount),
        (_, ChargeOrder::V6) => charge_one_v6(high, CHARGE_GENERATION, amount),
        (_, _) => charge_one_v6_wide(high, low, CHARGE_GENERATION, amount),
    };
    code < charged::NOT_REMEMBERED
}

/// What a packet costs, by unit: its bytes, and in the top bit whether it opens a connection. One word, as an argument must be.
#[derive(Clone, Copy)]
struct Cost(u64);

const COST_OPENS: u32 = 63;

impl Cost {
    #[inline(always)]
    const fn new(opening: bool, bytes: u32) -> Self {
        Self((opening as u64) << COST_OPENS | bytes as u64)
    }

    #[inline(always)]
    fn of(self, unit: u8) -> u64 {
        match Unit::from_code(unit) {
            Some(Unit::Connections) => self.0 >> COST_OPENS,
            Some(Unit::Packets) => 1,
            Some(Unit::Bytes) => self.0 & u64::from(u32::MAX),
            None => 0,
        }
    }
}

/// Which limit of which rule, of which generation where that is not another argument. One word, likewise.
#[derive(Clone, Copy)]
struct LimitIndex(u32);

impl LimitIndex {
    #[inline(always)]
    const fn new(rule: u32, at: usize) -> Self {
        Self((rule & 0xff) << 8 | at as u32 & 0xff)
    }

    #[inline(always)]
    const fn in_generation(self, generation: u32) -> u32 {
        generation << 16 | self.0
    }

    /// The limit, and the clock to hold it by.
    #[inline(always)]
    fn limit(self, generation: u32) -> Option<(&'static layout::Limit, Clock)> {
        let config = maps::config(generation)?;
        let limit = config.rules.get((self.0 >> 8 & 0xff) as usize)?.limits.get((self.0 & 0xff) as usize)?;
        Some((limit, Clock::new(config.wall_offset_ns)))
    }
}

/// The steps of [`charge_all`] for one family of sources, each with the position of the limit in its rule.
struct Calls<Charge, Refund> {
    charge: Charge,
    refund: Refund,
}

/// Rounds of remembering, settling and charging: a bucket that turns, or a source that is evicted, in each of them.
const ROUNDS_MAX: usize = 3;

/// What [`charge`] returns besides the number of the bucket that was charged.
mod charged {
    pub(super) const REFUSED: u64 = u64::MAX;
    pub(super) const CONTENDED: u64 = u64::MAX - 1;
    /// The source has no window yet, or not any more.
    pub(super) const NOT_KNOWN: u64 = u64::MAX - 2;
    /// Nor can it get one.
    pub(super) const NOT_REMEMBERED: u64 = u64::MAX - 3;
    /// With the number of a bucket: those before it have no final counts yet.
    pub(super) const UNSETTLED: u64 = 1 << 62;
    /// Of the codes, only that one has these two bits so.
    pub(super) const UNSETTLED_MASK: u64 = 3 << 62;
}

/// Looks whether the packet may have room in every limit that counts it, and changes nothing but the count of what is
/// refused: [`Reason::WithinLimit`] may be overtaken by another CPU, anything else stands.
///
/// By the coarse clock: it is never ahead, so what it refuses is over the limit, or was within the last tick.
#[inline(always)]
fn look<S: Sources>(source: &S, generation: u32, rule: u32, cost: Cost) -> Reason {
    let Some(config) = maps::config(generation) else { return Reason::InternalError };
    let Some(rule) = config.rules.get(rule as usize) else { return Reason::InternalError };
    let clock = Clock::new(config.wall_offset_ns);
    let now = clock.coarse();
    if rule.bans.steps_len != 0
        && let Some(ban) = source.ban(rule.bans.slot)
        && ban.holds(now)
    {
        ban.count_dropped();
        return Reason::Banned;
    }
    let mut reason = Reason::NotCounted;
    for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
        if at >= rule.limits_len as usize {
            break;
        }
        let amount = cost.of(limit.unit);
        if amount != 0 {
            reason = Reason::WithinLimit;
        } else if rule.refuse_all == 0 {
            continue;
        }
        let Some(window) = source.window(limit.slot) else { continue };
        let bucket = now.bucket(limit.bucket_ns);
        let asked = if amount == 0 { 1 } else { amount };
        let fits = match limit.is_gcra {
            0 => window::has_room(&window, arithmetic(limit), bucket, asked),
            // A bucket filled since the last tick was filled later than the coarse clock says, and would look too full.
            _ => gcra::has_room(&window, rate(limit), clock.precise(), asked),
        };
        let has_room = match (rule.refuse_all, limit.is_gcra) {
            (0, _) => fits,
            (_, 0) => window.refusals().lets_through(amount, bucket, limit.behind, fits),
            // A leaky bucket frees at any time: what fits goes through.
            _ => amount == 0 && !window.refusals().is_within(bucket, 1) || fits,
        };
        if !has_room {
            window.count_refused(bucket);
            return Reason::OverLimit;
        }
    }
    reason
}

/// Bans the source, or bans it again.
#[inline(always)]
fn ban<S: Sources>(source: &S, generation: u32, rule: u32) {
    let Some(config) = maps::config(generation) else { return };
    let Some(rule) = config.rules.get(rule as usize) else { return };
    let (rule, now) = (&rule.bans, Clock::new(config.wall_offset_ns).coarse());
    match source.ban(rule.slot) {
        Some(newest) => {
            let read = newest.read();
            newest.replace(&read, &read.next(rule, now));
        }
        None => {
            let _counted = source.insert_ban(rule.slot, &Ban::first(rule, now));
        }
    }
}

/// Charges every limit of the rule that counts the packet. A charge that one of them refuses after all, because
/// another CPU was faster, is taken back from the others.
#[inline(always)]
fn charge_all<Charge, Refund>(rule: &Rule, cost: Cost, calls: &Calls<Charge, Refund>) -> Reason
where
    Charge: Fn(usize, u64) -> u64,
    Refund: Fn(usize, u64, BucketIndex),
{
    let mut buckets = [BucketIndex(0); LIMITS_MAX];
    let mut reason = Reason::WithinLimit;
    for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
        if at >= rule.limits_len as usize {
            break;
        }
        let amount = cost.of(limit.unit);
        if amount == 0 {
            continue;
        }
        reason = match (calls.charge)(at, amount) {
            charged::NOT_KNOWN | charged::NOT_REMEMBERED => Reason::StateFull,
            charged::REFUSED => Reason::OverLimit,
            charged::CONTENDED => Reason::Contended,
            bucket => {
                buckets[at] = BucketIndex(bucket);
                continue;
            }
        };
        if let Reason::StateFull = reason {
            continue;
        }
        break;
    }
    if let Action::Drop = reason.action() {
        for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
            // Bucket 0 is none: this limit was not charged.
            if buckets[at].0 != 0 {
                (calls.refund)(at, cost.of(limit.unit), buckets[at]);
            }
        }
    }
    reason
}

#[inline(always)]
fn arithmetic(limit: &layout::Limit) -> window::Limit {
    window::Limit { amount: limit.amount, behind: limit.behind, count_bits: limit.count_bits, burst: limit.burst }
}

#[inline(always)]
fn rate(limit: &layout::Limit) -> Rate {
    Rate { amount: limit.amount, window_ns: limit.bucket_ns, burst_ns: limit.burst }
}

/// Charges one limit's window of the source, if there is one.
#[inline(always)]
fn charge<S: Sources>(source: &S, generation: u32, limit: LimitIndex, amount: u64) -> u64 {
    let Some((limit, clock)) = limit.limit(generation) else { return charged::NOT_REMEMBERED };
    let Some(window) = source.window(limit.slot) else { return charged::NOT_KNOWN };
    let precise = clock.precise();
    let now = precise.bucket(limit.bucket_ns);
    let charge = match limit.is_gcra {
        0 => window::charge(&window, arithmetic(limit), now, amount),
        _ => gcra::charge(&window, rate(limit), precise, amount),
    };
    match charge {
        Charge::Admitted(bucket) => bucket.0,
        Charge::Refused => {
            window.count_refused(now);
            charged::REFUSED
        }
        Charge::Contended => {
            window.count_refused(now);
            charged::CONTENDED
        }
        Charge::Unsettled(bucket) => charged::UNSETTLED | bucket.0,
    }
}

/// Gives the buckets before this one of one limit's window their final counts.
#[inline(always)]
fn settle<S: Sources>(source: &S, generation: u32, limit: LimitIndex, bucket: BucketIndex) {
    let Some((limit, _)) = limit.limit(generation) else { return };
    if let Some(window) = source.window(limit.slot) {
        let _newest = window::settle(&window, arithmetic(limit), bucket);
    }
}

/// Gives the source a window that is charged already: one insertion, and no second look.
#[inline(always)]
fn remember<S: Sources>(source: &S, generation: u32, limit: LimitIndex, amount: u64) -> u64 {
    let Some((limit, clock)) = limit.limit(generation) else { return charged::NOT_REMEMBERED };
    let precise = clock.precise();
    let now = precise.bucket(limit.bucket_ns);
    let Some(first) = maps::scratch() else { return charged::NOT_REMEMBERED };
    let fits = match limit.is_gcra {
        0 => window::open(&mut first.cells, arithmetic(limit), now, amount),
        _ => gcra::open(&mut first.cells, rate(limit), precise, amount),
    };
    // One that does not fit an empty window is not worth remembering.
    if !fits {
        return charged::REFUSED;
    }
    first.refused = Refusals(0);
    match source.insert(limit.slot, first) {
        Inserted::New => now.0,
        Inserted::Existed => charged::NOT_KNOWN,
        Inserted::Refused => charged::NOT_REMEMBERED,
    }
}

/// Takes back what one limit's window was charged.
#[inline(always)]
fn refund<S: Sources>(source: &S, limit: LimitIndex, amount: u64, bucket: BucketIndex) {
    let Some((limit, _)) = limit.limit(limit.0 >> 16) else { return };
    if let Some(window) = source.window(limit.slot) {
        match limit.is_gcra {
            0 => window::refund(&window, arithmetic(limit), bucket, amount),
            _ => gcra::refund(&window, rate(limit), amount),
        }
    }
}
