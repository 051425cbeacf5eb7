//! The parsed frame. Functions pass it on in a per-CPU element. Nothing in it outlasts a packet.

use ratelimit_common::conversation::Peer;
use ratelimit_common::flow::Datagram;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::Fault;
use ratelimit_common::packet::{Destination, Head, Parsed, Segment, Target};
use ratelimit_common::source::Address;

use super::words::read;
use super::{PARSED, or_fault};

/// Parsed frame: [`Parsed`] with every field always written, because the verifier rejects copies of bytes that were
/// never written. One element per CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ParsedFrame {
    source: [u64; 2],
    destination: [u64; 2],
    segment: Segment,
    /// Sequence numbers and windows of the segment's socket, if `has_peer` is 1.
    peer: Peer,
    headers: Headers,
    ip_bytes: u32,
    /// Length of the frame, as far as the parser asked for it.
    pub(crate) frame_bytes: u32,
    /// Kind of the frame, one of [`frame_is`].
    is: u8,
    is_v6: u8,
    /// 1 for a SYN or a QUIC Initial.
    opening: u8,
    quic_short: u8,
    port: u16,
    source_port: u16,
    payload_bytes: u16,
    /// 1 if a TCP segment has payload.
    has_payload: u8,
    has_peer: u8,
    /// [`Target::Tcp::is_fragment`] or [`Target::Fragment::may_be_tcp`].
    fragment: u8,
    reserved: [u8; 6],
}

/// Fields of a segment's headers that a listening socket needs to check its SYN cookie, in network order.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Headers {
    pub(crate) ip: [u32; IPV6_WORDS],
    pub(crate) tcp: [u32; 5],
    reserved: u32,
}

const IPV4_WORDS: usize = 5;
const IPV6_WORDS: usize = 10;

/// Kinds of a [`ParsedFrame`].
pub(crate) mod frame_is {
    pub(super) const NOT_IP: u8 = 0;
    pub(super) const MALFORMED: u8 = 1;
    pub(super) const TOO_MANY_TAGS: u8 = 2;
    pub(crate) const TCP: u8 = 3;
    pub(crate) const UDP: u8 = 4;
    pub(crate) const FRAGMENT: u8 = 5;
    pub(crate) const UNPARSABLE_HEADERS: u8 = 6;
    pub(super) const CONTROL_TRAFFIC: u8 = 7;
    pub(super) const OTHER: u8 = 8;
}

impl ParsedFrame {
    /// Stores the fields of a parse result that are used later.
    #[inline(always)]
    pub(crate) fn keep(&mut self, parsed: Parsed, frame_bytes: u32) {
        self.frame_bytes = frame_bytes;
        let packet = match parsed {
            Parsed::NotIp => return self.is = frame_is::NOT_IP,
            Parsed::Malformed => return self.is = frame_is::MALFORMED,
            Parsed::TooManyTags => return self.is = frame_is::TOO_MANY_TAGS,
            Parsed::Ip(packet) => packet,
        };
        self.ip_bytes = packet.ip_bytes;
        match (packet.source, packet.destination) {
            (Address::V4(source), Address::V4(destination)) => {
                self.is_v6 = 0;
                self.source[0] = u64::from(source);
                self.destination[0] = u64::from(destination);
            }
            (Address::V6(source), Address::V6(destination)) => {
                self.is_v6 = 1;
                self.source = source;
                self.destination = destination;
            }
            (Address::V4(_), Address::V6(_)) | (Address::V6(_), Address::V4(_)) => {}
        }
        self.is = match packet.target {
            Target::Tcp { port, opening, segment, is_fragment } => {
                self.port = port;
                self.opening = opening as u8;
                self.has_payload = (segment.payload_bytes != 0) as u8;
                self.fragment = is_fragment as u8;
                self.segment = segment;
                frame_is::TCP
            }
            Target::Udp { port, source_port, quic_initial, quic_short, payload_bytes } => {
                self.port = port;
                self.source_port = source_port;
                self.opening = quic_initial as u8;
                self.quic_short = quic_short as u8;
                self.payload_bytes = payload_bytes;
                frame_is::UDP
            }
            Target::Fragment { may_be_tcp } => {
                self.fragment = may_be_tcp as u8;
                frame_is::FRAGMENT
            }
            Target::UnparsableHeaders => frame_is::UNPARSABLE_HEADERS,
            Target::ControlTraffic => frame_is::CONTROL_TRAFFIC,
            Target::Other => frame_is::OTHER,
        };
    }

