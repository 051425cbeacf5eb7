//! Tests of HTTP/3. While an access log is read in time, packets count what opens a connection, and the log counts the
//! requests. Without a log, the guard bounds the traffic.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::net::IpAddr;

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, SOURCE_V4, V4, frame, quic, tcp, udp};
use integration_test::program::{Program, limit_over, policy};
use ipnet::IpNet;
use netlab::needs_root;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_datapath::{Datapath as _, MULTIPLICITY_LASTS_NS};
use ratelimit_policy::desired::{AccessLog, Policy, WindowForm};

const LIMIT: u64 = 10;
const WINDOW_NS: u64 = 60 * SECOND_NS;

fn with_log() -> Policy {
    let mut policy = policy(&[limit_over(LIMIT, Unit::Requests, WindowForm::Strict, 6, WINDOW_NS / 6)]);
    policy.rules[0].access_logs = vec![AccessLog::File("/log".into())];
    policy
}

fn datagram(payload: Vec<u8>) -> Vec<u8> {
    frame(IPV4, V4::of(UDP).around(udp(443, payload)))
}

/// Returns a datagram behind the handshake with the length of a request.
fn asking() -> Vec<u8> {
    datagram(vec![0x5a; 900])
}

fn client() -> IpNet {
    IpAddr::from(SOURCE_V4).into()
}

fn charge(program: &mut Program, requests: u64) {
    program.kernel().charge_requests(client(), 0, requests).unwrap();
}

#[test]
fn quic_requests_come_from_the_log_while_it_is_read_else_from_sizes() {
    needs_root!();
    let initial = datagram(quic(0xc3, 1));
    let mut guessing = Program::new(&with_log());
    assert_eq!(guessing.passed(&initial, 1), 1);
    assert!(guessing.passed(&asking(), 100) < 100, "sizes tell requests");

    let mut program = Program::new(&with_log());
    program.kernel().tell_log_is_read(0).unwrap();
    assert_eq!(program.passed(&initial, 1), 1);
    assert_eq!(program.passed(&asking(), 1000), 1000, "nothing is guessed");
    // The log has nine more requests. The limit is used up, and nothing may exceed it.
    charge(&mut program, LIMIT - 1);
    assert_eq!(program.passed(&asking(), 1000), 1000);
    charge(&mut program, 1);
    assert_eq!(program.passed(&asking(), 100), 0, "the log has taken it beyond its limit");
    for bytes in [40, 1_200] {
        assert_eq!(program.passed(&datagram(vec![0x5a; bytes]), 100), 0, "whatever it sends: {bytes} bytes");
    }
    program.advance(MULTIPLICITY_LASTS_NS);
    assert_eq!(program.passed(&asking(), 100), 0, "nobody reads the log, and its window is full");
}

#[test]
fn a_connection_that_goes_on_after_its_window_is_charged_by_its_log_again() {
    needs_root!();
    let mut program = Program::new(&with_log());
    program.kernel().tell_log_is_read(0).unwrap();
    assert_eq!(program.passed(&datagram(quic(0xc3, 1)), 1), 1);
    program.advance(2 * WINDOW_NS);
    program.kernel().tell_log_is_read(0).unwrap();
    assert_eq!(program.passed(&asking(), 100), 100);
    // One packet made the source known with a live window, which the log's lines charge.
    charge(&mut program, LIMIT);
    assert_eq!(program.passed(&asking(), 100), 0, "one, and ten that were charged");
}

/// Number of datagrams that the guard passes: `GUARDED_SEGMENTS_MIN` times `DATAGRAMS_PER_COUNTED`, as stated in
/// docs/COUNTING.md.
const GUARDED: u32 = 16_384 * 256;
/// Number of datagrams that are sent beyond the guard's bound.
const MORE: u32 = 10_000;

/// A server logs no request of a client that only sends datagrams with the length of requests.
#[test]
fn datagrams_that_a_log_is_to_tell_of_are_bounded_by_the_guard() {
    needs_root!();
    const PARTS: u32 = 10;
    let mut program = Program::new(&with_log());
    program.kernel().tell_log_is_read(0).unwrap();
    assert_eq!(program.passed(&datagram(quic(0xc3, 1)), 1), 1);
    for _ in 0..PARTS {
        program.kernel().tell_log_is_read(0).unwrap();
        program.time(&asking(), (GUARDED + MORE) / PARTS);
    }
    let refused = program.counts()["guard"];
    assert!((u64::from(MORE) - 300..=u64::from(MORE) + 300).contains(&refused), "{refused}");
}

#[test]
fn datagrams_of_quic_that_are_no_request_are_bounded_and_tcp_is_not_held_to_that() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit_over(LIMIT, Unit::Requests, WindowForm::Strict, 6, WINDOW_NS)]));
    assert_eq!(program.passed(&datagram(quic(0xc3, 1)), 1), 1);
    let acknowledgement = vec![0x40; 40];
    program.time(&datagram(acknowledgement.clone()), GUARDED + MORE);
    let refused = program.counts()["guard"];
    // The first datagrams of each flow may be counted sooner, and the last ones are not counted yet.
    assert!((u64::from(MORE) - 256..=u64::from(MORE) + 256).contains(&refused), "{refused}");
    assert!(program.passed(&datagram(vec![0x40; 1_200]), 1_000) <= 1, "nor do larger ones");
    // The source's TCP connections and other sources have their own windows.
    assert_eq!(program.passed(&frame(IPV4, V4::of(TCP).around(tcp(443, SYN))), 1), 1);
    let of_other = V4 { source: [203, 0, 113, 9], ..V4::of(UDP) }.around(udp(443, acknowledgement));
    assert_eq!(program.passed(&frame(IPV4, of_other), 1_000), 1_000);
}
