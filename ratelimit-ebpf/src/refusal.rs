//! Refusals that answer the client: by a reset or by a page. Only this module has packets written.
//! `ratelimit_common::refusal` has their bytes.
//!
//! Rules that drop use [`end_abandoned`] only, for connections whose clients give up.

use ratelimit_common::conversation::ended::Paged;
use ratelimit_common::conversation::{Conversation, Peer};
use ratelimit_common::hold::Banned as _;
use ratelimit_common::layout::refuses;
use ratelimit_common::packet::{Frame as _, Segment};
use ratelimit_common::refusal::{self, Options, Page, Place, TCP_WORDS, Way};
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::ConnectionState;

use crate::hook::{self, Context, Raw};
use crate::maps::{self, Deferred, ParsedFrame, frame_is};
use crate::packet::{PacketFrame, parse_frame};
use crate::{conversations, drop_cache};

/// Carries out a refusal of the current packet by a rule that refuses by a reset. Returns a reason code:
///
/// - [`Reason::Reset`] or [`Reason::Page`] if the packet has become one,
/// - [`Reason::NotCounted`] if the kernel answers the client, or a page already has,
/// - otherwise the reason of the refusal.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn told(ctx: *mut Raw) -> u32 {
    const OVER_LIMIT: u32 = Reason::OverLimit as u32;
    let (Some(parsed), Some(deferred)) = (maps::parsed_mut(), maps::deferred()) else { return OVER_LIMIT };
    let reason = deferred.refused;
    let is_refusal = reason == OVER_LIMIT
        || reason == Reason::Guard as u32
        || reason == Reason::Banned as u32
        || reason == Reason::Denied as u32;
    if !is_refusal || !parsed.is(frame_is::TCP) || parsed.is_fragment_of_tcp() {
        return reason;
    }
    let Some(config) = maps::config(deferred.generation()) else { return reason };
    let rule = maps::rule(config, deferred.rule());
    if parsed.is_opening() {
        let is_told = hook::ANSWERS
            && reason == OVER_LIMIT
            && rule.refuses & refuses::SYN_BY_RESET != 0
            && rule.counts_connections != 0;
        return if is_told && reset(ctx) != 0 { Reason::Reset as u32 } else { reason };
    }
    let _always_zero = parse_frame(ctx, parsed);
    let says_page = hook::ANSWERS && rule.refuses & refuses::BY_PAGE != 0;
    if says_page && end_paged(ctx) != 0 {
        return Reason::NotCounted as u32;
    }
    let says_page = says_page && reason != Reason::Denied as u32;
    match maps::connection_state_of(ctx) {
        ESTABLISHED if says_page && is_turn(ctx) != 0 && page(ctx, retry_after()) != 0 => keep_paged(),
        ESTABLISHED if reset(ctx) != 0 => end_by_reset(),
        UNKNOWN if is_repetition() != 0 => Reason::NotCounted as u32,
        _ => reason,
    }
}

/// Ends the current connection, if the current segment shows that its client has given up a refused request. The
/// segment becomes the client's reset, which the server accepts. The server's socket then closes, and the kernel
/// answers retransmissions of the client.
///
/// Returns a reason code. If the connection was ended: [`Reason::NotCounted`] for a segment without payload, else
/// [`Reason::Reset`]. Otherwise: the earlier verdict on the segment.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn end_abandoned(ctx: *mut Raw) -> u32 {
    let Some(parsed) = maps::parsed_mut() else { return NOT_COUNTED };
    let _always_zero = parse_frame(ctx, parsed);
    // Most connections have no refused request, and their sockets are not looked up.
    let is_ended = !parsed.is_fragment_of_tcp()
        && has_refused() != 0
        && maps::connection_state_of(ctx) == ESTABLISHED
        && conversations::is_abandoned() != 0
        && parsed.take_for_next()
        && reset(ctx) != 0;
    if !is_ended {
        return maps::deferred().map_or(NOT_COUNTED, |deferred| deferred.refused & (Deferred::CLOSES - 1));
    }
    let _always_reset = end_by_reset();
    let _always_zero = drop_cache::uncache_connection_drop();
    if parsed.has_payload() { Reason::Reset as u32 } else { NOT_COUNTED }
}

/// Returns 1 if a request of the current connection was refused. A function of its own, to keep the key on its own
/// stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn has_refused() -> u32 {
    let known = of_connection().and_then(|deferred| deferred.kept_conversation());
    known.is_some_and(|known| known.has_refused()) as u32
}

const NOT_COUNTED: u32 = Reason::NotCounted as u32;

