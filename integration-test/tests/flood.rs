//! Floods of forged sources: who is known is counted to the packet, who is over its limit stays refused, and the maps take no more
//! than their budget.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::is_skipped;
use integration_test::program::{Program, Room, TEN_O_CLOCK, limit, on_one_cpu, policy};
use integration_test::random::Random;
use ratelimit_common::admission::BUDGET_ANY;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::window;
use ratelimit_userspace::datapath::Datapath as _;
use ratelimit_userspace::desired::{Bans, Policy, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
const MILLISECOND_NS: u64 = 1_000_000;
/// That for which insertions are counted.
const PERIOD_NS: u64 = 1 << 27;

fn connections(amount: u64) -> Policy {
    policy(&[limit(amount, Unit::Connections, WindowForm::Strict)])
}

fn syn(source: [u8; 4]) -> Vec<u8> {
    frame(IPV4, V4 { source, ..V4::of(TCP) }.around(tcp(80, SYN)))
}

/// One of so many clients that are what they say.
fn client(number: usize) -> [u8; 4] {
    let [_, _, high, low] = u32::try_from(number).unwrap().to_be_bytes();
    [198, 51, high, low]
}

/// SYNs from sources of which each comes once, most likely.
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
        // Below 128.0.0.0, and no client.
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

    /// Twice of each: the kernel keeps what was looked up again rather than what was not.
    fn flood_twice(&mut self, program: &mut Program, sources: u64) {
        for _ in 0..sources {
            program.passed(self.next(), 2);
        }
    }
}

/// What the kernel has admitted of each source in the window that ends now.
fn used(program: &mut Program) -> HashMap<IpAddr, u64> {
    let limit = limit(u64::MAX, Unit::Connections, WindowForm::Strict);
    let count_bits = window::count_bits(limit.bucket_ns);
    let arithmetic = window::Limit { amount: u64::MAX, behind: 5, count_bits, burst: window::BURST_ANY };
    let bucket = program.now().bucket(limit.bucket_ns);
    let mut used = HashMap::new();
    let mut visit = |reading: ratelimit_userspace::datapath::SourceReading| {
        used.insert(reading.prefix.addr(), window::used(&reading.window.cells, arithmetic, bucket));
    };
    program.kernel().visit_sources(&mut visit).unwrap();
    used
}

/// Whether a source has a window.
fn is_remembered(program: &mut Program, source: [u8; 4]) -> bool {
    !program.kernel().source(Ipv4Addr::from(source).into()).unwrap().is_empty()
}

#[test]
fn known_sources_are_counted_exactly_while_forged_ones_flood() {
    const BUDGET: u32 = 64;
    const LIMIT: u64 = 20;
    const KNOWN: usize = 8;
    const PERIODS: u64 = 20;
    const FORGED_A_PERIOD: u64 = 2000;
    if is_skipped("known_sources_are_counted_exactly_while_forged_ones_flood") {
        return;
    }
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
    // The first period finds the share by doubling: a budget for each step. In each of the others the share is right, give or take.
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
    /// Of the window's five minutes and the one that is held back.
    const FREED_AFTER: u64 = 6;
    if is_skipped("a_source_over_its_limit_is_not_forgiven_by_a_flood") {
        return;
    }
    let bans = Bans { steps_ns: vec![FREED_AFTER * MINUTE_NS], forget_ns: 0 };
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
                assert_eq!(program.verdict(&syn(attacker)), word, "after {minute} min and {millisecond} ms");
            }
        }
        program.set_now(Nanos(TEN_O_CLOCK.0 + FREED_AFTER * MINUTE_NS));
        assert_eq!(program.passed(&syn(attacker), LIMIT + 2), LIMIT);
    }
}
