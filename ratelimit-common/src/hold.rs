//! Enforcement of a rule's limits on a source: checking, charging, refusing, banning, and counting for shadow limits.
//! The rule and the packet's charges are determined before.
//!
//! The code is generic over a [`State`]. In the kernel, a state is maps, and a method calls a separate function where
//! the verifier needs one. Elsewhere, it is memory.

use crate::gcra;
use crate::layout::{self, LIMITS_MAX, LOGGED_REQUESTS, Rule, SHADOWS_MAX, Unit};
use crate::time::{BucketIndex, Nanos, SECOND_NS};
use crate::verdict::{Action, Reason};
use crate::verification::{EvidenceNeeds, Side};
use crate::window::{self, Admitted, Cells, Charge};
use charges::refusal;
use groups::{turn_back, turn_to};

mod alone;
mod ban;
mod cache;
mod charges;
mod each;
mod groups;
mod logged;
mod state;
mod tell;
mod verify;

pub use alone::Alone;
pub use ban::{ban_source, cache_ban, is_banned, record_admitted};
pub use cache::{cache_refusal, suspect};
pub use charges::{At, Charged, Charges, CheckResult, by, is};
pub use each::{charge_each, charge_one, is_of_limits_alone, tell_each};
pub use groups::{charge_group, charge_groups};
pub use logged::{is_beyond_by_log, turns_by_log};
pub use state::{Banned, GateBypass, Inserted, State, Window};
pub use tell::{tell, tell_step, window_used};
pub use verify::verify;

/// Returns whether a rule is plain: its one limit alone decides, so it is charged without a check before.
pub const fn is_plain(rule: &Rule) -> bool {
    rule.limits_len == 1 && !rule.has_groups() && decides_by_limits(rule)
}

/// Returns whether a rule's limits alone decide: it has no shadow limits, no bans, no `refuse_all` and no access log.
const fn decides_by_limits(rule: &Rule) -> bool {
    rule.shadows_len == 0 && rule.refuse_all == 0 && rule.bans.steps_len == 0 && !has_logged(rule)
}

/// Returns whether some limits of the rule are charged only from an access log.
const fn has_logged(rule: &Rule) -> bool {
    let mut position = 0;
    while position < LIMITS_MAX {
        if rule.limits[position].unit == LOGGED_REQUESTS {
            return true;
        }
        position += 1;
    }
    false
}

/// Returns whether the rule ignores segments without payload that open no connection. The exception is a suspect source
/// under a rule with a guard.
pub fn ignores_acknowledgements(rule: &Rule) -> bool {
    let counts_none =
        |limit: &layout::Limit| [Unit::Requests as u8, Unit::Connections as u8, LOGGED_REQUESTS].contains(&limit.unit);
    let (held, beside) = rule.limits.split_at(LIMITS_MAX);
    let mut limits = held.iter().take(rule.limits_len.into()).chain(beside.iter().take(rule.shadows_len.into()));
    rule.refuse_all == 0
        && rule.bans.steps_len == 0
        && !rule.evidence.any(EvidenceNeeds::SEGMENTS.or(EvidenceNeeds::CONNECTIONS).or(EvidenceNeeds::PAGES))
        && limits.all(counts_none)
}

/// Enforces the rule's limits on the source of the packet, and returns the verdict.
#[inline(always)]
pub fn hold<S: State>(state: S) -> Reason {
    let (rule, charges) = (state.rule(), state.charges());
    if rule.is_plain == 0 {
        return hold_all(state);
    }
    let (amount, side) = state.charged_by(charges, &rule.limits[0]);
    if amount == 0 {
        return Reason::NotCounted;
    }
    if charges.has(is::ASKED) || !state.gates_new_sources() {
        let charged = state.charge_at_once(At::new(0, side), amount);
        if let Some(bucket) = charged.bucket() {
            if charged.has_news() {
                news(state, At::new(0, side), charged, bucket);
            }
            return Reason::WithinLimit;
        }
    }
    state.hold_plain()
}

