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
fn the_quotient_decays_evenly_to_one_over_a_window() {
    let mut reconciler = reconciler();
    assert_eq!(turn(&mut reconciler, 1, START, 2, 42), 40);
    for (age, sixteenths) in [(0, 21 * 16), (WINDOW / 2, 11 * 16), (WINDOW, 16), (9 * WINDOW, 16)] {
        assert_eq!(reconciler.multiplicity(1, START + age).sixteenths(), sixteenths);
    }
}

#[test]
fn once_learned_turns_are_charged_in_time() {
    let mut reconciler = reconciler();
    let charges: Vec<_> = (0..40).map(|second| turn(&mut reconciler, 1, START + second * SECOND, 1, 100)).collect();
    assert_eq!(charges[0], 99);
    // Between two learnings a fifth of the multiplicity decays each second.
    assert!(charges[1..].iter().all(|charge| *charge <= 40), "{charges:?}");
    let learned = reconciler.multiplicity(1, START + 39 * SECOND);
    assert!((80 * 16..=110 * 16).contains(&learned.sixteenths()), "{learned:?}");
}

#[test]
fn a_source_that_stops_multiplexing_is_at_one_after_a_window() {
    let mut reconciler = reconciler();
    turn(&mut reconciler, 1, START, 1, 100);
    let mut now = START;
    while now < START + WINDOW {
        now += SECOND;
        assert_eq!(turn(&mut reconciler, 1, now, 1, 1), 0);
    }
    assert_eq!(reconciler.multiplicity(1, now), Multiplicity::ONE);
}

#[test]
fn new_sources_have_the_median_of_the_rule_if_there_are_enough() {
    let mut reconciler = reconciler();
    for key in 0..7 {
        turn(&mut reconciler, key, START, 1, u64::from(key) + 1);
    }
    assert_eq!(reconciler.median(START), Multiplicity::ONE);
    turn(&mut reconciler, 7, START, 1, 8);
    assert_eq!(reconciler.median(START), Multiplicity::from_whole(4));
    assert_eq!(reconciler.multiplicity(99, START), Multiplicity::from_whole(4));
    // One that is new is charged as the others, and keeps that while it decays.
    assert_eq!(turn(&mut reconciler, 99, START, 1, 4), 0);
    assert_eq!(reconciler.multiplicity(99, START), Multiplicity::from_whole(4));
    assert_eq!(reconciler.median(START + 2 * WINDOW), Multiplicity::ONE);
}

#[test]
fn attackers_cannot_raise_the_median_beyond_its_maximum() {
    let mut reconciler = reconciler();
    for key in 0..100 {
        turn(&mut reconciler, key, START, 1, 1000);
    }
    assert_eq!(reconciler.median(START), Multiplicity::from_whole(8));
}
