//! A packet at TCX ingress: a socket buffer of the network stack.
//!
//! A buffer may hold several merged packets. The driver may have moved the first VLAN tag out of the bytes. Some bytes
//! cannot be read in place, and there may be no Ethernet header.
//!
//! Offsets always count an Ethernet header, so that all other code works as it does at XDP.

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

/// Context that the kernel passes to the program.
pub(crate) type Raw = __sk_buff;
/// The context as aya wraps it.
pub(crate) type Context = TcContext;

/// [`ratelimit_common::layout::HAS_LINK_HEADER`], a constant to the verifier, which drops the branch that does not
/// apply.
#[unsafe(no_mangle)]
static HAS_LINK_HEADER: Global<u8> = Global::new(1);

/// Buffer for the bytes that [`beyond`] reads.
#[map]
static BEYOND: PerCpuArray<Beyond> = PerCpuArray::with_max_entries(1, 0);
/// Counts of merged packets for the current frame.
#[map]
static MERGED: PerCpuArray<Merged> = PerCpuArray::with_max_entries(1, 0);

/// Buffer of the longest read.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Beyond([u64; BEYOND_WORDS]);

const BEYOND_WORDS: usize = 8;
const BEYOND_BYTES: usize = BEYOND_WORDS * WORD_BYTES;
const WORD_BYTES: usize = size_of::<u64>();

/// Length of an Ethernet header, offset of its type, and length of a VLAN tag, in bytes.
const ETHERNET_BYTES: usize = 14;
const ETHER_TYPE_AT: usize = 12;
const TAG_BYTES: usize = 4;

/// The number of merged packets, and the header bytes of all but the first. The bytes are counted from the IP header
/// on, and for the whole frame on the wire.
#[derive(Clone, Copy)]
#[repr(C)]
struct Merged {
    packets: u32,
    ip_bytes: u32,
    frame_bytes: u32,
    /// Payload bytes of each packet but the last; 0 if the frame is one packet.
    payload_bytes: u32,
}

impl Merged {
    /// A frame that is one packet, as nearly all frames are.
    const ALONE: Self = Self { packets: 1, ip_bytes: 0, frame_bytes: 0, payload_bytes: 0 };
}

/// Reads one field of the context. Volatile: pointers into the packet are read where they are needed and not kept. The
/// paths after a read then look alike to the verifier.
macro_rules! field {
    ($raw:expr, $name:ident) => {
        // SAFETY: the context is valid for the run of the program, and the kernel rewrites this load to its own fields.
        unsafe { (&raw const (*$raw).$name).read_volatile() }
    };
}

/// Returns the kernel's context pointer.
#[inline(always)]
pub(crate) const fn raw(ctx: &Context) -> *mut Raw {
    ctx.skb.skb
}

#[inline(always)]
fn has_link_header() -> bool {
    HAS_LINK_HEADER.load() != 0
}

/// Returns the bytes of the Ethernet header that offsets count and the buffer lacks: 0 or 14.
#[inline(always)]
fn absent() -> usize {
    if has_link_header() { 0 } else { ETHERNET_BYTES }
}

/// Reader of the frame's bytes.
pub(crate) struct Reader {
    len: usize,
}

impl Reader {
    #[inline(always)]
    pub(crate) fn of(ctx: &Context) -> Self {
        Self { len: len(ctx) }
    }

    /// Returns the length of the whole frame.
    #[inline(always)]
    pub(crate) const fn known_len(&self) -> usize {
        self.len
    }

    /// Returns the bytes at `offset`, if the frame has all of them.
    #[inline(always)]
    pub(crate) fn bytes<const N: usize>(&self, ctx: &Context, offset: usize) -> Option<[u8; N]> {
        const { assert!(N <= BEYOND_BYTES) };
        if has_link_header() {
            let (start, end) = (field!(raw(ctx), data) as usize, field!(raw(ctx), data_end) as usize);
            // Mask the offset that was compared. After a first read has shown that an offset is too large, Linux 6.12
            // derives wrong bounds for the next one (`REG INVARIANTS VIOLATION`).
            if offset <= OFFSET_MAX
                && let Some(bytes) = direct(start, end, one_register(offset) & OFFSET_MAX)
            {
                return Some(bytes);
            }
        } else if offset == ETHER_TYPE_AT {
            // The type is the only field of an Ethernet header that is ever read.
            let mut bytes = [0; N];
            bytes[..2].copy_from_slice(&(field!(raw(ctx), protocol) as u16).to_ne_bytes());
            return Some(bytes);
        }
        beyond(ctx, offset)
    }
}

/// Returns the bytes at `offset` by a helper call. Inlined, because the longest call chain ends here and has no stack
/// left. // most packets need this for the payload only
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