    /// Stores the head of a plain frame, and nothing else.
    #[inline(always)]
    pub(crate) fn keep_head(&mut self, head: &Head) {
        self.ip_bytes = head.ip_bytes;
        match head.source {
            Address::V4(source) => {
                self.is_v6 = 0;
                self.source[0] = u64::from(source);
            }
            Address::V6(source) => {
                self.is_v6 = 1;
                self.source = source;
            }
        }
        self.is = match head.to {
            Destination::Tcp { port, opening, has_payload } => {
                self.port = port;
                self.opening = opening as u8;
                self.has_payload = has_payload as u8;
                frame_is::TCP
            }
            Destination::Udp { port } => {
                self.port = port;
                frame_is::UDP
            }
            Destination::Fragment => frame_is::FRAGMENT,
            Destination::UnparsableHeaders => frame_is::UNPARSABLE_HEADERS,
            Destination::ControlTraffic => frame_is::CONTROL_TRAFFIC,
            Destination::Other => frame_is::OTHER,
        };
    }

    /// Marks the socket of the segment as unknown.
    #[inline(always)]
    pub(crate) fn forget_peer(&mut self) {
        self.has_peer = 0;
    }

    /// Stores what the segment's socket reports.
    #[inline(always)]
    pub(crate) fn keep_peer(&mut self, peer: Peer) {
        self.peer = peer;
        self.has_peer = 1;
    }

    /// Returns what the segment's socket reports, if it was queried and accepts the segment.
    #[inline(always)]
    pub(crate) fn peer(&self) -> Option<Peer> {
        if read!(self.has_peer) == 0 { None } else { Some(read!(self.peer)) }
    }

    /// Writes headers with the addresses, ports and sequence numbers of this segment. Returns them with the length of
    /// the IP header in bytes.
    #[inline(always)]
    pub(crate) fn write_headers(&mut self, segment: &Segment) -> (&mut Headers, u32) {
        let (source, destination, is_v6) = (read!(self.source), read!(self.destination), read!(self.is_v6) != 0);
        let ports = u32::from(segment.source_port.to_be()) | u32::from(self.port().to_be()) << 16;
        let headers = &mut self.headers;
        // The header's length in words, and the ACK flag only.
        headers.tcp = [ports, segment.sequence.to_be(), segment.acknowledged.to_be(), 0x0000_1050, 0];
        if is_v6 {
            headers.ip[0] = 0x60;
            for (at, half) in [source[0], source[1], destination[0], destination[1]].into_iter().enumerate() {
                headers.ip[2 + 2 * at] = half as u32;
                headers.ip[3 + 2 * at] = (half >> 32) as u32;
            }
            (headers, (IPV6_WORDS * size_of::<u32>()) as u32)
        } else {
            headers.ip[0] = 0x45;
            headers.ip[3] = source[0] as u32;
            headers.ip[4] = destination[0] as u32;
            (headers, (IPV4_WORDS * size_of::<u32>()) as u32)
        }
    }

    /// Returns true if the segment may end a handshake, with or without payload.
    #[inline(always)]
    pub(crate) fn may_end_handshake(&self) -> bool {
        self.peer().is_some_and(|peer| peer.is_opening != 0)
    }

    /// Marks the frame as unfragmented, for plain frames, which are not parsed.
    #[inline(always)]
    pub(crate) fn keep_whole(&mut self) {
        self.fragment = 0;
    }

    /// Returns true if a TCP segment is the first fragment of several, or if a later fragment may be TCP.
    #[inline(always)]
    pub(crate) fn is_fragment_of_tcp(&self) -> bool {
        read!(self.fragment) != 0
    }

    /// Replaces the TCP segment by another one.
    #[inline(always)]
    pub(crate) fn take_for(&mut self, segment: Segment) {
        self.segment = segment;
    }

    /// Returns the TCP segment; meaningless if the frame has none.
    #[inline(always)]
    pub(crate) fn segment(&self) -> Segment {
        read!(self.segment)
    }

