//! Cases that the adversary found, one row each.

use crate::http1::Http1;
use crate::http2::{END_HEADERS, END_STREAM, Http2, frame, kind as frame_kind, preface};
use crate::link::{Link, Sent, Server};
use crate::random::Random;
use crate::tls::{FINISHED, Tls, kind, record, sealed};

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// Record header with which a TLS port's stream begins.
const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01";

/// Step of a row: a segment, or the server's turn.
enum Step {
    /// A segment arrives.
    Sends(i64, Vec<u8>),
    /// The limiter sees a segment, but the server's TCP drops it for its checksum.
    Loses(i64, Vec<u8>),
    /// The server reads and answers everything that arrived.
    Settles,
}

/// Returns the number of requests accepted and the number counted.
fn clear(steps: &[Step]) -> (u64, u64) {
    let mut link = Link::new(Http1::new(&[200]), &mut Random::of(1), u64::MAX);
    for step in steps {
        let (at, payload, is_lost) = match step {
            Step::Sends(at, payload) => (*at, payload, false),
            Step::Loses(at, payload) => (*at, payload, true),
            Step::Settles => {
                link.settles();
                continue;
            }
        };
        link.sends(&Sent { at, payload, acknowledged: 0, is_lost });
    }
    link.settles();
    (link.server.accepted().len() as u64, link.limiter.counted)
}

#[test]
fn a_dropped_hello_after_the_first_request_does_not_make_the_rest_tls() {
    let at = i64::try_from(GET.len()).unwrap();
    for before in [0, 20] {
        let hello = [&vec![b'x'; before], HELLO].concat();
        let (accepted, counted) = clear(&[
            Step::Sends(0, GET.to_vec()),
            Step::Loses(-i64::try_from(before).unwrap(), hello),
            Step::Settles,
            Step::Sends(at, GET.repeat(50)),
        ]);
        assert_eq!(accepted, 51);
        assert!(counted >= accepted, "{counted} counted");
    }
}

#[test]
fn a_hello_that_the_server_drops_does_not_hide_what_comes_before_the_first_request() {
    let at = i64::try_from(GET.len()).unwrap();
    for before in [0, 20] {
        let hello = [&vec![b'x'; before], HELLO].concat();
        let (accepted, counted) = clear(&[
            Step::Loses(-i64::try_from(before).unwrap(), hello),
            Step::Sends(at, GET.repeat(50)),
            Step::Sends(0, GET.to_vec()),
        ]);
        assert_eq!(accepted, 51);
        assert!(counted >= accepted, "{counted} counted");
    }
}

/// Returns the number of requests counted and accepted on a TLS 1.3 connection that offers HTTP/2 and speaks HTTP/1.
/// The client waits for the answer to each part. Segments after the first part have `segment` bytes.
fn over_tls_in(segment: usize, mut server: Tls, parts: &[Vec<u8>]) -> (u64, usize) {
    server.tickets.clear();
    let mut link = Link::new(server, &mut Random::of(1), u64::MAX);
    for (index, part) in parts.iter().enumerate() {
        for payload in part.chunks(if index == 0 { 1448 } else { segment }) {
            let at = link.tcp.received;
            link.sends(&Sent { at, payload, acknowledged: 0, is_lost: false });
            link.arrives(1);
        }
        link.settles();
    }
    (link.limiter.counted, link.server.accepted().len())
}

fn hello() -> Vec<u8> {
    record(kind::HANDSHAKE, &[&[1; 200][..], b"\x02h2\x08http/1.1", &[0; 100]].concat())
}

fn server(answer: u32) -> Tls {
    Tls::new(Box::new(Http1::new(&[answer])), true)
}

fn server_of_early_data(answer: u32) -> Tls {
    let mut server = server(answer);
    server.takes_early_data = true;
    server
}

/// Returns the number of requests counted, like [`over_tls_in`] with segments of Ethernet size.
fn over_tls(answer: u32, parts: &[Vec<u8>]) -> u64 {
    over_tls_in(1448, server(answer), &[&[hello()], parts].concat()).0
}

fn request(padding: usize) -> Vec<u8> {
    sealed(kind::DATA, GET, padding)
}

#[test]
fn server_data_ends_a_handshake_whatever_its_padding() {
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 200);
    let counted = over_tls(300, &[[finished, request(200)].concat(), request(200), request(200)]);
    assert!(counted >= 2, "{counted}");
}

