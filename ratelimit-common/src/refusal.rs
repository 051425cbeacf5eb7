//! What a refused TCP packet becomes where its rule refuses by a reset: the bytes of the segment, and nothing of who
//! refuses. Pure.
//!
//! A refused segment of a connection becomes the client's own reset, and goes on to the server ([`Way::On`]): the
//! server takes it, as it has the number that the server expects, and frees its socket. What the client sends next,
//! the same again, finds no socket, and the kernel answers it with a reset. A SYN becomes the answer to itself, a reset
//! that acknowledges it ([`Way::Back`]).
//!
//! Words are as they lie in the frame, so sums are of words in either order of bytes (RFC 1071, section 2).

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::vlan::VlanHdr;

use crate::packet::{Frame, VLAN_TAGS_MAX, is_vlan};

/// Words of headers without options.
pub const IPV4_WORDS: usize = Ipv4Hdr::LEN / 4;
/// Likewise.
pub const IPV6_WORDS: usize = Ipv6Hdr::LEN / 4;
/// Likewise.
pub const TCP_WORDS: usize = TcpHdr::LEN / 4;
/// Of a reset in IPv4.
pub const V4_WORDS: usize = IPV4_WORDS + TCP_WORDS;
/// Of a reset in IPv6.
pub const V6_WORDS: usize = IPV6_WORDS + TCP_WORDS;

/// So many segments of a connection pass after its reset without a socket, for the kernel to answer them: what the
/// client had sent already, and what it sends again.
pub const REPETITIONS: u32 = 8;

/// Where a reset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the server, in the place of the client's segment.
    On,
    /// To the client, as the server's answer to its SYN.
    Back,
}

/// Where the headers of a TCP segment begin that may become a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Those of IPv4.
    V4(usize),
    /// Those of IPv6.
    V6(usize),
}

/// Where the headers of this frame's TCP segment begin. None where there is anything beside them: options of IPv4, a
/// fragment, extension headers of IPv6, more tags than are read.
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

/// Version 4, and a header without options.
const PLAIN_VIHL: u8 = 0x45;
/// A whole packet of IPv4, and a TCP header, in bytes.
const V4_BYTES: u8 = 40;
const TCP_BYTES: u8 = 20;
const _: () = assert!(V4_BYTES as usize == 4 * V4_WORDS && TCP_BYTES as usize == 4 * TCP_WORDS);
const DONT_FRAGMENT: u16 = 0x4000;
/// Of what is answered here.
const HOPS: u8 = 64;

/// The packet that an IPv4 packet with these headers becomes.
#[inline(always)]
pub const fn v4(ip: [u32; IPV4_WORDS], tcp: [u32; TCP_WORDS], way: Way) -> [u32; V4_WORDS] {
    let [[vihl, tos, _, _], [_, _, _, _], [ttl, proto, _, _]] =
        [ip[0].to_ne_bytes(), ip[1].to_ne_bytes(), ip[2].to_ne_bytes()];
    let length = V4_BYTES;
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
    let [t0, t1, t2, t3, t4] = self::tcp(tcp, way, addresses);
    [first, second, with_low_half(third, sum), source, destination, t0, t1, t2, t3, t4]
}

/// The packet that an IPv6 packet with these headers becomes.
#[inline(always)]
pub const fn v6(ip: [u32; IPV6_WORDS], tcp: [u32; TCP_WORDS], way: Way) -> [u32; V6_WORDS] {
    let [_, _, proto, hops] = ip[1].to_ne_bytes();
    let length = TCP_BYTES;
    let (first, hops) = match way {
        Way::On => (ip[0], hops),
        Way::Back => (u32::from_ne_bytes([0x60, 0, 0, 0]), HOPS),
    };
    let second = u32::from_ne_bytes([0, length, proto, hops]);
    let [s0, s1, s2, s3, d0, d1, d2, d3] = match way {
        Way::On => [ip[2], ip[3], ip[4], ip[5], ip[6], ip[7], ip[8], ip[9]],
        Way::Back => [ip[6], ip[7], ip[8], ip[9], ip[2], ip[3], ip[4], ip[5]],
    };
    let source = s0 as u64 + s1 as u64 + s2 as u64 + s3 as u64;
    let addresses = source + d0 as u64 + d1 as u64 + d2 as u64 + d3 as u64;
    let [t0, t1, t2, t3, t4] = self::tcp(tcp, way, addresses);
    [first, second, s0, s1, s2, s3, d0, d1, d2, d3, t0, t1, t2, t3, t4]
}

/// The TCP header of a reset: without options or payload, and with a window of 0.
#[inline(always)]
const fn tcp(of: [u32; TCP_WORDS], way: Way, addresses: u64) -> [u32; TCP_WORDS] {
    /// The header's length in words, and RST and ACK.
    const RESET: u32 = u32::from_ne_bytes([0x50, 0x14, 0, 0]);
    /// What the pseudo-header has beside the addresses: the protocol, and the length of a header.
    const PSEUDO: u32 = u32::from_ne_bytes([0, IpProto::Tcp as u8, 0, TCP_BYTES]);
    let (ports, sequence, acknowledged) = match way {
        Way::On => (of[0], of[1], of[2]),
        // The SYN takes one number.
        Way::Back => (of[0].rotate_left(16), 0, u32::from_be(of[1]).wrapping_add(1).to_be()),
    };
    let words = ports as u64 + sequence as u64 + acknowledged as u64 + RESET as u64;
    let sum = checksum(addresses + PSEUDO as u64 + words);
    [ports, sequence, acknowledged, RESET, with_high_half(sum)]
}

/// The checksum of what has this sum of words.
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

/// A word with this half behind what is there.
#[inline(always)]
const fn with_low_half(word: u32, half: u16) -> u32 {
    let ([a, b, _, _], [c, d]) = (word.to_ne_bytes(), half.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// A word of this half and 0.
#[inline(always)]
const fn with_high_half(half: u16) -> u32 {
    let [a, b] = half.to_ne_bytes();
    u32::from_ne_bytes([a, b, 0, 0])
}

#[cfg(test)]
mod tests;
