//! Tests of failing maps. Every kernel map operation that can fail really fails here, on a map that is too small. Also
//! tested are maps that change during a read, keys chosen with knowledge of the seed, and what the program may write.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, IPV6, SOURCE_V6, V4, V6, frame, syn, tcp};
use integration_test::program::{Program, Room, limit, options, policy, rule, tallies};
use netlab::{Bpffs, needs_root};
use ratelimit_common::drop_cache::Key;
use ratelimit_common::hash::HashKey;
use ratelimit_common::layout::{Fault, Unit, map};
use ratelimit_common::packet::Head;
use ratelimit_common::source::{ipv4_mask, ipv6_mask};
use ratelimit_common::time::SECOND_NS;
use ratelimit_datapath::{Datapath as _, Reading};
use ratelimit_kernel::{Beside, Clock, Kernel, Options};
use ratelimit_policy::desired::{Bans, Limit, NewSources, Policy, Rule, Shared, WindowForm, drop_cache_sets};
use ratelimit_policy::fleet::Sum;

const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Return value of the program for a passed packet.
const XDP_PASS: u32 = 2;

/// A program with pinned maps, for other programs that share them.
struct Pinned {
    kernel: Kernel,
    _bpffs: Bpffs,
}

impl Pinned {
    fn new(policy: &Policy, room: Room) -> Self {
        let bpffs = Bpffs::mount().unwrap();
        let options = Options { pins: Some(bpffs.path().join("ratelimitd")), ..options(policy, Clock::Kernel, room) };
        let mut kernel = Kernel::load(&options).unwrap();
        kernel.list_unattached("lo").unwrap();
        kernel.apply(policy).unwrap();
        Self { kernel, _bpffs: bpffs }
    }

    fn reading(&mut self) -> Reading {
        self.kernel.read().unwrap()
    }

    fn faults(&self) -> BTreeMap<Fault, u64> {
        self.kernel.faults().unwrap().into_iter().filter(|(_, count)| *count != 0).collect()
    }
}

/// Returns two rules: one of packets at another port, followed by one of connections that bans.
fn two_rules() -> Policy {
    let first = rule("first", &[22], 1000);
    let limits = policy(&[limit(3, Unit::Connections, WindowForm::Strict)]).rules[0].limits.clone();
    let bans = Some(Bans { steps_ns: vec![10 * MINUTE_NS], forget_ns: 0, needs_proof: false });
    let web = Rule {
        name: "web".into(),
        limits,
        bans,
        ..policy(&[limit(3, Unit::Connections, WindowForm::Strict)]).rules[0].clone()
    };
    Policy { rules: vec![first, web], ..policy(&[]) }
}

fn packets(amount: u64) -> Policy {
    policy(&[limit(amount, Unit::Packets, WindowForm::Strict)])
}

fn syn_v6(last: u8) -> Vec<u8> {
    let mut source = SOURCE_V6;
    source[7] = last;
    frame(IPV6, V6 { source, ..V6::of(TCP) }.around(tcp(80, SYN)))
}

fn syn_of(number: u32) -> Vec<u8> {
    syn(&Ipv4Addr::from(0x1400_0000 + number).to_string(), 80)
}

fn ack_of(number: u32) -> Vec<u8> {
    let mut source = V4::of(TCP);
    source.source = Ipv4Addr::from(0x1400_0000 + number).octets();
    frame(IPV4, source.around(tcp(80, ACK)))
}

/// Returns [`two_rules`] with a budget of new sources in the second rule.
fn budgeted() -> Policy {
    let mut policy = two_rules();
    policy.rules[1].new_sources = Some(NewSources { amount: 1_000_000, window_ns: SECOND_NS });
    policy
}

/// Returns a policy with a limit of packets that a fleet's hosts share. Every second packet is reported to the others.
fn shared(amount: u64) -> Policy {
    let alone = limit(amount, Unit::Packets, WindowForm::Strict);
    policy(&[Limit { shared: Some(Shared { sum: Sum::All, step_bits: 1 }), ..alone }])
}

