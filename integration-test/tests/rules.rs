//! Tests of many rules in the kernel: which rule judges a packet, exceptions from limits, bans, and the other units and
//! forms of limits.
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::time::Instant;

use integration_test::frames::proto::UDP;
use integration_test::frames::{IPV4, V4, frame, syn};
use integration_test::program::{Program, limit, limit_over, policy, rule};
use ipnet::IpNet;
use netlab::needs_root;
use ratelimit_common::layout::{BANS_CAPACITY, Fault, RULES_MAX, Unit};
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_datapath::{BansPosition, Datapath as _};
use ratelimit_policy::desired::{Access, Bans, Grant, Limit, Mode, Policy, Rule, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
const AGE_NS: u64 = 3600 * SECOND_NS;

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| net(text)).collect()
}

fn rules(rules: Vec<Rule>) -> Policy {
    Policy { rules, ..policy(&[]) }
}

#[test]
fn the_first_rule_that_matches_judges_alone() {
    needs_root!();
    let premium = Rule { from: nets(&["198.51.100.0/24", "2001:db8:1::/48"]), ..rule("premium", &[80, 443], 5) };
    let mut program = Program::new(&rules(vec![premium, rule("web", &[80, 443], 2), rule("login", &[8443], 1)]));
    for (premium, other) in [("198.51.100.9", "203.0.113.9"), ("2001:db8:1:9::1", "2001:db8:2:9::1")] {
        assert_eq!(program.passed(&syn(premium, 80), 7), 5);
        assert_eq!(program.passed(&syn(other, 443), 7), 2);
        assert_eq!(program.passed(&syn(premium, 8443), 7), 1, "the rule for everyone has a window of its own");
        assert_eq!(program.passed(&syn(other, 8443), 7), 1);
        assert_eq!(program.verdict(&syn(other, 22)), "not_protected");
    }
}

#[test]
fn a_rule_for_an_address_judges_what_is_sent_there_and_nothing_else() {
    needs_root!();
    // Every frame has the destination 192.0.2.1 or 2001:db8::1.
    let here = Rule { to: nets(&["192.0.2.0/28", "2001:db8::1/128"]), ..rule("here", &[80], 1) };
    let there = Rule { to: nets(&["192.0.2.128/25", "2001:db8:ffff::/48"]), ..rule("there", &[80], 0) };
    let mut program = Program::new(&rules(vec![there, here, rule("rest", &[443], 3)]));
    for source in ["198.51.100.9", "2001:db8:1:9::1"] {
        assert_eq!(program.passed(&syn(source, 80), 3), 1);
        assert_eq!(program.passed(&syn(source, 443), 5), 3);
    }
}

#[test]
fn the_maximum_number_of_rules_each_have_their_own_ports_and_counts() {
    needs_root!();
    let first_port = 1000;
    let ports = || (first_port..).take(RULES_MAX);
    let all = ports().map(|port| rule(&format!("r{port}"), &[port], u64::from(port - first_port) + 1)).collect();
    let mut program = Program::new(&rules(all));
    for (port, amount) in ports().zip(1..) {
        assert_eq!(program.passed(&syn("198.51.100.9", port), 70), amount, "port {port}");
    }
}

#[test]
fn a_rule_keeps_its_counters_where_its_place_changes() {
    needs_root!();
    let (a, b) = (rule("a", &[80], 9), rule("b", &[443], 9));
    let mut program = Program::new(&rules(vec![a.clone(), b.clone()]));
    assert_eq!(program.passed(&syn("198.51.100.9", 80), 4), 4);
    assert_eq!(program.passed(&syn("198.51.100.9", 443), 2), 2);
    let c = rule("c", &[8080], 9);
    for (order, admitted) in [
        (vec![b.clone(), a.clone()], vec![2, 4]),
        (vec![c.clone(), b.clone(), a.clone()], vec![0, 2, 4]),
        (vec![a.clone()], vec![4]),
        (vec![c, a], vec![0, 4]),
    ] {
        program.apply(&rules(order));
        assert_eq!(program.admitted_by_rule(), admitted);
    }
}

