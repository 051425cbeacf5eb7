//! Tests of the program with a limit that several hosts share.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use integration_test::fake::Fake;
use integration_test::frames::flag::ACK;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, Segment, V4, frame, syn};
use integration_test::numbers;
use integration_test::program::{Program, TEN_O_CLOCK, limit, policy};
use ipnet::IpNet;
use netlab::needs_root;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verification::Side;
use ratelimit_common::window::Cell;
use ratelimit_datapath::{Datapath as _, KernelStep, LimitAt, Told};
use ratelimit_policy::desired::{Limit, Policy, Ports, Shared, WindowForm};
use ratelimit_policy::fleet::Sum;

const MINUTE_NS: u64 = 60 * SECOND_NS;
const AT: LimitAt = LimitAt { rule: 0, limit: 0, side: Side::Unverified };

fn shared(amount: u64, step_bits: u8) -> Policy {
    let alone = limit(amount, Unit::Connections, WindowForm::Strict);
    policy(&[Limit { shared: Some(Shared { sum: Sum::All, step_bits }), slot: alone.slot ^ 1, ..alone }])
}

fn steps(program: &mut Program) -> Vec<KernelStep> {
    let mut steps = Vec::new();
    while program.kernel().steps(&mut |step| steps.push(step)).unwrap() {}
    steps
}

fn told(client: &str, minutes_ago: u64, units: u64) -> Told {
    let mut bucket = TEN_O_CLOCK.bucket(MINUTE_NS);
    bucket.0 -= minutes_ago;
    Told { client: client.parse().unwrap(), bucket, units }
}

#[test]
fn admissions_of_other_hosts_count_and_expire_with_their_bucket() {
    needs_root!();
    for (source, client) in [("198.51.100.7", "198.51.100.7/32"), ("2001:db8:0:7::9", "2001:db8:0:7::/64")] {
        let mut program = Program::new(&shared(10, 2));
        assert_eq!(program.kernel().tell_others(AT, &[told(client, 0, 9)]).unwrap(), 0, "it has not come yet");
        assert_eq!(program.passed(&syn(source, 80), 3), 3);
        let others = [told(client, 4, 2), told(client, 0, 4), told("198.51.100.8/32", 0, 9)];
        assert_eq!(program.kernel().tell_others(AT, &others).unwrap(), 2);
        assert_eq!(program.passed(&syn(source, 80), 5), 1, "3 here and 6 elsewhere are 9 of 10");
        let own = |cells: &[Cell]| cells.iter().map(|cell| cell.count).sum::<u64>();
        let net: IpNet = client.parse().unwrap();
        assert_eq!(own(&program.kernel().admitted(AT, &[net]).unwrap()[0]), 4, "nothing of the others is ours");
        program.advance(2 * MINUTE_NS);
        assert_eq!(program.passed(&syn(source, 80), 5), 2, "the 2 of four minutes before are over");
        program.advance(4 * MINUTE_NS);
        assert_eq!(program.passed(&syn(source, 80), 12), 8, "of the window 2 are left");
    }
}

#[test]
fn each_step_is_told_once_and_what_sends_little_is_not() {
    needs_root!();
    let mut program = Program::new(&shared(100, 3));
    for last in 0..200 {
        assert_eq!(program.passed(&syn(&format!("10.1.0.{last}"), 80), 7), 7);
    }
    assert_eq!(steps(&mut program), []);
    assert_eq!(program.passed(&syn("10.1.0.7", 80), 20), 20);
    assert_eq!(program.passed(&syn("2001:db8:0:7::9", 80), 9), 9);
    let step = |client: &str| {
        let client = client.parse().unwrap();
        KernelStep { client, at: AT, bucket: TEN_O_CLOCK.bucket(MINUTE_NS) }
    };
    let [v4, v6] = ["10.1.0.7/32", "2001:db8:0:7::/64"].map(step);
    assert_eq!(steps(&mut program), [v4, v4, v4, v6], "at 8, 16 and 24 of 27, and at 8 of 9");
}

#[test]
fn reported_admissions_never_count_for_more_after_a_change_of_unit() {
    needs_root!();
    let mut program = Program::new(&shared(1000, 2));
    let client = "198.51.100.7/32";
    let of = |program: &mut Program| {
        let cells = program.kernel().admitted(AT, &[client.parse().unwrap()]).unwrap();
        let sum = |part: fn(&Cell) -> u64| cells[0].iter().map(part).sum::<u64>();
        (sum(|cell| cell.count), sum(|cell| cell.others))
    };
    let tell = |program: &mut Program, units: u64| {
        assert_eq!(program.kernel().tell_others(AT, &[told(client, 1, units), told(client, 0, units)]).unwrap(), 2);
    };
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 3), 3);
    tell(&mut program, 200);
    assert_eq!(of(&mut program), (3, 400), "units of 2");
    program.kernel().apply(&shared(1024, 2)).unwrap();
    assert_eq!(of(&mut program), (3, 0), "of 4 it would be 1600");
    tell(&mut program, 50);
    program.kernel().apply(&shared(1000, 2)).unwrap();
    assert_eq!(of(&mut program), (3, 100), "200 instead of 400");
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 1000), 797);
}

