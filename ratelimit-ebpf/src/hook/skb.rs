//! A packet at TCX ingress: a buffer of the stack's. It may be several packets that were put together, its first tag is
//! not among its bytes, not all of those can be read in place, and there may be no Ethernet header.
//!
//! Offsets are those of a frame with such a header all the same, so that all else is as it is at XDP.

use aya_ebpf::Global;
use aya_ebpf::bindings::{__sk_buff, bpf_hdr_start_off};
use aya_ebpf::helpers::generated::{bpf_skb_load_bytes, bpf_skb_load_bytes_relative};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::TcContext;
use ratelimit_common::layout::{Limit, Unit};

use crate::maps::{self, frame_is};
use crate::packet::{direct, parse_frame};

/// What the kernel calls the program with.
pub(crate) type Raw = __sk_buff;
/// The same, as a value.
pub(crate) type Context = TcContext;

/// [`ratelimit_common::layout::HAS_LINK_HEADER`]. The verifier knows it, and drops what depends on the other.
#[unsafe(no_mangle)]
static HAS_LINK_HEADER: Global<u8> = Global::new(1);

/// Where [`beyond`] leaves what it has read.
#[map]
static BEYOND: PerCpuArray<Beyond> = PerCpuArray::with_max_entries(1, 0);
/// What the frame at hand counts as.
#[map]
static MERGED: PerCpuArray<Merged> = PerCpuArray::with_max_entries(1, 0);

/// As many bytes as are read at once at most.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Beyond([u64; BEYOND_WORDS]);

const BEYOND_WORDS: usize = 4;
const BEYOND_BYTES: usize = BEYOND_WORDS * size_of::<u64>();

/// An Ethernet header, where its type is, and a VLAN tag.
const ETHERNET_BYTES: usize = 14;
const ETHER_TYPE_AT: usize = 12;
const TAG_BYTES: usize = 4;

/// How many packets were put together, and what each but the first had for itself: headers, of IP and above, and those
/// of the frame.
#[derive(Clone, Copy)]
#[repr(C)]
struct Merged {
    packets: u32,
    ip_bytes: u32,
    frame_bytes: u32,
}

impl Merged {
    /// One packet, as nearly all are.
    const ALONE: Self = Self { packets: 1, ip_bytes: 0, frame_bytes: 0 };
}

/// One field of the context. Volatile: pointers to the packet are read where they are needed and not kept, so that to
/// the verifier the ways that lead on from a read are one.
macro_rules! field {
    ($raw:expr, $name:ident) => {
        // SAFETY: the context is valid for the run of the program, and the kernel rewrites this load to its own fields.
        unsafe { (&raw const (*$raw).$name).read_volatile() }
    };
}

/// The context again.
#[inline(always)]
pub(crate) const fn raw(ctx: &Context) -> *mut Raw {
    ctx.skb.skb
}

#[inline(always)]
fn has_link_header() -> bool {
    HAS_LINK_HEADER.load() != 0
}

/// Bytes of an Ethernet header that offsets count and the frame does not have.
#[inline(always)]
fn absent() -> usize {
    if has_link_header() { 0 } else { ETHERNET_BYTES }
}

/// Reads the frame.
pub(crate) struct Reader {
    len: usize,
}

impl Reader {
    #[inline(always)]
    pub(crate) fn of(ctx: &Context) -> Self {
        Self { len: len(ctx) }
    }

    /// The frame's length, all of it.
    #[inline(always)]
    pub(crate) const fn known_len(&self) -> usize {
        self.len
    }

    /// The bytes at `offset`, if all of them are there.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, ctx: &Context, offset: usize) -> Option<[u8; N]> {
        const { assert!(N <= BEYOND_BYTES) };
        if has_link_header() {
            let (start, end) = (field!(raw(ctx), data) as usize, field!(raw(ctx), data_end) as usize);
            if let Some(bytes) = direct(start, end, offset) {
                return Some(bytes);
            }
        } else if offset == ETHER_TYPE_AT {
            // All that is ever read of an Ethernet header.
            let mut bytes = [0; N];
            bytes[..2].copy_from_slice(&(field!(raw(ctx), protocol) as u16).to_ne_bytes());
            return Some(bytes);
        }
        beyond(ctx, offset)
    }
}

