//! Compares the observation with packet-by-packet limits, and a proposal with the same load sent again under it.

use std::cell::Cell as Word;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use ratelimit_common::layout::Source;
use ratelimit_common::time::{BucketIndex, SECOND_NS};
use ratelimit_common::verdict::Reason as Verdict;
use ratelimit_common::window::{self, CELLS, Charge};

use super::*;
use crate::fixture::{MINUTE_NS, limit, opening, policy};
use ratelimit_datapath::Datapath as _;
use ratelimit_datapath::fake::{FakeDatapath, FakeKernel, FakePacket, START};
use ratelimit_policy::desired::{AccessLog, Mode};

/// Window of one source under one limit.
struct Charged {
    limit: window::Limit,
    words: [Word<u64>; window::CELLS],
    refused: u64,
    newest: ratelimit_common::refusals::Refusals,
}

impl Charged {
    fn new(limit: window::Limit) -> Self {
        let words = std::array::from_fn(|_| Word::new(0));
        Self { limit, words, refused: 0, newest: ratelimit_common::refusals::Refusals(0) }
    }

    fn one(&mut self, bucket: BucketIndex) {
        match window::charge(&self.words, self.limit, bucket, 1) {
            Charge::Admitted(_) => {}
            Charge::Refused => {
                self.refused += 1;
                self.newest = self.newest.and_one_in(bucket);
            }
            Charge::Contended | Charge::Unsettled(_) => panic!("nobody else charges"),
        }
    }

    fn reading(&self, slot: u32) -> SourceReading {
        let cells = std::array::from_fn(|at| self.words[at].get());
        let prefix = "192.0.2.7/32".parse().unwrap();
        SourceReading {
            prefix,
            slot,
            is_verified: false,
            window: Source { refused: self.newest, cells },
            refused_until: None,
            repeated: 0,
        }
    }
}

fn form() -> impl Strategy<Value = (WindowForm, u8)> {
    prop_oneof![
        (5_u8..=7).prop_map(|buckets| (WindowForm::Strict, buckets)),
        (5_u8..=7).prop_map(|buckets| (WindowForm::Lenient, buckets)),
        Just((WindowForm::Fixed, 1)),
    ]
}

/// Generates steps: a number of buckets to advance, and the demand there in several pieces.
fn stream() -> impl Strategy<Value = Vec<(u64, Vec<u64>)>> {
    let onward = prop_oneof![8 => 0_u64..3, 1 => 3_u64..12, 1 => 12_u64..40];
    prop::collection::vec((onward, prop::collection::vec(0_u64..30, 1..4)), 1..40)
}

