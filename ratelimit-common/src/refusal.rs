//! Construction of the packets that replace a refused TCP packet, under a rule that tells the client. The code is pure:
//! it works on the bytes of a segment, and the reply does not show who refuses.
//!
//! A refused segment of a connection becomes the client's own reset, and goes on to the server ([`Way::On`]). The reset
//! has the sequence number that the server expects, so the server accepts it and frees the socket. The client's
//! retransmission then finds no socket, and the kernel answers it with a reset. A SYN becomes a reset that acknowledges
//! it, sent back to the client ([`Way::Back`]). A request becomes the page that answers it ([`page`]).
//!
//! Words have the byte order of the frame. Checksums are sums of words in either byte order (RFC 1071, section 2).

mod page;

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::vlan::VlanHdr;

use crate::packet::{Frame, VLAN_TAGS_MAX, is_vlan};

pub use page::{Options, Page, TEXT_WORDS, begins_request, options};

/// Number of words in an IPv4 header without options.
pub const IPV4_WORDS: usize = Ipv4Hdr::LEN / 4;
/// Number of words in an IPv6 header.
pub const IPV6_WORDS: usize = Ipv6Hdr::LEN / 4;
/// Number of words in a TCP header without options.
pub const TCP_WORDS: usize = TcpHdr::LEN / 4;
/// Number of words in a reset over IPv4.
pub const V4_WORDS: usize = IPV4_WORDS + TCP_WORDS;
/// Number of words in a reset over IPv6.
pub const V6_WORDS: usize = IPV6_WORDS + TCP_WORDS;

/// Number of segments without a socket that pass after a connection's reset, so that the kernel answers them. They are
/// segments that the client had sent already, and retransmissions.
pub const REPETITIONS: u32 = 8;

/// Destination of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the server, in place of the client's segment.
    On,
    /// To the client, as the server's answer to its SYN.
    Back,
}

/// Offset of the IP header of a TCP segment that may become a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Offset of an IPv4 header.
    V4(usize),
    /// Offset of an IPv6 header.
    V6(usize),
}

/// Returns the offset of the IP header of this frame's TCP segment. Returns None if the frame has anything beside plain
/// headers: IPv4 options, a fragment, IPv6 extension headers, or more tags than are read.
#[inline(always)]
pub fn place<F: Frame>(frame: &F) -> Option<Place> {
    let mut ether_type = u16::from_ne_bytes(frame.bytes(offset_of!(EthHdr, ether_type))?);
    let mut offset = EthHdr::LEN;
    for _ in 0..VLAN_TAGS_MAX {
        if !is_vlan(ether_type) {
            break;
        }
        ether_type = u16::from_ne_bytes(frame.bytes(offset + offset_of!(VlanHdr, ether_type))?);
        offset += VlanHdr::LEN;
    }
    let offset = frame.forget(offset);
    if ether_type == EtherType::Ipv4 as u16 {
        let [vihl, _, _, _, _, _, frags_high, frags_low, _, proto] = frame.bytes(offset)?;
        let is_whole = u16::from_be_bytes([frags_high, frags_low]) & !DONT_FRAGMENT == 0;
        (vihl == PLAIN_VIHL && is_whole && proto == IpProto::Tcp as u8).then_some(Place::V4(offset))
    } else if ether_type == EtherType::Ipv6 as u16 {
        let [proto, _] = frame.bytes(offset + offset_of!(Ipv6Hdr, next_hdr))?;
        (proto == IpProto::Tcp as u8).then_some(Place::V6(offset))
    } else {
        None
    }
}

/// Returns whether a host would answer the SYN in this frame, whose IP header is at `place`. Requires
/// [`is_between_hosts`], and no FIN or RST. Returns None if the frame is cut off.
#[inline(always)]
pub fn is_answered<F: Frame>(frame: &F, place: Place) -> Option<bool> {
    let tcp = match place {
        Place::V4(at) => at + Ipv4Hdr::LEN,
        Place::V6(at) => at + Ipv6Hdr::LEN,
    };
    let [offset, flags] = frame.bytes(tcp + FLAGS_AT)?;
    let is_syn_alone = flags & (FIN | RST) == 0 && offset >> 4 >= TCP_BYTES / 4;
    Some(is_syn_alone && is_between_hosts(frame, place)?)
}

