//! A packet at TCX ingress: a buffer of the stack's. It may be several packets that were put together, its first tag is
//! not among its bytes, not all of those can be read in place, and there may be no Ethernet header.
//!
//! Offsets are those of a frame with such a header all the same, so that all else is as it is at XDP.

use aya_ebpf::Global;
use aya_ebpf::bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM, bpf_hdr_start_off};
use aya_ebpf::helpers::generated::{
    bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_load_bytes_relative, bpf_skb_store_bytes,
};
use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::TcContext;
use ratelimit_common::conversation::{BLOCK_BYTES, Hit, Likely, Sought};
use ratelimit_common::flow::{self, Datagram};
use ratelimit_common::hold::At;
use ratelimit_common::layout::{Limit, Unit};
use ratelimit_common::packet::Frame;
use ratelimit_common::refusal::{Page, Way};
use ratelimit_common::verification::Side;

use crate::flows::Others;
use crate::maps::{self, Deferred, frame_is};
use crate::packet::{OFFSET_MAX, PacketFrame, direct, forget, load_u32, load_u64, one_register, parse_frame};

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

const BEYOND_WORDS: usize = 8;
const BEYOND_BYTES: usize = BEYOND_WORDS * WORD_BYTES;
const WORD_BYTES: usize = size_of::<u64>();

/// An Ethernet header, where its type is, and a VLAN tag.
const ETHERNET_BYTES: usize = 14;
const ETHER_TYPE_AT: usize = 12;
const TAG_BYTES: usize = 4;

/// How many packets were put together, and what each but the first had of its own: headers from IP on, and its frame's.
#[derive(Clone, Copy)]
#[repr(C)]
struct Merged {
    packets: u32,
    ip_bytes: u32,
    frame_bytes: u32,
    /// Payload of each packet but the last; 0 of one packet.
    payload_bytes: u32,
}

