//! The real program against the naive oracle: random packets, clock steps and changes of policy.
//!
//! A run prints its seed; RATELIMITD_SEED repeats it.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use integration_test::clients::Clients;
use integration_test::frames::syn;
use integration_test::is_skipped;
use integration_test::oracle::{self, Kind, Oracle, Outcome, Packet};
use integration_test::program::{Program, Room, TEN_O_CLOCK, on_one_cpu};
use integration_test::random::Random;
use integration_test::twins::{random_packet, random_policy, random_policy_to_press};
use ratelimit_common::conversation::{Turn, turn};
use ratelimit_common::packet::{self, Head, Parsed, Target, parse};
use ratelimit_common::source::Address;
use ratelimit_common::time::SECOND_NS;
use ratelimit_userspace::datapath::Datapath as _;
use ratelimit_userspace::desired::Policy;

const STEPS: u32 = 120_000;
/// Packets of any kind whose segments are held against the rule alone.
const SEGMENTS: u32 = 100_000;
/// After so many steps, the counters of the program are compared with the oracle's, which also shows that no packet is lost.
const STEPS_BETWEEN_COUNTS: u32 = 500;
/// For so long packets take no old note for a new one though no daemon comes by.
const DAEMON_AWAY_MAX_NS: u64 = 20 * 86_400 * SECOND_NS;
/// Packets under pressure, of each of which the verdict is asked.
const STEPS_UNDER_PRESSURE: u32 = 8000;

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
                let packet::Segment { source_port, sequence, acknowledged, payload_at, payload_bytes, is_urgent: _ } =
                    segment;
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