/// Returns whether this frame goes from one host to one host, by its link and IP addresses. `place` is the IP header.
/// Returns None if the frame is cut off.
#[inline(always)]
pub fn is_between_hosts<F: Frame>(frame: &F, place: Place) -> Option<bool> {
    let [to, _, _, _, _, _, by, _] = frame.bytes(0)?;
    let is_between_hosts = match place {
        Place::V4(at) => {
            let [[source, ..], [destination, ..]]: [[u8; 4]; 2] =
                [frame.bytes(at + offset_of!(Ipv4Hdr, src_addr))?, frame.bytes(at + offset_of!(Ipv4Hdr, dst_addr))?];
            is_host_v4(source) && is_host_v4(destination)
        }
        Place::V6(at) => {
            let [source, destination]: [[u8; 8]; 2] =
                [frame.bytes(at + offset_of!(Ipv6Hdr, src_addr))?, frame.bytes(at + offset_of!(Ipv6Hdr, dst_addr))?];
            is_host_v6(source) && is_host_v6(destination)
        }
    };
    Some((to | by) & GROUP_ADDRESS == 0 && is_between_hosts)
}

/// Returns whether an IPv4 address with this first byte may be a host's: neither 0/8, nor loopback, nor multicast or
/// above.
const fn is_host_v4(first: u8) -> bool {
    first != 0 && first != 127 && first < 224
}

/// Returns whether an IPv6 address with these first bytes may be a host's: neither multicast, nor in the first /64,
/// like `::1` and mapped addresses.
const fn is_host_v6(first: [u8; 8]) -> bool {
    first[0] != 0xff && u64::from_ne_bytes(first) != 0
}

/// Bit of a link address that marks a group address.
const GROUP_ADDRESS: u8 = 1;
/// Offset of a TCP header's length byte, which the flags byte follows. The next two constants are flags.
const FLAGS_AT: usize = 12;
const FIN: u8 = 1;
const RST: u8 = 4;

/// First byte of an IPv4 header without options.
const PLAIN_VIHL: u8 = 0x45;
/// Length of an IPv4 header without options in bytes. The next constant is that of a TCP header.
const IPV4_BYTES: u8 = 20;
const TCP_BYTES: u8 = 20;
const _: () = assert!(IPV4_BYTES as usize == Ipv4Hdr::LEN && TCP_BYTES as usize == TcpHdr::LEN);
const DONT_FRAGMENT: u16 = 0x4000;
/// Hop limit or TTL of an answer to a client.
const HOPS: u8 = 64;

/// Returns the packet that replaces an IPv4 packet with these headers.
#[inline(always)]
pub const fn v4(ip: [u32; IPV4_WORDS], tcp: [u32; TCP_WORDS], way: Way) -> [u32; V4_WORDS] {
    let ([i0, i1, i2, i3, i4], addresses) = ipv4(ip, way, TCP_BYTES);
    let [t0, t1, t2, t3, t4] = self::tcp(tcp, way, addresses);
    [i0, i1, i2, i3, i4, t0, t1, t2, t3, t4]
}

/// Returns the packet that replaces an IPv6 packet with these headers.
#[inline(always)]
pub const fn v6(ip: [u32; IPV6_WORDS], tcp: [u32; TCP_WORDS], way: Way) -> [u32; V6_WORDS] {
    let ([i0, i1, s0, s1, s2, s3, d0, d1, d2, d3], addresses) = ipv6(ip, way, TCP_BYTES);
    let [t0, t1, t2, t3, t4] = self::tcp(tcp, way, addresses);
    [i0, i1, s0, s1, s2, s3, d0, d1, d2, d3, t0, t1, t2, t3, t4]
}