proptest! {
    #[test]
    fn candidates_admit_exactly_what_packet_after_packet_is_admitted(
        (form, buckets) in form(),
        amount in 1_u64..80,
        burst in prop::option::of(1_u64..40),
        candidates in prop::collection::btree_set(1_u64..160, 1..=8),
        stream in stream(),
    ) {
        let of = Limit { amount, form, buckets, burst: burst.map(|burst| burst.min(amount)), ..limit(amount, Unit::Connections) };
        let said = [("default".to_owned(), candidates.iter().map(|amount| Limit { amount: *amount, ..of }).collect())];
        let mut now = BucketIndex(29_000_000);
        let mut observer = Observer::default();
        observer.follow(&policy(vec![of]), &said, 10, now.start(of.bucket_ns));
        observer.round(now.start(of.bucket_ns), &[]).finish();

        let mut kernel = Charged::new(of.arithmetic());
        let arithmetic = |amount: &u64| window::Limit { amount: *amount, ..of.arithmetic() };
        let mut naive: Vec<Charged> = candidates.iter().map(|amount| Charged::new(arithmetic(amount))).collect();
        let (mut wanted, mut busiest) = (Vec::<(u64, u64)>::new(), 0);
        for (onward, pieces) in stream {
            now.0 += onward;
            for (piece, count) in pieces.into_iter().enumerate() {
                for _ in 0..count {
                    kernel.one(now);
                    naive.iter_mut().for_each(|of| of.one(now));
                }
                wanted.push((now.0, count));
                let window = wanted.iter().filter(|(at, _)| now.0 - at <= u64::from(of.full_buckets()));
                busiest = busiest.max(window.map(|(_, count)| count).sum());
                let at = Nanos(now.start(of.bucket_ns).0 + piece as u64 * SECOND_NS);
                let mut round = observer.round(at, &[]);
                round.visit(&kernel.reading(of.slot));
                round.finish();
            }
        }
        let observed = observer.observed(&of).expect("it is observed");
        let total: u64 = wanted.iter().map(|(_, count)| count).sum();
        prop_assert_eq!(observed.demand, total);
        prop_assert_eq!(observed.busiest, if busiest == 0 { vec![] } else { vec![busiest] });
        let blocked: Vec<_> = observed.candidates.iter().map(|of| (of.amount, of.blocked, of.sources_blocked)).collect();
        let expected = candidates.iter().zip(&naive).map(|(amount, of)| (*amount, of.refused, u64::from(of.refused > 0)));
        prop_assert_eq!(blocked, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_late_look_loses_nothing_while_the_ring_has_not_gone_round(
        (form, buckets) in form(),
        candidates in prop::collection::btree_set(1_u64..160, 1..=8),
        stream in stream(),
        looks in prop::collection::vec(any::<bool>(), 40),
    ) {
        // Nothing is refused, so the cells contain all demand.
        let of = Limit { form, buckets, ..limit(1 << 30, Unit::Connections) };
        let said = [("default".to_owned(), candidates.iter().map(|amount| Limit { amount: *amount, ..of }).collect())];
        let mut now = BucketIndex(29_000_000);
        let mut observer = Observer::default();
        observer.follow(&policy(vec![of]), &said, 10, now.start(of.bucket_ns));
        let mut kernel = Charged::new(of.arithmetic());
        let arithmetic = |amount: &u64| window::Limit { amount: *amount, ..of.arithmetic() };
        let mut naive: Vec<Charged> = candidates.iter().map(|amount| Charged::new(arithmetic(amount))).collect();
        let mut look = |kernel: &Charged, now: BucketIndex| {
            let mut round = observer.round(now.start(of.bucket_ns), &[]);
            round.visit(&kernel.reading(of.slot));
            round.finish();
            observer.observed(&of).expect("it is observed")
        };
        look(&kernel, now);
        let mut looked = now;
        for ((onward, pieces), is_looked_at) in stream.into_iter().zip(looks) {
            if now.0 + onward - looked.0 >= CELLS as u64 {
                look(&kernel, now);
                looked = BucketIndex(now.0 + onward);
            }
            now.0 += onward;
            for _ in 0..pieces.iter().sum() {
                kernel.one(now);
                naive.iter_mut().for_each(|of| of.one(now));
            }
            if is_looked_at {
                look(&kernel, now);
                looked = now;
            }
        }
        let blocked: Vec<_> = look(&kernel, now).candidates.iter().map(|of| of.blocked).collect();
        prop_assert_eq!(blocked, naive.iter().map(|of| of.refused).collect::<Vec<_>>());
    }

    #[test]
    fn no_window_and_no_jump_of_the_clock_panics(
        words in prop::collection::vec(any::<(u64, [u64; CELLS])>(), 1..20),
        times in prop::collection::vec(any::<u64>(), 20),
    ) {
        let of = limit(10, Unit::Bytes);
        let mut observer = Observer::default();
        observer.follow(&policy(vec![of]), &[], 2, START);
        for ((refused, cells), now) in words.into_iter().zip(times) {
            let mut round = observer.round(Nanos(now), &[u64::MAX]);
            let window = Source { refused: ratelimit_common::refusals::Refusals(refused), cells };
            round.visit(&SourceReading { prefix: "192.0.2.7/32".parse().unwrap(), slot: of.slot, is_verified: false, window, refused_until: None, repeated: 0 });
            round.finish();
            let _observed = observer.observed(&of);
        }
    }
}

/// Kernel with one rule, and its observer.
struct Bench {
    datapath: FakeDatapath,
    kernel: FakeKernel,
    policy: Policy,
    observer: Observer,
}

impl Bench {
    fn new(policy: Policy) -> Self {
        let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
        datapath.apply(&policy).unwrap();
        datapath.attach("eth0").unwrap();
        let mut bench = Self { datapath, kernel, policy, observer: Observer::default() };
        bench.follow(&[], 1000);
        bench.round();
        bench
    }

    fn follow(&mut self, candidates: &Candidates, sources_max: usize) {
        let now = self.datapath.read().unwrap().now;
        self.observer.follow(&self.policy, candidates, sources_max, now);
    }

    fn round(&mut self) {
        let now = self.datapath.read().unwrap().now;
        let mut round = self.observer.round(now, &[100]);
        self.datapath.visit_sources(&mut |reading| round.visit(&reading)).unwrap();
        round.finish();
    }

    fn send(&self, source: &str, count: u64) {
        for _ in 0..count {
            self.kernel.packet("eth0", opening(source));
        }
    }

    fn observed(&self, at: usize) -> Observed {
        self.observer.observed(&self.policy.rules[0].limits[at]).expect("it is observed")
    }
}

fn dry_run(limits: Vec<Limit>) -> Policy {
    let mut policy = policy(limits);
    policy.rules[0].mode = Mode::DryRun;
    policy
}

/// Pseudo-random numbers from a fixed seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

const HEAVY: [u64; 7] = [40, 55, 90, 150, 400, 900, 3000];

/// Returns the second and source of each connection in an hour. The first sources open [`HEAVY`] connections per
/// minute. The others open up to 8 per minute, for a few minutes at a time.
fn recorded(seed: u64) -> Vec<(u64, IpAddr)> {
    let mut dice = Dice(seed);
    let mut events = Vec::new();
    let address = |source: u64| IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + u32::try_from(source).unwrap()));
    for (source, rate) in (0..).zip(HEAVY) {
        let begins = dice.below(40);
        events.extend((begins * 60..(begins + 12) * 60).flat_map(|second| {
            let due = |at: u64| at * rate / 60;
            (due(second)..due(second + 1)).map(move |_| (second, address(source)))
        }));
    }
    for source in 0..500 {
        let rate = 1 + dice.below(8);
        for _ in 0..=dice.below(3) {
            let begins = dice.below(55);
            for minute in begins..begins + 1 + dice.below(5) {
                events.extend((0..rate).map(|_| (minute * 60 + dice.below(60), address(1000 + source))));
            }
        }
    }
    events.sort_unstable();
    events
}

