//! Parser: classifies a frame for the limiter. It reads bytes through [`Frame`] only, and is shared by kernel, host and
//! fuzzer.
//!
//! The network stack also drops what the parser calls malformed, so passing it does not evade a limit. A packet that
//! cannot be classified for certain counts as opening a connection, for example with its flags cut off.

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::udp::UdpHdr;
use network_types::vlan::VlanHdr;

use crate::source::Address;

mod head;

pub use head::{Destination, Head, closes, is_of_other_protocol, plain_segment, source_port};

/// Maximum number of VLAN tags that the parser skips: one, or two as in QinQ; see [`Parsed::TooManyTags`].
pub const VLAN_TAGS_MAX: usize = 2;

/// Maximum number of IPv6 extension headers that the parser skips. Linux itself accepts more; see
/// [`Target::UnparsableHeaders`].
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// Readable frame, from its Ethernet header on.
pub trait Frame {
    /// Returns the `N` bytes at `offset`, if all of them can be read. `N` is at least 2: the verifier does not follow
    /// how the compiler compares the end of a single byte (`find_good_pkt_pointers`, kernel/bpf/verifier.c, Linux
    /// 6.18).
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;

    /// Returns the frame's length in bytes. It includes the parts that [`Frame::bytes`] cannot reach: all buffers
    /// except the first.
    ///
    /// `at_least` is the length that the headers claim. A cheaper answer suffices if it shows that the claim is true.
    fn len(&self, at_least: usize) -> usize;

    /// Returns the number of VLAN tags that were taken off the frame.
    #[inline(always)]
    fn tags_before(&self) -> usize {
        0
    }

    /// Returns the length in bytes of the IPv4 packet whose header is at `start`. `claimed` is the header's total
    /// length.
    #[inline(always)]
    fn ipv4_bytes(&self, start: usize, claimed: u16) -> u32 {
        let _ = start;
        claimed as u32
    }

    /// Returns `offset`. A verifier that follows every path forgets here how the parser reached it. The code behind
    /// this call is then verified once, not once for each path.
    #[inline(always)]
    fn forget(&self, offset: usize) -> usize {
        offset
    }

    /// Returns `value`, like [`Frame::forget`] for 32 bits.
    #[inline(always)]
    fn forget_u32(&self, value: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "it had 32 bits")]
        let value = self.forget(value as usize) as u32;
        value
    }
}

impl Frame for &[u8] {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.get(offset..)?.first_chunk().copied()
    }

    #[inline(always)]
    fn len(&self, _: usize) -> usize {
        <[u8]>::len(self)
    }
}

/// Result of parsing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The frame is no IP packet.
    NotIp,
    /// The headers contradict themselves or end too early.
    Malformed,
    /// The frame has more than [`VLAN_TAGS_MAX`] tags. It is not malformed: Linux takes off any number of priority tags
    /// (`__netif_receive_skb_core`, net/core/dev.c, Linux 6.18), so the payload reaches the server.
    TooManyTags,
    /// The frame is an IP packet.
    Ip(Packet),
}

/// Parsed IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source address, which may be forged.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Length of the IP packet in bytes, headers included.
    pub ip_bytes: u32,
    /// Destination within the host: protocol and port.
    pub target: Target,
}

/// Classification of a packet's payload. Ports are in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// TCP segment.
    Tcp {
        /// Destination port.
        port: u16,
        /// True for a SYN without ACK, or if a tiny first fragment has cut off the flags.
        opening: bool,
        /// Facts about the segment's connection.
        segment: Segment,
        /// True for a first fragment. The rest of the segment is in other packets, which cannot be matched to it here.
        /// So it counts as one request, whatever begins in it, and leaves its connection's state unchanged.
        is_fragment: bool,
    },
    /// UDP datagram.
    Udp {
        /// Destination port.
        port: u16,
        /// Source port.
        source_port: u16,
        /// True if the datagram holds a QUIC Initial packet or may hold one: in an unknown version, after another
        /// packet, or in a part that a fragment cuts off.
        quic_initial: bool,
        /// True if the datagram begins with a short QUIC header, like a packet of an established connection.
        quic_short: bool,
        /// Number of bytes after the UDP header.
        payload_bytes: u16,
    },
    /// Fragment after the first: its ports were in another packet.
    Fragment {
        /// True if the fragment may belong to a TCP segment, and so may contain requests. The IPv4 header shows that.
        /// In IPv6, the header does not: reassembly uses the first fragment's next header (RFC 8200, section 4.5;
        /// `ip6_frag_queue`, net/ipv6/reassembly.c, Linux 6.18).
        may_be_tcp: bool,
    },
    /// Headers that the parser cannot follow to the ports; a network stack may still accept the packet. It has more
    /// than [`EXTENSION_HEADERS_MAX`] extension headers, or headers beyond the readable part. Or it is a first fragment
    /// that ends before its ports.
    UnparsableHeaders,
    /// Control messages that a host needs for its link and its path MTU: neighbour discovery, router advertisements,
    /// multicast listener reports, and ICMP errors. They are never counted.
    ControlTraffic,
    /// Any other protocol.
    Other,
}

