//! Random tests of honest clients: each of their requests counts, and nothing else.

use crate::each_case;
use crate::http1::Http1;
use crate::link::{Link, Sent, Server};
use crate::random::Random;
use crate::tls::{FINISHED, Tls, kind, record, sealed, sealed_1_2};

const SEGMENT_BYTES: usize = 1448;

/// Sends the bytes in full segments, in order, and waits for the server after each.
fn says<S: Server>(link: &mut Link<S>, bytes: &[u8]) {
    for payload in bytes.chunks(SEGMENT_BYTES) {
        let (at, acknowledged) = (link.tcp.received, link.tcp.said);
        link.sends(&Sent { at, payload, acknowledged, is_lost: false });
        link.arrives(1);
    }
    link.settles();
}

fn request(random: &mut Random) -> Vec<u8> {
    let cookie = "c".repeat(random.of_these(&[0, 5, 40, 300, 2000]));
    let body = random.of_these(&[0, 0, 0, 5, 400, 40_000]);
    let length = if body == 0 { String::new() } else { format!("Content-Length: {body}\r\n") };
    let head = format!("GET /page HTTP/1.1\r\nHost: example.org\r\nCookie: {cookie}\r\n{length}\r\n");
    [head.as_bytes(), &vec![b'x'; body]].concat()
}

/// Checks that the count is the number of requests, or up to `more` above it.
fn checked<S: Server>(link: Link<S>, requests: usize, more: u64) -> Result<(), String> {
    let (accepted, counted) = (link.server.accepted().len(), link.limiter.counted);
    if accepted == requests && (requests as u64..=requests as u64 + more).contains(&counted) {
        return Ok(());
    }
    let log = link.log.unwrap_or_default().join("\n");
    Err(format!("{requests} requests, {accepted} accepted, {counted} counted\n{log}"))
}

fn answers(random: &mut Random) -> Vec<u32> {
    (0..3).map(|_| random.of_these(&[150, 300, 1_000, 20_000, 100_000])).collect()
}

fn in_the_clear(seed: u64, is_told: bool) -> Result<(), String> {
    let random = &mut Random::of(seed);
    let server = Http1::new(&answers(random));
    let mut link = Link::new(server, random, u64::MAX);
    link.log = is_told.then(Vec::new);
    if random.once_in(2) {
        link = link.without_socket();
    }
    let requests = random.between(1, 8);
    for _ in 0..requests {
        let request = request(random);
        says(&mut link, &request);
    }
    checked(link, requests, 0)
}

fn under_tls(seed: u64, is_told: bool) -> Result<(), String> {
    let random = &mut Random::of(seed);
    let is_1_3 = !random.once_in(4);
    // Padding of OpenSSL's blocks, Java's 16 bytes, and none.
    let padding = random.of_these(&[0, 0, 16, 256, 512]);
    let seal = |kind: u8, content: &[u8]| match (is_1_3, padding) {
        (false, _) => sealed_1_2(kind, content),
        (true, 0 | 16) => sealed(kind, content, padding),
        (true, block) => sealed(kind, content, block - (content.len() + 1) % block),
    };
    let tickets: &[u32] = random.of_these(&[&[], &[152], &[279, 279], &[284, 284], &[255, 255]]);
    // Without tickets, a short first answer may be taken for tickets.
    let answers = if tickets.len() == 2 || !is_1_3 { answers(random) } else { vec![3_000, 100_000] };
    let mut server = Tls::new(Box::new(Http1::new(&answers)), is_1_3);
    if is_1_3 {
        server.tickets = tickets.to_vec();
    }
    let mut link = Link::new(server, random, u64::MAX);
    link.log = is_told.then(Vec::new);
    if random.once_in(2) {
        link = link.without_socket();
    }
    says(&mut link, &record(kind::HANDSHAKE, &[1; 500]));
    let changes = record(kind::CHANGE_CIPHER_SPEC, &[1]);
    if is_1_3 {
        if random.once_in(3) {
            says(&mut link, &changes);
        }
        says(&mut link, &seal(kind::HANDSHAKE, &[FINISHED; 52][..random.of_these(&[36, 52])]));
    } else {
        let finished = seal(kind::HANDSHAKE, &[FINISHED; 16]);
        says(&mut link, &[record(kind::HANDSHAKE, &[16; 37]), changes, finished].concat());
    }
    // Some connections send no request.
    let requests = random.of_these(&[0, 1, 1, 2, 3, 8]);
    for _ in 0..requests {
        let request = request(random);
        let bytes: Vec<u8> = request.chunks(16_384 - 600).flat_map(|part| seal(kind::DATA, part)).collect();
        says(&mut link, &bytes);
    }
    let says_goodbye = random.once_in(2);
    if says_goodbye {
        says(&mut link, &seal(kind::ALERT, &[1, 0]));
    }
    // With padding, a closing alert is as long as a request.
    checked(link, requests, u64::from(says_goodbye && is_1_3 && padding != 0))
}

#[test]
fn each_request_of_a_client_in_the_clear_counts_and_nothing_else() {
    each_case("clients in the clear", in_the_clear);
}

#[test]
fn each_request_of_a_client_under_tls_counts_and_nothing_else() {
    each_case("clients under TLS", under_tls);
}
