//! Tests of the drop cache: each packet that an entry drops is counted once, and every change by the daemon ends all
//! entries.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, IPV6, SOURCE_V6, V4, V6, frame, syn, tcp, udp};
use integration_test::program::{Program, Room, limit, policy};
use ratelimit_common::admission::BUDGET_ANY;
use ratelimit_common::drop_cache::{DROPPED_MAX, TICK_BITS, TICK_SHIFT};
use ratelimit_common::layout::{Active, Unit};
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_datapath::Datapath as _;
use ratelimit_policy::desired::{Access, Bans, Mode, Policy, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
const LIMIT: u64 = 5;

fn packets(amount: u64) -> Policy {
    policy(&[limit(amount, Unit::Packets, WindowForm::Strict)])
}

fn connections(amount: u64) -> Policy {
    policy(&[limit(amount, Unit::Connections, WindowForm::Strict)])
}

/// Sources of both families, each with the prefix length of one IPv6 client.
const CLIENTS: [(IpAddr, u8); 3] = [(v4(1), 64), (v6(1), 64), (v6(1), 128)];

const fn v4(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(198, 51, high, low))
}

const fn v6(number: u16) -> IpAddr {
    let mut octets = SOURCE_V6;
    [octets[6], octets[7]] = number.to_be_bytes();
    IpAddr::V6(Ipv6Addr::from_octets(octets))
}

/// Returns packets of one source with separate drop-cache entries: each kind to each port.
fn of_each_kind(source: IpAddr) -> Vec<Vec<u8>> {
    let ports = [80, 443];
    let around = |proto, payload: Vec<u8>| match source {
        IpAddr::V4(source) => frame(IPV4, V4 { source: source.octets(), ..V4::of(proto) }.around(payload)),
        IpAddr::V6(source) => frame(IPV6, V6 { source: source.octets(), ..V6::of(proto) }.around(payload)),
    };
    let of_port = |port| [around(TCP, tcp(port, SYN)), around(TCP, tcp(port, ACK)), around(UDP, udp(port, [0; 4]))];
    ports.into_iter().flat_map(of_port).collect()
}

/// Returns the number of a source's refusals as the daemon reads it. Asserts that reading one source and reading all
/// agree.
fn refused(program: &mut Program, source: IpAddr) -> u64 {
    let readings = program.kernel().source(source).unwrap();
    let [reading] = readings[..] else { panic!("{} windows of {source}", readings.len()) };
    let mut all = Vec::new();
    program.kernel().visit_sources(&mut |of| all.extend((of.prefix == reading.prefix).then_some(of))).unwrap();
    assert_eq!(all, [reading]);
    reading.window.refused.count()
}

#[test]
fn an_entry_counts_what_it_drops_and_the_source_says_so() {
    needs_root!();
    for (source, ipv6_prefix) in CLIENTS {
        let mut program = Program::new(&Policy { ipv6_prefix, ..packets(LIMIT) });
        let frames = of_each_kind(source);
        assert_eq!(program.passed(&frames[0], LIMIT), LIMIT);
        assert_eq!(refused(&mut program, source), 0);
        for round in 1..=5 {
            for (at, frame) in frames.iter().enumerate() {
                let before = program.counts()["over_limit"];
                let sent = 1 + at as u64;
                assert_eq!(program.passed(frame, sent), 0);
                assert_eq!(program.counts()["over_limit"] - before, sent);
                assert_eq!(refused(&mut program, source), program.counts()["over_limit"], "round {round}, frame {at}");
            }
            program.advance(MINUTE_NS);
        }
        // Two windows later the source has been admitted and refused again, and all refusals are still in one count.
        program.advance(10 * MINUTE_NS);
        assert_eq!(program.passed(&frames[0], LIMIT + 7), LIMIT);
        assert_eq!(refused(&mut program, source), program.counts()["over_limit"]);
        let client = program.kernel().source(source).unwrap()[0].prefix;
        assert_eq!(program.kernel().forget(client).unwrap().windows, 1);
        assert_eq!(program.kernel().source(source).unwrap(), []);
        let before = program.counts()["over_limit"];
        assert_eq!(program.passed(&frames[0], LIMIT), LIMIT);
        assert_eq!(refused(&mut program, source), 0);
        assert_eq!(program.passed(&frames[0], 9), 0);
        assert_eq!(refused(&mut program, source), 9);
        assert_eq!(program.counts()["over_limit"] - before, 9);
    }
}

