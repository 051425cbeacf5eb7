//! Tests of conversations under TLS.

use super::*;

#[test]
fn under_tls_each_turn_is_a_request_and_the_handshake_is_none() {
    let mut clients = [Client::with_tls_1_2(), Client::with_tls_1_3(false), Client::with_tls_1_3(true)];
    for client in &mut clients {
        assert_eq!(client.sends(&data(80)), 1);
        client.hears(TICKETS);
        for _ in 0..5 {
            assert_eq!(client.hears(ANSWER).sends(&data(80)), 1);
        }
        client.hears(ANSWER);
        let alert = if client.known.unwrap().overhead == 17 { record(23, &[0; 19]) } else { record(21, &[0; 26]) };
        assert_eq!(client.sends(&alert), 0);
    }
}

/// Returns the state of a client in the middle of a body's first record.
fn within_a_record() -> Conversation {
    let mut client = Client::with_tls_1_3(false);
    client.sends(&data(120));
    client.hears(ANSWER);
    client.sends(&data(16_384)[..600]);
    let by_client = client.known.unwrap();
    assert!(!goes_on(by_client, &within(&by_client, 0, SHORT_BYTES), SEALED), "no socket tells");
    client.server.unwrap().known.unwrap()
}

/// Returns the segment with which the connection continues, `ahead` bytes after its next one.
fn within(known: &Conversation, ahead: u32, bytes: u32) -> Segment {
    Segment {
        sequence: known.next.wrapping_add(ahead),
        acknowledged: known.acknowledged,
        payload_at: u32::try_from(HEADERS).unwrap(),
        payload_bytes: bytes,
        ..Segment::default()
    }
}

/// Returns whether the fast path takes this segment, which begins with the bytes `first`.
fn goes_on(mut known: Conversation, segment: &Segment, first: [u8; 4]) -> bool {
    let frame = [vec![0xaa; HEADERS], first.to_vec(), vec![0xd5; segment.payload_bytes as usize]].concat();
    let before = known;
    let goes_on = known.goes_on(&frame.as_slice(), segment);
    let moved = if goes_on { segment.payload_bytes } else { 0 };
    assert_eq!(
        (known.next, known.record_left),
        (before.next.wrapping_add(moved), before.record_left.wrapping_sub(moved))
    );
    assert!(goes_on || known == before);
    goes_on
}

const SEALED: [u8; 4] = [0xd5; 4];

#[test]
fn segments_within_the_current_record_go_on_whatever_the_server_says() {
    let known = within_a_record();
    let left = known.record_left;
    for (bytes, expected) in [(SHORT_BYTES, true), (left, true), (SHORT_BYTES - 1, false), (left + 1, false)] {
        assert_eq!(goes_on(known, &within(&known, 0, bytes), SEALED), expected, "{bytes} bytes");
    }
    assert!(!goes_on(known, &within(&known, 1, SHORT_BYTES), SEALED), "something is left out");
    assert!(!goes_on(known, &within(&known, u32::MAX, SHORT_BYTES), SEALED), "some of it came before");
    assert!(!goes_on(known, &Segment { says: crate::packet::says::URGENT, ..within(&known, 0, SHORT_BYTES) }, SEALED));
}

#[test]
fn nothing_goes_on_unasked_where_it_is_not_known_what_the_server_takes() {
    let known = within_a_record();
    assert!(goes_on(known, &within(&known, 0, SHORT_BYTES), SEALED));
    let others = [
        ("the server had none of it", Conversation { is: known.is & !is::TAKEN, ..known }),
        ("the server has not answered", Conversation { also: known.also & !also::ANSWERED, ..known }),
        ("its beginning was not seen", Conversation { is: known.is | is::UNSEEN, ..known }),
        ("where records begin is a guess", Conversation { is: known.is | is::CUT, ..known }),
        ("the server may have it otherwise", Conversation { is: known.is | is::DOUBTED, ..known }),
        ("some of it came in fragments", Conversation { also: known.also | also::IN_FRAGMENTS, ..known }),
        ("where the record ends is lost", Conversation { record_left: LOST, ..known }),
        ("a header is split", Conversation { split_len: 1, ..known }),
        ("its handshake goes on", Conversation { speaks: speaks::TLS_HELLO, ..known }),
        ("it is in the clear", Conversation { speaks: speaks::CLEAR, ..known }),
    ];
    for (why, other) in others {
        assert!(!goes_on(other, &within(&other, 0, SHORT_BYTES), SEALED), "{why}");
    }
}

