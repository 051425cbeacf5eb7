//! The parser: what a frame is to the limiter. Knows bytes through [`Frame`] only; shared by kernel, host and fuzzer.
//!
//! What it calls malformed the network stack drops too, so that passing it is no way around a limit. Where a
//! packet cannot be told apart for certain (flags cut off, a header chain without end), it counts as opening.

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::udp::UdpHdr;
use network_types::vlan::VlanHdr;

use crate::source::Address;

/// VLAN tags that are looked behind: one, or two as in QinQ.
pub const VLAN_TAGS_MAX: usize = 2;

/// IPv6 extension headers that are looked behind. Linux itself takes more; see [`Target::Unwalkable`].
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// A frame to read from, from its Ethernet header on.
pub trait Frame {
    /// The bytes at `offset`, if all of them are there to read.
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;

    /// The frame's length in bytes, with the parts that [`Frame::bytes`] cannot reach.
    ///
    /// `at_least` is what the headers claim: a cheaper answer will do where it settles that the claim is true.
    fn len(&self, at_least: usize) -> usize;
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// No IP packet.
    NotIp,
    /// Headers that contradict themselves, end too early, or lie behind too many tags.
    Malformed,
    /// An IP packet.
    Ip(Packet),
}

/// An IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sent it, or says so.
    pub source: Address,
    /// Length of the IP packet in bytes, headers included.
    pub ip_bytes: u32,
    /// What it is sent to.
    pub target: Target,
}

/// What a packet is sent to. Ports are in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP segment.
    Tcp {
        /// Destination port.
        port: u16,
        /// SYN without ACK, or flags that a tiny first fragment has cut off.
        opening: bool,
    },
    /// A UDP datagram.
    Udp {
        /// Destination port.
        port: u16,
        /// Source port.
        source_port: u16,
        /// Whether it begins with a QUIC Initial packet of version 1 or 2, or may do so behind what a fragment cuts off.
        quic_initial: bool,
    },
    /// A fragment after the first: its ports were in another packet.
    Fragment,
    /// A chain of more than [`EXTENSION_HEADERS_MAX`] extension headers: whatever is behind it, the network stack may take it.
    Unwalkable,
    /// What a host needs to keep its link and its path MTU: neighbour discovery, router advertisements, multicast
    /// listener reports, and ICMP errors. Never counted.
    Essential,
    /// Any other protocol.
    Other,
}

/// Parses a frame.
#[inline(always)]
pub fn parse<F: Frame>(frame: &F) -> Parsed {
    let Some(ether_type) = frame.bytes(offset_of!(EthHdr, ether_type)) else { return Parsed::Malformed };
    let mut ether_type = u16::from_ne_bytes(ether_type);
    let mut offset = EthHdr::LEN;
    for _ in 0..VLAN_TAGS_MAX {
        if !is_vlan(ether_type) {
            break;
        }
        let Some(inner) = frame.bytes(offset + offset_of!(VlanHdr, ether_type)) else { return Parsed::Malformed };
        ether_type = u16::from_ne_bytes(inner);
        offset += VlanHdr::LEN;
    }
    if ether_type == EtherType::Ipv4 as u16 {
        ipv4(frame, offset)
    } else if ether_type == EtherType::Ipv6 as u16 {
        ipv6(frame, offset)
    } else if is_vlan(ether_type) {
        Parsed::Malformed
    } else {
        Parsed::NotIp
    }
}

#[inline(always)]
const fn is_vlan(ether_type: u16) -> bool {
    ether_type == EtherType::Ieee8021q as u16
        || ether_type == EtherType::Ieee8021ad as u16
        || ether_type == EtherType::Ieee8021QinQ1 as u16
}

const IPV4_FRAGMENT_OFFSET: u16 = 0x1fff;
const IPV4_MORE_FRAGMENTS: u16 = 0x2000;

