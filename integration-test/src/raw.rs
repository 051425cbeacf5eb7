//! A TCP client made of frames, with an address that no kernel has. The test chooses its sequence numbers,
//! acknowledgements, checksums and payloads. Supports IPv4 over Ethernet.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, PacketSocket};

use crate::frames::flag::{ACK, PSH, RST, SYN};
use crate::frames::proto::TCP;
use crate::frames::{IPV4, Segment, V4, checksum};
use crate::lab::{HANGS_AFTER, Lab, SERVER};

const ETHERNET_BYTES: usize = 14;
const IP_BYTES: usize = 20;
const TCP_BYTES: usize = 20;
/// Flag in the field of a fragment's offset in IPv4.
const MORE_FRAGMENTS: u16 = 0x2000;
/// TCP option of a segment size of 1460, as on Ethernet.
const SEGMENT_SIZE: [u8; 4] = [2, 4, 0x05, 0xb4];
/// Interval between two looks at received frames.
const TICK: Duration = Duration::from_micros(200);

/// Wire between the client's `c0` and an interface of the server.
pub struct RawWire {
    socket: PacketSocket,
    client: [u8; 6],
    server: [u8; 6],
    to: Ipv4Addr,
}

impl RawWire {
    /// Creates a wire to `s0` of a laboratory's server.
    pub fn new(lab: &Lab) -> Self {
        Self::to(lab, "s0")
    }

    /// Creates a wire to this interface of the server.
    pub fn to(lab: &Lab, interface: &str) -> Self {
        Self {
            socket: PacketSocket::listener(&lab.client, "c0").expect("a packet socket"),
            client: link_address(&lab.client, "c0"),
            server: link_address(&lab.server, interface),
            to: SERVER[0].parse().expect("an address"),
        }
    }

    /// Makes the server reach an address on its network that no kernel has.
    pub fn host(&self, lab: &Lab, address: Ipv4Addr) {
        let link = self.client.map(|byte| format!("{byte:02x}")).join(":");
        let neighbour = ["neigh", "replace", &address.to_string(), "lladdr", &link, "dev", "s0", "nud", "permanent"];
        lab.server.ip(&neighbour).expect("a neighbour");
    }

    /// Returns a segment from this address as a frame.
    pub fn frame(&self, from: Ipv4Addr, segment: Segment<'_>) -> Vec<u8> {
        let mut tcp = segment.bytes();
        let sum = self.checksum(from, &tcp);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut packet = V4 { source: from.octets(), ..V4::of(TCP) }.around(tcp);
        packet[16..20].copy_from_slice(&self.to.octets());
        packet[10..12].fill(0);
        let sum = checksum(&packet[..IP_BYTES]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [self.server, self.client].concat();
        frame.extend(IPV4.to_be_bytes());
        frame.extend(packet);
        frame
    }

    /// Sends a frame to the server.
    pub fn send(&self, frame: &[u8]) {
        self.socket.send(frame).expect("the frame is sent");
    }

    fn checksum(&self, from: Ipv4Addr, tcp: &[u8]) -> u16 {
        let len = u16::try_from(tcp.len()).expect("a packet's length").to_be_bytes();
        checksum(&[&from.octets()[..], &self.to.octets(), &[0, TCP], &len, tcp].concat())
    }
}

fn link_address(namespace: &Namespace, interface: &str) -> [u8; 6] {
    let shown = namespace.ip(&["-br", "link", "show", "dev", interface]).expect("the interface is there");
    let address = shown.split_whitespace().nth(2).expect("a link address");
    let bytes: Vec<u8> = address.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect();
    bytes.try_into().expect("six bytes")
}

/// One TCP connection of the client.
pub struct RawClient<'a> {
    wire: &'a RawWire,
    /// Source address of the client.
    pub address: Ipv4Addr,
    source_port: u16,
    port: u16,
    /// Sequence number of the next byte to send.
    pub sequence: u32,
    /// Sequence number of the next byte to receive.
    pub acknowledged: u32,
    /// The client acknowledges what it receives.
    pub acknowledges: bool,
    heard: Vec<u8>,
}

impl<'a> RawClient<'a> {
    /// Returns a client that has sent nothing.
    pub const fn new(wire: &'a RawWire, address: Ipv4Addr, source_port: u16, port: u16, sequence: u32) -> Self {
        Self { wire, address, source_port, port, sequence, acknowledged: 0, acknowledges: true, heard: Vec::new() }
    }

    /// Opens the connection with this payload in the SYN, asserts that it succeeds, and returns the client.
    pub fn connected(mut self, payload: &[u8]) -> Self {
        assert!(self.connects(payload, HANGS_AFTER), "{} port {} connects", self.address, self.source_port);
        self
    }

