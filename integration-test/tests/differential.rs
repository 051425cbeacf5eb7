//! Comparison of the real program, the fake datapath, a replay and the naive oracle. Random packets, clock steps and
//! policy changes must give one verdict.
//!
//! Each of them has limits. The oracle, the fake and the replay have no sockets; `verified_sockets.rs` tests what
//! sockets verify. They have no drop cache, so their agreement shows that the drop cache only drops what a window
//! refuses. They forget no source. Under overload they therefore see only the packets that the program admits, and
//! never admit more than a limit. A replay is one rule's dry run: it bans no source, and each connection goes on. Only
//! the program's guard counts connection attempts, so no rule here has a guard.
//!
//! A run prints its seed, and RATELIMITD_SEED repeats the run.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use netlab::needs_root;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use integration_test::clients::Clients;
use integration_test::fake::{Fake, bans, used};
use integration_test::frames::syn;
use integration_test::oracle::{self, Kind, Oracle, Outcome, Packet};
use integration_test::program::{Program, Room, TEN_O_CLOCK, Verdict, events, on_one_cpu};
use integration_test::random::Random;
use integration_test::twins::{random_packet, random_policy, random_policy_to_cache_drops, random_policy_to_overload};
use ipnet::IpNet;
use ratelimit_common::conversation::{Turn, turn};
use ratelimit_common::packet::{self, Head, Parsed, Target, parse};
use ratelimit_common::source::Address;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_datapath::{Datapath as _, KernelEvent, KernelEventKind};
use ratelimit_policy::desired::{Mode, Policy};
use ratelimit_report::replay::{Kind as Input, Replay};

const STEPS: u32 = 30_000;
/// Number of random packets in the comparison of the function that counts a segment's requests with the oracle.
const SEGMENTS: u32 = 100_000;
/// Number of steps between comparisons of the program's counters with the oracle's. The comparison also shows that no
/// packet is lost.
const STEPS_BETWEEN_COUNTS: u32 = 500;
/// Time without a daemon in which packets cannot mistake an old entry for a new one.
const DAEMON_AWAY_MAX_NS: u64 = 20 * 86_400 * SECOND_NS;
/// Number of packets under overload, each with a compared verdict.
const STEPS_UNDER_OVERLOAD: u32 = 8000;

fn random_step_ns(random: &mut Random) -> u64 {
    match random.below(100) {
        0..70 => random.below(SECOND_NS / 50),
        70..90 => random.below(3 * SECOND_NS),
        90..97 => random.below(90 * SECOND_NS),
        97..99 => random.below(20 * 60 * SECOND_NS),
        // Exactly at the edge of every bucket.
        _ => 0,
    }
}

fn seed() -> u64 {
    match std::env::var("RATELIMITD_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into(),
    }
}

/// Returns whether the verdict agrees with the oracle's outcome and rule. For a later fragment that one of several
/// rules refuses, any rule is accepted.
fn is_as_the_oracle_says(verdict: Verdict, outcome: Outcome, packet: &Packet, rule: Option<usize>) -> bool {
    let (word, by) = verdict;
    let rule = if outcome == Outcome::NotProtected { None } else { rule };
    let is_of_several = packet.kind == (Kind::Fragment { may_be_tcp: true }) && outcome == Outcome::OverLimit;
    word == outcome.word() && (by == rule || is_of_several)
}

/// Returns the number of the rule by which the oracle judges a packet.
fn rule_of(oracle: &Oracle, policy: &Policy, packet: &Packet, now: u64) -> Option<usize> {
    let (name, _) = oracle.held_to(packet, now)?;
    policy.rules.iter().position(|rule| rule.name == name)
}

/// Returns whether the drop cache has an entry against this source.
fn is_cached(program: &mut Program, source: IpAddr) -> bool {
    let now = program.now();
    let readings = program.kernel().sources(&[source]).unwrap();
    readings.iter().flatten().any(|source| source.refused_until.is_some_and(|until| now < until))
}

/// Function that returns a random policy in both forms.
type RandomPolicy = fn(&mut Random, (u8, u8), Nanos) -> (Policy, oracle::Policy);

