//! Tests of floods with forged sources. Known sources are counted exactly, sources over the limit stay refused, and the
//! maps grow no more than their budget allows.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, padded, tcp};
use integration_test::lab::{CLIENTS, Lab, SERVER, number, packets};
use integration_test::program::{Program, Room, TEN_O_CLOCK, limit, on_one_cpu, policy};
use integration_test::random::Random;
use netlab::{Child, PacketSocket, needs_root};
use ratelimit_common::admission::BUDGET_ANY;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::window;
use ratelimit_datapath::Datapath as _;
use ratelimit_kernel::{Flood, Generator, Order, Sources};
use ratelimit_policy::desired::{Bans, NewSources, Policy, WindowForm};
use ratelimit_report::snapshot::CheckReport;
use serde_json::Value;

const MINUTE_NS: u64 = 60 * SECOND_NS;
const MILLISECOND_NS: u64 = 1_000_000;
/// Period of the budget for insertions, in nanoseconds.
const PERIOD_NS: u64 = 1 << 27;

fn connections(amount: u64) -> Policy {
    policy(&[limit(amount, Unit::Connections, WindowForm::Strict)])
}

fn syn(source: [u8; 4]) -> Vec<u8> {
    frame(IPV4, V4 { source, ..V4::of(TCP) }.around(tcp(80, SYN)))
}

/// Returns the address of a real client with this number.
fn client(number: usize) -> [u8; 4] {
    let [_, _, high, low] = u32::try_from(number).unwrap().to_be_bytes();
    [198, 51, high, low]
}

/// SYNs from random sources, most of which occur once.
struct Forged {
    random: Random,
    syn: Vec<u8>,
    sent: u64,
}

impl Forged {
    fn new(seed: u64) -> Self {
        Self { random: Random(seed), syn: syn([0; 4]), sent: 0 }
    }

    fn next(&mut self) -> &[u8] {
        // Below 128.0.0.0, and no client's address.
        let word = u32::try_from(self.random.below(0x7000_0000)).unwrap() + 0x0800_0000;
        self.syn[26..30].copy_from_slice(&word.to_be_bytes());
        self.sent += 1;
        &self.syn
    }

    fn flood(&mut self, program: &mut Program, packets: u64) {
        for _ in 0..packets {
            program.passes(self.next());
        }
    }

    /// Sends two SYNs of each source. The kernel keeps entries that were looked up again rather than others.
    fn flood_twice(&mut self, program: &mut Program, sources: u64) {
        for _ in 0..sources {
            program.passed(self.next(), 2);
        }
    }
}

/// Returns the admissions of each source in the window that ends now.
fn used(program: &mut Program) -> HashMap<IpAddr, u64> {
    let limit = limit(u64::MAX, Unit::Connections, WindowForm::Strict);
    let arithmetic = window::Limit {
        amount: u64::MAX,
        full_buckets: 5,
        parts: window::Parts::alone(limit.bucket_ns),
        burst: window::BURST_ANY,
    };
    let bucket = program.now().bucket(limit.bucket_ns);
    let mut used = HashMap::new();
    let mut visit = |reading: ratelimit_datapath::SourceReading| {
        used.insert(reading.prefix.addr(), window::used(&reading.window.cells, arithmetic, bucket));
    };
    program.kernel().visit_sources(&mut visit).unwrap();
    used
}

/// Returns whether a source has a window.
fn is_remembered(program: &mut Program, source: [u8; 4]) -> bool {
    let readings = program.kernel().source(Ipv4Addr::from(source).into()).unwrap();
    // An evicted source still has a reading with an empty window while the drop cache drops its packets.
    readings.iter().any(|reading| reading.window.cells != [0; window::CELLS])
}

/// Returns the report of `check` about a source.
fn checked(program: &mut Program, policy: &Policy, source: [u8; 4]) -> CheckReport {
    let (now, address) = (program.now(), Ipv4Addr::from(source).into());
    let windows = program.kernel().source(address).unwrap();
    let bans = program.kernel().bans_of(policy.client(address)).unwrap();
    CheckReport::with_bans(policy, now, address, &windows, &bans)
}

