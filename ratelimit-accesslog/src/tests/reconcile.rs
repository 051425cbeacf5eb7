//! Tests of the matching of logged and counted requests.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::SECOND;
use crate::{Reconciler, Settings};

const FULL: u8 = 5;
const WINDOW: u64 = FULL as u64 * SECOND;
/// A time well after the clock's beginning, at the start of a bucket.
const START: u64 = 1_000 * SECOND;

/// Reconciler and a model of the kernel's windows, with charges applied.
struct Run {
    reconciler: Reconciler<u32>,
    kernel: BTreeMap<(u32, u64), u64>,
    /// Lines that were read and are not settled yet, by source.
    lines: BTreeMap<u32, u64>,
    now: u64,
    charged: u64,
}

impl Run {
    fn new() -> Self {
        let settings = Settings { sources_max: 4, ..Settings::new(SECOND, FULL) };
        Self {
            reconciler: Reconciler::new(settings),
            kernel: BTreeMap::new(),
            lines: BTreeMap::new(),
            now: START,
            charged: 0,
        }
    }

    fn count(&mut self, key: u32, requests: u64) {
        *self.kernel.entry((key, self.now / SECOND)).or_default() += requests;
    }

    fn log(&mut self, key: u32, lines: u64) {
        *self.lines.entry(key).or_default() += lines;
    }

    /// Settles one source, and applies the charge to the kernel's window.
    fn settle(&mut self, key: u32) -> u64 {
        let counts: Vec<_> = self
            .kernel
            .iter()
            .filter(|((of, _), _)| *of == key)
            .map(|((_, bucket), total)| (*bucket, *total))
            .collect();
        let lines = self.lines.remove(&key).unwrap_or(0);
        let outlook = self.reconciler.outlook(key, self.now, lines, &counts);
        let charge = self.reconciler.settle(key, self.now, lines, &counts);
        assert!(outlook.charged >= charge, "{outlook:?}: {charge}");
        self.count(key, charge);
        self.charged += charge;
        charge
    }

    fn window(&self, key: u32) -> u64 {
        self.kernel.iter().filter(|((of, _), _)| *of == key).map(|(_, total)| total).sum()
    }
}

#[test]
fn lines_that_counts_match_charge_nothing() {
    let mut run = Run::new();
    run.count(1, 3);
    run.log(1, 2);
    assert_eq!(run.settle(1), 0);
    run.log(1, 1);
    assert_eq!(run.settle(1), 0);
    run.log(1, 1);
    assert_eq!(run.settle(1), 1);
    assert_eq!(run.window(1), 4);
}

#[test]
fn the_outlook_is_what_a_settlement_charges_and_uses() {
    let mut reconciler = Reconciler::new(Settings { charged_in: 2, ..Settings::new(SECOND, FULL) });
    let bucket = START / SECOND;
    let mut settle = |lines, total| {
        let outlook = reconciler.outlook(1, START, lines, &[(bucket, total)]);
        assert_eq!(reconciler.settle(1, START, lines, &[(bucket, total)]), outlook.charged);
        (outlook.charged, outlook.used)
    };
    assert_eq!(settle(2, 3), (0, 3));
    assert_eq!(settle(3, 3), (2, 5));
    // The two charges are in both windows, and the kernel has counted one more.
    assert_eq!(settle(1, 8), (0, 6));
    assert_eq!(settle(4, 8), (4, 10));
    assert_eq!(reconciler.outlook(1, START, 0, &[(bucket - u64::from(FULL) - 1, 9)]).used, 6, "what expired is unused");
}

#[test]
fn charges_are_not_taken_for_requests() {
    let mut run = Run::new();
    run.count(1, 1);
    for _ in 0..20 {
        run.log(1, 100);
        run.settle(1);
        assert_eq!(run.settle(1), 0);
    }
    assert_eq!(run.window(1), 2000);
}

#[test]
fn a_count_that_is_not_logged_within_its_window_expires() {
    for (later, charge) in [(FULL.into(), 0), (u64::from(FULL) + 1, 1)] {
        let mut run = Run::new();
        run.count(1, 1);
        run.settle(1);
        run.now += later * SECOND;
        run.log(1, 1);
        assert_eq!(run.settle(1), charge, "{later}");
    }
}

#[test]
fn lines_charge_although_the_kernels_clock_is_in_the_next_bucket() {
    let mut run = Run::new();
    let counts = [(run.now / SECOND + 1, 1), (run.now / SECOND + 2, 1)];
    assert_eq!(run.reconciler.settle(1, run.now, 3, &counts), 2);
}