#[test]
fn the_longest_prefix_grants_and_after_its_end_the_next() {
    needs_root!();
    let mut some = rules(vec![rule("web", &[80], 1)]);
    let mut program = Program::new(&some);
    let until = |minutes: u64| Some(Nanos(program.now().0 + minutes * MINUTE_NS));
    some.access = vec![
        Access { prefix: net("198.51.0.0/16"), grant: Grant::Denied, until: None },
        Access { prefix: net("198.51.100.0/24"), grant: Grant::Exempt, until: until(20) },
        Access { prefix: net("198.51.100.7/32"), grant: Grant::Denied, until: until(10) },
        Access { prefix: net("2001:db8:1::/48"), grant: Grant::Denied, until: until(10) },
    ];
    program.apply(&some);
    let verdicts = |program: &mut Program| {
        ["198.51.100.7", "198.51.100.8", "198.51.1.1", "2001:db8:1:1::1"]
            .map(|source| program.verdict(&syn(source, 80)))
    };
    assert_eq!(verdicts(&mut program), ["denied", "exempt", "denied", "denied"]);
    assert_eq!(program.verdict(&syn("198.51.1.1", 22)), "not_protected", "what no rule judges passes");
    program.advance(10 * MINUTE_NS);
    assert_eq!(verdicts(&mut program), ["exempt", "exempt", "denied", "within_limit"]);
    program.advance(10 * MINUTE_NS);
    assert_eq!(verdicts(&mut program)[..3], ["denied", "denied", "denied"]);
    some.rules[0].mode = Mode::DryRun;
    program.apply(&some);
    assert_eq!(program.verdict(&syn("198.51.1.1", 80)), "dry_run");
}

#[test]
fn a_source_over_its_limit_is_banned_for_longer_each_time_until_its_bans_are_reset() {
    needs_root!();
    let bans = Bans { steps_ns: vec![10 * MINUTE_NS, 60 * MINUTE_NS], forget_ns: 24 * AGE_NS, needs_proof: false };
    let login = Rule { bans: Some(bans), ..rule("login", &[80], 2) };
    let mut program = Program::new(&rules(vec![login.clone(), rule("other", &[443], 9)]));
    for source in ["198.51.100.9", "2001:db8:1:9::1"] {
        for (length_ns, next_after_ns) in
            [(10 * MINUTE_NS, 0), (60 * MINUTE_NS, 0), (60 * MINUTE_NS, 25 * AGE_NS), (10 * MINUTE_NS, 25 * AGE_NS)]
        {
            assert_eq!(program.passed(&syn(source, 80), 2), 2);
            assert_eq!(program.verdict(&syn(source, 80)), "over_limit");
            assert_eq!(program.verdict(&syn(source, 80)), "banned");
            assert_eq!(program.verdict(&syn(source, 443)), "within_limit", "a ban is its rule's");
            program.advance(length_ns - 1);
            assert_eq!(program.verdict(&syn(source, 80)), "banned");
            program.advance(1 + next_after_ns);
        }
    }
    let dry = Rule { mode: Mode::DryRun, ..login };
    program.apply(&rules(vec![dry]));
    assert_eq!(program.passed(&syn("203.0.113.5", 80), 9), 9);
    program.apply(&rules(vec![rule("login", &[80], 20)]));
    assert_eq!(program.verdict(&syn("203.0.113.5", 80)), "within_limit", "a dry run never bans");
}

#[test]
fn six_in_thirty_seconds_by_a_leaky_bucket_are_six_at_once_and_then_one_every_five() {
    needs_root!();
    let six = limit_over(6, Unit::Connections, WindowForm::Gcra, 1, 30 * SECOND_NS);
    let mut program = Program::new(&policy(&[six]));
    for source in ["198.51.100.9", "2001:db8:1:9::1"] {
        assert_eq!(program.passed(&syn(source, 80), 10), 6);
        program.advance(5 * SECOND_NS - 1);
        assert_eq!(program.passed(&syn(source, 80), 10), 0);
        program.advance(1);
        assert_eq!(program.passed(&syn(source, 80), 10), 1);
        program.advance(12 * SECOND_NS);
        assert_eq!(program.passed(&syn(source, 80), 10), 2);
    }
    program.apply(&policy(&[Limit { burst: Some(2), slot: 77, ..six }]));
    assert_eq!(program.passed(&syn("203.0.113.5", 80), 10), 2);
    program.advance(30 * SECOND_NS);
    assert_eq!(program.passed(&syn("203.0.113.5", 80), 10), 2);
}

