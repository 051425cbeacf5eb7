//! Multiplicity of sources and of the rule.

use super::SECOND;
use crate::{Multiplicity, Reconciler, Settings};

const FULL: u8 = 5;
const WINDOW: u64 = FULL as u64 * SECOND;
const START: u64 = 1_000 * SECOND;

fn reconciler() -> Reconciler<u32> {
    Reconciler::new(Settings::new(SECOND, FULL))
}

/// Has a source make `turns` turns in a new bucket, charged by its multiplicity, and logged as `lines`.
fn turn(reconciler: &mut Reconciler<u32>, key: u32, now: u64, turns: u64, lines: u64) -> u64 {
    let given = reconciler.multiplicity(key, now);
    reconciler.logged(key, now, lines, None);
    reconciler.counted(key, now, &[(now / SECOND, turns * u64::from(given.sixteenths()) / 16)]);
    reconciler.settle(key, now)
}

#[test]
fn a_multiplicity_is_one_at_least_and_has_a_largest() {
    assert_eq!(Multiplicity::from_sixteenths(0), Multiplicity::ONE);
    assert_eq!(Multiplicity::from_whole(1000).sixteenths(), 16_000);
    assert_eq!(Multiplicity::from_whole(u16::MAX), Multiplicity::MAX);
    let mut reconciler = reconciler();
    turn(&mut reconciler, 1, START, 1, 1_000_000);
    assert_eq!(reconciler.multiplicity(1, START), Multiplicity::from_whole(1000));
}

#[test]
fn a_source_of_one_request_a_turn_keeps_a_multiplicity_of_one() {
    let mut reconciler = reconciler();
    for second in 0..20 {
        assert_eq!(turn(&mut reconciler, 1, START + second * SECOND, 3, 3), 0);
        assert_eq!(reconciler.multiplicity(1, START + second * SECOND), Multiplicity::ONE);
    }
}

#[test]
fn the_quotient_is_held_for_a_window_and_a_bucket_and_then_decays_over_one_window() {
    let mut reconciler = reconciler();
    assert_eq!(turn(&mut reconciler, 1, START, 2, 82), 80);
    let hold = WINDOW + SECOND;
    // A sixteenth is given up each window of five seconds, beside what decays after the hold.
    let given_up = |half_seconds: u16| 4 * (160 - half_seconds);
    let ages = [
        (0, 41 * 16),
        (hold, 16 + given_up(12)),
        (hold + WINDOW / 2, 16 + given_up(17) / 2),
        (hold + WINDOW, 16),
        (9 * WINDOW, 16),
    ];
    for (age, sixteenths) in ages {
        let whole = Multiplicity::from_whole((sixteenths + 8) / 16);
        assert_eq!(reconciler.multiplicity(1, START + age), whole, "{age}");
    }
}

#[test]
fn once_learned_turns_are_charged_in_time() {
    let mut reconciler = reconciler();
    let charges: Vec<_> = (0..40).map(|second| turn(&mut reconciler, 1, START + second * SECOND, 1, 100)).collect();
    assert_eq!(charges[0], 99);
    assert!(charges[1..].iter().all(|charge| *charge <= 5), "{charges:?}");
    let learned = reconciler.multiplicity(1, START + 39 * SECOND);
    assert!((95 * 16..=105 * 16).contains(&learned.sixteenths()), "{learned:?}");
}

#[test]
fn a_source_that_stops_multiplexing_is_overcharged_for_a_window_at_most() {
    let mut reconciler = reconciler();
    let mut now = START;
    turn(&mut reconciler, 1, now, 3, 60);
    let mut charged = 0;
    for _ in 0..100 {
        now += SECOND;
        // One request, and its line a moment later.
        charged += u64::from(reconciler.multiplicity(1, now).sixteenths()) / 16;
        assert_eq!(turn(&mut reconciler, 1, now, 1, 1), 0);
    }
    assert_eq!(reconciler.multiplicity(1, now), Multiplicity::ONE);
    assert!(charged < 100 + 200, "{charged}");
}

#[test]
fn a_source_that_turns_to_requests_of_one_each_is_at_one_in_time() {
    let mut reconciler = reconciler();
    turn(&mut reconciler, 1, START, 1, 20);
    let mut now = START;
    // The kernel charges each of them as one, whatever the multiplicity.
    while reconciler.multiplicity(1, now) > Multiplicity::ONE {
        now += SECOND;
        reconciler.logged(1, now, 1, None);
        reconciler.counted(1, now, &[(now / SECOND, 1)]);
        assert_eq!(reconciler.settle(1, now), 0);
        assert!(now < START + 17 * WINDOW);
    }
}

