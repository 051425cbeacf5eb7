//! Several limits, each charged as a plain rule's one limit is: without a look at all of them before.

use super::charges::{At, CheckResult, is};
use super::groups::{turn_back, turn_to};
use super::{State, decides_by_limits, is_plain, limits, news};
use crate::layout::{LIMITS_MAX, Rule};
use crate::verdict::Reason;

/// Whether each of its limits may be charged without a look at all of them before: they alone decide, and none is a
/// leaky bucket.
pub fn is_of_limits_alone(rule: &Rule) -> bool {
    let is_gcra = rule.limits[..LIMITS_MAX].iter().take(rule.limits_len.into()).any(|limit| limit.is_gcra != 0);
    !is_plain(rule) && !is_gcra && decides_by_limits(rule)
}

/// Charges each limit in one try, where they alone decide. None where one does not admit it at once: then nothing is
/// charged, and a look at all of them says what is so.
#[inline(always)]
pub fn charge_each<S: State>(state: S) -> Option<CheckResult> {
    let rule = state.rule();
    if rule.is_of_limits_alone == 0 || state.gates_new_sources() && !state.charges().has(is::ASKED) {
        return None;
    }
    let mut result = CheckResult::of(Reason::NotCounted);
    for (position, limit) in limits::<S>(rule, rule.limits_len.into()) {
        let (amount, side) = state.charged_by(state.charges(), limit);
        if amount == 0 {
            continue;
        }
        let bucket = state.charge_one(At::of(rule, position, side), amount);
        if bucket == 0 {
            state.refund_before(position);
            return None;
        }
        state.keep_charged(position, bucket);
        result = CheckResult::CHARGED;
    }
    Some(result)
}

/// Charges one of them; the bucket, or 0 where it does not admit it at once.
#[inline(always)]
pub fn charge_one<S: State>(state: S, at: At, amount: u64) -> u64 {
    turn_to(state, at);
    let charged = state.charge_at_once(at, amount);
    let bucket = charged.bucket();
    if charged.has_news()
        && let Some(bucket) = bucket
    {
        news(state, at, charged, bucket);
    }
    turn_back(state, at);
    bucket.unwrap_or(0)
}