#[test]
fn counts_that_fall_within_a_bucket_are_not_counted_again() {
    let mut run = Run::new();
    let bucket = run.now / SECOND;
    for total in [5, 3, 5, 0, 4] {
        assert_eq!(run.reconciler.settle(1, run.now, 0, &[(bucket, total)]), 0);
    }
    assert_eq!(run.reconciler.settle(1, run.now, 6, &[]), 1);
}

#[test]
fn failed_charges_are_not_subtracted_from_counts() {
    let mut run = Run::new();
    let bucket = run.now / SECOND;
    assert_eq!(run.reconciler.settle(1, run.now, 10, &[]), 10);
    run.reconciler.not_charged(1, bucket, 7);
    assert_eq!(run.reconciler.corrected(1, run.now), 3);
    assert_eq!(run.reconciler.settle(1, run.now, 2, &[(bucket, 5)]), 0);
}

#[test]
fn a_source_that_was_erased_in_the_kernel_begins_empty_whether_or_not_that_is_told() {
    for is_told in [true, false] {
        let mut run = Run::new();
        run.count(1, 5);
        run.log(1, 30);
        assert_eq!(run.settle(1), 25);
        run.kernel.clear();
        if is_told {
            run.reconciler.forget(1);
            assert_eq!(run.reconciler.sources(), 0);
        }
        // Each of its next requests has a line, and is counted once.
        for _ in 0..10 {
            run.count(1, 1);
            run.log(1, 1);
            assert_eq!(run.settle(1), 0, "{is_told}");
        }
        assert_eq!(run.window(1), 10);
    }
}

#[test]
fn lines_that_a_restart_reads_again_charge_nothing() {
    let mut run = Run::new();
    run.count(1, 1);
    run.log(1, 50);
    assert_eq!(run.settle(1), 49);
    run.reconciler = Reconciler::new(Settings::new(SECOND, FULL));
    run.log(1, 50);
    assert_eq!(run.settle(1), 0);
}

#[test]
fn the_source_that_was_idle_longest_is_dropped_first() {
    let mut run = Run::new();
    for key in [1, 2, 3, 4, 1, 5] {
        run.log(key, 1);
        run.settle(key);
        run.now += SECOND / 100;
    }
    let corrected = |run: &Run, key| run.reconciler.corrected(key, run.now);
    assert_eq!((run.reconciler.sources(), corrected(&run, 2), corrected(&run, 1)), (4, 0, 2));
    for key in 0..1_000_000 {
        assert_eq!(run.reconciler.settle(key, run.now, 1, &[]), 1);
    }
    assert_eq!(run.reconciler.sources(), 4);
}

#[test]
fn idle_sources_vanish() {
    let mut run = Run::new();
    for key in 0..4 {
        run.count(key, 1);
        run.log(key, 2);
        run.settle(key);
    }
    run.now += 2 * WINDOW + 2 * SECOND;
    for _ in 0..2 {
        run.log(9, 1);
        run.settle(9);
    }
    assert_eq!(run.reconciler.sources(), 1);
}

#[test]
fn extreme_numbers_do_no_harm() {
    let mut run = Run::new();
    for now in [0, START, u64::MAX, 1] {
        let counts = [(0, u64::MAX), (u64::MAX, u64::MAX), (now / SECOND, u64::MAX)];
        let charge = run.reconciler.settle(1, now, u64::MAX, &counts);
        run.reconciler.not_charged(1, now / SECOND, charge);
        let _ = run.reconciler.multiplicity(1, now);
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Count(u64),
    Log(u64),
    Settle,
    Wait(u64),
}

fn acts(wait_max: u64) -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (1..5_u64).prop_map(Act::Count),
        3 => (1..9_u64).prop_map(Act::Log),
        3 => Just(Act::Settle),
        2 => (0..wait_max).prop_map(Act::Wait),
    ];
    proptest::collection::vec(act, 1..80)
}

/// Model that matches single requests. Holds, for each counted request without a line, the bucket in which it was
/// counted.
#[derive(Default)]
struct Oracle {
    open: VecDeque<u64>,
    lines: u64,
}

impl Oracle {
    fn settle(&mut self, now: u64) -> u64 {
        self.open.retain(|bucket| bucket + u64::from(FULL) >= now / SECOND);
        let mut charge = 0;
        for _ in 0..std::mem::take(&mut self.lines) {
            if self.open.pop_front().is_none() {
                charge += 1;
            }
        }
        charge
    }
}

