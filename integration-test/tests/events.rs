//! Events about sources that start to be refused or banned. Each event is sent once, and unsent events are counted.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use integration_test::frames::syn;
use integration_test::program::{Program, Room, TEN_O_CLOCK, cpus, events, limit, on_cpu, on_one_cpu, policy};
use netlab::{Bpffs, needs_root};
use ratelimit_common::admission::BUDGET_ANY;
use ratelimit_common::events::BUDGET;
use ratelimit_common::layout::{EVENTS_BYTES, EVENTS_MAX, EVENTS_OF_REFUSALS_BYTES, Unit};
use ratelimit_common::source::Family;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::Reason;
use ratelimit_datapath::{Datapath as _, EventCount, EventCounts, EventLimit, KernelEvent, KernelEventKind};
use ratelimit_kernel::{Clock, Events, Kernel, Options, Passed};
use ratelimit_policy::config::{HookChoice, OnExit, XdpModeChoice};
use ratelimit_policy::desired::{Bans, Limit, Mode, Policy, Refuse, WindowForm};

const MINUTE_NS: u64 = 60 * SECOND_NS;
const PERIOD_NS: u64 = 1 << 27;

fn connections(amount: u64) -> Limit {
    limit(amount, Unit::Connections, WindowForm::Strict)
}

/// Returns a policy that refuses everything, so that each refusal is by the window and none is cached.
fn refusing_all(limits: &[Limit]) -> Policy {
    let mut policy = policy(limits);
    policy.rules[0].refuse = Refuse::All;
    policy
}

/// Returns the event of a first refusal by the first limit of the first rule, with this use.
fn refused(client: &str, used: u64, time: Nanos) -> KernelEvent {
    KernelEvent {
        time,
        kind: KernelEventKind::Refused,
        client: client.parse().unwrap(),
        rule: Some(0),
        limit: Some(EventLimit::Held(0)),
        reason: Reason::OverLimit,
        guard: None,
        is_verified: false,
        used,
    }
}

/// Returns the SYN of the source with this number.
fn syn_of(number: u32) -> Vec<u8> {
    syn(&Ipv4Addr::from_bits(10 << 24 | number).to_string(), 80)
}

#[test]
fn the_first_refusal_of_a_source_in_a_bucket_is_one_event_and_the_second_none() {
    needs_root!();
    let mut program = Program::new(&refusing_all(&[connections(2)]));
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 2), 2);
    assert_eq!(program.events(), [], "at the limit is not over it");
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 3), 0);
    assert_eq!(program.events(), [refused("198.51.100.7/32", 2, TEN_O_CLOCK)]);
    assert_eq!(program.events(), [], "each is told once");
    // In the next bucket again, and for another source, also of IPv6.
    program.advance(MINUTE_NS);
    let now = program.now();
    assert_eq!(program.passed(&syn("198.51.100.7", 80), 3), 0);
    assert_eq!(program.passed(&syn("198.51.100.8", 80), 5), 2);
    assert_eq!(program.passed(&syn("2001:db8:0:7::9", 80), 5), 2);
    let expected = ["198.51.100.7/32", "198.51.100.8/32", "2001:db8:0:7::/64"].map(|client| refused(client, 2, now));
    assert_eq!(program.events(), expected);
    assert_eq!(program.event_counts().refused, EventCount { sent: 4, lost: 0 });
}

#[test]
fn drop_cache_drops_send_no_event_until_the_window_is_asked_again() {
    needs_root!();
    let mut program = Program::new(&policy(&[connections(1)]));
    assert_eq!(program.passed(&syn_of(7), 10), 1);
    for _ in 0..5 {
        program.advance(MINUTE_NS);
        assert_eq!(program.passed(&syn_of(7), 10), 0);
    }
    assert_eq!(program.events(), [refused("10.0.0.7/32", 1, TEN_O_CLOCK)]);
    program.advance(MINUTE_NS);
    assert_eq!(program.passed(&syn_of(7), 10), 1);
    assert_eq!(program.events(), [refused("10.0.0.7/32", 1, Nanos(TEN_O_CLOCK.0 + 6 * MINUTE_NS))]);
}