/// Each window's admissions of a client that sends as many turns of `streams` requests as the kernel admits.
fn closed_loop(limit: u64, connections: u64, streams: u64, lag: u64) -> Vec<u64> {
    const TICK: u64 = SECOND / 20;
    let multiplicity_max = Multiplicity::from_whole(u16::try_from(limit).unwrap());
    let mut reconciler = Reconciler::new(Settings { multiplicity_max, ..Settings::new(SECOND, FULL) });
    let mut kernel = std::collections::BTreeMap::<u64, u64>::new();
    let (mut lines, mut served) = (std::collections::VecDeque::new(), Vec::new());
    for tick in 0..36 * WINDOW / TICK {
        let now = START + tick * TICK;
        let bucket = now / SECOND;
        kernel.retain(|number, _| number + u64::from(FULL) >= bucket);
        let charge = u64::from(reconciler.multiplicity(1, now).sixteenths()) / 16;
        for _ in 0..connections {
            if kernel.values().sum::<u64>() + charge <= limit {
                *kernel.entry(bucket).or_default() += charge;
                lines.push_back((now + lag, streams));
                served.push((tick * TICK / WINDOW, streams));
            }
        }
        while let Some((_, count)) = lines.pop_front_if(|(at, _)| *at <= now) {
            reconciler.logged(1, now, count, None);
        }
        for key in reconciler.take_unsettled() {
            let counts: Vec<_> = kernel.iter().map(|(number, total)| (*number, *total)).collect();
            reconciler.counted(key, now, &counts);
            *kernel.entry(bucket).or_default() += reconciler.settle(key, now);
        }
    }
    let windows = 0..36;
    windows.map(|window| served.iter().filter(|(of, _)| *of == window).map(|(_, count)| count).sum()).collect()
}

#[test]
fn after_its_first_window_a_multiplexing_client_is_held_to_the_limit() {
    // A lag of up to a tenth of the window, and of a fifth of it.
    for (streams, lag) in
        [(100, 0), (100, SECOND / 4), (33, SECOND / 2), (10, SECOND / 4), (7, SECOND / 2), (1, SECOND)]
    {
        let served = closed_loop(100, 20, streams, lag);
        println!("{streams} streams, lag {lag}: {served:?}");
        assert!(served[1..].iter().all(|count| *count <= 112), "{streams} {lag}: {served:?}");
    }
    for (streams, lag) in [(100, SECOND), (7, SECOND), (3, SECOND)] {
        let served = closed_loop(100, 20, streams, lag);
        println!("{streams} streams, lag {lag}: {served:?}");
        assert!(served[1..].iter().all(|count| *count <= 250), "{streams} {lag}: {served:?}");
        assert!(served[1..].iter().sum::<u64>() <= 105 * 35, "{streams} {lag}: {served:?}");
    }
}

/// Loads a page of 60 requests in three turns, and then sends one request a second.
#[test]
fn a_browser_is_overcharged_little() {
    let bucket_ns = 12 * SECOND;
    let mut reconciler = Reconciler::new(Settings::new(bucket_ns, FULL));
    let mut kernel = std::collections::BTreeMap::<u64, u64>::new();
    let mut lines = std::collections::VecDeque::new();
    let (mut sent, mut charged) = (0, 0);
    let mut charges = Vec::new();
    for tick in 0..4 * 50 {
        let now = START / 12 * 12 + tick * SECOND / 4;
        let bucket = now / bucket_ns;
        let given = u64::from(reconciler.multiplicity(1, now).sixteenths()) / 16;
        let turn = match tick {
            0..3 => Some(20),
            _ if tick % 4 == 0 && tick >= 12 => Some(1),
            _ => None,
        };
        if let Some(requests) = turn {
            *kernel.entry(bucket).or_default() += given;
            lines.push_back((now + SECOND / 3, requests));
            charges.push(given);
            sent += requests;
            charged += given;
        }
        while let Some((_, count)) = lines.pop_front_if(|(at, _)| *at <= now) {
            reconciler.logged(1, now, count, None);
        }
        for key in reconciler.take_unsettled() {
            let counts: Vec<_> = kernel.iter().map(|(number, total)| (*number, *total)).collect();
            reconciler.counted(key, now, &counts);
            let charge = reconciler.settle(key, now);
            *kernel.entry(bucket).or_default() += charge;
            charged += charge;
        }
    }
    println!("{sent} sent, {charged} charged: {charges:?}");
    assert!((sent..=sent + 60).contains(&charged), "{sent} sent, {charged} charged: {charges:?}");
}

