//! [`State`] over the maps: the source of the current work, and the rule that judges it. `ratelimit_common::hold` makes
//! the decisions.

use ratelimit_common::ban::Ban;
use ratelimit_common::events::Kind;
use ratelimit_common::hold::{self, At, Charged, Charges, CheckResult, GateBypass, Inserted, State, by, is};
use ratelimit_common::layout::{CHARGE_GENERATION, ChargeOrder, Config, Event, LIMITS_MAX, Limit, Rule, Step, Unit};
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_common::verification::{Side, repeated_of_verified};
use ratelimit_common::window::CELLS;

use crate::admission;
use crate::clock::Clock;
use crate::conversations;
use crate::drop_cache;
use crate::hook;
use crate::maps::{self, BanRef, Deferred, DeferredRef, SourceRef, Work};
use crate::packet::one_register;

/// The packet or order being charged, with the configuration and rule that judge it. [`maps::deferred_of`] has its
/// state.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    work: Work,
    deferred: DeferredRef,
    config: &'static Config,
    rule: &'static Rule,
}

impl Held {
    /// Returns the current packet; `None` if one of its map elements is missing.
    #[inline(always)]
    pub(crate) fn packet() -> Option<Self> {
        Self::of(Work::PACKET)
    }

    #[inline(always)]
    fn of(work: Work) -> Option<Self> {
        let deferred = maps::deferred_of(work)?;
        let config = maps::config(deferred.generation())?;
        Some(Self { work, config, rule: maps::rule(config, deferred.rule()), deferred: DeferredRef::of(deferred) })
    }

    #[inline(always)]
    fn deferred(self) -> &'static mut Deferred {
        self.deferred.get()
    }

    /// Runs [`hold::hold`].
    #[inline(always)]
    pub(crate) fn hold(self) -> Reason {
        hold::hold(self)
    }
}

/// Charges or bans a source for an order of the daemon, without a packet. Returns false if the charge failed.
#[inline(always)]
pub(crate) fn carry_out(order: &ChargeOrder) -> bool {
    let Some(deferred) = maps::deferred_of(Work::ORDER) else { return false };
    let [high, low] = [u64::from_ne_bytes(order.prefix[0]), u64::from_ne_bytes(order.prefix[1])];
    let Some(config) = maps::config(CHARGE_GENERATION) else { return false };
    deferred.judge_by(CHARGE_GENERATION, 0);
    deferred.now = Clock::new(config.wall_offset_ns).coarse();
    match order.family {
        ChargeOrder::V4 => deferred.of.set_v4(high as u32),
        ChargeOrder::V6 => deferred.of.set_v6(high),
        _ => deferred.of.set_v6_wide([high, low]),
    }
    if let ChargeOrder::OTHERS | ChargeOrder::OTHERS_VERIFIED = order.step {
        return write_others(order.amount, order.bucket, (order.step == ChargeOrder::OTHERS_VERIFIED) as u32) != 0;
    }
    let side = match order.step {
        ChargeOrder::BAN => return ban_as_ordered(by::ORDER) == 0,
        ChargeOrder::CHARGE_VERIFIED => Side::Verified,
        ChargeOrder::CHARGE_EVIDENCE => Side::Evidence,
        _ => Side::Unverified,
    };
    Charged(charge_as_ordered(At::new(0, side).0, order.amount)).bucket().is_some()
}

impl State for Held {
    type Window = SourceRef;
    type Ban = BanRef;

    #[inline(always)]
    fn rule(&self) -> &Rule {
        self.rule
    }

    #[inline(always)]
    fn charges(&self) -> Charges {
        self.deferred().charges()
    }

    #[inline(always)]
    fn charged_by(&self, charges: Charges, limit: &Limit) -> (u64, Side) {
        let (amount, side) = charges.of(limit);
        (hook::charged(self.deferred(), limit, amount), side)
    }