#[test]
fn a_new_connection_on_the_same_ports_does_not_continue_the_old_record() {
    let known = within_a_record();
    let segment = within(&known, 0, SHORT_BYTES);
    let heard = Segment { acknowledged: known.acknowledged.wrapping_add(1), ..segment };
    assert!(!goes_on(known, &heard, SEALED), "its server has other numbers");
    for first in [*b"GET ", *b"\r\nGE", *b"PRI ", [22, 3, 1, 2], [23, 3, 3, 64]] {
        assert!(!goes_on(known, &segment, first), "{first:?}");
    }
    assert!(!goes_on(known, &segment, [0x82, 0x2e, 1, 0]), "as SSL 2 began");
    assert!(goes_on(known, &segment, [22, 3, 3, 0xd5]), "one byte tells");
    // The first bytes have the sequence numbers that continue the old record. The new connection's server has no bytes
    // yet.
    let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20);
    let frame = [vec![0xaa; HEADERS], requests].concat();
    let said = known.acknowledged.wrapping_add(70_000);
    let first = Peer {
        received: known.next,
        window_end: known.next.wrapping_add(1 << 16),
        said,
        is_first: 1,
        ..Peer::default()
    };
    for acknowledged in [known.acknowledged, said] {
        let segment = Segment { acknowledged, payload_bytes: u32::try_from(frame.len() - HEADERS).unwrap(), ..segment };
        assert_eq!(turn(&frame.as_slice(), &segment, Some(known), Some(first)).requests, 20);
    }
}

#[test]
fn fast_path_data_is_counted_by_the_guard_with_the_next_judged_segment() {
    let mut client = Client::with_tls_1_3(false);
    client.sends(&data(120));
    client.hears(ANSWER);
    client.lies = true;
    // After segments that the fast path took, the next header counts, and nothing else.
    let record: Vec<u8> = data(16_384).into_iter().map(|byte| byte | 0x80).collect();
    let record = [&data(16_384)[..5], &record[5..]].concat();
    let mut counted = 0;
    for payload in record.repeat(160).chunks(1448) {
        let known = client.server.as_ref().unwrap().known.unwrap();
        let turn = client.judged(client.sequence, payload);
        counted += u32::from(turn.is_unaccounted);
        let went_on = known.record_left as usize >= payload.len() && payload[0] >= 0x80;
        assert!(!(went_on && turn.is_unaccounted), "{known:?}");
        client.sends(payload);
    }
    assert!((18..=22).contains(&counted), "{counted} of 160 records");
}

#[test]
fn records_that_the_server_did_not_receive_are_not_taken_as_received() {
    // The server drops every segment. A guess adds the requests that it may have instead.
    let mut client = Client::with_socket();
    let server = client.server.as_mut().unwrap();
    server.received = server.received.wrapping_sub(1);
    server.begins_at = server.received;
    for payload in
        [record(22, &[0; 512]), [record(20, &[1]), record(23, &[0; 53])].concat(), data(16_384)[..600].to_vec()]
    {
        client.hears(ANSWER).sends(&payload);
    }
    let known = client.server.as_ref().unwrap().known.unwrap();
    assert!(!known.has(is::TAKEN));
}