#[test]
fn an_entry_of_one_address_of_ipv6_drops_no_neighbour_and_a_ban_is_cached_too() {
    needs_root!();
    let mut policy = Policy { ipv6_prefix: 128, ..packets(LIMIT) };
    policy.rules[0].bans = Some(Bans { steps_ns: vec![6 * MINUTE_NS], forget_ns: 0, needs_proof: false });
    let mut program = Program::new(&policy);
    let neighbour = |low: u8| {
        let mut octets = SOURCE_V6;
        octets[15] = low;
        frame(IPV6, V6 { source: octets, ..V6::of(TCP) }.around(tcp(80, SYN)))
    };
    assert_eq!(program.passed(&neighbour(1), LIMIT + 9), LIMIT);
    assert_eq!(program.verdict(&neighbour(1)), "banned");
    assert_eq!(program.passed(&neighbour(2), LIMIT), LIMIT);
    program.advance(5 * MINUTE_NS);
    assert_eq!(program.verdict(&neighbour(1)), "banned");
    assert_eq!(program.verdict(&neighbour(3)), "within_limit");
    program.advance(2 * MINUTE_NS);
    assert_eq!(program.verdict(&neighbour(1)), "within_limit");
}

#[test]
fn an_entry_that_has_counted_its_most_goes_on_counting() {
    needs_root!();
    for (source, ipv6_prefix) in CLIENTS {
        let mut program = Program::new(&Policy { ipv6_prefix, ..packets(LIMIT) });
        let syn = &of_each_kind(source)[0];
        assert_eq!(program.passed(syn, LIMIT), LIMIT);
        for sent in [DROPPED_MAX, 1, 1, DROPPED_MAX, 2 * DROPPED_MAX] {
            assert_eq!(program.passed(syn, sent), 0);
            assert_eq!(refused(&mut program, source), program.counts()["over_limit"]);
        }
        assert_eq!(refused(&mut program, source), 4 * DROPPED_MAX + 2);
    }
}

#[test]
fn an_entry_is_not_believed_again_when_the_number_of_its_epoch_comes_again() {
    needs_root!();
    let begun = Active::new(0, 1);
    let later = std::iter::successors(Some(begun), |active| Some(Active::new(0, active.next_epoch()))).skip(1);
    let is_same = |active: &Active| (active.epoch() ^ begun.epoch()) & Active::ENTRY_EPOCH_MASK == 0;
    let changes = 1 + later.take(1000).position(|active| is_same(&active)).unwrap() as u64;
    let mut program = Program::new(&connections(LIMIT));
    let syn = refused_syn(&mut program);
    // No packet of the source arrives meanwhile, which would notice that nothing is cached any more.
    for change in 0..changes {
        program.apply(&connections(1000 + change));
    }
    assert_eq!(program.verdict(&syn), "within_limit", "after {changes} changes");
}

#[test]
fn an_expired_entry_is_not_believed_again_when_its_ticks_come_again() {
    needs_root!();
    let again_after_ns = 1_u64 << (TICK_SHIFT + TICK_BITS);
    let mut program = Program::new(&connections(LIMIT));
    let syn = refused_syn(&mut program);
    for later_ns in [6 * MINUTE_NS, again_after_ns - 6 * MINUTE_NS] {
        program.advance(later_ns);
        // The daemon reads. No packet arrives, which would notice that nothing is cached any more.
        program.kernel().visit_sources(&mut |_| ()).unwrap();
    }
    assert_eq!(program.verdict(&syn), "within_limit");
}

