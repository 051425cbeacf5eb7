//! Tests of clear-text clients that want to be miscounted, with their own TCP. None gets more requests to the server
//! than the limit allows. Each row is a way around an earlier rule.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use integration_test::frames::Segment;
use integration_test::frames::flag::{ACK, PSH};
use integration_test::lab::{Daemon, HANGS_AFTER, Lab, SERVER, packets};
use integration_test::raw::{RawClient, RawWire};
use netlab::{Child, needs_root, nginx, serving, without_offloads};

const LIMIT: usize = 10;
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// Starts of a TLS record of 18 KB: of a handshake, or of application data.
const DECOYS: [&[u8]; 2] = [b"\x16\x03\x01\x48\x00\x01", b"\x17\x03\x03\x48\x00\x01"];
/// Time without an answer after which there may be none. A server that received decoys may have given up.
const ANSWERS_WITHIN: Duration = Duration::from_millis(900);
/// Time until a sent packet has been counted.
const MOMENT: Duration = Duration::from_millis(50);

/// A server with a request limit, and a wire to it.
struct Rig {
    wire: RawWire,
    lab: Lab,
    _daemon: Daemon,
    _web: Child,
}

impl Rig {
    fn new() -> Self {
        Self::with(|lab, address| nginx(&lab.server, lab.directory(), &[address]).unwrap())
    }

    /// Starts Node's server, which speaks HTTP/2 in the clear on port 443.
    fn with_node() -> Self {
        Self::with(|lab, address| {
            let program = lab.directory().join("answers.js");
            fs::write(&program, include_str!("programs/answers.js")).unwrap();
            let mut command = lab.server.command("node");
            command.arg(program).arg(SERVER[0]).arg(lab.directory().join("access.log"));
            serving(&lab.server, command, address).unwrap()
        })
    }

    fn with(serve: impl FnOnce(&Lab, SocketAddr) -> Child) -> Self {
        let lab = Lab::new();
        without_offloads(&lab.client, "c0").unwrap();
        without_offloads(&lab.server, "s0").unwrap();
        let web = serve(&lab, SocketAddr::new(SERVER[0].parse().unwrap(), 80));
        let daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h"), "--count", "requests"]);
        Self { wire: RawWire::new(&lab), lab, _daemon: daemon, _web: web }
    }

    /// Returns the address with this number, and makes the server reach it.
    fn address(&self, number: u8) -> Ipv4Addr {
        let address = Ipv4Addr::new(10, 9, 0, 100 + number);
        self.wire.host(&self.lab, address);
        address
    }

    /// Opens a connection from the address with this number.
    fn client(&self, number: u8) -> RawClient<'_> {
        self.client_of(number, 80).connected(&[])
    }

    /// Returns a client for this port that has not opened its connection yet.
    fn client_of(&self, number: u8, port: u16) -> RawClient<'_> {
        RawClient::new(&self.wire, self.address(number), 40_000, port, 1 << 28)
    }

    /// Sends requests, each after the previous answer, until the limiter drops one. Returns the number of answers.
    fn asks(&self, client: &mut RawClient<'_>, request: &[u8], times: usize) -> usize {
        let dropped = || packets(&self.lab.stats())[2];
        let before = dropped();
        let answers = client.answers();
        for answer in answers + 1..=answers + times {
            client.says(request);
            let began = Instant::now();
            while !client.hears_answers(answer, MOMENT) {
                if dropped() > before {
                    return client.answers() - answers;
                }
                assert!(began.elapsed() < HANGS_AFTER, "it is neither answered nor dropped");
            }
        }
        times
    }

    /// Returns the number of an address's requests in the server's log.
    fn logged(&self, address: Ipv4Addr) -> usize {
        let log = self.lab.directory().join("access.log");
        let lines =
            || Ok(fs::read_to_string(&log)?.lines().filter(|line| line.starts_with(&format!("{address} "))).count());
        netlab::settled(lines).unwrap()
    }

    /// Asserts that the server received exactly as many requests as the limit allows.
    fn assert_exact(&self, address: Ipv4Addr, what: &str) {
        assert_eq!(self.logged(address), LIMIT, "{what}");
    }

    /// Asserts that the server received at most the limit. Requests that it never saw were counted too.
    fn assert_at_most(&self, address: Ipv4Addr, what: &str) {
        let logged = self.logged(address);
        assert!(logged <= LIMIT, "{what}: {logged}");
        println!("{what}: {logged}");
    }
}

#[test]
fn a_port_that_is_used_again_with_lower_numbers_is_another_connection() {
    needs_root!();
    let rig = Rig::new();
    for (number, behind) in [7_000_000, 1, 1 << 23, 1 << 30].into_iter().enumerate() {
        let address = rig.address(u8::try_from(number).unwrap());
        let mut first = RawClient::new(&rig.wire, address, 40_000, 80, 1 << 28).connected(&[]);
        assert_eq!(rig.asks(&mut first, GET, 1), 1);
        first.resets();
        let isn = (1_u32 << 28).wrapping_sub(behind);
        let mut second = RawClient::new(&rig.wire, address, 40_000, 80, isn).connected(&[]);
        assert_eq!(rig.asks(&mut second, GET, 2 * LIMIT), LIMIT - 1, "{behind} lower");
        rig.assert_exact(address, "a port used again");
    }
}