/// Facts that a TCP segment states about its connection. Numbers are in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Source port.
    pub source_port: u16,
    /// Sequence number of the first payload byte. A SYN takes one number before it.
    pub sequence: u32,
    /// Acknowledgement number; 0 if the segment has none.
    pub acknowledged: u32,
    /// Offset of the payload in the frame.
    pub payload_at: u32,
    /// Number of payload bytes. Also 0 if a tiny first fragment has cut off the payload's offset.
    pub payload_bytes: u32,
    /// Flags of [`says`].
    pub says: u32,
}

/// Flags of a TCP segment: [`Segment::says`].
pub mod says {
    /// Part of the payload is urgent, so the server may read that part out of band.
    pub const URGENT: u32 = 1;
    /// The sender closes the connection, or its own side: FIN or RST.
    pub const CLOSES: u32 = 2;
}

impl Segment {
    /// Returns whether a part of the payload is urgent.
    #[inline(always)]
    pub const fn is_urgent(&self) -> bool {
        self.says & says::URGENT != 0
    }

    /// Returns whether the sender closes the connection, or its own side.
    #[inline(always)]
    pub const fn closes(&self) -> bool {
        self.says & says::CLOSES != 0
    }
}

/// Parses a frame.
#[inline(always)]
pub fn parse<F: Frame>(frame: &F) -> Parsed {
    let Some(ether_type) = frame.bytes(offset_of!(EthHdr, ether_type)) else { return Parsed::Malformed };
    let mut ether_type = u16::from_ne_bytes(ether_type);
    let mut offset = EthHdr::LEN;
    for _ in frame.tags_before()..VLAN_TAGS_MAX {
        if !is_vlan(ether_type) {
            break;
        }
        let Some(inner) = frame.bytes(offset + offset_of!(VlanHdr, ether_type)) else { return Parsed::Malformed };
        ether_type = u16::from_ne_bytes(inner);
        offset += VlanHdr::LEN;
    }
    offset = frame.forget(offset);
    let network = if ether_type == EtherType::Ipv4 as u16 {
        ipv4(frame, offset)
    } else if ether_type == EtherType::Ipv6 as u16 {
        ipv6(frame, offset)
    } else if is_vlan(ether_type) {
        return Parsed::TooManyTags;
    } else {
        return Parsed::NotIp;
    };
    let Some(Network { source, destination, ip_bytes, payload }) = network else { return Parsed::Malformed };
    let target = match payload {
        Payload::Fragment { may_be_tcp } => Some(Target::Fragment { may_be_tcp }),
        Payload::UnparsableHeaders => Some(Target::UnparsableHeaders),
        Payload::Transport { proto, span } => match transport(frame, source, proto, span) {
            None if span.is_fragment => Some(Target::UnparsableHeaders),
            target => target,
        },
    };
    match target {
        Some(target) => Parsed::Ip(Packet { source, destination, ip_bytes, target }),
        None => Parsed::Malformed,
    }
}

/// Returns whether this is the EtherType of a VLAN tag.
#[inline(always)]
pub(crate) const fn is_vlan(ether_type: u16) -> bool {
    ether_type == EtherType::Ieee8021q as u16
        || ether_type == EtherType::Ieee8021ad as u16
        || ether_type == EtherType::Ieee8021QinQ1 as u16
}

/// Network layer of a packet. The parsers below return None for a malformed packet.
struct Network {
    source: Address,
    destination: Address,
    ip_bytes: u32,
    payload: Payload,
}

/// Content of an IP packet.
enum Payload {
    Fragment { may_be_tcp: bool },
    UnparsableHeaders,
    Transport { proto: u8, span: Span },
}

/// Unparsed part of an IP packet, as offsets into the frame.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    /// True for a first fragment: the bytes beyond its end come in another packet.
    is_fragment: bool,
}

