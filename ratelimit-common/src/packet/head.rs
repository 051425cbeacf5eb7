//! Fast parser for the fields by which nearly every packet is judged, with as few loads as possible.
//!
//! It reads plain frames only: no tags, no IP options, no extension headers, no fragments, TCP or UDP with a complete
//! header. [`parse`](super::parse) handles all other frames. Both agree on plain frames.

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::udp::UdpHdr;

use super::{
    Frame, IPV4_FRAGMENT_OFFSET, IPV4_MORE_FRAGMENTS, Packet, Segment, TCP_CLOSES, TCP_FLAG_ACK, TCP_FLAG_PSH,
    TCP_FLAG_SYN, TCP_FLAGS, TCP_TO_FLAGS, Target, is_vlan,
};
use crate::source::Address;

/// Short form of [`Packet`] that fits into registers: without destination address and [`Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Source address, which may be forged.
    pub source: Address,
    /// Value of [`Packet::ip_bytes`].
    pub ip_bytes: u32,
    /// Destination within the host: protocol and port.
    pub to: Destination,
}

/// Short form of [`Target`]. It does not say whether TCP is a fragment. Ports are in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// TCP segment.
    Tcp {
        /// Destination port.
        port: u16,
        /// True if the segment opens a connection, as in [`Target::Tcp`].
        opening: bool,
        /// True if the segment has payload.
        has_payload: bool,
    },
    /// UDP datagram.
    Udp {
        /// Destination port.
        port: u16,
    },
    /// Fragment after the first, see [`Target::Fragment`].
    Fragment,
    /// Unparsable headers, see [`Target::UnparsableHeaders`].
    UnparsableHeaders,
    /// Control messages, see [`Target::ControlTraffic`].
    ControlTraffic,
    /// Any other protocol, see [`Target::Other`].
    Other,
}

impl Head {
    /// Reads the head of a plain frame. Returns None if the frame is not plain, or shorter than it claims.
    #[inline(always)]
    pub fn of<F: Frame>(frame: &F) -> Option<Self> {
        let ether_type = u16::from_ne_bytes(frame.bytes(offset_of!(EthHdr, ether_type))?);
        if ether_type == EtherType::Ipv4 as u16 {
            Self::ipv4(frame)
        } else if ether_type == EtherType::Ipv6 as u16 {
            Self::ipv6(frame)
        } else {
            None
        }
    }

    #[inline(always)]
    fn ipv4<F: Frame>(frame: &F) -> Option<Self> {
        let [vihl, _, len_high, len_low, _, _, frags_high, frags_low, _, proto, _, _, s0, s1, s2, s3] =
            frame.bytes::<{ offset_of!(Ipv4Hdr, dst_addr) }>(EthHdr::LEN)?;
        let fragment = u16::from_be_bytes([frags_high, frags_low]);
        if vihl != PLAIN_VIHL || fragment & (IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS) != 0 {
            return None;
        }
        let ip_bytes = u16::from_be_bytes([len_high, len_low]) as u32;
        let to = to(frame, proto, EthHdr::LEN + Ipv4Hdr::LEN, EthHdr::LEN + ip_bytes as usize)?;
        Some(Self { source: Address::v4([s0, s1, s2, s3]), ip_bytes, to })
    }

    #[inline(always)]
    fn ipv6<F: Frame>(frame: &F) -> Option<Self> {
        let [version, _, _, _, len_high, len_low, proto, _] = frame.bytes(EthHdr::LEN)?;
        let source = frame.bytes(EthHdr::LEN + offset_of!(Ipv6Hdr, src_addr))?;
        // A length of 0 marks a jumbogram, and is too short for any header below.
        let end = EthHdr::LEN + Ipv6Hdr::LEN + u16::from_be_bytes([len_high, len_low]) as usize;
        if version >> 4 != 6 {
            return None;
        }
        let to = to(frame, proto, EthHdr::LEN + Ipv6Hdr::LEN, end)?;
        #[expect(clippy::cast_possible_truncation, reason = "a length field of 16 bits and a header")]
        let ip_bytes = (end - EthHdr::LEN) as u32;
        Some(Self { source: Address::v6(source), ip_bytes, to })
    }
}

/// Returns whether the frame is of another protocol than IP. Frames with a VLAN tag are not, since IP may follow it.
#[inline(always)]
pub fn is_of_other_protocol<F: Frame>(frame: &F) -> bool {
    let Some(ether_type) = frame.bytes(offset_of!(EthHdr, ether_type)).map(u16::from_ne_bytes) else { return false };
    ether_type != EtherType::Ipv4 as u16 && ether_type != EtherType::Ipv6 as u16 && !is_vlan(ether_type)
}