#[test]
fn each_limit_tells_for_itself_and_what_it_has_used() {
    needs_root!();
    // The first limit refuses nothing. The second counts bytes, 54 in each packet.
    let limits = [limit(9, Unit::Packets, WindowForm::Strict), limit(120, Unit::Bytes, WindowForm::Strict)];
    let mut program = Program::new(&refusing_all(&limits));
    let frame = syn_of(7);
    let bytes = u64::try_from(frame.len()).unwrap() - 14;
    let fit = 120 / bytes;
    assert_eq!(program.passed(&frame, 9), fit);
    let expected = KernelEvent { limit: Some(EventLimit::Held(1)), ..refused("10.0.0.7/32", fit * bytes, TEN_O_CLOCK) };
    assert_eq!(program.events(), [expected]);
    let leaky = Limit { form: WindowForm::Gcra, buckets: 1, bucket_ns: MINUTE_NS, window_ns: MINUTE_NS, ..limits[0] };
    program.apply(&refusing_all(&[Limit { slot: 99, ..leaky }]));
    assert_eq!(program.passed(&syn_of(8), 20), 9);
    assert_eq!(program.events(), [refused("10.0.0.8/32", 9, TEN_O_CLOCK)]);
}

#[test]
fn dry_run_and_shadow_limits_tell_that_they_would() {
    needs_root!();
    let mut dry = policy(&[connections(2)]);
    dry.rules[0].mode = Mode::DryRun;
    let mut program = Program::new(&dry);
    assert_eq!(program.passed(&syn_of(7), 9), 9);
    let would = KernelEvent { kind: KernelEventKind::WouldRefuse, ..refused("10.0.0.7/32", 2, TEN_O_CLOCK) };
    assert_eq!(program.events(), [would]);
    let mut shadowed = policy(&[connections(5)]);
    shadowed.rules[0].shadow_limits = vec![Limit { slot: 77, ..connections(3) }];
    program.apply(&shadowed);
    assert_eq!(program.passed(&syn_of(8), 9), 5);
    let client = "10.0.0.8/32".parse().unwrap();
    let expected = [
        KernelEvent { limit: Some(EventLimit::Shadow(0)), used: 3, client, ..would },
        refused("10.0.0.8/32", 5, TEN_O_CLOCK),
    ];
    assert_eq!(program.events(), expected);
    let counts = program.event_counts();
    assert_eq!((counts.would_refuse, counts.refused.sent), (EventCount { sent: 2, lost: 0 }, 1));
}

#[test]
fn a_ban_is_told_with_its_step_and_its_end_also_where_an_application_orders_it() {
    needs_root!();
    let mut banning = policy(&[connections(1)]);
    let steps_ns = vec![20 * SECOND_NS, 40 * SECOND_NS];
    banning.rules[0].bans = Some(Bans { steps_ns, forget_ns: 3600 * SECOND_NS, needs_proof: false });
    let mut program = Program::new(&banning);
    assert_eq!(program.passed(&syn_of(7), 9), 1);
    let ban = |event: KernelEvent, step, seconds| {
        let kind = KernelEventKind::Ban { until: Nanos(event.time.0 + seconds * SECOND_NS), step };
        KernelEvent { kind, reason: Reason::Banned, ..event }
    };
    let first = refused("10.0.0.7/32", 1, TEN_O_CLOCK);
    assert_eq!(program.events(), [first, ban(first, 1, 20)]);
    program.advance(6 * MINUTE_NS);
    assert_eq!(program.passed(&syn_of(7), 9), 1);
    let second = refused("10.0.0.7/32", 1, program.now());
    assert_eq!(program.events(), [second, ban(second, 2, 40)]);
    let now = program.now();
    program.kernel().charge("10.0.0.8/32".parse().unwrap(), 0, 5).unwrap();
    let ordered = refused("10.0.0.8/32", 5, now);
    assert_eq!(program.events(), [ban(ordered, 1, 20)]);
    assert_eq!(program.event_counts().ban, EventCount { sent: 3, lost: 0 });
}

#[test]
fn every_refusal_of_a_flood_is_sent_or_counted_as_lost_on_each_cpu() {
    needs_root!();
    const EACH: u32 = 2000;
    let mut program = Program::new(&policy(&[connections(1)]));
    let (cpus, budget) = (cpus(), u64::from(BUDGET));
    let mut begun = 0;
    for periods in 1..=2 {
        for (number, cpu) in (0..).zip(&cpus) {
            on_cpu(*cpu);
            let first = (periods * 64 + number) * EACH;
            (first..first + EACH).for_each(|source| assert_eq!(program.passed(&syn_of(source), 2), 1));
        }
        begun += u64::from(EACH) * cpus.len() as u64;
        let EventCount { sent, lost } = program.event_counts().refused;
        assert_eq!((sent, sent + lost), (u64::from(periods) * budget * cpus.len() as u64, begun));
        let told = program.events();
        assert_eq!(told.len(), BUDGET as usize * cpus.len(), "what is sent is read");
        program.advance(PERIOD_NS);
    }
    // Bans have their own budget.
    assert_eq!(program.event_counts().lost(), begun - 2 * budget * cpus.len() as u64);
}

