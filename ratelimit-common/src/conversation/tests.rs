//! Tests of conversations, segment by segment: those of honest clients, and those of an attacker who wants to be
//! miscounted.

use super::*;

mod fragments;
mod search;
mod tls;

const TICKETS: u32 = 542;
const ANSWER: u32 = 700;
const CONTINUE: u32 = 25;
const HEADERS: usize = 54;

/// Client side of a connection. Its next byte is `sequence`, and it has received everything before `acknowledged`.
struct Client {
    sequence: u32,
    acknowledged: u32,
    known: Option<Conversation>,
    /// Server's TCP and what it has of the connection; None if there is no socket.
    server: Option<Server>,
    /// True if the client's own numbers need not agree with the server's.
    lies: bool,
}

/// Server whose TCP accepts segments in order, and drops all others.
struct Server {
    begins_at: u32,
    received: u32,
    known: Option<Conversation>,
}

impl Client {
    /// Creates a client that is judged by its own numbers and by the server's, which must agree.
    fn new() -> Self {
        let sequence = u32::MAX - 100;
        let server = Server { begins_at: sequence, received: sequence, known: None };
        Self { sequence, acknowledged: u32::MAX - 3_000, known: None, server: Some(server), lies: false }
    }

    /// Creates a client behind a host that forwards to the server, so there is no socket.
    fn without_socket() -> Self {
        Self { server: None, ..Self::new() }
    }

    /// Creates a client that is judged by the server's numbers alone.
    fn with_socket() -> Self {
        Self { lies: true, ..Self::new() }
    }

    /// Sends `payload` in one segment, and returns the number of requests.
    fn sends(&mut self, payload: &[u8]) -> u32 {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(u32::try_from(payload.len()).unwrap());
        self.sends_at(sequence, payload)
    }

    fn sends_at(&mut self, sequence: u32, payload: &[u8]) -> u32 {
        let (by_client, by_server) = self.turns(sequence, payload);
        self.known = Some(by_client.newest);
        if let (Some(server), Some(turn)) = (&mut self.server, by_server) {
            server.known = Some(turn.newest);
            let end = sequence.wrapping_add(u32::try_from(payload.len()).unwrap());
            if passed(server.received, sequence) && passed(end, server.received) {
                server.received = end;
            }
        }
        if self.lies { by_server.unwrap() } else { by_client }.requests
    }

    fn judged(&self, sequence: u32, payload: &[u8]) -> Turn {
        let (by_client, by_server) = self.turns(sequence, payload);
        if self.lies { by_server.unwrap() } else { by_client }
    }

    fn turns(&self, sequence: u32, payload: &[u8]) -> (Turn, Option<Turn>) {
        let frame = [vec![0xaa; HEADERS], payload.to_vec()].concat();
        let segment = Segment {
            source_port: 50_000,
            sequence,
            acknowledged: self.acknowledged,
            payload_at: u32::try_from(HEADERS).unwrap(),
            payload_bytes: u32::try_from(payload.len()).unwrap(),
            says: 0,
        };
        let by_client = turn(&frame.as_slice(), &segment, self.known, None);
        let by_server = self.server.as_ref().map(|server| {
            let peer = Peer {
                received: server.received,
                window_end: server.received.wrapping_add(1 << 20),
                said: self.acknowledged,
                is_first: u8::from(server.received == server.begins_at),
                ..Peer::default()
            };
            turn(&frame.as_slice(), &segment, server.known, Some(peer))
        });
        if let Some(by_server) = by_server
            && !self.lies
        {
            assert_eq!(by_server.requests, by_client.requests, "by the server's numbers, and by the client's");
        }
        (by_client, by_server)
    }

    fn hears(&mut self, bytes: u32) -> &mut Self {
        self.acknowledged = self.acknowledged.wrapping_add(bytes);
        self
    }

