//! Frames as bytes, built from the RFCs. Shares no code with the parser, and can build what no correct sender sends:
//! every length and flag can be set to a wrong value.

use std::net::IpAddr;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Tag protocol of a customer VLAN (802.1Q).
pub const VLAN: u16 = 0x8100;
/// Tag protocol of a service VLAN (802.1ad).
pub const SERVICE_VLAN: u16 = 0x88a8;
/// Tag protocol of a service VLAN before 802.1ad.
pub const OLD_SERVICE_VLAN: u16 = 0x9100;

/// Protocol numbers, as in an IPv4 protocol or IPv6 next-header field.
pub mod proto {
    #![expect(missing_docs, reason = "the IANA registry's names")]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const NONE: u8 = 59;
    pub const DEST_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const MOBILITY: u8 = 135;
    pub const HIP: u8 = 139;
    pub const SHIM6: u8 = 140;
    pub const EXPERIMENT: u8 = 253;
}

/// Flags of the TCP header.
pub mod flag {
    #![expect(missing_docs, reason = "the header's names")]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

/// Source of IPv4 frames unless stated otherwise (TEST-NET-2).
pub const SOURCE_V4: [u8; 4] = [198, 51, 100, 7];
/// Destination of every IPv4 frame (TEST-NET-1).
pub const DESTINATION_V4: [u8; 4] = [192, 0, 2, 1];
/// Source of IPv6 frames unless stated otherwise.
pub const SOURCE_V6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7];
/// Destination of every IPv6 frame.
pub const DESTINATION_V6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Source port of every segment and datagram unless stated otherwise.
pub const SOURCE_PORT: u16 = 40_000;

/// Returns an Ethernet frame of this type.
pub fn frame(ether_type: u16, payload: impl AsRef<[u8]>) -> Vec<u8> {
    tagged(&[], ether_type, payload)
}

/// Returns an Ethernet frame with tags, outermost first. Each tag has a tag protocol and a value (priority and VLAN
/// number).
pub fn tagged(tags: &[(u16, u16)], ether_type: u16, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = vec![0x02, 0, 0, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0x02];
    for (protocol, tag) in tags {
        bytes.extend(protocol.to_be_bytes());
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend(payload.as_ref());
    bytes
}

/// An IPv4 header. Fields that are `None` get their correct value.
#[derive(Clone, Copy, Debug)]
pub struct V4 {
    /// Version field, normally 4.
    pub version: u8,
    /// Header length in words, as claimed.
    pub ihl: u8,
    /// Number of bytes of options that are really there.
    pub options: usize,
    /// Total length in bytes, as claimed.
    pub total_len: Option<u16>,
    /// Fragment offset in units of 8 bytes.
    pub fragment_offset: u16,
    /// Flag that more fragments follow.
    pub more_fragments: bool,
    /// Flag that forbids fragmentation.
    pub dont_fragment: bool,
    /// Protocol number of the payload.
    pub proto: u8,
    /// Source address of the packet.
    pub source: [u8; 4],
}

impl V4 {
    /// Returns a plain header for this protocol.
    pub const fn of(proto: u8) -> Self {
        Self {
            version: 4,
            ihl: 5,
            options: 0,
            total_len: None,
            fragment_offset: 0,
            more_fragments: false,
            dont_fragment: false,
            proto,
            source: SOURCE_V4,
        }
    }

    /// Returns a header with this many words of options, all of them no-operations.
    pub const fn with_options(proto: u8, words: u8) -> Self {
        let mut header = Self::of(proto);
        header.ihl = 5 + words;
        header.options = words as usize * 4;
        header
    }

    /// Returns a header that claims this many words, without the options.
    pub const fn claiming_ihl(proto: u8, ihl: u8) -> Self {
        let mut header = Self::of(proto);
        header.ihl = ihl;
        header
    }

    /// Returns a header that claims this total length.
    pub const fn claiming_len(proto: u8, total_len: u16) -> Self {
        let mut header = Self::of(proto);
        header.total_len = Some(total_len);
        header
    }

    /// Returns a fragment's header, with the offset in units of 8 bytes.
    pub const fn fragment(proto: u8, offset: u16, more_fragments: bool) -> Self {
        let mut header = Self::of(proto);
        header.fragment_offset = offset;
        header.more_fragments = more_fragments;
        header
    }

    /// Returns the IP packet around a payload.
    pub fn around(self, payload: impl AsRef<[u8]>) -> Vec<u8> {
        let payload = payload.as_ref();
        let total_len = self.total_len.unwrap_or_else(|| length(20 + self.options + payload.len()));
        let fragment =
            self.fragment_offset | u16::from(self.more_fragments) << 13 | u16::from(self.dont_fragment) << 14;
        let mut bytes = vec![self.version << 4 | self.ihl, 0];
        bytes.extend(total_len.to_be_bytes());
        bytes.extend([0x12, 0x34]);
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, self.proto, 0, 0]);
        bytes.extend(self.source);
        bytes.extend(DESTINATION_V4);
        bytes.resize(bytes.len() + self.options, 1);
        let checksum = !ones_sum(0, &bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes.extend(payload);
        bytes
    }
}