#[test]
fn known_sources_are_counted_exactly_while_forged_ones_flood() {
    const BUDGET: u32 = 64;
    const LIMIT: u64 = 20;
    const KNOWN: usize = 8;
    const PERIODS: u64 = 20;
    const FORGED_A_PERIOD: u64 = 2000;
    needs_root!();
    on_one_cpu();
    let room = Room { insertions_max: BUDGET, ..Room::default() };
    let mut program = Program::with_room(&connections(LIMIT), room);
    for known in (0..KNOWN).map(client) {
        assert_eq!(program.passed(&syn(known), 2), 2);
    }
    let mut sent = [2_u64; KNOWN];
    let mut forged = Forged::new(1);
    for at in 0..PERIODS * FORGED_A_PERIOD {
        forged.flood(&mut program, 1);
        if at % 50 == 49 {
            let one = usize::try_from(at / 50).unwrap() % KNOWN;
            let expected = if sent[one] < LIMIT { "within_limit" } else { "over_limit" };
            assert_eq!(program.verdict(&syn(client(one))), expected, "packet {} of client {one}", sent[one] + 1);
            sent[one] += 1;
        }
        program.advance(PERIOD_NS / FORGED_A_PERIOD);
    }
    assert!(sent.iter().all(|&sent| sent > LIMIT * 4), "{sent:?}");
    let counts = program.counts();
    assert!(counts["not_admitted"] * 10 > forged.sent * 9, "{counts:?}");
    // The first period finds the sampling share by doubling, with one budget for each step. In the others the share is
    // roughly right.
    let insertions = program.insertions();
    let budget = u64::from(BUDGET) * PERIODS;
    assert!(insertions <= budget * 5 / 4 + 8 * u64::from(BUDGET), "{insertions}, and the budget is {budget}");
    assert!(insertions >= budget / 3, "{insertions}, and the budget is {budget}");
    assert_eq!(counts["new_source_budget"], 0);
}

#[test]
fn a_source_over_its_limit_is_not_forgiven_by_a_flood() {
    const LIMIT: u64 = 5;
    const SOURCES: u32 = 1000;
    /// Minutes until a window is free: its five, and one bucket more.
    const FREED_AFTER: u64 = 6;
    needs_root!();
    let bans = Bans { steps_ns: vec![FREED_AFTER * MINUTE_NS], forget_ns: 0, needs_proof: false };
    for (bans, word) in [(None, "over_limit"), (Some(bans), "banned")] {
        let mut policy = connections(LIMIT);
        policy.rules[0].bans = bans;
        let room = Room { max_sources: SOURCES, windows_per_source: 1, insertions_max: BUDGET_ANY };
        let mut program = Program::with_room(&policy, room);
        let mut forged = Forged::new(2);
        let attacker = client(1);
        assert_eq!(program.passed(&syn(attacker), LIMIT + 2), LIMIT);
        for minute in 0..FREED_AFTER {
            forged.flood_twice(&mut program, 4 * u64::from(SOURCES));
            assert!(!is_remembered(&mut program, attacker), "the flood is too small to say anything");
            for millisecond in [0, 1, 30_000, 59_990] {
                program.set_now(Nanos(TEN_O_CLOCK.0 + minute * MINUTE_NS + millisecond * MILLISECOND_NS));
                assert_eq!(checked(&mut program, &policy, attacker).reason, word);
                assert_eq!(program.verdict(&syn(attacker)), word, "after {minute} min and {millisecond} ms");
            }
        }
        program.set_now(Nanos(TEN_O_CLOCK.0 + FREED_AFTER * MINUTE_NS));
        assert_eq!(program.passed(&syn(attacker), LIMIT + 2), LIMIT);
    }
}

/// Returns the probabilities of no sample, and of at most one, in `samples` packets sampled at one in 2^shift.
fn chances(shift: u32, samples: u32) -> [f64; 2] {
    let (p, samples) = (0.5_f64.powi(i32::try_from(shift).unwrap()), i32::try_from(samples).unwrap());
    let none = (1.0 - p).powi(samples);
    [none, none + f64::from(samples) * p * (1.0 - p).powi(samples - 1)]
}

