//! Tests of the oracle with the cases that the design's text works out.

use super::part::FLOW_IDLE;
use super::*;

const MINUTE: Nanos = 60 * SECOND;
const TEN_O_CLOCK: Nanos = 29_700_600 * MINUTE;
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

const DESTINATION: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn rule(limits: Vec<Limit>) -> Rule {
    Rule {
        name: "default",
        from: Vec::new(),
        to: Vec::new(),
        tcp: vec![80, 443],
        udp: vec![80, 443],
        other_protocols: false,
        limits,
        shadows: Vec::new(),
        refuse: Refuse::Excess,
        guard: Guard::Off,
        mode: Mode::Enforce,
        until: None,
        bans: None,
        quic: vec![443],
        counts_unparsable: false,
    }
}

fn policy(rules: Vec<Rule>) -> Policy {
    Policy { ipv4_prefix: 32, ipv6_prefix: 64, access: Vec::new(), rules }
}

fn limit(amount: u64, unit: Unit, form: Form) -> Limit {
    Limit { amount, unit, bucket: MINUTE, buckets: 5, form, burst: None, per: Per::Client }
}

const SYN: Packet = Packet {
    source: CLIENT,
    destination: DESTINATION,
    bytes: 40,
    kind: Kind::Tcp { source_port: 4000, port: 80, opens: true, sequence: 1, acknowledged: 0, is_fragment: false },
    payload: Vec::new(),
    is_plain: true,
    closes: false,
};

fn admitted(oracle: &mut Oracle, packet: &Packet, now: Nanos, tries: u64) -> u64 {
    (0..tries).map(|_| u64::from(oracle.judge(packet, now) == Outcome::WithinLimit)).sum()
}

#[test]
fn the_designs_timelines_come_out_as_written() {
    for form in [Form::Strict, Form::Lenient] {
        for (last, expected) in [(100, 100), (300, 250)] {
            let mut oracle = Oracle::new(policy(vec![rule(vec![limit(1000, Unit::Connections, form)])]));
            for (minute, count) in [(0, 250), (2, 500), (4, 250)] {
                assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + minute * MINUTE, count), count);
            }
            assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + 6 * MINUTE, last), expected);
        }
        let mut oracle = Oracle::new(policy(vec![rule(vec![limit(30, Unit::Connections, form)])]));
        let counts = [(45, 13, 13), (46, 7, 7), (47, 11, 10)];
        for (minute, tries, expected) in counts {
            assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + minute * MINUTE, tries), expected);
        }
    }
}

#[test]
fn a_packet_that_one_limit_refuses_is_charged_to_none() {
    let limits = vec![limit(10, Unit::Packets, Form::Strict), limit(100, Unit::Bytes, Form::Strict)];
    let mut oracle = Oracle::new(policy(vec![rule(limits)]));
    assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK, 10), 2);
    oracle.apply(policy(vec![rule(vec![limit(10, Unit::Packets, Form::Strict)])]));
    assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK, 10), 8);
}

#[test]
fn a_flow_opens_with_its_first_datagram_after_silence_and_with_every_ninth_initial() {
    let mut oracle = Oracle::new(policy(vec![rule(vec![limit(100, Unit::Connections, Form::Strict)])]));
    let datagram = |quic_initial| Packet {
        source: CLIENT,
        destination: DESTINATION,
        bytes: 100,
        kind: Kind::Udp { source_port: 4000, port: 443, quic_initial },
        payload: Vec::new(),
        is_plain: true,
        closes: false,
    };
    assert_eq!(oracle.judge(&datagram(false), TEN_O_CLOCK), Outcome::WithinLimit);
    assert_eq!(oracle.judge(&datagram(false), TEN_O_CLOCK + FLOW_IDLE), Outcome::NotCounted);
    assert_eq!(oracle.judge(&datagram(false), TEN_O_CLOCK + 2 * FLOW_IDLE + 1), Outcome::WithinLimit);
    let now = TEN_O_CLOCK + 4 * FLOW_IDLE;
    assert_eq!(admitted(&mut oracle, &datagram(true), now, 24), 3);
}

