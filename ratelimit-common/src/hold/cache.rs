//! Selection of the refusals that are cached, and of suspect sources.

use super::charges::refusal;
use super::groups::{turn_back, turn_to};
use super::{At, LITTLE, State, Window};
use crate::layout::{LOGGED_REQUESTS, Unit};
use crate::verification::Side;

/// Caches the refusal of the source if it lasts, after counting it unless the charge has (`is_counted`). A group's
/// refusal is cached for the source, and counted in the group's window.
#[inline(always)]
pub fn cache_refusal<S: State>(state: S, at: At, is_counted: bool) {
    turn_to(state, at);
    cache_refusal_of(state, at, is_counted);
    turn_back(state, at);
}

#[inline(always)]
fn cache_refusal_of<S: State>(state: S, at: At, is_counted: bool) {
    let (rule, side) = (state.rule(), at.side());
    let Some(limit) = at.limit(rule) else { return };
    let Some(window) = state.window(at.slot(limit)) else { return };
    let bucket = state.coarse().bucket(limit.bucket_ns);
    if !is_counted && window.count_refused(bucket) {
        state.tell(at.0, 0, 0);
    }
    // Charges that fill a window make its source known, but the charge that opens the window does not.
    if window.refusals().count() <= LITTLE {
        state.make_known();
    }
    if limit.unit == LOGGED_REQUESTS {
        state.keep_refused(at.slot(limit));
    } else if limit.unit == Unit::Requests as u8 && !side.is_guard() {
        state.keep_refused(at.slot(limit));
        if rule.refuse_all == 0 && rule.shadows_len == 0 && limit.is_gcra == 0 {
            let full_until = window.full_until(limit, side, bucket, 1);
            let until_ns = if full_until == bucket { 0 } else { full_until.0.wrapping_mul(limit.bucket_ns) };
            state.cache_connection_drop(at.slot(limit), until_ns, side == Side::Unverified);
        }
    } else if state.is_refusal_cacheable(limit) {
        let full_until = window.full_until(limit, side, bucket, state.least(limit));
        if full_until != bucket {
            let until_ns = full_until.0.wrapping_mul(limit.bucket_ns);
            state.cache_drop(at.slot(limit), until_ns, refusal(side), side == Side::Unverified);
        }
    }
}

/// Caches that a source has used up its connection attempts. From then on, each connection that it completes is
/// counted. The entry drops nothing, and attempts pass, since they can be forged.
#[inline(always)]
pub fn suspect<S: State>(state: S, at: At) {
    turn_to(state, at);
    suspect_of(state, at);
    turn_back(state, at);
}

#[inline(always)]
fn suspect_of<S: State>(state: S, at: At) {
    let Some(limit) = at.limit(state.rule()) else { return };
    let Some(window) = state.window(at.slot(limit)) else { return };
    if limit.is_gcra == 0 && state.may_cache_suspect() {
        let bucket = state.coarse().bucket(limit.bucket_ns);
        let full_until = window.full_until(limit, Side::Attempts, bucket, 1);
        state.cache_suspect(at.slot(limit), full_until.0.wrapping_mul(limit.bucket_ns));
    }
}