impl Merged {
    /// One packet, as nearly all are.
    const ALONE: Self = Self { packets: 1, ip_bytes: 0, frame_bytes: 0, payload_bytes: 0 };
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
            // Cut off what was compared: where a first read has shown that an offset is too large, Linux 6.12 is wrong
            // about the next one, of which it knows as much, and knows no bounds of it (`REG INVARIANTS VIOLATION`).
            if offset <= OFFSET_MAX
                && let Some(bytes) = direct(start, end, one_register(offset) & OFFSET_MAX)
            {
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
    load(ctx, offset, room.cast(), N)?;
    let mut bytes = [0; N];
    for at in (0..N).step_by(WORD_BYTES) {
        // SAFETY: this CPU's element, which lives as long as the map and has no other writer.
        let word = unsafe { (&raw const (*room).0[at / WORD_BYTES]).read_volatile() }.to_ne_bytes();
        let len = if N - at < WORD_BYTES { N - at } else { WORD_BYTES };
        bytes[at..at + len].copy_from_slice(&word[..len]);
    }
    Some(bytes)
}

/// Copies so many bytes, for which there is room.
#[inline(always)]
fn load(ctx: &Context, offset: usize, room: *mut u8, bytes: usize) -> Option<()> {
    let (ctx, room, bytes) = (raw(ctx).cast(), room.cast(), bytes as u32);
    let result = if has_link_header() {
        // SAFETY: the context is valid for the run of the program, and there is room for so many bytes.
        unsafe { bpf_skb_load_bytes(ctx, offset as u32, room, bytes) }
    } else {
        let offset = offset.checked_sub(ETHERNET_BYTES)? as u32;
        // From the IP header on, whatever else a tunnel has left before it.
        let from = bpf_hdr_start_off::BPF_HDR_START_NET;
        // SAFETY: likewise.
        unsafe { bpf_skb_load_bytes_relative(ctx, offset, room, bytes, from) }
    };
    (result == 0).then_some(())
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
    let Some(deferred) = maps::deferred() else { return };
    (deferred.packets, deferred.opened) = (1, 1);
    if field!(raw(ctx), gso_size) != 0 {
        let _always_zero = count_merged(raw(ctx));
    }
}

/// Counts the packets that a frame was put together of, by its headers. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_merged(ctx: *mut Raw) -> u32 {
    let (Some(merged), Some(parsed), Some(deferred)) = (MERGED.get_ptr_mut(0), maps::parsed_mut(), maps::deferred())
    else {
        return 0;
    };
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
    let payload_bytes = field!(ctx, gso_size);
    // SAFETY: as in `begin`.
    unsafe { *merged = Merged { packets, ip_bytes, frame_bytes, payload_bytes } };
    deferred.packets = packets;
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

/// The same, with its position and its side taken out of it, where the compiler would keep all three on the stack.
#[inline(always)]
pub(crate) fn told_by(at: At, _: usize, _: Side) -> (At, usize, Side) {
    let at = At(one_register(at.0 as usize) as u32);
    (at, at.position(), at.side())
}

/// [`Sought::at`]. Of the frame only what is around that place is copied, all at once: so much less is on the stack here,
/// at the end of one of the longest chains of calls.
#[inline(always)]
pub(crate) fn what_is_at(frame: &PacketFrame, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
    Around::of(frame.context(), (next as usize).wrapping_sub(AROUND_BEFORE), AROUND_BYTES)
        .map_or(Hit::None, |around| sought.at(&around, start, next, end))
}

/// Returns [`Sought::likely`]. The block and what is around it are copied once, so that no word is a helper call.
#[inline(always)]
pub(crate) fn likely(frame: &PacketFrame, sought: Sought, start: u32, block: u32, end: u32) -> Likely {
    let from = (block as usize).wrapping_sub(WORD_BYTES);
    Around::of(frame.context(), from, BLOCK_AROUND_BYTES)
        .map_or(Likely::default(), |around| sought.likely(&around, start, block, end))
}

/// Length of a block with the words around it.
const BLOCK_AROUND_BYTES: usize = BLOCK_BYTES as usize + 2 * WORD_BYTES;
const _: () = assert!(BEYOND_BYTES >= BLOCK_AROUND_BYTES);

/// What is around a place in the payload.
struct Around {
    from: usize,
    bytes: usize,
    room: usize,
}

/// So many bytes before the place, and as many behind it as there is room for: HTTP/2's preface has 11 before the place
/// that it is found by, and what is read of it at once ends 20 behind that.
const AROUND_BEFORE: usize = 12;
const AROUND_BYTES: usize = 32;
const _: () = assert!(AROUND_BYTES >= AROUND_BEFORE + 20);
const _: () = assert!(BEYOND_BYTES >= AROUND_BYTES && BEYOND_BYTES.is_power_of_two());

impl Around {
    #[inline(always)]
    /// Copies so many bytes from there on, or as many as there are.
    fn of(ctx: *mut Raw, from: usize, most: usize) -> Option<Self> {
        let context = Context::new(ctx);
        let mut bytes = one_register(len(&context).checked_sub(from)?);
        if bytes > most {
            bytes = most;
        }
        // 1 at least. Of none so many are asked for, which are not there.
        let bytes = (one_register(bytes.wrapping_sub(1)) & (BEYOND_BYTES - 1)) + 1;
        let room = BEYOND.get_ptr_mut(0)?;
        load(&context, from, room.cast(), bytes)?;
        Some(Self { from, bytes, room: room as usize })
    }
}

impl Frame for Around {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        const { assert!(N == 8 || N == 4) };
        let at = one_register(offset.wrapping_sub(self.from));
        if at > BEYOND_BYTES - N || at + N > self.bytes {
            return None;
        }
        let mut bytes = [0; N];
        // SAFETY: so many bytes are there, as just checked: this CPU's element, which lives as long as the map.
        let word = unsafe { if N == 8 { load_u64(self.room + at) } else { load_u32(self.room + at).into() } };
        bytes.copy_from_slice(&word.to_le_bytes()[..N]);
        Some(bytes)
    }

    #[inline(always)]
    fn len(&self, _: usize) -> usize {
        self.from + self.bytes
    }

    #[inline(always)]
    fn forget(&self, offset: usize) -> usize {
        forget(offset as u32) as usize
    }
}

/// What the packet at hand is charged by limits of bytes, whose IP packet has so many.
#[inline(always)]
pub(crate) fn charged_bytes(ip_bytes: u32) -> u32 {
    ip_bytes.wrapping_add(merged().ip_bytes)
}

/// What it is charged by this limit, of one packet. Joined datagrams that open several connections, which no client
/// sends, are charged as often by limits of requests and bytes too.
#[inline(always)]
pub(crate) fn charged(deferred: &Deferred, limit: &Limit, amount: u64) -> u64 {
    let times = if limit.unit == Unit::Packets as u8 { deferred.packets } else { opened(deferred) };
    amount * u64::from(times)
}

/// How many connections the datagrams open. Volatile: a function of its own has counted them.
#[inline(always)]
fn opened(deferred: &Deferred) -> u32 {
    // SAFETY: a reference.
    unsafe { (&raw const deferred.opened).read_volatile() }
}

