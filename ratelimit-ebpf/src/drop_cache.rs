//! Which refusals are noted, so that the next packet like this one is refused by one look, and until when. What a note is, is in
//! `ratelimit_common::drop_cache`.

use ratelimit_common::drop_cache::{Expiry, Key};
use ratelimit_common::layout::{Config, Limit, Rule, Unit};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Reason, Verdict};
use ratelimit_common::verification::EvidenceNeeds;

use crate::maps::{self, Deferred, Refusal};

/// Whether the limit, once it has no room for one more in the window that refused the packet at hand, refuses each packet like that until
/// it has, and nothing else is done with those.
#[inline(always)]
pub(crate) fn lasts(rule: &Rule, limit: &Limit, deferred: &Deferred) -> bool {
    let is_all = rule.refuse_all == 0 && rule.shadows_len == 0 && rule.bans.steps_len == 0 && limit.is_gcra == 0;
    is_all
        && match Unit::from_code(limit.unit) {
            Some(Unit::Packets | Unit::Bytes) => true,
            // Of the others it depends on the connection or flow.
            Some(Unit::Connections) => deferred.refused.is_opening(),
            // Whether one begins depends on the connection: it is of that.
            Some(Unit::Requests) => false,
            None => false,
        }
}

/// The least that a packet like the one at hand takes of this limit: where there is room for less, there is none.
#[inline(always)]
pub(crate) fn least(limit: &Limit, deferred: &Deferred) -> u64 {
    match Unit::from_code(limit.unit) {
        Some(Unit::Bytes) => deferred.refused.least_bytes(),
        _ => 1,
    }
}

/// Has the note of the packet at hand, which is to be made, be one of what is as unproven as that.
#[inline(always)]
pub(crate) fn of_unverified(deferred: &mut Deferred) {
    if deferred.refused.is_segment() {
        deferred.refused = deferred.refused.unverified();
    }
}

/// Has no segment with payload of the connection at hand be judged again until `full_until`: the server does not have what was refused, and so
/// takes nothing that comes after it. Where the window has room, but not for so much, it is judged again in a second. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cache_connection_drop(slot: u32, full_until: u64, is_unverified: u32) -> u32 {
    const AGAIN_NS: u64 = 1_000_000_000;
    let Some(deferred) = maps::deferred() else { return 0 };
    if deferred.connection == Key::NONE {
        return 0;
    }
    let until_ns = match full_until {
        0 => deferred.now().0.saturating_add(AGAIN_NS),
        until_ns => until_ns,
    };
    let of_source = deferred.refused;
    if is_unverified != 0 {
        deferred.connection = deferred.connection.of_unverified_requests();
    }
    deferred.refused = deferred.connection;
    let _always_zero = cache_drop(slot, until_ns, Reason::OverLimit as u32);
    deferred.refused = of_source;
    0
}

/// Whether the packet at hand is a SYN whose source is not noted yet as suspect.
#[inline(always)]
pub(crate) fn may_be_of_suspect(config: &Config, deferred: &Deferred) -> bool {
    let refused = deferred.refused;
    refused.is_opening() && !maps::may_be_cached(config, refused.unverified(), deferred.hash())
}

/// Has the note of that SYN, which is to be made, be one of the segments of its source that prove nothing.
#[inline(always)]
pub(crate) fn of_suspect(deferred: &mut Deferred) {
    deferred.refused = deferred.refused.unverified();
}

/// Notes how long the source of the packet at hand is refused, if there is a note for packets like it: no longer than its rule and
/// this configuration last. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cache_drop(slot: u32, until_ns: u64, reason: u32) -> u32 {
    let Some(deferred) = maps::deferred() else { return 0 };
    let Some(config) = maps::config(deferred.generation()) else { return 0 };
    let rule = maps::rule(config, deferred.rule());
    // What the guard notes of a suspect source refuses nothing: a dry run says what would become of it.
    if rule.dry_run != 0 && reason != Reason::Guard as u32 || deferred.refused == Key::NONE {
        return 0;
    }
    let mut until_ns = until_ns;
    for end_ns in [rule.until_ns, config.until_ns] {
        if end_ns != 0 && end_ns < until_ns {
            until_ns = end_ns;
        }
    }
    let now = deferred.now();
    let verdict = Verdict { reason: maps::reason(reason), rule: rule.row };
    let (expiry, until) = Expiry::new(now, Nanos(until_ns), verdict);
    // Of all segments: what established connections sent was over the limit.
    let is_verified = if matches!(verdict.reason, Reason::Banned) {
        rule.evidence.any(EvidenceNeeds::BANS)
    } else {
        deferred.refused.is_segment()
    };
    let is_connection = deferred.refused == deferred.connection;
    let hash = if is_connection { deferred.connection.source } else { deferred.hash() };
    let refusal = Refusal { slot, expiry, until, is_verified, of: &deferred.of };
    maps::insert_drop(config, deferred.refused, hash, refusal, now);
    0
}