/// Copies this many bytes from `offset` into `room`, which must hold them. Returns `None` if the frame lacks them.
#[inline(always)]
fn load(ctx: &Context, offset: usize, room: *mut u8, bytes: usize) -> Option<()> {
    let (ctx, room, bytes) = (raw(ctx).cast(), room.cast(), bytes as u32);
    let result = if has_link_header() {
        // SAFETY: the context is valid for the run of the program, and there is room for so many bytes.
        unsafe { bpf_skb_load_bytes(ctx, offset as u32, room, bytes) }
    } else {
        let offset = offset.checked_sub(ETHERNET_BYTES)? as u32;
        // Count from the IP header, whatever a tunnel left before it.
        let from = bpf_hdr_start_off::BPF_HDR_START_NET;
        // SAFETY: as above.
        unsafe { bpf_skb_load_bytes_relative(ctx, offset, room, bytes, from) }
    };
    (result == 0).then_some(())
}

/// Returns the frame's length in bytes, with the Ethernet header that may be absent.
#[inline(always)]
pub(crate) fn len(ctx: &Context) -> usize {
    field!(raw(ctx), len) as usize + absent()
}

/// Returns the index of the interface that received the frame.
#[inline(always)]
pub(crate) fn interface_index(ctx: &Context) -> u32 {
    field!(raw(ctx), ifindex)
}

/// Returns the number of VLAN tags that the driver moved out of the frame: 0 or 1.
#[inline(always)]
pub(crate) fn tags_before(ctx: &Context) -> usize {
    (field!(raw(ctx), vlan_present) != 0) as usize
}

/// Returns the length in bytes of the IPv4 packet at `start`. `claimed` is its header's total length. Merged packets of
/// more than 65 535 bytes claim 0 (`iph_set_totlen`, include/linux/ip.h, Linux 6.18).
#[inline(always)]
pub(crate) fn ipv4_bytes(ctx: &Context, start: usize, claimed: u16) -> u32 {
    if claimed == 0 && field!(raw(ctx), gso_size) != 0 {
        return len(ctx).saturating_sub(start) as u32;
    }
    claimed as u32
}

/// Counts the packets that the frame was merged from. Must run before anything else reads them.
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

/// Counts the packets that a frame was merged from, by its headers. Returns 0.
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
        // A frame of a virtual machine or tap device: no one has counted its packets yet.
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

/// Returns the bytes as they were on the wire: with the offloaded tag, and without an Ethernet header that did not
/// exist.
#[inline(always)]
fn link_bytes(ctx: &Context, bytes: u32) -> u32 {
    bytes.saturating_sub(absent() as u32) + (tags_before(ctx) * TAG_BYTES) as u32
}

#[inline(always)]
fn merged() -> Merged {
    // SAFETY: as in `begin`.
    MERGED.get_ptr(0).map_or(Merged::ALONE, |merged| unsafe { *merged })
}

/// Returns the packets and wire bytes that a frame of `bytes` bytes counts as.
#[inline(always)]
pub(crate) fn counted(ctx: &Context, bytes: usize) -> (u64, u64) {
    let merged = merged();
    (merged.packets as u64, link_bytes(ctx, bytes as u32) as u64 + merged.frame_bytes as u64)
}

/// Returns a limit's [`At`] with its position and side. Both are derived from `at` here, because the compiler would
/// otherwise keep all three on the stack.
#[inline(always)]
pub(crate) fn told_by(at: At, _: usize, _: Side) -> (At, usize, Side) {
    let at = At(one_register(at.0 as usize) as u32);
    (at, at.position(), at.side())
}

/// Runs [`Sought::at`] on a copy of the bytes around `next`. One copy uses less stack, at the end of one of the longest
/// call chains.
#[inline(always)]
pub(crate) fn what_is_at(frame: &PacketFrame, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
    Around::of(frame.context(), (next as usize).wrapping_sub(AROUND_BEFORE), AROUND_BYTES)
        .map_or(Hit::None, |around| sought.at(&around, start, next, end))
}

/// Returns [`Sought::likely`]. One helper call copies the block and the words around it, so no word needs its own call.
#[inline(always)]
pub(crate) fn likely(frame: &PacketFrame, sought: Sought, start: u32, block: u32, end: u32) -> Likely {
    let from = (block as usize).wrapping_sub(WORD_BYTES);
    Around::of(frame.context(), from, BLOCK_AROUND_BYTES)
        .map_or(Likely::default(), |around| sought.likely(&around, start, block, end))
}

/// Length in bytes of a block with the words around it.
const BLOCK_AROUND_BYTES: usize = BLOCK_BYTES as usize + 2 * WORD_BYTES;
const _: () = assert!(BEYOND_BYTES >= BLOCK_AROUND_BYTES);

/// Copy of the bytes around a place in the payload.
struct Around {
    from: usize,
    bytes: usize,
    room: usize,
}

/// Bytes copied before a place, and in total. HTTP/2's preface has 11 bytes before the place that identifies it, and
/// one check reads at most 20 bytes behind that place.
const AROUND_BEFORE: usize = 12;
const AROUND_BYTES: usize = 32;
const _: () = assert!(AROUND_BYTES >= AROUND_BEFORE + 20);
const _: () = assert!(BEYOND_BYTES >= AROUND_BYTES && BEYOND_BYTES.is_power_of_two());