/// Charges the one limit of a plain rule, which counts the packet. The result of the charge is the verdict.
#[inline(always)]
pub fn hold_plain<S: State>(state: S) -> Reason {
    let (limit, charges) = (&state.rule().limits[0], state.charges());
    let (amount, side) = state.charged_by(charges, limit);
    if let Some(reason) = gate(state, bypass(limit.amount_on(side), amount, charges)) {
        return reason;
    }
    let at = At::new(0, side);
    match of_charge(state.charge(at, amount), side) {
        None => Reason::WithinLimit,
        Some(Reason::OverLimit | Reason::Guard) if side == Side::Attempts => {
            state.suspect(at);
            Reason::WithinLimit
        }
        Some(reason @ (Reason::OverLimit | Reason::Guard)) => {
            state.cache_refusal(at, true);
            reason
        }
        Some(reason) => reason,
    }
}

/// Checks all limits before any of them is charged.
#[inline(always)]
fn hold_all<S: State>(state: S) -> Reason {
    let (rule, charges) = (state.rule(), state.charges());
    let mut result = CheckResult::of(Reason::NotCounted);
    if rule.bans.steps_len != 0 && state.is_banned() {
        result = CheckResult::of(Reason::Banned);
    }
    // If everything of a source over its limit is refused, that includes unverified traffic.
    if result.is(Reason::NotCounted) && rule.refuse_all != 0 && !charges.has(is::VERIFIED) {
        result = state.check_limits(Charges::GLANCE);
    }
    if result.is(Reason::NotCounted) {
        result = state.check_limits(charges);
    }
    let mut reason = result.reason();
    if result.is(Reason::Banned) {
        state.cache_ban();
    } else if let Some(at) = state.suspected() {
        state.suspect(at);
    }
    let mut bans = rule.bans.steps_len != 0 && !rule.is_dry_run();
    if result.is(Reason::WithinLimit) {
        // If bans need verified traffic, only such traffic shows that the window which banned is within the limit
        // again.
        let is_admitted = !rule.evidence.any(EvidenceNeeds::BANS)
            || rule.evidence.any(EvidenceNeeds::CONNECTIONS_ALONE)
            || charges.has(is::ESTABLISHED);
        if rule.bans.steps_len != 0 && is_admitted {
            state.record_admitted();
        }
        // A limit that another CPU has filled is unknown here. If bans need verified traffic, the next packet bans.
        bans &= !rule.evidence.any(EvidenceNeeds::BANS);
        let is_by_group;
        (reason, is_by_group) = state.charge_all(result);
        bans &= !is_by_group;
    } else if result.is(Reason::OverLimit) || result.is(Reason::Guard) {
        state.cache_refusal(result.at(), false);
    }
    if bans && matches!(reason, Reason::OverLimit) {
        let established = if charges.has(is::ESTABLISHED) { by::ESTABLISHED } else { 0 };
        state.ban_source(result.at().0 | established);
    }
    // Shadow limits count whatever the limits decide: a wider limit would have passed the packet.
    if rule.shadows_len != 0 && !matches!(reason, Reason::Banned) {
        if result.is(Reason::NotCounted) {
            // Packets that only shadow limits count are sampled too. Another packet's sample does not admit them.
            let _whatever = new_source_gate(state, GateBypass::None);
        }
        state.charge_shadows();
    }
    reason
}

/// Returns the first `count` limits of the rule, with their positions.
#[inline(always)]
fn limits<S: State>(rule: &Rule, count: usize) -> impl Iterator<Item = (usize, &layout::Limit)> {
    let most = S::Window::unknown(LIMITS_MAX);
    (0..most)
        .take_while(move |&position| position < count)
        .map(|position| (position, &rule.limits[position & (LIMITS_MAX - 1)]))
}

