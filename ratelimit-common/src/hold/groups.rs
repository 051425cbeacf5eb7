//! Groups that contain the source: how they replace it, and how they are charged after the source's own limits admitted
//! the packet.

use super::{At, GateBypass, State, limits, new_source_gate, of_charge};
use crate::layout::LIMITS_MAX;
use crate::verdict::{Action, Reason};
use crate::verification::Side;

/// Replaces the source by the group, if the limit is a group's.
#[inline(always)]
pub(super) fn turn_to<S: State>(state: S, at: At) {
    if at.is_group() {
        state.turn_to(at.position());
    }
}

/// Restores the source after [`turn_to`].
#[inline(always)]
pub(super) fn turn_back<S: State>(state: S, at: At) {
    if at.is_group() {
        state.turn_back();
    }
}

/// Charges the group limits for [`super::charge_all`]. `own` is the reason for which the source's own limits pass the
/// packet.
#[inline(always)]
pub fn charge_groups<S: State>(state: S, own: Reason) -> Reason {
    let rule = state.rule();
    // If the source has passed the gate, its groups are not gated again.
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
