//! The real program against the naive oracle: random packets, clock steps and changes of policy.
//!
//! A run prints its seed; RATELIMITD_SEED repeats it.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use integration_test::clients::{Clients, Sent};
use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{DEST_OPTIONS, FRAGMENT, GRE, ICMP, ICMPV6, NONE, TCP, UDP};
use integration_test::frames::{IPV4, IPV6, Segment, V4, V6, chain, fragment, icmp, quic, syn, tagged, udp_from};
use integration_test::is_skipped;
use integration_test::oracle::{self, Kind, Oracle, Outcome, Packet};
use integration_test::program::{Program, Room, TEN_O_CLOCK, limit_over, on_one_cpu};
use integration_test::random::Random;
use ipnet::IpNet;
use ratelimit_common::conversation::{Turn, turn};
use ratelimit_common::layout::Unit;
use ratelimit_common::packet::{self, Head, Parsed, Target, parse};
use ratelimit_common::source::Address;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_userspace::datapath::Datapath as _;
use ratelimit_userspace::desired::{
    Access, Bans, Grant, Guard, Limit, Mode, Policy, Ports, QuicPorts, Refuse, Rule, Unparsable, WindowForm,
};

const STEPS: u32 = 120_000;
/// Packets of any kind whose segments are held against the rule alone.
const SEGMENTS: u32 = 100_000;
/// After so many steps, the counters of the program are compared with the oracle's, which also shows that no packet is lost.
const STEPS_BETWEEN_COUNTS: u32 = 500;
/// For so long packets take no old note for a new one though no daemon comes by.
const DAEMON_AWAY_MAX_NS: u64 = 20 * 86_400 * SECOND_NS;
/// A segment's timestamps, as most have them.
const TIMESTAMP: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 9];
/// Packets under pressure, of each of which the verdict is asked.
const STEPS_UNDER_PRESSURE: u32 = 8000;
/// Where nobody of [`SOURCES`] is.
const FORGED: &str = "16.0.0.0/4";
const PORTS: [u16; 4] = [80, 443, 22, 8080];
const BUCKETS_NS: [u64; 5] = [SECOND_NS / 5, 2 * SECOND_NS, 10 * SECOND_NS, 60 * SECOND_NS, 600 * SECOND_NS];

/// Prefixes that hold some of the sources, each one other's or not.
const SOURCES: [&str; 7] = [
    "198.51.0.0/16",
    "198.51.100.0/24",
    "198.51.100.2/32",
    "203.0.113.1/32",
    "2001:db8::/32",
    "2001:db8:0:1::/64",
    "2001:db8:0:1::2/128",
];
const DESTINATIONS: [&str; 5] =
    ["192.0.2.0/24", "192.0.2.1/32", "192.0.2.2/32", "2001:db8:ff::/48", "2001:db8:ff::1/128"];
const ENDED_MAX: usize = 3;
const RULES: [&str; 5] = ["web", "api", "login", "premium", "rest"];

/// The policy twice: as the program takes it, and as the oracle does.
fn random_policy(random: &mut Random, prefixes: (u8, u8), now: Nanos) -> (Policy, oracle::Policy) {
    let mut access = Vec::new();
    if random.one_in(3) {
        for prefix in SOURCES.map(net) {
            if random.one_in(4) {
                let grant = random.of(&[Grant::Exempt, Grant::Denied]);
                access.push(Access { prefix, grant, until: random_end(random, now) });
            }
        }
    }
    let mut names = RULES.to_vec();
    let mut rules = Vec::new();
    for _ in 0..=random.below(4) {
        let name = names.swap_remove(random.index(names.len()));
        let mut rule = random_rule(random, name, now);
        // The program looks past so many rules that have ended, which the daemon takes out.
        if rules.iter().filter(|(_, rule): &&(_, Rule)| rule.until.is_some()).count() == ENDED_MAX {
            rule.until = None;
        }
        rules.push((name, rule));
    }
    let twin_of_access = |access: &Access| {
        let grant = match access.grant {
            Grant::Exempt => oracle::Grant::Exempt,
            Grant::Denied => oracle::Grant::Denied,
        };
        (twin_of_net(&access.prefix), grant, access.until.map(|until| until.0))
    };
    let twin = oracle::Policy {
        ipv4_prefix: prefixes.0,
        ipv6_prefix: prefixes.1,
        access: access.iter().map(twin_of_access).collect(),
        rules: rules.iter().map(|(name, rule)| twin_of_rule(name, rule)).collect(),
    };
    let rules = rules.into_iter().map(|(_, rule)| rule).collect();
    (Policy { ipv4_prefix: prefixes.0, ipv6_prefix: prefixes.1, access, rules }, twin)
}