#[test]
fn a_client_whose_turns_exceed_the_limit_has_one_turn_a_window() {
    let served = closed_loop(31, 20, 100, SECOND / 4);
    println!("{served:?}");
    assert!(served[1..].iter().all(|count| *count <= 100), "{served:?}");
}

/// Prints the rate. An unoptimised build has to reconcile 500 000 lines in 8 seconds of one CPU.
#[test]
fn lines_of_many_sources_are_reconciled_fast() {
    let mut reconciler = Reconciler::new(Settings { sources_max: 20_000, ..Settings::new(SECOND, FULL) });
    let begin = super::cpu_time();
    let mut lines = 0;
    for round in 0..10 {
        let now = START + round * SECOND / 10;
        for line in 0..50_000 {
            reconciler.logged(line % 20_000, now, 1, Some(now));
            lines += 1;
        }
        for key in reconciler.take_unsettled() {
            reconciler.counted(key, now, &[(now / SECOND, 2 * (round + 1))]);
            let _ = reconciler.settle(key, now);
            reconciler.multiplicity(key, now);
        }
    }
    let taken = super::cpu_time() - begin;
    println!("{:.0} lines a second", f64::from(lines) / taken.as_secs_f64());
    assert!(taken < std::time::Duration::from_secs(8), "{taken:?}");
}

#[test]
fn a_source_that_lines_take_beyond_its_limit_has_the_largest_multiplicity_for_a_while() {
    let most = Multiplicity::from_whole(100);
    let settings = Settings { multiplicity_max: most, amount: Some(100), ..Settings::new(SECOND, FULL) };
    let mut reconciler = Reconciler::new(settings);
    // A tenth beyond is no offence, whatever a turn stood for.
    assert_eq!(turn(&mut reconciler, 1, START, 55, 110), 55);
    assert_eq!(reconciler.multiplicity(1, START), Multiplicity::ONE);
    // Most turns of this one were a single request.
    assert_eq!(turn(&mut reconciler, 2, START, 100, 2_300), 2_200);
    let hold = WINDOW + SECOND;
    assert_eq!(reconciler.multiplicity(2, START), most);
    assert_eq!(reconciler.multiplicity(2, START + hold), most);
    assert!(reconciler.multiplicity(2, START + hold + WINDOW / 2) < most);
    assert_eq!(reconciler.multiplicity(2, START + hold + WINDOW), Multiplicity::ONE);
    // As long as its turns are as large it is not forgiven.
    assert_eq!(turn(&mut reconciler, 3, START, 100, 2_300), 2_200);
    let mut at = START;
    for _ in 0..6 {
        at += hold;
        assert_eq!(turn(&mut reconciler, 3, at, 1, 100), 0);
        assert_eq!(reconciler.multiplicity(3, at), most);
    }
    // What lines do not exceed is no offence, also of a source that was charged the most.
    assert_eq!(turn(&mut reconciler, 2, START + 2 * hold + WINDOW, 90, 90), 0);
    assert_eq!(reconciler.multiplicity(2, START + 2 * hold + WINDOW), Multiplicity::ONE);
}

#[test]
fn a_source_beyond_its_limit_is_charged_all_of_it_also_while_its_counts_have_no_lines() {
    let most = Multiplicity::from_whole(100);
    let settings = Settings { amount: Some(100), multiplicity_max: most, ..Settings::new(SECOND, FULL) };
    let mut reconciler = Reconciler::new(settings);
    assert_eq!(turn(&mut reconciler, 1, START, 100, 2_000), 1_900);
    // Turns that were charged as a hundred each, of one request.
    assert_eq!(turn(&mut reconciler, 1, START + SECOND, 2_400, 2), 0);
    for seconds in 2..FULL.into() {
        assert_eq!(reconciler.multiplicity(1, START + seconds * SECOND), most, "after {seconds} s");
    }
}