/// Returns whether `hits` of `all` agree with this probability, within four standard deviations.
fn is_likely(hits: usize, all: usize, chance: f64) -> bool {
    let [hits, all] = [hits, all].map(|count| f64::from(u32::try_from(count).unwrap()));
    (hits - all * chance).abs() <= 4.0 * (all * chance * (1.0 - chance)).sqrt() + 1.0
}

#[test]
fn a_source_over_its_limit_is_caught_under_overload_within_stated_packets() {
    const LIMIT: u64 = 10;
    const BUDGET: u32 = 2000;
    const SOURCES: usize = 600;
    const SHIFT: u32 = 4;
    needs_root!();
    on_one_cpu();
    // Four times the limit, and ten times the limit for a source that goes on.
    for packets in [40, 100] {
        let room = Room { max_sources: 32_768, insertions_max: BUDGET, ..Room::default() };
        let mut program = Program::with_room(&connections(LIMIT), room);
        // Within one period, in which the share only shrinks, and only after a whole budget of insertions.
        let mut forged = Forged::new(3);
        while program.shift() < SHIFT {
            forged.flood(&mut program, 100);
        }
        let before = program.insertions();
        for source in 0..SOURCES {
            program.passed(&syn(client(source)), packets);
        }
        assert_eq!(program.shift(), SHIFT);
        let used = used(&mut program);
        let of: Vec<u64> = (0..SOURCES).map(|source| used.get(&client(source).into()).copied().unwrap_or(0)).collect();
        let [sampled_in, known] = [1, 2].map(|least| of.iter().filter(|&&used| used >= least).count());
        assert_eq!(program.insertions() - before, u64::try_from(sampled_in).unwrap(), "one window of each");
        let [none, one] = chances(SHIFT, u32::try_from(packets).unwrap());
        println!(
            "{packets} packets: {sampled_in} sampled in, {known} known, of {SOURCES}; {none:.3} and {one:.3} are to be missed"
        );
        assert!(is_likely(sampled_in, SOURCES, 1.0 - none), "{sampled_in} of {SOURCES}, to be missed: {none}");
        // A source is known from its second admission on, and each of its packets is counted.
        assert!(is_likely(known, SOURCES, 1.0 - one), "{known} of {SOURCES}, to be missed: {one}");
        for (source, &used) in of.iter().enumerate().filter(|(_, used)| **used >= 2) {
            assert!(used <= LIMIT);
            assert_eq!(program.passed(&syn(client(source)), LIMIT + 2), LIMIT - used, "client {source} had {used}");
        }
    }
}

#[test]
fn a_source_that_an_order_charges_is_known_when_the_last_packet_is_long_ago() {
    const SHIFT: u32 = 4;
    const PACKETS: u64 = 100;
    needs_root!();
    on_one_cpu();
    let room = Room { max_sources: 32_768, insertions_max: 2000, ..Room::default() };
    let mut program = Program::with_room(&connections(1000), room);
    assert!(program.passes(&syn(client(1))));
    program.advance(60 * MINUTE_NS);
    for _ in 0..2 {
        program.kernel().charge("198.51.0.9/32".parse().unwrap(), 0, 1).expect("it is charged");
    }
    let mut forged = Forged::new(5);
    while program.shift() < SHIFT {
        forged.flood(&mut program, 100);
    }
    assert_eq!(program.passed(&syn(client(9)), PACKETS), PACKETS);
    assert_eq!(used(&mut program).get(&client(9).into()), Some(&(2 + PACKETS)), "each packet is counted");
}