/// Returns a plain IPv4 packet.
pub fn v4(proto: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    V4::of(proto).around(payload)
}

/// An IPv6 header. Fields that are `None` get their correct value.
#[derive(Clone, Copy, Debug)]
pub struct V6 {
    /// Version field, normally 6.
    pub version: u8,
    /// Payload length in bytes, as claimed.
    pub payload_len: Option<u16>,
    /// Protocol number of the next header.
    pub next: u8,
    /// Source address of the packet.
    pub source: [u8; 16],
}

impl V6 {
    /// Returns a plain header before this next header.
    pub const fn of(next: u8) -> Self {
        Self { version: 6, payload_len: None, next, source: SOURCE_V6 }
    }

    /// Returns a header that claims this payload length.
    pub const fn claiming_len(next: u8, payload_len: u16) -> Self {
        Self { version: 6, payload_len: Some(payload_len), next, source: SOURCE_V6 }
    }

    /// Returns the IP packet around a payload.
    pub fn around(self, payload: impl AsRef<[u8]>) -> Vec<u8> {
        let payload = payload.as_ref();
        let payload_len = self.payload_len.unwrap_or_else(|| length(payload.len()));
        let mut bytes = vec![self.version << 4, 0, 0, 0];
        bytes.extend(payload_len.to_be_bytes());
        bytes.extend([self.next, 64]);
        bytes.extend(self.source);
        bytes.extend(DESTINATION_V6);
        bytes.extend(payload);
        bytes
    }
}

/// Returns a plain IPv6 packet.
pub fn v6(next: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    V6::of(next).around(payload)
}

/// Returns an extension header in units of 8 bytes (hop-by-hop, routing, destination options, mobility, HIP, shim6),
/// followed by the payload.
pub fn extension(next: u8, units: u16, payload: impl AsRef<[u8]>) -> Vec<u8> {
    // A PadN over the whole header, or of the maximum length followed by Pad1, which is 0.
    let padding = u8::try_from(units * 8 - 4).unwrap_or(u8::MAX);
    let mut bytes = vec![next, u8::try_from(units - 1).expect("at most 256 units"), 1, padding];
    bytes.resize(usize::from(units) * 8, 0);
    bytes.extend(payload.as_ref());
    bytes
}

/// Returns a chain of `len` destination-options headers of 8 bytes, followed by the payload.
pub fn chain(len: usize, next: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = payload.as_ref().to_vec();
    for position in 0..len {
        let next = if position == 0 { next } else { proto::DEST_OPTIONS };
        bytes = extension(next, 1, bytes);
    }
    bytes
}

/// Returns an authentication header of this many words of 4 bytes, followed by the payload. Its length field is two
/// less (RFC 4302).
pub fn authentication(next: u8, words: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = vec![next, words - 2, 0, 0];
    bytes.resize(usize::from(words) * 4, 0xaa);
    bytes.extend(payload.as_ref());
    bytes
}

/// Returns a fragment header with the offset in units of 8 bytes, followed by the payload.
pub fn fragment(next: u8, offset: u16, more_fragments: bool, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = vec![next, 0];
    bytes.extend((offset << 3 | u16::from(more_fragments)).to_be_bytes());
    bytes.extend([0, 0, 0, 9]);
    bytes.extend(payload.as_ref());
    bytes
}