    #[inline(always)]
    fn told_by(&self, at: At, position: usize, side: Side) -> (At, usize, Side) {
        hook::told_by(at, position, side)
    }

    #[inline(always)]
    fn is_ordered(&self) -> bool {
        self.work == Work::ORDER
    }

    #[inline(always)]
    fn has_lapsed(&self) -> bool {
        // The daemon runs when it sends an order, so enforcement has not lapsed.
        !self.is_ordered() && maps::has_lapsed_by(self.coarse().0) != 0
    }

    #[inline(always)]
    fn precise(&self) -> Nanos {
        Clock::new(self.config.wall_offset_ns).precise()
    }

    #[inline(always)]
    fn coarse(&self) -> Nanos {
        self.deferred().now()
    }

    #[inline(always)]
    fn window(&self, slot: u32) -> Option<SourceRef> {
        self.deferred().of.window(slot)
    }

    #[inline(always)]
    fn window_here(&self, slot: u32) -> Option<SourceRef> {
        self.deferred().of.window_here(slot)
    }

    #[inline(always)]
    fn insert(&self, slot: u32, open: impl FnOnce(&mut [u64; CELLS]) -> bool) -> Inserted {
        self.deferred().of.insert(self.work, slot, open)
    }

    #[inline(always)]
    fn ban(&self) -> Option<BanRef> {
        self.deferred().of.ban(self.rule.bans.slot)
    }

    #[inline(always)]
    fn insert_ban(&self, ban: &Ban) -> Inserted {
        self.deferred().of.insert_ban(self.rule.bans.slot, ban)
    }

    #[inline(always)]
    fn count_ban(&self) {
        maps::count_ban(self.rule.row);
    }

    #[inline(always)]
    fn gates_new_sources(&self) -> bool {
        admission::are_gated(self.rule)
    }

    #[inline(always)]
    fn new_source_gate(&self, bypass: GateBypass) -> Option<Reason> {
        if bypass == GateBypass::Asked {
            return None;
        }
        let code = admission::new_source_gate(bypass as u32);
        if code == Reason::WithinLimit as u32 { None } else { Some(maps::reason(code)) }
    }

    #[inline(always)]
    fn refuses_insertion(&self) -> Option<Charged> {
        // The budget for new sources limits packets only, not the daemon's charges.
        if self.is_ordered() {
            return None;
        }
        let code = admission::admit();
        if code == Reason::NotAdmitted as u32 {
            Some(Charged::NOT_ADMITTED)
        } else if code == Reason::NewSourceBudget as u32 {
            Some(Charged::NEW_SOURCE_BUDGET)
        } else {
            None
        }
    }

    #[inline(always)]
    fn make_known(&self) {
        let deferred = self.deferred();
        let [high, low] = deferred.of.words;
        let _always_zero = admission::make_known(high, low, deferred.generation(), deferred.now().0);
    }

    #[inline(always)]
    fn send_event(&self, kind: Kind, event: impl FnOnce() -> Event) {
        maps::send_event(self.work, kind, self.coarse(), &self.deferred().of, event);
    }

    #[inline(always)]
    fn send_step(&self, step: Step) {
        maps::send_step(&self.deferred().of, step);
    }

    #[inline(always)]
    fn keep_charged(&self, position: usize, bucket: u64) {
        self.deferred().charged[position & (LIMITS_MAX - 1)] = bucket;
    }

    #[inline(always)]
    fn charged(&self, position: usize) -> u64 {
        self.deferred().charged[position & (LIMITS_MAX - 1)]
    }

    #[inline(always)]
    fn keep_suspected(&self, at: At) {
        self.deferred().suspect_at = at.0;
    }

    #[inline(always)]
    fn suspected(&self) -> Option<At> {
        match self.deferred().suspect_at {
            0 => None,
            at => Some(At(at)),
        }
    }

    #[inline(always)]
    fn is_refusal_cacheable(&self, limit: &Limit) -> bool {
        drop_cache::lasts(self.rule, limit, self.deferred())
    }