/// Runs the program, the fake and the oracle side by side. Returns the number of packets that were refused by the drop
/// cache.
fn run(random_policy: RandomPolicy, prefixes: (u8, u8), seed: u64) -> u32 {
    println!("RATELIMITD_SEED={seed} prefixes {prefixes:?}");
    let mut random = Random(seed);
    let mut clients = Clients::default();
    let (mut applied, twin) = random_policy(&mut random, prefixes, TEN_O_CLOCK);
    let (mut program, mut fake) = (Program::new(&applied), Fake::new(&applied));
    let mut oracle = Oracle::new(twin);
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut cached, mut told) = (0, Told::default());
    for step in 0..STEPS {
        if random.one_in(300) {
            told.same(&mut program, &mut fake, &applied, seed);
            let (wanted, twin) = random_policy(&mut random, prefixes, program.now());
            program.apply(&wanted);
            fake.apply(&wanted);
            oracle.apply(twin);
            applied = wanted;
        }
        if random.one_in(2) {
            let mut step_ns = random_step_ns(&mut random);
            if random.one_in(200) {
                step_ns = (600 * SECOND_NS) - program.now().0 % (600 * SECOND_NS);
            } else if random.one_in(3000) {
                step_ns = random.below(400 * 86_400 * SECOND_NS);
            }
            program.advance(step_ns);
            fake.set_now(program.now());
            if step_ns > DAEMON_AWAY_MAX_NS {
                // The daemon reads at least twice a minute.
                program.kernel().visit_sources(&mut |_| ()).unwrap();
            }
        }
        let (frame, packet) = random_packet(&mut random, &mut clients);
        let now = program.now();
        let rule = rule_of(&oracle, &applied, &packet, now.0);
        let outcome = oracle.judge(&packet, now.0);
        *expected.entry(outcome.word()).or_default() += 1;
        cached += u32::from(outcome == Outcome::OverLimit && is_cached(&mut program, packet.source));
        let (real, faked) = (program.judged(&frame), fake.judged(&frame));
        assert!(
            real == faked && is_as_the_oracle_says(real, outcome, &packet, rule),
            "seed {seed}, step {step}: {packet:?} at {} is {outcome:?} by {rule:?} to the oracle, {real:?} to the program, {faked:?} to the \
             fake, under {applied:#?}",
            now.0
        );
        if step % STEPS_BETWEEN_COUNTS == 0 || step == STEPS - 1 {
            let mut counts = program.counts();
            counts.retain(|_, count| *count > 0);
            assert_eq!(counts, expected, "seed {seed}, step {step}");
            assert_eq!(fake.counts(), expected, "seed {seed}, step {step}");
            let (real, faked) = (used(program.kernel(), &applied, now), used(fake.datapath(), &applied, now));
            assert_eq!(real, faked, "seed {seed}, step {step}");
            assert_eq!(bans(program.kernel(), &applied), bans(fake.datapath(), &applied), "seed {seed}, step {step}");
            told.same(&mut program, &mut fake, &applied, seed);
        }
    }
    let told = told.by_program.len();
    println!("{STEPS} steps agree, {cached} refused of sources that were cached, {told} events: {expected:?}");
    assert!(told > 500, "hardly anything was told: {told}");
    cached
}

/// Event of a first refusal: source, slot of the limit, use of the verified budget, bucket.
type Refusal = (IpNet, u32, bool, u64);

/// Events reported so far. If the drop cache refuses all packets of a bucket, only the fake reports an event. If it
/// refuses the first ones, the program reports later. Bans are equal, and both report each one.
#[derive(Default)]
struct Told {
    by_program: HashSet<Refusal>,
    by_fake: HashSet<Refusal>,
}

impl Told {
    /// Compares the program's events with the fake's, under the policy that both judge by.
    fn same(&mut self, program: &mut Program, fake: &mut Fake, policy: &Policy, seed: u64) {
        let (counts, fakes) = (program.event_counts(), fake.datapath().read().unwrap().events);
        assert_eq!((counts.lost(), fakes.lost()), (0, 0), "seed {seed}");
        assert_eq!(counts.ban, fakes.ban, "seed {seed}");
        let is_ban = |event: &KernelEvent| matches!(event.kind, KernelEventKind::Ban { .. });
        let (real_bans, real): (Vec<_>, Vec<_>) = program.events().into_iter().partition(is_ban);
        let (fake_bans, faked): (Vec<_>, Vec<_>) = events(fake.datapath()).into_iter().partition(is_ban);
        assert_eq!(real_bans, fake_bans, "seed {seed}: under {policy:#?}");
        let of_bucket = |event: &KernelEvent| {
            let rule = &policy.rules[event.rule.unwrap()];
            let limit = event.limit.and_then(|limit| limit.of(rule)).unwrap();
            let is_dry = rule.mode == Mode::DryRun || !rule.limits.contains(limit);
            assert_eq!(event.kind == KernelEventKind::WouldRefuse, is_dry, "seed {seed}: {event:?}");
            (event.client, limit.slot, event.is_verified, event.time.bucket(limit.bucket_ns).0)
        };
        self.by_fake.extend(faked.iter().map(of_bucket));
        for event in &real {
            let refusal = of_bucket(event);
            assert!(self.by_program.insert(refusal), "seed {seed}: {event:?} is told twice");
            assert!(self.by_fake.contains(&refusal), "seed {seed}: {event:?} is news to the fake, under {policy:#?}");
        }
    }
}

