//! Tests of strict verdicts on ambiguous packets: TCP fragments, header chains that cannot be parsed, datagrams that
//! look like QUIC, and uncounted flows.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{DEST_OPTIONS, FRAGMENT, TCP, UDP};
use integration_test::frames::{
    IPV4, IPV6, SOURCE_V4, SOURCE_V6, Segment, V4, V6, chain, cut, fragment, frame, quic, tcp, udp, udp_from,
};
use integration_test::program::{Program, Room, limit, on_one_cpu, policy};
use netlab::needs_root;
use ratelimit_common::admission::BUDGET_ANY;
use ratelimit_common::layout::Unit;
use ratelimit_policy::desired::{
    Access, Bans, Limit, Mode, Policy, Ports, QuicPorts, Refuse, Rule, Unparsable, WindowForm, slot,
};

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// Returns a strict limit of this amount in five minutes.
fn strict(amount: u64, unit: Unit) -> Limit {
    limit(amount, unit, WindowForm::Strict)
}

fn requests(amount: u64) -> Policy {
    policy(&[strict(amount, Unit::Requests)])
}

/// Returns a rule for one TCP port, with its own name and window.
fn rule(name: &str, port: u16, amount: u64, unit: Unit) -> Rule {
    let of_rule = Limit { slot: slot(name, unit, 60_000_000_000), ..strict(amount, unit) };
    Rule::new(name.into(), Ports { tcp: vec![(port, port)], udp: Vec::new(), other_protocols: false }, vec![of_rule])
}

/// Returns a segment to port 80 at this offset of its connection.
fn segment(at: usize, data: &[u8]) -> Vec<u8> {
    let sequence = u32::try_from(1000 + at).unwrap();
    Segment { sequence, data, options: &[1, 1, 1, 1], ..Segment::to(80, ACK) }.bytes()
}

/// Returns the first fragment of a segment, in IPv4 and IPv6.
fn first_of(bytes: &[u8]) -> [Vec<u8>; 2] {
    [
        frame(IPV4, V4::fragment(TCP, 0, true).around(bytes)),
        frame(IPV6, V6::of(FRAGMENT).around(fragment(TCP, 0, true, bytes))),
    ]
}

/// Returns a later fragment with a header that names this protocol, in IPv4 and IPv6.
fn later_of(protocol: u8) -> [Vec<u8>; 2] {
    [
        frame(IPV4, V4::fragment(protocol, 3, false).around([7; 64])),
        frame(IPV6, V6::of(FRAGMENT).around(fragment(protocol, 3, false, [7; 64]))),
    ]
}

/// Returns a SYN to this port behind `len` destination options.
fn behind_options(len: usize, port: u16) -> Vec<u8> {
    frame(IPV6, V6::of(DEST_OPTIONS).around(chain(len, TCP, tcp(port, SYN))))
}

#[test]
fn each_first_fragment_is_one_request_whatever_begins_in_it() {
    needs_root!();
    let header_alone = cut(segment(0, GET), 24);
    for bytes in [cut(segment(0, GET), 8), header_alone, segment(0, GET), segment(0, &[GET, GET, GET].concat())] {
        for first in first_of(&bytes) {
            let mut program = Program::new(&requests(3));
            assert_eq!(program.passed(&first, 5), 3, "{} bytes of TCP", bytes.len());
            assert_eq!(program.verdict(&first), "over_limit");
        }
    }
}

#[test]
fn a_first_fragment_is_read_for_no_request_and_remembered_as_one_of_its_connection() {
    needs_root!();
    let whole = |at: usize| frame(IPV4, V4::of(TCP).around(segment(at, GET)));
    let [fragment, _] = first_of(&segment(GET.len(), GET));
    let mut program = Program::new(&requests(100));
    assert_eq!(program.passed(&fragment, 4), 4);
    assert_eq!(program.kernel().remembered().unwrap(), [0, 1], "that there was one");
    // The data behind the fragment is judged as the first of its connection.
    assert_eq!(program.verdict(&whole(0)), "within_limit");
    // If the fragment counted as part of the connection, the whole request behind it would be a free retransmission.
    let mut program = Program::new(&requests(3));
    assert_eq!(program.verdict(&whole(0)), "within_limit");
    assert_eq!(program.verdict(&fragment), "within_limit");
    assert_eq!(program.verdict(&whole(GET.len())), "within_limit");
    // A retransmission is not counted, but data in a fragment is counted each time.
    assert_eq!(program.verdict(&whole(GET.len())), "not_counted");
    assert_eq!(program.verdict(&fragment), "over_limit");
}