#[test]
fn no_request_is_a_frame_of_control_before_any_was_counted() {
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 200);
    // The record is as long as one padded to a block, and as two frames.
    let counted = over_tls(100_000, &[[finished, request(45)].concat(), request(8)]);
    assert_eq!(counted, 1);
}

#[test]
fn an_upload_behind_a_long_answer_is_a_request_where_the_server_sends_no_tickets() {
    let upload = [b"PUT / HTTP/1.1\r\nContent-Length: 9000\r\n\r\n".as_slice(), &[b'x'; 9000]].concat();
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
    assert_eq!(over_tls(3_000, &[finished, request(0), sealed(kind::DATA, &upload, 0)]), 2);
}

#[test]
fn a_header_that_comes_byte_by_byte_is_a_record() {
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
    let parts = [hello(), finished, request(0), [request(3), request(3)].concat(), request(200)];
    assert_eq!(over_tls_in(1, server(5_000), &parts), (4, 4));
}

#[test]
fn early_data_before_server_data_is_a_request_wherever_its_header_is_cut() {
    for cut in 1..5 {
        let early = request(0);
        let (begins, ends) = early.split_at(cut);
        let parts = [[hello().as_slice(), begins].concat(), ends.to_vec()];
        assert_eq!(over_tls_in(1448, server_of_early_data(300), &parts), (1, 1), "cut behind {cut} bytes");
    }
}

#[test]
fn server_data_after_early_data_is_not_taken_for_a_ticket() {
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
    let parts = [[hello(), request(0)].concat(), [finished, request(0)].concat(), request(0)];
    let (counted, accepted) = over_tls_in(1448, server_of_early_data(500), &parts);
    assert_eq!(accepted, 3);
    assert!(counted >= 2, "{counted}");
}

#[test]
fn early_data_as_short_as_an_alert_is_a_request() {
    let [begins, ends] = [&GET[..2], &GET[2..]].map(|part| sealed(kind::DATA, part, 0));
    let parts = [[hello(), begins].concat(), ends];
    assert_eq!(over_tls_in(1448, server_of_early_data(300), &parts), (1, 1));
}

#[test]
fn data_after_a_long_answer_is_not_the_request_counted_with_the_preface() {
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
    assert_eq!(over_tls(5_000, &[finished, request(0), request(2)]), 2);
}

#[test]
fn a_version_goes_on_where_the_connection_was_evicted() {
    let mut link = Link::new(Http1::new(&[200]), &mut Random::of(1), u64::MAX);
    for payload in [&b"A / HTTP/1.1\r\n\r\nB / HTTP"[..], b"/1.1\r\n\r\nC / HTTP/1.1\r\n\r\n"] {
        link.limiter.known = None;
        let at = link.tcp.received;
        link.sends(&Sent { at, payload, acknowledged: 0, is_lost: false });
        link.settles();
    }
    assert_eq!((link.server.accepted().len(), link.limiter.counted), (3, 3));
}

/// Sends each segment once the one before was answered. Returns the number of requests accepted and the number counted.
fn in_turn<S: Server>(server: S, segments: &[Vec<u8>]) -> (usize, u64) {
    let mut link = Link::new(server, &mut Random::of(1), u64::MAX);
    for payload in segments {
        let at = link.tcp.received;
        link.sends(&Sent { at, payload, acknowledged: 0, is_lost: false });
        link.settles();
    }
    (link.server.accepted().len(), link.limiter.counted)
}

fn headers() -> Vec<u8> {
    frame(frame_kind::HEADERS, END_HEADERS | END_STREAM, &[0x82; 10])
}

#[test]
fn a_preface_in_several_segments_is_one() {
    let preface = preface();
    for cut in 1..preface.len() {
        let (begins, ends) = preface.split_at(cut);
        let segments = [&[begins.to_vec(), ends.to_vec()][..], &vec![headers().repeat(20); 5]].concat();
        assert_eq!(in_turn(Http2::new(&[60], 4096), &segments), (100, 100), "cut behind {cut} bytes");
    }
}

#[test]
fn data_that_begins_like_a_preface_and_continues_as_http1_is_http1() {
    for (begins, ends) in
        [("P", "OST / HTTP/1.1\r\n\r\n"), ("PRI * HTTP/", "1.1\r\n\r\n"), ("PRI * HTTP/2.0\r\n", "\r\n")]
    {
        let segments = [&[begins, ends].map(|part| part.as_bytes().to_vec())[..], &vec![GET.repeat(20); 5]].concat();
        assert_eq!(in_turn(Http1::new(&[60]), &segments), (101, 101), "{begins:?}");
    }
}