fn random_rule(random: &mut Random, name: &str, now: Nanos) -> Rule {
    let limits = random_limits(random, name, 1, 4);
    let (tcp, udp) = (some_ports(random), some_ports(random));
    let ports = Ports { tcp, udp, other_protocols: random.one_in(4) };
    let (from, to) = (some_prefixes(random, &SOURCES), some_prefixes(random, &DESTINATIONS));
    let bans = random.one_in(4).then(|| Bans {
        steps_ns: (0..=random.below(4)).map(|_| 1 + random.below(200 * SECOND_NS)).collect(),
        forget_ns: random.below(600 * SECOND_NS),
        needs_proof: random.one_in(4),
    });
    Rule {
        from,
        to,
        mode: if random.one_in(8) { Mode::DryRun } else { Mode::Enforce },
        // What the guard refuses is proven by a socket, or of a source that has too many of them: no frame here has one.
        guard: Guard::Off,
        refuse: if random.one_in(3) { Refuse::All } else { Refuse::Excess },
        until: random_end(random, now),
        bans,
        shadow_limits: random_limits(random, name, 0, 3)
            .into_iter()
            .map(|limit| Limit { slot: limit.slot | 1 << 28, ..limit })
            .collect(),
        quic_ports: random.of(&[QuicPorts::DEFAULT, QuicPorts::NONE]),
        unparsable: random.of(&[Unparsable::Drop, Unparsable::Count]),
        ..Rule::new(name.into(), ports, limits)
    }
}

fn random_limits(random: &mut Random, rule: &str, at_least: u64, below: u64) -> Vec<Limit> {
    let mut limits: Vec<Limit> = Vec::new();
    for _ in 0..at_least + random.below(below) {
        let unit = random.of(&[Unit::Connections, Unit::Packets, Unit::Bytes, Unit::Requests, Unit::Requests]);
        let form = random.of(&[
            WindowForm::Strict,
            WindowForm::Strict,
            WindowForm::Lenient,
            WindowForm::Lenient,
            WindowForm::Fixed,
            WindowForm::Gcra,
        ]);
        let amount = match unit {
            Unit::Connections | Unit::Requests => random.below(12),
            Unit::Packets => random.below(25),
            Unit::Bytes => random.below(3000),
        };
        let buckets = match form {
            WindowForm::Strict | WindowForm::Lenient => u8::try_from(5 + random.below(3)).unwrap(),
            WindowForm::Fixed | WindowForm::Gcra => 1,
        };
        let limit = limit_over(amount, unit, form, buckets, random.of(&BUCKETS_NS));
        let rule = u32::try_from(RULES.iter().position(|name| *name == rule).unwrap()).unwrap();
        limits.push(Limit {
            burst: random.one_in(4).then(|| random.below(amount + 1)),
            slot: rule << 20 | u32::from(form == WindowForm::Gcra) << 19 | limit.slot,
            ..limit
        });
    }
    // Two limits of one rule have a window in common only where configurations may say so; program.rs has that case.
    limits.sort_by_key(|limit| limit.slot);
    limits.dedup_by_key(|limit| limit.slot);
    limits
}