#[inline(always)]
fn ipv4<F: Frame>(frame: &F, start: usize) -> Parsed {
    let Some(header) = frame.bytes::<{ Ipv4Hdr::LEN }>(start) else { return Parsed::Malformed };
    let [vihl, _, len_high, len_low, _, _, frags_high, frags_low, _, proto, _, _, s0, s1, s2, s3, ..] = header;
    let header_len = (vihl & 0x0f) as usize * 4;
    let total_len = u16::from_be_bytes([len_high, len_low]) as usize;
    if vihl >> 4 != 4 || header_len < Ipv4Hdr::LEN || total_len < header_len {
        return Parsed::Malformed;
    }
    let end = start + total_len;
    if frame.len(end) < end {
        return Parsed::Malformed;
    }
    let fragment = u16::from_be_bytes([frags_high, frags_low]);
    let span = Span {
        start: start + header_len,
        end,
        is_fragment: fragment & (IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS) != 0,
    };
    let target = if fragment & IPV4_FRAGMENT_OFFSET != 0 {
        Some(Target::Fragment)
    } else if proto == IpProto::Icmp as u8 {
        icmpv4(frame, span)
    } else {
        transport(frame, span, proto)
    };
    ip(Address::V4([s0, s1, s2, s3]), total_len, target)
}

#[inline(always)]
fn ipv6<F: Frame>(frame: &F, start: usize) -> Parsed {
    let Some(fixed) = frame.bytes::<8>(start) else { return Parsed::Malformed };
    let Some(source) = frame.bytes::<16>(start + offset_of!(Ipv6Hdr, src_addr)) else { return Parsed::Malformed };
    let [version, _, _, _, len_high, len_low, next, _] = fixed;
    let payload_len = u16::from_be_bytes([len_high, len_low]) as usize;
    let first = start + Ipv6Hdr::LEN;
    // A payload length of 0 is a jumbogram's (RFC 2675): then the frame says how long it is.
    let end = if payload_len == 0 { frame.len(usize::MAX) } else { first + payload_len };
    if version >> 4 != 6 || end < first || frame.len(end) < end {
        return Parsed::Malformed;
    }
    ip(Address::V6(source), end - start, ipv6_target(frame, next, Span { start: first, end, is_fragment: false }))
}

#[inline(always)]
fn ip(source: Address, len: usize, target: Option<Target>) -> Parsed {
    match target {
        #[expect(clippy::cast_possible_truncation, reason = "a length field of 16 bits, or a frame's length")]
        Some(target) => Parsed::Ip(Packet { source, ip_bytes: len as u32, target }),
        None => Parsed::Malformed,
    }
}

/// The part of an IP packet that is left to parse, as offsets into the frame.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
    /// A first fragment: what is missing behind it comes in another packet.
    is_fragment: bool,
}

impl Span {
    /// Whether `len` bytes are left.
    #[inline(always)]
    const fn holds(self, len: usize) -> bool {
        self.start + len <= self.end
    }
}

const IPV6_MORE_FRAGMENTS_OR_OFFSET: u16 = 0xfff9;
const IPV6_FRAGMENT_OFFSET: u16 = 0xfff8;
const FRAGMENT_HEADER_LEN: usize = 8;

/// Walks the chain of extension headers. None where it is malformed.
#[inline(always)]
fn ipv6_target<F: Frame>(frame: &F, first: u8, span: Span) -> Option<Target> {
    let mut next = first;
    let mut span = span;
    for _ in 0..EXTENSION_HEADERS_MAX {
        if !is_extension(next) {
            return behind_extensions(frame, next, span);
        }
        // Each is at least 8 bytes.
        if !span.holds(FRAGMENT_HEADER_LEN) {
            return None;
        }
        let [following, len, offset_high, offset_low] = frame.bytes(span.start)?;
        let header_len = if next == IpProto::Ipv6Frag as u8 {
            let fragment = u16::from_be_bytes([offset_high, offset_low]);
            if fragment & IPV6_FRAGMENT_OFFSET != 0 {
                return Some(Target::Fragment);
            }
            span.is_fragment |= fragment & IPV6_MORE_FRAGMENTS_OR_OFFSET != 0;
            FRAGMENT_HEADER_LEN
        } else if next == IpProto::Ah as u8 {
            (len as usize + 2) * 4
        } else {
            (len as usize + 1) * 8
        };
        span.start += header_len;
        if span.start > span.end {
            return None;
        }
        next = following;
    }
    if is_extension(next) { Some(Target::Unwalkable) } else { behind_extensions(frame, next, span) }
}