#[test]
fn a_flood_evicts_no_known_source_that_goes_on() {
    const KNOWN: usize = 200;
    const PERIODS: u64 = 30;
    const FORGED_A_PERIOD: u64 = 2000;
    needs_root!();
    on_one_cpu();
    let room = Room { max_sources: 512, windows_per_source: 1, insertions_max: 64 };
    let mut program = Program::with_room(&connections(1000), room);
    for known in (0..KNOWN).map(client) {
        assert_eq!(program.passed(&syn(known), 2), 2);
        program.advance(PERIOD_NS / 50);
    }
    assert_eq!(program.shift(), 0);
    let mut forged = Forged::new(4);
    for period in 0..PERIODS {
        // Each known source sends every three periods, and each forged one sends twice.
        for known in 0..KNOWN {
            forged.flood_twice(&mut program, FORGED_A_PERIOD / 2 / KNOWN as u64);
            if known as u64 % 3 == period % 3 {
                program.passes(&syn(client(known)));
            }
            program.advance(PERIOD_NS / KNOWN as u64);
        }
    }
    assert!(forged.sent > 50 * 512, "the flood is too small to say anything");
    let used = used(&mut program);
    let lost = (0..KNOWN).filter(|&known| used.get(&client(known).into()) != Some(&(2 + PERIODS / 3))).count();
    assert_eq!(lost, 0, "of {KNOWN}; {} windows were made", program.insertions());
}

#[test]
fn new_sources_beyond_the_rules_budget_are_dropped_and_known_ones_served() {
    const LIMIT: u64 = 10;
    const NEW: u64 = 100;
    needs_root!();
    on_one_cpu();
    // Without overload, and with it.
    for insertions_max in [BUDGET_ANY, 16] {
        let room = Room { insertions_max, ..Room::default() };
        let mut program = Program::with_room(&connections(LIMIT), room);
        program.kernel().set_new_sources(0, NEW, SECOND_NS).unwrap();
        let known: Vec<_> = (0..5).map(client).collect();
        for known in &known {
            assert_eq!(program.passed(&syn(*known), 2), 2);
        }
        let mut forged = Forged::new(5);
        forged.flood(&mut program, 1000);
        let counts = program.counts();
        let admitted = counts["within_limit"] + counts["not_admitted"] - 2 * 5;
        assert_eq!(admitted, NEW - 5, "{counts:?}");
        assert_eq!(counts["new_source_budget"], 1000 - admitted, "{counts:?}");
        for known in &known {
            assert_eq!(program.passed(&syn(*known), LIMIT), LIMIT - 2);
            assert_eq!(program.verdict(&syn(*known)), "over_limit");
        }
        // The budget refills with time.
        program.advance(SECOND_NS / 2);
        let before = program.counts()["new_source_budget"];
        forged.flood(&mut program, 1000);
        assert_eq!(program.counts()["new_source_budget"] - before, 1000 - NEW / 2);
        assert_eq!(program.verdict(&syn(known[0])), "over_limit");
    }
}

#[test]
fn a_changed_budget_of_new_sources_is_not_held_to_what_another_admitted() {
    needs_root!();
    on_one_cpu();
    let with_budget = |amount| {
        let mut policy = connections(10);
        policy.rules[0].new_sources = Some(NewSources { amount, window_ns: MINUTE_NS });
        policy
    };
    let mut program = Program::new(&with_budget(1));
    let mut forged = Forged::new(6);
    forged.flood(&mut program, 50);
    assert_eq!(program.counts()["new_source_budget"], 49);
    program.apply(&with_budget(100));
    forged.flood(&mut program, 50);
    assert_eq!(program.counts()["new_source_budget"], 49);
    // An unchanged budget continues.
    program.apply(&with_budget(100));
    forged.flood(&mut program, 60);
    assert_eq!(program.counts()["new_source_budget"], 49 + 10);
}

#[test]
fn sources_counted_only_by_a_shadow_limit_use_the_insertion_budget() {
    const BUDGET: u32 = 64;
    needs_root!();
    on_one_cpu();
    let mut policy = connections(10);
    policy.rules[0].shadow_limits = vec![limit(100, Unit::Packets, WindowForm::Strict)];
    let room = Room { insertions_max: BUDGET, ..Room::default() };
    let mut program = Program::with_room(&policy, room);
    let mut forged = Forged::new(7);
    // Acknowledgements, which no limit of the rule counts.
    forged.syn[47] = ACK;
    for _ in 0..4 {
        forged.flood(&mut program, 2000);
        program.advance(PERIOD_NS);
    }
    assert_eq!(program.counts()["not_counted"], forged.sent);
    let insertions = program.insertions();
    assert!(insertions <= u64::from(BUDGET) * (4 + 8), "{insertions} of {} sources were given a window", forged.sent);
}