#[test]
fn a_fixed_window_starts_anew_at_each_edge_of_the_clock() {
    needs_root!();
    let mut program = Program::new(&policy(&[limit_over(5, Unit::Connections, WindowForm::Fixed, 1, 5 * MINUTE_NS)]));
    let syn = syn("198.51.100.9", 80);
    program.advance(5 * MINUTE_NS - 1);
    assert_eq!(program.passed(&syn, 9), 5);
    program.advance(1);
    assert_eq!(program.passed(&syn, 9), 5);
    program.advance(5 * MINUTE_NS - 1);
    assert_eq!(program.passed(&syn, 9), 0);
}

#[test]
fn a_burst_holds_within_each_bucket_whatever_is_within_the_window() {
    needs_root!();
    let limit = Limit { burst: Some(3), ..limit(8, Unit::Connections, WindowForm::Strict) };
    let mut program = Program::new(&policy(&[limit]));
    let syn = syn("198.51.100.9", 80);
    for admitted in [3, 3, 2, 0] {
        assert_eq!(program.passed(&syn, 9), admitted);
        program.advance(MINUTE_NS);
    }
}

#[test]
fn a_rule_that_has_ended_leaves_its_packets_to_the_next() {
    needs_root!();
    let mut program = Program::new(&rules(vec![rule("web", &[80], 1)]));
    let until = Some(Nanos(program.now().0 + MINUTE_NS));
    let partner = Rule { from: nets(&["198.51.100.0/24"]), until, ..rule("partner", &[80], 4) };
    program.apply(&rules(vec![partner, rule("web", &[80], 1)]));
    assert_eq!(program.passed(&syn("198.51.100.9", 80), 9), 4);
    program.advance(MINUTE_NS - 1);
    assert_eq!(program.passed(&syn("198.51.100.8", 80), 9), 4);
    program.advance(1);
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 9), 1);
}

#[test]
fn one_excess_is_one_ban_until_the_source_was_admitted_again() {
    needs_root!();
    let bans = Bans { steps_ns: vec![MINUTE_NS, 10 * MINUTE_NS], forget_ns: 24 * AGE_NS, needs_proof: false };
    let mut program = Program::new(&rules(vec![Rule { bans: Some(bans), ..rule("login", &[80], 2) }]));
    for source in ["198.51.100.9", "2001:db8:1:9::1"] {
        let syn = syn(source, 80);
        assert_eq!(program.passed(&syn, 3), 2);
        assert_eq!(program.verdict(&syn), "banned");
        program.advance(MINUTE_NS);
        for _ in 0..3 {
            assert_eq!(program.verdict(&syn), "over_limit", "the window of before is not free");
        }
        program.advance(5 * MINUTE_NS);
        assert_eq!(program.passed(&syn, 3), 2);
        program.advance(MINUTE_NS);
        assert_eq!(program.verdict(&syn), "banned", "the second in a row is longer");
        program.advance(9 * MINUTE_NS);
        assert_eq!(program.passed(&syn, 3), 2);
    }
}

#[test]
fn a_later_fragment_is_held_to_the_first_rule_that_counts_such() {
    needs_root!();
    let packets = Limit { slot: 77, ..limit(3, Unit::Packets, WindowForm::Strict) };
    let web = Rule { limits: vec![packets], ..rule("web", &[80], 0) };
    let mut program = Program::new(&rules(vec![rule("login", &[22], 9), web.clone()]));
    let fragment = || frame(IPV4, V4::fragment(UDP, 1, true).around([0; 64]));
    assert_eq!(program.passed(&fragment(), 9), 3);
    assert_eq!(program.admitted_by_rule(), [0, 3]);
    program.apply(&rules(vec![rule("login", &[22], 9)]));
    assert_eq!(program.verdict(&fragment()), "not_counted", "no rule counts such: the first for any port says so");
    let until = Some(program.now());
    program.apply(&rules(vec![rule("login", &[22], 9), Rule { until, ..web }]));
    assert_eq!(program.verdict(&fragment()), "not_counted", "nor does one that has ended");
}