/// Returns the seconds until the current source may be within its limits, or its ban ends. If neither is known, returns
/// the seconds until the next bucket. A function of its own, to use its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn retry_after() -> u64 {
    let Some(deferred) = maps::deferred() else { return 1 };
    let Some(config) = maps::config(deferred.generation()) else { return 1 };
    let rule = maps::rule(config, deferred.rule());
    let now = deferred.now().0;
    let mut until = deferred.refused_until.0;
    // The packet that begins a ban was refused by a limit, so `refused_until` is not the ban's end.
    if rule.bans.steps_len != 0
        && let Some(ban) = deferred.of.ban(rule.bans.slot)
    {
        until = until.max(ban.until().0);
    }
    let bucket_ns = rule.limits[0].bucket_ns;
    if until <= now && bucket_ns != 0 {
        until = now - now % bucket_ns + bucket_ns;
    }
    until.saturating_sub(now) / 1_000_000_000 + 1
}

/// Turns the current segment into its client's reset, if a page has ended its connection. The server has nothing of the
/// request that the page answered.
///
/// Later segments that the client sent before it had the page become resets too: otherwise the kernel would answer them
/// before the page arrives. Returns 1 if the segment became a reset, and 0 if it is unchanged.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn end_paged(ctx: *mut Raw) -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed_mut(), maps::deferred()) else { return 0 };
    set_paged(parsed, deferred);
    let Some(Paged { sequence, acknowledged }) = deferred.known_conversation().and_then(|known| known.paged()) else {
        return 0;
    };
    let segment = parsed.segment();
    let is_behind = segment.sequence != sequence && segment.acknowledged == acknowledged;
    parsed.take_for(Segment { sequence, acknowledged, payload_bytes: 0, ..segment });
    let state = maps::connection_state_of(ctx);
    // A listener accepts any segment with a valid cookie, and has no connection yet.
    let is_its = |peer: Peer| peer.received == sequence && peer.is_opening == 0;
    let is_open = state == ESTABLISHED && parsed.peer().is_some_and(is_its);
    let ends = is_open || state == UNKNOWN && is_behind;
    if !ends || reset(ctx) == 0 {
        parsed.take_for(segment);
        return 0;
    }
    if is_open {
        let _always_reset = end_by_reset();
    }
    1
}

/// Records that a page ended the current connection. Returns the code of [`Reason::Page`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn keep_paged() -> u32 {
    const PAGE: u32 = Reason::Page as u32;
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return PAGE };
    set_paged(parsed, deferred);
    let segment = parsed.segment();
    match deferred.known_conversation() {
        Some(known) => {
            maps::clear(known);
            known.keep_paged(&segment);
        }
        None => {
            maps::clear(&mut deferred.conversation);
            deferred.conversation.keep_paged(&segment);
            deferred.insert();
        }
    }
    PAGE
}

/// Sets the map key to the entry of a page's connection: the current connection's key with its ports swapped. If a
/// connection with that key exists, its state is lost.
#[inline(always)]
fn set_paged(parsed: &ParsedFrame, deferred: &mut Deferred) {
    deferred.set_conversation(parsed.source(), parsed.destination(), parsed.port(), parsed.segment().source_port);
}

/// Returns 1 if the current segment of a connection begins a request that a page can answer.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_turn(ctx: *mut Raw) -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), of_connection()) else { return 0 };
    let Some(peer) = parsed.peer() else { return 0 };
    let (context, segment) = (Context::new(ctx), parsed.segment());
    let begins = refusal::begins_request(&PacketFrame::new(&context), segment.payload_at as usize);
    let known = deferred.known_conversation();
    (begins && Conversation::owes_nothing(known.as_deref(), &segment, &peer)) as u32
}

/// Turns the current request into the page that answers it, with this number of seconds for the next try. Returns 0 if
/// that fails; the packet is unchanged then.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn page(ctx: *mut Raw, seconds: u64) -> u32 {
    let Some(parsed) = maps::parsed() else { return 0 };
    let context = Context::new(ctx);
    let frame = PacketFrame::new(&context);
    let payload_bytes = parsed.segment().payload_bytes;
    let place = refusal::place(&frame);
    if !place.and_then(|place| refusal::is_between_hosts(&frame, place)).unwrap_or(false) {
        return 0;
    }
    let is_written = match place {
        Some(Place::V4(at)) => {
            let segment_at = at + 4 * refusal::IPV4_WORDS;
            let (Some(ip), Some(tcp)) = (words(&frame, at), words(&frame, segment_at)) else { return 0 };
            match refusal::options(&frame, segment_at, &tcp) {
                Some(Options::None) => hook::answer(ctx, at, &Page::v4(ip, tcp, [], payload_bytes, seconds)),
                Some(Options::Time(time)) => hook::answer(ctx, at, &Page::v4(ip, tcp, time, payload_bytes, seconds)),
                None => false,
            }
        }
        Some(Place::V6(at)) => {
            let segment_at = at + 4 * refusal::IPV6_WORDS;
            let (Some(ip), Some(tcp)) = (words(&frame, at), words(&frame, segment_at)) else { return 0 };
            match refusal::options(&frame, segment_at, &tcp) {
                Some(Options::None) => hook::answer(ctx, at, &Page::v6(ip, tcp, [], payload_bytes, seconds)),
                Some(Options::Time(time)) => hook::answer(ctx, at, &Page::v6(ip, tcp, time, payload_bytes, seconds)),
                None => false,
            }
        }
        None => false,
    };
    is_written as u32
}