#[test]
fn a_request_behind_the_end_of_a_handshake_in_one_segment_counts() {
    let mut client = Client::new();
    client.sends(&record(22, &[0; 512]));
    client.hears(1371);
    assert_eq!(client.sends(&[record(20, &[1]), record(23, &[0; 53]), data(120)].concat()), 1);
}

#[test]
fn early_data_is_a_request() {
    let mut client = Client::new();
    assert_eq!(client.sends(&[record(22, &[0; 512]), record(20, &[1]), data(120)].concat()), 1);
    client.hears(1371);
    assert_eq!(client.sends(&record(23, &[0; 53])), 0, "the handshake's end");
    assert_eq!(client.hears(TICKETS + ANSWER).sends(&data(120)), 1);
}

#[test]
fn the_end_of_a_handshake_behind_early_http2_is_no_request() {
    let mut client = Client::new();
    let hello = record(22, &[&[0; 200], &b"\x02h2\x08http/1.1"[..], &[0; 100]].concat());
    assert_eq!(client.sends(&[hello, record(20, &[1])].concat()), 0);
    let early: u32 = [70, 9, 300, 50].map(|bytes| client.sends(&data(bytes))).iter().sum();
    assert_eq!(early, 1, "the preface, for what comes after it, and what may be the body of that");
    client.hears(1371);
    assert_eq!(client.sends(&record(23, &[0; 53])), 0, "the handshake's end");
    assert_eq!(client.hears(TICKETS + ANSWER).sends(&data(120)), 1);
}

#[test]
fn a_clients_certificate_is_no_request() {
    let mut client = Client::new();
    client.sends(&record(22, &[0; 512]));
    client.hears(2000);
    assert_eq!(client.sends(&[record(20, &[1]), data(900), data(300), record(23, &[0; 53])].concat()), 0);
    assert_eq!(client.sends(&data(120)), 1);
}

#[test]
fn under_tls_a_body_is_part_of_its_request() {
    for mut client in [Client::with_tls_1_2(), Client::with_tls_1_3(false)] {
        let is_1_3 = client.known.unwrap().overhead == 17;
        assert_eq!(client.sends(&data(120)), 1);
        assert_eq!(client.hears(if is_1_3 { TICKETS } else { 0 }).sends(&data(400)), 0, "a slow client's body");
        let stream: Vec<u8> = (0..20).flat_map(|_| data(16_384)).collect();
        let body: u32 = stream.chunks(1448).map(|payload| client.sends(payload)).sum();
        assert_eq!(body, 0);
        assert_eq!(client.hears(ANSWER).sends(&data(120)), 1);
        let invited = CONTINUE + 5 + if is_1_3 { 17 } else { 24 };
        assert_eq!(client.hears(invited).sends(&data(16_384)[..1448]), 0, "after 100 Continue");
    }
}

#[test]
fn records_are_followed_wherever_segments_end() {
    let stream: Vec<u8> = (0..60).flat_map(|_| data(40)).collect();
    for segment in 6..400 {
        let mut client = Client::with_tls_1_3(true);
        assert_eq!(client.sends(&data(70)), 1, "the preface");
        assert_eq!(client.sends(&data(300)), 0, "and what it was counted for");
        assert_eq!(client.hears(31).sends(&data(9)), 0, "the settings' acknowledgement");
        client.hears(TICKETS + ANSWER);
        let counted: u32 = stream.chunks(segment).map(|payload| client.sends(payload)).sum();
        assert_eq!(counted, 60, "segments of {segment} bytes");
    }
}

/// Returns a client that is known to speak HTTP/2, and has sent one request.
fn http2() -> Client {
    let mut client = Client::with_tls_1_3(true);
    assert_eq!(client.sends(&data(70)), 1);
    assert_eq!(client.hears(31).sends(&data(9)), 0);
    assert_eq!(client.sends(&data(300)), 0, "the preface was counted for it");
    client.hears(TICKETS + ANSWER);
    client
}

