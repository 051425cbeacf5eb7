//! Random TCP clients and their segments: what browsers send, what a bad line makes of that, and what only hostile
//! clients send. Knows nothing about what is counted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use crate::frames::flag::{ACK, FIN, PSH, RST, SYN};
use crate::random::Random;

/// Addresses and ports of a connection: source, destination, source port, destination port.
pub type Name = (IpAddr, IpAddr, u16, u16);

/// Fields of a segment that depend on its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Sequence number of the first payload byte.
    pub sequence: u32,
    /// Acknowledgement number, present whatever the flags say.
    pub acknowledged: u32,
    /// TCP flags of the segment.
    pub flags: u8,
    /// Payload of the segment, maybe empty.
    pub data: Vec<u8>,
}

/// All connections by their addresses and ports.
#[derive(Debug, Default)]
pub struct Clients(HashMap<Name, Client>);

/// Maximum payload of a segment, in bytes.
const SEGMENT_BYTES_MAX: usize = 1300;
/// Number of bytes after which a connection starts again.
const STREAM_BYTES_MAX: usize = 1 << 16;

/// One connection, from its client's side.
#[derive(Debug)]
struct Client {
    speaks: Speaks,
    /// Sequence number of the stream's first byte.
    first: u32,
    /// Bytes generated so far, sent or not.
    stream: Vec<u8>,
    /// Number of bytes already sent, or left out.
    sent: usize,
    /// Range that was left out, and that may be sent later.
    held: Option<Range<usize>>,
    /// Acknowledgement number of the next segment.
    heard: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http1,
    Tls,
    /// Random bytes of no protocol.
    Bytes,
}

impl Clients {
    /// Returns the next segment of this connection's client.
    pub fn next(&mut self, name: Name, random: &mut Random) -> Sent {
        let is_reset = random.one_in(60);
        let client = self.0.entry(name).or_insert_with(|| Client::new(random));
        if is_reset || client.stream.len() > STREAM_BYTES_MAX {
            *client = Client::new(random);
            // Not every connection is seen from its beginning.
            if !random.one_in(4) {
                return client.syn(random);
            }
        }
        client.next(random)
    }
}

impl Client {
    fn new(random: &mut Random) -> Self {
        // Some start shortly before their sequence numbers wrap.
        let number = |random: &mut Random| {
            let any = random.word().to_le_bytes();
            let number = u32::from_le_bytes([any[0], any[1], any[2], any[3]]);
            if random.one_in(3) { u32::MAX - number % 4096 } else { number }
        };
        let speaks = random.of(&[Speaks::Http1, Speaks::Http1, Speaks::Tls, Speaks::Tls, Speaks::Bytes]);
        let (first, heard) = (number(random), number(random));
        let mut client = Self { speaks, first, stream: Vec::new(), sent: 0, held: None, heard };
        if speaks == Speaks::Tls && !random.one_in(4) {
            client.stream = tls_start(random);
        }
        client
    }

    /// Returns the connection's SYN, with the sequence number before the stream's first byte. Some SYNs carry data.
    fn syn(&mut self, random: &mut Random) -> Sent {
        let mut data = Vec::new();
        if random.one_in(6) {
            let range = self.fresh(random);
            self.sent = range.end;
            data = self.stream[range].to_vec();
        }
        Sent { sequence: self.first.wrapping_sub(1), acknowledged: 0, flags: SYN, data }
    }

    fn next(&mut self, random: &mut Random) -> Sent {
        if random.one_in(2) {
            self.hear(random);
        }
        match random.below(40) {
            // A retransmission, whole or in other parts.
            0..=3 if self.sent > 0 => {
                let start = self.sent - 1 - random.index(self.sent.min(2 * SEGMENT_BYTES_MAX));
                let end = (start + 1 + random.index(SEGMENT_BYTES_MAX)).min(self.sent);
                self.segment(start..end, random)
            }
            // A retransmission with new data behind it.
            4..=5 if self.sent > 0 => {
                let back = 1 + random.index(self.sent.min(100));
                let new = self.fresh(random);
                self.sent = new.end;
                self.segment(new.start - back..new.end, random)
            }
            // A segment that is left out, for now or for good.
            6..=8 if self.held.is_none() => {
                let late = self.fresh(random);
                self.sent = late.end;
                self.held = Some(late);
                self.send(random)
            }
            9..=15 if self.held.is_some() => {
                let late = self.held.take().unwrap_or(0..0);
                // Some arrive in two parts.
                if late.len() > 1 && random.one_in(3) {
                    let cut = late.start + 1 + random.index(late.len() - 1);
                    self.held = Some(cut..late.end);
                    self.segment(late.start..cut, random)
                } else {
                    self.segment(late, random)
                }
            }
            // No data, or one byte before the next one, as keep-alives send it.
            16..=19 => self.segment(self.sent..self.sent, random),
            20 if self.sent > 0 => self.segment(self.sent - 1..self.sent, random),
            // A sequence number far from the others, which no client with good intentions sends.
            21 => {
                let mut far = self.segment_of(b"GET / HTTP/1.1\r\n\r\n".to_vec(), self.sent, random);
                far.sequence = far.sequence.wrapping_add(random.of(&[
                    1 << 16,
                    1 << 22,
                    (1 << 23) - 1,
                    1 << 23,
                    (1 << 23) + 1,
                    1 << 24,
                    1 << 30,
                    (1 << 31) - 1,
                    1 << 31,
                    (1 << 31) + 1,
                    0xff80_0000,
                    0xff7f_ffff,
                    0xffff_0000,
                ]));
                far
            }
            22 => {
                let flags = random.of(&[RST, RST | ACK, FIN | ACK, 0, SYN | ACK, PSH, 0xff]);
                Sent { flags, ..self.send(random) }
            }
            _ => self.send(random),
        }
    }