/// Sources that must be known whatever the program samples. A rule has charged them twice, or refused them, and the
/// longest window still contains the bucket of the last charge.
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
        // Drops by the drop cache give no new information.
        if outcome == Outcome::OverLimit && self.charged.contains(&who) {
            self.at.entry(who).or_insert(now);
        }
    }

    fn is_certain(&self, who: (&'static str, IpAddr), now: u64, policy: &Policy) -> bool {
        let limits = policy.rules.iter().flat_map(|rule| &rule.limits);
        let longest_ns = limits.map(|limit| limit.window_ns + limit.bucket_ns).max().unwrap();
        let bucket_ns = policy.rules.iter().find(|rule| rule.name == who.0).unwrap().limits[0].bucket_ns;
        self.at.get(&who).is_some_and(|at| now - (at - at % bucket_ns) <= longest_ns)
    }
}

/// Runs the program and the oracle side by side while forged sources overload the program. The oracle sees no packet
/// that the program does not admit.
fn run_under_overload(prefixes: (u8, u8), seed: u64) {
    println!("RATELIMITD_SEED={seed} prefixes {prefixes:?}, under overload");
    on_one_cpu();
    let mut random = Random(seed);
    let mut clients = Clients::default();
    let (mut wanted, twin) = random_policy_to_overload(&mut random, prefixes, TEN_O_CLOCK, 0);
    let room = Room { max_sources: 32_768, insertions_max: 4, ..Room::default() };
    let (mut program, mut fake) = (Program::with_room(&wanted, room), Fake::new(&wanted));
    let (mut oracle, mut known) = (Oracle::new(twin), Known::default());
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut policies, mut certain, mut overloaded_in) = (0, 0_u32, 0);
    for step in 0..STEPS_UNDER_OVERLOAD {
        if random.one_in(800) {
            policies += 1;
            let (other, twin) = random_policy_to_overload(&mut random, prefixes, program.now(), policies);
            program.apply(&other);
            fake.apply(&other);
            oracle.apply(twin);
            (wanted, known) = (other, Known::default());
        }
        if random.one_in(4) {
            let step_ns = random_step_ns(&mut random);
            program.advance(step_ns);
            fake.set_now(program.now());
        }
        // Most periods are overloaded, with a sampling of up to one in 16.
        let period = program.now().0 >> 27;
        if period != overloaded_in && !random.one_in(4) {
            overloaded_in = period;
            for _ in 0..64 {
                let source = Ipv4Addr::from_bits(0x1000_0000 | u32::try_from(random.below(1 << 28)).unwrap());
                program.passes(&syn(&source.to_string(), 80));
            }
        }
        let (frame, packet) = random_packet(&mut random, &mut clients);
        let now = program.now().0;
        // These may leave state behind or not: each rule samples separately, and so do flows that nothing counts.
        if packet.kind == (Kind::Fragment { may_be_tcp: true }) || oracle.begins_what_nothing_counts(&packet, now) {
            continue;
        }
        let (word, rule) = program.judged(&frame);
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
        assert_eq!(fake.judged(&frame), (word, rule), "{}", at());
        if let Some(who) = who {
            certain += u32::from(program.shift() != 0 && known.is_certain(who, now, &wanted));
            known.learn(who, outcome, now);
        }
    }
    println!(
        "{STEPS_UNDER_OVERLOAD} steps agree, {certain} of sources that must be known under overload: {expected:?}"
    );
    assert!(expected.get("not_admitted").is_some_and(|&count| count > 50), "there was no overload: {expected:?}");
    assert!(certain > STEPS_UNDER_OVERLOAD / 100, "no source was known: {certain}");
}

/// Number of packets in each policy of a replay.
const STEPS_OF_A_REPLAY: u32 = 2000;
/// Number of policies in replays.
const REPLAYS: u32 = 30;