fn random_end(random: &mut Random, now: Nanos) -> Option<Nanos> {
    random.one_in(4).then(|| Nanos(now.0 + random.below(200 * SECOND_NS)))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn some_ports(random: &mut Random) -> Vec<(u16, u16)> {
    let mut ranges: Vec<_> = PORTS.into_iter().filter(|_| !random.one_in(3)).map(|port| (port, port)).collect();
    ranges.sort_unstable();
    ranges
}

fn some_prefixes(random: &mut Random, of: &[&str]) -> Vec<IpNet> {
    let is_for_all = !random.one_in(3);
    of.iter().map(|text| net(text)).filter(|_| !is_for_all && random.one_in(2)).collect()
}

fn twin_of_net(net: &IpNet) -> oracle::Prefix {
    (net.addr(), net.prefix_len())
}

fn twin_of_rule(name: &'static str, rule: &Rule) -> oracle::Rule {
    let ports = |ranges: &[(u16, u16)]| ranges.iter().map(|(first, _)| *first).collect();
    oracle::Rule {
        name,
        from: rule.from.iter().map(twin_of_net).collect(),
        to: rule.to.iter().map(twin_of_net).collect(),
        tcp: ports(&rule.ports.tcp),
        udp: ports(&rule.ports.udp),
        other_protocols: rule.ports.other_protocols,
        limits: rule.limits.iter().map(twin_of).collect(),
        shadows: rule.shadow_limits.iter().map(|limit| twin_of_unit(limit.unit)).collect(),
        refuse: match rule.refuse {
            Refuse::Excess => oracle::Refuse::Excess,
            Refuse::All => oracle::Refuse::All,
        },
        guard: match rule.guard {
            Guard::Auto => oracle::Guard::Auto,
            Guard::Off => oracle::Guard::Off,
        },
        mode: match rule.mode {
            Mode::Enforce => oracle::Mode::Enforce,
            Mode::DryRun => oracle::Mode::DryRun,
        },
        until: rule.until.map(|until| until.0),
        bans: rule.bans.as_ref().map(|bans| oracle::Bans {
            steps: bans.steps_ns.clone(),
            forget: bans.forget_ns,
            needs_proof: bans.needs_proof,
        }),
        quic: rule.quic_ports.iter().collect(),
        counts_unparsable: rule.unparsable == Unparsable::Count,
    }
}

fn twin_of(limit: &Limit) -> oracle::Limit {
    oracle::Limit {
        amount: limit.amount,
        unit: twin_of_unit(limit.unit),
        bucket: limit.bucket_ns,
        buckets: limit.buckets.into(),
        form: match limit.form {
            WindowForm::Strict => oracle::Form::Strict,
            WindowForm::Lenient => oracle::Form::Lenient,
            WindowForm::Fixed => oracle::Form::Fixed,
            WindowForm::Gcra => oracle::Form::Leaky,
        },
        burst: limit.burst,
    }
}

const fn twin_of_unit(unit: Unit) -> oracle::Unit {
    match unit {
        Unit::Connections => oracle::Unit::Connections,
        Unit::Packets => oracle::Unit::Packets,
        Unit::Bytes => oracle::Unit::Bytes,
        Unit::Requests => oracle::Unit::Requests,
    }
}

/// A packet twice: as a frame, and as the oracle sees it.
fn random_packet(random: &mut Random, clients: &mut Clients) -> (Vec<u8>, Packet) {
    let port = random.of(&PORTS);
    let at_most = random.of(&[300, 300, 1300]);
    let data = vec![0; random.index(at_most)];
    let source_port = 40_000 + u16::try_from(random.below(4)).unwrap();
    let is_v4 = random.one_in(2);
    let (source, destination) = random_ends(random, is_v4);
    let more = random.one_in(2);
    let offset = 1 + u16::try_from(random.below(100)).unwrap();
    // The kind; what carries it over IPv4, over IPv6; its payload, and what of that is behind the ports.
    let what = random.below(12);
    let (kind, (v4, v6), transport, payload) = match what {
        0..=3 | 10 => {
            let is_fragment = what == 10;
            let sent = clients.next((source, destination, source_port, port), random);
            let Sent { sequence, acknowledged, flags, data } = &sent;
            let segment = Segment {
                source_port,
                sequence: *sequence,
                acknowledged: *acknowledged,
                data,
                options: random.of(&[&[][..], &TIMESTAMP]),
                ..Segment::to(port, *flags)
            };
            let kind = Kind::Tcp {
                source_port,
                port,
                opens: flags & (SYN | ACK) == SYN,
                sequence: if flags & SYN == 0 { *sequence } else { sequence.wrapping_add(1) },
                acknowledged: if flags & ACK == 0 { 0 } else { *acknowledged },
                is_fragment,
            };
            let bytes = segment.bytes();
            match (is_fragment, is_v4) {
                (false, _) => (kind, (V4::of(TCP), TCP), bytes, sent.data),
                (true, true) => (kind, (V4::fragment(TCP, 0, true), TCP), bytes, sent.data),
                (true, false) => (kind, (V4::of(TCP), FRAGMENT), fragment(TCP, 0, true, bytes), sent.data),
            }
        }
        4..=5 => {
            let kind = Kind::Udp { source_port, port, quic_initial: false };
            (kind, (V4::of(UDP), UDP), udp_from(source_port, port, &data), data)
        }
        6 => {
            // An Initial mostly, else a Handshake.
            let first = random.of(&[0xc0, 0xc0, 0xc0, 0xe0]);
            let (kind, long) = (Kind::Udp { source_port, port, quic_initial: first == 0xc0 }, quic(first, 1));
            (kind, (V4::of(UDP), UDP), udp_from(source_port, port, &long), long)
        }
        7 => {
            let of = random.of(&[UDP, TCP]);
            let (v4, v6) = (V4::fragment(of, offset, more), fragment(of, offset, more, &data));
            // Over IPv6 it says nothing.
            let kind = Kind::Fragment { may_be_tcp: of == TCP || !is_v4 };
            (kind, (v4, FRAGMENT), if is_v4 { data } else { v6 }, Vec::new())
        }
        11 if is_v4 => (Kind::Unparsable, (V4::fragment(TCP, 0, true), NONE), vec![0; 7], Vec::new()),
        11 => (Kind::Unparsable, (V4::of(TCP), DEST_OPTIONS), chain(9, TCP, data), Vec::new()),
        8 if random.one_in(2) => (Kind::Essential, (V4::of(ICMP), ICMPV6), icmp(3, 4), Vec::new()),
        8 => (Kind::Other, (V4::of(ICMP), ICMPV6), icmp(if is_v4 { 8 } else { 128 }, 0), Vec::new()),
        _ => (Kind::Other, (V4::of(GRE), GRE), data, Vec::new()),
    };
    let (ether_type, mut packet) = match source {
        IpAddr::V4(source) => (IPV4, V4 { source: source.octets(), ..v4 }.around(transport)),
        IpAddr::V6(source) => (IPV6, V6 { source: source.octets(), ..V6::of(v6) }.around(transport)),
    };
    match destination {
        IpAddr::V4(to) => packet[16..20].copy_from_slice(&to.octets()),
        IpAddr::V6(to) => packet[24..40].copy_from_slice(&to.octets()),
    }
    let tags = [(0x88a8, 5), (0x8100, 6)];
    let first_tag = random.of(&[0, 1, 2, 2, 2]);
    let bytes = packet.len() as u64;
    let is_plain = first_tag == tags.len() && matches!(kind, Kind::Tcp { is_fragment: false, .. } | Kind::Udp { .. });
    (tagged(&tags[first_tag..], ether_type, packet), Packet { source, destination, bytes, kind, payload, is_plain })
}

fn random_ends(random: &mut Random, is_v4: bool) -> (IpAddr, IpAddr) {
    let (sources, destinations) = if is_v4 {
        (["198.51.100.1", "198.51.100.2", "203.0.113.1"], ["192.0.2.1", "192.0.2.2"])
    } else {
        // Two /64, one of them with two addresses.
        (["2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:2::1"], ["2001:db8:ff::1", "2001:db8:ff::2"])
    };
    (random.of(&sources).parse().unwrap(), random.of(&destinations).parse().unwrap())
}

fn random_step_ns(random: &mut Random) -> u64 {
    match random.below(100) {
        0..70 => random.below(SECOND_NS / 50),
        70..90 => random.below(3 * SECOND_NS),
        90..97 => random.below(90 * SECOND_NS),
        97..99 => random.below(20 * 60 * SECOND_NS),
        // Exactly on an edge of every bucket.
        _ => 0,
    }
}

fn seed() -> u64 {
    match std::env::var("RATELIMITD_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into(),
    }
}

/// Runs both side by side.
fn run(prefixes: (u8, u8), seed: u64) {
    println!("RATELIMITD_SEED={seed} prefixes {prefixes:?}");
    let mut random = Random(seed);
    let mut clients = Clients::default();
    let (wanted, twin) = random_policy(&mut random, prefixes, TEN_O_CLOCK);
    let mut program = Program::new(&wanted);
    let mut oracle = Oracle::new(twin.clone());
    let mut applied = twin;
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for step in 0..STEPS {
        if random.one_in(300) {
            let (wanted, twin) = random_policy(&mut random, prefixes, program.now());
            program.apply(&wanted);
            oracle.apply(twin.clone());
            applied = twin;
        }
        if random.one_in(2) {
            let mut step_ns = random_step_ns(&mut random);
            if random.one_in(200) {
                step_ns = (600 * SECOND_NS) - program.now().0 % (600 * SECOND_NS);
            } else if random.one_in(3000) {
                step_ns = random.below(400 * 86_400 * SECOND_NS);
            }
            program.advance(step_ns);
            if step_ns > DAEMON_AWAY_MAX_NS {
                // The daemon reads at least twice a minute.
                program.kernel().visit_sources(&mut |_| ()).unwrap();
            }
        }
        let (frame, packet) = random_packet(&mut random, &mut clients);
        let outcome = oracle.judge(&packet, program.now().0);
        *expected.entry(outcome.word()).or_default() += 1;
        let passes = program.passes(&frame);
        assert_eq!(
            passes,
            outcome.passes(),
            "seed {seed}, step {step}: {packet:?} at {} is {outcome:?} to the oracle, under {applied:#?}",
            program.now().0
        );
        if step % STEPS_BETWEEN_COUNTS == 0 || step == STEPS - 1 {
            let mut counts = program.counts();
            counts.retain(|_, count| *count > 0);
            assert_eq!(counts, expected, "seed {seed}, step {step}");
        }
    }
    println!("{STEPS} steps agree: {expected:?}");
}

/// A policy by which it is known of whom each packet must be counted though the program is pressed: one limit a rule, so that it is
/// remembered as a whole or not at all, and under names and in windows that no policy before had. Its first rule is for forged sources.
fn random_policy_to_press(
    random: &mut Random,
    prefixes: (u8, u8),
    now: Nanos,
    number: u32,
) -> (Policy, oracle::Policy) {
    let (mut policy, mut twin) = random_policy(random, prefixes, now);
    for (rule, twin) in policy.rules.iter_mut().zip(&mut twin.rules) {
        let name: &'static str = format!("{} {number}", rule.name).leak();
        name.clone_into(&mut rule.name);
        rule.shadow_limits.clear();
        rule.limits.truncate(1);
        rule.limits[0].slot |= number << 23;
        *twin = twin_of_rule(name, rule);
    }
    let ports = Ports { tcp: vec![(80, 80)], udp: Vec::new(), other_protocols: false };
    let limit = limit_over(1000, Unit::Connections, WindowForm::Strict, 5, 60 * SECOND_NS);
    let forged = Rule { from: vec![net(FORGED)], ..Rule::new("forged".into(), ports, vec![limit]) };
    twin.rules.insert(0, twin_of_rule("forged", &forged));
    policy.rules.insert(0, forged);
    (policy, twin)
}

/// Who must be known, whatever the program draws: whoever was charged by a rule a second time, or refused by it, no longer ago than
/// the longest window holds it.
#[derive(Default)]
struct Known {
    charged: HashSet<(&'static str, IpAddr)>,
    at: HashMap<(&'static str, IpAddr), u64>,
}

impl Known {
    fn learn(&mut self, who: (&'static str, IpAddr), outcome: Outcome, now: u64) {
        if outcome == Outcome::WithinLimit && !self.charged.insert(who) {
            self.at.insert(who, now);
        }
        // What a note refuses is no news.
        if outcome == Outcome::OverLimit && self.charged.contains(&who) {
            self.at.entry(who).or_insert(now);
        }
    }

    fn is_certain(&self, who: (&'static str, IpAddr), now: u64, policy: &Policy) -> bool {
        let limits = policy.rules.iter().flat_map(|rule| &rule.limits);
        let longest_ns = limits.map(|limit| limit.window_ns + limit.bucket_ns).max().unwrap();
        self.at.get(&who).is_some_and(|at| now - at <= longest_ns)
    }
}

/// Runs both side by side, while forged sources press the program: what it does not admit, the oracle never hears of.
fn run_under_pressure(prefixes: (u8, u8), seed: u64) {
    println!("RATELIMITD_SEED={seed} prefixes {prefixes:?}, under pressure");
    on_one_cpu();
    let mut random = Random(seed);
    let mut clients = Clients::default();
    let (mut wanted, twin) = random_policy_to_press(&mut random, prefixes, TEN_O_CLOCK, 0);
    let room = Room { max_sources: 32_768, insertions_max: 4, ..Room::default() };
    let mut program = Program::with_room(&wanted, room);
    let (mut oracle, mut known) = (Oracle::new(twin), Known::default());
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut policies, mut certain, mut pressed_in) = (0, 0_u32, 0);
    for step in 0..STEPS_UNDER_PRESSURE {
        if random.one_in(800) {
            policies += 1;
            let (other, twin) = random_policy_to_press(&mut random, prefixes, program.now(), policies);
            program.apply(&other);
            oracle.apply(twin);
            (wanted, known) = (other, Known::default());
        }
        if random.one_in(4) {
            let step_ns = random_step_ns(&mut random);
            program.advance(step_ns);
        }
        // Most periods are pressed, to one in 16.
        let period = program.now().0 >> 27;
        if period != pressed_in && !random.one_in(4) {
            pressed_in = period;
            for _ in 0..64 {
                let source = Ipv4Addr::from_bits(0x1000_0000 | u32::try_from(random.below(1 << 28)).unwrap());
                program.passes(&syn(&source.to_string(), 80));
            }
        }
        let (frame, packet) = random_packet(&mut random, &mut clients);
        let now = program.now().0;
        // Of these it cannot be known whether they leave anything behind: each rule draws for itself, and so do flows that nothing counts.
        if packet.kind == (Kind::Fragment { may_be_tcp: true }) || oracle.begins_what_nothing_counts(&packet, now) {
            continue;
        }
        let word = program.verdict(&frame);
        let at = || format!("seed {seed}, step {step}: {packet:?} at {now} under {wanted:#?}");
        *expected.entry(word).or_default() += 1;
        let who = oracle.held_to(&packet, now);
        if word == "not_admitted" {
            assert!(!known.is_certain(who.unwrap(), now, &wanted), "{} is known: {}", packet.source, at());
            let outcome = oracle.clone().judge(&packet, now);
            let may_be = [Outcome::WithinLimit, Outcome::OverLimit, Outcome::DryRun];
            assert!(may_be.contains(&outcome), "not admitted is {outcome:?} to the oracle: {}", at());
            continue;
        }
        let outcome = oracle.judge(&packet, now);
        assert_eq!(word, outcome.word(), "{}", at());
        if let Some(who) = who {
            certain += u32::from(program.shift() != 0 && known.is_certain(who, now, &wanted));
            known.learn(who, outcome, now);
        }
    }
    println!("{STEPS_UNDER_PRESSURE} steps agree, {certain} of sources that must be known while pressed: {expected:?}");
    assert!(expected.get("not_admitted").is_some_and(|&count| count > 50), "there was no pressure: {expected:?}");
    assert!(certain > STEPS_UNDER_PRESSURE / 100, "nobody was known: {certain}");
}

fn address(parsed: Address) -> IpAddr {
    match parsed {
        Address::V4(word) => IpAddr::from(word.to_ne_bytes()),
        Address::V6(words) => {
            let octets = words.map(u64::to_ne_bytes);
            IpAddr::from(<[u8; 16]>::try_from(octets.as_flattened()).unwrap())
        }
    }
}

#[test]
fn a_random_packet_is_to_the_parser_what_it_is_to_the_oracle() {
    let (mut random, mut clients) = (Random(seed()), Clients::default());
    for _ in 0..20_000 {
        let (frame, packet) = random_packet(&mut random, &mut clients);
        let Parsed::Ip(parsed) = parse(&frame.as_slice()) else { panic!("{packet:?} is no IP: {frame:02x?}") };
        let source = address(parsed.source);
        let destination = address(parsed.destination);
        let is_plain = Head::of(&frame.as_slice()).is_some();
        let end = |bytes: usize| frame[frame.len() - bytes..].to_vec();
        let (kind, payload) = match parsed.target {
            Target::Tcp { port, opening, segment, is_fragment } => {
                let packet::Segment { source_port, sequence, acknowledged, payload_at, payload_bytes } = segment;
                let payload = frame[payload_at as usize..][..payload_bytes as usize].to_vec();
                (Kind::Tcp { source_port, port, opens: opening, sequence, acknowledged, is_fragment }, payload)
            }
            Target::Udp { port, source_port, quic_initial, payload_bytes, quic_short: _ } => {
                (Kind::Udp { source_port, port, quic_initial }, end(payload_bytes.into()))
            }
            Target::Fragment { may_be_tcp } => (Kind::Fragment { may_be_tcp }, Vec::new()),
            Target::Essential => (Kind::Essential, Vec::new()),
            Target::Unwalkable => (Kind::Unparsable, Vec::new()),
            Target::Other => (Kind::Other, Vec::new()),
        };
        assert_eq!(
            Packet { source, destination, bytes: parsed.ip_bytes.into(), kind, payload, is_plain },
            packet,
            "{frame:02x?}"
        );
    }
}

#[test]
fn as_many_requests_begin_in_a_random_segment_as_the_oracle_says() {
    let seed = seed();
    println!("RATELIMITD_SEED={seed}");
    let (mut random, mut clients) = (Random(seed), Clients::default());
    let (mut parts, mut known) = (oracle::Parts::default(), HashMap::new());
    let mut counted = 0;
    for step in 0..SEGMENTS {
        let (frame, packet) = random_packet(&mut random, &mut clients);
        let Kind::Tcp { source_port, port, is_fragment: false, .. } = packet.kind else { continue };
        let expected = parts.requests(&packet, TEN_O_CLOCK.0, &[443]);
        let frame = frame.as_slice();
        let Parsed::Ip(packet::Packet { target: Target::Tcp { segment, opening, .. }, .. }) = parse(&frame) else {
            panic!("{packet:?} is no segment: {frame:02x?}");
        };
        // What comes with a SYN is no part of a conversation.
        if segment.payload_bytes == 0 || opening {
            continue;
        }
        let name = (packet.source, packet.destination, source_port, port);
        let before = known.get(&name).copied();
        let Turn { requests, newest, .. } = turn(&frame, &segment, before, None);
        assert_eq!(u64::from(requests), expected, "seed {seed}, step {step}: {before:#?}, {packet:?}");
        known.insert(name, newest);
        counted += requests;
    }
    println!("{counted} requests");
}

#[test]
fn the_program_agrees_with_the_oracle_where_a_slash_64_is_one_client() {
    if is_skipped("the_program_agrees_with_the_oracle_where_a_slash_64_is_one_client") {
        return;
    }
    run((32, 64), seed());
}

#[test]
fn the_program_agrees_with_the_oracle_where_other_prefixes_are_one_client() {
    if is_skipped("the_program_agrees_with_the_oracle_where_other_prefixes_are_one_client") {
        return;
    }
    run((24, 128), seed());
}

#[test]
fn the_program_under_pressure_agrees_with_the_oracle_on_whom_it_admits() {
    if is_skipped("the_program_under_pressure_agrees_with_the_oracle_on_whom_it_admits") {
        return;
    }
    for prefixes in [(32, 64), (24, 128)] {
        run_under_pressure(prefixes, seed());
    }
}