    /// Returns the next segment of the stream.
    fn send(&mut self, random: &mut Random) -> Sent {
        let range = self.fresh(random);
        self.sent = range.end;
        self.segment(range, random)
    }

    /// Returns the range of the next unsent bytes: mostly whole messages, as far as they fit.
    fn fresh(&mut self, random: &mut Random) -> Range<usize> {
        if self.sent == self.stream.len() {
            let message = message(self.speaks, random);
            self.stream.extend(message);
        }
        let left = self.stream.len() - self.sent;
        let len = if random.one_in(4) { 1 + random.index(left) } else { left };
        self.sent..self.sent + len.min(SEGMENT_BYTES_MAX)
    }

    /// Acknowledges the server's answer, partly or completely.
    fn hear(&mut self, random: &mut Random) {
        // Sizes around those of what is no answer (`100 Continue`, clear and in a record; two session tickets), and
        // more.
        let bytes = random.of(&[
            1, 24, 25, 26, 46, 47, 48, 200, 239, 240, 290, 479, 480, 580, 581, 699, 700, 701, 1448, 16_383, 16_384,
            60_000,
        ]);
        self.heard = self.heard.wrapping_add(bytes);
        if random.one_in(40) {
            // Less than before, as a segment that was overtaken has it.
            self.heard = self.heard.wrapping_sub(2 * bytes);
        }
        if random.one_in(100) {
            // Far less, or far more. Nobody receives that much at once, but anybody may claim so.
            let far = random.of(&[(1 << 23) - 1, 1 << 23, (1 << 23) + 1, (1 << 23) + 2, 1 << 30, 1 << 31, 3 << 30]);
            self.heard = self.heard.wrapping_sub(far);
        }
    }

    fn segment(&self, range: Range<usize>, random: &mut Random) -> Sent {
        self.segment_of(self.stream[range.clone()].to_vec(), range.start, random)
    }

    fn segment_of(&self, data: Vec<u8>, at: usize, random: &mut Random) -> Sent {
        let sequence = self.first.wrapping_add(u32::try_from(at).expect("a stream of some thousand bytes"));
        Sent { sequence, acknowledged: self.heard, flags: random.of(&[ACK, PSH | ACK, PSH | ACK]), data }
    }
}

/// Returns what a client sends without waiting for an answer.
fn message(speaks: Speaks, random: &mut Random) -> Vec<u8> {
    match speaks {
        Speaks::Http1 if random.one_in(8) => web_socket(random),
        Speaks::Http1 => http1(random),
        Speaks::Tls => tls(random),
        Speaks::Bytes => {
            let at_most = random.of(&[40, 2000]);
            let bytes = 1 + random.index(at_most);
            (0..bytes).map(|_| random.word().to_le_bytes()[0]).collect()
        }
    }
}

/// Body with text of requests, behind a line end and behind an empty line. Not all of this text is lines, because a
/// search looks at a limited number of them.
const TEXT_OF_REQUESTS: &[u8] =
    b"\r\nGET / HTTP/1.1\r\nHost: one-of-several-that-are-served.example.org\r\n\r\nGET / HTTP/1.1";