impl Around {
    #[inline(always)]
    /// Copies up to `most` bytes of the frame, from offset `from` on. Returns `None` if the frame ends before it.
    fn of(ctx: *mut Raw, from: usize, most: usize) -> Option<Self> {
        let context = Context::new(ctx);
        let mut bytes = one_register(len(&context).checked_sub(from)?);
        if bytes > most {
            bytes = most;
        }
        // At least 1, as the helper refuses 0. For 0, the mask yields 64 bytes, which the frame does not have.
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
        // SAFETY: the bytes are there, as just checked: this CPU's element, which lives as long as the map.
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

/// Returns the bytes that limits of bytes charge for the current frame. `ip_bytes` is the length of its IP packet.
#[inline(always)]
pub(crate) fn charged_bytes(ip_bytes: u32) -> u32 {
    ip_bytes.wrapping_add(merged().ip_bytes)
}

/// Returns the amount that this limit charges for the frame, where one packet is charged `amount`. Merged datagrams
/// that open several connections are charged once per connection by limits of requests and bytes too. No client sends
/// such datagrams.
#[inline(always)]
pub(crate) fn charged(deferred: &Deferred, limit: &Limit, amount: u64) -> u64 {
    let times = if limit.unit == Unit::Packets as u8 { deferred.packets } else { opened(deferred) };
    amount * u64::from(times)
}

/// Returns the number of connections that the merged datagrams open. Volatile: another function has counted them.
#[inline(always)]
fn opened(deferred: &Deferred) -> u32 {
    // SAFETY: a reference.
    unsafe { (&raw const deferred.opened).read_volatile() }
}

/// Maximum number of datagrams that the stack merges (`UDP_MAX_SEGMENTS`, include/linux/udp.h, Linux 6.18). Each
/// datagram beyond it counts as a request.
const DATAGRAMS_MAX: u32 = 128;

/// Returns the first of the datagrams that the current one was merged from.
#[inline(always)]
pub(crate) fn first_of(datagram: Datagram) -> Datagram {
    match merged().payload_bytes {
        0 => datagram,
        each => Datagram { payload_bytes: each.min(datagram.payload_bytes.into()) as u16, ..datagram },
    }
}

/// Judges the other datagrams that were merged with the first one, each of which begins like it. `opens` says whether
/// the first one opens a connection.
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

/// Advances the flow by a merged datagram with this many payload bytes, which begins like the current one. Returns its
/// requests. If the guard counts an earlier datagram, the flow stays due.
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

/// True if a packet can be turned into its own answer. TCX cannot do that, because the bytes lack the frame's VLAN tag.
pub(crate) const ANSWERS: bool = false;

/// Does nothing: see [`ANSWERS`].
#[inline(always)]
pub(crate) const fn answer<const IP: usize, const OPTIONS: usize>(
    _: *mut Raw,
    _: usize,
    _: &Page<IP, OPTIONS>,
) -> bool {
    false
}

/// Index of the header word, in IPv4 and in IPv6, that holds the source address or part of it.
const SOURCE_WORD: usize = 3;

/// Replaces everything behind the link headers by this packet. Returns false if that fails; the frame must not pass
/// then. A frame of merged packets becomes one packet, and a checksum that the device computed over all of them is
/// corrected.
#[inline(always)]
pub(crate) fn replace<const WORDS: usize>(ctx: *mut Raw, at: usize, _: Way, packet: &[u32; WORDS]) -> bool {
    let bytes = 4 * WORDS;
    let Some(at) = at.checked_sub(absent()) else { return false };
    if (field!(ctx, len) as usize) < at + bytes {
        return false;
    }
    let context = Context::new(ctx);
    // The helper writes from the buffer's first byte on, which need not be the packet's first byte.
    if !has_link_header() && beyond_start(&context, at + 4 * SOURCE_WORD) != Some(packet[SOURCE_WORD]) {
        return false;
    }
    // SAFETY: the context is valid for the run of the program. No earlier pointer into the packet is used afterwards.
    if unsafe { bpf_skb_change_tail(ctx, (at + bytes) as u32, 0) } != 0 {
        return false;
    }
    let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
    // SAFETY: as above, and the packet has this many bytes.
    unsafe { bpf_skb_store_bytes(ctx, at as u32, packet.as_ptr().cast(), bytes as u32, flags) == 0 }
}

/// Returns the word at this offset from the buffer's first byte.
#[inline(always)]
fn beyond_start(ctx: &Context, offset: usize) -> Option<u32> {
    let mut word = 0_u32;
    // SAFETY: the context is valid for the run of the program, and `word` holds 4 bytes.
    let result = unsafe { bpf_skb_load_bytes(raw(ctx).cast(), offset as u32, (&raw mut word).cast(), 4) };
    (result == 0).then_some(word)
}