    #[inline(always)]
    fn least(&self, limit: &Limit) -> u64 {
        drop_cache::least(limit, self.deferred())
    }

    #[inline(always)]
    fn cache_drop(&self, slot: u32, until_ns: u64, reason: Reason, is_unverified: bool) {
        if is_unverified {
            drop_cache::of_unverified(self.deferred());
        }
        let _always_zero = drop_cache::cache_drop(slot, until_ns, reason as u32);
    }

    #[inline(always)]
    fn keep_refused(&self, slot: u32) {
        if self.rule.ends_abandoned() && self.charges().has(is::ESTABLISHED) {
            let _always_zero = keep_refused(slot);
        }
    }

    #[inline(always)]
    fn cache_connection_drop(&self, slot: u32, until_ns: u64, is_unverified: bool) {
        self.deferred().refused_until = Nanos(until_ns);
        let _always_zero = drop_cache::cache_connection_drop(slot, until_ns, is_unverified as u32);
    }

    #[inline(always)]
    fn may_cache_suspect(&self) -> bool {
        drop_cache::may_be_of_suspect(self.config, self.deferred())
    }

    #[inline(always)]
    fn cache_suspect(&self, slot: u32, until_ns: u64) {
        drop_cache::of_suspect(self.deferred());
        let _always_zero = drop_cache::cache_drop(slot, until_ns, Reason::Guard as u32);
    }

    #[inline(always)]
    fn hold_plain(&self) -> Reason {
        maps::reason(hold_plain())
    }

    #[inline(always)]
    fn is_banned(&self) -> bool {
        is_banned() != 0
    }

    #[inline(always)]
    fn record_admitted(&self) {
        let _always_zero = record_admitted();
    }

    #[inline(always)]
    fn check_limits(&self, charges: Charges) -> CheckResult {
        CheckResult(check_limits(charges.word()))
    }

    #[inline(always)]
    fn turn_to(&self, position: usize) {
        let _always_zero = turn_to(position as u32);
    }

    #[inline(always)]
    fn turn_back(&self) {
        let _always_zero = turn_back();
    }

    #[inline(always)]
    fn check_limit(&self, position: usize, charges: Charges, before: Reason) -> CheckResult {
        CheckResult(check_limit(position as u32, charges.word(), before as u32))
    }

    #[inline(always)]
    fn charge_all(&self, checked: CheckResult) -> (Reason, bool) {
        match charge_own(checked.0) {
            code if code & CHARGES_GROUPS != 0 => (maps::reason(charge_groups(code & !CHARGES_GROUPS)), true),
            code => (maps::reason(code), false),
        }
    }

    #[inline(always)]
    fn charge_groups(&self, own: Reason) -> Reason {
        maps::reason(charge_groups(own as u32))
    }

    #[inline(always)]
    fn charge_group(&self, position: usize) -> Reason {
        maps::reason(charge_group(position as u32))
    }

    #[inline(always)]
    fn refund_before(&self, refused_by: usize) {
        let _always_zero = refund_before(refused_by as u32);
    }

    #[inline(always)]
    fn charge_each(&self) -> Option<CheckResult> {
        match charge_each() {
            NOT_AT_ONCE => None,
            result => Some(CheckResult(result)),
        }
    }

    #[inline(always)]
    fn charge_one(&self, at: At, amount: u64) -> Charged {
        Charged(charge_one(at.0, amount))
    }

    #[inline(always)]
    fn tell_each(&self, told: u32) {
        let _always_zero = tell_each(told);
    }

    #[inline(always)]
    fn charge_shadows(&self) {
        let _always_zero = charge_shadows();
    }

    #[inline(always)]
    fn charge(&self, at: At, amount: u64) -> Charged {
        Charged(charge(at.0, amount))
    }

    #[inline(always)]
    fn charge_at_once(&self, at: At, amount: u64) -> Charged {
        hold::charge_at_once(*self, at, amount)
    }