#[test]
fn few_frames_of_control_of_http2_are_free_and_those_that_follow_long_answers() {
    let mut client = http2();
    for bytes in [13, 13, 13] {
        assert_eq!(client.hears(ANSWER).sends(&data(bytes)), 0, "{bytes} bytes");
    }
    for bytes in [14, 26] {
        assert_eq!(client.hears(ANSWER).sends(&data(bytes)), 1, "{bytes} bytes, once too often");
    }
    for _ in 0..100 {
        assert_eq!(client.hears(16_384).sends(&data(13)), 0, "a larger window, during a download");
        assert_eq!(client.sends(&data(13)), 0, "and another, of the connection");
        assert_eq!(client.sends(&data(13)), 1, "and no third");
        assert_eq!(client.hears(16_384).sends(&data(26)), 0, "two in one record");
    }
}

#[test]
fn the_end_of_a_body_after_an_early_answer_counts_only_if_answered() {
    let mut client = http2();
    for _ in 0..5 {
        assert_eq!(client.sends(&data(50)), 1);
        assert_eq!(client.hears(ANSWER).sends(&data(9)), 0);
    }
    assert_eq!(client.hears(ANSWER).sends(&data(9)), 1, "the one before");
}

#[test]
fn a_ping_sized_record_is_a_request_once_the_server_answers_it() {
    let mut client = http2();
    assert_eq!(client.sends(&data(50)), 1);
    assert_eq!(client.hears(ANSWER).sends(&data(17)), 0, "a PING");
    assert_eq!(client.hears(39).sends(&data(50)), 1, "and its acknowledgement");
    assert_eq!(client.hears(ANSWER).sends(&data(17)), 0, "a request, of which it cannot be told yet");
    for _ in 0..10 {
        assert_eq!(client.hears(ANSWER).sends(&data(17)), 1, "the one before");
    }
    assert_eq!(client.hears(ANSWER).sends(&data(50)), 2);
    assert_eq!(client.hears(ANSWER).sends(&data(17)), 0, "a farewell");
    assert_eq!(client.sends(&record(23, &[0; 19])), 0);
}

#[test]
fn a_stream_that_is_reset_behind_its_answer_is_no_request() {
    let mut client = http2();
    for _ in 0..20 {
        assert_eq!(client.sends(&data(16)), 1);
        assert_eq!(client.hears(ANSWER).sends(&data(13)), 0);
    }
    assert_eq!(client.sends(&data(16)), 1);
    // Requests of that length count, each together with the next.
    assert_eq!(client.hears(ANSWER).sends(&data(13)), 0);
    for _ in 0..20 {
        assert_eq!(client.hears(ANSWER).sends(&data(13)), 1);
    }
}

#[test]
fn java_pads_its_records_and_is_counted_all_the_same() {
    let mut client = Client::new();
    let hello = record(22, &[&[0; 200], &b"\x02h2\x08http/1.1"[..], &[0; 100]].concat());
    client.sends(&hello);
    client.hears(1371);
    assert_eq!(client.sends(&record(20, &[1])), 0);
    assert_eq!(client.sends(&record(23, &[0; 85])), 0, "the handshake's end");
    client.hears(TICKETS);
    assert_eq!(client.sends(&record(23, &[0; 166])), 1, "preface and request");
    assert_eq!(client.hears(ANSWER).sends(&record(23, &[0; 42])), 0, "the server's settings");
    assert_eq!(client.hears(ANSWER).sends(&record(23, &[0; 83])), 1);
    assert_eq!(client.hears(20_000).sends(&record(23, &[0; 46])), 0, "a larger window");
    assert_eq!(client.sends(&record(23, &[0; 35])), 0, "a farewell");
}