/// Expected behaviour of a program with a too small map of this name: frames, and how many of them pass.
struct Case {
    map: &'static str,
    entries: u32,
    policy: Policy,
    frames: Vec<Vec<u8>>,
    passes: usize,
    fault: Fault,
    /// Minimum number of counted faults.
    faults_min: u64,
}

fn cases() -> Vec<Case> {
    let over = |frames: Vec<Vec<u8>>, times: usize| frames.iter().cycle().take(frames.len() * times).cloned().collect();
    let case = |map, policy, frames: Vec<Vec<u8>>, passes, fault, faults_min| Case {
        map,
        entries: 1,
        policy,
        frames,
        passes,
        fault,
        faults_min,
    };
    vec![
        // Without a configuration, or without its ports, everything passes as an internal error.
        case(map::CONFIG, packets(3), over(vec![syn_of(1)], 9), 9, Fault::ConfigLookup, 9),
        case(map::PORTS, packets(3), over(vec![syn_of(1)], 9), 9, Fault::PortsLookup, 9),
        // Packets that cannot be counted are limited all the same.
        case(map::COUNTERS, two_rules(), over(vec![syn_of(1)], 9), 3, Fault::CountersLookup, 9),
        case(map::BANS_BEGUN, two_rules(), over(vec![syn_of(1)], 9), 3, Fault::BansBegunLookup, 1),
        case(map::EVENT_TALLIES, two_rules(), over(vec![syn_of(1)], 9), 3, Fault::EventTalliesLookup, 1),
        // Sources that cannot be banned are still limited. The first source takes the only place.
        case(map::BANS_V4, two_rules(), over(vec![syn_of(1), syn_of(2), syn_of(3)], 9), 9, Fault::BansV4Insert, 2),
        case(map::BANS_V6, two_rules(), over(vec![syn_v6(1), syn_v6(2), syn_v6(3)], 9), 9, Fault::BansV6Insert, 2),
        case(map::NEW_SOURCES, budgeted(), over(vec![syn_of(1)], 9), 3, Fault::NewSourcesLookup, 1),
        // Packets that cannot be reported to others are admitted, and reported with the next step. Nobody reads this
        // ring of one page.
        Case {
            entries: 4096,
            ..case(map::STEPS, shared(1000), over(vec![syn_of(1)], 300), 300, Fault::StepsReserve, 40)
        },
        // Without the filter of connections each segment is looked up.
        case(map::CONN_FILTER, packets(3), over((0..64).map(ack_of).collect(), 9), 64 * 3, Fault::ConnFilterLookup, 64),
        // Without the drop cache the windows refuse.
        case(map::DROP_CACHE, packets(3), over((0..64).map(syn_of).collect(), 9), 64 * 3, Fault::DropCacheLookup, 64),
        // Without the filter all sources count as known.
        case(
            map::KNOWN_FILTER,
            packets(3),
            over((0..64).map(syn_of).collect(), 9),
            64 * 3,
            Fault::KnownFilterLookup,
            64,
        ),
        case(
            map::KNOWN_SUMMARY,
            packets(3),
            over((0..64).map(syn_of).collect(), 9),
            64 * 3,
            Fault::KnownSummaryLookup,
            64,
        ),
    ]
}

