//! A packet at XDP: the frame as it came, before the stack has made a buffer of it. One packet each.

use core::arch::asm;

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{bpf_xdp_adjust_tail, bpf_xdp_get_buff_len};
use aya_ebpf::programs::XdpContext;
use ratelimit_common::conversation::{Hit, Likely, Sought};
use ratelimit_common::flow::Datagram;
use ratelimit_common::hold::At;
use ratelimit_common::layout::Limit;
use ratelimit_common::packet::VLAN_TAGS_MAX;
use ratelimit_common::refusal::{Page, TCP_WORDS, TEXT_WORDS, Way};
use ratelimit_common::verification::Side;

use crate::flows::Others;
use crate::maps::{self, Deferred};
use crate::packet::{PacketFrame, direct, load_u16, one_register};
use crate::refusal::way_of;

/// What the kernel calls the program with.
pub(crate) type Raw = xdp_md;
/// The same, as a value.
pub(crate) type Context = XdpContext;

/// The context again.
#[inline(always)]
pub(crate) const fn raw(ctx: &Context) -> *mut Raw {
    ctx.ctx
}

/// Where the frame's first buffer is: what lies in others is not read.
pub(crate) struct Reader {
    start: usize,
    end: usize,
}

impl Reader {
    #[inline(always)]
    pub(crate) fn of(ctx: &Context) -> Self {
        Self { start: ctx.data(), end: ctx.data_end() }
    }

    /// What of the frame's length is known without a call.
    #[inline(always)]
    pub(crate) const fn known_len(&self) -> usize {
        self.end - self.start
    }

    /// The bytes at `offset`, if all of them are there to read.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, _: &Context, offset: usize) -> Option<[u8; N]> {
        direct(self.start, self.end, offset)
    }
}

/// The length of all buffers. // one helper call, so not for every packet
#[inline(always)]
pub(crate) fn len(ctx: &Context) -> usize {
    // SAFETY: the context is valid for the run of the program.
    unsafe { bpf_xdp_get_buff_len(ctx.ctx) as usize }
}

/// The interface that the frame came in by.
#[inline(always)]
pub(crate) fn interface_index(ctx: &Context) -> u32 {
    // SAFETY: the context is valid for the run of the program, and the kernel rewrites this load to its own fields.
    unsafe { (*ctx.ctx).ingress_ifindex }
}

/// VLAN tags that are not among the bytes: none.
#[inline(always)]
pub(crate) const fn tags_before(_: &Context) -> usize {
    0
}

/// The length that an IPv4 header claims, at this offset.
#[inline(always)]
pub(crate) const fn ipv4_bytes(_: &Context, _: usize, claimed: u16) -> u32 {
    claimed as u32
}

/// How many packets and bytes the frame counts as, which has so many.
#[inline(always)]
pub(crate) const fn counted(_: &Context, bytes: usize) -> (u64, u64) {
    (1, bytes as u64)
}

/// The same.
#[inline(always)]
pub(crate) const fn told_by(at: At, position: usize, side: Side) -> (At, usize, Side) {
    (at, position, side)
}

/// Returns [`Sought::likely`].
#[inline(always)]
pub(crate) fn likely(frame: &PacketFrame, sought: Sought, start: u32, block: u32, end: u32) -> Likely {
    sought.likely(frame, start, block, end)
}

/// [`Sought::at`].
#[inline(always)]
pub(crate) fn what_is_at(frame: &PacketFrame, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
    sought.at(frame, start, next, end)
}

/// What the packet at hand is charged by limits of bytes, whose IP packet has so many.
#[inline(always)]
pub(crate) const fn charged_bytes(ip_bytes: u32) -> u32 {
    ip_bytes
}

/// What it is charged by this limit, of one packet.
#[inline(always)]
pub(crate) const fn charged(_: &Deferred, _: &Limit, amount: u64) -> u64 {
    amount
}

/// The first of the datagrams that the one at hand was put together of: itself.
#[inline(always)]
pub(crate) const fn first_of(datagram: Datagram) -> Datagram {
    datagram
}