    /// Opens the connection with this payload in the SYN. Returns whether that succeeds within this time.
    pub fn connects(&mut self, payload: &[u8], within: Duration) -> bool {
        self.drain();
        let syn = Segment { acknowledged: 0, options: &SEGMENT_SIZE, data: payload, ..self.plain(SYN) };
        self.wire.send(&self.wire.frame(self.address, syn));
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            let Some(heard) = self.next() else {
                thread::sleep(TICK);
                continue;
            };
            if heard.flags & (SYN | ACK) == SYN | ACK {
                self.sequence = self.sequence.wrapping_add(1);
                self.acknowledged = heard.sequence.wrapping_add(1);
                self.send(self.plain(ACK));
                return true;
            }
        }
        false
    }

    /// Returns a segment that continues this connection.
    pub const fn plain(&self, flags: u8) -> Segment<'static> {
        Segment {
            source_port: self.source_port,
            sequence: self.sequence,
            acknowledged: self.acknowledged,
            ..Segment::to(self.port, flags)
        }
    }

    /// Sends a segment unchanged, with the correct checksum.
    pub fn send(&self, segment: Segment<'_>) {
        self.wire.send(&self.wire.frame(self.address, segment));
    }

    /// Sends a segment with a wrong checksum, so that no TCP accepts it.
    pub fn send_broken(&self, segment: Segment<'_>) {
        let mut frame = self.wire.frame(self.address, segment);
        frame[ETHERNET_BYTES + IP_BYTES + 16] ^= 0x55;
        self.wire.send(&frame);
    }

    /// Sends the next data of the stream.
    pub fn says(&mut self, payload: &[u8]) {
        self.send(Segment { data: payload, ..self.plain(ACK | PSH) });
        self.sequence = self.sequence.wrapping_add(u32::try_from(payload.len()).expect("a packet's length"));
    }

    /// Sends the next data of the stream in two IP fragments, the first one with `first` bytes of TCP. Calls `between`
    /// between them.
    pub fn says_in_fragments(&mut self, payload: &[u8], first: usize, between: impl FnOnce(&Self)) {
        let frame = self.wire.frame(self.address, Segment { data: payload, ..self.plain(ACK | PSH) });
        let (head, tcp) = frame.split_at(ETHERNET_BYTES + IP_BYTES);
        let (begins, ends) = tcp.split_at(first);
        let offset = u16::try_from(first / 8).expect("a fragment's offset");
        self.send_part(head, MORE_FRAGMENTS, begins);
        between(self);
        self.send_part(head, offset, ends);
        self.sequence = self.sequence.wrapping_add(u32::try_from(payload.len()).expect("a packet's length"));
    }

    /// Sends one fragment, with the other fields of this head.
    fn send_part(&self, head: &[u8], fragment: u16, part: &[u8]) {
        let (mut ethernet, mut ip) = (head[..ETHERNET_BYTES].to_vec(), head[ETHERNET_BYTES..].to_vec());
        let len = u16::try_from(IP_BYTES + part.len()).expect("a packet's length");
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ethernet.extend(ip);
        ethernet.extend(part);
        self.wire.send(&ethernet);
    }

    /// Ends the connection at once.
    pub fn resets(&self) {
        self.send(self.plain(RST | ACK));
    }

    /// Receives until there are `answers` HTTP/1 answers in all. Returns whether they arrived in time.
    pub fn hears_answers(&mut self, answers: usize, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.answers() < answers {
            if Instant::now() > deadline {
                return false;
            }
            self.hears();
        }
        true
    }

    /// Sends a request `times` times, each after the previous answer. Returns the number of answers.
    pub fn asks(&mut self, request: &[u8], times: usize, within: Duration) -> usize {
        let before = self.answers();
        for answer in 1..=times {
            self.says(request);
            if !self.hears_answers(before + answer, within) {
                break;
            }
        }
        self.answers() - before
    }

    /// Returns the number of HTTP/1 answers so far.
    pub fn answers(&self) -> usize {
        self.heard.windows(9).filter(|bytes| bytes == b"HTTP/1.1 ").count()
    }

    fn hears(&mut self) {
        let Some(Heard { sequence, payload, .. }) = self.next() else {
            thread::sleep(TICK);
            return;
        };
        let known = self.acknowledged.wrapping_sub(sequence) as usize;
        let Some(new) = payload.get(known..).filter(|new| !new.is_empty()) else { return };
        self.heard.extend(new);
        self.acknowledged = self.acknowledged.wrapping_add(u32::try_from(new.len()).expect("a packet's length"));
        if self.acknowledges {
            self.send(self.plain(ACK));
        }
    }

    fn drain(&self) {
        while self.wire.socket.receive().expect("the socket hears").is_some() {}
    }

    /// Returns the next segment for this connection, if one has arrived.
    fn next(&self) -> Option<Heard> {
        while let Some(frame) = self.wire.socket.receive().expect("the socket hears") {
            if let Some(heard) = self.heard_in(&frame) {
                return Some(heard);
            }
        }
        None
    }

    fn heard_in(&self, frame: &[u8]) -> Option<Heard> {
        let packet =
            frame.strip_prefix(&[&self.wire.client[..], &self.wire.server, &IPV4.to_be_bytes()].concat()[..])?;
        let len = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
        let (ip, tcp) = packet.get(..len)?.split_at_checked(IP_BYTES)?;
        if ip[9] != TCP || ip[16..20] != self.address.octets() || tcp.len() < TCP_BYTES {
            return None;
        }
        let ports = [self.port.to_be_bytes(), self.source_port.to_be_bytes()];
        if tcp[..4] != *ports.as_flattened() {
            return None;
        }
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let payload = tcp.get(usize::from(tcp[12] >> 4) * 4..)?.to_vec();
        Some(Heard { sequence, flags: tcp[13], payload })
    }
}

/// A segment that a connection receives from the server.
struct Heard {
    sequence: u32,
    flags: u8,
    payload: Vec<u8>,
}
