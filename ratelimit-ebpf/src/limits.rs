//! Holding a source to the limits of a rule: whether there is room, charging, refusing, banning, counting beside. Which
//! rule that is, is not known here; the arithmetic is in `ratelimit-common`.

use ratelimit_common::ban::Ban;
use ratelimit_common::gcra;
use ratelimit_common::layout::{self, CHARGE_GENERATION, ChargeOrder, LIMITS_MAX, RULES_MAX, Rule, Unit};
use ratelimit_common::proof::{Side, asks};
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_common::window::{self, Cells, Charge};

use crate::clock::Clock;
use crate::maps::{self, Inserted, SourceRef, SourceV4, SourceV6, SourceV6Wide, Sources};
use crate::newcomers::{admit, excuses, make_armed, make_known, turned_away};
use crate::notes::{lasts, least, note, note_connection, of_suspect, of_unproven};
use words::{At, BY_EVIDENCE, BY_ORDER, LimitIndex, charged};

mod words;

pub(crate) use words::{BY_ESTABLISHED, Cost, Look};

/// The verifier walks a global function once, whatever it is called with, as long as its arguments are plain numbers;
/// inlined, the paths through these would multiply past the million instructions that it looks at. One of each for
/// each family.
macro_rules! families {
    ($($room:ident $refused:ident $suspect:ident $ban:ident $prove:ident $charge_all:ident $charge_one:ident $rounds:ident $shadow:ident $remember:ident $charge:ident $settle:ident $refund:ident ($($word:ident: $type:ty),*) = $source:expr;)*) => {
        $(
            /// [`look`]; returns a [`Look`].
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $room($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                look(&$source, generation, rule, Cost(cost)).0
            }

            /// [`refused`]; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $refused($($word: $type,)* generation: u32, rule: u32, at: u32) -> u32 {
                refused(&$source, generation, LimitIndex::new(rule, At(at)));
                0
            }

            /// [`suspect`], or [`note_ban`] where there is no such limit; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $suspect($($word: $type,)* generation: u32, rule: u32, at: u32) -> u32 {
                if at == 0 {
                    note_ban(&$source, generation, rule);
                } else {
                    suspect(&$source, generation, LimitIndex::new(rule, At(at)));
                }
                0
            }

            /// [`ban`]; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $ban($($word: $type,)* generation: u32, rule: u32, how: u32) -> u32 {
                ban(&$source, generation, rule, how);
                0
            }

            /// Counts a connection that is proven, if it is the `first` that is known of it, and bans the source where it was refused
            /// another after as many. Returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $prove($($word: $type,)* generation: u32, rule: u32, first: u32) -> u32 {
                let Some(of) = maps::config(generation).and_then(|config| config.rules.get(rule as usize)) else { return 0 };
                let [high, low] = Sources::words(&$source);
                let _whatever = turned_away(high, low, generation, rule, excuses::PROVEN_OR_TOO_MUCH);
                for (at, limit) in of.limits[..LIMITS_MAX].iter().enumerate() {
                    if at >= of.limits_len as usize {
                        break;
                    }
                    if limit.unit != Unit::Connections as u8 {
                        continue;
                    }
                    if first != 0 {
                        let _whatever = $rounds($($word,)* generation, LimitIndex::new(rule, At::new(at, Side::Evidence)).0, 1);
                    }
                    let _always_zero = $ban($($word,)* generation, rule, at as u32 | BY_EVIDENCE);
                }
                0
            }

            /// [`charge_all`]; returns a reason's code.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $charge_all($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                let call = Calls {
                    charge: |at: At, amount| $rounds($($word,)* generation, LimitIndex::new(rule, at).0, amount),
                    refund: |at: At, amount, bucket: BucketIndex| {
                        let _always_zero = $refund($($word,)* LimitIndex::new(rule, at).in_generation(generation), amount, bucket.0);
                    },
                };
                match maps::config(generation) {
                    Some(config) => charge_all(&config.rules[rule as usize & (RULES_MAX - 1)], Cost(cost), &call) as u32,
                    None => Reason::InternalError as u32,
                }
            }

            /// [`rounds`]; returns the bucket, or a code above all buckets.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $rounds($($word: $type,)* generation: u32, limit: u32, amount: u64) -> u64 {
                rounds(
                    || $charge($($word,)* generation, limit, amount),
                    || if_admitted(generation, limit, || $remember($($word,)* generation, limit, amount)),
                    |bucket| $settle($($word,)* generation, limit, bucket),
                    || { let [high, low] = Sources::words(&$source); make_known(high, low, generation) },
                )
            }

            /// Charges the first limit of the first rule, the window of it with this [`Side`]'s code; returns the bucket, or a
            /// code above all buckets.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $charge_one($($word: $type,)* generation: u32, side: u32, amount: u64) -> u64 {
                $rounds($($word,)* generation, LimitIndex::new(0, At::new(0, Side::from_code(side))).0, amount)
            }

            /// Charges the rule's shadow limits, each for itself; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $shadow($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                let Some(of) = maps::config(generation).and_then(|config| config.rules.get(rule as usize)) else { return 0 };
                for (at, limit) in of.limits[LIMITS_MAX..].iter().enumerate() {
                    if at >= of.shadows_len as usize {
                        break;
                    }
                    let (amount, side) = Cost(cost).of(limit);
                    if amount != 0 && !side.is_guard() {
                        let at = At::new(LIMITS_MAX + at, Side::Unproven);
                        let _whatever = $rounds($($word,)* generation, LimitIndex::new(rule, at).0, amount);
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
    room_v4 refused_v4 suspect_v4 ban_v4 prove_v4 charge_all_v4 charge_one_v4 rounds_v4 shadow_v4 remember_v4 charge_v4 settle_v4 refund_v4 (prefix: u32) = SourceV4(prefix.to_ne_bytes());
    room_v6 refused_v6 suspect_v6 ban_v6 prove_v6 charge_all_v6 charge_one_v6 rounds_v6 shadow_v6 remember_v6 charge_v6 settle_v6 refund_v6 (prefix: u64) = SourceV6(prefix.to_ne_bytes());
    room_v6_wide refused_v6_wide suspect_v6_wide ban_v6_wide prove_v6_wide charge_all_v6_wide charge_one_v6_wide rounds_v6_wide shadow_v6_wide remember_v6_wide charge_v6_wide settle_v6_wide refund_v6_wide (high: u64, low: u64)
        = SourceV6Wide([high.to_ne_bytes(), low.to_ne_bytes()]);
}

/// Charges one limit, and does before what the charge asks for.
#[inline(always)]
fn rounds(
    charge: impl Fn() -> u64,
    remember: impl Fn() -> u64,
    settle: impl Fn(u64) -> u32,
    known: impl Fn() -> u32,
) -> u64 {
    for _ in 0..ROUNDS_MAX {
        let mut code = charge();
        if code < charged::UNSETTLED {
            // It was there before this packet.
            let _always_zero = known();
        }
        if code == charged::NOT_KNOWN {
            code = remember();
        }
        if code & charged::UNSETTLED_MASK == charged::UNSETTLED {
            let _always_zero = settle(code ^ charged::UNSETTLED);
        } else if code != charged::NOT_KNOWN && code != charged::CONTENDED {
            return code;
        }
        // Another CPU charged or remembered it in between, or it is settled now.
    }
    charged::CONTENDED
}

/// Gives the source a window, if it is to get one.
#[inline(always)]
fn if_admitted(generation: u32, limit: u32, remember: impl Fn() -> u64) -> u64 {
    let code = admit(generation, LimitIndex(limit).rule());
    if code == Reason::NotAdmitted as u32 {
        charged::NOT_ADMITTED
    } else if code == Reason::NewSourceBudget as u32 {
        charged::NEW_SOURCE_BUDGET
    } else {
        remember()
    }
}

/// Charges or bans a source without a packet; false where it could not be charged.
#[inline(always)]
pub(crate) fn carry_out(order: &ChargeOrder) -> bool {
    let (amount, v4) = (
        order.amount,
        u32::from_ne_bytes([order.prefix[0][0], order.prefix[0][1], order.prefix[0][2], order.prefix[0][3]]),
    );
    let [high, low] = [u64::from_ne_bytes(order.prefix[0]), u64::from_ne_bytes(order.prefix[1])];
    let side = match order.step {
        ChargeOrder::CHARGE_PROVEN => Side::Proven,
        ChargeOrder::CHARGE_EVIDENCE => Side::Evidence,
        _ => Side::Unproven,
    } as u32;
    let code = match (order.step, order.family) {
        (ChargeOrder::BAN, ChargeOrder::V4) => u64::from(ban_v4(v4, CHARGE_GENERATION, 0, BY_ORDER)),
        (ChargeOrder::BAN, ChargeOrder::V6) => u64::from(ban_v6(high, CHARGE_GENERATION, 0, BY_ORDER)),
        (ChargeOrder::BAN, _) => u64::from(ban_v6_wide(high, low, CHARGE_GENERATION, 0, BY_ORDER)),
        (_, ChargeOrder::V4) => charge_one_v4(v4, CHARGE_GENERATION, side, amount),
        (_, ChargeOrder::V6) => charge_one_v6(high, CHARGE_GENERATION, side, amount),
        (_, _) => charge_one_v6_wide(high, low, CHARGE_GENERATION, side, amount),
    };
    code < charged::CODES
}

/// The steps of [`charge_all`] for one family of sources, each with the position of the limit in its rule.
struct Calls<Charge, Refund> {
    charge: Charge,
    refund: Refund,
}

/// Rounds of remembering, settling and charging: those that all tries of a charge take, and two for a bucket that turns or a
/// source that is evicted.
const ROUNDS_MAX: usize = window::TRIES_MAX / <SourceRef as Cells>::TRIES + 2;

/// Looks whether the packet may have room in every limit that counts it, and changes nothing but the count of what a ban
/// drops: [`Reason::WithinLimit`] may be overtaken by another CPU, anything else stands.
///
/// By the coarse clock: it is never ahead, so what it refuses is over the limit, or was within the last tick.
#[inline(always)]
fn look<S: Sources>(source: &S, generation: u32, index: u32, cost: Cost) -> Look {
    let Some(config) = maps::config(generation) else { return Look::of(Reason::InternalError) };
    let Some(rule) = config.rules.get(index as usize) else { return Look::of(Reason::InternalError) };
    let clock = Clock::new(config.wall_offset_ns);
    let now = clock.coarse();
    let ban = if rule.bans.steps_len == 0 { None } else { source.ban(rule.bans.slot) };
    if let Some(ban) = ban
        && ban.holds(now)
    {
        ban.count_dropped(1);
        return Look::of(Reason::Banned);
    }
    let mut reason = Reason::NotCounted;
    for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
        if at >= rule.limits_len as usize {
            break;
        }
        let (amount, side) = cost.of(limit);
        if amount != 0 {
            if reason == Reason::NotCounted
                && let [high, low] = source.words()
                && let turned_away =
                    turned_away(high, low, generation, index, excuse(limit.amount_on(side), amount, cost))
                && turned_away != Reason::WithinLimit as u32
            {
                return Look(turned_away);
            }
            reason = Reason::WithinLimit;
        } else if rule.refuse_all == 0 {
            continue;
        }
        // What is not counted apart is looked at with the packet's own cost, or the wrong limit would have refused it.
        if cost.is_glance() && limit.unit == Unit::Connections as u8 {
            continue;
        }
        let Some(window) = source.window(side.slot(limit.slot)) else { continue };
        if !has_room(window, rule, limit, side, amount, now.bucket(limit.bucket_ns), clock) {
            if side == Side::Attempts {
                maps::keep_suspect(At::new(at, side).0);
                continue;
            }
            return Look::refused(At::new(at, side));
        }
    }
    if reason == Reason::NotCounted && rule.shadows_len != 0 && !cost.is_glance() {
        // What only these count is drawn for this packet too, and not admitted by what was drawn for another.
        let [high, low] = source.words();
        let _whatever = turned_away(high, low, generation, index, excuses::NONE);
    }
    // Where bans need proof, what anyone can forge is no sign that the window which banned has room again.
    if let (Reason::WithinLimit, Some(ban)) = (reason, ban)
        && (rule.proof & asks::BANS == 0 || rule.proof & asks::CONNECTIONS_ALONE != 0 || cost.is_established())
    {
        ban.note_let_in();
    }
    Look::of(reason)
}