proptest! {
    #[test]
    fn within_a_window_charges_are_what_lines_ever_exceeded_counts_by(acts in acts(SECOND / 20)) {
        let mut run = Run::new();
        let (mut counted, mut logged, mut excess) = (0_u64, 0_u64, 0_u64);
        for act in acts.into_iter().chain([Act::Settle]) {
            match act {
                Act::Count(requests) => {
                    run.count(1, requests);
                    counted += requests;
                }
                Act::Log(lines) => {
                    run.log(1, lines);
                    logged += lines;
                }
                Act::Settle => {
                    run.settle(1);
                    excess = excess.max(logged.saturating_sub(counted));
                }
                Act::Wait(time) => run.now += time,
            }
            prop_assert_eq!(run.charged, excess);
        }
        prop_assert_eq!(run.window(1), counted + excess);
        prop_assert!(run.window(1) >= counted.max(logged));
    }

    /// Counts each request once, and logs it later as one or more lines.
    #[test]
    fn multiplexed_requests_are_charged_as_they_are_logged(
        turns in proptest::collection::vec((0..2 * SECOND, 1..20_u64, 0..2 * SECOND), 1..40),
        poll in SECOND / 100..SECOND,
    ) {
        let mut events: Vec<(u64, u64, u64)> = Vec::new();
        for (at, lines, lag) in &turns {
            events.push((*at, 1, 0));
            // Lines of one turn come one by one.
            events.extend((0..*lines).map(|line| (at + lag * (line + 1) / lines, 0, 1)));
        }
        events.sort_unstable();
        let mut run = Run::new();
        let mut next = poll;
        for (at, counted, logged) in events {
            while at >= next {
                run.now = START + next;
                run.settle(1);
                next += poll;
            }
            run.now = START + at;
            run.count(1, counted);
            run.log(1, logged);
        }
        run.settle(1);
        let logged: u64 = turns.iter().map(|(_, lines, _)| lines).sum();
        prop_assert_eq!(run.window(1), logged);
    }

    #[test]
    fn over_many_windows_charges_are_those_of_single_requests(acts in acts(2 * SECOND)) {
        let mut run = Run::new();
        let mut oracle = Oracle::default();
        // Counted requests, and lines minus charges, by bucket.
        let (mut counted, mut matched) = (BTreeMap::new(), BTreeMap::new());
        let mut unsettled = 0;
        let mut lines_all = 0;
        let mut since_settled = 0;
        // Lines are settled within their window.
        let acts = acts.into_iter().flat_map(|act| {
            since_settled = match act {
                Act::Wait(time) => since_settled + time,
                Act::Settle => 0,
                Act::Count(_) | Act::Log(_) => since_settled,
            };
            let is_late = since_settled >= WINDOW - SECOND;
            if is_late {
                since_settled = 0;
            }
            is_late.then_some(Act::Settle).into_iter().chain([act])
        });
        for act in acts {
            let bucket = run.now / SECOND;
            match act {
                Act::Count(requests) => {
                    run.count(1, requests);
                    *counted.entry(bucket).or_insert(0) += requests;
                    oracle.open.extend((0..requests).map(|_| bucket));
                }
                Act::Log(lines) => {
                    run.log(1, lines);
                    oracle.lines += lines;
                    unsettled += lines;
                    lines_all += lines;
                }
                Act::Settle => {
                    let charge = run.settle(1);
                    prop_assert_eq!(charge, oracle.settle(run.now));
                    prop_assert!(charge <= unsettled);
                    *matched.entry(bucket).or_insert(0) += unsettled - charge;
                    unsettled = 0;
                }
                Act::Wait(time) => {
                    run.now += time;
                    run.kernel.retain(|(_, bucket), _| bucket + u64::from(FULL) >= run.now / SECOND);
                }
            }
        }
        prop_assert!(run.charged <= lines_all);
        // Counts are not saved up: lines without a charge within a time span were counted in the span or one window
        // before.
        for first in matched.keys() {
            for last in matched.range(first..).map(|(last, _)| last) {
                let unpaid: u64 = matched.range(first..=last).map(|(_, lines)| lines).sum();
                let allowed: u64 = counted.range(first - u64::from(FULL)..=*last).map(|(_, requests)| requests).sum();
                prop_assert!(unpaid <= allowed);
            }
        }
    }
}