#[test]
fn many_frames_in_a_segment_hide_no_request_behind_them() {
    let empty = frame(frame_kind::DATA, 0, &[]);
    // The bytes behind the last of these look like a long frame, if it is unknown that they are the end of one.
    let long = [frame(frame_kind::DATA, 0, &[0, 64, 0, 0, 0].repeat(400)), headers()].concat();
    let (begins, ends) = long.split_at(509);
    let segment = [ends, &empty.repeat(200), &headers(), begins].concat();
    let segments = [&[preface(), [&empty.repeat(200), begins].concat()][..], &vec![segment; 50]].concat();
    let (accepted, counted) = in_turn(Http2::new(&[60], 4096), &segments);
    assert_eq!((accepted, counted), (100, 100));
}

#[test]
fn other_protocols_versions_are_requests_where_a_server_takes_them() {
    for line in ["GET / RTSP/1.1\r\n\r\n", "SOURCE / ICE/1.1\r\n\r\n", "SOURCE /\tICE/1.1\r\n\r\n"] {
        assert_eq!(in_turn(Http1::new(&[60]), &vec![line.repeat(20).into_bytes(); 5]), (100, 100), "{line:?}");
    }
    let line = "GET / HTTP/1.1\r\nUser-Agent: a-service/1.0\r\n\r\n";
    assert_eq!(in_turn(Http1::new(&[60]), &[line.into()]), (1, 1));
}

/// Sends ciphertext that looks like record headers, after the limiter has lost the true ones. Returns the number of
/// turns, and the number that was counted or charged to the guard.
fn forges(kind: u8, length: u16, segment_bytes: usize) -> (usize, u64) {
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
    let mut server = server(60_000);
    server.tickets.clear();
    let mut link = Link::new(server, &mut Random::of(1), u64::MAX);
    let sends =
        |link: &mut Link<Tls>, at, payload: &[u8]| link.sends(&Sent { at, payload, acknowledged: 0, is_lost: false });
    for part in [hello(), finished, request(0)] {
        let at = link.tcp.received;
        sends(&mut link, at, &part);
        link.settles();
    }
    let [high, low] = length.to_be_bytes();
    let header = [kind, 3, 3, high, low];
    // Each segment ends one record and begins the next, and each record has a request.
    let field =
        [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 400], &header.repeat(segment_bytes / 5), b"\r\n\r\n"].concat();
    let record = sealed(kind::DATA, &field, 0);
    let (begins, ends) = record.split_at(200);
    // More records than are read, the last of which goes on in the next segment.
    let at = link.tcp.received;
    sends(&mut link, at, &[&sealed(kind::DATA, &[], 0).repeat(40), begins].concat());
    link.arrives(1);
    for _ in 0..200 {
        let place = ends.windows(5).position(|bytes| bytes == header).unwrap();
        let (before, rest) = ends.split_at(place);
        for payload in [before, &[rest, begins].concat()] {
            let at = link.tcp.received;
            sends(&mut link, at, payload);
            link.arrives(1);
        }
        link.settles();
    }
    (link.server.accepted().len(), link.limiter.counted)
}

#[test]
fn headers_that_are_forged_in_ciphertext_hide_no_turn() {
    for kind in [kind::CHANGE_CIPHER_SPEC, kind::ALERT, kind::HANDSHAKE, kind::DATA] {
        for length in [18_432, 16_384, 1_200, 700, 30, 26] {
            let (accepted, counted) = forges(kind, length, 600);
            assert!(accepted >= 200, "{accepted}");
            assert!(2 * counted >= accepted as u64, "{kind}, {length}: {accepted} accepted, {counted} counted");
        }
    }
}

#[test]
fn a_version_whose_name_the_server_gets_otherwise_is_one() {
    let mut steps = vec![Step::Sends(0, GET.to_vec()), Step::Settles];
    for request in 0..50 {
        let at = i64::try_from(GET.len()).unwrap() + 16 * request;
        steps.push(Step::Loses(at, b"A / XXXX".to_vec()));
        steps.push(Step::Sends(at + 8, b"/1.1\r\n\r\n".to_vec()));
        steps.push(Step::Sends(at, b"A / HTTP".to_vec()));
    }
    let (accepted, counted) = clear(&steps);
    assert_eq!(accepted, 51);
    assert!(counted >= accepted, "{counted} counted");
}