/// The most datagrams that the stack joins (`UDP_MAX_SEGMENTS`, include/linux/udp.h, Linux 6.18). Each beyond them is a
/// request.
const DATAGRAMS_MAX: u32 = 128;

/// The first of the datagrams that the one at hand was put together of.
#[inline(always)]
pub(crate) fn first_of(datagram: Datagram) -> Datagram {
    match merged().payload_bytes {
        0 => datagram,
        each => Datagram { payload_bytes: each.min(datagram.payload_bytes.into()) as u16, ..datagram },
    }
}

/// Judges the others that came merged with a datagram, each of which begins as that one does. `opens` says whether that
/// one opens a connection.
#[inline(always)]
pub(crate) fn others(deferred: &mut Deferred, datagram: Datagram, opens: bool) -> Others {
    let Merged { packets, payload_bytes, .. } = merged();
    if payload_bytes == 0 {
        return Others { requests: 0, opens };
    }
    deferred.opened = opens as u32;
    let mut requests = packets.saturating_sub(DATAGRAMS_MAX);
    for at in 1..DATAGRAMS_MAX {
        if at >= packets {
            break;
        }
        let left = u32::from(datagram.payload_bytes).saturating_sub(at * payload_bytes);
        requests += next_datagram(left.min(payload_bytes));
    }
    let opened = opened(deferred);
    deferred.opened = opened.max(1);
    Others { requests, opens: opened != 0 }
}

/// Goes on by a datagram with so much payload that begins as the one at hand. Returns the requests that it is. A flow
/// whose guard is to count an earlier one of them stays so.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn next_datagram(payload_bytes: u32) -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else { return 0 };
    let Some(config) = maps::config(deferred.generation()) else { return 0 };
    let speaks_quic = maps::rule(config, deferred.rule()).speaks_quic(parsed.port());
    let datagram = Datagram { payload_bytes: payload_bytes as u16, ..parsed.datagram(speaks_quic) };
    let was_due = deferred.flow.is_due();
    let step = flow::step(Some(deferred.flow), deferred.now(), datagram);
    deferred.flow = step.newest;
    if was_due {
        deferred.flow.make_due();
    }
    deferred.opened += step.opens as u32;
    step.requests
}

/// Whether a packet can become its own answer. Not from here, where the tag of a frame is not among its bytes.
pub(crate) const ANSWERS: bool = false;

/// [`ANSWERS`].
#[inline(always)]
pub(crate) const fn answer<const IP: usize, const OPTIONS: usize>(
    _: *mut Raw,
    _: usize,
    _: &Page<IP, OPTIONS>,
) -> bool {
    false
}

/// The word of a packet's headers that says, in IPv4 as in IPv6, where it is from, or some of that.
const SOURCE_WORD: usize = 3;

/// Has the frame be its link's headers and this packet; false where it cannot, and it is not to go on then. What was put
/// together of several packets is one from here on, and a checksum that the device has made of all is mended.
#[inline(always)]
pub(crate) fn replace<const WORDS: usize>(ctx: *mut Raw, at: usize, _: Way, packet: &[u32; WORDS]) -> bool {
    let bytes = 4 * WORDS;
    let Some(at) = at.checked_sub(absent()) else { return false };
    if (field!(ctx, len) as usize) < at + bytes {
        return false;
    }
    let context = Context::new(ctx);
    // Bytes are written from the buffer's first one on, which need not be where the packet begins.
    if !has_link_header() && beyond_start(&context, at + 4 * SOURCE_WORD) != Some(packet[SOURCE_WORD]) {
        return false;
    }
    // SAFETY: the context is valid for the run of the program. What was known of the packet's bytes is not used after.
    if unsafe { bpf_skb_change_tail(ctx, (at + bytes) as u32, 0) } != 0 {
        return false;
    }
    let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
    // SAFETY: likewise, and the packet has so many bytes.
    unsafe { bpf_skb_store_bytes(ctx, at as u32, packet.as_ptr().cast(), bytes as u32, flags) == 0 }
}

/// The word at this offset from the buffer's first byte.
#[inline(always)]
fn beyond_start(ctx: &Context, offset: usize) -> Option<u32> {
    let mut word = 0_u32;
    // SAFETY: the context is valid for the run of the program, and there is room for so many bytes.
    let result = unsafe { bpf_skb_load_bytes(raw(ctx).cast(), offset as u32, (&raw mut word).cast(), 4) };
    (result == 0).then_some(word)
}