/// Returns the others that came with a datagram, of which there are none. `opens` says whether that one opens a
/// connection.
#[inline(always)]
pub(crate) const fn others(_: &mut Deferred, _: Datagram, opens: bool) -> Others {
    Others { requests: 0, opens }
}

/// Whether a packet can become its own answer.
pub(crate) const ANSWERS: bool = true;

/// An address of Ethernet.
const ADDRESS_BYTES: usize = 6;
/// What is before the packet: Ethernet's header, and tags.
const LINK_BYTES_MAX: usize = 14 + 4 * VLAN_TAGS_MAX;

/// Has the frame be its link's headers and this packet, on its way; false where it cannot, and its headers are as they
/// were.
#[inline(always)]
pub(crate) fn replace<const WORDS: usize>(ctx: *mut Raw, at: usize, way: Way, packet: &[u32; WORDS]) -> bool {
    let Some((start, from)) = resize(ctx, at, WORDS) else { return false };
    // SAFETY: so many words lie there.
    unsafe { write(from, packet) };
    if let Way::Back = way {
        // SAFETY: what is before them is a whole header of Ethernet.
        unsafe { swap_addresses(start) };
    }
    true
}

/// Has the frame be its link's headers, back where it came from, and this page; false where it cannot: a driver may have
/// no room for a page that is longer. Its headers are as they were then; of a frame of several buffers the rest may be
/// cut off.
#[inline(always)]
pub(crate) fn answer<const IP: usize, const OPTIONS: usize>(
    ctx: *mut Raw,
    at: usize,
    page: &Page<IP, OPTIONS>,
) -> bool {
    let Some((start, from)) = resize(ctx, at, Page::<IP, OPTIONS>::WORDS) else { return false };
    let tcp = from + 4 * IP;
    let options = tcp + 4 * TCP_WORDS;
    let text = options + 4 * OPTIONS;
    // SAFETY: so many words lie there, one part behind the other, and before them a whole header of Ethernet.
    unsafe {
        write(from, &page.ip);
        write(tcp, &page.tcp);
        write(options, &page.options);
        for position in 0..TEXT_WORDS {
            store_u32(text + 4 * position, page.text(position));
        }
        swap_addresses(start);
    }
    true
}

/// Has the frame be its link's headers and so many words behind them, which begin there: where it starts, and where they
/// do.
#[inline(always)]
fn resize(ctx: *mut Raw, at: usize, words: usize) -> Option<(usize, usize)> {
    let at = one_register(at);
    if at > LINK_BYTES_MAX {
        return None;
    }
    // SAFETY: the context is valid for the run of the program.
    let longer = unsafe { bpf_xdp_get_buff_len(ctx) } as i64 - (at + 4 * words) as i64;
    // SAFETY: likewise. What was known of the packet's bytes is not used after this.
    if longer != 0 && unsafe { bpf_xdp_adjust_tail(ctx, -longer as i32) } != 0 {
        return None;
    }
    let context = XdpContext::new(ctx);
    let (start, end) = (context.data(), context.data_end());
    let from = start + at;
    // What is added is not known to the compiler, or it would leave one of both to the other.
    (from + 4 * words <= end && one_register(start + 2 * ADDRESS_BYTES) <= end).then_some((start, from))
}

/// Writes words there.
#[inline(always)]
unsafe fn write<const WORDS: usize>(from: usize, words: &[u32; WORDS]) {
    for (position, word) in words.iter().enumerate() {
        // SAFETY: the caller has checked the packet's end.
        unsafe { store_u32(from + 4 * position, *word) };
    }
}

/// Swaps the addresses of Ethernet at the start of a frame.
#[inline(always)]
unsafe fn swap_addresses(start: usize) {
    for at in [0, 2, 4] {
        // SAFETY: the caller has checked the packet's end.
        unsafe {
            let (to, by) = (load_u16(start + at), load_u16(start + ADDRESS_BYTES + at));
            store_u16(start + at, by);
            store_u16(start + ADDRESS_BYTES + at, to);
        }
    }
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
