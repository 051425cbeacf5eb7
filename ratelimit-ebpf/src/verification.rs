//! Checks whether a segment is verified traffic. `ratelimit_common::verification` makes the decisions.

use ratelimit_common::drop_cache::{Expiry, Key};
use ratelimit_common::hold::is;
use ratelimit_common::layout::{Rule, refuses};
use ratelimit_common::packet::source_port;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::{ConnectionState, EvidenceNeeds, found, is_looked_up, not_found};

use crate::admission::{is_known, make_known};
use crate::hook::{self, Context, Raw};
use crate::maps::{self, Deferred, Filter};
use crate::packet::PacketFrame;
use crate::refusal;

/// Result of [`verification`] for a segment.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Verification(u32);

const VERIFIED: u32 = is::VERIFIED as u32;
const ESTABLISHED: u32 = is::ESTABLISHED as u32;
const FIRST: u32 = is::FIRST as u32;
/// Flag above those of the charges: the server does not accept the segment.
const IGNORED: u32 = 1 << 8;

impl Verification {
    /// The result for unverified traffic.
    pub(crate) const NONE: Self = Self(0);

    /// Verifies the segment in this frame, which must be parsed. `may_ask` says that a request may begin in it and that
    /// the rule counts requests.
    #[inline(always)]
    pub(crate) fn of(frame: &PacketFrame, generation: u32, rule: u32, may_ask: bool) -> Self {
        Self(verification(frame.context(), generation, rule, may_ask as u32))
    }

    /// Returns true if the segment counts as verified traffic.
    #[inline(always)]
    pub(crate) const fn is_verified(self) -> bool {
        self.0 & VERIFIED != 0
    }

    /// Returns true if the server does not accept the segment, so no request begins in it.
    #[inline(always)]
    pub(crate) const fn is_ignored(self) -> bool {
        self.0 & IGNORED != 0
    }

    /// Returns the flags for [`ratelimit_common::hold::Charges`].
    #[inline(always)]
    pub(crate) const fn of_charges(self) -> u8 {
        self.0 as u8
    }
}

/// Returns true if the rule needs to know whether a segment is verified.
#[inline(always)]
pub(crate) const fn is_asked(rule: &Rule, may_ask: bool) -> bool {
    is_asked_of(rule.evidence, may_ask) || hook::ANSWERS && rule.evidence.any(EvidenceNeeds::PAGES)
}

/// Returns [`is_asked`] for a connection that no page has ended.
#[inline(always)]
const fn is_asked_of(evidence: EvidenceNeeds, may_ask: bool) -> bool {
    may_ask || evidence.any(EvidenceNeeds::SEGMENTS.or(EvidenceNeeds::CONNECTIONS))
}

/// Flags for [`cached_segment_drop`]: a request may begin in the segment; its frame was parsed.
const MAY_ASK: u32 = 1;
const IS_PARSED: u32 = 2;

/// Result of [`cached_segment_drop`] that is no [`Expiry`]: the segment's socket must be looked up.
const LOOK_UP: u64 = 2;

/// Returns the cached drop of the segment in this frame. The entry may cover all segments of its source, all requests
/// of its connection, or only the unverified ones of either.
///
/// The socket is looked up if the connection was found recently, or was not looked for a moment ago. Also stores
/// whether there may be an entry for unverified traffic. If `may_ask` is set, it stores the connection's key too.
#[inline(always)]
pub(crate) fn cached_drop(frame: &PacketFrame, generation: u32, key: Key, may_ask: bool) -> Option<Expiry> {
    let Key { source, what } = key;
    let asks = if may_ask { MAY_ASK } else { 0 } | if frame.is_parsed() { IS_PARSED } else { 0 };
    let mut code = cached_segment_drop(frame.context(), generation, source, what, asks);
    if code == LOOK_UP {
        frame.parsed()?;
        code = if look_up(frame.context(), generation, source, what) == ConnectionState::Established as u32 {
            0
        } else {
            cached_unverified_drop(generation, source, what)
        };
    }
    if code == 0 { None } else { Some(Expiry::of(code)) }
}