/// Notes until when a ban holds that was met.
#[inline(always)]
fn note_ban<S: Sources>(source: &S, generation: u32, index: u32) {
    let Some(rule) = maps::config(generation).and_then(|config| config.rules.get(index as usize)) else { return };
    if let Some(ban) = source.ban(rule.bans.slot) {
        let _always_zero = note(generation, index, rule.bans.slot, ban.until().0, Reason::Banned as u32);
    }
}

/// Notes that a source has tried to connect as often as it may: from now on each connection that it completes is counted. The note refuses
/// nothing, and its attempts pass, since anyone can forge them.
#[inline(always)]
fn suspect<S: Sources>(source: &S, generation: u32, at: LimitIndex) {
    let Some((limit, clock)) = at.limit(generation) else { return };
    let Some(window) = source.window(at.slot(limit)) else { return };
    let bucket = clock.coarse().bucket(limit.bucket_ns);
    if limit.is_gcra == 0 && of_suspect(generation) {
        let full_until = window.full_until(limit, Side::Attempts, bucket, 1);
        let until_ns = full_until.0.wrapping_mul(limit.bucket_ns);
        let _always_zero = note(generation, at.rule(), at.slot(limit), until_ns, Reason::Guard as u32);
    }
}

/// Why nobody asks if its source is known: it was asked already; or what proves its sender is no part of a flood, and what fits no window gets
/// none. Some of [`excuses`].
#[inline(always)]
const fn excuse(most: u64, amount: u64, cost: Cost) -> u32 {
    let is_excused = cost.is_established() || amount > most;
    is_excused as u32 * excuses::PROVEN_OR_TOO_MUCH | cost.is_asked() as u32 * excuses::ASKED
}