/// Sends a load and calls `then` after every 20 seconds. Returns the sources that were refused, or would have been.
fn replay(bench: &mut Bench, events: &[(u64, IpAddr)], then: impl Fn(&mut Bench)) -> BTreeSet<IpAddr> {
    let (mut clock, mut refused) = (0, BTreeSet::new());
    for &(second, source) in events {
        while clock < second {
            bench.kernel.advance(SECOND_NS);
            clock += 1;
            if clock.is_multiple_of(20) {
                then(bench);
            }
        }
        let packet = FakePacket { source, opens: true, requests: 1, bytes: 60 };
        match bench.kernel.packet("eth0", packet) {
            Some(Verdict::OverLimit | Verdict::DryRun) => drop(refused.insert(source)),
            Some(Verdict::WithinLimit) => {}
            other => panic!("{other:?}"),
        }
    }
    refused
}

#[test]
fn the_proposal_for_a_recorded_load_blocks_only_the_heavy_clients() {
    for (seed, guess) in [(1, 1000), (2, 20), (3, 100_000), (4, 5)] {
        let events = recorded(seed);
        let mut bench = Bench::new(dry_run(vec![limit(guess, Unit::Connections)]));
        replay(&mut bench, &events, Bench::round);
        bench.round();
        let observed = bench.observed(0);
        assert_eq!((observed.busiest.len(), observed.missed_buckets), (HEAVY.len() + 500, 0), "seed {seed}");
        let proposal = propose(&observed.busiest, Unit::Connections, u64::MAX).expect("there are enough sources");
        assert_eq!(proposal.sources_blocked, HEAVY.len() as u64, "seed {seed}, {guess}: {proposal:?}");

        let mut enforced = Bench::new(policy(vec![limit(proposal.amount, Unit::Connections)]));
        let refused = replay(&mut enforced, &events, |_| {});
        let heavy: BTreeSet<IpAddr> = (0..7).map(|source| IpAddr::V4(Ipv4Addr::from(0x0a00_0001 + source))).collect();
        assert_eq!(refused, heavy, "seed {seed}, {guess}: {proposal:?}");
    }
}

#[test]
fn candidates_count_what_an_enforced_limit_of_their_amount_refuses() {
    let events = recorded(7);
    let mut bench = Bench::new(dry_run(vec![limit(100, Unit::Connections)]));
    replay(&mut bench, &events, Bench::round);
    bench.round();
    let observed = bench.observed(0);
    assert_eq!(observed.demand, events.len() as u64);
    let amounts: Vec<u64> = observed.candidates.iter().map(|of| of.amount).collect();
    assert_eq!(amounts, [12, 25, 50, 100, 200, 400, 800, 1600]);
    for candidate in observed.candidates {
        let mut enforced = Bench::new(policy(vec![limit(candidate.amount, Unit::Connections)]));
        let refused = replay(&mut enforced, &events, |_| {});
        let stats = enforced.datapath.read().unwrap();
        let dropped = stats.interfaces[0].rules[0].of(Verdict::OverLimit).packets;
        assert_eq!((candidate.sources_blocked, candidate.blocked), (refused.len() as u64, dropped), "{candidate:?}");
    }
}