#[test]
fn a_certificate_and_what_ends_the_handshake_may_be_one_record() {
    let mut client = Client::new();
    client.sends(&record(22, &[0; 512]));
    client.hears(2000);
    assert_eq!(client.sends(&record(20, &[1])), 0);
    assert_eq!(client.sends(&record(23, &[0; 1_057])), 0);
    for _ in 0..3 {
        assert_eq!(client.sends(&data(115)), 1);
        client.hears(ANSWER);
    }
}

#[test]
fn a_body_goes_on_behind_two_interim_answers() {
    let mut client = Client::with_tls_1_2();
    assert_eq!(client.sends(&data(150)), 1);
    assert_eq!(client.hears(47).sends(&data(16_384)), 0);
    assert_eq!(client.hears(62).sends(&data(16_384)), 0);
    assert_eq!(client.hears(ANSWER).sends(&data(150)), 1);
}

#[test]
fn a_body_between_server_windows_belongs_to_its_request_until_an_answer() {
    let mut client = http2();
    assert_eq!(client.sends(&data(50)), 1);
    for bytes in [9, 9, 25, 10, 9, 130, 60, 10, 11, 12] {
        assert_eq!(client.hears(56).sends(&data(16_384)), 0);
        assert_eq!(client.hears(56).sends(&data(bytes)), 0, "what windows leave of frames: {bytes}");
    }
    let sent = 10 * 16_384;
    assert_eq!(client.hears(ANSWER + sent / 32).sends(&data(50)), 1);
    for _ in 0..3 {
        assert_eq!(client.hears(ANSWER).sends(&data(50)), 1);
    }
}

#[test]
fn headers_after_an_answered_preface_are_the_request_counted_with_it() {
    let mut client = Client::with_tls_1_3(true);
    assert_eq!(client.hears(TICKETS).sends(&data(64)), 1, "the preface");
    assert_eq!(client.hears(31).sends(&data(43)), 0, "the request");
    assert_eq!(client.hears(ANSWER).sends(&data(9)), 0, "the server's settings");
    for _ in 0..5 {
        assert_eq!(client.hears(ANSWER).sends(&data(19)), 1);
    }
}

#[test]
fn a_body_of_http2_is_part_of_its_request() {
    let mut client = http2();
    assert_eq!(client.sends(&data(50)), 1);
    assert_eq!(client.sends(&data(400)), 0, "a form");
    assert_eq!(client.hears(ANSWER).sends(&data(50)), 1);
    let stream: Vec<u8> = (0..20).flat_map(|_| data(16_393)).collect();
    assert_eq!(stream.chunks(1448).map(|payload| client.sends(payload)).sum::<u32>(), 0);
}

#[test]
fn short_headers_of_http2_that_share_a_record_count_each() {
    let mut client = http2();
    assert_eq!(client.sends(&data(18)), 1);
    assert_eq!(client.hears(ANSWER).sends(&data(180)), 10);
    assert_eq!(client.hears(ANSWER).sends(&data(181)), 1);
}

#[test]
fn a_long_answer_does_not_make_what_follows_free() {
    for gigabytes in 1..4 {
        let mut client = Client::with_tls_1_3(false);
        client.sends(&data(80));
        for _ in 0..gigabytes {
            client.hears(1 << 30);
        }
        for _ in 0..3 {
            assert_eq!(client.sends(&data(80)), 1, "{gigabytes} GB");
            client.hears(ANSWER);
        }
    }
}

#[test]
fn a_handshakes_end_that_is_lost_does_not_hide_the_request_behind_it() {
    let mut client = Client::new();
    client.sends(&record(22, &[0; 512]));
    client.hears(1371);
    let finished = [record(20, &[1]), record(23, &[0; 69])].concat();
    let at = client.sequence;
    client.sequence = at.wrapping_add(u32::try_from(finished.len()).unwrap());
    assert_eq!(client.sends(&data(120)), 1);
    assert_eq!(client.sends_at(at, &finished), 0);
    assert_eq!(client.hears(TICKETS + ANSWER).sends(&data(120)), 1);
}