#[test]
fn a_limit_of_nothing_passes_nothing_under_overload() {
    needs_root!();
    on_one_cpu();
    let mut policy = connections(10);
    policy.rules.push(integration_test::program::rule("nothing", &[8080], 0));
    let mut program = Program::with_room(&policy, Room { insertions_max: 64, ..Room::default() });
    Forged::new(8).flood(&mut program, 2000);
    assert!(program.shift() > 2);
    let mut syn = syn(client(1));
    syn[36..38].copy_from_slice(&8080_u16.to_be_bytes());
    assert_eq!(program.passed(&syn, 100), 0);
}

/// Turns the frame into a SYN from this source to the server, with correct checksums, so that only the limiter and the
/// backlog can stop it.
fn routed_syn(frame: &mut [u8], source: [u8; 4], source_port: u16) {
    frame[26..30].copy_from_slice(&source);
    frame[34..36].copy_from_slice(&source_port.to_be_bytes());
    for (at, zero) in [(24, 14..34), (50, 34..54)] {
        frame[at..at + 2].fill(0);
        // The segment's checksum includes the addresses, the protocol and the length.
        let pseudo = if at == 50 { [&frame[26..34], &[0, 6, 0, 20]].concat() } else { Vec::new() };
        let sum = [&pseudo, &frame[zero]]
            .concat()
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        frame[at..at + 2].copy_from_slice(&(!u16::try_from(folded).unwrap()).to_be_bytes());
    }
}

/// Starts nginx, with a stack that answers forged sources.
fn web(lab: &Lab) -> Child {
    // Answers to forged sources are sent somewhere, and do not fill the backlog.
    lab.server.ip(&["route", "add", "default", "via", CLIENTS[0]]).unwrap();
    for setting in ["net.ipv4.tcp_syncookies=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.s0.rp_filter=0"] {
        assert_eq!(lab.server.run(&["sysctl", "-w", setting]).unwrap().code(), 0);
    }
    netlab::nginx(&lab.server, lab.directory(), &[format!("{}:80", SERVER[0]).parse().unwrap()]).unwrap()
}

/// Returns a SYN to the server by this interface, with an empty source.
fn syn_to_the_server(lab: &Lab, interface: &str) -> Vec<u8> {
    let shown = lab.server.ip(&["-br", "link", "show", "dev", interface]).unwrap();
    let link = shown.split_whitespace().nth(2).unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let mut frame = syn([0; 4]);
    frame.splice(..6, link);
    frame[30..34].copy_from_slice(&SERVER[0].parse::<Ipv4Addr>().unwrap().octets());
    frame
}

/// Sends `packets` SYNs from random sources, evenly spread over `within` in a hundred bursts.
fn flood_the_server(lab: &Lab, packets: u64, within: Duration) {
    let mut frame = syn_to_the_server(lab, "s0");
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let mut random = Random(6);
    let start = Instant::now();
    for burst in 0..100 {
        thread::sleep((within / 100 * burst).saturating_sub(start.elapsed()));
        for _ in 0..packets / 100 {
            let [a, b, c, d, port @ ..] = random.word().to_be_bytes().first_chunk::<6>().copied().unwrap();
            // Sources of 20.0.0.0/6, which belong to nobody.
            routed_syn(&mut frame, [20 | a & 3, b, c, d], 1024 | u16::from_be_bytes(port));
            sender.send(&frame).unwrap();
        }
    }
}