    #[inline(always)]
    fn remember(&self, at: At, amount: u64) -> Charged {
        Charged(if self.is_ordered() { remember_as_ordered(at.0, amount) } else { remember(at.0, amount) })
    }

    #[inline(always)]
    fn refund(&self, at: At, amount: u64, bucket: u64) {
        let _always_zero = refund(at.0, amount, bucket);
    }

    #[inline(always)]
    fn cache_refusal(&self, at: At, is_counted: bool) {
        let _always_zero = cache_refusal(at.0, is_counted as u32);
    }

    #[inline(always)]
    fn suspect(&self, at: At) {
        let _always_zero = suspect(at.0);
    }

    #[inline(always)]
    fn tell(&self, how: u32, until_ns: u64, step: u32) {
        if maps::sends_events() {
            let _always_zero = tell(how, until_ns, step);
        }
    }

    #[inline(always)]
    fn tell_step(&self, at: At, bucket: u64) {
        let how = if self.is_ordered() { at.0 | by::ORDER } else { at.0 };
        let _always_zero = tell_step(how, bucket);
    }

    #[inline(always)]
    fn cache_ban(&self) {
        let _always_zero = cache_ban();
    }

    #[inline(always)]
    fn ban_source(&self, how: u32) {
        let _always_zero = ban_source(how);
    }
}

