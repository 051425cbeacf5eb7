//! Messages to the daemon: a source begins to be refused or banned, or has admissions that other hosts need to know.

use super::{At, State, Window};
use crate::events::Kind;
use crate::layout::{self, Event, LIMITS_MAX, Step};
use crate::time::Nanos;
use crate::verification::Side;
use crate::window;

/// Sends the event that this limit begins to refuse the source in this bucket. With an end and a step, sends the event
/// that a ban begins. `how` is that of [`ban_source`](super::ban_source).
#[inline(always)]
pub fn tell<S: State>(state: S, how: u32, until_ns: u64, step: u32) {
    let (rule, at, is_ban) = (state.rule(), At(how & 0xff), until_ns != 0);
    let Some(limit) = at.limit(rule) else { return };
    // Attempts pass, and missing evidence refuses no packet.
    if !is_ban && matches!(at.side(), Side::Attempts | Side::Evidence) {
        return;
    }
    let kind = if is_ban {
        Kind::Ban
    } else if rule.is_dry_run() || at.position() >= LIMITS_MAX || state.has_lapsed() {
        Kind::WouldRefuse
    } else {
        Kind::Refused
    };
    let now = state.coarse();
    state.send_event(kind, || Event {
        time_ns: now.0,
        rule: rule.name,
        used: state.window(at.slot(limit)).map_or(0, |window| window.used(limit, now)),
        until_ns,
        slot: limit.slot,
        step,
        kind: kind as u8,
        side: at.side_code(),
        ..Event::default()
    });
}

/// Sends a step to the daemon: this host has admitted one step more of the source. Does nothing for a side that the
/// hosts do not sum.
#[inline(always)]
pub fn tell_step<S: State>(state: S, at: At, bucket: u64) {
    let Some(limit) = at.limit(state.rule()) else { return };
    let side = at.side_code();
    if limit.told_sides >> side & 1 != 0 {
        state.send_step(Step { slot: limit.slot, side, bucket, ..Step::default() });
    }
}

/// Returns what one window holds: an amount, or for a leaky bucket the nanoseconds until it is empty.
#[inline(always)]
pub fn window_used<W: Window>(window: W, limit: &layout::Limit, now: Nanos) -> u64 {
    match limit.is_gcra {
        // The sum is independent of what the side admits.
        0 => window::used(&window, limit.arithmetic(Side::Unverified), now.bucket(limit.bucket_ns)),
        _ => window.load(0).saturating_sub(now.0),
    }
}