/// Checks whether the packet is within every limit that counts it, and changes nothing. Another CPU may overtake
/// [`Reason::WithinLimit`]; any other result stands. If the limits can be charged at once, charges them all and returns
/// [`CheckResult::CHARGED`]. Groups come last, here and in [`charge_all`].
///
/// The coarse clock is used. It is never ahead, so a refused packet is over the limit, or was within the last tick.
#[inline(always)]
pub fn check_limits<S: State>(state: S, charges: Charges) -> CheckResult {
    let rule = state.rule();
    if let Some(result) = state.charge_each() {
        return result;
    }
    let mut result = CheckResult::of(Reason::NotCounted);
    for (position, _) in limits::<S>(rule, rule.limits_len.into()) {
        // A source that is sampled out is checked against its groups only.
        if result.is(Reason::NotAdmitted) && position < rule.own_len.into() {
            continue;
        }
        result = state.check_limit(position, charges, result.reason());
        let goes_on = result.is(Reason::NotAdmitted) && rule.has_groups();
        if !result.is(Reason::NotCounted) && !result.is(Reason::WithinLimit) && !goes_on {
            break;
        }
    }
    // A source that is sampled out gets no windows. Its groups have windows, and are charged for its packets too.
    if result.is(Reason::NotAdmitted) && rule.has_groups() { CheckResult::of(Reason::WithinLimit) } else { result }
}

/// Checks the limit at this position like [`check_limits`]. `before` is the result of the limits before it.
#[inline(always)]
pub fn check_limit<S: State>(state: S, position: usize, charges: Charges, before: Reason) -> CheckResult {
    let rule = state.rule();
    let limit = &rule.limits[position & (LIMITS_MAX - 1)];
    let (amount, side) = state.charged_by(charges, limit);
    // A glance skips connection limits, whose one window counts all traffic: they are checked with the packet's own
    // charges, or the wrong limit would refuse. Charges from the log refuse any of the source's requests.
    let is_logged = limit.unit == LOGGED_REQUESTS && charges.requests != 0;
    if amount == 0 && rule.refuse_all == 0 && !is_logged
        || charges.has(is::GLANCE) && limit.unit == Unit::Connections as u8
    {
        return CheckResult::of(before);
    }
    let at = At::of(rule, position, side);
    turn_to(state, at);
    let result = check_window(state, limit, (at, amount), charges, before);
    turn_back(state, at);
    result
}

#[inline(always)]
fn check_window<S: State>(
    state: S,
    limit: &layout::Limit,
    (at, amount): (At, u64),
    charges: Charges,
    before: Reason,
) -> CheckResult {
    let side = at.side();
    // If no limit counts the source itself, the group is the new source.
    if amount != 0
        && matches!(before, Reason::NotCounted)
        && let Some(reason) = gate(state, bypass(limit.amount_on(side), amount, charges))
    {
        return CheckResult::of(reason);
    }
    if let Some(window) = state.window(at.slot(limit))
        && !is_within_limit(state, window, limit, side, amount)
    {
        if side != Side::Attempts {
            return CheckResult::refused(at);
        }
        state.keep_suspected(at);
    }
    CheckResult::of(if amount == 0 || matches!(before, Reason::NotAdmitted) { before } else { Reason::WithinLimit })
}

/// Asks the gate for new sources. Returns the reason if the packet is sampled out or refused.
#[inline(always)]
fn new_source_gate<S: State>(state: S, bypass: GateBypass) -> Option<Reason> {
    if state.gates_new_sources() { state.new_source_gate(bypass) } else { None }
}

/// Asks [`new_source_gate`] about a packet that charges a limit. If the gate would drop a datagram that is no request,
/// it passes instead and opens no window.
#[inline(always)]
fn gate<S: State>(state: S, bypass: GateBypass) -> Option<Reason> {
    let reason = new_source_gate(state, bypass)?;
    let is_no_request = state.charges().guarded == Side::Datagrams as u8;
    Some(if is_no_request && matches!(reason.action(), Action::Drop) { Reason::NotAdmitted } else { reason })
}

/// Returns why the packet bypasses the gate for new sources. Either the gate has seen it, or it belongs to an
/// established connection, which is no part of a flood. Or it charges more than the limit, and so opens no window.
#[inline(always)]
const fn bypass(most: u64, amount: u64, charges: Charges) -> GateBypass {
    if charges.has(is::ASKED) {
        GateBypass::Asked
    } else if charges.has(is::ESTABLISHED) || amount > most {
        GateBypass::VerifiedOrTooLarge
    } else {
        GateBypass::None
    }
}

/// Returns whether `amount` more is within the limit of this window.
#[inline(always)]
fn is_within_limit<S: State>(state: S, window: S::Window, limit: &layout::Limit, side: Side, amount: u64) -> bool {
    let now = time_to_look_at(state, limit);
    if state.rule().refuse_all == 0 {
        window.is_within_limit(limit, side, now, amount)
    } else {
        window.passes_refuse_all(limit, side, now, amount)
    }
}

