//! Decides which refusals are cached, and until when, so that one lookup drops the next packet of that kind.
//! `ratelimit_common::drop_cache` has the entries.

use ratelimit_common::drop_cache::{Expiry, Key, cause_is};
use ratelimit_common::layout::{Config, Limit, Rule, Unit, refuses};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Reason, Verdict};
use ratelimit_common::verification::EvidenceNeeds;

use crate::clock::Clock;
use crate::maps::{self, Deferred, Refusal};

/// Returns true if the limit, once exceeded, refuses every packet like the current one until its window frees. Dropping
/// such packets unseen must also skip nothing else that the rule does.
#[inline(always)]
pub(crate) fn lasts(rule: &Rule, limit: &Limit, deferred: &Deferred) -> bool {
    let is_all = rule.refuse_all == 0 && rule.shadows_len == 0 && rule.bans.steps_len == 0 && limit.is_gcra == 0;
    is_all
        && match Unit::from_code(limit.unit) {
            Some(Unit::Packets | Unit::Bytes) => true,
            // Other units depend on the connection or flow.
            Some(Unit::Connections) => deferred.drop_key.is_opening(),
            // The connection decides whether a request begins, so the entry is for the connection.
            Some(Unit::Requests) => false,
            None => false,
        }
}

/// Returns the least amount that a packet like the current one charges to this limit. If less is left within the limit,
/// the packet is over it.
#[inline(always)]
pub(crate) fn least(limit: &Limit, deferred: &Deferred) -> u64 {
    match Unit::from_code(limit.unit) {
        Some(Unit::Bytes) => deferred.drop_key.least_bytes(),
        _ => 1,
    }
}

/// Restricts the entry to be cached to unverified traffic, if the current packet is a segment.
#[inline(always)]
pub(crate) fn of_unverified(deferred: &mut Deferred) {
    if deferred.drop_key.is_segment() {
        deferred.drop_key = deferred.drop_key.unverified();
    }
}

/// Caches a drop of all segments with payload of the current connection. The server lacks the refused bytes, so it
/// accepts nothing after them. `full_until` is when the window frees. [`Rule::connection_drop_until_ns`] derives the
/// entry's end from that time. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cache_connection_drop(slot: u32, full_until: u64, is_unverified: u32) -> u32 {
    let Some(deferred) = maps::deferred() else { return 0 };
    if deferred.connection == Key::NONE {
        return 0;
    }
    let Some(config) = maps::config(deferred.generation()) else { return 0 };
    let until_ns = maps::rule(config, deferred.rule()).connection_drop_until_ns(deferred.now(), full_until);
    let of_source = deferred.drop_key;
    if is_unverified != 0 {
        deferred.connection = deferred.connection.of_unverified_requests();
    }
    deferred.drop_key = deferred.connection;
    let of_unverified = if is_unverified != 0 { OF_UNVERIFIED } else { 0 };
    let _always_zero = cache_drop(slot, until_ns, Reason::OverLimit as u32 | of_unverified);
    deferred.drop_key = of_source;
    0
}

/// Removes the cached drop of the current connection after its socket is gone, so that the kernel answers its segments.
/// Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn uncache_connection_drop() -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let Some(config) = maps::config(deferred.generation()) else { return 0 };
    let connection = deferred.key().of_connection(config.seed, parsed.segment().source_port);
    if !deferred.key().is_segment() || !maps::may_be_cached(config, connection, connection.source) {
        return 0;
    }
    deferred.now = Clock::new(config.wall_offset_ns).coarse();
    (deferred.connection, deferred.drop_key) = (connection, connection);
    // An entry that expires now replaces the one that holds.
    cache_drop(0, deferred.now.0, Reason::OverLimit as u32)
}

/// Returns true if the current packet is a SYN of a source that is not cached as suspect yet.
#[inline(always)]
pub(crate) fn may_be_of_suspect(config: &Config, deferred: &Deferred) -> bool {
    let key = deferred.drop_key;
    key.is_opening() && !maps::may_be_cached(config, key.unverified(), deferred.hash())
}

/// Turns the entry to be cached for that SYN into one for the unverified segments of its source.
#[inline(always)]
pub(crate) fn of_suspect(deferred: &mut Deferred) {
    deferred.drop_key = deferred.drop_key.unverified();
}

/// Returns true if a rule that does not only drop what it refuses drops this packet. A refusal that sends a reset is
/// not cached. Nor is the client's retransmission after that, which anyone could send.
#[inline(always)]
fn may_cache(rule: &Rule, key: Key, reason: u32) -> bool {
    let is_syn_dropped = rule.refuses & refuses::SYN_BY_RESET == 0 || reason == Reason::Banned as u32;
    !rule.is_dry_run() && (key.is_datagram() || key.is_opening() && is_syn_dropped)
}

/// Flag above all reason codes: a connection's entry applies to unverified requests. Retransmissions of those have no
/// window of their own.
const OF_UNVERIFIED: u32 = 0x100;

/// Caches until when the source of the current packet is refused, if packets like it are cached. The entry ends no
/// later than its rule and this configuration. Takes a reason code, perhaps with [`OF_UNVERIFIED`]. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cache_drop(slot: u32, until_ns: u64, reason: u32) -> u32 {
    let (reason, is_of_unverified) = (reason & !OF_UNVERIFIED, reason & OF_UNVERIFIED != 0);
    let Some(deferred) = maps::deferred() else { return 0 };
    let Some(config) = maps::config(deferred.generation()) else { return 0 };
    let rule = maps::rule(config, deferred.rule());
    if rule.refuses & refuses::BY_PAGE != 0 {
        deferred.refused_until = Nanos(until_ns);
    }
    // The guard's entry for a suspect source drops nothing, so a dry run has one too: it shows the effect of the rule.
    if rule.refuses != 0 && reason != Reason::Guard as u32 && !may_cache(rule, deferred.drop_key, reason)
        || deferred.drop_key == Key::NONE
    {
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
    // An entry for all segments is verified: established connections exceeded the limit.
    let is_verified = if matches!(verdict.reason, Reason::Banned) {
        rule.evidence.any(EvidenceNeeds::BANS)
    } else {
        deferred.drop_key.is_segment()
    };
    let is_connection = deferred.drop_key == deferred.connection;
    let hash = if is_connection { deferred.connection.source } else { deferred.hash() };
    let of_connection = if is_connection && !is_of_unverified { cause_is::OF_CONNECTION } else { 0 };
    let refusal = Refusal { slot, expiry, until, is_verified, of: &deferred.of, of_connection };
    maps::insert_drop(config, deferred.drop_key, hash, refusal, now);
    0
}