#[inline(always)]
fn behind_extensions<F: Frame>(frame: &F, next: u8, span: Span) -> Option<Target> {
    if next == IpProto::Ipv6Icmp as u8 { icmpv6(frame, span) } else { transport(frame, span, next) }
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
fn transport<F: Frame>(frame: &F, span: Span, proto: u8) -> Option<Target> {
    if proto == IpProto::Tcp as u8 {
        tcp(frame, span)
    } else if proto == IpProto::Udp as u8 {
        udp(frame, span)
    } else {
        Some(Target::Other)
    }
}

const TCP_FLAG_SYN: u8 = 0x02;
const TCP_FLAG_ACK: u8 = 0x10;
/// Where the flags are: network-types has them as a bit field that starts with the data offset.
const TCP_FLAGS: usize = 13;
/// The smallest part of a transport header that a first fragment must carry: fragments are cut at multiples of 8.
const PORTS_LEN: usize = 8;

#[inline(always)]
fn tcp<F: Frame>(frame: &F, span: Span) -> Option<Target> {
    let whole = span.holds(TcpHdr::LEN);
    if !whole && !(span.is_fragment && span.holds(PORTS_LEN)) {
        return None;
    }
    let port = u16::from_be_bytes(frame.bytes(span.start + offset_of!(TcpHdr, dest))?);
    let opening = if span.holds(TCP_FLAGS + 1) {
        let [flags] = frame.bytes(span.start + TCP_FLAGS)?;
        flags & (TCP_FLAG_SYN | TCP_FLAG_ACK) == TCP_FLAG_SYN
    } else {
        true
    };
    Some(Target::Tcp { port, opening })
}

#[inline(always)]
fn udp<F: Frame>(frame: &F, span: Span) -> Option<Target> {
    if !span.holds(UdpHdr::LEN) {
        return None;
    }
    let [source_high, source_low, high, low] = frame.bytes(span.start)?;
    let quic_initial = if span.holds(UdpHdr::LEN + QUIC_START_LEN) {
        frame.bytes(span.start + UdpHdr::LEN).is_none_or(is_quic_initial)
    } else {
        // The rest of a fragment's datagram is in another packet.
        span.is_fragment
    };
    Some(Target::Udp {
        port: u16::from_be_bytes([high, low]),
        source_port: u16::from_be_bytes([source_high, source_low]),
        quic_initial,
    })
}

/// A QUIC packet's first byte and its version.
const QUIC_START_LEN: usize = 5;

/// Long header, fixed bit, and the type of an Initial in version 1 (RFC 9000, section 17.2.2) or 2 (RFC 9369, section 3.2).
#[inline(always)]
const fn is_quic_initial(start: [u8; QUIC_START_LEN]) -> bool {
    let [first, version @ ..] = start;
    match u32::from_be_bytes(version) {
        0x0000_0001 => first & 0xf0 == 0xc0,
        0x6b33_43cf => first & 0xf0 == 0xd0,
        _ => false,
    }
}

#[inline(always)]
fn icmpv4<F: Frame>(frame: &F, span: Span) -> Option<Target> {
    if !span.holds(1) {
        return None;
    }
    let [kind] = frame.bytes(span.start)?;
    // Destination unreachable (with "fragmentation needed"), time exceeded, parameter problem.
    Some(if matches!(kind, 3 | 11 | 12) { Target::Essential } else { Target::Other })
}

#[inline(always)]
fn icmpv6<F: Frame>(frame: &F, span: Span) -> Option<Target> {
    if !span.holds(1) {
        return None;
    }
    let [kind] = frame.bytes(span.start)?;
    // Errors (with "packet too big"), multicast listener reports, router and neighbour discovery.
    Some(if matches!(kind, 1..=4 | 130..=137 | 143) { Target::Essential } else { Target::Other })
}