/// Whether the window has room for so much.
#[inline(always)]
fn has_room(
    window: SourceRef,
    rule: &Rule,
    limit: &layout::Limit,
    side: Side,
    amount: u64,
    bucket: BucketIndex,
    clock: Clock,
) -> bool {
    let asked = if amount == 0 { 1 } else { amount };
    let fits = fits(window, limit, side, bucket, asked, clock);
    match (rule.refuse_all, limit.is_gcra) {
        (0, _) => fits,
        (_, 0) => window.refusals().lets_through(amount, bucket, limit.behind, fits),
        // A leaky bucket frees at any time: what fits goes through.
        _ => amount == 0 && !window.refusals().is_within(bucket, 1) || fits,
    }
}

#[inline(always)]
fn fits(window: SourceRef, limit: &layout::Limit, side: Side, bucket: BucketIndex, asked: u64, clock: Clock) -> bool {
    match limit.is_gcra {
        0 => window.has_room(limit, side, bucket, asked),
        // A bucket filled since the last tick was filled later than the coarse clock says, and would look too full.
        _ => gcra::has_room(&window, limit.rate(side), clock.precise(), asked),
    }
}

/// Counts that the source was refused, and notes it where that lasts.
#[inline(always)]
fn refused<S: Sources>(source: &S, generation: u32, at: LimitIndex) {
    let (Some(config), Some((limit, clock))) = (maps::config(generation), at.limit(generation)) else { return };
    let Some(rule) = config.rules.get(at.rule() as usize) else { return };
    let Some(window) = source.window(at.slot(limit)) else { return };
    let bucket = clock.coarse().bucket(limit.bucket_ns);
    window.count_refused(bucket);
    let [high, low] = source.words();
    let _always_zero = make_known(high, low, generation);
    let side = at.at().side();
    if limit.unit == Unit::Requests as u8 && !side.is_guard() {
        if rule.refuse_all == 0 && rule.shadows_len == 0 && limit.is_gcra == 0 {
            let full_until = window.full_until(limit, side, bucket, 1);
            let until_ns = if full_until == bucket { 0 } else { full_until.0.wrapping_mul(limit.bucket_ns) };
            let _always_zero =
                note_connection(generation, at.rule(), at.slot(limit), until_ns, (side == Side::Unproven) as u32);
        }
    } else if lasts(rule, limit) {
        if side == Side::Unproven {
            of_unproven();
        }
        let full_until = window.full_until(limit, side, bucket, least(limit));
        if full_until != bucket {
            let until_ns = full_until.0.wrapping_mul(limit.bucket_ns);
            let reason = if side.is_guard() { Reason::Guard } else { Reason::OverLimit };
            let _always_zero = note(generation, at.rule(), at.slot(limit), until_ns, reason as u32);
        }
    }
}