#[test]
fn segments_outside_the_servers_window_make_no_request_free() {
    needs_root!();
    let rig = Rig::new();
    for (number, decoy) in (0..).zip(DECOYS) {
        let mut client = rig.client(number);
        for ahead in [-(1 << 30), 1 << 22, 1 << 17, -1_000_000] {
            let sequence = client.sequence.wrapping_add_signed(ahead);
            client.send(Segment { sequence, data: decoy, ..client.plain(ACK) });
        }
        assert_eq!(rig.asks(&mut client, GET, 2 * LIMIT), LIMIT);
        rig.assert_exact(client.address, "decoys outside of the window");
    }
}

#[test]
fn segments_with_wrong_checksums_make_no_request_free() {
    needs_root!();
    let rig = Rig::new();
    for (number, decoy) in (0..).zip(DECOYS) {
        let mut client = rig.client(number);
        let long = [decoy, &[b'x'; 1390]].concat();
        for round in 0..4 {
            // The first covers what is sent in earnest afterwards. The second lies ahead of it.
            client.send_broken(Segment { data: &long, ..client.plain(ACK) });
            let sequence = client.sequence.wrapping_add(3 * 1460);
            client.send_broken(Segment { sequence, data: &long, ..client.plain(ACK) });
            if client.asks(GET, LIMIT, ANSWERS_WITHIN) < LIMIT {
                break;
            }
            assert!(round < 1, "all requests of two rounds are answered");
        }
        rig.assert_at_most(client.address, "decoys with wrong checksums");
        assert!(client.answers() > 0, "a decoy costs some, not all");
    }
}

#[test]
fn fragments_in_place_of_a_wrong_checksum_make_no_request_free() {
    needs_root!();
    let rig = Rig::new();
    let ways = DECOYS.iter().flat_map(|decoy| [true, false].map(|is_first| (decoy, is_first)));
    for (number, (decoy, is_first)) in (0..).zip(ways) {
        let mut client = rig.client(number);
        let mut decoy = decoy.to_vec();
        decoy.resize(GET.len(), b'x');
        let broken = |client: &RawClient<'_>| client.send_broken(Segment { data: &decoy, ..client.plain(ACK) });
        if is_first {
            broken(&client);
        }
        // The first fragment has only the ports and the sequence number.
        client.says_in_fragments(GET, 8, |client| {
            if !is_first {
                broken(client)
            }
        });
        assert!(client.hears_answers(1, HANGS_AFTER), "the server takes the fragments");
        client.asks(GET, 4 * LIMIT, ANSWERS_WITHIN);
        // Data in fragments is unverified, so it is counted separately.
        let logged = rig.logged(client.address);
        assert!((LIMIT..=LIMIT + 1).contains(&logged), "{decoy:?}, which comes first: {is_first}: {logged}");
    }
}

#[test]
fn payload_in_a_syn_makes_no_request_free() {
    needs_root!();
    let rig = Rig::new();
    for (number, decoy) in (0..).zip(DECOYS) {
        let address = rig.address(number);
        let long = [decoy, &[b'x'; 1390]].concat();
        for port in 40_000..40_004 {
            let mut client = RawClient::new(&rig.wire, address, port, 80, 1 << 28);
            if !client.connects(&long, ANSWERS_WITHIN) {
                break;
            }
            client.asks(GET, LIMIT, ANSWERS_WITHIN);
        }
        rig.assert_at_most(address, "payload in the SYN");
        assert!(rig.logged(address) > 0);
    }
}

#[test]
fn small_acknowledgements_make_nothing_free() {
    needs_root!();
    const STEP: u32 = 25;
    let rig = Rig::new();
    let mut client = rig.client(0);
    client.acknowledges = false;
    let mut acknowledged = client.acknowledged;
    client.says(&GET[..5]);
    client.says(&GET[5..]);
    for answer in 1..=2 * LIMIT {
        if !client.hears_answers(answer, ANSWERS_WITHIN) {
            break;
        }
        // One part of the next request with each step, and the last part with the last step.
        let steps = client.acknowledged.wrapping_sub(acknowledged).div_ceil(STEP) as usize;
        let request = [&GET[..4], &vec![b'/'; steps.saturating_sub(GET.len())], &GET[4..]].concat();
        let part = (request.len() / steps).max(1);
        let mut parts: Vec<&[u8]> = request.chunks(part).collect();
        let rest = parts.split_off(parts.len().min(steps)).concat();
        for (at, part) in parts.iter().enumerate() {
            acknowledged = acknowledged.wrapping_add(STEP.min(client.acknowledged.wrapping_sub(acknowledged)));
            let data = if at + 1 == parts.len() { [part, &rest[..]].concat() } else { part.to_vec() };
            client.send(Segment { acknowledged, data: &data, ..client.plain(ACK | PSH) });
            client.sequence += u32::try_from(data.len()).unwrap();
        }
    }
    rig.assert_exact(client.address, "acknowledgements of 25 bytes");
}