    /// Creates a client after a TLS 1.3 handshake, which offers HTTP/2 if `offers_http2`.
    fn with_tls_1_3(offers_http2: bool) -> Self {
        let mut client = Self::new();
        let name: &[u8] = if offers_http2 { b"\x02h2\x08http/1.1" } else { b"\x08http/1.1" };
        let hello = [&[0; 200], name, &[0; 100]].concat();
        assert_eq!(client.sends(&record(22, &hello)), 0);
        client.hears(1371);
        assert_eq!(client.sends(&[record(20, &[1]), record(23, &[0; 69])].concat()), 0);
        client
    }

    /// Creates a client after a TLS 1.2 handshake, with a cipher that adds 24 bytes.
    fn with_tls_1_2() -> Self {
        let mut client = Self::new();
        assert_eq!(client.sends(&record(22, &[0; 512])), 0);
        client.hears(1223);
        assert_eq!(client.sends(&[record(22, &[0; 37]), record(20, &[1]), record(22, &[0; 40])].concat()), 0);
        client.hears(327);
        client
    }
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[kind, 3, 3, length[0], length[1]], content].concat()
}

/// Returns a TLS 1.3 record with `bytes` bytes of application data.
fn data(bytes: usize) -> Vec<u8> {
    record(23, &vec![0x5a; bytes + 17])
}

const GET: &[u8] = b"GET /page HTTP/1.1\r\nHost: example.org\r\n\r\n";

#[test]
fn clear_text_http_requests_count_once_and_retransmissions_do_not() {
    let mut client = Client::new();
    for _ in 0..3 {
        assert_eq!(client.sends(GET), 1);
        let repeated = client.sequence.wrapping_sub(u32::try_from(GET.len()).unwrap());
        assert_eq!(client.sends_at(repeated, GET), 0);
        assert_eq!(client.hears(ANSWER).sends_at(repeated, GET), 0, "it comes late, and is the same");
    }
}

#[test]
fn a_refused_request_is_judged_again_on_each_retransmission() {
    let mut client = Client::new();
    assert_eq!(client.sends(GET), 1);
    client.hears(ANSWER);
    for _ in 0..3 {
        assert_eq!(client.judged(client.sequence, GET).requests, 1);
    }
    assert_eq!(client.sends(GET), 1);
}

#[test]
fn requests_that_do_not_wait_for_answers_count_each_wherever_segments_end() {
    let all = GET.repeat(100);
    for segment in (8..200).chain([536, 1448, 4200]) {
        let mut client = Client::new();
        let counted: u32 = all.chunks(segment).map(|payload| client.sends(payload)).sum();
        // A first segment without the end of the first request does not show pipelining, nor do the segments after it.
        if segment > GET.len() + 1 && segment <= 1448 {
            assert_eq!(counted, 100, "segments of {segment} bytes");
        }
        assert!(counted <= 100, "segments of {segment} bytes: {counted}");
    }
}

#[test]
fn versions_that_end_a_line_are_told_from_what_looks_like_them() {
    let found = |payload: &str| {
        let frame = [&[b'p'; HEADERS], payload.as_bytes()].concat();
        let at = u32::try_from(HEADERS).unwrap();
        frame.as_slice().found(at, at + u32::try_from(payload.len()).unwrap(), Sought::Version).count()
    };
    for request in [
        "GET / HTTP/1.0\r\n\r\n",
        "GET  /  HTTP/1.1\r\n",
        "propfind /HTTP/x http/1.1\n",
        "A / HTTP/1.1  \r\n",
        "A / HTTP/1.01\r\n",
        "A / HTTP/1.1",
        "A / HTTP/",
        "//a/b HTTP/1.01",
    ] {
        assert_eq!(found(request), 1, "{request}");
    }
    // Texts that look like versions hide no version.
    for others in (0..400).chain([3000]) {
        let payload = "TP/".repeat(others) + "A / HTTP/1.1\r\n";
        assert!(found(&payload) >= 1, "behind {others} others");
    }
    for other in [
        "\"GET / HTTP/1.1\" 200 5\n",
        "{\"request\":\"GET / HTTP/1.1\\r\\n\"}",
        "HTTP/1.1 200 OK\r\n",
        "GET /HTTP/index.html",
        "see RTTP/1.1\r\n",
        "GET / HTTP/\0\0",
        "GET / HTTP/1\0",
        "/\0",
        "x/1.\x001\r\n",
        "accept: text/html,application/json",
    ] {
        assert_eq!(found(other), 0, "{other}");
    }
}