#[test]
fn a_prefix_is_one_client_and_an_exempt_one_is_none() {
    let mut policy = policy(vec![rule(vec![limit(1, Unit::Packets, Form::Strict)])]);
    policy.ipv4_prefix = 24;
    policy.access = vec![(("198.51.100.8".parse().unwrap(), 32), Grant::Exempt, None)];
    let mut oracle = Oracle::new(policy);
    let from = |source: &str| Packet { source: source.parse().unwrap(), ..SYN };
    assert_eq!(oracle.judge(&from("198.51.100.7"), TEN_O_CLOCK), Outcome::WithinLimit);
    assert_eq!(oracle.judge(&from("198.51.100.9"), TEN_O_CLOCK), Outcome::OverLimit);
    assert_eq!(oracle.judge(&from("198.51.100.8"), TEN_O_CLOCK), Outcome::Exempt);
    assert_eq!(oracle.judge(&from("198.51.101.7"), TEN_O_CLOCK), Outcome::WithinLimit);
}

#[test]
fn dry_run_and_refuse_all_do_as_they_say() {
    let of_one = rule(vec![limit(1, Unit::Connections, Form::Strict)]);
    let mut oracle = Oracle::new(policy(vec![Rule { mode: Mode::DryRun, ..of_one.clone() }]));
    assert_eq!(oracle.judge(&SYN, TEN_O_CLOCK), Outcome::WithinLimit);
    assert_eq!(oracle.judge(&SYN, TEN_O_CLOCK), Outcome::DryRun);
    let ack = Packet {
        kind: Kind::Tcp { source_port: 4000, port: 80, opens: false, sequence: 2, acknowledged: 1, is_fragment: false },
        ..SYN
    };
    assert_eq!(oracle.judge(&ack, TEN_O_CLOCK), Outcome::NotCounted);
    oracle.apply(policy(vec![Rule { refuse: Refuse::All, ..of_one }]));
    assert_eq!(oracle.judge(&ack, TEN_O_CLOCK), Outcome::OverLimit);
}

#[test]
fn six_in_thirty_seconds_leak_one_every_five() {
    let six = Limit { bucket: 30 * SECOND, buckets: 1, ..limit(6, Unit::Connections, Form::Leaky) };
    let mut oracle = Oracle::new(policy(vec![rule(vec![six])]));
    for (now, expected) in [(0, 6), (5 * SECOND - 1, 0), (5 * SECOND, 1), (17 * SECOND, 2)] {
        assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK + now, 10), expected);
    }
}

#[test]
fn a_ban_grows_until_it_is_reset_and_the_first_rule_that_matches_judges() {
    let bans = Some(Bans { steps: vec![MINUTE, 60 * MINUTE], forget: 100 * MINUTE, needs_proof: false });
    let here = vec![("198.51.100.0".parse().unwrap(), 24)];
    let strict = Rule { bans, from: here, ..rule(vec![limit(1, Unit::Connections, Form::Strict)]) };
    let other = Rule { name: "other", ..rule(vec![limit(9, Unit::Connections, Form::Strict)]) };
    let mut oracle = Oracle::new(policy(vec![strict, other]));
    for (minute, expected) in [
        (0, Outcome::WithinLimit),
        (0, Outcome::OverLimit),
        (0, Outcome::Banned),
        (1, Outcome::OverLimit),
        (1, Outcome::OverLimit),
        (6, Outcome::WithinLimit),
        (6, Outcome::OverLimit),
        (65, Outcome::Banned),
        (66, Outcome::WithinLimit),
        (200, Outcome::WithinLimit),
        (200, Outcome::OverLimit),
        (201, Outcome::OverLimit),
    ] {
        assert_eq!(oracle.judge(&SYN, TEN_O_CLOCK + minute * MINUTE), expected, "minute {minute}");
    }
    let outside = Packet { source: "203.0.113.1".parse().unwrap(), ..SYN };
    assert_eq!(oracle.judge(&outside, TEN_O_CLOCK), Outcome::WithinLimit);
}

