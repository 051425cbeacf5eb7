//! Tests of the multiplicity of sources that log lines took over their limit.

use super::SECOND;
use crate::{Reconciler, Settings};

const FULL: u8 = 5;
const WINDOW: u64 = FULL as u64 * SECOND;
const START: u64 = 1_000 * SECOND;

fn reconciler(amount: u64) -> Reconciler<u32> {
    let multiplicity_max = u16::try_from(amount).unwrap();
    Reconciler::new(Settings { amount, multiplicity_max, ..Settings::new(SECOND, FULL) })
}

/// Makes a source take `turns` turns in a new bucket, charged by its multiplicity and logged as `lines`. Returns the
/// charge.
fn turn(reconciler: &mut Reconciler<u32>, key: u32, now: u64, turns: u64, lines: u64) -> u64 {
    let given = u64::from(reconciler.multiplicity(key, now));
    reconciler.settle(key, now, lines, &[(now / SECOND, turns * given)])
}

#[test]
fn a_source_within_its_limit_is_charged_one_request_a_turn_whatever_a_turn_has() {
    let mut reconciler = reconciler(100);
    assert_eq!(turn(&mut reconciler, 1, START, 1, 60), 59);
    assert_eq!(reconciler.multiplicity(1, START), 1);
    // A tenth over the limit is tolerated too.
    assert_eq!(turn(&mut reconciler, 2, START, 55, 110), 55);
    assert_eq!(reconciler.multiplicity(2, START), 1);
    // Counts from packets alone have no effect either.
    assert_eq!(turn(&mut reconciler, 3, START, 200, 200), 0);
    assert_eq!(reconciler.multiplicity(3, START), 1);
}

#[test]
fn a_source_over_its_limit_by_log_lines_is_forgiven_after_eight_windows() {
    let mut reconciler = reconciler(101);
    assert_eq!(turn(&mut reconciler, 1, START, 100, 2_300), 2_200);
    for (windows, expected) in [(0, 101), (2, 101), (4, 101), (6, 51), (8, 1), (80, 1)] {
        assert_eq!(reconciler.multiplicity(1, START + windows * WINDOW), expected, "after {windows}");
    }
    // Small turns meanwhile change nothing.
    assert_eq!(turn(&mut reconciler, 1, START + 6 * WINDOW, 1, 1), 0);
    assert_eq!(reconciler.multiplicity(1, START + 6 * WINDOW), 51);
    // Other sources are not affected.
    assert_eq!(reconciler.multiplicity(2, START), 1);
    reconciler.forget(1);
    assert_eq!(reconciler.multiplicity(1, START), 1, "its counters were reset");
}

#[test]
fn sources_beyond_their_limits_take_bounded_memory() {
    let sources_max = 2_000;
    let settings = Settings { amount: 10, multiplicity_max: 10, sources_max, ..Settings::new(SECOND, FULL) };
    let mut reconciler = Reconciler::new(settings);
    for key in 0..10_000 {
        turn(&mut reconciler, key, START, 1, 100);
        assert_eq!(reconciler.multiplicity(key, START), 10);
    }
    let beyond = |now| (0..10_000).filter(|key| reconciler.multiplicity(*key, now) > 1).count();
    assert_eq!(beyond(START), sources_max);
    assert_eq!(beyond(START + 8 * WINDOW), 0);
}

/// Returns the admissions per window of a client that sends as many turns as the kernel admits. `streams` returns the
/// number of requests in each turn of a window.
fn closed_loop(limit: u64, connections: u64, streams: impl Fn(u64) -> u64, lag: u64) -> Vec<u64> {
    const TICK: u64 = SECOND / 20;
    let mut reconciler = reconciler(limit);
    let mut kernel = std::collections::BTreeMap::<u64, u64>::new();
    let (mut lines, mut served) = (std::collections::VecDeque::new(), Vec::new());
    for tick in 0..36 * WINDOW / TICK {
        let now = START + tick * TICK;
        let bucket = now / SECOND;
        kernel.retain(|number, _| number + u64::from(FULL) >= bucket);
        let charge = u64::from(reconciler.multiplicity(1, now));
        for _ in 0..connections {
            if kernel.values().sum::<u64>() + charge <= limit {
                *kernel.entry(bucket).or_default() += charge;
                let streams = streams(tick * TICK / WINDOW);
                lines.push_back((now + lag, streams));
                served.push((tick * TICK / WINDOW, streams));
            }
        }
        let mut read = 0;
        while let Some((_, count)) = lines.pop_front_if(|(at, _)| *at <= now) {
            read += count;
        }
        if read > 0 {
            let counts: Vec<_> = kernel.iter().map(|(number, total)| (*number, *total)).collect();
            *kernel.entry(bucket).or_default() += reconciler.settle(1, now, read, &counts);
        }
    }
    let windows = 0..36;
    windows.map(|window| served.iter().filter(|(of, _)| *of == window).map(|(_, count)| count).sum()).collect()
}

#[test]
fn after_its_first_window_a_multiplexing_client_is_held_to_the_limit_on_average() {
    for (streams, lag) in [(100, 0), (100, SECOND / 4), (33, SECOND / 2), (10, SECOND / 4), (100, SECOND)] {
        let served = closed_loop(100, 20, |_| streams, lag);
        println!("{streams} streams, lag {lag}: {served:?}");
        assert!(served[1..4].iter().all(|count| *count <= 110), "{streams} {lag}: {served:?}");
        let average = served[1..].iter().sum::<u64>() / 35;
        assert!(average <= 150, "{streams} {lag}: {average}: {served:?}");
    }
    assert!(closed_loop(100, 20, |_| 1, SECOND / 4).iter().all(|count| *count <= 100));
}

/// Tests a client that makes turns of one request in every second window, as new connections do.
#[test]
fn a_client_whose_turns_are_small_at_times_does_not_burst_again_in_the_next_window() {
    let served = closed_loop(100, 20, |window| if window % 2 == 0 { 100 } else { 1 }, SECOND / 4);
    println!("{served:?}");
    assert!(served[1..4].iter().all(|count| *count <= 110), "{served:?}");
}

#[test]
fn a_client_whose_turns_exceed_the_limit_has_one_turn_a_window() {
    let served = closed_loop(31, 20, |_| 100, SECOND / 4);
    println!("{served:?}");
    assert!(served[1..4].iter().all(|count| *count <= 100), "{served:?}");
}

/// Prints the rate. An unoptimised build has to reconcile 400 000 lines in 8 seconds of one CPU.
#[test]
fn lines_of_many_sources_are_reconciled_fast() {
    let mut reconciler = Reconciler::new(Settings { sources_max: 20_000, ..Settings::new(SECOND, FULL) });
    let begin = super::cpu_time();
    let mut lines = 0;
    for round in 0..10 {
        let now = START + round * SECOND / 10;
        for key in 0..20_000 {
            let _ = reconciler.settle(key, now, 2, &[(now / SECOND, 2 * (round + 1))]);
            let _ = reconciler.multiplicity(key, now);
            lines += 2;
        }
    }
    let taken = super::cpu_time() - begin;
    println!("{:.0} lines a second", f64::from(lines) / taken.as_secs_f64());
    assert!(taken < std::time::Duration::from_secs(8), "{taken:?}");
}