#[test]
fn a_first_fragment_opens_a_connection_where_it_says_so_or_its_flags_are_cut_off() {
    needs_root!();
    let mut program = Program::new(&policy(&[strict(1, Unit::Connections)]));
    for (bytes, opens) in [(tcp(80, SYN), true), (cut(tcp(80, ACK), 8), true), (tcp(80, ACK), false)] {
        for first in first_of(&bytes) {
            program.advance(3_600_000_000_000);
            let expected = if opens { ["within_limit", "over_limit"] } else { ["not_counted", "not_counted"] };
            assert_eq!([program.verdict(&first), program.verdict(&first)], expected, "{first:02x?}");
        }
    }
}

#[test]
fn a_later_fragment_is_one_request_unless_it_is_certain_that_it_is_not_of_tcp() {
    needs_root!();
    let mut program = Program::new(&requests(2));
    let [tcp_v4, tcp_v6] = later_of(TCP);
    // Reassembly ignores the protocol in a later fragment of IPv6.
    let [udp_v4, udp_v6] = later_of(UDP);
    for counted in [tcp_v4, tcp_v6, udp_v6] {
        program.advance(3_600_000_000_000);
        assert_eq!(program.passed(&counted, 4), 2, "{counted:02x?}");
    }
    program.advance(3_600_000_000_000);
    assert_eq!(program.verdict(&udp_v4), "not_counted");
}

#[test]
fn a_later_fragment_of_tcp_is_held_to_every_rule_that_it_may_belong_to() {
    needs_root!();
    let rules = |web, api, flood| {
        let rules = vec![
            rule("login", 22, 1, Unit::Connections),
            rule("web", 80, web, Unit::Requests),
            rule("api", 8080, api, Unit::Requests),
            rule("flood", 443, flood, Unit::Packets),
        ];
        Policy { rules, ..requests(1) }
    };
    for [later, of_udp] in later_of(TCP).into_iter().zip(later_of(UDP)).map(|(of_tcp, of_udp)| [of_tcp, of_udp]) {
        // The rule with the least room decides, not only the first one that counts volume.
        for (web, api, flood) in [(3, 50, 50), (50, 3, 50), (50, 50, 3)] {
            let mut program = Program::new(&rules(web, api, flood));
            assert_eq!(program.passed(&later, 9), 3, "web {web}, api {api}, flood {flood}");
            assert_eq!(program.verdict(&later), "over_limit");
        }
        let mut program = Program::new(&rules(1, 1, 50));
        if later.len() == of_udp.len() && of_udp[12..14] == [0x08, 0x00] {
            assert_eq!(program.passed(&of_udp, 9), 9, "one of UDP is held to volume alone");
        }
    }
    // A dry run drops nothing, and hides no packet from the next rule.
    let mut trying = rules(50, 3, 50);
    trying.rules[2].mode = Mode::DryRun;
    let mut program = Program::new(&trying);
    assert_eq!(program.passed(&later_of(TCP)[0], 9), 9);
}

#[test]
fn a_fragment_never_bans_where_bans_need_proof() {
    needs_root!();
    let mut policy = requests(1);
    policy.rules[0].bans = Some(Bans { steps_ns: vec![60_000_000_000], forget_ns: 1, needs_proof: true });
    for frame in first_of(&segment(0, GET)).into_iter().chain(later_of(TCP)) {
        let mut program = Program::new(&policy);
        assert_eq!(program.passed(&frame, 9), 1);
        assert_eq!(program.verdict(&frame), "over_limit");
    }
}

#[test]
fn unparsable_packets_are_dropped_unless_the_rule_counts_them() {
    needs_root!();
    let ends_before_its_ports = cut(tcp(80, SYN), 7);
    let unparsable = [vec![behind_options(9, 22), behind_options(9, 80)], first_of(&ends_before_its_ports).to_vec()];
    let [counting, dropping, trying] =
        [(Unparsable::Count, Mode::Enforce), (Unparsable::Drop, Mode::Enforce), (Unparsable::Drop, Mode::DryRun)].map(
            |(unparsable, mode)| {
                let mut policy = policy(&[strict(1, Unit::Connections)]);
                (policy.rules[0].unparsable, policy.rules[0].mode) = (unparsable, mode);
                policy
            },
        );
    for frame in unparsable.concat() {
        let mut program = Program::new(&dropping);
        assert_eq!([program.verdict(&frame), program.verdict(&frame)], ["too_many_headers"; 2]);
        assert_eq!(program.verdict(&behind_options(8, 80)), "within_limit", "nothing was charged for it");
        // The packet path reads this from the policy, so a reload changes it.
        program.apply(&counting);
        program.advance(3_600_000_000_000);
        assert_eq!([program.verdict(&frame), program.verdict(&frame)], ["within_limit", "over_limit"]);
        program.apply(&trying);
        assert_eq!(program.verdict(&frame), "dry_run");
    }
}