/// Returns [`Segment::closes`] of a plain frame with a TCP segment from this source, as read by [`Head::of`].
#[inline(always)]
pub fn closes<F: Frame>(frame: &F, source: Address) -> bool {
    let header_bytes = match source {
        Address::V4(_) => Ipv4Hdr::LEN,
        Address::V6(_) => Ipv6Hdr::LEN,
    };
    let flags = frame.bytes(EthHdr::LEN + header_bytes + TCP_TO_FLAGS - 2).map(|[_, flags]: [u8; 2]| flags);
    flags.is_some_and(|flags| flags & TCP_CLOSES != 0)
}

/// Returns the source port of a TCP segment in a plain or nearly plain frame. Returns None if only
/// [`parse`](super::parse) can tell.
#[inline(always)]
pub fn source_port<F: Frame>(frame: &F) -> Option<u16> {
    let ether_type = u16::from_ne_bytes(frame.bytes(offset_of!(EthHdr, ether_type))?);
    let start = if ether_type == EtherType::Ipv4 as u16 {
        let [vihl, _] = frame.bytes(EthHdr::LEN)?;
        if vihl != PLAIN_VIHL {
            return None;
        }
        EthHdr::LEN + Ipv4Hdr::LEN
    } else if ether_type == EtherType::Ipv6 as u16 {
        let [proto, _] = frame.bytes(EthHdr::LEN + offset_of!(Ipv6Hdr, next_hdr))?;
        if proto != IpProto::Tcp as u8 {
            return None;
        }
        EthHdr::LEN + Ipv6Hdr::LEN
    } else {
        return None;
    };
    frame.bytes(start).map(u16::from_be_bytes)
}

/// Returns the destination address, the destination port and the segment of a plain frame with payload, as read by
/// [`Head::of`] from this source. Returns None if the flags are not those of a segment after the handshake.
#[inline(always)]
pub fn plain_segment<F: Frame>(frame: &F, source: Address, ip_bytes: u32) -> Option<(Address, u16, Segment)> {
    let (destination, header_bytes) = match source {
        Address::V4(_) => (Address::v4(frame.bytes(EthHdr::LEN + offset_of!(Ipv4Hdr, dst_addr))?), Ipv4Hdr::LEN),
        Address::V6(_) => (Address::v6(frame.bytes(EthHdr::LEN + offset_of!(Ipv6Hdr, dst_addr))?), Ipv6Hdr::LEN),
    };
    let start = EthHdr::LEN + header_bytes;
    let [s0, s1, p0, p1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags] = frame.bytes::<TCP_TO_FLAGS>(start)?;
    if flags & !TCP_FLAG_PSH & TCP_FLAGS != TCP_FLAG_ACK {
        return None;
    }
    let header_len = (offset >> 4) as u32 * 4;
    #[expect(clippy::cast_possible_truncation, reason = "the length of headers")]
    let (payload_at, header_bytes) = (start as u32 + header_len, header_bytes as u32 + header_len);
    let segment = Segment {
        source_port: u16::from_be_bytes([s0, s1]),
        sequence: u32::from_be_bytes([q0, q1, q2, q3]),
        acknowledged: u32::from_be_bytes([a0, a1, a2, a3]),
        payload_at,
        payload_bytes: ip_bytes.saturating_sub(header_bytes),
        says: 0,
    };
    Some((destination, u16::from_be_bytes([p0, p1]), segment))
}

/// First byte of an IPv4 header without options.
const PLAIN_VIHL: u8 = 0x45;

#[inline(always)]
fn to<F: Frame>(frame: &F, proto: u8, start: usize, end: usize) -> Option<Destination> {
    if frame.len(end) < end {
        return None;
    }
    if proto == IpProto::Tcp as u8 && start + TcpHdr::LEN <= end {
        let [_, _, p0, p1, _, _, _, _, _, _, _, _, offset, flags] = frame.bytes::<TCP_TO_FLAGS>(start)?;
        let header_len = (offset >> 4) as usize * 4;
        Some(Destination::Tcp {
            port: u16::from_be_bytes([p0, p1]),
            opening: flags & (TCP_FLAG_SYN | TCP_FLAG_ACK) == TCP_FLAG_SYN,
            has_payload: header_len >= TcpHdr::LEN && start + header_len < end,
        })
    } else if proto == IpProto::Udp as u8 && start + UdpHdr::LEN <= end {
        let [_, _, high, low] = frame.bytes(start)?;
        Some(Destination::Udp { port: u16::from_be_bytes([high, low]) })
    } else {
        None
    }
}

impl From<&Packet> for Head {
    #[inline(always)]
    fn from(packet: &Packet) -> Self {
        let to = match packet.target {
            Target::Tcp { port, opening, segment, .. } => {
                Destination::Tcp { port, opening, has_payload: segment.payload_bytes != 0 }
            }
            Target::Udp { port, .. } => Destination::Udp { port },
            Target::Fragment { .. } => Destination::Fragment,
            Target::UnparsableHeaders => Destination::UnparsableHeaders,
            Target::ControlTraffic => Destination::ControlTraffic,
            Target::Other => Destination::Other,
        };
        Self { source: packet.source, ip_bytes: packet.ip_bytes, to }
    }
}