#[test]
fn a_body_of_http2_in_short_records_is_part_of_its_request() {
    let mut client = http2();
    assert_eq!(client.sends(&data(50)), 1);
    assert_eq!((0..100).map(|_| client.sends(&data(1186))).sum::<u32>(), 0);
}

#[test]
fn hidden_record_boundaries_make_no_request_free() {
    let mut client = Client::with_tls_1_3(false);
    // More records than are read, the last of which goes on in the next segment, and so on.
    let many: Vec<u8> = (0..40).flat_map(|_| data(20)).collect();
    let tail = data(200);
    assert_eq!(client.sends(&[&many, &tail[..100]].concat()), 1);
    for _ in 0..5 {
        client.hears(TICKETS + ANSWER);
        assert_eq!(client.sends(&[&tail[100..], &data(80), &tail[..100]].concat()), 1);
    }
}

#[test]
fn a_record_too_short_for_a_request_hides_none_behind_it() {
    let mut client = Client::with_tls_1_3(true);
    assert_eq!(client.sends(&data(70)), 1);
    client.hears(TICKETS);
    for _ in 0..5 {
        assert_eq!(client.hears(ANSWER).sends(&[data(5), data(120)].concat()), 1);
    }
}

#[test]
fn an_out_of_order_request_counts_once() {
    let mut client = Client::with_tls_1_3(false);
    assert_eq!(client.sends(&data(80)), 1);
    client.hears(TICKETS + ANSWER);
    let request = [data(120), data(16_384)].concat();
    let (first, second) = request.split_at(1448);
    let at = client.sequence;
    let later = client.sends_at(at.wrapping_add(1448), second);
    let earlier = client.sends_at(at, first);
    assert_eq!(later + earlier, 1);
}

#[test]
fn a_protocols_name_in_the_second_part_of_a_hello_is_no_request() {
    let name = b"\x00\x10\x00\x0e\x00\x0c\x02h2\x08http/1.1\x00\x23\x00\x00";
    let mut client = Client::with_socket();
    let hello = record(22, &[&[0; 1_500][..], name, &[0; 300]].concat());
    let (first, second) = hello.split_at(1_448);
    let at = client.sequence;
    assert_eq!(client.sends(first), 0);
    // The server's TCP has not received the first one yet.
    let server = client.server.as_mut().unwrap();
    server.received = at;
    assert_eq!(client.sends(second), 0);
}

/// Returns a client after a handshake that offers HTTP/2. `flight` and `finished` are the bytes of the server's first
/// flight and of the handshake's end.
fn handshake(flight: u32, finished: usize) -> Client {
    let mut client = Client::new();
    client.sends(&record(22, &[&[0; 200], &b"\x02h2\x08http/1.1"[..], &[0; 100]].concat()));
    client.hears(flight);
    assert_eq!(client.sends(&record(23, &vec![0; finished])), 0);
    client
}

#[test]
fn tickets_are_as_long_as_tickets_are() {
    for (heard, requests) in [(479, 1), (480, 0), (580, 0), (581, 1)] {
        let mut client = Client::with_tls_1_3(false);
        assert_eq!(client.sends(&data(80)), 1);
        assert_eq!(client.hears(heard).sends(&data(80)), requests, "{heard}");
    }
    // A client that resumes a session gets one ticket.
    for (flight, requests) in [(399, 1), (400, 0)] {
        let mut client = handshake(flight, 53);
        assert_eq!(client.sends(&data(200)), 1);
        assert_eq!(client.hears(500).sends(&data(200)), requests, "behind a flight of {flight}");
    }
    // The first of two tickets comes before the first request; the second one follows a preface.
    for (heard, requests) in [(239, 1), (240, 0), (300, 0), (301, 1)] {
        let mut client = handshake(1_371, 53);
        assert_eq!(client.hears(heard).sends(&data(70)), 1);
        assert_eq!(client.hears(300).sends(&data(300)), requests, "{heard}");
    }
}