#[test]
fn a_reload_keeps_what_was_observed_and_counts_other_candidates_anew() {
    let mut bench = Bench::new(dry_run(vec![limit(10, Unit::Connections)]));
    bench.send("198.51.100.7", 25);
    bench.round();
    assert_eq!(bench.observed(0).candidates.iter().filter(|of| of.blocked > 0).count(), 5);
    let before = bench.observed(0);

    bench.kernel.advance(3 * MINUTE_NS);
    bench.follow(&[], 1000);
    bench.round();
    assert_eq!(bench.observed(0), Observed { until: bench.observed(0).until, ..before.clone() });

    let limit = bench.policy.rules[0].limits[0];
    bench.follow(&[("default".to_owned(), vec![Limit { amount: 26, ..limit }])], 1000);
    bench.round();
    let after = bench.observed(0);
    assert_eq!((after.since, &after.busiest), (before.since, &vec![25]));
    assert_eq!((after.candidates_since, after.demand), (after.until, 0));
    assert_eq!(after.candidates, [Candidate { amount: 26, sources_blocked: 0, blocked: 0 }]);
    bench.send("198.51.100.7", 2);
    bench.round();
    let blocked = bench.observed(0).candidates[0];
    assert_eq!((blocked.sources_blocked, blocked.blocked), (1, 1), "the window still holds the 25");

    bench.policy.rules[0].limits[0].amount = 500;
    bench.follow(&[], 1000);
    bench.round();
    assert_eq!((bench.observed(0).since, bench.observed(0).busiest), (before.since, vec![27]));
    bench.policy.rules[0].limits[0].form = WindowForm::Lenient;
    bench.follow(&[], 1000);
    assert!(bench.observer.observed(&bench.policy.rules[0].limits[0]).is_none(), "another window is another question");
}

#[test]
fn no_more_sources_are_observed_than_the_capacity_and_the_rest_are_told() {
    let mut bench = Bench::new(dry_run(vec![limit(10, Unit::Connections)]));
    bench.follow(&[], 3);
    for last in 1..=5 {
        bench.send(&format!("198.51.100.{last}"), 25);
    }
    bench.round();
    bench.round();
    let observed = bench.observed(0);
    assert_eq!((observed.busiest, observed.sources_not_observed), (vec![25; 3], 2));
    assert!(bench.observer.bytes() < 4000, "{}", bench.observer.bytes());
}

#[test]
fn a_source_charged_by_an_access_log_is_counted_once_over_both_windows() {
    for (access_logs, expected) in [(vec![AccessLog::File("/log".into())], vec![45]), (Vec::new(), vec![45, 45])] {
        let mut policy = dry_run(vec![limit(100, Unit::Requests)]);
        policy.rules[0].access_logs = access_logs;
        let mut bench = Bench::new(policy);
        bench.datapath.charge_requests("198.51.100.7/32".parse().unwrap(), 0, 45).unwrap();
        let now = bench.datapath.read().unwrap().now;
        let mut round = bench.observer.round(now, &[100]);
        let both = |reading| [true, false].map(|is_verified| SourceReading { is_verified, ..reading });
        bench.datapath.visit_sources(&mut |reading| both(reading).iter().for_each(|of| round.visit(of))).unwrap();
        round.finish();
        let observed = bench.observed(0);
        assert_eq!((observed.demand, observed.busiest), (expected.iter().sum(), expected));
    }
}

#[test]
fn buckets_that_went_by_unseen_are_counted() {
    let mut bench = Bench::new(dry_run(vec![limit(10, Unit::Connections)]));
    bench.kernel.advance(7 * MINUTE_NS);
    bench.round();
    assert_eq!(bench.observed(0).missed_buckets, 0);
    bench.kernel.advance(8 * MINUTE_NS);
    bench.round();
    assert_eq!(bench.observed(0).missed_buckets, 1);
}

