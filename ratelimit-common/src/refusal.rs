//! What a refused TCP packet becomes where its rule tells the client: the bytes of the segment, and nothing of who
//! refuses. Pure.
//!
//! A refused segment of a connection becomes the client's own reset, and goes on to the server ([`Way::On`]): the
//! server takes it, as it has the number that the server expects, and frees its socket. What the client sends next,
//! the same again, finds no socket, and the kernel answers it with a reset. A SYN becomes the answer to itself, a reset
//! that acknowledges it ([`Way::Back`]). A request becomes the page that answers it ([`page`]).
//!
//! Words are as they lie in the frame, so sums are of words in either order of bytes (RFC 1071, section 2).

mod page;

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};
use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};
use network_types::tcp::TcpHdr;
use network_types::vlan::VlanHdr;

use crate::packet::{Frame, VLAN_TAGS_MAX, is_vlan};

pub use page::{Options, Page, TEXT_WORDS, begins_request, options};

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

/// Whether a host would answer the SYN that this frame is, whose headers begin there: it is [`is_between_hosts`], and
/// nothing but a SYN. None where it is cut off.
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

/// Whether this frame, whose headers begin there, comes from one host and goes to one, by its link's addresses and its
/// own. None where it is cut off.
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

/// Whether an IPv4 address that begins so may be a host's: none of this network, of this host, of many.
const fn is_host_v4(first: u8) -> bool {
    first != 0 && first != 127 && first < 224
}

/// The same of IPv6: none of many, and none of the first /64, as `::1` and mapped ones are.
const fn is_host_v6(first: [u8; 8]) -> bool {
    first[0] != 0xff && u64::from_ne_bytes(first) != 0
}

/// The bit of a link's address that is of many.
const GROUP_ADDRESS: u8 = 1;
/// Where a TCP header has its length and its flags, and two of those.
const FLAGS_AT: usize = 12;
const FIN: u8 = 1;
const RST: u8 = 4;

/// Version 4, and a header without options.
const PLAIN_VIHL: u8 = 0x45;
/// Headers in bytes.
const IPV4_BYTES: u8 = 20;
const TCP_BYTES: u8 = 20;
const _: () = assert!(IPV4_BYTES as usize == Ipv4Hdr::LEN && TCP_BYTES as usize == TcpHdr::LEN);
const DONT_FRAGMENT: u16 = 0x4000;
/// Of what is answered here.
const HOPS: u8 = 64;

/// The packet that an IPv4 packet with these headers becomes.
#[inline(always)]
pub const fn v4(ip: [u32; IPV4_WORDS], tcp: [u32; TCP_WORDS], way: Way) -> [u32; V4_WORDS] {
    let ([i0, i1, i2, i3, i4], addresses) = ipv4(ip, way, TCP_BYTES);
    let [t0, t1, t2, t3, t4] = self::tcp(tcp, way, addresses);
    [i0, i1, i2, i3, i4, t0, t1, t2, t3, t4]
}

/// The packet that an IPv6 packet with these headers becomes.
#[inline(always)]
pub const fn v6(ip: [u32; IPV6_WORDS], tcp: [u32; TCP_WORDS], way: Way) -> [u32; V6_WORDS] {
    let ([i0, i1, s0, s1, s2, s3, d0, d1, d2, d3], addresses) = ipv6(ip, way, TCP_BYTES);
    let [t0, t1, t2, t3, t4] = self::tcp(tcp, way, addresses);
    [i0, i1, s0, s1, s2, s3, d0, d1, d2, d3, t0, t1, t2, t3, t4]
}

/// The header of what an IPv4 packet becomes, in front of so many bytes of TCP; and the sum of its addresses.
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

/// Likewise of IPv6.
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

/// The TCP header of a reset: without options or payload, and with a window of 0.
#[inline(always)]
const fn tcp(of: [u32; TCP_WORDS], way: Way, addresses: u64) -> [u32; TCP_WORDS] {
    /// The header's length in words, and RST and ACK.
    const RESET: u32 = u32::from_ne_bytes([0x50, 0x14, 0, 0]);
    let (ports, sequence, acknowledged) = match way {
        Way::On => (of[0], of[1], of[2]),
        // The SYN takes one number.
        Way::Back => (of[0].rotate_left(16), 0, u32::from_be(of[1]).wrapping_add(1).to_be()),
    };
    let words = ports as u64 + sequence as u64 + acknowledged as u64 + RESET as u64;
    let sum = checksum(addresses + pseudo(TCP_BYTES) + words);
    [ports, sequence, acknowledged, RESET, with_high_half(sum)]
}

/// What the pseudo-header has beside the addresses: the protocol, and the length of header and payload.
const fn pseudo(tcp_bytes: u8) -> u64 {
    u32::from_ne_bytes([0, IpProto::Tcp as u8, 0, tcp_bytes]) as u64
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