/// Bans the source, or bans it again, unless the rule asks for proof and there is none; each ban that begins is counted once, on
/// whichever CPU was first. `how` is the [`At`] of the limit that refused, with what it was refused by.
#[inline(always)]
fn ban<S: Sources>(source: &S, generation: u32, rule: u32, how: u32) {
    let Some(config) = maps::config(generation) else { return };
    let index = rule;
    let Some(rule) = config.rules.get(rule as usize) else { return };
    let needs_proof = rule.proof & asks::BANS != 0 && how & BY_ORDER == 0;
    if needs_proof && !is_proven(source, generation, index, rule, how, Clock::new(config.wall_offset_ns)) {
        return;
    }
    let (row, rule, now) = (rule.row, &rule.bans, Clock::new(config.wall_offset_ns).coarse());
    let begins = match source.ban(rule.slot) {
        Some(newest) => {
            let read = newest.read();
            // What an application charges is an offence of its own.
            let is_another = read.may_be_followed(now) || generation == CHARGE_GENERATION && !read.holds(now);
            is_another && newest.replace(&read, &read.next(rule, now))
        }
        None => matches!(source.insert_ban(rule.slot, &Ban::first(rule, now)), Inserted::New),
    };
    if begins {
        maps::count_ban(row);
    }
}