#[test]
fn a_trial_has_no_smaller_unit_so_that_going_back_from_it_makes_nothing_more() {
    needs_root!();
    let mut program = Program::new(&shared(1000, 2));
    let client = "198.51.100.7/32";
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 3), 3);
    let until = TEN_O_CLOCK.0 + 30 * SECOND_NS;
    program.kernel().apply_until(&shared(500, 2), Nanos(until)).unwrap();
    assert_eq!(program.kernel().tell_others(AT, &[told(client, 0, 300)]).unwrap(), 1, "units of 1");
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 500), 197);
    program.advance(31 * SECOND_NS);
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 1000), 500, "200 here and 300 elsewhere are 500 of 1000");
}

/// Connections of this host to itself, none of which the program has seen yet.
struct Connections {
    port: u16,
    segments: Vec<Vec<u8>>,
    /// Client sides, held open.
    _streams: Vec<TcpStream>,
    _listener: TcpListener,
}

impl Connections {
    fn open(count: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let streams: Vec<_> = (0..count).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()).collect();
        let segment = |stream: &TcpStream| {
            let (sequence, acknowledged) = numbers::of(stream).unwrap();
            let source_port = stream.local_addr().unwrap().port();
            let sent = Segment { source_port, sequence, acknowledged, ..Segment::to(port, ACK) }.bytes();
            let mut frame = frame(IPV4, V4 { source: Ipv4Addr::LOCALHOST.octets(), ..V4::of(TCP) }.around(sent));
            // Offset behind the Ethernet header. The program ignores the checksum.
            frame[14 + 16..14 + 20].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
            frame
        };
        let segments = streams.iter().map(segment).collect();
        Self { port, segments, _streams: streams, _listener: listener }
    }
}

#[test]
fn remote_completed_connections_refuse_attempts_but_cause_no_ban() {
    needs_root!();
    const CLIENT: &str = "127.0.0.1/32";
    let connections = Connections::open(12);
    let mut policy = shared(10, 1);
    policy.rules[0].limits[0].shared = Some(Shared { sum: Sum::Verified, step_bits: 1 });
    policy.rules[0].ports =
        Ports { tcp: vec![(connections.port, connections.port)], udp: Vec::new(), other_protocols: false };
    assert_eq!(policy.rules[0].bans, None);
    let mut program = Program::new(&policy);
    let evidence = LimitAt { side: Side::Evidence, ..AT };
    let sums = |program: &mut Program, at| {
        let cells = program.kernel().admitted(at, &[CLIENT.parse().unwrap()]).unwrap();
        let sum = |part: fn(&Cell) -> u64| cells[0].iter().map(part).sum::<u64>();
        (sum(|cell| cell.count), sum(|cell| cell.others))
    };
    let attempt = syn("127.0.0.1", connections.port);
    assert_eq!(program.passed(&attempt, 3), 3);
    assert_eq!((steps(&mut program), sums(&mut program, evidence)), (vec![], (0, 0)), "nobody has completed one");
    let goes_on = |program: &mut Program, segments: &[Vec<u8>]| segments.iter().filter(|of| program.passes(of)).count();
    for _ in 0..2 {
        assert_eq!(goes_on(&mut program, &connections.segments[..5]), 5);
    }
    assert_eq!(sums(&mut program, evidence), (5, 0), "each once");
    let step = KernelStep { client: CLIENT.parse().unwrap(), at: evidence, bucket: TEN_O_CLOCK.bucket(MINUTE_NS) };
    assert_eq!(steps(&mut program), [step, step], "at 2 and 4 of 5");

    assert_eq!(program.kernel().tell_others(evidence, &[told(CLIENT, 0, 6)]).unwrap(), 1);
    assert_eq!((sums(&mut program, AT), sums(&mut program, evidence)), ((3, 6), (5, 0)), "with its attempts alone");
    assert_eq!(program.passed(&attempt, 5), 1, "3 here and 6 elsewhere are 9 of 10");
    assert_eq!(goes_on(&mut program, &connections.segments), 12, "what is open goes on");
    assert!(sums(&mut program, evidence).0 >= 10);
    assert_eq!(program.passed(&attempt, 5), 0);
    assert_eq!(program.kernel().bans().unwrap(), []);
}

#[test]
fn the_fake_counts_what_others_have_of_evidence_where_the_program_does() {
    let mut fake = Fake::new(&shared(10, 1));
    let passed = |fake: &Fake, times: usize| {
        (0..times).filter(|_| fake.judged(&syn("198.51.100.7", 80)).0 == "within_limit").count()
    };
    assert_eq!(passed(&fake, 3), 3);
    let evidence = LimitAt { side: Side::Evidence, ..AT };
    assert_eq!(fake.datapath().tell_others(evidence, &[told("198.51.100.7/32", 0, 6)]).unwrap(), 1);
    assert_eq!(passed(&fake, 5), 1, "3 here and 6 elsewhere are 9 of 10");
}