#[test]
fn an_http_version_cut_where_earlier_data_continues_is_recognized() {
    let mut link = Link::new(Http1::new(&[60]), &mut Random::of(1), u64::MAX);
    link.sends(&Sent { at: 0, payload: GET, acknowledged: 0, is_lost: false });
    for request in 0..50 {
        let at = i64::try_from(GET.len()).unwrap() + 16 * request;
        for (at, payload) in [(at + 1, b" / H\x14TP/1.1\r\n\r\n".as_slice()), (at, b"A / HT")] {
            link.sends(&Sent { at, payload, acknowledged: 0, is_lost: false });
        }
        link.settles();
    }
    let (accepted, counted) = (link.server.accepted().len() as u64, link.limiter.counted);
    assert_eq!(accepted, 51);
    assert!(counted >= accepted, "{counted} counted");
}

#[test]
fn short_requests_are_not_hidden_behind_what_looks_like_versions() {
    for size in [1448, 4000, 8900] {
        for decoys in (0..size / 4).step_by(7) {
            let head = [b"A / HTTP/1.1\nX:".to_vec(), b"tp/".repeat(decoys), b"\n\n".to_vec()].concat();
            let requests = b"A / HTTP/1.1\n\n".repeat((size - head.len()) / 14);
            let segment = [head, requests].concat();
            let (accepted, counted) = in_turn(Http1::new(&[200]), &[segment.clone(), segment]);
            assert!(counted >= accepted as u64, "{decoys} in {size} bytes: {accepted} accepted, {counted} counted");
        }
    }
}

/// Sends `stream[from..to]` at its position.
fn part<S: Server>(link: &mut Link<S>, stream: &[u8], from: usize, to: usize) {
    let payload = &stream[from..to];
    link.sends(&Sent { at: i64::try_from(from).unwrap(), payload, acknowledged: 0, is_lost: false });
}

/// Sends a stream of which the limiter saw something else. After `known` bytes, a lost segment with `claims` is
/// overtaken by the true stream. Each `unit` of the stream is then sent once the one before was answered.
fn behind_two_holes<S: Server>(link: &mut Link<S>, stream: &[u8], known: usize, claims: &[u8], unit: usize) {
    let claimed = [&[0; 9], claims].concat();
    link.sends(&Sent { at: i64::try_from(known + 1).unwrap(), payload: &claimed, acknowledged: 0, is_lost: true });
    let second = known + 1 + claimed.len() + 1;
    let end = known + 10 + unit;
    part(link, stream, second, end);
    part(link, stream, known, second);
    link.settles();
    for from in (end..stream.len()).step_by(unit) {
        part(link, stream, from, from + unit);
        link.settles();
    }
}

#[test]
fn a_hole_swallows_nothing_that_was_seen_before_it() {
    for unit in [frame(frame_kind::HEADERS, END_HEADERS | END_STREAM, &[0x82; 591]), headers().repeat(70)] {
        let begins = [preface(), frame(frame_kind::DATA, 0, &[0; 20])].concat();
        let stream = [begins.clone(), unit.repeat(300)].concat();
        let mut link = Link::new(Http2::new(&[300], 4096), &mut Random::of(1), u64::MAX);
        let known = begins.len() - 10;
        part(&mut link, &stream, 0, known);
        link.settles();
        behind_two_holes(&mut link, &stream, known, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], unit.len());
        // Requests in the segment that came before the hole was filled do not count.
        let (accepted, counted) = (link.server.accepted().len(), link.limiter.counted);
        let most = counted + unit.len() as u64 / headers().len() as u64;
        assert!(accepted >= 300 && accepted as u64 <= most, "{accepted} accepted, {counted} counted");
    }
}