#[test]
fn events_fill_the_unread_ring_and_further_ones_are_counted_as_lost() {
    needs_root!();
    on_one_cpu();
    let mut program = Program::new(&policy(&[connections(1)]));
    let mut begun = 0_u32;
    while begun < 20_000 {
        for _ in 0..BUDGET {
            program.passed(&syn_of(begun), 2);
            begun += 1;
        }
        program.advance(PERIOD_NS);
    }
    let EventCount { sent, lost } = program.event_counts().refused;
    assert_eq!(sent + lost, u64::from(begun));
    let each = u64::from(EVENTS_BYTES) / EVENTS_MAX as u64;
    let room = u64::from(EVENTS_OF_REFUSALS_BYTES) / each;
    assert!((room..=room + 1).contains(&sent), "{sent} of {room}");

    let mut banning = policy(&[connections(1)]);
    let steps_ns = vec![20 * SECOND_NS];
    banning.rules[0].bans = Some(Bans { steps_ns, forget_ns: 3600 * SECOND_NS, needs_proof: false });
    program.apply(&banning);
    assert_eq!(program.passed(&syn_of(begun), 9), 1);
    let EventCounts { refused, ban, .. } = program.event_counts();
    assert_eq!((refused.sent, refused.lost), (sent, lost + 1), "there is room for bans alone");
    assert_eq!(ban, EventCount { sent: 1, lost: 0 });

    assert_eq!(program.events().len() as u64, sent + 1);
    program.passed(&syn_of(begun + 1), 2);
    assert_eq!(program.events().len(), 2, "the ring takes more");
}

fn kept(root: &std::path::Path) -> Kernel {
    let options = Options {
        pins: Some(root.to_owned()),
        hook: HookChoice::Auto,
        xdp_mode: XdpModeChoice::Auto,
        max_sources: 256,
        windows_per_source: 1,
        insertions_max: BUDGET_ANY,
        insertions_free: 0,
        ipv6_family: Family::V6,
        clock: Clock::Kernel,
        passed: Passed::On,
        events: Events::On,
    };
    Kernel::load(&options).unwrap()
}

#[test]
fn events_between_two_daemons_are_reported_to_the_second_daemon() {
    needs_root!();
    let bpffs = Bpffs::mount().unwrap();
    let root = bpffs.path().join("ratelimitd");
    let policy = policy(&[connections(1)]);
    let mut first = kept(&root);
    assert_eq!(events(&mut first), [], "without a policy there are no names");
    first.apply(&policy).unwrap();
    let run = |kernel: &mut Kernel, number| {
        for _ in 0..4 {
            kernel.test_run(&syn_of(number), 1).unwrap();
        }
    };
    run(&mut first, 1);
    assert_eq!(events(&mut first).len(), 1);
    run(&mut first, 2);
    first.shutdown(OnExit::Keep).unwrap();
    drop(first);
    let mut second = kept(&root);
    assert_eq!(events(&mut second), [], "it waits for the names");
    second.apply(&policy).unwrap();
    run(&mut second, 3);
    let told: Vec<_> = events(&mut second).iter().map(|event| event.client.to_string()).collect();
    assert_eq!(told, ["10.0.0.2/32", "10.0.0.3/32"]);
    assert_eq!(second.read().unwrap().events.refused, EventCount { sent: 3, lost: 0 });
    second.shutdown(OnExit::Detach).unwrap();
}

#[test]
fn each_of_a_million_newly_refused_sources_is_sent_or_counted_as_lost() {
    needs_root!();
    const SOURCES: u32 = 1_000_000;
    on_one_cpu();
    let room = Room { max_sources: 1_100_000, windows_per_source: 1, ..Room::default() };
    let mut program = Program::with_events(&policy(&[connections(1)]), room, Events::On);
    let mut told: BTreeMap<u64, u64> = BTreeMap::new();
    let mut hear = |program: &mut Program| {
        program.events().iter().for_each(|event| *told.entry(event.time.0 / PERIOD_NS).or_default() += 1);
    };
    let mut frame = syn_of(0);
    for source in 0..SOURCES {
        frame[26..30].copy_from_slice(&(10 << 24 | source).to_be_bytes());
        program.passes(&frame);
        program.passes(&frame);
        // The daemon reads a few times per second.
        if source % 4096 == 0 {
            hear(&mut program);
        }
    }
    hear(&mut program);
    let counts = program.counts();
    assert_eq!((counts["within_limit"], counts["over_limit"]), (SOURCES.into(), SOURCES.into()));
    let EventCount { sent, lost } = program.event_counts().refused;
    println!("{sent} sent, {lost} lost of {SOURCES}, in {} periods", told.len());
    assert_eq!((sent + lost, told.values().sum::<u64>()), (SOURCES.into(), sent));
    // In each period far more refusals start than the budget allows, so exactly the budget is sent. The first and last
    // periods are incomplete, and in a few others this thread may have had no time.
    assert!(told.len() >= 4, "{told:?}");
    let whole: Vec<u64> = told.values().copied().skip(1).take(told.len() - 2).collect();
    let full = whole.iter().filter(|sent| **sent == u64::from(BUDGET)).count();
    assert!(full * 10 >= whole.len() * 9, "{told:?}");
    assert!(told.values().all(|sent| *sent <= u64::from(BUDGET)), "{told:?}");
}