/// Defines each step as a global function. The verifier walks it once, however many callers it has, and its stack is
/// free again when the next step runs.
macro_rules! steps {
    ($(
        $(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $result:ty,
        or $otherwise:expr, $held:ident of $work:expr => $step:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> $result {
                let Some($held) = Held::of($work) else { return $otherwise };
                $step
            }
        )*
    };
}

/// Flag above all reason codes in the result of `charge_own`: the source's own limits admit the packet, and the group
/// limits are next. It is set here because the caller's stack has no room left to read the rule between the two steps.
const CHARGES_GROUPS: u32 = 0x100;

/// Result of `charge_each` that is no [`CheckResult`]: some limit did not admit the packet in one try.
const NOT_AT_ONCE: u32 = 0x100;

/// Result of a step without a result.
const DONE: u32 = 0;

steps! {
    /// Runs [`hold::hold_plain`]. Returns a reason code.
    hold_plain() -> u32, or Reason::InternalError as u32, held of Work::PACKET => hold::hold_plain(held) as u32;
    /// Runs [`hold::is_banned`].
    is_banned() -> u32, or 0, held of Work::PACKET => hold::is_banned(held) as u32;
    /// Runs [`hold::record_admitted`].
    record_admitted() -> u32, or DONE, held of Work::PACKET => { hold::record_admitted(held); DONE };
    /// Runs [`hold::check_limits`] on the word of a [`Charges`]. Returns a [`CheckResult`].
    check_limits(charges: u64) -> u32, or CheckResult::of(Reason::InternalError).0, held of Work::PACKET =>
        hold::check_limits(held, Charges::from_word(charges)).0;
    /// Runs [`hold::check_limit`] on a limit's position, the word of a [`Charges`] and a reason code. Returns a
    /// [`CheckResult`].
    check_limit(position: u32, charges: u64, before: u32) -> u32, or CheckResult::of(Reason::InternalError).0,
        held of Work::PACKET =>
            hold::check_limit(held, position as usize, Charges::from_word(charges), maps::reason(before)).0;
    /// Runs [`hold::charge_each`]. Returns a [`CheckResult`], or [`NOT_AT_ONCE`].
    charge_each() -> u32, or NOT_AT_ONCE, held of Work::PACKET =>
        hold::charge_each(held).map_or(NOT_AT_ONCE, |result| result.0);
    /// Runs [`hold::charge_one`] on an [`At`]. Returns a [`Charged`].
    charge_one(at: u32, amount: u64) -> u64, or Charged::CONTENDED.0, held of Work::PACKET =>
        hold::charge_one(held, At(at), amount).0;
    /// Runs [`hold::tell_each`].
    tell_each(told: u32) -> u32, or DONE, held of Work::PACKET => { hold::tell_each(held, told); DONE };
    /// Runs [`hold::charge_own`] on a [`CheckResult`]. Returns a reason code, perhaps with [`CHARGES_GROUPS`].
    charge_own(checked: u32) -> u32, or Reason::InternalError as u32, held of Work::PACKET => {
        let checked = CheckResult(checked);
        let reason = hold::charge_own(held, checked);
        let is_charged = checked == CheckResult::CHARGED;
        let goes_on = reason.action() == Action::Pass && !is_charged && held.rule.has_groups();
        reason as u32 | if goes_on { CHARGES_GROUPS } else { 0 }
    };
    /// Runs [`hold::charge_groups`] on a reason code. Returns a reason code.
    charge_groups(own: u32) -> u32, or Reason::InternalError as u32, held of Work::PACKET =>
        hold::charge_groups(held, maps::reason(own)) as u32;
    /// Runs [`hold::charge_group`] on a limit's position. Returns a reason code.
    charge_group(position: u32) -> u32, or Reason::InternalError as u32, held of Work::PACKET =>
        hold::charge_group(held, position as usize) as u32;
    /// Runs [`State::turn_to`] for the group of the rule's limit at this position.
    turn_to(position: u32) -> u32, or DONE, held of Work::PACKET => {
        let at = position as usize & (LIMITS_MAX - 1);
        held.deferred().of.turn_to(&held.rule.groups[at], held.rule.limits[at].slot);
        DONE
    };
    /// Runs [`State::turn_back`].
    turn_back() -> u32, or DONE, held of Work::PACKET => { held.deferred().of.turn_back(); DONE };
    /// Runs [`hold::refund_before`].
    refund_before(refused_by: u32) -> u32, or DONE, held of Work::PACKET =>
        { hold::refund_before(held, refused_by as usize); DONE };
    /// Runs [`hold::charge_shadows`].
    charge_shadows() -> u32, or DONE, held of Work::PACKET => { hold::charge_shadows(held); DONE };
    /// Runs [`hold::charge_with_retry`] on an [`At`]. Returns a [`Charged`].
    charge(at: u32, amount: u64) -> u64, or Charged::NOT_REMEMBERED.0, held of Work::PACKET =>
        hold::charge_with_retry(held, At(at), amount).0;
    /// Runs [`hold::remember`] on an [`At`]. Returns a [`Charged`].
    remember(at: u32, amount: u64) -> u64, or Charged::NOT_REMEMBERED.0, held of Work::PACKET =>
        hold::remember(held, At(at), amount).0;
    /// Runs [`hold::refund`] on an [`At`].
    refund(at: u32, amount: u64, bucket: u64) -> u32, or DONE, held of Work::PACKET =>
        { hold::refund(held, At(at), amount, bucket); DONE };
    /// Runs [`hold::cache_refusal`] on an [`At`].
    cache_refusal(at: u32, is_counted: u32) -> u32, or DONE, held of Work::PACKET =>
        { hold::cache_refusal(held, At(at), is_counted != 0); DONE };
    /// Runs [`hold::suspect`] on an [`At`].
    suspect(at: u32) -> u32, or DONE, held of Work::PACKET => { hold::suspect(held, At(at)); DONE };
    /// Runs [`State::keep_refused`]. The first refusal creates the window that counts repeated requests; each repeated
    /// one is counted there.
    keep_refused(slot: u32) -> u32, or DONE, held of Work::PACKET => {
        let (is_repeated, repeated) = (conversations::note_refused() != 0, repeated_of_verified(slot));
        match held.deferred().of.window(repeated) {
            Some(window) if is_repeated => window.add_refused(1),
            Some(_) => {}
            None => {
                let _whatever = held.deferred().of.insert(Work::PACKET, repeated, |cells| {
                    *cells = [0; CELLS];
                    true
                });
            }
        }
        DONE
    };
    /// Returns the number of requests that this many turns of the source are charged as, at most 65 535.
    multiplied(turns: u32) -> u32, or turns, held of Work::PACKET => {
        let of = &held.deferred().of;
        let each = maps::multiplicity(of, held.rule, held.config.places, held.deferred().now());
        (turns * each).min(u16::MAX as u32)
    };
    /// Returns the number of requests that a QUIC datagram is charged as by a rule with an access log. `guessed` is the
    /// number that the datagram's size suggests.
    of_quic(guessed: u32, opens: u32) -> u32, or guessed, held of Work::PACKET => {
        let of_log = maps::is_log_read(held.rule, held.deferred().now());
        let turns = if of_log { hold::turns_by_log(held, opens) } else { guessed };
        if turns == 0 { 0 } else { multiplied(turns) }
    };
    /// Returns 1 if log lines have charged the source beyond a limit: see [`hold::is_beyond_by_log`].
    is_beyond_by_log() -> u32, or 0, held of Work::PACKET => {
        let of = &held.deferred().of;
        let each = maps::multiplicity(of, held.rule, held.config.places, held.deferred().now());
        hold::is_beyond_by_log(held, each > 1) as u32
    };
    /// Counts an admitted request as one that was refused before: it is the client's retry of the refused request.
    count_repeated() -> u32, or DONE, held of Work::PACKET => {
        if held.charges().requests != 0 && held.charges().has(is::ESTABLISHED) {
            for position in 0..one_register(LIMITS_MAX) {
                let limit = &held.rule.limits[position & (LIMITS_MAX - 1)];
                if position < held.rule.own_len as usize
                    && limit.unit == Unit::Requests as u8
                    && let Some(window) = held.deferred().of.window(Side::Repeated.slot(limit.slot))
                {
                    window.add_refused(1);
                }
            }
        }
        DONE
    };
    /// Runs [`hold::cache_ban`].
    cache_ban() -> u32, or DONE, held of Work::PACKET => { hold::cache_ban(held); DONE };
    /// Runs [`hold::ban_source`].
    ban_source(how: u32) -> u32, or DONE, held of Work::PACKET => { hold::ban_source(held, how); DONE };
    /// Runs [`hold::tell`].
    tell(how: u32, until_ns: u64, step: u32) -> u32, or DONE, held of Work::of(how) =>
        { hold::tell(held, how, until_ns, step); DONE };
    /// Runs [`hold::tell_step`].
    tell_step(how: u32, bucket: u64) -> u32, or DONE, held of Work::of(how) =>
        { hold::tell_step(held, At(how & 0xff), bucket); DONE };
    /// Runs [`hold::charge_with_retry`] for an order. Returns a [`Charged`].
    charge_as_ordered(at: u32, amount: u64) -> u64, or Charged::NOT_REMEMBERED.0, held of Work::ORDER =>
        hold::charge_with_retry(held, At(at), amount).0;
    /// Runs [`hold::remember`] for an order. Returns a [`Charged`].
    remember_as_ordered(at: u32, amount: u64) -> u64, or Charged::NOT_REMEMBERED.0, held of Work::ORDER =>
        hold::remember(held, At(at), amount).0;
    /// Runs [`hold::ban_source`] for an order.
    ban_as_ordered(how: u32) -> u32, or DONE, held of Work::ORDER => { hold::ban_source(held, how); DONE };
    /// Runs [`hold::write_others`] for the window on the side with this code. Returns 1 if the amount was written.
    write_others(units: u64, bucket: u64, side: u32) -> u32, or 0, held of Work::ORDER =>
        hold::write_others(held, At::new(0, Side::from_code(side)), BucketIndex(bucket), units) as u32;
    /// Runs [`hold::verify`].
    verify() -> u32, or DONE, held of Work::PACKET => { hold::verify(held); DONE };
}
