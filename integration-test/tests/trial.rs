//! Tests of the kernel operations beside applying a policy: trials, bans, forgetting, charging.
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use integration_test::frames::syn;
use integration_test::program::{Program, limit_over, policy, rule};
use integration_test::random::Random;
use ipnet::IpNet;
use netlab::needs_root;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_datapath::{Datapath as _, Removed, Trial};
use ratelimit_policy::desired::{Access, Bans, Grant, Limit, Policy, Rule, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
const SOURCES: [&str; 2] = ["198.51.100.9", "2001:db8:1:9::1"];
const CLIENTS: [&str; 2] = ["198.51.100.9/32", "2001:db8:1:9::/64"];

fn net(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

fn banning(rule: Rule) -> Rule {
    Rule {
        bans: Some(Bans { steps_ns: vec![MINUTE_NS, 10 * MINUTE_NS], forget_ns: 60 * MINUTE_NS, needs_proof: false }),
        ..rule
    }
}

fn denied(prefix: &str) -> Access {
    Access { prefix: net(prefix), grant: Grant::Denied, until: None }
}

/// Returns two policies that differ in everything that a generation has: ports, prefixes, targets, rules.
fn before_and_tried() -> (Policy, Policy) {
    let here = Rule { to: vec![net("192.0.2.1/32")], ..rule("here", &[8080], 0) };
    let before =
        Policy { access: vec![denied("203.0.113.0/24")], rules: vec![here, rule("web", &[80], 9)], ..policy(&[]) };
    let there = Rule { to: vec![net("192.0.2.128/25")], ..rule("there", &[8080], 0) };
    let tried = Policy {
        access: vec![denied("198.51.100.0/24")],
        rules: vec![there, rule("web", &[80, 443], 9), rule("new", &[22], 0)],
        ..policy(&[])
    };
    (before, tried)
}

/// Returns the policy that judges packets: `b`efore the trial, or `t`ried. Panics unless all packets agree.
fn judge(program: &mut Program) -> char {
    let signs = [
        (syn("203.0.113.5", 80), "denied", "within_limit"),
        (syn("198.51.100.5", 80), "within_limit", "denied"),
        (syn("192.0.2.77", 443), "not_protected", "within_limit"),
        (syn("192.0.2.77", 8080), "over_limit", "not_protected"),
        (syn("192.0.2.77", 22), "not_protected", "over_limit"),
    ];
    let words: Vec<_> = signs.iter().map(|(frame, _, _)| program.verdict(frame)).collect();
    for (word, expected) in
        [('b', signs.iter().map(|sign| sign.1).collect::<Vec<_>>()), ('t', signs.iter().map(|sign| sign.2).collect())]
    {
        if words == expected {
            return word;
        }
    }
    panic!("half of each: {words:?}")
}

#[test]
fn an_unconfirmed_trial_ends_by_itself_and_completely() {
    needs_root!();
    let (before, tried) = before_and_tried();
    let mut program = Program::new(&before);
    assert_eq!((judge(&mut program), program.kernel().trial().expect("the kernel does it")), ('b', Trial::None));
    let until = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().apply_until(&tried, until).expect("the kernel does it");
    assert_eq!(
        (judge(&mut program), program.kernel().trial().expect("the kernel does it")),
        ('t', Trial::Running(until))
    );
    assert!(program.kernel().apply_until(&before, until).is_err());
    program.advance(MINUTE_NS - 1);
    assert_eq!(judge(&mut program), 't');
    program.advance(1);
    assert_eq!((judge(&mut program), program.kernel().trial().expect("the kernel does it")), ('b', Trial::Over));
    assert!(!program.kernel().confirm().expect("the kernel does it"));
    assert_eq!(judge(&mut program), 'b');
    program.apply(&before);
    assert_eq!((judge(&mut program), program.kernel().trial().expect("the kernel does it")), ('b', Trial::None));
    assert!(!program.kernel().confirm().expect("the kernel does it"));
}

#[test]
fn confirmation_in_time_keeps_a_trial_and_late_confirmation_does_not() {
    needs_root!();
    let (before, tried) = before_and_tried();
    let mut program = Program::new(&before);
    let until = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().apply_until(&tried, until).expect("the kernel does it");
    program.advance(MINUTE_NS - 1);
    assert!(!program.kernel().confirm().expect("the kernel does it"), "within the margin");
    program.set_now(Nanos(until.0 - SECOND_NS));
    assert!(program.kernel().confirm().expect("the kernel does it"));
    program.advance(10 * MINUTE_NS);
    assert_eq!((judge(&mut program), program.kernel().trial().expect("the kernel does it")), ('t', Trial::None));
    let until = Nanos(program.now().0 + MINUTE_NS);
    program.kernel().apply_until(&before, until).expect("the kernel does it");
    assert_eq!(judge(&mut program), 'b');
    program.apply(&before);
    program.advance(MINUTE_NS);
    assert_eq!(judge(&mut program), 'b', "what is applied ends a trial, and stays");
}

/// Returns the policy with these additional access entries.
fn with(policy: &Policy, more: &[Access]) -> Policy {
    let mut access = [&policy.access, more].concat();
    access.sort_by_key(|of| of.prefix);
    Policy { access, ..policy.clone() }
}

#[test]
fn grants_changed_during_a_trial_hold_before_and_after_its_end() {
    needs_root!();
    let (one, other) = ([denied("203.0.113.0/24"), denied("2001:db8:9::/48")], [denied("198.18.0.0/15")]);
    let exempt = [Access { grant: Grant::Exempt, ..denied("192.0.2.7/32") }];
    let more = CLIENTS.map(denied);
    for (known, tried) in [(&[][..], &[][..]), (&one, &one), (&one, &other), (&[], &other), (&one, &[])] {
        for is_confirmed in [true, false] {
            let with_limit = |amount, access: &[Access]| {
                with(&Policy { rules: vec![rule("web", &[80], amount)], ..policy(&[]) }, access)
            };
            let (before, tried) = (with_limit(100, known), with_limit(200, tried));
            let mut program = Program::new(&before);
            let until = Nanos(program.now().0 + MINUTE_NS);
            program.kernel().apply_until(&tried, until).expect("the kernel does it");
            let verdicts = |program: &mut Program| SOURCES.map(|source| program.verdict(&syn(source, 80)));
            let of_exempt = |program: &mut Program| program.verdict(&syn("192.0.2.7", 80));
            for _ in 0..3 {
                // The miss of each prefix look-up is cached.
                assert_eq!((verdicts(&mut program), of_exempt(&mut program)), (["within_limit"; 2], "within_limit"));
            }
            let put = |program: &mut Program, in_tried: &[&[Access]], in_before: &[&[Access]]| {
                let (tried, before) = (with(&tried, &in_tried.concat()), with(&before, &in_before.concat()));
                program.kernel().apply_access(&tried, &before).expect("the kernel does it");
                assert_eq!(program.kernel().trial().expect("the kernel does it"), Trial::Running(until));
            };
            put(&mut program, &[&more], &[&more]);
            assert_eq!((verdicts(&mut program), of_exempt(&mut program)), (["denied"; 2], "within_limit"));
            put(&mut program, &[], &[]);
            assert_eq!(verdicts(&mut program), ["within_limit"; 2], "and no longer");
            put(&mut program, &[&more, &exempt], &[&more]);
            assert_eq!((verdicts(&mut program), of_exempt(&mut program)), (["denied"; 2], "exempt"));
            if is_confirmed {
                assert!(program.kernel().confirm().expect("the kernel does it"));
            }
            program.advance(MINUTE_NS);
            let after = if is_confirmed { "exempt" } else { "within_limit" };
            assert_eq!((verdicts(&mut program), of_exempt(&mut program)), (["denied"; 2], after));
            let (denied, passes) = if is_confirmed { (&tried, &before) } else { (&before, &tried) };
            for access in &denied.access {
                let source = access.prefix.addr().to_string();
                assert_eq!(program.verdict(&syn(&source, 80)), "denied", "{source}");
            }
            for access in passes.access.iter().filter(|of| !denied.access.contains(of)) {
                let source = access.prefix.addr().to_string();
                assert_eq!(program.verdict(&syn(&source, 80)), "within_limit", "{source}");
            }
            program.apply(&before);
            assert_eq!(verdicts(&mut program), ["within_limit"; 2]);
        }
    }
}

fn low_word(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).expect("32 bits")
}

/// Returns a random prefix of any length that a list may have, in either family.
fn any_prefix(random: &mut Random) -> IpNet {
    let high = random.word();
    let address: IpAddr = if random.one_in(2) {
        IpAddr::from((low_word(high) % 0xd000_0000 + 0x0100_0000).to_be_bytes())
    } else {
        IpAddr::from(((u128::from(high >> 3 | 1 << 61)) << 64 | u128::from(random.word())).to_be_bytes())
    };
    let (shortest, longest) = if address.is_ipv4() { (6, 32) } else { (10, 128) };
    let length = shortest + random.index(longest - shortest + 1);
    IpNet::new(address, u8::try_from(length).expect("128 at most")).expect("a length of its family").trunc()
}

/// Returns a random address within the prefix.
fn any_within(prefix: IpNet, random: &mut Random) -> IpAddr {
    match prefix {
        IpNet::V4(of) => {
            (of.network().to_bits() | low_word(random.word()) & of.hostmask().to_bits()).to_be_bytes().into()
        }
        IpNet::V6(of) => {
            let host = u128::from(random.word()) << 64 | u128::from(random.word());
            (of.network().to_bits() | host & of.hostmask().to_bits()).to_be_bytes().into()
        }
    }
}

#[test]
fn no_listed_source_is_missed_whatever_was_listed_before_or_is_on_trial() {
    needs_root!();
    let mut random = Random(19);
    let web = |listed: &BTreeMap<IpNet, Access>| {
        let access: Vec<_> = listed.values().copied().collect();
        with(&Policy { rules: vec![rule("web", &[80], 1 << 30)], ..policy(&[]) }, &access)
    };
    let (mut listed, mut known) = (BTreeMap::new(), Vec::new());
    let mut program = Program::new(&web(&listed));
    for round in 0..60 {
        for _ in 0..=random.index(4) {
            if !known.is_empty() && random.one_in(2) {
                listed.remove(&random.of(&known));
            } else {
                let prefix = any_prefix(&mut random);
                let grant = random.of(&[Grant::Denied, Grant::Exempt]);
                listed.insert(prefix, Access { prefix, grant, until: None });
                known.push(prefix);
            }
        }
        let wanted = web(&listed);
        let is_on_trial = random.one_in(4);
        if is_on_trial {
            let until = Nanos(program.now().0 + MINUTE_NS);
            program.kernel().apply_until(&wanted, until).expect("the kernel does it");
            let prefix = any_prefix(&mut random);
            listed.insert(prefix, Access { prefix, grant: Grant::Denied, until: None });
            known.push(prefix);
            program.kernel().apply_access(&web(&listed), &web(&listed)).expect("the kernel does it");
        } else {
            program.apply(&wanted);
        }
        for ended in [false, true] {
            if ended && !is_on_trial {
                break;
            }
            if ended {
                program.advance(MINUTE_NS);
            }
            for prefix in known.clone() {
                let source = any_within(prefix, &mut random);
                let longest =
                    listed.iter().filter(|(of, _)| of.contains(&source)).max_by_key(|(of, _)| of.prefix_len());
                let expected = longest.map_or("within_limit", |(_, access)| access.grant.label());
                assert_eq!(program.verdict(&syn(&source.to_string(), 80)), expected, "round {round}: {source}");
            }
        }
    }
}

#[test]
fn clients_within_a_prefix_are_found_and_reset_together() {
    needs_root!();
    let mut program = Program::new(&Policy { rules: vec![banning(rule("login", &[80], 1))], ..policy(&[]) });
    for source in [SOURCES[0], "198.51.100.200", "203.0.113.1", SOURCES[1], "2001:db8:2::1"] {
        assert_eq!(program.passed(&syn(source, 80), 3), 1);
    }
    let nets = |of: &[&str]| of.iter().map(|text| net(text)).collect::<Vec<_>>();
    for (prefix, expected) in [
        ("198.51.100.0/24", nets(&["198.51.100.9/32", "198.51.100.200/32"])),
        ("198.51.100.9/32", nets(&["198.51.100.9/32"])),
        ("198.51.101.0/24", nets(&[])),
        ("2001:db8::/32", nets(&["2001:db8:1:9::/64", "2001:db8:2::/64"])),
        ("2001:db8:1:9::7/128", nets(&["2001:db8:1:9::/64"])),
    ] {
        assert_eq!(program.kernel().clients(net(prefix)).expect("the kernel does it"), expected, "{prefix}");
    }
    let clients = nets(&["198.51.100.9/32", "198.51.100.200/32", "2001:db8:1:9::/64"]);
    let removed = program.kernel().forget_all(&clients).expect("the kernel does it");
    assert_eq!(removed, Removed { windows: 3, limits: 3, bans: 3 });
    for (source, passes) in [(SOURCES[0], 1), ("198.51.100.200", 1), ("203.0.113.1", 0), (SOURCES[1], 1)] {
        assert_eq!(program.passed(&syn(source, 80), 3), passes, "{source}");
    }
}

#[test]
fn bans_are_listed_by_rule_and_lifted_by_prefix() {
    needs_root!();
    let mut program = Program::new(&Policy {
        rules: vec![rule("other", &[443], 9), banning(rule("login", &[80], 1))],
        ..policy(&[])
    });
    for source in SOURCES {
        assert_eq!(program.passed(&syn(source, 80), 3), 1);
    }
    let bans = program.kernel().bans().expect("the kernel does it");
    let found: Vec<_> = bans.iter().map(|ban| (ban.client, ban.rule, ban.step)).collect();
    assert_eq!(found, CLIENTS.map(|client| (net(client), 1, 1)));
    // The clock is that of the last timer tick, which tests stop.
    assert!(bans.iter().all(|ban| ban.until == Nanos(program.now().0 + MINUTE_NS)));
    assert_eq!(program.kernel().lift_bans(net("198.51.100.0/25")).expect("the kernel does it"), bans[..1]);
    assert_eq!(program.kernel().bans().expect("the kernel does it"), bans[1..]);
    assert_eq!(program.verdict(&syn(SOURCES[0], 80)), "over_limit", "the window stays, and bans anew");
    assert_eq!(program.verdict(&syn(SOURCES[0], 80)), "banned");
    assert_eq!(program.kernel().bans().expect("the kernel does it")[0].step, 1);
    program.advance(MINUTE_NS);
    assert!(program.kernel().bans().expect("the kernel does it").is_empty());
}

#[test]
fn bans_are_counted_by_rule_as_they_begin_and_another_rule_begins_at_none() {
    needs_root!();
    let rules = |names: [&str; 2]| Policy {
        rules: vec![banning(rule(names[0], &[443], 0)), banning(rule(names[1], &[80], 1))],
        ..policy(&[])
    };
    let begun = |program: &mut Program| program.kernel().read().expect("the kernel does it").bans_begun;
    let mut program = Program::new(&rules(["other", "login"]));
    assert_eq!(begun(&mut program), [0, 0]);
    for source in SOURCES {
        assert_eq!(program.passed(&syn(source, 80), 9), 1);
    }
    assert_eq!(begun(&mut program), [0, CLIENTS.len() as u64], "what a ban drops begins none");
    program.advance(MINUTE_NS);
    assert_eq!(program.passed(&syn(SOURCES[1], 80), 9), 0);
    assert_eq!(
        begun(&mut program),
        [0, CLIENTS.len() as u64],
        "a source that was not admitted since is banned for nothing new"
    );
    program.advance(6 * MINUTE_NS);
    assert_eq!(program.passed(&syn(SOURCES[0], 80), 9), 1);
    program.kernel().charge(net(CLIENTS[1]), 1, 4).expect("it is charged");
    assert_eq!(begun(&mut program), [0, 2 + CLIENTS.len() as u64], "anew, and by an application's charge");
    let mut swapped = rules(["other", "login"]);
    swapped.rules.swap(0, 1);
    program.apply(&swapped);
    assert_eq!(begun(&mut program), [2 + CLIENTS.len() as u64, 0], "a rule keeps its count with its name");
    program.apply(&rules(["third", "fourth"]));
    program.apply(&rules(["fifth", "sixth"]));
    program.apply(&rules(["login", "other"]));
    assert_eq!(begun(&mut program), [0, 0]);
}

#[test]
fn a_client_that_is_reset_counts_from_zero_and_its_neighbour_does_not() {
    needs_root!();
    let mut program = Program::new(&Policy { rules: vec![banning(rule("login", &[80], 1))], ..policy(&[]) });
    for (source, neighbour, client) in
        [(SOURCES[0], "198.51.100.8", CLIENTS[0]), (SOURCES[1], "2001:db8:1:8::1", CLIENTS[1])]
    {
        for sender in [source, neighbour] {
            assert_eq!(program.passed(&syn(sender, 80), 3), 1);
        }
        let removed = program.kernel().forget(net(client)).expect("the kernel does it");
        assert_eq!(removed, Removed { windows: 1, limits: 1, bans: 1 });
        assert_eq!(program.passed(&syn(source, 80), 3), 1);
        assert_eq!(program.verdict(&syn(neighbour, 80)), "banned");
    }
}

#[test]
fn application_charges_count_like_packets() {
    needs_root!();
    for form in [WindowForm::Strict, WindowForm::Fixed, WindowForm::Gcra] {
        let buckets = if form == WindowForm::Strict { 5 } else { 1 };
        let limit = limit_over(5, Unit::Connections, form, buckets, MINUTE_NS);
        let mut program = Program::new(&policy(&[limit]));
        for (source, client) in SOURCES.into_iter().zip(CLIENTS) {
            program.kernel().charge(net(client), 0, 3).expect("it is charged");
            assert_eq!(program.passed(&syn(source, 80), 9), 2, "{form:?}");
            program.kernel().charge(net(client), 0, 5).expect("it is charged");
            let waits = if form == WindowForm::Gcra { MINUTE_NS } else { 0 };
            program.advance(waits);
            assert_eq!(program.passed(&syn(source, 80), 9), 0, "{form:?}: ten were charged");
            program.advance(6 * MINUTE_NS);
            assert_eq!(program.passed(&syn(source, 80), 9), 5, "{form:?}");
            program.advance(6 * MINUTE_NS);
        }
    }
}

#[test]
fn more_than_can_be_counted_is_charged_as_much_as_can_be_and_gone_with_the_window() {
    needs_root!();
    for form in [WindowForm::Strict, WindowForm::Fixed] {
        let buckets = if form == WindowForm::Strict { 5 } else { 1 };
        let mut program = Program::new(&policy(&[limit_over(5, Unit::Connections, form, buckets, MINUTE_NS)]));
        for (source, client) in SOURCES.into_iter().zip(CLIENTS) {
            for amount in [4, u64::MAX, 1, u64::MAX] {
                program.kernel().charge(net(client), 0, amount).expect("it is charged");
            }
            assert_eq!(program.passed(&syn(source, 80), 3), 0, "{form:?}");
            program.advance(6 * MINUTE_NS);
            assert_eq!(program.passed(&syn(source, 80), 9), 5, "{form:?}");
        }
    }
}

#[test]
fn a_client_that_an_application_charges_over_the_limit_is_banned() {
    needs_root!();
    let mut program = Program::new(&Policy {
        rules: vec![rule("other", &[443], 9), banning(rule("login", &[80], 3))],
        ..policy(&[])
    });
    for (source, client) in SOURCES.into_iter().zip(CLIENTS) {
        program.kernel().charge(net(client), 1, 3).expect("it is charged");
        assert_eq!(
            program.kernel().forget(net(client)).expect("the kernel does it"),
            Removed { windows: 1, limits: 1, bans: 0 }
        );
        program.kernel().charge(net(client), 1, 4).expect("it is charged");
        assert_eq!(program.verdict(&syn(source, 80)), "banned");
        assert_eq!(program.verdict(&syn(source, 443)), "within_limit");
        program.kernel().charge(net(client), 1, 4).expect("it is charged");
        assert!(program.kernel().bans().expect("the kernel does it").iter().all(|ban| (ban.rule, ban.step) == (1, 1)));
    }
    assert!(program.kernel().charge(net(CLIENTS[0]), 2, 1).is_err());
}

#[test]
fn shadow_limits_count_beside_the_others_and_drop_nothing() {
    needs_root!();
    let shadow = |amount: u64, form, slot| Limit {
        slot,
        ..limit_over(amount, Unit::Connections, form, if form == WindowForm::Strict { 5 } else { 1 }, MINUTE_NS)
    };
    let shadow_limits =
        vec![shadow(2, WindowForm::Strict, 101), shadow(9, WindowForm::Strict, 102), shadow(3, WindowForm::Gcra, 103)];
    let mut program =
        Program::new(&Policy { rules: vec![Rule { shadow_limits, ..rule("web", &[80], 5) }], ..policy(&[]) });
    for source in SOURCES {
        assert_eq!(program.passed(&syn(source, 80), 10), 5);
        let windows = program.kernel().source(source.parse().expect("an address")).expect("they are read");
        let refused = |slot| windows.iter().find(|of| of.slot == slot).map(|of| of.window.refused.count());
        assert_eq!([101, 102, 103].map(refused), [Some(8), Some(1), Some(7)]);
        program.kernel().charge(net(CLIENTS[usize::from(source.contains(':'))]), 0, 1).expect("it is charged");
    }
}

#[test]
fn no_counter_is_lost_where_rules_come_and_go() {
    needs_root!();
    let mut program = Program::new(&Policy { rules: vec![rule("first", &[80], 2)], ..policy(&[]) });
    assert_eq!(program.passed(&syn(SOURCES[0], 80), 5), 2);
    // More names than there are rows.
    for at in 0..300 {
        program.apply(&Policy { rules: vec![rule(&format!("r{at}"), &[80], 2)], ..policy(&[]) });
        assert_eq!(program.passed(&syn(SOURCES[0], 80), 3), 2);
    }
    let counts = program.counts();
    assert_eq!((counts["within_limit"], counts["over_limit"]), (602, 303));
}
