//! Tests of a drop cache that forged sources fill.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use integration_test::frames::flag::ACK;
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, Segment, V4, frame, udp};
use integration_test::numbers;
use integration_test::program::{Program, Room, limit, policy};
use ratelimit_common::admission::BUDGET_ANY;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_common::window::CELLS;
use ratelimit_datapath::Datapath as _;
use ratelimit_policy::desired::{Policy, Ports, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
const LIMIT: u64 = 5;
/// Minutes after which a full window is within the limit again: its five, and the extra one that is kept as a margin.
const FREED_AFTER: u64 = 6;
/// Number of forged sources, far above the capacity of the windows and the drop cache.
const FORGED: u32 = 3000;

fn program(policy: &Policy) -> Program {
    Program::with_room(policy, Room { max_sources: 256, windows_per_source: 1, insertions_max: BUDGET_ANY })
}

fn packets() -> Policy {
    policy(&[limit(LIMIT, Unit::Packets, WindowForm::Strict)])
}

fn datagram(source: Ipv4Addr, port: u16) -> Vec<u8> {
    frame(IPV4, V4 { source: source.octets(), ..V4::of(UDP) }.around(udp(port, [0; 18])))
}

const ATTACKER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const OTHER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

/// Sends packets of forged sources, each of which exceeds the limit. Each round has other sources.
fn flood(program: &mut Program, port: u16, round: u32) {
    for number in 0..FORGED {
        let source = Ipv4Addr::from(0x0b00_0000 + (round << 16) + number);
        program.passed(&datagram(source, port), LIMIT + 2);
    }
}

/// Returns whether a source has a window, and whether the drop cache has an entry against it.
fn known(program: &mut Program, source: Ipv4Addr) -> (bool, bool) {
    let readings = program.kernel().source(IpAddr::from(source)).unwrap();
    let any = |is: fn(&ratelimit_datapath::SourceReading) -> bool| readings.iter().any(is);
    (any(|of| of.window.cells != [0; CELLS]), any(|of| of.refused_until.is_some()))
}

fn not_cached(program: &mut Program) -> u64 {
    program.kernel().read().unwrap().not_cached
}

#[test]
fn a_source_over_its_limit_stays_refused_despite_later_forged_sources() {
    needs_root!();
    let mut program = program(&packets());
    let mine = datagram(ATTACKER, 80);
    assert_eq!(program.passed(&mine, LIMIT + 2), LIMIT);
    assert_eq!(known(&mut program, ATTACKER), (true, true));
    for minute in 1..FREED_AFTER {
        program.advance(MINUTE_NS);
        flood(&mut program, 80, u32::try_from(minute).unwrap());
        assert_eq!(known(&mut program, ATTACKER), (false, true), "in minute {minute}");
        assert_eq!(program.passed(&mine, 50), 0, "in minute {minute}");
    }
    // Not failing closed: the source has its limit again when its window would have freed.
    program.advance(MINUTE_NS);
    assert_eq!(program.passed(&mine, LIMIT + 2), LIMIT);
}

#[test]
fn windows_refuse_when_the_drop_cache_is_full_and_that_is_counted() {
    needs_root!();
    let mut program = program(&packets());
    assert_eq!(not_cached(&mut program), 0);
    flood(&mut program, 80, 1);
    let full = not_cached(&mut program);
    assert!(full > u64::from(FORGED) / 2, "the flood is too small to say anything: {full}");
    // A source that arrives now has its whole limit. Further packets are refused by the window, not by the cache.
    let mine = datagram(ATTACKER, 80);
    assert_eq!(program.passed(&mine, LIMIT), LIMIT);
    assert_eq!(program.passed(&mine, 20), 0);
    assert_eq!(known(&mut program, ATTACKER), (true, false));
    assert_eq!(not_cached(&mut program) - full, 20);
    assert_eq!(program.verdict(&datagram(OTHER, 80)), "within_limit");
    // The entries have expired, and so has the tick of half a second in which they did. The sources are within the
    // limit again.
    program.advance(FREED_AFTER * MINUTE_NS + SECOND_NS);
    assert_eq!(program.passed(&mine, LIMIT + 1), LIMIT);
    assert_eq!(known(&mut program, ATTACKER), (true, true));
    assert_eq!(not_cached(&mut program) - full, 20);
}

#[test]
fn established_connections_are_cached_when_forged_sources_fill_the_cache() {
    needs_root!();
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    let (source_port, port) = (client.local_addr().unwrap().port(), server.local_addr().unwrap().port());
    let mut only = packets();
    only.rules[0].ports = Ports { tcp: vec![(port, port)], udp: vec![(port, port)], other_protocols: false };
    let mut program = program(&only);
    let (sequence, acknowledged) = numbers::of(&client).unwrap();
    let of = |source_port| {
        let segment = Segment { source_port, sequence, acknowledged, ..Segment::to(port, ACK) }.bytes();
        let mut frame = frame(IPV4, V4 { source: Ipv4Addr::LOCALHOST.octets(), ..V4::of(TCP) }.around(segment));
        // Offset behind the Ethernet header. The program ignores the checksum.
        frame[14 + 16..14 + 20].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
        frame
    };
    let until = |program: &mut Program, is_verified: bool| {
        let readings = program.kernel().source(IpAddr::from(Ipv4Addr::LOCALHOST)).unwrap();
        readings.iter().find(|of| of.is_verified == is_verified).and_then(|of| of.refused_until)
    };
    flood(&mut program, port, 1);
    let full = not_cached(&mut program);
    // Packets without a connection, which may be forged.
    assert_eq!(program.passed(&of(1), LIMIT + 3), LIMIT);
    assert_eq!((until(&mut program, false), not_cached(&mut program) - full), (None, 3));
    assert_eq!(program.passed(&of(source_port), LIMIT + 3), LIMIT);
    assert!(until(&mut program, true).is_some());
    assert_eq!(not_cached(&mut program) - full, 3);
    // Later forged packets do not end the entry.
    program.advance(MINUTE_NS);
    flood(&mut program, port, 2);
    assert!(until(&mut program, true).is_some());
    assert_eq!(program.passed(&of(source_port), 20), 0);
}