/// Returns one request or several, some with a body, a few of them malformed.
fn http1(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.of(&[1, 1, 1, 1, 2, 3, 12]) {
        let method = random.of(&[
            "GET",
            "GET",
            "HEAD",
            "POST",
            "PUT",
            "DELETE",
            "OPTIONS",
            "PATCH",
            "TRACE",
            "BREW",
            "get",
            "VERSION-CONTROL",
            "MKCALENDAR",
            "PROPFIND",
        ]);
        // Some servers accept the longer versions; none accept the other malformed ones.
        let version = random.of(&["1.1", "1.1", "1.1", "1.1", "1.0", "2.0", "1.1  ", "1.01", "1.1x", "11", "a.html"]);
        let protocol = random.of(&["HTTP", "HTTP", "HTTP", "http", "HTTQ"]);
        let end = random.of(&["\r\n", "\r\n", "\r\n", "\n"]);
        if random.one_in(12) {
            // An empty line, which servers skip.
            bytes.extend(end.bytes());
        }
        bytes.extend(format!("{method} /{} {protocol}/{version}{end}", "a".repeat(random.index(60))).bytes());
        for _ in 0..random.below(4) {
            bytes.extend(format!("X-Header: {}{end}", "GET / HTTP/1.1 ".repeat(random.index(12))).bytes());
        }
        let at_most = random.of(&[30, 3000]);
        let body = if ["POST", "PUT", "PATCH"].contains(&method) { random.index(at_most) } else { 0 };
        if body > 0 && random.one_in(3) {
            bytes.extend(format!("Expect: 100-continue{end}").bytes());
        }
        bytes.extend(format!("Content-Length: {body}{end}{end}").bytes());
        let filling: &[u8] = random.of(&[b"x", TEXT_OF_REQUESTS, b"POST "]);
        bytes.extend(filling.iter().cycle().take(body));
    }
    bytes
}

/// Returns a WebSocket frame, or nearly one.
fn web_socket(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![random.of(&[0x81, 0x82, 0x88, 0xc1, 0xa1, 0x83]), random.of(&[0x84, 0x84, 0x04])];
    bytes.resize(random.of(&[5, 6, 10]), b'm');
    bytes
}

/// Returns one TLS record of this type with placeholder content, which nobody parses.
fn record(kind: u8, bytes: usize) -> Vec<u8> {
    let len = u16::try_from(bytes).expect("a record of at most 16 KB").to_be_bytes();
    let mut record = vec![kind, 3, 3, len[0], len[1]];
    record.resize(5 + bytes, 0x5a);
    record
}

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// Protocols that a ClientHello offers, HTTP/2 among them.
const OFFER_OF_HTTP2: &[u8] = b"\x02h2\x08http/1.1";

/// Returns what a client sends before its first request: a ClientHello and the rest of a TLS 1.2 or 1.3 handshake, or
/// something that is neither.
fn tls_start(random: &mut Random) -> Vec<u8> {
    let mut bytes = record(HANDSHAKE, 200 + random.index(400));
    if random.one_in(2) {
        bytes[100..][..OFFER_OF_HTTP2.len()].copy_from_slice(OFFER_OF_HTTP2);
    }
    if !random.one_in(5) {
        bytes.extend(record(CHANGE_CIPHER_SPEC, 1));
    }
    if random.one_in(6) {
        // A certificate and its CertificateVerify.
        bytes.extend(record(APPLICATION_DATA, 725));
        bytes.extend(record(APPLICATION_DATA, 281));
    }
    let (finished, len) = random.of(&[
        (HANDSHAKE, 40),
        (HANDSHAKE, 77),
        (HANDSHAKE, 53),
        (APPLICATION_DATA, 53),
        (APPLICATION_DATA, 61),
        (APPLICATION_DATA, 69),
        (APPLICATION_DATA, 85),
        (APPLICATION_DATA, 128),
        (APPLICATION_DATA, 129),
        (APPLICATION_DATA, 272),
    ]);
    bytes.extend(record(finished, len));
    bytes
}

/// Returns records of application data; a few have another type or none.
fn tls(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.of(&[1, 1, 1, 2, 4]) {
        let kind = random.of(&[
            APPLICATION_DATA,
            APPLICATION_DATA,
            APPLICATION_DATA,
            APPLICATION_DATA,
            APPLICATION_DATA,
            APPLICATION_DATA,
            HANDSHAKE,
            ALERT,
            CHANGE_CIPHER_SPEC,
            0,
        ]);
        let at_most = random.of(&[1, 120, 120, 600, 600, 16_384]);
        // An alert of TLS 1.3 and nearly one; one or two HTTP/2 control frames with the ciphers of TLS 1.3 and with
        // others; the shortest HTTP/2 headers, and several of them in one record.
        let short = random.of(&[18, 19, 19, 20, 26, 26, 27, 30, 31, 33, 34, 37, 38, 41, 43, 44, 45, 50, 59, 87, 157]);
        bytes.extend(record(kind, if at_most == 1 { short } else { 20 + random.index(at_most) }));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_send_equal_segments() {
        let name = (IpAddr::from([198, 51, 100, 1]), IpAddr::from([192, 0, 2, 1]), 40_000, 80);
        let run = || {
            let (mut clients, mut random) = (Clients::default(), Random(5));
            (0..2000).map(|_| clients.next(name, &mut random)).collect::<Vec<_>>()
        };
        let sent = run();
        assert_eq!(sent, run());
        assert!(sent.iter().all(|segment| segment.data.len() <= SEGMENT_BYTES_MAX + 100));
        assert!(sent.iter().any(|segment| segment.data.starts_with(b"GET /")));
    }
}