/// Returns how many requests of a known client nginx has answered during a flood, all of which are in its log. On a
/// busy machine the flood is repeated until there are enough answers. Meanwhile an attacker that has used up its limit
/// keeps sending, and is always refused.
fn answered_during(lab: &Lab, limit: usize, mut flood: impl FnMut() + Send) -> usize {
    const ENOUGH: usize = 5;
    const FLOODS_MAX: usize = 20;
    let [client, attacker, _] = CLIENTS;
    lab.http(client, 80);
    lab.http(client, 80);
    // The server answers the attacker up to its limit. Then it is refused until long after the flood.
    lab.assert_admitted(attacker, 80, limit);
    let (mut answered, is_enough) = (2, AtomicBool::new(false));
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for _ in 0..FLOODS_MAX {
                flood();
                if is_enough.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        while !flood.is_finished() {
            if answered < limit - 2 {
                assert!(lab.http(client, 80).ends_with("ok\n"), "request {answered}");
                answered += 1;
            }
            lab.assert_blocked(attacker, 80);
            is_enough.store(answered >= ENOUGH, Ordering::Relaxed);
        }
    });
    assert!(answered >= ENOUGH, "{answered} requests");
    let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
    assert_eq!(log.lines().filter(|line| line.starts_with(&format!("{client} "))).count(), answered, "{log}");
    answered
}

#[test]
fn a_real_client_behind_nginx_loses_no_request_while_forged_sources_flood() {
    const FORGED: u64 = 100_000;
    const FLOOD: Duration = Duration::from_millis(2_500);
    const LIMIT: usize = 20;
    needs_root!();
    let lab = Lab::quiet();
    let _nginx = web(&lab);
    let limit = format!("{LIMIT}/5m");
    let _daemon = lab.limit(&["--limit", &limit, "--count", "connections", "--max-sources", "4096"]);
    let answered = answered_during(&lab, LIMIT, || flood_the_server(&lab, FORGED, FLOOD));
    let stats = lab.stats_once(|stats| packets(stats)[0] >= FORGED);
    let reason = |reason: &str| number(&stats, &format!("/reasons/{reason}"));
    println!(
        "{answered} requests answered; {} not admitted, {} over the limit",
        reason("not_admitted"),
        reason("over_limit")
    );
    assert!(reason("not_admitted") > FORGED / 4, "the flood did not press: {stats:#}");
}

#[test]
fn a_real_client_loses_no_request_during_a_flood_of_16_777_216_sources() {
    const BITS: u8 = 24;
    const FORGED_LEAST: u64 = (1 << BITS) * 9 / 10;
    const LIMIT: usize = 20;
    needs_root!();
    let lab = Lab::quiet();
    // The flood uses another interface than the client, as if by another queue, so that an overload does not lose the
    // client's packets.
    lab.connect_second_ends();
    assert_eq!(lab.server.run(&["sysctl", "-w", "net.ipv4.conf.s1.rp_filter=0"]).unwrap().code(), 0);
    let _nginx = web(&lab);
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = [\"s0\", \"s1\"]\nsocket = \"{}\"", lab.socket().display());
    // A rate that the stack can answer in addition to the others.
    let rule = format!("limits = [\"{LIMIT}/5m connections\"]\nnew_sources = \"1000/s\"");
    fs::write(&file, format!("{top}\n[rule]\n{rule}\n")).unwrap();
    let _daemon = lab.start(&["run", "--config", file.to_str().unwrap()]);
    let sources = Sources { first: [20, 0, 0, 0].into(), bits: BITS, order: Order::InTurn, host_bits: 0 };
    let flood = Flood { frame: padded(syn_to_the_server(&lab, "s1"), 60), sources, others: None, connections: None };
    let mut generator = lab.client.inside(|| Ok(Generator::load(&flood, "c1")?)).unwrap();
    let start = Instant::now();
    let answered = answered_during(&lab, LIMIT, || {
        on_one_cpu();
        lab.client.inside(|| Ok(generator.send(1 << BITS)?)).unwrap();
    });
    let took = start.elapsed();
    // If something else uses the CPU for long, the interface loses some.
    let forged = |stats: &Value| number(stats, "/interfaces/1/packets/received");
    let stats = lab.stats_once(|stats| forged(stats) >= FORGED_LEAST);
    let reason = |reason: &str| number(&stats, &format!("/reasons/{reason}"));
    println!(
        "{answered} requests answered in {took:?}; {} forged packets, {} over the budget of new sources, {} not admitted, {} over the limit",
        forged(&stats),
        reason("new_source_budget"),
        reason("not_admitted"),
        reason("over_limit")
    );
    let admitted = 1000 * (took.as_secs() + 2);
    assert!(reason("new_source_budget") >= FORGED_LEAST - admitted, "{stats:#}");
}