/// Whether it is the source itself who asks for more than the limit that refused it. A SYN that was refused is no proof, also of a source
/// that has opened as many connections as it may: the next segment of one of them is asked, and says so.
#[inline(always)]
fn is_proven<S: Sources>(source: &S, generation: u32, index: u32, rule: &Rule, how: u32, clock: Clock) -> bool {
    let at = At(how & 0xff);
    let limit = &rule.limits[at.position() & (LIMITS_MAX - 1)];
    if limit.unit != Unit::Connections as u8 {
        return how & BY_ESTABLISHED != 0 && at.side() == Side::Proven;
    }
    if !has_opened_all(source, limit, clock) {
        return false;
    }
    if how & BY_EVIDENCE == 0 {
        let [high, low] = source.words();
        let _always_zero = make_armed(high, low, generation, index);
        return false;
    }
    let bucket = clock.coarse().bucket(limit.bucket_ns);
    let behind = if limit.is_gcra == 0 { limit.behind } else { 1 };
    source.window(limit.slot).is_some_and(|window| window.refusals().is_within(bucket, behind))
}

/// Whether the source has itself opened as many connections as the limit allows.
#[inline(always)]
fn has_opened_all<S: Sources>(source: &S, limit: &layout::Limit, clock: Clock) -> bool {
    let Some(window) = source.window(Side::Evidence.slot(limit.slot)) else { return false };
    match limit.is_gcra {
        0 => !window.has_room(limit, Side::Evidence, clock.coarse().bucket(limit.bucket_ns), 1),
        _ => !gcra::has_room(&window, limit.rate(Side::Evidence), clock.precise(), 1),
    }
}