#[test]
fn a_limit_of_bytes_is_cached_where_even_the_shortest_packet_is_over_it() {
    needs_root!();
    // The shortest packet of each family: an IP header and ports.
    for (source, least) in [(v4(1), 28), (v6(1), 48)] {
        let syn = &of_each_kind(source)[0];
        let bytes = u64::try_from(syn.len() - 14).unwrap();
        for (left, is_cached) in [(least - 1, true), (least, false), (0, true)] {
            let mut program = Program::new(&policy(&[limit(2 * bytes + left, Unit::Bytes, WindowForm::Strict)]));
            assert_eq!(program.passed(syn, 3), 2);
            let reading = program.kernel().source(source).unwrap()[0];
            assert_eq!(reading.refused_until.is_some(), is_cached, "{source}, {left} left");
        }
    }
}

#[test]
fn unverified_segments_are_cached_too() {
    needs_root!();
    for source in [v4(1), v6(1)] {
        let mut program = Program::new(&packets(LIMIT));
        let segment = &of_each_kind(source)[1];
        assert_eq!(program.passed(segment, LIMIT), LIMIT);
        let until = |program: &mut Program| program.kernel().source(source).unwrap()[0].refused_until;
        assert_eq!(until(&mut program), None);
        assert_eq!(program.passed(segment, 1), 0);
        assert!(until(&mut program).is_some());
        assert_eq!(program.passed(segment, 20), 0);
        assert_eq!(refused(&mut program, source), 21);
    }
}

#[test]
fn drops_of_an_entry_are_kept_when_another_source_takes_its_place() {
    /// Number of sources with six entries each: more than the cache holds, and fewer than the maps of windows hold.
    const SOURCES: u16 = 300;
    needs_root!();
    let room = Room { max_sources: SOURCES.into(), windows_per_source: 1, insertions_max: BUDGET_ANY };
    let mut program = Program::with_room(&packets(LIMIT), room);
    let sources: Vec<IpAddr> =
        (0..SOURCES).map(|number| if number % 2 == 0 { v4(number) } else { v6(number) }).collect();
    for (number, &source) in sources.iter().enumerate() {
        let frames = of_each_kind(source);
        assert_eq!(program.passed(&frames[0], LIMIT), LIMIT);
        for frame in &frames {
            assert_eq!(program.passed(frame, 3 + number as u64 % 3), 0);
        }
    }
    let of = |number: usize| 6 * (3 + number as u64 % 3);
    let before = sources.iter().enumerate().map(|(number, _)| of(number)).sum::<u64>();
    assert_eq!(program.counts()["over_limit"], before);
    let mut readings = Vec::new();
    program
        .kernel()
        .visit_sources(&mut |reading| readings.push((reading.prefix, reading.window.refused.count())))
        .unwrap();
    assert_eq!(readings.len(), sources.len());
    for (number, source) in sources.iter().enumerate() {
        let all = readings.iter().find(|(prefix, _)| prefix.contains(source)).unwrap().1;
        assert_eq!(all, of(number), "{source}");
    }
}

#[test]
fn an_entry_drops_no_packets_of_other_sources_ports_and_kinds() {
    needs_root!();
    let mut both = connections(LIMIT);
    both.rules.push(integration_test::program::rule("other", &[8080], LIMIT));
    let mut program = Program::new(&both);
    let [first, second] = [syn("198.51.100.1", 80), syn("198.51.100.2", 80)];
    assert_eq!(program.passed(&first, LIMIT + 3), LIMIT);
    assert_eq!(program.verdict(&second), "within_limit");
    assert_eq!(program.verdict(&syn("198.51.100.1", 8080)), "within_limit");
    assert_eq!(program.verdict(&syn("198.51.100.1", 22)), "not_protected");
    let ack = frame(IPV4, V4 { source: [198, 51, 100, 1], ..V4::of(TCP) }.around(tcp(80, ACK)));
    assert_eq!(program.verdict(&ack), "not_counted");
}

/// Returns the SYN of a source that is over its limit of connections, and in the drop cache.
fn refused_syn(program: &mut Program) -> Vec<u8> {
    let syn = syn("198.51.100.1", 80);
    assert_eq!(program.passed(&syn, LIMIT + 3), LIMIT);
    assert_eq!(program.verdict(&syn), "over_limit");
    syn
}