/// Returns the time for a check. A leaky bucket needs the precise clock: by the coarse one, a charge since the last
/// tick would lie in the future and make the bucket seem too full.
#[inline(always)]
fn time_to_look_at<S: State>(state: S, limit: &layout::Limit) -> Nanos {
    if limit.is_gcra == 0 { state.coarse() } else { state.precise() }
}

/// Charges every limit of the rule that counts the packet, unless [`check_limits`] has. If a limit refuses after all,
/// because another CPU was faster, the charges to the others are refunded. Groups are charged only if the source's own
/// limits admit the packet. Returns the reason, and whether the groups decided.
#[inline(always)]
pub fn charge_all<S: State>(state: S, checked: CheckResult) -> (Reason, bool) {
    let reason = state.charge_own(checked);
    let goes_on = matches!(reason.action(), Action::Pass) && checked != CheckResult::CHARGED;
    if goes_on && state.rule().has_groups() { (state.charge_groups(reason), true) } else { (reason, false) }
}

/// Charges the limits of the source itself, for [`charge_all`].
#[inline(always)]
pub fn charge_own<S: State>(state: S, checked: CheckResult) -> Reason {
    if checked == CheckResult::CHARGED {
        return Reason::WithinLimit;
    }
    let rule = state.rule();
    let (mut reason, mut refused_by) = (Reason::WithinLimit, 0);
    for (position, limit) in limits::<S>(rule, rule.own_len.into()) {
        let (amount, side) = state.charged_by(state.charges(), limit);
        if amount == 0 {
            continue;
        }
        let charged = state.charge(At::new(position, side), amount);
        // Bucket 0 stands for none.
        state.keep_charged(position, charged.bucket().unwrap_or(0));
        reason = match of_charge(charged, side) {
            Some(Reason::OverLimit | Reason::Guard) if side == Side::Attempts => continue,
            Some(reason) => reason,
            None => continue,
        };
        if let Reason::StateFull | Reason::NotAdmitted = reason {
            continue;
        }
        refused_by = position;
        break;
    }
    if let Action::Drop = reason.action() {
        state.refund_before(refused_by);
    }
    reason
}

/// Refunds the charges to the rule's limits before this position.
#[inline(always)]
pub fn refund_before<S: State>(state: S, refused_by: usize) {
    let rule = state.rule();
    for (position, limit) in limits::<S>(rule, refused_by) {
        let (amount, side) = state.charged_by(state.charges(), limit);
        let bucket = state.charged(position);
        if amount != 0 && bucket != 0 {
            state.refund(At::of(rule, position, side), amount, bucket);
        }
    }
}

/// Charges the rule's shadow limits, each independently.
#[inline(always)]
pub fn charge_shadows<S: State>(state: S) {
    let rule = state.rule();
    for shadow in 0..S::Window::unknown(SHADOWS_MAX) {
        if shadow >= rule.shadows_len as usize {
            break;
        }
        let position = LIMITS_MAX + (shadow & (SHADOWS_MAX - 1));
        let limit = &rule.limits[position];
        let (amount, side) = state.charged_by(state.charges(), limit);
        if amount != 0 && !side.is_guard() {
            let _whatever = state.charge(At::new(position, Side::Unverified), amount);
        }
    }
}

/// Returns the reason for a charge that was not admitted; None if it was.
#[inline(always)]
const fn of_charge(charged: Charged, side: Side) -> Option<Reason> {
    if charged.bucket().is_some() {
        return None;
    }
    Some(match charged {
        Charged::REFUSED => refusal(side),
        Charged::NOT_ADMITTED => Reason::NotAdmitted,
        Charged::NEW_SOURCE_BUDGET => Reason::NewSourceBudget,
        Charged::CONTENDED => Reason::Contended,
        _ => Reason::StateFull,
    })
}

/// Returns the number of retries for opening, settling and charging a window. It allows all tries of a charge, and two
/// more for a bucket that turns or a source that is evicted.
const fn retries_max(tries: usize) -> usize {
    window::TRIES_MAX / tries + 2
}