/// Returns the number of bans in each part of a visit of all bans.
fn visited(program: &mut Program) -> Vec<usize> {
    let mut parts = Vec::new();
    let mut position = Some(BansPosition::default());
    while let Some(from) = position {
        let mut bans = 0;
        position = program.kernel().visit_bans(from, &mut |_| bans += 1).expect("the kernel does it");
        parts.push(bans);
    }
    parts
}

#[test]
fn the_table_of_bans_makes_room_for_new_ones() {
    needs_root!();
    let banning = |forget_ns| {
        let bans = Bans { steps_ns: vec![MINUTE_NS], forget_ns, needs_proof: false };
        rules(vec![Rule { bans: Some(bans), ..rule("login", &[80], 0) }])
    };
    let mut program = Program::new(&banning(MINUTE_NS));
    let mut frame = syn("20.0.0.0", 80);
    let mut send = |program: &mut Program, sources: std::ops::Range<u32>| {
        for source in sources {
            frame[26..30].copy_from_slice(&(0x1400_0000 + source).to_be_bytes());
            assert!(!program.passes(&frame));
        }
    };
    let banned = |program: &mut Program| program.kernel().bans().expect("the kernel does it").len();
    let tidy = |program: &mut Program| program.kernel().tidy_bans().expect("the kernel does it");
    let all = BANS_CAPACITY;
    send(&mut program, 0..all + 10);
    assert_eq!(banned(&mut program), all as usize);
    let began = Instant::now();
    let parts = visited(&mut program);
    println!("{all} bans visited in parts of {parts:?} in {:?}", began.elapsed());
    assert_eq!(parts.iter().sum::<usize>(), all as usize, "each once");
    assert!(parts.iter().all(|part| *part <= all as usize / 4), "{parts:?}");
    assert_eq!(tidy(&mut program), 0, "those that hold stay, however many");
    let faults = program.kernel().read().expect("the kernel does it").faults;
    assert!(faults.contains(&(Fault::BansV4Insert, 10)), "{faults:?}");
    program.advance(2 * MINUTE_NS);
    assert_eq!(tidy(&mut program), all as usize, "those past their reset go");

    // These bans end long before their reset.
    program.apply(&banning(24 * AGE_NS));
    send(&mut program, all..2 * all);
    program.advance(MINUTE_NS);
    assert_eq!(tidy(&mut program), all as usize / 4, "and where there are many, those that have ended");
    send(&mut program, 2 * all..2 * all + 100);
    assert_eq!(banned(&mut program), 100);
}

#[test]
fn no_charge_fills_a_leaky_bucket_for_longer_than_a_window_more() {
    needs_root!();
    let six = limit_over(6, Unit::Connections, WindowForm::Gcra, 1, 30 * SECOND_NS);
    let mut program = Program::new(&policy(&[six]));
    for _ in 0..3 {
        program.kernel().charge(net("198.51.100.9/32"), 0, u64::MAX).expect("it is charged");
    }
    let syn = syn("198.51.100.9", 80);
    program.advance(35 * SECOND_NS - 1);
    assert_eq!(program.passed(&syn, 3), 0);
    program.advance(1);
    assert_eq!(program.passed(&syn, 3), 1);
}

#[test]
fn an_order_leaves_what_is_kept_of_a_packet_that_may_be_under_way() {
    needs_root!();
    let mut banning = policy(&[limit_over(1, Unit::Connections, WindowForm::Strict, 5, 60 * SECOND_NS)]);
    let bans = Bans { steps_ns: vec![60 * SECOND_NS], forget_ns: 0, needs_proof: false };
    banning.rules[0].bans = Some(bans);
    let mut program = Program::new(&banning);
    assert!(program.passes(&syn("198.51.100.7", 80)));
    let before = program.kernel().kept_of_packets().unwrap();
    assert!(before.iter().any(|byte| *byte != 0), "a packet leaves something");
    program.kernel().charge(net("198.51.100.9/32"), 0, 2).expect("it is charged, and banned");
    assert_eq!(program.kernel().kept_of_packets().unwrap(), before);
    assert_eq!(program.verdict(&syn("198.51.100.9", 80)), "banned");
}