#[test]
fn refusals_before_the_first_round_are_not_counted() {
    let (mut datapath, kernel) = FakeDatapath::new(&["eth0"]);
    let policy = policy(vec![limit(10, Unit::Connections)]);
    datapath.apply(&policy).unwrap();
    datapath.attach("eth0").unwrap();
    let mut bench = Bench { datapath, kernel, policy, observer: Observer::default() };
    bench.send("198.51.100.7", 500);
    bench.follow(&[], 1000);
    bench.round();
    assert_eq!(bench.observed(0).busiest, [10]);
    bench.send("198.51.100.7", 4);
    bench.round();
    assert_eq!(bench.observed(0).busiest, [14]);
}

#[test]
fn a_source_that_is_evicted_and_comes_back_is_the_same_one() {
    let mut bench = Bench::new(dry_run(vec![limit(10, Unit::Connections)]));
    bench.send("198.51.100.7", 15);
    bench.round();
    bench.datapath.forget("198.51.100.7/32".parse().unwrap()).unwrap();
    bench.kernel.advance(20 * MINUTE_NS);
    bench.send("198.51.100.7", 12);
    bench.round();
    assert_eq!((bench.observed(0).busiest, bench.observed(0).demand), (vec![15], 27));
}

#[test]
fn a_reading_that_has_somewhat_fewer_refusals_than_the_one_before_adds_none() {
    let of = limit(10, Unit::Packets);
    let mut observer = Observer::default();
    observer.follow(&policy(vec![of]), &[], 2, START);
    let prefix = "192.0.2.7/32".parse().unwrap();
    let mut demand_after = |refused: u64| {
        let mut newest = ratelimit_common::refusals::Refusals(0).and_one_in(START.bucket(of.bucket_ns));
        newest = newest.and(refused - 1);
        let window = Source { refused: newest, cells: [0; CELLS] };
        let mut round = observer.round(START, &[u64::MAX]);
        round.visit(&SourceReading {
            prefix,
            slot: of.slot,
            is_verified: false,
            window,
            refused_until: None,
            repeated: 0,
        });
        round.finish();
        observer.observed(&of).unwrap().demand
    };
    // Refusals before the first visit; more; a drop-cache entry that was read twice; more; a source evicted and back.
    let demands = [50_000, 52_000, 51_500, 51_600, 30].map(&mut demand_after);
    assert_eq!(demands.map(|demand| demand - demands[0]), [0, 2_000, 2_000, 2_100, 2_130]);
}

#[test]
fn a_request_refused_by_one_limit_is_demand_of_the_rules_others_too() {
    for unit in [Unit::Requests, Unit::Connections] {
        let hour =
            Limit { window_ns: 60 * MINUTE_NS, bucket_ns: 10 * MINUTE_NS, buckets: 6, slot: 99, ..limit(60, unit) };
        let packets = limit(1000, Unit::Packets);
        let mut bench = Bench::new(dry_run(vec![limit(10, unit), hour, packets]));
        for _ in 0..3 {
            bench.send("198.51.100.7", 40);
            bench.round();
            bench.kernel.advance(MINUTE_NS);
        }
        for at in 0..3 {
            assert_eq!(bench.observed(at).busiest, [120], "limit {at} of {unit:?}");
        }
    }
}

#[test]
fn a_refused_request_is_no_connection_and_a_refused_connection_no_request() {
    for (refusing, other) in [(Unit::Requests, Unit::Connections), (Unit::Connections, Unit::Requests)] {
        let mut bench = Bench::new(dry_run(vec![limit(10, refusing), limit(1000, other)]));
        bench.send("198.51.100.7", 40);
        bench.round();
        let busiest = [0, 1].map(|at| bench.observed(at).busiest);
        assert_eq!(busiest, [vec![40], vec![10]], "{refusing:?}");
    }
}

#[test]
fn refused_byte_demand_uses_the_size_of_the_rules_refused_packets() {
    let mut bench = Bench::new(dry_run(vec![limit(1000, Unit::Bytes)]));
    bench.send("198.51.100.7", 25);
    bench.round();
    assert_eq!(bench.observed(0).busiest, [2500]);
}

#[test]
fn refuse_all_counts_one_refused_packet_as_demand() {
    for unit in [Unit::Requests, Unit::Connections] {
        let mut policy = policy(vec![limit(10, unit)]);
        policy.rules[0].refuse = Refuse::All;
        let mut bench = Bench::new(policy);
        for _ in 0..3 {
            bench.send("198.51.100.7", 25);
            bench.round();
        }
        assert_eq!(bench.observed(0).busiest, [11], "{unit:?}");
    }
}