#[test]
fn every_map_failure_is_counted_and_packets_pass_or_are_limited_anyway() {
    needs_root!();
    for Case { map, entries, policy, frames, passes, fault, faults_min } in cases() {
        let mut pinned = Pinned::new(&policy, Room::default());
        // The same frames with intact maps: nothing fails.
        let whole = if map == map::CONFIG { Some(Beside::load(&pinned.kernel, &[]).unwrap()) } else { None };
        for (frame, whole) in frames.iter().zip(std::iter::repeat(whole.as_ref())) {
            let mut other = frame.clone();
            if let Some(octet) = other.get_mut(if frame[12] == 0x86 { 25 } else { 27 }) {
                *octet = octet.wrapping_add(0x40);
            }
            if let Some(whole) = whole {
                whole.test_run(&other, 1).unwrap();
            }
        }
        assert_eq!(pinned.faults(), BTreeMap::new(), "{map} is whole");
        let before: u64 = tallies(&pinned.reading()).values().sum();
        assert_eq!(before, if whole.is_some() { frames.len() as u64 } else { 0 });

        let failing = Beside::load(&pinned.kernel, &[(map, entries)]).unwrap();
        let passed = frames.iter().filter(|frame| failing.test_run(frame, 1).unwrap().action == XDP_PASS).count();
        assert_eq!(passed, passes, "{map}");
        let faults = pinned.faults();
        assert_eq!(faults.keys().collect::<Vec<_>>(), [&fault], "{map}: {faults:?}");
        assert!(faults[&fault] >= faults_min, "{map}: {faults:?}");
        let after = tallies(&pinned.reading());
        let counted: u64 = after.values().sum();
        // Each packet is counted once, unless the counters themselves fail.
        let expected = if map == map::COUNTERS { before } else { before + frames.len() as u64 };
        assert_eq!(counted, expected, "{map}: {after:?}");
        if [map::CONFIG, map::PORTS].contains(&map) {
            assert_eq!(after.get(&("internal_error", None)), Some(&(passes as u64)), "{map}: {after:?}");
        }
    }
}

