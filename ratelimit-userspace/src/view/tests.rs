use super::*;

#[test]
fn durations_have_two_units_and_never_promise_too_early() {
    for (seconds, expected) in [
        (0.0, "0s"),
        (0.2, "1s"),
        (12.0, "12s"),
        (59.1, "1m"),
        (133.0, "2m 13s"),
        (300.0, "5m"),
        (3600.0, "1h"),
        (3661.0, "1h 1m"),
        (90_000.0, "1d 1h"),
        (86_460.0, "1d"),
    ] {
        assert_eq!(duration(seconds), expected, "{seconds}");
    }
}

#[test]
fn numbers_have_their_thousands_apart() {
    for (value, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (262_144, "262,144"), (1_234_567, "1,234,567")] {
        assert_eq!(number(value), expected);
    }
}