impl Span {
    /// Returns whether `len` bytes are left.
    #[inline(always)]
    const fn holds(self, len: usize) -> bool {
        self.start + len <= self.end
    }

    /// Returns the result for a header chain that ends too early. None means malformed; a first fragment's chain may go
    /// on in another packet. Linux drops such a fragment (`ipv6frag_thdr_truncated`, include/net/ipv6_frag.h, Linux
    /// 5.18), as RFC 8200, section 4.5 demands. Some stacks behind a forwarding host do not.
    #[inline(always)]
    const fn cut_off(self) -> Option<Payload> {
        if self.is_fragment { Some(Payload::UnparsableHeaders) } else { None }
    }
}

const IPV4_FRAGMENT_OFFSET: u16 = 0x1fff;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;

#[inline(always)]
fn ipv4<F: Frame>(frame: &F, start: usize) -> Option<Network> {
    let [vihl, _, len_high, len_low, _, _, frags_high, frags_low, _, proto, _, _, s0, s1, s2, s3, d0, d1, d2, d3] =
        frame.bytes::<{ Ipv4Hdr::LEN }>(start)?;
    let header_len = (vihl & 0x0f) as usize * 4;
    let total_len = frame.ipv4_bytes(start, u16::from_be_bytes([len_high, len_low]));
    let end = start + total_len as usize;
    if vihl >> 4 != 4 || header_len < Ipv4Hdr::LEN || (total_len as usize) < header_len || frame.len(end) < end {
        return None;
    }
    let fragment = u16::from_be_bytes([frags_high, frags_low]);
    let payload = if fragment & IPV4_FRAGMENT_OFFSET != 0 {
        // Fragments are also matched by protocol (`ip4_frag_match`, net/ipv4/ip_fragment.c, Linux 6.18).
        Payload::Fragment { may_be_tcp: proto == IpProto::Tcp as u8 }
    } else {
        let is_fragment = fragment & IPV4_MORE_FRAGMENTS != 0;
        Payload::Transport { proto, span: Span { start: start + header_len, end, is_fragment } }
    };
    let (source, destination) = (Address::v4([s0, s1, s2, s3]), Address::v4([d0, d1, d2, d3]));
    Some(Network { source, destination, ip_bytes: total_len, payload })
}

#[inline(always)]
fn ipv6<F: Frame>(frame: &F, start: usize) -> Option<Network> {
    let [version, _, _, _, len_high, len_low, next, _] = frame.bytes(start)?;
    let source = frame.bytes(start + offset_of!(Ipv6Hdr, src_addr))?;
    let destination = frame.bytes(start + offset_of!(Ipv6Hdr, dst_addr))?;
    let payload_len = u16::from_be_bytes([len_high, len_low]) as usize;
    let first = start + Ipv6Hdr::LEN;
    // A payload length of 0 marks a jumbogram (RFC 2675); the frame's length then counts.
    let end = if payload_len == 0 { frame.len(usize::MAX) } else { first + payload_len };
    if version >> 4 != 6 || end < first || frame.len(end) < end {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "a length field of 16 bits, or a frame's length")]
    let ip_bytes = (end - start) as u32;
    let payload = walk_extensions(frame, next, Span { start: first, end, is_fragment: false })?;
    Some(Network { source: Address::v6(source), destination: Address::v6(destination), ip_bytes, payload })
}

/// Mask of the offset in a fragment header's second word. The next constant is the flag for more fragments.
const IPV6_FRAGMENT_OFFSET: u16 = 0xfff8;
const IPV6_MORE_FRAGMENTS: u16 = 0x0001;
const FRAGMENT_HEADER_LEN: usize = 8;

#[inline(always)]
fn walk_extensions<F: Frame>(frame: &F, first: u8, span: Span) -> Option<Payload> {
    let mut proto = first;
    let mut span = span;
    for _ in 0..EXTENSION_HEADERS_MAX {
        if !is_extension(proto) {
            break;
        }
        // Each extension header is at least as long as a fragment header.
        if !span.holds(FRAGMENT_HEADER_LEN) {
            return span.cut_off();
        }
        let Some([next, len, offset_high, offset_low]) = frame.bytes(span.start) else {
            return Some(Payload::UnparsableHeaders);
        };
        let mut header_len = (len as usize + 1) * 8;
        if proto == IpProto::Ipv6Frag as u8 {
            let fragment = u16::from_be_bytes([offset_high, offset_low]);
            if fragment & IPV6_FRAGMENT_OFFSET != 0 {
                return Some(Payload::Fragment { may_be_tcp: true });
            }
            span.is_fragment |= fragment & IPV6_MORE_FRAGMENTS != 0;
            header_len = FRAGMENT_HEADER_LEN;
        } else if proto == IpProto::Ah as u8 {
            header_len = (len as usize + 2) * 4;
        }
        span.start = frame.forget(span.start + header_len);
        span.end = frame.forget(span.end);
        if span.start > span.end {
            return span.cut_off();
        }
        proto = next;
    }
    Some(if is_extension(proto) { Payload::UnparsableHeaders } else { Payload::Transport { proto, span } })
}