#[test]
fn unparsable_packets_go_to_the_first_rule_of_their_source_unless_exempt() {
    needs_root!();
    let nine = behind_options(9, 22);
    let source = std::net::Ipv6Addr::from(SOURCE_V6);
    let own = format!("{source}/128").parse().unwrap();
    let mut of_two = Policy {
        rules: vec![rule("login", 22, 5, Unit::Connections), rule("web", 80, 5, Unit::Connections)],
        ..requests(1)
    };
    of_two.rules[0].from = vec!["2001:db8:ffff::/48".parse().unwrap()];
    of_two.rules[1].unparsable = Unparsable::Count;
    let mut program = Program::new(&of_two);
    assert_eq!(program.verdict(&nine), "within_limit", "the first rule is for others");
    of_two.rules[0].from = vec![own];
    program.apply(&of_two);
    assert_eq!(program.verdict(&nine), "too_many_headers");
    of_two.access = vec![Access::exempt(own)];
    program.apply(&of_two);
    assert_eq!(program.verdict(&nine), "exempt");
}

#[test]
fn on_ports_that_speak_no_quic_each_datagram_is_a_request_whatever_it_looks_like() {
    needs_root!();
    let to = |port: u16, data: &[u8]| frame(IPV4, V4::of(UDP).around(udp(port, data)));
    let mut of_80 = requests(5);
    of_80.rules[0].quic_ports = QuicPorts::new(&[80]).unwrap();
    for (policy, port, is_quic) in
        [(requests(5), 443, true), (requests(5), 80, false), (of_80.clone(), 80, true), (of_80, 443, false)]
    {
        let mut program = Program::new(&policy);
        let initial = [quic(0xc0, 1), vec![0; 1200]].concat();
        assert_eq!(program.verdict(&to(port, &initial)), "within_limit");
        // An acknowledgement by its size; one without the first bits of an Initial; a part of a body.
        let looks_free = [[0x40; 33].as_slice(), &[0xe0; 40], &[0x40; 1200], &[0x40; 34]].map(|data| to(port, data));
        let words: Vec<_> = looks_free.iter().cycle().take(6).map(|frame| program.verdict(frame)).collect();
        let expected = if is_quic {
            ["not_counted"; 6]
        } else {
            ["within_limit", "within_limit", "within_limit", "within_limit", "over_limit", "over_limit"]
        };
        assert_eq!(words, expected, "port {port}, QUIC {is_quic}");
    }
}

#[test]
fn on_ports_that_speak_no_quic_initials_open_nothing_after_the_first_datagram() {
    needs_root!();
    let initial = |port| frame(IPV4, V4::of(UDP).around(udp(port, [quic(0xc0, 1), vec![0; 1200]].concat())));
    let mut program = Program::new(&policy(&[strict(2, Unit::Connections)]));
    let opened = |program: &mut Program, port| {
        program.advance(3_600_000_000_000);
        (0..12).filter(|_| program.verdict(&initial(port)) == "within_limit").count()
    };
    assert_eq!(opened(&mut program, 80), 1);
    assert_eq!(opened(&mut program, 443), 2, "one for each run of eight");
}

#[test]
fn an_initial_behind_another_packet_of_its_datagram_opens_as_one_in_front_does() {
    needs_root!();
    const VERSION_2: u32 = 0x6b33_43cf;
    let mut program = Program::new(&policy(&[strict(2, Unit::Connections)]));
    let mut opened = |first, version, bytes: usize| {
        program.advance(3_600_000_000_000);
        let start = quic(first, version);
        let data = [&start[..], &vec![0; bytes - start.len()]].concat();
        let datagram = frame(IPV4, V4::of(UDP).around(udp(443, data)));
        let words: Vec<_> = (0..24).map(|_| program.verdict(&datagram)).collect();
        (words.iter().filter(|word| **word == "within_limit").count(), words[23])
    };
    // 0-RTT and Handshake of both versions: each run of eight is one connection, and the third run is refused.
    for (first, version) in [(0xd0, 1), (0xe0, 1), (0xe0, VERSION_2), (0xf0, VERSION_2)] {
        assert_eq!(opened(first, version, 1200), (2, "over_limit"), "{first:x} of {version:x}");
        // No server accepts an Initial in such a short datagram. The first one opens the flow.
        assert_eq!(opened(first, version, 1199), (1, "not_counted"), "{first:x} of {version:x}");
    }
    // Nothing follows a Retry or a short header.
    for (first, version) in [(0xf0, 1), (0xc0, VERSION_2), (0x40, 1)] {
        assert_eq!(opened(first, version, 1200), (1, "not_counted"), "{first:x} of {version:x}");
    }
}

