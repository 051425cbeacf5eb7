//! Holding a source to the limits of a rule: whether there is room, charging, refusing, banning, counting beside. Which
//! rule that is, is not known here; the arithmetic is in `ratelimit-common`.

use ratelimit_common::ban::Ban;
use ratelimit_common::gcra;
use ratelimit_common::layout::{self, CHARGE_GENERATION, ChargeOrder, LIMITS_MAX, Rule, Unit};
use ratelimit_common::refusals::Refusals;
use ratelimit_common::time::BucketIndex;
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_common::window::{self, Cells, Charge};

use crate::clock::Clock;
use crate::maps::{self, Inserted, SourceRef, SourceV4, SourceV6, SourceV6Wide, Sources};
use crate::newcomers::{admit, make_known, turned_away};
use crate::notes::{lasts, note};

/// The verifier walks a global function once, whatever it is called with, as long as its arguments are plain numbers;
/// inlined, the paths through these would multiply past the million instructions that it looks at. One of each for
/// each family.
macro_rules! families {
    ($($room:ident $refused:ident $ban:ident $charge_all:ident $charge_one:ident $shadow:ident $remember:ident $charge:ident $settle:ident $refund:ident ($($word:ident: $type:ty),*) = $source:expr;)*) => {
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
                refused(&$source, generation, LimitIndex::new(rule, at as usize));
                0
            }

            /// [`ban`]; returns 0.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $ban($($word: $type,)* generation: u32, rule: u32) -> u32 {
                ban(&$source, generation, rule);
                0
            }

            /// [`charge_all`]; returns a reason's code.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $charge_all($($word: $type,)* generation: u32, rule: u32, cost: u64) -> u32 {
                let call = Calls {
                    charge: |at, amount| {
                        let limit = LimitIndex::new(rule, at).0;
                        rounds(
                            || $charge($($word,)* generation, limit, amount),
                            || if_admitted(generation, limit, || $remember($($word,)* generation, limit, amount)),
                            |bucket| $settle($($word,)* generation, limit, bucket),
                            || { let [high, low] = Sources::words(&$source); make_known(high, low, generation) },
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
                    || if_admitted(generation, limit, || $remember($($word,)* generation, limit, amount)),
                    |bucket| $settle($($word,)* generation, limit, bucket),
                            || { let [high, low] = Sources::words(&$source); make_known(high, low, generation) },
                )
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
                    let amount = Cost(cost).of(limit.unit);
                    if amount != 0 {
                        let limit = LimitIndex::new(rule, LIMITS_MAX + at).0;
                        let _whatever = rounds(
                            || $charge($($word,)* generation, limit, amount),
                            || if_admitted(generation, limit, || $remember($($word,)* generation, limit, amount)),
                            |bucket| $settle($($word,)* generation, limit, bucket),
                            || { let [high, low] = Sources::words(&$source); make_known(high, low, generation) },
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
    room_v4 refused_v4 ban_v4 charge_all_v4 charge_one_v4 shadow_v4 remember_v4 charge_v4 settle_v4 refund_v4 (prefix: u32) = SourceV4(prefix.to_ne_bytes());
    room_v6 refused_v6 ban_v6 charge_all_v6 charge_one_v6 shadow_v6 remember_v6 charge_v6 settle_v6 refund_v6 (prefix: u64) = SourceV6(prefix.to_ne_bytes());
    room_v6_wide refused_v6_wide ban_v6_wide charge_all_v6_wide charge_one_v6_wide shadow_v6_wide remember_v6_wide charge_v6_wide settle_v6_wide refund_v6_wide (high: u64, low: u64)
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
    let code = match (order.step, order.family) {
        (ChargeOrder::BAN, ChargeOrder::V4) => u64::from(ban_v4(v4, CHARGE_GENERATION, 0)),
        (ChargeOrder::BAN, ChargeOrder::V6) => u64::from(ban_v6(high, CHARGE_GENERATION, 0)),
        (ChargeOrder::BAN, _) => u64::from(ban_v6_wide(high, low, CHARGE_GENERATION, 0)),
        (_, ChargeOrder::V4) => charge_one_v4(v4, CHARGE_GENERATION, amount),
        (_, ChargeOrder::V6) => charge_one_v6(high, CHARGE_GENERATION, amount),
        (_, _) => charge_one_v6_wide(high, low, CHARGE_GENERATION, amount),
    };
    code < charged::CODES
}

/// What a packet costs, by unit: its bytes, above them the requests that begin in it, and in the top bit whether it opens a
/// connection. One word, as an argument must be.
#[derive(Clone, Copy)]
pub(crate) struct Cost(u64);

const COST_OPENS: u32 = 63;
const COST_REQUESTS: u32 = 32;

impl Cost {
    #[inline(always)]
    pub(crate) const fn new(opening: bool, requests: u32, bytes: u32) -> Self {
        Self((opening as u64) << COST_OPENS | (requests as u64) << COST_REQUESTS | bytes as u64)
    }

    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    fn of(self, unit: u8) -> u64 {
        match Unit::from_code(unit) {
            Some(Unit::Connections) => self.0 >> COST_OPENS,
            Some(Unit::Packets) => 1,
            Some(Unit::Bytes) => self.0 & u64::from(u32::MAX),
            Some(Unit::Requests) => self.0 >> COST_REQUESTS & u64::from(u16::MAX),
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

    #[inline(always)]
    const fn rule(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    /// The limit, and the clock to hold it by.
    #[inline(always)]
    fn limit(self, generation: u32) -> Option<(&'static layout::Limit, Clock)> {
        let config = maps::config(generation)?;
        let limit = config.rules.get(self.rule() as usize)?.limits.get((self.0 & 0xff) as usize)?;
        Some((limit, Clock::new(config.wall_offset_ns)))
    }
}

/// The steps of [`charge_all`] for one family of sources, each with the position of the limit in its rule.
struct Calls<Charge, Refund> {
    charge: Charge,
    refund: Refund,
}

/// Rounds of remembering, settling and charging: those that all tries of a charge take, and two for a bucket that turns or a
/// source that is evicted.
const ROUNDS_MAX: usize = window::TRIES_MAX / <SourceRef as Cells>::TRIES + 2;

/// What [`charge`] returns besides the number of the bucket that was charged.
mod charged {
    pub(super) const REFUSED: u64 = u64::MAX;
    pub(super) const CONTENDED: u64 = u64::MAX - 1;
    /// The source has no window yet, or not any more.
    pub(super) const NOT_KNOWN: u64 = u64::MAX - 2;
    /// Nor can it get one.
    pub(super) const NOT_REMEMBERED: u64 = u64::MAX - 3;
    /// Nor is it to get one: it was not drawn.
    pub(super) const NOT_ADMITTED: u64 = u64::MAX - 4;
    /// Nor is it to get one: its rule has let in as many as it may.
    pub(super) const NEW_SOURCE_BUDGET: u64 = u64::MAX - 5;
    /// The first of these codes.
    pub(super) const CODES: u64 = NEW_SOURCE_BUDGET;
    /// With the number of a bucket: those before it have no final counts yet.
    pub(super) const UNSETTLED: u64 = 1 << 62;
    /// Of the codes, only that one has these two bits so.
    pub(super) const UNSETTLED_MASK: u64 = 3 << 62;
}

/// What [`look`] has found: a reason's code, and above it, where that is `OverLimit`, the position of the limit that refuses.
#[derive(Clone, Copy)]
pub(crate) struct Look(u32);

impl Look {
    /// Of what a function has returned.
    #[inline(always)]
    pub(crate) const fn from_word(word: u32) -> Self {
        Self(word)
    }

    #[inline(always)]
    const fn of(reason: Reason) -> Self {
        Self(reason as u32)
    }

    #[inline(always)]
    const fn refused(at: usize) -> Self {
        Self((at as u32) << 8 | Reason::OverLimit as u32)
    }

    /// The reason's code.
    #[inline(always)]
    pub(crate) const fn code(self) -> u32 {
        self.0 & 0xff
    }

    /// The position of the limit that refuses.
    #[inline(always)]
    pub(crate) const fn at(self) -> u32 {
        self.0 >> 8
    }
}

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
        let _always_zero = note(generation, index, rule.bans.slot, ban.until().0, Reason::Banned as u32);
        return Look::of(Reason::Banned);
    }
    let mut reason = Reason::NotCounted;
    for (at, limit) in rule.limits[..LIMITS_MAX].iter().enumerate() {
        if at >= rule.limits_len as usize {
            break;
        }
        let amount = cost.of(limit.unit);
        if amount != 0 {
            if reason == Reason::NotCounted
                && let [high, low] = source.words()
                && let turned_away = turned_away(high, low, generation, index, (amount > limit.amount).into())
                && turned_away != Reason::WithinLimit as u32
            {
                return Look(turned_away);
            }
            reason = Reason::WithinLimit;
        } else if rule.refuse_all == 0 {
            continue;
        }
        let Some(window) = source.window(limit.slot) else { continue };
        let bucket = now.bucket(limit.bucket_ns);
        let asked = if amount == 0 { 1 } else { amount };
        let fits = match limit.is_gcra {
            0 => window.has_room(limit, bucket, asked),
            // A bucket filled since the last tick was filled later than the coarse clock says, and would look too full.
            _ => gcra::has_room(&window, limit.rate(), clock.precise(), asked),
        };
        let has_room = match (rule.refuse_all, limit.is_gcra) {
            (0, _) => fits,
            (_, 0) => window.refusals().lets_through(amount, bucket, limit.behind, fits),
            // A leaky bucket frees at any time: what fits goes through.
            _ => amount == 0 && !window.refusals().is_within(bucket, 1) || fits,
        };
        if !has_room {
            return Look::refused(at);
        }
    }
    if reason == Reason::NotCounted && rule.shadows_len != 0 {
        // What only these count is drawn for this packet too, and not admitted by what was drawn for another.
        let [high, low] = source.words();
        let _whatever = turned_away(high, low, generation, index, 0);
    }
    if let (Reason::WithinLimit, Some(ban)) = (reason, ban) {
        ban.note_let_in();
    }
    Look::of(reason)
}

/// Counts that the source was refused, and notes it where that lasts.
#[inline(always)]
fn refused<S: Sources>(source: &S, generation: u32, at: LimitIndex) {
    let (Some(config), Some((limit, clock))) = (maps::config(generation), at.limit(generation)) else { return };
    let Some(rule) = config.rules.get(at.rule() as usize) else { return };
    let Some(window) = source.window(limit.slot) else { return };
    let bucket = clock.coarse().bucket(limit.bucket_ns);
    window.count_refused(bucket);
    let [high, low] = source.words();
    let _always_zero = make_known(high, low, generation);
    if lasts(rule, limit) {
        let full_until = window.full_until(limit, bucket);
        if full_until != bucket {
            let until_ns = full_until.0.wrapping_mul(limit.bucket_ns);
            let _always_zero = note(generation, at.rule(), limit.slot, until_ns, Reason::OverLimit as u32);
        }
    }
}

/// Bans the source, or bans it again; each ban that begins is counted once, on whichever CPU was first.
#[inline(always)]
fn ban<S: Sources>(source: &S, generation: u32, rule: u32) {
    let Some(config) = maps::config(generation) else { return };
    let Some(rule) = config.rules.get(rule as usize) else { return };
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
            charged::NOT_ADMITTED => Reason::NotAdmitted,
            charged::NEW_SOURCE_BUDGET => Reason::NewSourceBudget,
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
                (calls.refund)(at, cost.of(limit.unit), buckets[at]);
            }
        }
    }
    reason
}

/// Charges one limit's window of the source, if there is one.
#[inline(always)]
fn charge<S: Sources>(source: &S, generation: u32, limit: LimitIndex, amount: u64) -> u64 {
    let Some((limit, clock)) = limit.limit(generation) else { return charged::NOT_REMEMBERED };
    let Some(window) = source.window(limit.slot) else { return charged::NOT_KNOWN };
    let precise = clock.precise();
    let now = precise.bucket(limit.bucket_ns);
    let charge = match limit.is_gcra {
        0 => window::charge(&window, limit.arithmetic(), now, amount),
        _ => gcra::charge(&window, limit.rate(), precise, amount),
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
fn settle<S: Sources>(source: &S, generation: u32, limit: LimitIndex, bucket: BucketIndex) {
    let Some((limit, _)) = limit.limit(generation) else { return };
    if let Some(window) = source.window(limit.slot) {
        let _newest = window::settle(&window, limit.arithmetic(), bucket);
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
        0 => window::open(&mut first.cells, limit.arithmetic(), now, amount),
        _ => gcra::open(&mut first.cells, limit.rate(), precise, amount),
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
            0 => window::refund(&window, limit.arithmetic(), bucket, amount),
            _ => gcra::refund(&window, limit.rate(), amount),
        }
    }
}