/// Returns the word of an [`Expiry`], 0, or [`LOOK_UP`]. A function of its own, to use its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cached_segment_drop(ctx: *mut Raw, generation: u32, source: u64, what: u64, asks: u32) -> u64 {
    let (Some(config), Some(deferred)) = (maps::config(generation), maps::deferred()) else { return 0 };
    let may_ask = asks & MAY_ASK;
    // A plain frame was checked by `at_a_glance`.
    if asks & IS_PARSED != 0 && maps::parsed().is_some_and(|parsed| parsed.segment().closes()) {
        deferred.refused = Deferred::CLOSES;
    }
    let key = Key { source, what };
    let (hash, now) = (deferred.hash(), deferred.now());
    if maps::may_be_cached(config, key, hash) {
        let expiry = maps::cached_drop_of(generation, source, what, hash, now.0);
        if expiry != 0 {
            return expiry;
        }
    }
    deferred.cache_no_connection();
    deferred.is_suspect = maps::may_be_cached(config, key.unverified(), hash) as u32;
    if deferred.is_suspect == 0 && may_ask == 0 {
        return 0;
    }
    let context = Context::new(ctx);
    // If the frame is not plain, it was parsed, and so its key comes from the parsed frame.
    let Some(source_port) = source_port(&PacketFrame::new(&context)).or_else(parsed_source_port) else {
        return LOOK_UP;
    };
    let mut found = 0;
    if deferred.is_suspect != 0 {
        let fingerprints =
            (self::found(config.seed, key, source_port, now), not_found(config.seed, key, source_port, now));
        found = if maps::in_filter(Filter::Found, config, fingerprints.0)
            || !maps::in_filter(Filter::NotFound, config, fingerprints.1)
            || is_looked_up(fingerprints.1, now)
        {
            LOOK_UP
        } else {
            of_unverified_source(generation, key, deferred)
        };
        if found > LOOK_UP {
            return found;
        }
    }
    if may_ask == 0 {
        return found;
    }
    let connection = key.of_connection(config.seed, source_port);
    deferred.connection = connection;
    // A segment that ends the connection is judged instead: see `refusal::end_abandoned`.
    if deferred.closes() {
        return found;
    }
    let expiry = maps::cached_drop_of(generation, connection.source, connection.what, connection.source, now.0);
    if expiry != 0 {
        return expiry;
    }
    // An attacker who forges requests from all ports makes each of them be looked up. Without the look-up, the first
    // request of a client that connects from one of these ports would wait.
    let unverified = connection.of_unverified_requests();
    if maps::may_be_cached(config, unverified, unverified.source) { LOOK_UP } else { found }
}

/// Returns the cached drop of a segment with this key that was looked up and is unverified: the word of an [`Expiry`],
/// or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cached_unverified_drop(generation: u32, source: u64, what: u64) -> u64 {
    let Some(deferred) = maps::deferred() else { return 0 };
    let key = Key { source, what };
    if deferred.is_suspect != 0 {
        let expiry = of_unverified_source(generation, key, deferred);
        if expiry != 0 {
            return expiry;
        }
    }
    let connection = deferred.connection;
    if connection == Key::NONE {
        return 0;
    }
    let unverified = connection.of_unverified_requests();
    maps::cached_drop_of(generation, unverified.source, unverified.what, unverified.source, deferred.now().0)
}

/// Returns the entry that drops unverified traffic of this source, or 0. The guard's entry for a suspect source drops
/// nothing.
#[inline(always)]
fn of_unverified_source(generation: u32, key: Key, deferred: &Deferred) -> u64 {
    let Key { source, what } = key.unverified();
    match maps::cached_drop_of(generation, source, what, deferred.hash(), deferred.now().0) {
        0 => 0,
        word if Expiry::of(word).verdict().reason == Reason::Guard => 0,
        word => word,
    }
}

#[inline(always)]
fn parsed_source_port() -> Option<u16> {
    maps::parsed().map(|parsed| parsed.segment().source_port)
}