#[inline(always)]
const fn is_extension(next: u8) -> bool {
    next == IpProto::HopOpt as u8
        || next == IpProto::Ipv6Route as u8
        || next == IpProto::Ipv6Frag as u8
        || next == IpProto::Ipv6Opts as u8
        || next == IpProto::Ah as u8
        || next == IpProto::MobilityHeader as u8
        || next == IpProto::Hip as u8
        || next == IpProto::Shim6 as u8
}

#[inline(always)]
fn transport<F: Frame>(frame: &F, source: Address, proto: u8, mut span: Span) -> Option<Target> {
    span.start = frame.forget(span.start);
    span.end = frame.forget(span.end);
    if proto == IpProto::Tcp as u8 {
        return tcp(frame, span);
    }
    if proto == IpProto::Udp as u8 {
        return udp(frame, span);
    }
    let is_icmp = match source {
        Address::V4(_) => proto == IpProto::Icmp as u8,
        Address::V6(_) => proto == IpProto::Ipv6Icmp as u8,
    };
    if !is_icmp {
        return Some(Target::Other);
    }
    if !span.holds(2) {
        return None;
    }
    let Some([kind, _]) = frame.bytes(span.start) else { return Some(Target::UnparsableHeaders) };
    Some(if is_control_traffic(source, kind) { Target::ControlTraffic } else { Target::Other })
}

#[inline(always)]
const fn is_control_traffic(source: Address, icmp_kind: u8) -> bool {
    match source {
        // Destination unreachable (with "fragmentation needed"), time exceeded, parameter problem.
        Address::V4(_) => matches!(icmp_kind, 3 | 11 | 12),
        // Errors (with "packet too big"), multicast listener reports, router and neighbour discovery.
        Address::V6(_) => matches!(icmp_kind, 1..=4 | 130..=137 | 143),
    }
}

const TCP_FLAG_SYN: u8 = 0x02;
/// Mask of FIN and RST.
const TCP_CLOSES: u8 = 0x01 | 0x04;
pub(crate) const TCP_FLAG_PSH: u8 = 0x08;
pub(crate) const TCP_FLAG_ACK: u8 = 0x10;
const TCP_FLAG_URG: u8 = 0x20;
/// Mask of all flags except those for congestion.
pub(crate) const TCP_FLAGS: u8 = 0x3f;
/// Bytes of a TCP header up to and including the flags. In network-types, the flags are a bit field that starts with
/// the data offset.
const TCP_TO_FLAGS: usize = 14;
/// Minimum bytes of a transport header in a first fragment: fragments are cut at multiples of 8.
const PORTS_LEN: usize = 8;

/// Returns the [`Segment::says`] of these TCP flags.
#[inline(always)]
const fn says(flags: u8) -> u32 {
    let urgent = if flags & TCP_FLAG_URG == 0 { 0 } else { says::URGENT };
    urgent | if flags & TCP_CLOSES == 0 { 0 } else { says::CLOSES }
}

#[inline(always)]
fn tcp<F: Frame>(frame: &F, span: Span) -> Option<Target> {
    if !span.holds(if span.is_fragment { PORTS_LEN } else { TcpHdr::LEN }) {
        return None;
    }
    if !span.holds(TCP_TO_FLAGS) {
        return Some(tcp_cut_off(frame, span));
    }
    let Some([s0, s1, p0, p1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags]) = frame.bytes::<TCP_TO_FLAGS>(span.start)
    else {
        return Some(Target::UnparsableHeaders);
    };
    // The network stack drops a segment that claims less than a header, or more than there is.
    let header_len = (offset >> 4) as usize * 4;
    let payload_bytes = (span.end - span.start).saturating_sub(header_len);
    #[expect(clippy::cast_possible_truncation, reason = "offsets into a frame")]
    let segment = Segment {
        source_port: u16::from_be_bytes([s0, s1]),
        sequence: u32::from_be_bytes([q0, q1, q2, q3]).wrapping_add((flags & TCP_FLAG_SYN != 0) as u32),
        acknowledged: if flags & TCP_FLAG_ACK == 0 { 0 } else { u32::from_be_bytes([a0, a1, a2, a3]) },
        payload_at: (span.start + header_len) as u32,
        payload_bytes: if header_len < TcpHdr::LEN { 0 } else { payload_bytes as u32 },
        says: says(flags),
    };
    let opening = flags & (TCP_FLAG_SYN | TCP_FLAG_ACK) == TCP_FLAG_SYN;
    Some(Target::Tcp { port: u16::from_be_bytes([p0, p1]), opening, segment, is_fragment: span.is_fragment })
}