/// Number of sources that start to be refused in a period if a million do within a minute.
const SOURCES_OF_A_PERIOD: u32 = 2240;
/// Number of sources that are timed together. Other load on the machine affects few groups.
const TOGETHER: u32 = 32;
const PAIRS: usize = 3;
const ROUNDS: u32 = 10;
/// Maximum number of pairs of programs. The position of a program's maps in memory changes its time by a tenth, so more
/// pairs give a better estimate of the events' cost.
const PAIRS_MAX: usize = 7;

/// Returns the program's time for the packets of [`SOURCES_OF_A_PERIOD`] new sources, half of which are within the
/// limit. There is one time for each [`TOGETHER`] of them, in the order in which they use the budget.
fn times_of(program: &mut Program, first: u32, packets_each: u32) -> Vec<Duration> {
    let together = |first: u32| {
        (first..first + TOGETHER)
            .map(|number| {
                let frame = syn_of(number);
                (0..packets_each).map(|_| program.time(&frame, 1)).sum::<Duration>()
            })
            .sum()
    };
    (first..first + SOURCES_OF_A_PERIOD).step_by(TOGETHER as usize).map(together).collect()
}

/// Returns the mean time of a packet with events and without, from the best round of each [`TOGETHER`] sources. The
/// order of loading may matter, so it alternates between pairs.
fn time_of_a_pair(packets_each: u32, is_on_first: bool) -> [Duration; 2] {
    let room = Room { max_sources: 100_000, windows_per_source: 1, ..Room::default() };
    let policy = policy(&[connections(u64::from(packets_each) / 2)]);
    let order = if is_on_first { [Events::On, Events::Off] } else { [Events::Off, Events::On] };
    let mut programs = order.map(|events| Program::with_events(&policy, room, events));
    if !is_on_first {
        programs.reverse();
    }
    let mut best = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        for (program, best) in programs.iter_mut().zip(&mut best) {
            // Each round has its own budget, as each period has.
            std::thread::sleep(Duration::from_nanos(PERIOD_NS));
            let times = times_of(program, round * SOURCES_OF_A_PERIOD, packets_each);
            best.resize(times.len(), Duration::MAX);
            best.iter_mut().zip(times).for_each(|(best, time)| *best = time.min(*best));
            program.events();
        }
    }
    let counts = programs.each_mut().map(|program| program.event_counts().refused);
    assert_eq!(counts[0].sent + counts[0].lost, u64::from(ROUNDS * SOURCES_OF_A_PERIOD));
    assert!(counts[0].sent >= u64::from(ROUNDS * BUDGET), "{counts:?}");
    assert_eq!(counts[1], EventCount::default());
    best.map(|best| best.iter().sum::<Duration>() / (SOURCES_OF_A_PERIOD * packets_each))
}

/// Returns a lower bound of the mean of these ratios: the mean less two of its standard errors.
fn at_least(ratios: &[f64]) -> f64 {
    let count = f64::from(u32::try_from(ratios.len()).unwrap());
    let mean = ratios.iter().sum::<f64>() / count;
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.0);
    mean - 2.0 * (variance / count).sqrt()
}

#[test]
fn events_add_less_than_a_twentieth_to_the_cost_of_new_refusals() {
    needs_root!();
    const EACH: u32 = 2;
    on_one_cpu();
    let mut ratios: Vec<f64> = Vec::new();
    while ratios.len() < PAIRS || (ratios.len() < PAIRS_MAX && at_least(&ratios) > 1.05) {
        let [on, off] = time_of_a_pair(EACH, ratios.len().is_multiple_of(2));
        println!("{on:?} a packet with events, {off:?} without");
        ratios.push(on.as_secs_f64() / off.as_secs_f64());
    }
    assert!(at_least(&ratios) <= 1.05, "{ratios:?}");
}