/// Charges every limit of the rule that counts the packet. A charge that one of them refuses after all, because
/// another CPU was faster, is taken back from the others.
#[inline(always)]
fn charge_all<Charge, Refund>(rule: &Rule, cost: Cost, calls: &Calls<Charge, Refund>) -> Reason
where
    Charge: Fn(At, u64) -> u64,
    Refund: Fn(At, u64, BucketIndex),
{
    let mut buckets = [BucketIndex(0); LIMITS_MAX];
    let mut reason = Reason::WithinLimit;
    for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
        if at >= rule.limits_len as usize {
            break;
        }
        let (amount, side) = cost.of(limit);
        if amount == 0 {
            continue;
        }
        reason = match (calls.charge)(At::new(at, side), amount) {
            charged::NOT_KNOWN | charged::NOT_REMEMBERED => Reason::StateFull,
            charged::NOT_ADMITTED => Reason::NotAdmitted,
            charged::NEW_SOURCE_BUDGET => Reason::NewSourceBudget,
            charged::REFUSED if side == Side::Attempts => continue,
            charged::REFUSED if side.is_guard() => Reason::Guard,
            charged::REFUSED => Reason::OverLimit,
            charged::CONTENDED => Reason::Contended,
            bucket => {
                buckets[at] = BucketIndex(bucket);
                continue;
            }
        };
        if let Reason::StateFull | Reason::NotAdmitted = reason {
            continue;
        }
        break;
    }
    if let Action::Drop = reason.action() {
        for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
            // Bucket 0 is none: this limit was not charged.
            if buckets[at].0 != 0 {
                let (amount, side) = cost.of(limit);
                (calls.refund)(At::new(at, side), amount, buckets[at]);
            }
        }
    }
    reason
}

/// Charges one limit's window of the source, if there is one.
#[inline(always)]
fn charge<S: Sources>(source: &S, generation: u32, index: LimitIndex, amount: u64) -> u64 {
    let Some((limit, clock)) = index.limit(generation) else { return charged::NOT_REMEMBERED };
    let Some(window) = source.window(index.slot(limit)) else { return charged::NOT_KNOWN };
    let precise = clock.precise();
    let now = precise.bucket(limit.bucket_ns);
    let charge = match limit.is_gcra {
        0 => window::charge(&window, limit.arithmetic(index.at().side()), now, amount),
        _ => gcra::charge(&window, limit.rate(index.at().side()), precise, amount),
    };
    match charge {
        Charge::Admitted(bucket) => bucket.0,
        Charge::Refused => {
            window.count_refused(now);
            charged::REFUSED
        }
        Charge::Contended => charged::CONTENDED,
        Charge::Unsettled(bucket) => charged::UNSETTLED | bucket.0,
    }
}

/// Gives the buckets before this one of one limit's window their final counts.
#[inline(always)]
fn settle<S: Sources>(source: &S, generation: u32, index: LimitIndex, bucket: BucketIndex) {
    let Some((limit, _)) = index.limit(generation) else { return };
    if let Some(window) = source.window(index.slot(limit)) {
        let _newest = window::settle(&window, limit.arithmetic(index.at().side()), bucket);
    }
}

/// Gives the source a window that is charged already: one insertion, and no second look.
#[inline(always)]
fn remember<S: Sources>(source: &S, generation: u32, index: LimitIndex, amount: u64) -> u64 {
    let Some((limit, clock)) = index.limit(generation) else { return charged::NOT_REMEMBERED };
    let precise = clock.precise();
    let now = precise.bucket(limit.bucket_ns);
    let Some(first) = maps::scratch() else { return charged::NOT_REMEMBERED };
    maps::park(first, index.slot(limit));
    let fits = match limit.is_gcra {
        0 => window::open(&mut first.cells, limit.arithmetic(index.at().side()), now, amount),
        _ => gcra::open(&mut first.cells, limit.rate(index.at().side()), precise, amount),
    };
    // One that does not fit an empty window is not worth remembering.
    if !fits {
        return charged::REFUSED;
    }
    let slot = maps::take_parked(first);
    match source.insert(slot, first) {
        Inserted::New => now.0,
        Inserted::Existed => charged::NOT_KNOWN,
        Inserted::Refused => charged::NOT_REMEMBERED,
    }
}

/// Takes back what one limit's window was charged.
#[inline(always)]
fn refund<S: Sources>(source: &S, index: LimitIndex, amount: u64, bucket: BucketIndex) {
    let Some((limit, _)) = index.limit(index.0 >> 16) else { return };
    if let Some(window) = source.window(index.slot(limit)) {
        match limit.is_gcra {
            0 => window::refund(&window, limit.arithmetic(index.at().side()), bucket, amount),
            _ => gcra::refund(&window, limit.rate(index.at().side()), amount),
        }
    }
}