/// Returns the IPv4 header of the new packet, for `tcp_bytes` bytes of TCP, and the sum of its addresses.
#[inline(always)]
const fn ipv4(ip: [u32; IPV4_WORDS], way: Way, tcp_bytes: u8) -> ([u32; IPV4_WORDS], u64) {
    let [[vihl, tos, _, _], [_, _, _, _], [ttl, proto, _, _]] =
        [ip[0].to_ne_bytes(), ip[1].to_ne_bytes(), ip[2].to_ne_bytes()];
    let length = IPV4_BYTES + tcp_bytes;
    let (first, second, third, [source, destination]) = match way {
        Way::On => ([vihl, tos, 0, length], ip[1], [ttl, proto, 0, 0], [ip[3], ip[4]]),
        Way::Back => {
            let [high, low] = DONT_FRAGMENT.to_be_bytes();
            ([vihl, 0, 0, length], u32::from_ne_bytes([0, 0, high, low]), [HOPS, proto, 0, 0], [ip[4], ip[3]])
        }
    };
    let (first, third) = (u32::from_ne_bytes(first), u32::from_ne_bytes(third));
    let addresses = source as u64 + destination as u64;
    let sum = checksum(first as u64 + second as u64 + third as u64 + addresses);
    ([first, second, with_low_half(third, sum), source, destination], addresses)
}

/// Returns the IPv6 header of the new packet, for `tcp_bytes` bytes of TCP, and the sum of its addresses.
#[inline(always)]
const fn ipv6(ip: [u32; IPV6_WORDS], way: Way, tcp_bytes: u8) -> ([u32; IPV6_WORDS], u64) {
    let [_, _, proto, hops] = ip[1].to_ne_bytes();
    let (first, hops) = match way {
        Way::On => (ip[0], hops),
        Way::Back => (u32::from_ne_bytes([0x60, 0, 0, 0]), HOPS),
    };
    let second = u32::from_ne_bytes([0, tcp_bytes, proto, hops]);
    let [s0, s1, s2, s3, d0, d1, d2, d3] = match way {
        Way::On => [ip[2], ip[3], ip[4], ip[5], ip[6], ip[7], ip[8], ip[9]],
        Way::Back => [ip[6], ip[7], ip[8], ip[9], ip[2], ip[3], ip[4], ip[5]],
    };
    let source = s0 as u64 + s1 as u64 + s2 as u64 + s3 as u64;
    let addresses = source + d0 as u64 + d1 as u64 + d2 as u64 + d3 as u64;
    ([first, second, s0, s1, s2, s3, d0, d1, d2, d3], addresses)
}

/// Returns the TCP header of a reset: no options, no payload, and a window of 0.
#[inline(always)]
const fn tcp(of: [u32; TCP_WORDS], way: Way, addresses: u64) -> [u32; TCP_WORDS] {
    /// Word with the header's length, RST and ACK.
    const RESET: u32 = u32::from_ne_bytes([0x50, 0x14, 0, 0]);
    let (ports, sequence, acknowledged) = match way {
        Way::On => (of[0], of[1], of[2]),
        // A SYN takes one sequence number.
        Way::Back => (of[0].rotate_left(16), 0, u32::from_be(of[1]).wrapping_add(1).to_be()),
    };
    let words = ports as u64 + sequence as u64 + acknowledged as u64 + RESET as u64;
    let sum = checksum(addresses + pseudo(TCP_BYTES) + words);
    [ports, sequence, acknowledged, RESET, with_high_half(sum)]
}

/// Returns the sum of the pseudo-header without the addresses: the protocol, and the length of header and payload.
const fn pseudo(tcp_bytes: u8) -> u64 {
    u32::from_ne_bytes([0, IpProto::Tcp as u8, 0, tcp_bytes]) as u64
}

/// Returns the checksum for this sum of words.
#[inline(always)]
const fn checksum(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    #[expect(clippy::cast_possible_truncation, reason = "what is above was added")]
    let sum = ((sum >> 16) + (sum & 0xffff)) as u16;
    !sum
}

/// Returns `word` with `half` as its last two bytes.
#[inline(always)]
const fn with_low_half(word: u32, half: u16) -> u32 {
    let ([a, b, _, _], [c, d]) = (word.to_ne_bytes(), half.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// Returns a word with `half` as its first two bytes, followed by 0.
#[inline(always)]
const fn with_high_half(half: u16) -> u32 {
    let [a, b] = half.to_ne_bytes();
    u32::from_ne_bytes([a, b, 0, 0])
}

#[cfg(test)]
mod tests;
