//! Tests of the rates computed from snapshots.

use super::*;

#[test]
fn a_rule_has_the_rate_of_the_last_second_and_columns_of_the_last_two_minutes() {
    let mut state = busy();
    assert_eq!(state.per_second("default"), Some([1900.0, 20.0]));
    assert_eq!(state.per_second("api"), Some([0.0, 7.0]), "of a dry run, what it would have dropped");
    let [admitted, refused] = state.history("default", 120);
    assert_eq!((&admitted[109..112], admitted[119]), (&[None, Some(100), Some(300)][..], Some(1900)));
    assert_eq!(refused[110..], [Some(20); 10]);
    let [halved, _] = state.history("default", 60);
    assert_eq!((halved[54], halved[55], halved[59]), (None, Some(300), Some(1900)), "the greater of two seconds");
    (11..=200).for_each(|second| state.heard(Heard::Read(Ok(Box::new(reading(second)))), at(0)));
    let [admitted, _] = state.history("default", 120);
    assert_eq!((admitted[0], admitted.len()), (Some(16_100), 120), "from second 80 to second 81");
}

#[test]
fn a_longer_wait_is_filled_with_its_mean_and_counters_that_were_reset_leave_a_gap() {
    let mut state = State::new(reading(0), at(0));
    state.heard(Heard::Read(Ok(Box::new(reading(4)))), at(4));
    assert_eq!(state.history("default", 120)[1][115..], [None, Some(20), Some(20), Some(20), Some(20)]);
    let mut reset = reading(5);
    reset.rules[0].admitted = 3;
    state.heard(Heard::Read(Ok(Box::new(reset))), at(5));
    assert_eq!(state.per_second("default"), None);
    assert_eq!(state.history("default", 120)[1][119], None);
}

#[test]
fn a_source_has_the_rate_of_the_readings_that_had_it() {
    let state = busy();
    let rate = |state: &State, source: &str| {
        state.rows().iter().find(|row| row.of.source == source).and_then(|row| row.per_second)
    };
    assert_eq!(rate(&state, "198.51.100.7"), Some(20.0));
    assert_eq!(rate(&state, "203.0.113.9"), Some(0.0));
    assert_eq!(rate(&State::new(reading(0), at(0)), "198.51.100.7"), None, "one reading has no rate");
}