#[test]
fn a_request_is_a_turn_or_one_of_several_in_a_segment_or_a_datagram() {
    const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
    let mut parts = Parts::default();
    let mut segment = |sequence: u32, acknowledged: u32, payload: &[u8]| {
        let kind = Kind::Tcp { source_port: 4000, port: 80, opens: false, sequence, acknowledged, is_fragment: false };
        parts.requests(&Packet { kind, payload: payload.to_vec(), ..SYN }, TEN_O_CLOCK, &[443])
    };
    // Split in two; retransmitted; the next request, unanswered; answered; answered only with leave to send the body.
    assert_eq!([segment(0, 1, &GET[..9]), segment(9, 1, &GET[9..]), segment(0, 1, GET)], [1, 0, 0]);
    assert_eq!([segment(18, 1, GET), segment(36, 500, b"a body"), segment(42, 525, b"a body")], [1, 1, 0]);
    // The next belongs to the one that was counted without a version. One left out, which arrives late, counts once;
    // three in one segment count thrice.
    assert_eq!([segment(66, 525, GET), segment(48, 525, GET), segment(48, 525, GET)], [0, 1, 0]);
    assert_eq!(segment(84, 525, &[GET, GET, GET].concat()), 3);
    // Far away, so another connection.
    assert_eq!([segment(1 << 30, 525, b"anything"), segment((1 << 30) + 8, 525, b" else")], [1, 0]);
    let mut datagram = |port: u16, payload: &[u8]| {
        let kind = Kind::Udp { source_port: 4000, port, quic_initial: false };
        parts.requests(&Packet { kind, payload: payload.to_vec(), ..SYN }, TEN_O_CLOCK, &[443])
    };
    assert_eq!([datagram(53, &[0; 30]), datagram(53, &[0; 30])], [1, 1]);
    assert_eq!([datagram(443, &[0x40; 30]), datagram(443, &[0x40; 64]), datagram(443, &[0x40; 1001])], [0, 1, 0]);
}

#[test]
fn a_refused_request_shuts_its_connection_for_half_a_second() {
    let limits = vec![limit(1, Unit::Requests, Form::Lenient)];
    let mut oracle = Oracle::new(policy(vec![rule(limits.clone())]));
    let segment = |source_port, sequence, payload: &[u8]| {
        let kind = Kind::Tcp { source_port, port: 80, opens: false, sequence, acknowledged: 1, is_fragment: false };
        Packet { kind, payload: payload.to_vec(), ..SYN }
    };
    let get: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
    assert_eq!(oracle.judge(&segment(4000, 0, get), TEN_O_CLOCK), Outcome::WithinLimit);
    assert_eq!(oracle.judge(&segment(4000, 18, get), TEN_O_CLOCK), Outcome::OverLimit);
    for (packet, before, after) in [
        (segment(4000, 18, b"a body"), Outcome::OverLimit, Outcome::NotCounted),
        (segment(4000, 18, b""), Outcome::NotCounted, Outcome::NotCounted),
        (Packet { is_plain: false, ..segment(4000, 18, b"a body") }, Outcome::NotCounted, Outcome::NotCounted),
    ] {
        let judged = TEN_O_CLOCK + SECOND / 2;
        for (now, expected) in [(TEN_O_CLOCK, before), (judged - 1, before), (judged, after)] {
            assert_eq!(oracle.clone().judge(&packet, now), expected, "{packet:?} at {now}");
        }
    }
    oracle.apply(policy(vec![rule(limits)]));
    assert_eq!(oracle.judge(&segment(4000, 18, b"a body"), TEN_O_CLOCK), Outcome::NotCounted, "another policy");
}

#[test]
fn a_group_is_held_to_its_limit_beside_its_clients() {
    let of_group = Limit { per: Per::Prefix(24, 56), ..limit(5, Unit::Connections, Form::Strict) };
    let mut oracle = Oracle::new(policy(vec![rule(vec![of_group, limit(2, Unit::Connections, Form::Strict)])]));
    let from = |last: u8, third: u8| Packet { source: IpAddr::from([203, 0, third, last]), ..SYN };
    let counts: Vec<u64> = (1..=4).map(|last| admitted(&mut oracle, &from(last, 113), TEN_O_CLOCK, 3)).collect();
    assert_eq!(counts, [2, 2, 1, 0]);
    assert_eq!(admitted(&mut oracle, &from(1, 114), TEN_O_CLOCK, 3), 2, "a neighbour prefix");
    let all = Limit { per: Per::Rule, ..limit(3, Unit::Connections, Form::Strict) };
    let mut oracle = Oracle::new(policy(vec![rule(vec![limit(2, Unit::Connections, Form::Strict), all])]));
    let v6 = Packet { source: "2001:db8::1".parse().expect("an address"), ..SYN };
    assert_eq!(admitted(&mut oracle, &SYN, TEN_O_CLOCK, 3), 2);
    assert_eq!(admitted(&mut oracle, &v6, TEN_O_CLOCK, 3), 1, "both families are one client there");
}
