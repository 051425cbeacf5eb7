//! Refusals that tell: by a rule that refuses by a reset. Alone has packets written. Which bytes a reset is, is in
//! `ratelimit_common::refusal`.
//!
//! Nothing here is called for a rule that drops.

use ratelimit_common::layout::refuses;
use ratelimit_common::packet::Frame as _;
use ratelimit_common::refusal::{self, Place, TCP_WORDS, Way};
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::ConnectionState;

use crate::hook::{self, Context, Raw};
use crate::maps::{self, Deferred, ParsedFrame, frame_is};
use crate::packet::{PacketFrame, parse_frame};

/// What a refusal of the packet at hand, by a rule that refuses by a reset, comes to: [`Reason::Reset`], and it is one;
/// [`Reason::NotCounted`], where the kernel tells its client; else why it is refused. A reason's code.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn told(ctx: *mut Raw) -> u32 {
    const OVER_LIMIT: u32 = Reason::OverLimit as u32;
    let (Some(parsed), Some(deferred)) = (maps::parsed_mut(), maps::deferred()) else { return OVER_LIMIT };
    let reason = deferred.refused;
    let is_refusal = reason == OVER_LIMIT || reason == Reason::Banned as u32 || reason == Reason::Denied as u32;
    if !is_refusal || !parsed.is(frame_is::TCP) || parsed.is_fragment_of_tcp() {
        return reason;
    }
    if parsed.is_opening() {
        let Some(config) = maps::config(deferred.generation()) else { return reason };
        let rule = maps::rule(config, deferred.rule());
        let is_told = hook::ANSWERS_SYNS
            && reason == OVER_LIMIT
            && rule.refuses & refuses::SYN_BY_RESET != 0
            && rule.counts_connections != 0;
        return if is_told && reset(ctx) != 0 { Reason::Reset as u32 } else { reason };
    }
    let _always_zero = parse_frame(ctx, parsed);
    match maps::connection_state_of(ctx) {
        ESTABLISHED if reset(ctx) != 0 => end_by_reset(),
        UNKNOWN if is_repetition() != 0 => Reason::NotCounted as u32,
        _ => reason,
    }
}

const ESTABLISHED: u32 = ConnectionState::Established as u32;
const UNKNOWN: u32 = ConnectionState::Unknown as u32;

/// Remembers that the connection at hand ends by a reset, which is the reason's code that this returns. A function of
/// its own, for the key's place on the stack, as the next one is.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn end_by_reset() -> u32 {
    const RESET: u32 = Reason::Reset as u32;
    let Some(deferred) = of_connection() else { return RESET };
    match deferred.known_conversation() {
        Some(known) => known.end_by_reset(),
        None => {
            maps::clear(&mut deferred.conversation);
            deferred.conversation.end_by_reset();
            deferred.insert();
        }
    }
    RESET
}

/// Whether the segment at hand is one of a connection that has ended so; 1 where it is.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn is_repetition() -> u32 {
    let known = of_connection().and_then(|deferred| deferred.known_conversation());
    known.is_some_and(|known| known.is_repetition()) as u32
}

#[inline(always)]
fn of_connection() -> Option<&'static mut Deferred> {
    let (parsed, deferred) = (maps::parsed()?, maps::deferred()?);
    deferred.set_conversation(parsed.source(), parsed.destination(), parsed.segment().source_port, parsed.port());
    Some(deferred)
}

/// Makes the packet a reset: a SYN its answer, any other segment that of its client. 0, and it is what it was, where it
/// cannot be one.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn reset(ctx: *mut Raw) -> u32 {
    let Some(way) = maps::parsed().map(way_of) else { return 0 };
    let context = Context::new(ctx);
    let frame = PacketFrame::new(&context);
    let place = refusal::place(&frame);
    if hook::ANSWERS_SYNS
        && matches!(way, Way::Back)
        && !place.and_then(|place| refusal::is_answered(&frame, place)).unwrap_or(false)
    {
        return 0;
    }
    let is_written = match place {
        Some(Place::V4(at)) => {
            let (Some(ip), Some(tcp)) = (words(&frame, at), tcp(&frame, at + 4 * refusal::IPV4_WORDS)) else {
                return 0;
            };
            hook::replace(ctx, at, way, &refusal::v4(ip, tcp, way))
        }
        Some(Place::V6(at)) => {
            let (Some(ip), Some(tcp)) = (words(&frame, at), tcp(&frame, at + 4 * refusal::IPV6_WORDS)) else {
                return 0;
            };
            hook::replace(ctx, at, way, &refusal::v6(ip, tcp, way))
        }
        None => false,
    };
    is_written as u32
}

/// Where the segment that this frame is goes as a reset.
#[inline(always)]
pub(crate) fn way_of(parsed: &ParsedFrame) -> Way {
    if parsed.is_opening() { Way::Back } else { Way::On }
}

/// A header's words, as they lie there.
#[inline(always)]
fn words<const WORDS: usize>(frame: &PacketFrame, at: usize) -> Option<[u32; WORDS]> {
    let mut words = [0; WORDS];
    for (position, word) in words.iter_mut().enumerate() {
        *word = u32::from_ne_bytes(frame.bytes(at + 4 * position)?);
    }
    Some(words)
}

#[inline(always)]
fn tcp(frame: &PacketFrame, at: usize) -> Option<[u32; TCP_WORDS]> {
    words(frame, at)
}