/// Returns the [`ConnectionState`] of the current segment. With a key, it also records in the filters whether the
/// connection was found. That includes connections that are not established yet, as an opening may be forged before the
/// first request arrives.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn look_up(ctx: *mut Raw, generation: u32, source: u64, what: u64) -> u32 {
    let connection_state = maps::connection_state_of(ctx);
    let key = Key { source, what };
    if key != Key::NONE
        && let (Some(config), Some(deferred), Some(source_port)) =
            (maps::config(generation), maps::deferred(), parsed_source_port())
    {
        let now = deferred.now();
        let (of, fingerprint) = if connection_state == ConnectionState::Unknown as u32 {
            (Filter::NotFound, not_found(config.seed, key, source_port, now))
        } else {
            (Filter::Found, found(config.seed, key, source_port, now))
        };
        maps::insert_into(of, config, fingerprint);
    }
    connection_state
}

/// Returns the flags of a [`Verification`]. A function of its own: the verifier walks it once, and its stack is free
/// again when the source is judged.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn verification(ctx: *mut Raw, generation: u32, rule: u32, may_ask: u32) -> u32 {
    let (Some(config), Some(parsed)) = (maps::config(generation), maps::parsed()) else { return 0 };
    let rule = maps::rule(config, rule);
    if hook::ANSWERS && rule.evidence.any(EvidenceNeeds::PAGES) {
        if let Some(deferred) = maps::deferred() {
            deferred.refused_until = Nanos(0);
        }
        // The segment becomes its connection's reset and is nothing to its rule.
        if refusal::end_paged(ctx) != 0 {
            return IGNORED;
        }
        // No other part of the rule needs verification.
        let is_suspect = maps::deferred().is_some_and(|deferred| deferred.is_suspect != 0);
        if !is_suspect && !is_asked_of(rule.evidence, may_ask != 0) {
            return 0;
        }
    }
    if !rule.evidence.any(EvidenceNeeds::CONNECTIONS) {
        return bits(connection_state(ctx, generation, rule), rule, may_ask);
    }
    let Some(deferred) = maps::deferred() else { return 0 };
    let now = deferred.now().0;
    let [high, low] = parsed.connection_words(config.seed);
    let is_known = is_known(high, low, generation, now) != 0;
    if is_known && may_ask == 0 && !rule.evidence.any(EvidenceNeeds::SEGMENTS) {
        // Renews the connection, so that it is not taken for a new one while it sends.
        let _always_zero = make_known(high, low, generation, now);
        return 0;
    }
    let mut bits = bits(connection_state(ctx, generation, rule), rule, may_ask);
    if bits & ESTABLISHED != 0 {
        let _always_zero = make_known(high, low, generation, now);
        if !is_known {
            bits |= FIRST;
        }
    }
    bits
}

/// Runs [`look_up`]. The filters matter only for rules that refuse unverified segments, so other rules pass no key.
#[inline(always)]
fn connection_state(ctx: *mut Raw, generation: u32, rule: &Rule) -> u32 {
    let key = match maps::deferred() {
        Some(deferred) if rule.evidence.any(EvidenceNeeds::SEGMENTS) => deferred.drop_key,
        _ => Key::NONE,
    };
    look_up(ctx, generation, key.source, key.what)
}

/// Returns the flags of a [`Verification`] for the code of a [`ConnectionState`].
#[inline(always)]
fn bits(connection_state: u32, rule: &Rule, may_ask: u32) -> u32 {
    const ANSWERED: u32 = ConnectionState::Answered as u32;
    const ESTABLISHED: u32 = ConnectionState::Established as u32;
    const IGNORED: u32 = ConnectionState::Ignored as u32;
    const UNKNOWN: u32 = ConnectionState::Unknown as u32;
    match connection_state {
        ANSWERED if may_ask != 0 && !rule.evidence.any(EvidenceNeeds::SEGMENTS) => VERIFIED,
        ESTABLISHED => VERIFIED | self::ESTABLISHED,
        IGNORED => self::IGNORED,
        // There is no socket: the kernel answers the segment by a reset, and no server reads its request.
        UNKNOWN
            if may_ask != 0
                && (rule.refuses & refuses::BY_RESET != 0 || rule.ends_abandoned())
                && refusal::is_repetition() != 0 =>
        {
            self::IGNORED
        }
        _ => 0,
    }
}