    /// Returns the packet's head, or why it has none.
    #[inline(always)]
    pub(crate) fn head(&self) -> Result<Head, NoPacket> {
        let port = read!(self.port);
        let to = match read!(self.is) {
            frame_is::NOT_IP => return Err(NoPacket::NotIp),
            frame_is::TOO_MANY_TAGS => return Err(NoPacket::TooManyTags),
            frame_is::TCP => {
                Destination::Tcp { port, opening: read!(self.opening) != 0, has_payload: read!(self.has_payload) != 0 }
            }
            frame_is::UDP => Destination::Udp { port },
            frame_is::FRAGMENT => Destination::Fragment,
            frame_is::UNPARSABLE_HEADERS => Destination::UnparsableHeaders,
            frame_is::CONTROL_TRAFFIC => Destination::ControlTraffic,
            frame_is::OTHER => Destination::Other,
            _ => return Err(NoPacket::Malformed),
        };
        Ok(Head { source: self.source(), ip_bytes: read!(self.ip_bytes), to })
    }

    /// Returns the fields that the flow of a UDP datagram needs.
    #[inline(always)]
    pub(crate) fn datagram(&self, speaks_quic: bool) -> Datagram {
        Datagram {
            speaks_quic,
            quic_initial: read!(self.opening) != 0,
            quic_short: read!(self.quic_short) != 0,
            payload_bytes: read!(self.payload_bytes),
        }
    }

    /// Returns [`ratelimit_common::packet::Packet::ip_bytes`].
    #[inline(always)]
    pub(crate) fn ip_bytes(&self) -> u32 {
        read!(self.ip_bytes)
    }

    /// Returns true if the frame is of this kind, one of [`frame_is`].
    #[inline(always)]
    pub(crate) fn is(&self, what: u8) -> bool {
        read!(self.is) == what
    }

    /// Returns true if a TCP segment opens a connection.
    #[inline(always)]
    pub(crate) fn is_opening(&self) -> bool {
        read!(self.opening) != 0
    }

    /// Returns true if a TCP segment has payload.
    #[inline(always)]
    pub(crate) fn has_payload(&self) -> bool {
        read!(self.has_payload) != 0
    }

    /// Sets the segment's sequence number to the first byte that the server has not received. Returns false if the
    /// socket is unknown.
    #[inline(always)]
    pub(crate) fn take_for_next(&mut self) -> bool {
        let Some(peer) = self.peer() else { return false };
        self.segment.sequence = peer.received;
        true
    }

    /// Returns the destination port.
    #[inline(always)]
    pub(crate) fn port(&self) -> u16 {
        read!(self.port)
    }

    /// Returns a TCP segment's connection as two words for hashes.
    #[inline(always)]
    pub(crate) fn connection_words(&self, seed: HashKey) -> [u64; 2] {
        let (source, destination) = (read!(self.source), read!(self.destination));
        let ports = u64::from(self.segment().source_port) << 16 | u64::from(self.port());
        if read!(self.is_v6) == 0 {
            return [source[0] << 32 | destination[0], ports];
        }
        [seed.hash(source[0], source[1]), seed.hash(destination[0], destination[1]) ^ ports]
    }

    /// Returns the source port of a UDP datagram.
    #[inline(always)]
    pub(crate) fn source_port(&self) -> u16 {
        read!(self.source_port)
    }

    /// Returns the source address.
    #[inline(always)]
    pub(crate) fn source(&self) -> Address {
        let words = read!(self.source);
        if read!(self.is_v6) == 0 { Address::V4(words[0] as u32) } else { Address::V6(words) }
    }

    /// Returns the destination address.
    #[inline(always)]
    pub(crate) fn destination(&self) -> Address {
        let words = read!(self.destination);
        if read!(self.is_v6) == 0 { Address::V4(words[0] as u32) } else { Address::V6(words) }
    }
}

/// Reasons why a frame has no packet to judge.
#[derive(Clone, Copy)]
pub(crate) enum NoPacket {
    NotIp,
    Malformed,
    TooManyTags,
    /// No memory for the parsed frame was available.
    NotParsed,
}

/// Returns memory for the current frame before it is parsed. Counts a fault if it is missing.
#[inline(always)]
pub(crate) fn to_parse() -> Option<&'static mut ParsedFrame> {
    or_fault(parsed_mut(), Fault::ParsedLookup)
}

/// Returns the current frame after it was parsed.
#[inline(always)]
pub(crate) fn parsed() -> Option<&'static ParsedFrame> {
    parsed_mut().map(|parsed| &*parsed)
}

/// Returns the current frame for writing.
#[inline(always)]
pub(crate) fn parsed_mut() -> Option<&'static mut ParsedFrame> {
    // SAFETY: this CPU's element, which lives as long as the map; it is written before any other function borrows it.
    PARSED.get_ptr_mut(0).map(|parsed| unsafe { &mut *parsed })
}
