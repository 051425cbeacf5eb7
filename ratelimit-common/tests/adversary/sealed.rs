//! Random tests of HTTP/1 and HTTP/2 under TLS.

use crate::each_case;
use crate::http1::Http1;
use crate::http2::{ACK, END_HEADERS, END_STREAM, Http2, frame, kind as frame_kind, preface};
use crate::link::{Link, Server};
use crate::random::Random;
use crate::sender::Sender;
use crate::tls::{FINISHED, Tls, kind, record, seal, seal_1_2};

/// Number of uncounted turns that a connection may have.
const FREE_OF_A_CONNECTION: u64 = 1;

/// Maximum number of turns for each request that is counted or segment that is charged to the guard.
const FACTOR: u64 = 2;

/// Payload bytes for which one more turn may be uncounted. A longer record is part of a body, of which the guard counts
/// one segment in [`ACCOUNTED_BYTES`].
///
/// [`ACCOUNTED_BYTES`]: ratelimit_common::conversation::ACCOUNTED_BYTES
const BYTES_OF_TURN: u64 = 4_096;

/// Maximum bytes from the server within one turn: `100 Continue`, or a record with a control frame.
const QUIET_BYTES: u32 = 54;

/// Returns the number of turns of these requests. A turn begins when the server has said more than `quiet_bytes` since
/// the last one began.
pub(crate) fn turns(accepted: &[u32], quiet_bytes: u32) -> u64 {
    let mut turns = 0;
    let mut begun_at = None;
    for &said in accepted {
        if begun_at.is_none_or(|at| said.wrapping_sub(at) > quiet_bytes && said.wrapping_sub(at) < 1 << 31) {
            turns += 1;
            begun_at = Some(said);
        }
    }
    turns
}

/// Checks that the number of turns with requests is within the bound.
pub(crate) fn held_to_bound<S: Server>(link: Link<S>, quiet_bytes: u32) -> Result<(), String> {
    let turns = turns(link.server.accepted(), quiet_bytes);
    let (counted, unaccounted) = (link.limiter.counted, link.limiter.unaccounted);
    if turns <= FACTOR * (counted + unaccounted + link.limiter.bytes / BYTES_OF_TURN) + FREE_OF_A_CONNECTION {
        return Ok(());
    }
    Err(format!(
        "{} accepted in {turns} turns, {counted} counted, {unaccounted} unaccounted\n{}",
        link.server.accepted().len(),
        link.log.unwrap_or_default().join("\n")
    ))
}

/// Lengths of bodies in bytes.
const BODIES: [usize; 5] = [1, 17, 100, 5000, 16_384];

struct Client {
    is_1_3: bool,
    is_http2: bool,
    pads: bool,
    /// Length of the records into which the client cuts its data.
    cuts: usize,
}

impl Client {
    fn seal(&self, stream: &mut Vec<u8>, random: &mut Random, kind: u8, content: &[u8]) {
        if !self.is_1_3 {
            return seal_1_2(stream, kind, content);
        }
        let padding = if self.pads { random.of_these(&[0, 1, 3, 8, 15, 40, 200, 500, 900]) } else { 0 };
        seal(stream, kind, content, padding);
    }

    fn opens(&self, random: &mut Random) -> Vec<u8> {
        let name: &[u8] = if self.is_http2 || random.once_in(2) { b"\x02h2\x08http/1.1" } else { b"\x08http/1.1" };
        record(kind::HANDSHAKE, &[&[1; 200], name, &[0; 100]].concat())
    }

    fn finishes(&self, random: &mut Random) -> Vec<u8> {
        let changes = record(kind::CHANGE_CIPHER_SPEC, &[1]);
        if !self.is_1_3 {
            let finished = record(kind::HANDSHAKE, &[&[FINISHED; 16][..], &[0; 24]].concat());
            return [record(kind::HANDSHAKE, &[16; 37]), changes, finished].concat();
        }
        let mut bytes = if random.once_in(3) { Vec::new() } else { changes };
        if random.once_in(4) {
            self.seal(&mut bytes, random, kind::HANDSHAKE, &[11; 600]);
            self.seal(&mut bytes, random, kind::HANDSHAKE, &[15; 200]);
        }
        self.seal(&mut bytes, random, kind::HANDSHAKE, &[FINISHED; 52]);
        bytes
    }

    /// Returns some data of the client, in one or several records.
    fn says(&self, random: &mut Random, is_first: bool) -> Vec<u8> {
        // Long bodies in short records would test nothing more.
        let bodies = if self.cuts == 1 { &BODIES[..3] } else { &BODIES };
        let mut plain = if self.is_http2 && is_first { preface() } else { Vec::new() };
        for _ in 0..random.of_these(&[1, 1, 1, 2, 5]) {
            plain.extend(if self.is_http2 { frames(random, bodies) } else { request(random, bodies) });
        }
        let mut records = Vec::new();
        let mut rest = plain.as_slice();
        while !rest.is_empty() {
            let bytes = match self.cuts {
                0 => rest.len(),
                1 => random.of_these(&[1, 2, 9, 13, 14, 17, 26, 60]),
                2 => random.between(1, 400),
                most => most,
            };
            let (part, left) = rest.split_at(bytes.min(rest.len()).min(16_000));
            if self.is_1_3 && random.once_in(20) {
                self.seal(&mut records, random, kind::DATA, &[]);
            }
            self.seal(&mut records, random, kind::DATA, part);
            rest = left;
        }
        records
    }
}