#[test]
fn a_request_that_trickles_in_is_one() {
    let mut client = Client::new();
    for _ in 0..3 {
        let counted: u32 = GET.chunks(5).map(|payload| client.sends(payload)).sum();
        assert_eq!(counted, 1);
        client.hears(ANSWER);
    }
}

#[test]
fn an_upload_is_one_request_with_its_invitation() {
    for invitation in [0, CONTINUE] {
        let mut client = Client::new();
        assert_eq!(client.sends(b"PUT /file HTTP/1.1\r\nExpect: 100-continue\r\n\r\n"), 1);
        client.hears(invitation);
        let body: u32 = (0..7_000).map(|_| client.sends(&[b'x'; 1448])).sum();
        assert_eq!(body, 0);
        assert_eq!(client.hears(ANSWER).sends(GET), 1);
    }
}

#[test]
fn an_upload_is_one_request_whatever_it_is_full_of() {
    for line in ["01/02/2024,12\n", "5/5 4/5 ", "/app/tip/map/", "<loc>http://a/b/c</loc>", "///////", "ph2p/h2/"] {
        let mut client = Client::new();
        assert_eq!(client.sends(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"), 1);
        let body = line.repeat(100_000 / line.len());
        let requests: u32 = body.as_bytes().chunks(1448).map(|part| client.sends(part)).sum();
        assert_eq!(requests, 0, "{line:?}");
    }
}

#[test]
fn an_upload_is_one_request_also_while_it_is_on_its_way() {
    // Each segment begins with this text, and the server does not have the one before yet.
    for begins in ["/\0\0\0\0\0\0\0", "/1\0", "P/1.\0", "TP/\0", "/1.1x"] {
        let mut client = Client::with_socket();
        assert_eq!(client.sends(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"), 1);
        let received = client.server.as_ref().unwrap().received;
        for _ in 0..70 {
            let segment = [begins.as_bytes(), &[b'x'; 1_400]].concat();
            assert_eq!(client.sends(&segment), 0, "{begins:?}");
            client.server.as_mut().unwrap().received = received;
        }
    }
}

#[test]
fn segments_that_are_sent_again_are_counted_by_the_guard_each() {
    let mut known = None;
    let mut unaccounted = |sequence| {
        let payload = [b'x'; 1_000];
        let segment = Segment { sequence, acknowledged: 1, payload_bytes: 1_000, ..Segment::default() };
        let turn = turn(&&payload[..], &segment, known, None);
        known = Some(turn.newest);
        turn.is_unaccounted
    };
    let first = 1 << 14;
    assert!(!unaccounted(first), "a request");
    assert_eq!((1..1_000).filter(|at| unaccounted(first + at * 1_000)).count(), 7, "one in 128 KB");
    assert_eq!((0..100).filter(|_| unaccounted(first + 50_000)).count(), 100);
    assert_eq!((0..100).filter(|_| unaccounted(first + 90_000)).count(), 100);
}

#[test]
fn a_turn_that_begins_with_no_method_counts() {
    let mut client = Client::new();
    assert_eq!(client.sends(b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), 1);
    // Each segment ends the body of one request, and begins the next request.
    for _ in 0..3 {
        assert_eq!(client.hears(ANSWER).sends(b"helloPOST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), 1);
    }
    assert_eq!(client.hears(ANSWER).sends(b"hello"), 1, "of which it cannot be told");
}

#[test]
fn each_turn_of_a_web_socket_counts_whatever_its_frames_look_like() {
    let mut client = Client::new();
    assert_eq!(client.sends(b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"), 1);
    for opcode in [0x81, 0x82, 0x89, 0xc1] {
        assert_eq!(client.hears(ANSWER).sends(&[opcode, 0x85, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 1);
    }
}

#[test]
fn a_request_of_several_segments_that_was_refused_is_judged_again() {
    let long = [b"GET / HTTP/1.1\r\nCookie: ", [b'c'; 3000].as_slice(), b"\r\n\r\n"].concat();
    let client = Client::with_socket();
    let segments: Vec<_> = long.chunks(1448).collect();
    let mut at = client.sequence;
    let mut sequences = Vec::new();
    for &segment in &segments {
        sequences.push(at);
        at = at.wrapping_add(u32::try_from(segment.len()).unwrap());
    }
    // The first segment is refused, and so not remembered; the others pass.
    let mut client = client;
    for (&sequence, segment) in sequences.iter().zip(&segments).skip(1) {
        assert_eq!(client.sends_at(sequence, segment), 0);
    }
    for _ in 0..3 {
        assert_eq!(client.judged(sequences[0], segments[0]).requests, 1);
    }
    assert_eq!(client.sends_at(sequences[0], segments[0]), 1);
    client.sequence = at;
    assert_eq!(client.hears(ANSWER).sends(GET), 1);
}

#[test]
fn text_with_words_like_methods_is_no_request() {
    let mut client = Client::new();
    let dump = "SELECT * FROM a;\nINSERT /* b */;\nGET /x in a log\r\nTODO handle\n".repeat(200);
    let mut upload = b"POST /sql HTTP/1.1\r\nContent-Length: 12600\r\n\r\n".to_vec();
    upload.extend_from_slice(dump.as_bytes());
    assert_eq!(upload.chunks(1448).map(|payload| client.sends(payload)).sum::<u32>(), 1);
}

#[test]
fn beginnings_that_servers_take_are_requests() {
    for begins in
        ["\r\nGET / HTTP/1.1\r\n", "GET  / HTTP/1.1\r\n", "PROPFIND /a HTTP/1.1\r\n", "REPORT /a HTTP/1.1\r\n"]
    {
        let mut request = begins.as_bytes().to_vec();
        request.resize(1400, b'x');
        let mut client = Client::new();
        assert_eq!(client.sends(&request), 1, "{begins}");
        assert_eq!(client.hears(ANSWER).sends(&request), 1, "{begins}");
    }
}

#[test]
fn a_connection_whose_beginning_was_not_seen_counts_one() {
    for middle in [&data(300), &vec![0x80; 1448], &vec![0x80; 100], &GET.to_vec()] {
        for mut client in [Client::without_socket(), Client::with_socket()] {
            if let Some(server) = &mut client.server {
                server.begins_at = server.begins_at.wrapping_sub(1);
            }
            assert_eq!(client.sends(middle), 1);
            assert_eq!(client.sends(&[0x80; 1000]), 0, "it goes on");
            assert_eq!(client.hears(ANSWER).sends(&data(300)), 1, "its next turn");
        }
    }
}

#[test]
fn another_connection_with_the_same_ports_starts_fresh() {
    let mut client = Client::without_socket();
    for ahead in [0, 1 << 30] {
        client.sequence = client.sequence.wrapping_add(ahead);
        assert_eq!(client.sends(GET), 1);
    }
    for behind in [1 << 30, 7_000_000, 5, 0] {
        let mut client = Client::with_socket();
        assert_eq!(client.sends(GET), 1);
        client.sequence = client.sequence.wrapping_sub(behind);
        client.server =
            Some(Server { begins_at: client.sequence, received: client.sequence, ..client.server.unwrap() });
        for _ in 0..3 {
            assert_eq!(client.sends(GET), 1, "{behind} bytes behind");
            client.hears(ANSWER);
        }
    }
}

/// Sends a segment that the server's TCP drops, for a bad checksum or another reason that is invisible here.
fn decoy(client: &mut Client, ahead: i32, payload: &[u8]) -> u32 {
    let turn = client.judged(client.sequence.wrapping_add_signed(ahead), payload);
    client.server.as_mut().unwrap().known = Some(turn.newest);
    turn.requests
}

#[test]
fn segments_dropped_by_the_server_make_no_request_free() {
    let announced = [[0x16, 3, 1, 0x48, 0, 1].as_slice(), &[0x17, 3, 3, 0x48, 0], &[b'x'; 1400]];
    for payload in announced {
        for ahead in [0_i32, 1, -1, 6, 100, 100_000, -100_000, 1 << 22, -(1 << 30)] {
            let mut client = Client::with_socket();
            assert_eq!(client.sends(GET), 1);
            let mut counted = decoy(&mut client, ahead, payload);
            for _ in 0..100 {
                counted += client.hears(ANSWER).sends(GET);
            }
            assert!(counted >= 100, "{counted}, behind {} bytes {ahead} ahead", payload.len());
            let mut client = Client::with_socket();
            let mut counted = decoy(&mut client, ahead, payload);
            for _ in 0..100 {
                counted += client.hears(ANSWER).sends(GET);
            }
            assert!(counted >= 100, "{counted}, at the beginning, behind {} bytes {ahead} ahead", payload.len());
            let mut client = Client::with_socket();
            client.sends(&record(22, &[0; 512]));
            client.hears(1371).sends(&record(23, &[0; 69]));
            client.sends(&data(80));
            let mut counted = decoy(&mut client, ahead, payload);
            for _ in 0..100 {
                counted += client.hears(ANSWER).sends(&data(80));
            }
            assert!(counted >= 100, "{counted}, under TLS, behind {} bytes {ahead} ahead", payload.len());
        }
    }
}

#[test]
fn segments_outside_the_servers_window_or_received_change_nothing() {
    let mut client = Client::with_socket();
    assert_eq!(client.sends(GET), 1);
    let known = client.server.as_ref().unwrap().known;
    for ahead in [-1000_i32, -45, (1 << 20) + 1, 1 << 30, i32::MIN] {
        let sequence = client.sequence.wrapping_add_signed(ahead);
        let turn = client.hears(ANSWER).judged(sequence, GET);
        assert_eq!((turn.requests, Some(turn.newest)), (0, known), "{ahead}");
    }
}

#[test]
fn a_byte_far_ahead_makes_nothing_behind_it_free() {
    for ahead in [1, 100_000, FAR_BYTES, FAR_BYTES + 1, 1 << 31] {
        let mut client = Client::without_socket();
        assert_eq!(client.sends(GET), 1);
        let far = client.sequence.wrapping_add(ahead);
        let mut counted = client.hears(ANSWER).sends_at(far, b"x");
        for _ in 0..3 {
            counted += client.hears(ANSWER).sends(GET);
        }
        assert!(counted >= 3, "{ahead} bytes ahead");
        let mut client = Client { server: None, ..Client::with_tls_1_3(false) };
        assert_eq!(client.sends(&data(80)), 1);
        let far = client.sequence.wrapping_add(ahead);
        client.hears(TICKETS + ANSWER).sends_at(far, b"x");
        for _ in 0..3 {
            assert_eq!(client.hears(ANSWER).sends(&data(80)), 1, "{ahead} bytes ahead");
        }
    }
}

#[test]
fn no_bytes_whatever_make_it_panic_or_count_without_bound() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for mut client in [Client::with_socket(), Client::without_socket()] {
        for _ in 0..100_000 {
            let len = usize::try_from(next() % 80).unwrap() + 1;
            let mut payload: Vec<u8> = (0..len).map(|_| next().to_le_bytes()[0]).collect();
            match next() % 4 {
                0 => payload[0] = 20 + next().to_le_bytes()[0] % 4,
                1 => payload = [&GET[..len.min(GET.len())], &payload].concat(),
                2 if len > 5 => payload[..5].copy_from_slice(&[23, 3, 3, 0, next().to_le_bytes()[0]]),
                _ => {}
            }
            client.hears(u32::from(next().to_le_bytes()[0]));
            let sequence = match next() % 5 {
                0 => client.sequence.wrapping_add(u32::try_from(next() % (1 << 25)).unwrap()),
                1 => client.sequence.wrapping_sub(u32::try_from(next() % 4000).unwrap()),
                _ => client.sequence,
            };
            let requests =
                if sequence == client.sequence { client.sends(&payload) } else { client.sends_at(sequence, &payload) };
            assert!(requests as usize <= 128 * payload.len().div_ceil(5), "{payload:02x?}");
        }
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Returns an HTTP/2 frame of this type, with `len` bytes after its header.
fn frame_of(kind: u8, len: u16) -> Vec<u8> {
    let [high, low] = len.to_be_bytes();
    [&[0, high, low, kind, 0, 0, 0, 0, 1][..], &vec![0x82; usize::from(len)]].concat()
}

#[test]
fn each_stream_of_http2_in_the_clear_counts_and_its_control_does_not() {
    let (settings, headers, body) = (frame_of(4, 18), frame_of(1, 5), frame_of(0, 9_000));
    let mut client = Client::new();
    assert_eq!(client.sends(&[PREFACE, &settings, &headers].concat()), 1);
    assert_eq!(client.hears(ANSWER).sends(&frame_of(4, 0)), 0, "settings acknowledged");
    for _ in 0..5 {
        assert_eq!(client.hears(ANSWER).sends(&headers), 1);
    }
    assert_eq!(client.sends(&headers.repeat(100)), 100, "streams of one segment");
    let mut upload = [headers.clone(), body].concat();
    upload.extend(frame_of(8, 4));
    upload.extend(&headers);
    assert_eq!(upload.chunks(1448).map(|payload| client.hears(ANSWER).sends(payload)).sum::<u32>(), 2);
}

#[test]
fn a_preface_alone_counts_in_the_place_of_the_first_request() {
    let mut client = Client::new();
    assert_eq!(client.sends(PREFACE), 1);
    assert_eq!(client.hears(15).sends(&frame_of(4, 0)), 0);
    assert_eq!(client.sends(&frame_of(1, 30)), 0);
    assert_eq!(client.hears(ANSWER).sends(&frame_of(1, 30)), 1);
}

#[test]
fn frames_of_http2_in_the_clear_are_found_wherever_segments_end() {
    let mut stream = [PREFACE, &frame_of(4, 18)].concat();
    for _ in 0..10 {
        stream.extend([frame_of(1, 20), frame_of(0, 30), frame_of(8, 4)].concat());
    }
    for bytes in 1..60 {
        let mut client = Client::new();
        let (preface, rest) = stream.split_at(24);
        let first = client.sends(preface);
        let later: u32 = rest.chunks(bytes).map(|payload| client.hears(ANSWER).sends(payload)).sum();
        assert_eq!(first + later, 10, "{bytes} bytes at a time");
    }
}

#[test]
fn a_preface_hides_no_requests_of_http1() {
    let mut client = Client::new();
    assert_eq!(client.sends(&[PREFACE, &frame_of(0, 16_000)[..9]].concat()), 1);
    for _ in 0..5 {
        assert_eq!(client.hears(ANSWER).sends(&GET.repeat(2)), 2);
    }
}

#[test]
fn turns_count_where_a_frames_beginning_is_lost() {
    let mut client = Client::new();
    assert_eq!(client.sends(&[PREFACE, &frame_of(1, 30)].concat()), 1);
    client.sequence = client.sequence.wrapping_add(500);
    for _ in 0..5 {
        assert_eq!(client.hears(ANSWER).sends(&[0xff; 40]), 1);
    }
}

#[test]
fn two_interim_answers_are_no_answer_and_one_byte_more_is() {
    for (heard, requests) in [(80, 0), (81, 1)] {
        let mut client = Client::new();
        assert_eq!(client.sends(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"), 1);
        assert_eq!(client.hears(heard).sends(b"a"), requests, "{heard}");
    }
}

#[test]
fn the_frame_search_accepts_only_standard_types_and_lengths() {
    for (kind, len, headers) in [(9, 16_384, 2), (10, 16_384, 0), (9, 16_385, 0)] {
        let mut client = Client::new();
        assert_eq!(client.sends(&[PREFACE, &frame_of(1, 5)].concat()), 1);
        client.sequence = client.sequence.wrapping_add(500);
        let payload = [frame_of(kind, len), frame_of(1, 5), frame_of(1, 5)].concat();
        assert_eq!(client.sends(&payload), headers, "type {kind}, {len} bytes");
    }
}
