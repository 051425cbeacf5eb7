//! A packet at XDP: the frame as it arrived, before the network stack allocates a buffer. One frame is one packet.

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

/// Context that the kernel passes to the program.
pub(crate) type Raw = xdp_md;
/// The context as aya wraps it.
pub(crate) type Context = XdpContext;

/// Returns the kernel's context pointer.
#[inline(always)]
pub(crate) const fn raw(ctx: &Context) -> *mut Raw {
    ctx.ctx
}

/// Bounds of the frame's first buffer. Bytes in other buffers are not read.
pub(crate) struct Reader {
    start: usize,
    end: usize,
}

impl Reader {
    #[inline(always)]
    pub(crate) fn of(ctx: &Context) -> Self {
        Self { start: ctx.data(), end: ctx.data_end() }
    }

    /// Returns the length of the first buffer, which is known without a helper call.
    #[inline(always)]
    pub(crate) const fn known_len(&self) -> usize {
        self.end - self.start
    }

    /// Returns the bytes at `offset`, if the first buffer has all of them.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, _: &Context, offset: usize) -> Option<[u8; N]> {
        direct(self.start, self.end, offset)
    }
}

/// Returns the total length of all buffers. // one helper call, so not for every packet
#[inline(always)]
pub(crate) fn len(ctx: &Context) -> usize {
    // SAFETY: the context is valid for the run of the program.
    unsafe { bpf_xdp_get_buff_len(ctx.ctx) as usize }
}

/// Returns the index of the interface that received the frame.
#[inline(always)]
pub(crate) fn interface_index(ctx: &Context) -> u32 {
    // SAFETY: the context is valid for the run of the program, and the kernel rewrites this load to its own fields.
    unsafe { (*ctx.ctx).ingress_ifindex }
}

/// Returns the number of VLAN tags that the driver moved out of the frame, which is 0 at XDP.
#[inline(always)]
pub(crate) const fn tags_before(_: &Context) -> usize {
    0
}

/// Returns the total length that an IPv4 header claims.
#[inline(always)]
pub(crate) const fn ipv4_bytes(_: &Context, _: usize, claimed: u16) -> u32 {
    claimed as u32
}

/// Returns the packets and bytes that a frame of `bytes` bytes counts as.
#[inline(always)]
pub(crate) const fn counted(_: &Context, bytes: usize) -> (u64, u64) {
    (1, bytes as u64)
}

/// Returns a limit's [`At`] with its position and side, unchanged at XDP.
#[inline(always)]
pub(crate) const fn told_by(at: At, position: usize, side: Side) -> (At, usize, Side) {
    (at, position, side)
}

/// Returns [`Sought::likely`].
#[inline(always)]
pub(crate) fn likely(frame: &PacketFrame, sought: Sought, start: u32, block: u32, end: u32) -> Likely {
    sought.likely(frame, start, block, end)
}

/// Runs [`Sought::at`].
#[inline(always)]
pub(crate) fn what_is_at(frame: &PacketFrame, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
    sought.at(frame, start, next, end)
}

/// Returns the bytes that limits of bytes charge for the current packet.
#[inline(always)]
pub(crate) const fn charged_bytes(ip_bytes: u32) -> u32 {
    ip_bytes
}

/// Returns the amount that this limit charges for the frame, where one packet is charged `amount`.
#[inline(always)]
pub(crate) const fn charged(_: &Deferred, _: &Limit, amount: u64) -> u64 {
    amount
}

/// Returns the first of the merged datagrams: the only one, at XDP.
#[inline(always)]
pub(crate) const fn first_of(datagram: Datagram) -> Datagram {
    datagram
}

/// Returns no other datagrams, as XDP sees no merged ones. `opens` says whether the datagram opens a connection.
#[inline(always)]
pub(crate) const fn others(_: &mut Deferred, _: Datagram, opens: bool) -> Others {
    Others { requests: 0, opens }
}

/// True if a packet can be turned into its own answer.
pub(crate) const ANSWERS: bool = true;

/// Length of an Ethernet address in bytes.
const ADDRESS_BYTES: usize = 6;
/// Maximum length in bytes of the headers before the packet: Ethernet and VLAN tags.
const LINK_BYTES_MAX: usize = 14 + 4 * VLAN_TAGS_MAX;

/// Replaces everything behind the link headers by this packet, which then goes `way`. Returns false if that fails; the
/// headers are unchanged then.
#[inline(always)]
pub(crate) fn replace<const WORDS: usize>(ctx: *mut Raw, at: usize, way: Way, packet: &[u32; WORDS]) -> bool {
    let Some((start, from)) = resize(ctx, at, WORDS) else { return false };
    // SAFETY: `resize` has made room for these words.
    unsafe { write(from, packet) };
    if let Way::Back = way {
        // SAFETY: a whole Ethernet header lies before them.
        unsafe { swap_addresses(start) };
    }
    true
}

/// Replaces everything behind the link headers by this page, and swaps the Ethernet addresses. Returns false if that
/// fails, for example because the driver has no room for a longer frame. The headers are unchanged then, but later
/// buffers of a frame may be cut off.
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
    // SAFETY: these words lie one part behind the other, and a whole Ethernet header lies before them.
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

/// Resizes the frame to its link headers, which are `at` bytes long, and this many words. Returns the addresses of the
/// frame and of the first word.
#[inline(always)]
fn resize(ctx: *mut Raw, at: usize, words: usize) -> Option<(usize, usize)> {
    let at = one_register(at);
    if at > LINK_BYTES_MAX {
        return None;
    }
    // SAFETY: the context is valid for the run of the program.
    let longer = unsafe { bpf_xdp_get_buff_len(ctx) } as i64 - (at + 4 * words) as i64;
    // SAFETY: as above. No earlier pointer into the packet is used afterwards.
    if longer != 0 && unsafe { bpf_xdp_adjust_tail(ctx, -longer as i32) } != 0 {
        return None;
    }
    let context = XdpContext::new(ctx);
    let (start, end) = (context.data(), context.data_end());
    let from = start + at;
    // The sum is hidden from the compiler, which would otherwise derive one check from the other.
    (from + 4 * words <= end && one_register(start + 2 * ADDRESS_BYTES) <= end).then_some((start, from))
}

/// Writes words to the packet at this address.
#[inline(always)]
unsafe fn write<const WORDS: usize>(from: usize, words: &[u32; WORDS]) {
    for (position, word) in words.iter().enumerate() {
        // SAFETY: the caller has checked the packet's end.
        unsafe { store_u32(from + 4 * position, *word) };
    }
}

/// Swaps the Ethernet addresses at the start of a frame.
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

/// Returns the XDP action for the packet that was made a reset.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn way() -> u32 {
    match maps::parsed().map(way_of) {
        Some(Way::On) => XDP_PASS,
        Some(Way::Back) => XDP_TX,
        None => XDP_DROP,
    }
}

/// Stores a whole word at any address, the counterpart of `load!` in [`crate::packet`].
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