/// The bytes at `offset` wherever they are. In place and not a function: the longest chain of calls ends here, and has no
/// stack left. // a helper call: of most packets only the payload is not read in place
#[inline(always)]
fn beyond<const N: usize>(ctx: &Context, offset: usize) -> Option<[u8; N]> {
    let room = BEYOND.get_ptr_mut(0)?;
    let ctx = raw(ctx).cast();
    let result = if has_link_header() {
        // SAFETY: the context is valid for the run of the program, and there is room for so many bytes.
        unsafe { bpf_skb_load_bytes(ctx, offset as u32, room.cast(), N as u32) }
    } else {
        let offset = offset.checked_sub(ETHERNET_BYTES)? as u32;
        // From the IP header on, whatever else a tunnel has left before it.
        let from = bpf_hdr_start_off::BPF_HDR_START_NET;
        // SAFETY: likewise.
        unsafe { bpf_skb_load_bytes_relative(ctx, offset, room.cast(), N as u32, from) }
    };
    if result != 0 {
        return None;
    }
    let mut bytes = [0; N];
    for at in (0..N).step_by(size_of::<u64>()) {
        // SAFETY: this CPU's element, which lives as long as the map and has no other writer.
        let word = unsafe { (&raw const (*room).0[at / size_of::<u64>()]).read_volatile() }.to_ne_bytes();
        let len = if N - at < size_of::<u64>() { N - at } else { size_of::<u64>() };
        bytes[at..at + len].copy_from_slice(&word[..len]);
    }
    Some(bytes)
}

/// The frame's length, with the Ethernet header that it may not have.
#[inline(always)]
pub(crate) fn len(ctx: &Context) -> usize {
    field!(raw(ctx), len) as usize + absent()
}

/// The interface that the frame came in by.
#[inline(always)]
pub(crate) fn interface_index(ctx: &Context) -> u32 {
    field!(raw(ctx), ifindex)
}

/// VLAN tags that are not among the bytes: the first.
#[inline(always)]
pub(crate) fn tags_before(ctx: &Context) -> usize {
    (field!(raw(ctx), vlan_present) != 0) as usize
}

/// The length that an IPv4 header claims, at this offset. Packets that were put together to more than 65 535 bytes
/// claim none (`iph_set_totlen`, include/linux/ip.h, Linux 6.18).
#[inline(always)]
pub(crate) fn ipv4_bytes(ctx: &Context, start: usize, claimed: u16) -> u32 {
    if claimed == 0 && field!(raw(ctx), gso_size) != 0 {
        return len(ctx).saturating_sub(start) as u32;
    }
    claimed as u32
}

/// Finds out how many packets the frame is. To be called first.
#[inline(always)]
pub(crate) fn begin(ctx: &Context) {
    let Some(merged) = MERGED.get_ptr_mut(0) else { return };
    // SAFETY: this CPU's element, which lives as long as the map; nobody has borrowed it.
    unsafe { *merged = Merged::ALONE };
    if field!(raw(ctx), gso_size) != 0 {
        let _always_zero = count_merged(raw(ctx));
    }
}

/// Counts the packets that a frame was put together of, by its headers. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_merged(ctx: *mut Raw) -> u32 {
    let (Some(merged), Some(parsed)) = (MERGED.get_ptr_mut(0), maps::parsed_mut()) else { return 0 };
    let _always_zero = parse_frame(ctx, parsed);
    let payload = if parsed.is(frame_is::TCP) {
        parsed.segment().payload_bytes
    } else if parsed.is(frame_is::UDP) {
        parsed.datagram(false).payload_bytes as u32
    } else {
        0
    };
    let mut packets = field!(ctx, gso_segs);
    if packets == 0 {
        // Of a virtual machine or a tap device: nobody has counted them yet.
        packets = payload.div_ceil(field!(ctx, gso_size).max(1)).max(1);
    }
    let (mut ip_bytes, mut frame_bytes) = (0, 0);
    if payload != 0 {
        let context = Context::new(ctx);
        let (whole, more) = (len(&context) as u32, packets - 1);
        ip_bytes = parsed.ip_bytes().saturating_sub(payload).wrapping_mul(more);
        frame_bytes = link_bytes(&context, whole.saturating_sub(payload)).wrapping_mul(more);
    }
    // SAFETY: as in `begin`.
    unsafe { *merged = Merged { packets, ip_bytes, frame_bytes } };
    0
}

/// So many bytes as they were on the wire: with the tag that was taken off, without a header that was not there.
#[inline(always)]
fn link_bytes(ctx: &Context, bytes: u32) -> u32 {
    bytes.saturating_sub(absent() as u32) + (tags_before(ctx) * TAG_BYTES) as u32
}

#[inline(always)]
fn merged() -> Merged {
    // SAFETY: as in `begin`.
    MERGED.get_ptr(0).map_or(Merged::ALONE, |merged| unsafe { *merged })
}

/// How many packets and bytes the frame counts as, which has so many.
#[inline(always)]
pub(crate) fn counted(ctx: &Context, bytes: usize) -> (u64, u64) {
    let merged = merged();
    (merged.packets as u64, link_bytes(ctx, bytes as u32) as u64 + merged.frame_bytes as u64)
}

/// What the packet at hand is charged by limits of bytes, whose IP packet has so many.
#[inline(always)]
pub(crate) fn charged_bytes(ip_bytes: u32) -> u32 {
    ip_bytes.wrapping_add(merged().ip_bytes)
}

/// What it is charged by this limit, of one packet.
#[inline(always)]
pub(crate) fn charged(limit: &Limit, amount: u64) -> u64 {
    if limit.unit == Unit::Packets as u8 { amount * merged().packets as u64 } else { amount }
}