#[test]
fn server_output_during_a_body_is_no_answer_until_one_byte_more() {
    let after_body = |mut client: Client, least: u32, more: u32| {
        let begins_at = client.sequence;
        assert_eq!(client.sends(&data(50)), 1);
        assert_eq!(client.sends(&data(5_000)), 0);
        let sent = client.sequence.wrapping_sub(begins_at);
        client.hears(least + sent / 32 + more).sends(&data(50))
    };
    for more in [0, 1] {
        assert_eq!(after_body(http2(), 240, more), more);
        let mut first = handshake(1_371, 53);
        let begins_at = first.sequence;
        assert_eq!(first.sends(&data(100)), 1);
        assert_eq!([data(9), data(5_000)].map(|record| first.sends(&record)), [0, 0]);
        let sent = first.sequence.wrapping_sub(begins_at);
        assert_eq!(first.hears(1_000 + sent / 32 + more).sends(&data(50)), more, "behind the first request");
    }
    for (heard, requests) in [(130, 0), (131, 1)] {
        let mut client = Client::with_tls_1_2();
        assert_eq!(client.sends(&data(150)), 1);
        assert_eq!(client.hears(heard).sends(&data(8_199)), requests, "{heard}");
    }
}

#[test]
fn a_priority_sized_record_is_a_priority_if_headers_are_longer() {
    for (headers, requests) in [(30, 1), (31, 0)] {
        let mut client = http2();
        assert_eq!(client.sends(&data(headers)), 1);
        assert_eq!(client.sends(&data(14)), requests, "behind headers of {headers}");
    }
}

#[test]
fn the_third_record_as_long_as_those_before_it_is_a_request() {
    let mut client = Client::with_tls_1_3(true);
    let counted = [(); 6].map(|()| client.sends(&data(100)));
    assert_eq!(counted, [1, 0, 0, 1, 1, 1]);
}

#[test]
fn a_record_holds_no_more_headers_than_a_server_takes_streams() {
    for (streams, counted) in [(127, 127), (128, 128), (129, 128)] {
        let mut client = http2();
        assert_eq!(client.sends(&data(10)), 1);
        assert_eq!(client.hears(ANSWER).sends(&data(10 * streams)), counted, "{streams}");
    }
}

#[test]
fn a_handshakes_end_that_may_be_javas_leaves_it_open() {
    for (finished, requests) in [(53, 1), (69, 0)] {
        let mut client = handshake(1_371, finished);
        assert_eq!(client.sends(&data(70)), 1);
        assert_eq!(client.hears(20_000).sends(&data(25)), requests, "an end of {finished} bytes");
    }
}

#[test]
fn few_window_updates_are_free_while_record_boundaries_are_guessed() {
    let mut client = http2();
    assert_eq!(client.sends(&data(50)), 1);
    // The bytes that are left out contain the beginning of a record.
    client.sequence = client.sequence.wrapping_add(500);
    let counted: u32 = (0..100).map(|_| client.hears(20_000).sends(&data(26))).sum();
    assert!((96..=98).contains(&counted), "{counted}");
}

#[test]
fn a_body_whose_first_segment_is_lost_is_part_of_its_request() {
    for (heard, requests) in [(542, 0), (542 + 47, 0), (580 + 47, 0), (580 + 48, 1), (479, 1)] {
        let mut client = Client::with_tls_1_3(false);
        assert_eq!(client.sends(&data(200)), 1);
        client.hears(heard);
        let body = data(16_384);
        let at = client.sequence;
        let later: u32 = body
            .chunks(1_448)
            .skip(1)
            .zip(1..)
            .map(|(part, place)| client.sends_at(at.wrapping_add(place * 1_448), part))
            .sum();
        assert_eq!(later, requests, "{heard}");
    }
}
