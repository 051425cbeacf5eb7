//! Refusals that tell: by a rule that refuses by a reset. Alone writes packets. Which bytes a reset is, is in
//! `ratelimit_common::refusal`.
//!
//! Nothing here is called for a rule that drops.

use core::arch::asm;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_tail, bpf_xdp_get_buff_len};
use aya_ebpf::programs::XdpContext;
use ratelimit_common::layout::refuses;
use ratelimit_common::packet::{Frame as _, VLAN_TAGS_MAX};
use ratelimit_common::refusal::{self, Place, TCP_WORDS, Way};
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::ConnectionState;

use crate::maps::{self, Deferred, ParsedFrame, frame_is};
use crate::packet::{XdpFrame, load_u16, one_register, parse_frame};

/// What a refusal of the packet at hand, by a rule that refuses by a reset, comes to: [`Reason::Reset`], and it is one;
/// [`Reason::NotCounted`], where the kernel tells its client; else why it is refused. A reason's code.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn told(ctx: *mut xdp_md) -> u32 {
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
        let is_told = reason == OVER_LIMIT && rule.refuses & refuses::SYN_BY_RESET != 0 && rule.counts_connections != 0;
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

/// Whether the segment that was parsed is for the kernel to answer: without a socket, of a connection that has ended so; 1
/// where it is.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn repeats(ctx: *mut xdp_md) -> u32 {
    (maps::connection_state_of(ctx) == UNKNOWN && is_repetition() != 0) as u32
}

/// Whether the segment at hand is one of a connection that has ended so; 1 where it is.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_repetition() -> u32 {
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
extern "C" fn reset(ctx: *mut xdp_md) -> u32 {
    let Some(way) = maps::parsed().map(way_of) else { return 0 };
    let context = XdpContext::new(ctx);
    let frame = XdpFrame::new(&context);
    let place = refusal::place(&frame);
    if matches!(way, Way::Back) && !place.and_then(|place| refusal::is_answered(&frame, place)).unwrap_or(false) {
        return 0;
    }
    let is_written = match place {
        Some(Place::V4(at)) => {
            let (Some(ip), Some(tcp)) = (words(&frame, at), tcp(&frame, at + 4 * refusal::IPV4_WORDS)) else {
                return 0;
            };
            replace(ctx, at, way, &refusal::v4(ip, tcp, way))
        }
        Some(Place::V6(at)) => {
            let (Some(ip), Some(tcp)) = (words(&frame, at), tcp(&frame, at + 4 * refusal::IPV6_WORDS)) else {
                return 0;
            };
            replace(ctx, at, way, &refusal::v6(ip, tcp, way))
        }
        None => false,
    };
    is_written as u32
}

/// What is to become of the packet that was made a reset: an action of XDP.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn way() -> u32 {
    match maps::parsed().map(way_of) {
        Some(Way::On) => XDP_PASS,
        Some(Way::Back) => XDP_TX,
        None => XDP_DROP,
    }
}

#[inline(always)]
fn way_of(parsed: &ParsedFrame) -> Way {
    if parsed.is_opening() { Way::Back } else { Way::On }
}

/// An address of Ethernet.
const ADDRESS_BYTES: usize = 6;
/// What is before the packet: Ethernet's header, and tags.
const LINK_BYTES_MAX: usize = 14 + 4 * VLAN_TAGS_MAX;

/// A header's words, as they lie there.
#[inline(always)]
fn words<const WORDS: usize>(frame: &XdpFrame, at: usize) -> Option<[u32; WORDS]> {
    let mut words = [0; WORDS];
    for (position, word) in words.iter_mut().enumerate() {
        *word = u32::from_ne_bytes(frame.bytes(at + 4 * position)?);
    }
    Some(words)
}

#[inline(always)]
fn tcp(frame: &XdpFrame, at: usize) -> Option<[u32; TCP_WORDS]> {
    words(frame, at)
}

/// Has the frame be its link's headers and this packet, on its way; false, and nothing is changed, where it cannot.
#[inline(always)]
fn replace<const WORDS: usize>(ctx: *mut xdp_md, at: usize, way: Way, packet: &[u32; WORDS]) -> bool {
    let at = one_register(at);
    if at > LINK_BYTES_MAX {
        return false;
    }
    // SAFETY: the context is valid for the run of the program.
    let longer = unsafe { bpf_xdp_get_buff_len(ctx) } as i64 - (at + 4 * WORDS) as i64;
    // SAFETY: likewise. What was known of the packet's bytes is not used after this.
    if longer < 0 || longer > 0 && unsafe { bpf_xdp_adjust_tail(ctx, -longer as i32) } != 0 {
        return false;
    }
    let context = XdpContext::new(ctx);
    let (start, end) = (context.data(), context.data_end());
    let from = start + at;
    // What is added is not known to the compiler, or it would leave one of both to the other.
    if from + 4 * WORDS > end || one_register(start + 2 * ADDRESS_BYTES) > end {
        return false;
    }
    for (position, word) in packet.iter().enumerate() {
        // SAFETY: within the packet, as just checked.
        unsafe { store_u32(from + 4 * position, *word) };
    }
    if let Way::Back = way {
        // The addresses of Ethernet.
        for at in [0, 2, 4] {
            // SAFETY: likewise.
            unsafe {
                let (to, by) = (load_u16(start + at), load_u16(start + ADDRESS_BYTES + at));
                store_u16(start + at, by);
                store_u16(start + ADDRESS_BYTES + at, to);
            }
        }
    }
    true
}

/// One store of a whole word, wherever it lies, as `load!` of [`crate::packet`] loads it.
macro_rules! store {
    ($name:ident, $word:ty, $instruction:literal) => {
        #[inline(always)]
        unsafe fn $name(address: usize, word: $word) {
            // SAFETY: the caller has checked the packet's end; the instruction writes there and does nothing else.
            unsafe {
                asm!($instruction, address = in(reg) address, word = in(reg) u64::from(word), options(nostack));
            }
        }
    };
}

store!(store_u16, u16, "*(u16 *)({address} + 0) = {word}");
store!(store_u32, u32, "*(u32 *)({address} + 0) = {word}");