#[test]
fn sources_are_read_in_bounded_time_while_every_window_is_replaced_many_times() {
    needs_root!();
    const ROUNDS: usize = 12;
    const CAPACITY: u32 = 4096;
    let room = Room { max_sources: CAPACITY, windows_per_source: 1, ..Room::default() };
    let mut pinned = Pinned::new(&packets(1000), room);
    let program = Beside::load(&pinned.kernel, &[]).unwrap();
    let (is_over, inserted) = (AtomicBool::new(false), AtomicU64::new(0));
    // Enough to fill the map before the first reading.
    for number in 0..2 * CAPACITY {
        program.test_run(&syn_of(number), 1).unwrap();
    }
    let mut seen = Vec::new();
    thread::scope(|scope| {
        let (is_over, inserted) = (&is_over, &inserted);
        scope.spawn(move || {
            let mut frame = syn_of(0);
            let mut number = 2 * CAPACITY;
            while !is_over.load(Ordering::Relaxed) {
                number = number.wrapping_add(1) & 0x00ff_ffff;
                frame[26..30].copy_from_slice(&(0x1400_0000 + number).to_be_bytes());
                program.test_run(&frame, 1).unwrap();
                inserted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut rounds = 0;
        // Until each entry has been replaced ten times, on a machine with other load.
        while rounds < ROUNDS || inserted.load(Ordering::Relaxed) < u64::from(10 * CAPACITY) {
            let began = Instant::now();
            let (mut visits, mut sources) = (0_u32, BTreeSet::new());
            pinned
                .kernel
                .visit_sources(&mut |reading| {
                    visits += 1;
                    sources.insert(reading.prefix);
                })
                .unwrap();
            seen.push((began.elapsed(), visits, sources.len()));
            pinned.kernel.read().unwrap();
            rounds += 1;
            assert!(began.elapsed() < Duration::from_secs(5), "{seen:?}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let (longest, most) = (seen.iter().map(|of| of.0).max().unwrap(), seen.iter().map(|of| of.1).max().unwrap());
    let doubles: u32 = seen.iter().map(|of| of.1 - u32::try_from(of.2).unwrap()).sum();
    let inserted = inserted.load(Ordering::Relaxed);
    println!(
        "{inserted} insertions, {} readings: {longest:?} at most, {most} windows at most, {doubles} twice",
        seen.len()
    );
    // Entries that are inserted during a reading may be read too, and even twice, but not without end.
    assert!(most <= 4 * CAPACITY, "{seen:?}");
    assert!(seen.iter().all(|of| of.1 >= CAPACITY / 2), "{seen:?}");
    assert!(longest < Duration::from_secs(1), "{seen:?}");
}

/// Returns those sources with SYNs in the same drop-cache set as the first source's.
fn sharing_a_place(sources: std::ops::RangeFrom<u32>, seed: HashKey, sets: u32) -> impl Iterator<Item = u32> {
    let mut bytes = syn_of(0);
    let mut place = move |source: u32| {
        bytes[26..30].copy_from_slice(&source.to_be_bytes());
        let head = Head::of(&bytes.as_slice()).unwrap();
        // The epoch is not part of the hash.
        let key = Key::of(&head, 1, ipv4_mask(32), ipv6_mask(64), seed).unwrap();
        key.place(key.hash(seed)) & u64::from(sets - 1)
    };
    let first = place(sources.start);
    sources.filter(move |source| place(*source) == first)
}

#[test]
fn sources_colliding_under_the_seed_are_limited_exactly_at_a_cost_in_time() {
    needs_root!();
    const LIMIT: u64 = 5;
    const CHOSEN: usize = 200;
    let mut program = Program::new(&packets(LIMIT));
    let seed = HashKey(program.kernel().secret());
    let room = Room::default();
    let sets = drop_cache_sets(room.max_sources * room.windows_per_source);
    let mut sharing = sharing_a_place(0x1400_0000.., seed, sets);
    let colliding: Vec<u32> = sharing.by_ref().take(CHOSEN).collect();
    let spread: Vec<u32> = (0x1500_0000..).take(CHOSEN).collect();
    let frames = |of: &[u32]| of.iter().map(|source| syn(&Ipv4Addr::from(*source).to_string(), 80)).collect::<Vec<_>>();
    let mut times = Vec::new();
    for frames in [frames(&spread), frames(&colliding)] {
        for frame in &frames {
            assert_eq!(program.passed(frame, LIMIT + 3), LIMIT);
        }
        // Each source is over its limit, and always refused.
        let refused: u64 = frames.iter().map(|frame| program.passed(frame, 2)).sum();
        assert_eq!(refused, 0);
        let mut of_each: Vec<Duration> = frames.iter().map(|frame| program.time(frame, 1000)).collect();
        of_each.sort_unstable();
        times.push(of_each[CHOSEN / 2]);
    }
    let not_cached = program.kernel().read().unwrap().not_cached;
    assert!(not_cached > 0, "so many do not fit their sets, so this says nothing");
    // A further source in the shared set has its whole limit, and so has one in another set.
    let innocents = [sharing.next().unwrap(), 0x1700_0001];
    for innocent in frames(&innocents) {
        assert_eq!(program.passed(&innocent, LIMIT + 1), LIMIT);
    }
    println!("a refusal takes {:?} at a place of its own, {:?} where {CHOSEN} share one", times[0], times[1]);
    assert!(times[1] < 12 * times[0].max(Duration::from_nanos(40)), "{times:?}");
}

#[test]
fn maps_written_only_by_the_daemon_are_read_only_for_the_program() {
    needs_root!();
    /// `BPF_F_RDONLY_PROG`, include/uapi/linux/bpf.h.
    const RDONLY_PROG: u32 = 1 << 7;
    let mut program = Program::new(&packets(3));
    let flags: BTreeMap<_, _> = program.kernel().map_flags().unwrap().into_iter().collect();
    let read_only: Vec<_> =
        flags.iter().filter(|(_, flags)| **flags & RDONLY_PROG != 0).map(|(name, _)| name.as_str()).collect();
    // The program's statics are another map, which aya makes read-only.
    let ours: Vec<_> = read_only.into_iter().filter(|name| !name.starts_with('.')).collect();
    assert_eq!(
        ours,
        [
            map::ACTIVE,
            map::CHARGE_ORDER,
            map::INJECTED_NOW,
            map::MULTIPLICITIES,
            map::PORTS,
            map::PREFIXES_V4,
            map::PREFIXES_V6,
            map::PREFIX_FILTER,
            map::TARGETS_V4,
            map::TARGETS_V6,
        ],
        "{flags:?}"
    );
    // The program writes all other maps: counters, windows, bans, caches.
    assert!(flags.len() > 30, "{flags:?}");
}

#[test]
fn a_pin_that_was_opened_to_be_read_cannot_be_written_through() {
    needs_root!();
    let pinned = Pinned::new(&packets(3), Room::default());
    assert!(!pinned.kernel.a_reader_can_write().unwrap());
}