#[test]
fn each_request_that_comes_with_a_syn_counts() {
    needs_root!();
    let mut program = Program::new(&policy(&[strict(5, Unit::Requests)]));
    let mut verdict = |requests: usize| {
        program.advance(3_600_000_000_000);
        let data = GET.repeat(requests);
        let bytes = Segment { data: &data, ..Segment::to(80, SYN) }.bytes();
        program.verdict(&frame(IPV4, V4::of(TCP).around(bytes)))
    };
    assert_eq!((verdict(5), verdict(6)), ("within_limit", "over_limit"));
}

#[test]
fn a_guard_drops_urgent_data() {
    const URG: u8 = 0x20;
    needs_root!();
    let mut program = Program::new(&policy(&[strict(5, Unit::Requests)]));
    let urgent = |data| frame(IPV4, V4::of(TCP).around(Segment { data, ..Segment::to(80, ACK | URG) }.bytes()));
    assert_eq!(program.verdict(&urgent(GET)), "guard");
    assert_eq!(program.verdict(&urgent(&[])), "not_counted", "there is none");
}

/// Returns a datagram of its own flow with the short header of a QUIC acknowledgement, which no limit of requests
/// counts.
fn uncounted(number: u32) -> Vec<u8> {
    let [_, b, c, d] = number.to_be_bytes();
    frame(IPV4, V4 { source: [17, b, c, d], ..V4::of(UDP) }.around(udp_from(1024, 443, [0x40; 40])))
}

/// Returns a segment from the middle of TLS in its own connection, which no limit of requests counts.
fn middle_of_tls(number: u32) -> Vec<u8> {
    let [_, b, c, d] = number.to_be_bytes();
    let data = [b"\x16\x03\x03\x00\x30".as_slice(), &[7; 48]].concat();
    let bytes = Segment { data: &data, ..Segment::to(443, ACK) }.bytes();
    frame(IPV4, V4 { source: [18, b, c, d], ..V4::of(TCP) }.around(bytes))
}

#[test]
fn uncounted_flows_and_connections_use_the_new_source_budget() {
    const BUDGET: u32 = 64;
    const FLOOD: u32 = 4000;
    needs_root!();
    on_one_cpu();
    for (of, packet) in [(0, uncounted as fn(u32) -> Vec<u8>), (1, middle_of_tls)] {
        let without_end = Room { insertions_max: BUDGET_ANY, ..Room::default() };
        for (room, most) in [(Room { insertions_max: BUDGET, ..Room::default() }, 12 * BUDGET), (without_end, FLOOD)] {
            let policy = requests(100);
            let mut program = Program::with_room(&policy, room);
            for number in 0..FLOOD {
                assert_eq!(program.verdict(&packet(number)), "not_counted");
            }
            let remembered = u32::try_from(program.kernel().remembered().unwrap()[of]).unwrap();
            let is_overloaded = room.insertions_max == BUDGET;
            assert!(remembered >= BUDGET && remembered <= most, "{remembered} of {FLOOD}");
            assert_eq!(remembered == FLOOD, !is_overloaded);
            assert_eq!(program.shift() > 0, is_overloaded);
            assert_eq!(program.insertions(), 0, "none of them is a source");
        }
    }
}

#[test]
fn a_flow_that_is_counted_is_remembered_under_overload() {
    const BUDGET: u32 = 64;
    needs_root!();
    on_one_cpu();
    let mut program = Program::with_room(
        &policy(&[strict(9, Unit::Connections)]),
        Room { insertions_max: BUDGET, ..Room::default() },
    );
    let of =
        |source_port| frame(IPV4, V4 { source: SOURCE_V4, ..V4::of(UDP) }.around(udp_from(source_port, 80, [7; 9])));
    // A source that was charged twice is known.
    assert_eq!([program.verdict(&of(1)), program.verdict(&of(2))], ["within_limit"; 2]);
    for number in 0..4000 {
        program.passes(&uncounted(number));
    }
    assert!(program.shift() > 3);
    assert_eq!([program.verdict(&of(3)), program.verdict(&of(3))], ["within_limit", "not_counted"]);
}

#[test]
fn refuse_all_refuses_fragments_too() {
    needs_root!();
    let mut policy = requests(2);
    policy.rules[0].refuse = Refuse::All;
    let whole = |at: usize| frame(IPV4, V4::of(TCP).around(segment(at, GET)));
    let mut program = Program::new(&policy);
    assert_eq!((0..4).map(|at| program.passes(&whole(at * GET.len()))).collect::<Vec<_>>(), [true, true, false, false]);
    for frame in [&first_of(&tcp(80, ACK))[0], &later_of(TCP)[0], &later_of(UDP)[0]] {
        assert_eq!(program.verdict(frame), "over_limit");
    }
}