/// Charges one limit, opens or settles its window if necessary, and retries if another CPU was faster.
#[inline(always)]
pub fn charge_with_retry<S: State>(state: S, at: At, amount: u64) -> Charged {
    let Some(limit) = at.limit(state.rule()) else { return Charged::NOT_REMEMBERED };
    for _ in 0..retries_max(<S::Window as Cells>::TRIES) {
        let charged = match state.window(at.slot(limit)) {
            Some(window) => {
                let charged = window.charge(limit, at.side(), state.precise(), amount);
                // The second charge of all settles, and so does the first one of each later bucket. The filter keeps a
                // source for a generation, which is longer than a charge to the bucket counts.
                if let Some(bucket) = charged.to_settle() {
                    window.settle_before(limit, BucketIndex(bucket));
                    state.make_known();
                    continue;
                }
                if charged.has_news()
                    && let Some(bucket) = charged.bucket()
                {
                    news(state, at, charged, bucket);
                }
                if charged == Charged::FIRST_REFUSED {
                    state.tell(at.0, 0, 0);
                    return Charged::REFUSED;
                }
                charged
            }
            None => {
                if let Some(charged) = state.refuses_insertion() {
                    return charged;
                }
                // Otherwise its next packet would count as one more new source, and the rule admits a limited number.
                if state.rule().new_sources != 0 {
                    state.make_known();
                }
                let charged = state.remember(at, amount);
                if charged.is_step()
                    && let Some(bucket) = charged.bucket()
                {
                    state.tell_step(at, bucket);
                }
                charged
            }
        };
        match charged {
            // Another CPU charged the window or opened it in between.
            Charged::NOT_KNOWN | Charged::CONTENDED => {}
            charged => return charged,
        }
    }
    Charged::CONTENDED
}

/// Does what has to follow a charge to this bucket: makes the source known, and tells other hosts.
#[inline(always)]
fn news<S: State>(state: S, at: At, charged: Charged, bucket: u64) {
    if charged.is_fresh() {
        // Repeated, since an insertion is lost if another CPU inserts at the same time.
        state.make_known();
    }
    if charged.is_step() {
        state.tell_step(at, bucket);
    }
}

/// Maximum lag of the coarse clock: a kernel may count ticks late, and corrects that after five of them.
const COARSE_LAG_NS: u64 = SECOND_NS / 4;

/// Charges an existing window in one try, by the coarse clock. Requires that the coarse and the precise clock are
/// surely in one bucket. Returns [`Charged::CONTENDED`] if the charge is not admitted; [`charge_with_retry`] then
/// decides.
#[inline(always)]
pub fn charge_at_once<S: State>(state: S, at: At, amount: u64) -> Charged {
    let Some(limit) = at.limit(state.rule()) else { return Charged::CONTENDED };
    let now = state.coarse();
    let bucket = now.bucket(limit.bucket_ns);
    let since_ns = now.0.wrapping_sub(bucket.0.wrapping_mul(limit.bucket_ns));
    if limit.is_gcra != 0 || since_ns.saturating_add(COARSE_LAG_NS) >= limit.bucket_ns {
        return Charged::CONTENDED;
    }
    let Some(window) = state.window_here(at.slot(limit)) else { return Charged::CONTENDED };
    match window::charge_once(&window, limit.arithmetic(at.side()), bucket, amount) {
        Charge::Admitted(charge) => admitted(limit, charge, amount),
        Charge::Refused | Charge::Contended | Charge::Unsettled(_) => Charged::CONTENDED,
    }
}

/// Factor of the charge up to which a bucket's count is fresh.
const LITTLE: u64 = 8;

/// Charges the window of one limit.
#[inline(always)]
pub fn charge_window<W: Window>(window: W, limit: &layout::Limit, side: Side, now: Nanos, amount: u64) -> Charged {
    let bucket = now.bucket(limit.bucket_ns);
    let charge = match limit.is_gcra {
        0 => window::charge(&window, limit.arithmetic(side), bucket, amount),
        _ => gcra::charge(&window, limit.rate(side), now, amount),
    };
    match charge {
        Charge::Admitted(charge) => admitted(limit, charge, amount),
        Charge::Refused => {
            if window.count_refused(bucket) {
                Charged::FIRST_REFUSED
            } else {
                Charged::REFUSED
            }
        }
        Charge::Contended => Charged::CONTENDED,
        Charge::Unsettled(bucket) => Charged::unsettled(bucket.0),
    }
}