#[test]
fn a_leaky_bucket_is_not_observed() {
    let gcra = Limit { form: WindowForm::Gcra, buckets: 1, bucket_ns: 5 * MINUTE_NS, ..limit(10, Unit::Connections) };
    let mut observer = Observer::default();
    observer.follow(&policy(vec![gcra]), &[], 10, START);
    observer.round(START, &[]).finish();
    assert_eq!(observer.observed(&gcra), None);
}

#[test]
fn rounds_fit_the_shortest_bucket_and_the_speed_of_the_machine() {
    let of = |limits: Vec<Limit>| {
        let mut observer = Observer::default();
        observer.follow(&policy(limits), &[], 10, START);
        observer
    };
    let short = |bucket_ns| Limit { bucket_ns, window_ns: 5 * bucket_ns, slot: 3, ..limit(10, Unit::Connections) };
    let seconds = Duration::from_secs;
    assert_eq!(of(vec![limit(10, Unit::Connections)]).interval(Duration::ZERO), seconds(30));
    assert_eq!(of(vec![limit(10, Unit::Connections), short(10 * SECOND_NS)]).interval(Duration::ZERO), seconds(5));
    assert_eq!(of(vec![short(SECOND_NS / 5)]).interval(Duration::ZERO), seconds(1));
    assert_eq!(of(vec![short(60 * MINUTE_NS)]).interval(Duration::ZERO), seconds(30));
    assert_eq!(of(vec![short(SECOND_NS / 5)]).interval(Duration::from_millis(100)), seconds(5));
}

#[test]
fn demand_of_a_floods_sources_is_kept_and_their_memory_is_freed() {
    const FLOOD: u32 = 40_000;
    let mut bench = Bench::new(dry_run(vec![limit(10, Unit::Connections)]));
    bench.follow(&[], 1 << 18);
    let send_flood = |bench: &Bench| {
        for number in 0..FLOOD {
            bench.send(&Ipv4Addr::from_bits(10 << 24 | number).to_string(), 2);
        }
    };
    let again = |bench: &mut Bench, minutes: u64| {
        for _ in 0..minutes {
            bench.kernel.advance(MINUTE_NS);
            // One source continues among those that came once.
            bench.send("198.51.100.7", 1);
            bench.round();
        }
    };
    again(&mut bench, 5);
    let before = bench.observer.bytes();
    send_flood(&bench);
    bench.round();
    let flooded = bench.observer.bytes();
    let observed = bench.observed(0);
    again(&mut bench, 2 * CELLS as u64);
    let after = bench.observer.bytes();
    println!("{before} B before, {flooded} B in the flood, {after} B after");
    assert!(flooded > 100 * before && after < flooded / 100, "{before} B, {flooded} B, {after} B");
    // The windows of these sources still exist, and are not counted as new ones.
    let later = bench.observed(0);
    assert_eq!((later.busiest.len(), later.sources_not_observed), (observed.busiest.len(), 0));
    assert_eq!(later.busiest.iter().filter(|peak| **peak == 2).count(), FLOOD as usize);
    assert_eq!(later.demand, observed.demand + 2 * CELLS as u64);
    // A source that returns counts as another one, and its old refusals are not counted again.
    bench.send("10.0.0.7", 3);
    bench.round();
    let back = bench.observed(0);
    assert_eq!((back.busiest.len(), back.demand), (later.busiest.len() + 1, later.demand + 3));
}

#[test]
fn a_retransmitted_request_is_demand_once_even_if_admitted_later() {
    let of = limit(10, Unit::Requests);
    let mut observer = Observer::default();
    observer.follow(&policy(vec![of]), &[], 2, START);
    let prefix = "192.0.2.7/32".parse().unwrap();
    let bucket = START.bucket(of.bucket_ns);
    let mut demand_after = |refused: u64, repeated: u64| {
        let newest = ratelimit_common::refusals::Refusals(0).and_one_in(bucket).and(refused - 1);
        let window = Source { refused: newest, cells: [0; CELLS] };
        let mut round = observer.round(START, &[u64::MAX]);
        let (slot, is_verified) = (of.slot, true);
        round.visit(&SourceReading { prefix, slot, is_verified, window, refused_until: None, repeated });
        round.finish();
        observer.observed(&of).unwrap().demand
    };
    // Refusals before the first visit; three requests, two of them repeated four times in all. Then those two are
    // admitted, five more requests follow, and nothing.
    let demands = [(10, 2), (17, 6), (17, 8), (22, 8), (22, 8)].map(|(refused, again)| demand_after(refused, again));
    assert_eq!(demands.map(|demand| demand - demands[0]), [0, 3, 3, 6, 6]);
}