#[test]
fn under_tls_a_hole_swallows_nothing_that_was_seen_before_it() {
    const UNIT: usize = 700;
    let long = |units: usize, rest: usize| {
        [&[kind::HANDSHAKE, 3, 3][..], &u16::try_from(UNIT * units - rest).unwrap().to_be_bytes()].concat()
    };
    for answer in [300, 60_000] {
        let mut plain = b"GET / HTTP/1.1\r\nX: ".to_vec();
        plain.resize(UNIT - 22 - 4, b'x');
        plain.extend(b"\r\n\r\n");
        plain[295..300].copy_from_slice(&long(26, 5));
        let record = sealed(kind::DATA, &plain, 0);
        let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
        let begins = [hello(), finished].concat();
        let stream = [begins.clone(), record.repeat(302)].concat();
        let mut server = server(answer);
        server.tickets.clear();
        let mut link = Link::new(server, &mut Random::of(1), u64::MAX);
        let known = begins.len() + UNIT - 10;
        for [from, to] in [[0, hello().len()], [hello().len(), begins.len()], [begins.len(), known]] {
            part(&mut link, &stream, from, to);
            link.settles();
        }
        behind_two_holes(&mut link, &stream, known, &long(25, UNIT - 295), UNIT);
        let (accepted, counted) = (link.server.accepted().len() as u64, link.limiter.counted);
        assert!(accepted == 302 && 2 * counted >= accepted, "{accepted} accepted, {counted} counted");
    }
}

#[test]
fn frames_after_unseen_bytes_are_followed_from_the_servers_position() {
    let begins = [preface(), frame(frame_kind::DATA, 0, &[])].concat();
    let mut data = vec![0; 1000];
    data[980..989].copy_from_slice(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]);
    let long = [begins.clone(), frame(frame_kind::DATA, 0, &data)].concat();
    let burst = headers().repeat(70);
    let stream = [long.clone(), burst.repeat(200)].concat();
    let mut link = Link::new(Http2::new(&[300], 4096), &mut Random::of(1), u64::MAX);
    let known = begins.len() + 9;
    part(&mut link, &stream, 0, known);
    link.settles();
    // Bytes that came in fragments, unseen.
    let unseen = crate::tcp::Piece {
        at: i64::try_from(known).unwrap(),
        bytes: stream[known..known + 900].to_vec(),
        said: link.tcp.said,
    };
    let server = &mut link.server;
    link.tcp.receives(unseen, |bytes, said| server.reads(bytes, said));
    part(&mut link, &stream, known + 880, long.len());
    link.settles();
    for from in (long.len()..stream.len()).step_by(burst.len()) {
        part(&mut link, &stream, from, from + burst.len());
        link.settles();
    }
    let (accepted, counted) = (link.server.accepted().len() as u64, link.limiter.counted);
    assert_eq!(accepted, 14_000);
    assert!(counted >= accepted, "{counted} counted");
}

#[test]
fn tickets_come_once() {
    let head = b"POST / HTTP/1.1\r\nContent-Length: 8160\r\n\r\n".as_slice();
    let post = sealed(kind::DATA, &[head, &[b'x'; 8160]].concat(), 0);
    let finished = sealed(kind::HANDSHAKE, &[FINISHED; 52], 0);
    for answer in [230, 260] {
        let parts = [&[finished.clone(), request(0)][..], &vec![post.clone(); 200]].concat();
        let counted = over_tls(answer, &parts);
        assert!(counted >= 199, "{counted} of 201");
    }
}

#[test]
fn a_preface_behind_another_request_begins_http2() {
    let streams = headers().repeat(40);
    for segments in [
        vec![GET.to_vec(), preface(), streams.clone(), streams.clone()],
        vec![GET.to_vec(), [preface(), streams.clone()].concat(), streams.clone()],
        vec![[GET, &preface()[..], &streams[..]].concat(), streams.clone()],
        vec![[GET, &preface()[..9]].concat(), [&preface()[9..], &streams[..]].concat(), streams.clone()],
    ] {
        let mut link = Link::new(Http1::new(&[60]), &mut Random::of(1), u64::MAX);
        let mut at = 0;
        for payload in &segments {
            link.sends(&Sent { at, payload, acknowledged: 0, is_lost: false });
            at += i64::try_from(payload.len()).unwrap();
            link.tcp.received = at;
            link.tcp.said += 100;
        }
        assert!(link.limiter.counted >= 81, "{} counted", link.limiter.counted);
    }
}

#[test]
fn versions_are_requests_as_leniently_as_servers_take_them() {
    for version in
        ["HTTP/01.1", "HTTP/001.001", "HTTP/1.1\u{b}", "HTTP/1.1 \u{1c}", "HTTP/1.1\u{1f}", "HTTP/0000000001.1"]
    {
        let segment = format!("GET / {version}\r\n\r\n").repeat(20).into_bytes();
        let mut link = Link::new(Http1::new(&[60]), &mut Random::of(1), u64::MAX);
        link.sends(&Sent { at: 0, payload: &segment, acknowledged: 0, is_lost: false });
        assert_eq!(link.limiter.counted, 20, "{version:?}");
    }
}