#[test]
fn requests_with_unusual_beginnings_are_counted() {
    needs_root!();
    let rig = Rig::new();
    let head = |line: &str| format!("{line}\r\nHost: a\r\n\r\n").into_bytes();
    for (number, (what, request)) in (0..).zip([
        ("a method that is not listed", head("PROPFIND / HTTP/1.1")),
        ("two spaces behind the method", head("GET  / HTTP/1.1")),
        ("an empty line first", head("\r\nGET / HTTP/1.1")),
        ("an upgrade", head("GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade")),
    ]) {
        let mut client = rig.client(number);
        assert_eq!(rig.asks(&mut client, &request, 2 * LIMIT), LIMIT, "{what}");
        rig.assert_exact(client.address, what);
    }
}

#[test]
fn a_turn_that_begins_like_a_web_sockets_frame_is_a_request() {
    needs_root!();
    let rig = Rig::new();
    for (number, frame) in (0..).zip([b"A\x80aaaa", b"\x81\x85aaaa", b"\x82\xfeaaaa"]) {
        let mut client = rig.client(number);
        let start = b"GET / HTTP/1.1\r\nHost: a\r\nX: ";
        client.says(start);
        // Each segment ends a request, and begins the next one with its first line.
        let turn = [&frame[..], b"\r\n\r\n", start].concat();
        let answers = client.asks(&turn, 2 * LIMIT, ANSWERS_WITHIN);
        // The last counted request never ended.
        assert!((LIMIT - 1..=LIMIT).contains(&answers), "{answers}");
        rig.assert_at_most(client.address, "a web socket's look");
    }
}

#[test]
fn requests_that_do_not_wait_count_each_wherever_segments_begin() {
    needs_root!();
    let rig = Rig::new();
    let many = GET.repeat(40);
    let (begin, end) = GET.split_at(GET.len() - 3);
    let rest = [end, &many, begin].concat();
    let lines = [b"GET / HTTP/1.1\r\nHost: a\r\n", &b"a:\n".repeat(260)[..], b"\n"].concat();
    for (number, (what, segments)) in (0..).zip([
        ("whole requests", vec![&many[..]; 10]),
        ("the first byte in a segment of its own", [&[&many[..1], &many[1..]], &[&many[..]; 10][..]].concat()),
        ("each segment begins within a request", [&[begin], &[&rest[..]; 10][..]].concat()),
        ("260 lines before them", vec![&lines[..], &many]),
        ("one by one", vec![GET; 3 * LIMIT]),
    ]) {
        let mut client = rig.client(number);
        for segment in segments {
            client.says(segment);
        }
        client.hears_answers(LIMIT + 1, MOMENT * 10);
        rig.assert_at_most(client.address, what);
    }
}

/// First bytes of an HTTP/2 client in the clear: the preface and the settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns HEADERS frames of these streams, each of which is a request.
fn streams(numbers: std::ops::Range<u8>) -> Vec<u8> {
    // `GET`, `/`, `http`, and a host.
    let fields = b"\x82\x84\x86\x41\x01a";
    numbers.flat_map(|number| [&[0, 0, 6, 1, 5, 0, 0, 0, 2 * number + 1][..], fields].concat()).collect()
}

#[test]
fn streams_of_http2_count_each_wherever_its_preface_is_cut() {
    needs_root!();
    let rig = Rig::with_node();
    for (number, cut) in (0..).zip([1, 8, 23, PREFACE.len()]) {
        let mut client = rig.client_of(number, 443).connected(&[]);
        let (begins, ends) = PREFACE.split_at(cut);
        for part in [begins, ends, &streams(0..4), &streams(4..10), &streams(10..100)] {
            client.says(part);
            client.hears_answers(1, MOMENT);
        }
        rig.assert_exact(client.address, "a preface that is cut");
    }
}

#[test]
fn a_syn_that_begins_http2_comes_again_without() {
    needs_root!();
    let rig = Rig::with_node();
    for (number, begins) in (0..).zip([PREFACE, &PREFACE[..1]]) {
        let mut client = rig.client_of(number, 443);
        assert!(!client.connects(begins, MOMENT * 10));
        assert!(client.connects(&[], HANGS_AFTER));
        for part in [PREFACE, &streams(0..10), &streams(10..100)] {
            client.says(part);
            client.hears_answers(1, MOMENT);
        }
        rig.assert_exact(client.address, "a preface in the SYN");
    }
}

#[test]
fn versions_of_other_protocols_that_the_server_answers_are_requests() {
    needs_root!();
    let rig = Rig::with_node();
    for (number, line) in (0..).zip(["GET / RTSP/1.1", "SOURCE / ICE/1.1", "GET / HTTP/1.1"]) {
        let mut client = rig.client(number);
        let request = format!("{line}\r\nHost: a\r\n\r\n").into_bytes();
        client.says(&request.repeat(4));
        assert!(client.hears_answers(4, HANGS_AFTER), "{line}");
        assert_eq!(rig.asks(&mut client, &request, 2 * LIMIT), LIMIT - 4, "{line}");
        rig.assert_exact(client.address, line);
    }
}