/// Returns bytes that look like record headers at any segment start. Their lengths are arbitrary, as a client that
/// knows its keys can make them.
fn forged(random: &mut Random, bytes: usize) -> Vec<u8> {
    let kind = random.of_these(&[20, 21, 22, 23, 23]);
    let length: u16 = random.of_these(&[0x4800, 0x4000, 600, 95, 35, 30, 26, 19]);
    let [high, low] = length.to_be_bytes();
    [kind, 3, 3, high, low].iter().copied().cycle().skip(random.below(5)).take(bytes).collect()
}

fn request(random: &mut Random, bodies: &[usize]) -> Vec<u8> {
    let body = if random.once_in(2) { 0 } else { random.of_these(bodies) };
    let expect = if body != 0 && random.once_in(3) { "Expect: 100-continue\r\n" } else { "" };
    let fields = match body {
        0 => random.of_these(&["", "", "Host: example.org\r\n"]).to_string(),
        _ => format!("Content-Length: {body}\r\n{expect}"),
    };
    let forges = random.once_in(3);
    let field = if forges { [b"X: ", &forged(random, 200)[..], b"\r\n"].concat() } else { Vec::new() };
    let body = if forges { forged(random, body) } else { vec![b'x'; body] };
    [format!("GET / HTTP/1.1\r\n{fields}").as_bytes(), &field, b"\r\n", &body].concat()
}

pub(crate) fn frames(random: &mut Random, bodies: &[usize]) -> Vec<u8> {
    let field = [0x82; 60];
    let length = random.of_these(&[1, 4, 5, 8, 17, 30, 50]);
    match random.below(8) {
        0 => frame(frame_kind::PING, random.of_these(&[0, ACK]), &[0; 8]),
        1 => frame(frame_kind::WINDOW_UPDATE, 0, &[1; 4]),
        2 => frame(frame_kind::SETTINGS, ACK, &[]),
        3 => {
            let body = random.of_these(bodies);
            let headers = frame(frame_kind::HEADERS, END_HEADERS, &field[..length]);
            let body = if random.once_in(2) { forged(random, body) } else { vec![1; body] };
            [headers, frame(frame_kind::DATA, END_STREAM, &body)].concat()
        }
        _ => frame(frame_kind::HEADERS, END_HEADERS | END_STREAM, &field[..length]),
    }
}

fn adversary(seed: u64, is_told: bool) -> Result<(), String> {
    let random = &mut Random::of(seed);
    let answers: Vec<u32> =
        (0..3).map(|_| random.of_these(&[40, 60, 150, 200, 460, 500, 540, 700, 5_000, 16_500, 100_000])).collect();
    let client = Client {
        is_1_3: !random.once_in(4),
        is_http2: random.once_in(2),
        pads: random.once_in(3),
        cuts: random.of_these(&[0, 0, 0, 1, 2, 13, 26, 500]),
    };
    let app: Box<dyn Server> = match client.is_http2 {
        true => Box::new(Http2::new(&answers, random.of_these(&[4096, 16_384, 32_768]))),
        false => Box::new(Http1::new(&answers)),
    };
    let mut server = Tls::new(app, client.is_1_3);
    server.takes_early_data = random.once_in(8);
    if random.once_in(4) {
        server.tickets = random.of_these(&[&[][..], &[152], &[295]]).to_vec();
    }
    let mut link = Link::new(server, random, random_limit(seed));
    link.log = is_told.then(Vec::new);
    let mut sender = Sender::new(random);
    sender.stream = client.opens(random);
    let is_steady = random.once_in(2);
    let items = random.of_these(&[4, 16, 16, 60]);
    if link.server.takes_early_data && client.is_1_3 {
        sender.stream.extend(client.says(random, true));
    }
    sender.finish(&mut link, random);
    let is_early = link.server.takes_early_data && client.is_1_3;
    sender.stream.extend(client.finishes(random));
    for item in 0..random.between(1, items) {
        for _ in 0..random.of_these(&[1, 1, 1, 4]) {
            sender.stream.extend(client.says(random, item == 0 && !is_early));
        }
        if is_steady {
            for _ in 0..random.of_these(&[1, 1, 8]) {
                let at = link.tcp.received;
                sender.send(&mut link, random, at);
            }
            link.settles();
            continue;
        }
        for _ in 0..random.between(1, 6) {
            sender.step(&mut link, random);
        }
    }
    sender.finish(&mut link, random);
    held_to_bound(link, QUIET_BYTES)
}

fn random_limit(seed: u64) -> u64 {
    if seed.is_multiple_of(4) { 3 + seed % 7 } else { u64::MAX / 2 }
}

#[test]
fn under_tls_no_more_turns_have_requests_than_were_counted_or_held_to_the_guard() {
    each_case("TLS", adversary);
}
