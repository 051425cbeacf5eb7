//! Random tests of HTTP/1 in the clear.

use crate::each_case;
use crate::http1::Http1;
use crate::link::{Link, Server};
use crate::random::Random;
use crate::sender::Sender;

/// Number of uncounted requests of one connection. An HTTP/0.9 request after others has no version, and ends the
/// connection.
const FREE_OF_A_CONNECTION: u64 = 1;

const VERSIONS: [&str; 12] = [
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.0",
    "http/1.1",
    "HTTP/1.01",
    "HTTP/001.1",
    "HTTP/1.1         ",
    "HTTP/1.1\u{b}\u{1c}",
    "RTSP/1.1",
    "ICE/1.0",
];

fn request(random: &mut Random) -> Vec<u8> {
    let before = random.of_these(&["", "", "", "\r\n", "\n", "\r\n\r\n\n"]);
    let method = random.of_these(&["GET", "GET", "POST", "A", "PROPFIND", "get", "M-SEARCH", "!"]);
    let blank = random.of_these(&[" ", " ", "  ", "\t"]);
    let target = random.of_these(&["/", "/page", "/a/HTTP/1.1", "*", "http://a/b", "/HTTP"]);
    let version = random.of_these(&VERSIONS);
    let line = random.of_these(&["\r\n", "\r\n", "\n"]);
    let mut fields = String::new();
    let text =
        b"GET / HTTP/1.1\r\n\r\nHTTP/1.1\r\n\x17\x03\x03\x48\x00\x16\x03\x01\x02\x00\x01/1.1\r\nPRI * HTTP/2.0\r\n\r\n";
    let mut body: Vec<u8> = Vec::new();
    match random.below(8) {
        0 => {
            body = text.iter().copied().cycle().skip(random.below(40)).take(random.below(300)).collect();
            fields = format!("Content-Length: {}{line}", body.len());
        }
        1 => {
            let chunk = random.between(1, 60);
            let chunk: Vec<u8> = text.iter().copied().cycle().skip(random.below(40)).take(chunk).collect();
            body = format!("{:x}\r\n", chunk.len()).into_bytes();
            body.extend_from_slice(&chunk);
            body.extend_from_slice(b"\r\n0\r\n\r\n");
            fields = format!("Transfer-Encoding: chunked{line}");
        }
        2 => fields = format!("Cookie: {}{line}", "/".repeat(random.of_these(&[3, 3, 3, 3, 100, 100, 3000]))),
        3 => fields = format!("Host: a{line}"),
        _ => {}
    }
    if !body.is_empty() && random.once_in(3) {
        fields.push_str("Expect: 100-continue\r\n");
    }
    if random.once_in(40) {
        return b"GET /\r\n".to_vec();
    }
    let mut request = format!("{before}{method}{blank}{target}{blank}{version}{line}{fields}{line}").into_bytes();
    request.extend_from_slice(&body);
    request
}

fn adversary(seed: u64, is_told: bool) -> Result<(), String> {
    let random = &mut Random::of(seed);
    let answers: Vec<u32> = (0..3).map(|_| random.of_these(&[40, 60, 200, 700, 5_000, 16_500, 100_000])).collect();
    let limit = random.of_these(&[3, 20, u64::MAX / 2, u64::MAX / 2]);
    let mut link = Link::new(Http1::new(&answers), random, limit);
    link.log = is_told.then(Vec::new);
    let mut sender = Sender::new(random);
    // A beginning like HTTP/2's preface.
    sender.stream.extend(random.of_these(&[&b""[..], b"", b"", b"P", b"PR", b"PRI * HTTP/2.0\r\n\r\n"]));
    for _ in 0..random.between(1, 12) {
        for _ in 0..random.of_these(&[1, 1, 2, 10]) {
            sender.stream.extend(request(random));
        }
        for _ in 0..random.between(1, 6) {
            sender.step(&mut link, random);
        }
        // The state may be evicted, but not between two segments that arrive together.
        if link.tcp.received != 0 && random.once_in(50) {
            link.limiter.known = None;
        }
    }
    sender.finish(&mut link, random);
    let (accepted, counted) = (link.server.accepted().len() as u64, link.limiter.counted);
    if accepted <= counted + FREE_OF_A_CONNECTION {
        return Ok(());
    }
    Err(format!("{accepted} accepted, {counted} counted\n{}", link.log.unwrap_or_default().join("\n")))
}

#[test]
fn no_more_clear_text_requests_are_accepted_than_counted() {
    each_case("clear", adversary);
}