const ESTABLISHED: u32 = ConnectionState::Established as u32;
const UNKNOWN: u32 = ConnectionState::Unknown as u32;

/// Records that the current connection ends by a reset. Returns the code of [`Reason::Reset`]. A function of its own,
/// to keep the key on its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn end_by_reset() -> u32 {
    const RESET: u32 = Reason::Reset as u32;
    let Some(deferred) = of_connection() else { return RESET };
    match deferred.kept_conversation() {
        Some(known) => known.end_by_reset(),
        None => {
            maps::clear(&mut deferred.conversation);
            deferred.conversation.begin_alone();
            deferred.conversation.end_by_reset();
            deferred.insert();
        }
    }
    RESET
}

/// Returns 1 if the current segment belongs to a connection that a reset has ended. A function of its own, to keep the
/// key on its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_repetition() -> u32 {
    let known = of_connection().and_then(|deferred| deferred.kept_conversation());
    known.is_some_and(|known| known.is_repetition()) as u32
}

#[inline(always)]
fn of_connection() -> Option<&'static mut Deferred> {
    let (parsed, deferred) = (maps::parsed()?, maps::deferred()?);
    deferred.set_conversation(parsed.source(), parsed.destination(), parsed.segment().source_port, parsed.port());
    Some(deferred)
}

/// Turns the current packet into a reset: a SYN into its answer, any other segment into a reset of its client. Returns
/// 0 if that fails; the packet is unchanged then.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reset(ctx: *mut Raw) -> u32 {
    let Some(parsed) = maps::parsed() else { return 0 };
    let way = way_of(parsed);
    let context = Context::new(ctx);
    let frame = PacketFrame::new(&context);
    let place = refusal::place(&frame);
    if hook::ANSWERS
        && matches!(way, Way::Back)
        && !place.and_then(|place| refusal::is_answered(&frame, place)).unwrap_or(false)
    {
        return 0;
    }
    let is_written = match place {
        Some(Place::V4(at)) => {
            let (Some(ip), Some(tcp)) = (words(&frame, at), tcp(&frame, at + 4 * refusal::IPV4_WORDS, parsed)) else {
                return 0;
            };
            hook::replace(ctx, at, way, &refusal::v4(ip, tcp, way))
        }
        Some(Place::V6(at)) => {
            let (Some(ip), Some(tcp)) = (words(&frame, at), tcp(&frame, at + 4 * refusal::IPV6_WORDS, parsed)) else {
                return 0;
            };
            hook::replace(ctx, at, way, &refusal::v6(ip, tcp, way))
        }
        None => false,
    };
    is_written as u32
}

/// Returns the direction in which the current segment leaves as a reset.
#[inline(always)]
pub(crate) fn way_of(parsed: &ParsedFrame) -> Way {
    if parsed.is_opening() { Way::Back } else { Way::On }
}

/// Returns the words of a header, in network order.
#[inline(always)]
fn words<const WORDS: usize>(frame: &PacketFrame, at: usize) -> Option<[u32; WORDS]> {
    let mut words = [0; WORDS];
    for (position, word) in words.iter_mut().enumerate() {
        *word = u32::from_ne_bytes(frame.bytes(at + 4 * position)?);
    }
    Some(words)
}

/// Returns the TCP header at this offset, with the sequence and acknowledgement numbers of the parsed segment.
#[inline(always)]
fn tcp(frame: &PacketFrame, at: usize, parsed: &ParsedFrame) -> Option<[u32; TCP_WORDS]> {
    let [ports, sequence, _, flags, sum] = words(frame, at)?;
    if parsed.is_opening() {
        return Some([ports, sequence, 0, flags, sum]);
    }
    let segment = parsed.segment();
    Some([ports, segment.sequence.to_be(), segment.acknowledged.to_be(), flags, sum])
}