/// Returns the target for a first fragment that ends before the flags. It may open a connection.
#[inline(always)]
fn tcp_cut_off<F: Frame>(frame: &F, span: Span) -> Target {
    match frame.bytes(span.start) {
        Some([s0, s1, p0, p1]) => Target::Tcp {
            port: u16::from_be_bytes([p0, p1]),
            opening: true,
            segment: Segment { source_port: u16::from_be_bytes([s0, s1]), ..Segment::default() },
            is_fragment: true,
        },
        None => Target::UnparsableHeaders,
    }
}

#[inline(always)]
fn udp<F: Frame>(frame: &F, span: Span) -> Option<Target> {
    if !span.holds(UdpHdr::LEN) {
        return None;
    }
    let Some([source_high, source_low, high, low]) = frame.bytes(span.start) else {
        return Some(Target::UnparsableHeaders);
    };
    let (quic_initial, quic_short) = if span.holds(UdpHdr::LEN + QUIC_START_LEN) {
        match frame.bytes(span.start + UdpHdr::LEN) {
            Some(start) => {
                let has_room = span.is_fragment || span.holds(UdpHdr::LEN + QUIC_INITIAL_MIN);
                (may_hold_initial(start, has_room), start[0] & QUIC_LONG_HEADER == 0)
            }
            None => (true, false),
        }
    } else {
        // A fragment's datagram continues in another packet.
        (span.is_fragment, false)
    };
    #[expect(clippy::cast_possible_truncation, reason = "an IP packet's length has 16 bits, but for a jumbogram's")]
    let payload_bytes = (span.end - span.start - UdpHdr::LEN) as u16;
    Some(Target::Udp {
        port: u16::from_be_bytes([high, low]),
        source_port: u16::from_be_bytes([source_high, source_low]),
        quic_initial,
        quic_short,
        payload_bytes,
    })
}

/// Bytes of a QUIC packet up to the length of its destination connection ID: the first byte, the version and that
/// length.
const QUIC_START_LEN: usize = 6;

const QUIC_LONG_HEADER: u8 = 0x80;
/// Mask of the long-header bit and of the packet type. The fixed bit beside them may be greased (RFC 9287), so it is
/// ignored.
const QUIC_LONG_TYPE: u8 = 0xb0;
/// Minimum length of a datagram in which a server accepts an Initial (RFC 9000, section 14.1).
const QUIC_INITIAL_MIN: usize = 1200;

/// Returns whether a datagram that begins with `start` is or may contain a QUIC Initial.
///
/// Initials of version 1 (RFC 9000, section 17.2.2) and 2 (RFC 9369, section 3.2) are recognized. A server also accepts
/// an Initial after another packet with a long header (RFC 9000, section 12.2), if the datagram `has_room` for one. No
/// Initial comes after a Retry, which only servers send, or after a short header, whose packet ends with the datagram.
/// A long header of an unknown version counts as an Initial, or it would evade a connection limit. Version 0 is a
/// server's version negotiation and opens nothing.
///
/// Datagrams of other protocols that look alike count one connection for each run, as QUIC does: more, never fewer.
#[inline(always)]
const fn may_hold_initial(start: [u8; QUIC_START_LEN], has_room: bool) -> bool {
    let [first, version @ .., _] = start;
    let (initial, retry) = match u32::from_be_bytes(version) {
        0x0000_0000 => return false,
        0x0000_0001 => (0x80, 0xb0),
        0x6b33_43cf => (0x90, 0x80),
        _ => return first & QUIC_LONG_HEADER != 0,
    };
    let kind = first & QUIC_LONG_TYPE;
    kind == initial || has_room && first & QUIC_LONG_HEADER != 0 && kind != retry
}