/// Returns the result of a charge that was admitted.
#[inline(always)]
const fn admitted(limit: &layout::Limit, charge: Admitted, amount: u64) -> Charged {
    let is_little = charge.own <= amount.saturating_mul(LITTLE);
    Charged::to(charge.bucket.0, limit.is_gcra != 0 || is_little, charge.is_step)
}

/// Returns whether `amount` more is within the limit of one window.
#[inline(always)]
pub fn window_is_within_limit<W: Window>(
    window: W,
    limit: &layout::Limit,
    side: Side,
    now: Nanos,
    amount: u64,
) -> bool {
    match limit.is_gcra {
        0 => window::is_within_limit(&window, limit.arithmetic(side), now.bucket(limit.bucket_ns), amount),
        _ => gcra::is_within_limit(&window, limit.rate(side), now, amount),
    }
}

/// Returns whether a limit's window passes `amount`, under a rule that refuses everything of a source over its limit.
#[inline(always)]
pub fn window_passes_refuse_all<W: Window>(
    window: W,
    limit: &layout::Limit,
    side: Side,
    now: Nanos,
    amount: u64,
) -> bool {
    let (refusals, bucket) = (window.refusals(), now.bucket(limit.bucket_ns));
    let is_within = window.is_within_limit(limit, side, now, if amount == 0 { 1 } else { amount });
    match limit.is_gcra {
        0 => refusals.passes_refuse_all(amount, bucket, limit.full_buckets, is_within),
        // A leaky bucket frees at any time, so an amount within the limit passes.
        _ => amount == 0 && !refusals.is_within(bucket, 1) || is_within,
    }
}

/// Opens a window for the source with the first charge in it: one insertion, and no second lookup.
#[inline(always)]
pub fn remember<S: State>(state: S, at: At, amount: u64) -> Charged {
    let Some(limit) = at.limit(state.rule()) else { return Charged::NOT_REMEMBERED };
    let now = state.precise();
    let bucket = now.bucket(limit.bucket_ns);
    let inserted = state.insert(at.slot(limit), |cells| match limit.is_gcra {
        0 => window::open(cells, limit.arithmetic(at.side()), bucket, amount),
        _ => gcra::open(cells, limit.rate(at.side()), now, amount),
    });
    match inserted {
        Inserted::New => Charged::to(bucket.0, false, limit.is_gcra == 0 && limit.parts.is_step(0, amount)),
        Inserted::Existed => Charged::NOT_KNOWN,
        Inserted::Refused => Charged::NOT_REMEMBERED,
        // A charge over the limit of an empty window is not worth a window.
        Inserted::Nothing => Charged::REFUSED,
    }
}

/// Refunds a charge to one limit's window.
#[inline(always)]
pub fn refund<S: State>(state: S, at: At, amount: u64, bucket: u64) {
    let Some(limit) = at.limit(state.rule()) else { return };
    turn_to(state, at);
    if let Some(window) = state.window(at.slot(limit)) {
        match limit.is_gcra {
            0 => window::refund(&window, limit.arithmetic(at.side()), BucketIndex(bucket), amount),
            _ => gcra::refund(&window, limit.rate(at.side()), amount),
        }
    }
    turn_back(state, at);
}

/// Writes the amount that other hosts admitted of the source in a bucket, in units. Returns false if nothing was
/// written: the source has no window here, or the window no longer has that bucket.
#[inline(always)]
pub fn write_others<S: State>(state: S, at: At, bucket: BucketIndex, units: u64) -> bool {
    let Some(limit) = at.limit(state.rule()) else { return false };
    let Some(window) = state.window(at.slot(limit)) else { return false };
    let now = state.coarse().bucket(limit.bucket_ns);
    limit.is_gcra == 0 && window::write_others(&window, limit.arithmetic(at.side()), now, bucket, units)
}

#[cfg(test)]
mod tests;