#[test]
fn a_change_by_the_daemon_ends_every_entry() {
    needs_root!();
    type Change = fn(&mut Program);
    let changes: [(&str, Change, &str); 8] = [
        ("the limit is raised", |program| program.apply(&connections(LIMIT + 1)), "within_limit"),
        ("the limit stays", |program| program.apply(&connections(LIMIT)), "over_limit"),
        (
            "the source is exempt",
            |program| {
                let exempt = Access::exempt("198.51.100.0/24".parse().unwrap());
                program.apply(&Policy { access: vec![exempt], ..connections(LIMIT) });
            },
            "exempt",
        ),
        (
            "the rule drops no more",
            |program| {
                let mut dry = connections(LIMIT);
                dry.rules[0].mode = Mode::DryRun;
                program.apply(&dry);
            },
            "dry_run",
        ),
        (
            "no rule protects the port",
            |program| {
                let mut other = connections(LIMIT);
                other.rules[0].ports.tcp = vec![(443, 443)];
                program.apply(&other);
            },
            "not_protected",
        ),
        (
            "another rule is before it",
            |program| {
                let mut two = connections(LIMIT);
                two.rules.insert(0, integration_test::program::rule("first", &[80], LIMIT));
                program.apply(&two);
            },
            "within_limit",
        ),
        (
            "the source is evicted",
            |program| {
                program.kernel().forget("198.51.100.1/32".parse().unwrap()).unwrap();
            },
            "within_limit",
        ),
        (
            "another source is evicted",
            |program| {
                program.kernel().forget("198.51.100.2/32".parse().unwrap()).unwrap();
            },
            "over_limit",
        ),
    ];
    for (what, change, expected) in changes {
        let mut program = Program::new(&connections(LIMIT));
        let syn = refused_syn(&mut program);
        change(&mut program);
        assert_eq!(program.verdict(&syn), expected, "{what}");
    }
}

#[test]
fn a_ban_that_is_lifted_ends_its_cached_drops() {
    needs_root!();
    let mut banning = connections(LIMIT);
    banning.rules[0].bans = Some(Bans { steps_ns: vec![60 * MINUTE_NS], forget_ns: 0, needs_proof: false });
    let mut program = Program::new(&banning);
    let syn = syn("198.51.100.1", 80);
    assert_eq!(program.passed(&syn, LIMIT + 3), LIMIT);
    assert_eq!(program.verdict(&syn), "banned");
    program.advance(20 * MINUTE_NS);
    assert_eq!(program.verdict(&syn), "banned");
    assert_eq!(program.kernel().lift_bans("198.51.100.0/24".parse().unwrap()).unwrap().len(), 1);
    assert_eq!(program.verdict(&syn), "within_limit");
}

#[test]
fn an_entry_ends_with_its_rule_and_with_a_trial() {
    needs_root!();
    // A rule that ends leaves its packets to the next one.
    let mut ending = connections(LIMIT);
    ending.rules.push(integration_test::program::rule("next", &[80], 100));
    let mut program = Program::new(&ending);
    ending.rules[0].until = Some(Nanos(program.now().0 + MINUTE_NS));
    program.apply(&ending);
    let syn = refused_syn(&mut program);
    program.advance(MINUTE_NS);
    assert_eq!(program.verdict(&syn), "within_limit");

    // A stricter trial that ends by itself.
    let mut program = Program::new(&connections(LIMIT + 10));
    let until = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().apply_until(&connections(LIMIT), until).unwrap();
    let syn = refused_syn(&mut program);
    program.advance(MINUTE_NS);
    assert_eq!(program.verdict(&syn), "within_limit");

    // A more generous trial. It admits the source that was refused before, which is refused again after the trial.
    let mut program = Program::new(&connections(LIMIT));
    let syn = refused_syn(&mut program);
    let until = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().apply_until(&connections(LIMIT + 10), until).unwrap();
    assert_eq!(program.passed(&syn, 20), 10);
    program.advance(MINUTE_NS);
    assert_eq!(program.verdict(&syn), "over_limit");
    program.apply(&connections(LIMIT + 11));
    assert_eq!(program.passed(&syn, 20), 1);
}
