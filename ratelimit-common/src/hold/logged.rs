//! Charges for packets that hide requests, under a rule with an access log that contains them.

use super::{At, State, Window, limits};
use crate::layout::{LOGGED_REQUESTS, Unit};
use crate::verification::Side;

/// Returns the number of turns that a QUIC datagram is charged as, while the rule's log is read in time. `opens` is 1
/// if the datagram opens a connection, and 0 otherwise.
///
/// The log contains the source's requests. A source without a live window is charged a turn; otherwise no log line
/// would charge it. If log lines have charged a source beyond a limit, each of its datagrams is a turn, which is
/// refused.
#[inline(always)]
pub fn turns_by_log<S: State>(state: S, opens: u32) -> u32 {
    let mut is_idle = true;
    for (position, limit) in limits::<S>(state.rule(), state.rule().own_len.into()) {
        let is_of_requests = limit.unit == Unit::Requests as u8;
        let is_counted = is_of_requests || limit.unit == LOGGED_REQUESTS;
        let window = if is_counted { state.window(At::new(position, Side::Unverified).slot(limit)) } else { None };
        let Some(window) = window else { continue };
        // Packets never exceed a limit: only charges from a log do.
        if !window.is_within_limit(limit, Side::Unverified, state.coarse(), 0) {
            return 1;
        }
        is_idle &= !is_of_requests || window.is_within_limit(limit, Side::Unverified, state.coarse(), limit.amount);
    }
    if is_idle { 1 } else { opens }
}

/// Returns whether log lines have charged the source beyond a limit of its requests. Packets never exceed a limit.
///
/// A limit with conditions has no tolerance. Another limit is exceeded from the point on at which the daemon charges
/// the source several requests a turn (`is_marked`), since the last requests in flight are no offence. A limit of 1
/// allows no such charge.
#[inline(always)]
pub fn is_beyond_by_log<S: State>(state: S, is_marked: bool) -> bool {
    for (position, limit) in limits::<S>(state.rule(), state.rule().own_len.into()) {
        let is_of_requests = limit.unit == Unit::Requests as u8 && (is_marked || limit.amount == 1);
        if !is_of_requests && limit.unit != LOGGED_REQUESTS {
            continue;
        }
        // Log lines charge both windows of the source.
        if let Some(window) = state.window(At::new(position, Side::Unverified).slot(limit))
            && !window.is_within_limit(limit, Side::Unverified, state.coarse(), 0)
        {
            return true;
        }
    }
    false
}