/// A TCP segment. Fields that are `None` get their correct value.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Source port of the segment.
    pub source_port: u16,
    /// Destination port of the segment.
    pub port: u16,
    /// Sequence number of the first payload byte.
    pub sequence: u32,
    /// Acknowledgement number, present whatever the flags say.
    pub acknowledged: u32,
    /// Header length in words, as claimed.
    pub data_offset: Option<u8>,
    /// Flags, combined from [`flag`].
    pub flags: u8,
    /// Options, padded to words with no-operations.
    pub options: &'a [u8],
    /// Payload behind the header.
    pub data: &'a [u8],
}

impl Segment<'_> {
    /// Returns a plain segment without options or data.
    pub const fn to(port: u16, flags: u8) -> Self {
        Self {
            source_port: SOURCE_PORT,
            port,
            sequence: 1,
            acknowledged: 2,
            data_offset: None,
            flags,
            options: &[],
            data: &[],
        }
    }

    /// Returns the segment as bytes.
    pub fn bytes(self) -> Vec<u8> {
        let words = self.options.len().div_ceil(4);
        let data_offset = self.data_offset.unwrap_or_else(|| 5 + u8::try_from(words).expect("at most 10 words"));
        let mut bytes = Vec::new();
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledged.to_be_bytes());
        bytes.extend([data_offset << 4, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(self.options);
        bytes.resize(20 + words * 4, 1);
        bytes.extend(self.data);
        bytes
    }
}

/// Returns a TCP segment without options or data.
pub fn tcp(port: u16, flags: u8) -> Vec<u8> {
    Segment::to(port, flags).bytes()
}

/// Returns a TCP segment with options (padded to words) and data.
pub fn tcp_with(port: u16, flags: u8, options: &[u8], data: &[u8]) -> Vec<u8> {
    Segment { options, data, ..Segment::to(port, flags) }.bytes()
}

/// Returns a UDP datagram from [`SOURCE_PORT`].
pub fn udp(port: u16, data: impl AsRef<[u8]>) -> Vec<u8> {
    udp_from(SOURCE_PORT, port, data)
}

/// Returns a UDP datagram from this port.
pub fn udp_from(source_port: u16, port: u16, data: impl AsRef<[u8]>) -> Vec<u8> {
    let data = data.as_ref();
    let mut bytes = Vec::new();
    bytes.extend(source_port.to_be_bytes());
    bytes.extend(port.to_be_bytes());
    bytes.extend(length(8 + data.len()).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(data);
    bytes
}

/// Returns the start of a QUIC packet: its first byte, the version, and some connection ID.
pub fn quic(first: u8, version: u32) -> Vec<u8> {
    let mut bytes = vec![first];
    bytes.extend(version.to_be_bytes());
    bytes.extend([8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    bytes
}

/// Returns a SYN from this textual source address to the default destination.
pub fn syn(source: &str, port: u16) -> Vec<u8> {
    match source.parse().expect("an address") {
        IpAddr::V4(address) => {
            frame(IPV4, V4 { source: address.octets(), ..V4::of(proto::TCP) }.around(tcp(port, flag::SYN)))
        }
        IpAddr::V6(address) => {
            frame(IPV6, V6 { source: address.octets(), ..V6::of(proto::TCP) }.around(tcp(port, flag::SYN)))
        }
    }
}

/// Returns an ICMP or ICMPv6 message.
pub fn icmp(kind: u8, code: u8) -> Vec<u8> {
    vec![kind, code, 0, 0, 0, 0, 0, 0]
}

/// Returns the frame padded with zeros to at least `len` bytes, as Ethernet pads to 60.
pub fn padded(mut frame: Vec<u8>, len: usize) -> Vec<u8> {
    frame.resize(frame.len().max(len), 0);
    frame
}

/// Returns the frame cut off after `len` bytes.
pub fn cut(mut frame: Vec<u8>, len: usize) -> Vec<u8> {
    frame.truncate(len);
    frame
}

fn length(len: usize) -> u16 {
    u16::try_from(len).expect("a packet of at most 65535 bytes")
}

/// Returns the Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    !ones_sum(0, bytes)
}

/// Returns the ones' complement sum of the Internet checksum (RFC 1071), not yet inverted.
fn ones_sum(start: u32, bytes: &[u8]) -> u16 {
    let mut sum = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .fold(start, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits above")]
    let folded = sum as u16;
    folded
}