/// Runs the program, the fake, the oracle and a replay side by side, with one rule in dry run.
fn run_replay(prefixes: (u8, u8), seed: u64) {
    println!("RATELIMITD_SEED={seed} prefixes {prefixes:?}, replayed");
    let mut random = Random(seed);
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for _ in 0..REPLAYS {
        let mut clients = Clients::default();
        let (mut policy, mut twin) = random_policy(&mut random, prefixes, TEN_O_CLOCK);
        policy.rules.truncate(1);
        twin.rules.truncate(1);
        (policy.rules[0].mode, policy.rules[0].bans) = (Mode::DryRun, None);
        (twin.rules[0].mode, twin.rules[0].bans) = (oracle::Mode::DryRun, None);
        let (mut program, mut fake) = (Program::new(&policy), Fake::new(&policy));
        let (mut replay, mut oracle) = (Replay::new(&policy, Input::Capture).unwrap(), Oracle::new(twin));
        for step in 0..STEPS_OF_A_REPLAY {
            if random.one_in(2) {
                let step_ns = random_step_ns(&mut random);
                program.advance(step_ns);
                fake.set_now(program.now());
            }
            let (frame, packet) = random_packet(&mut random, &mut clients);
            let now = program.now();
            let outcome = oracle.judge(&packet, now.0);
            *expected.entry(outcome.word()).or_default() += 1;
            let replayed = replay.frame(now, &frame.as_slice()).label();
            let (real, faked) = (program.judged(&frame), fake.judged(&frame));
            let rule = rule_of(&oracle, &policy, &packet, now.0);
            assert!(
                real == faked && replayed == real.0 && is_as_the_oracle_says(real, outcome, &packet, rule),
                "seed {seed}, step {step}: {packet:?} at {} is {outcome:?} to the oracle, {real:?} to the program, {faked:?} to the fake, \
                 {replayed} to a replay, under {policy:#?}",
                now.0
            );
        }
    }
    println!("{REPLAYS} times {STEPS_OF_A_REPLAY} steps agree: {expected:?}");
    assert!(
        expected.get("dry_run").is_some_and(|count| *count > 1000),
        "hardly anything would be refused: {expected:?}"
    );
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
        let closes = matches!(parsed.target, Target::Tcp { segment, .. } if segment.closes());
        let end = |bytes: usize| frame[frame.len() - bytes..].to_vec();
        let (kind, payload) = match parsed.target {
            Target::Tcp { port, opening, segment, is_fragment } => {
                let packet::Segment { source_port, sequence, acknowledged, payload_at, payload_bytes, .. } = segment;
                let payload = frame[payload_at as usize..][..payload_bytes as usize].to_vec();
                (Kind::Tcp { source_port, port, opens: opening, sequence, acknowledged, is_fragment }, payload)
            }
            Target::Udp { port, source_port, quic_initial, payload_bytes, quic_short: _ } => {
                (Kind::Udp { source_port, port, quic_initial }, end(payload_bytes.into()))
            }
            Target::Fragment { may_be_tcp } => (Kind::Fragment { may_be_tcp }, Vec::new()),
            Target::ControlTraffic => (Kind::ControlTraffic, Vec::new()),
            Target::UnparsableHeaders => (Kind::Unparsable, Vec::new()),
            Target::Other => (Kind::Other, Vec::new()),
        };
        assert_eq!(
            Packet { source, destination, bytes: parsed.ip_bytes.into(), kind, payload, is_plain, closes },
            packet,
            "{frame:02x?}"
        );
    }
}

#[test]
fn a_random_segment_begins_as_many_requests_as_the_oracle_says() {
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
        // Data in a SYN is not part of a conversation.
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
fn the_program_and_the_fake_agree_with_the_oracle_where_a_slash_64_is_one_client() {
    needs_root!();
    run(random_policy, (32, 64), seed());
}

#[test]
fn the_program_and_fake_agree_with_the_oracle_for_other_client_prefixes() {
    needs_root!();
    run(random_policy, (24, 128), seed());
}

#[test]
fn drop_cache_drops_are_refused_by_windows_without_the_cache_too() {
    needs_root!();
    let cached = run(random_policy_to_cache_drops, (32, 64), seed());
    assert!(cached > STEPS / 50, "the drop cache dropped hardly anything: {cached}");
}

#[test]
fn the_program_under_overload_agrees_with_the_fake_and_the_oracle_on_what_it_admits() {
    needs_root!();
    for prefixes in [(32, 64), (24, 128)] {
        run_under_overload(prefixes, seed());
    }
}

#[test]
fn a_replay_agrees_with_the_program_the_fake_and_the_oracle() {
    needs_root!();
    for prefixes in [(32, 64), (24, 128)] {
        run_replay(prefixes, seed());
    }
}
