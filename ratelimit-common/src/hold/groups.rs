//! What contains the source: how it stands in its place, and charging it once the source's own limits have admitted the
//! packet.

use super::{At, GateBypass, State, limits, new_source_gate, of_charge};
use crate::layout::LIMITS_MAX;
use crate::verdict::{Action, Reason};
use crate::verification::Side;

/// Has the group stand in the place of the source, where the limit is of one.
#[inline(always)]
pub(super) fn turn_to<S: State>(state: S, at: At) {
    if at.is_group() {
        state.turn_to(at.position());
    }
}

/// Has the source stand there again.
#[inline(always)]
pub(super) fn turn_back<S: State>(state: S, at: At) {
    if at.is_group() {
        state.turn_back();
    }
}

/// [`super::charge_all`] of the limits that are of groups, of a packet that its source's own limits pass for this reason.
#[inline(always)]
pub fn charge_groups<S: State>(state: S, own: Reason) -> Reason {
    let rule = state.rule();
    // Where the source has passed the gate, a group is not gated for it again.
    if rule.own_len != 0 && matches!(own, Reason::WithinLimit) {
        let _whatever = new_source_gate(state, GateBypass::VerifiedOrTooLarge);
    }
    let mut reason = own;
    for (position, _) in limits::<S>(rule, rule.limits_len.into()) {
        if position < rule.own_len.into() {
            continue;
        }
        let charged = state.charge_group(position);
        if matches!(charged, Reason::WithinLimit) {
            continue;
        }
        reason = charged;
        if let Action::Drop = charged.action() {
            state.refund_before(position);
            break;
        }
    }
    reason
}

/// Charges the group of the limit at this position.
#[inline(always)]
pub fn charge_group<S: State>(state: S, position: usize) -> Reason {
    let rule = state.rule();
    let (amount, side) = state.charged_by(state.charges(), &rule.limits[position & (LIMITS_MAX - 1)]);
    if amount == 0 {
        return Reason::WithinLimit;
    }
    let (at, position, side) = state.told_by(At::of(rule, position, side), position, side);
    turn_to(state, at);
    let charged = state.charge(at, amount);
    turn_back(state, at);
    state.keep_charged(position, charged.bucket().unwrap_or(0));
    match of_charge(charged, side) {
        Some(Reason::OverLimit | Reason::Guard) if side == Side::Attempts => Reason::WithinLimit,
        Some(reason) => reason,
        None => Reason::WithinLimit,
    }
}
