//! Charging of several limits, each like the one limit of a plain rule: without a check of all limits before.

use super::charges::{At, Charged, CheckResult, is};
use super::groups::{turn_back, turn_to};
use super::{State, decides_by_limits, is_plain, limits, news};
use crate::layout::{LIMITS_MAX, Rule};
use crate::verdict::Reason;

/// Returns whether each limit of the rule may be charged without a check of all limits before. Requires that the limits
/// alone decide, and that none is a leaky bucket.
pub fn is_of_limits_alone(rule: &Rule) -> bool {
    let is_gcra = rule.limits[..LIMITS_MAX].iter().take(rule.limits_len.into()).any(|limit| limit.is_gcra != 0);
    !is_plain(rule) && !is_gcra && decides_by_limits(rule)
}

/// Charges each limit in one try, if the limits alone decide. Returns None if a limit does not admit the packet at
/// once. Nothing is charged then, and a check of all limits decides.
#[inline(always)]
pub fn charge_each<S: State>(state: S) -> Option<CheckResult> {
    let rule = state.rule();
    if rule.is_of_limits_alone == 0 || state.gates_new_sources() && !state.charges().has(is::ASKED) {
        return None;
    }
    let mut result = CheckResult::of(Reason::NotCounted);
    let mut told = 0;
    for (position, limit) in limits::<S>(rule, rule.limits_len.into()) {
        let (amount, side) = state.charged_by(state.charges(), limit);
        if amount == 0 {
            continue;
        }
        let charged = state.charge_one(At::of(rule, position, side), amount);
        let Some(bucket) = charged.bucket() else {
            state.refund_before(position);
            return None;
        };
        state.keep_charged(position, bucket);
        if charged.has_news() {
            let fresh = if charged.is_fresh() { FRESH } else { 0 };
            let step = if charged.is_step() { STEP } else { 0 };
            told |= (fresh | step) << (position & (LIMITS_MAX - 1));
        }
        result = CheckResult::CHARGED;
    }
    if told != 0 {
        state.tell_each(told);
    }
    Some(result)
}

/// Bit for a fresh charge to the limit at position 0. The bits of further limits follow above.
const FRESH: u32 = 1;
/// Bit for a step of the limit at position 0. The bits of further limits follow above.
const STEP: u32 = 1 << LIMITS_MAX;

/// Charges the limit at this position in one try.
#[inline(always)]
pub fn charge_one<S: State>(state: S, at: At, amount: u64) -> Charged {
    turn_to(state, at);
    let charged = state.charge_at_once(at, amount);
    turn_back(state, at);
    charged
}

/// Does what has to follow the charges, after all of them are made. `told` has the `FRESH` and `STEP` bits of each
/// limit.
#[inline(always)]
pub fn tell_each<S: State>(state: S, told: u32) {
    let rule = state.rule();
    for (position, limit) in limits::<S>(rule, rule.limits_len.into()) {
        let of_limit = told >> (position & (LIMITS_MAX - 1));
        if of_limit & (FRESH | STEP) == 0 {
            continue;
        }
        let (_, side) = state.charged_by(state.charges(), limit);
        let (at, bucket) = (At::of(rule, position, side), state.charged(position));
        turn_to(state, at);
        news(state, at, Charged::to(bucket, of_limit & FRESH != 0, of_limit & STEP != 0), bucket);
        turn_back(state, at);
    }
}
