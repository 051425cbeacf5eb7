//! Durations: `300s`, `5m`, `1h30m`, `500ms`, `2d`. Pure.

use ratelimit_common::time::SECOND_NS;

use super::syntax::{Scanner, SyntaxError};

/// The units, longest first: as written, in words, in nanoseconds.
const UNITS: [(&str, &str, u64); 5] = [
    ("d", "day", 86_400 * SECOND_NS),
    ("h", "hour", 3_600 * SECOND_NS),
    ("m", "minute", 60 * SECOND_NS),
    ("s", "second", SECOND_NS),
    ("ms", "millisecond", SECOND_NS / 1_000),
];

const UNITS_HELP: &str = "units of time are ms, s, m, h and d, as in 10s, 5m or 1h30m";

/// Parses a duration into nanoseconds. A first unit without a number counts once: `s` is one second.
pub fn parse(text: &str) -> Result<u64, SyntaxError> {
    let mut scanner = Scanner::new(text);
    let mut total: u64 = 0;
    let mut smallest_ns = u64::MAX;
    if scanner.is_done() {
        return Err(SyntaxError::new(0..0, "the time is missing").with_help(UNITS_HELP));
    }
    while !scanner.is_done() {
        let start = scanner.at();
        let digits = scanner.take_while(|c| c.is_ascii_digit());
        let unit_at = scanner.at();
        let word = scanner.take_while(char::is_alphabetic);
        let unit_span = scanner.span_from(unit_at);
        if word.is_empty() {
            let problem = if scanner.is_done() {
                format!("`{digits}` has no unit of time")
            } else {
                format!("{} does not belong in a time", quoted_next(&scanner))
            };
            let span = if scanner.is_done() { start..unit_at } else { scanner.next_span() };
            return Err(SyntaxError::new(span, problem).with_help(UNITS_HELP));
        }
        if digits.is_empty() && start > 0 {
            return Err(SyntaxError::new(unit_span, format!("`{word}` has no number")).with_help(UNITS_HELP));
        }
        let Some((_, _, unit_ns)) = UNITS.into_iter().find(|(unit, _, _)| *unit == word) else {
            return Err(unknown_unit(word, unit_span));
        };
        if unit_ns >= smallest_ns {
            let problem = format!("`{word}` comes after a unit that is not larger");
            return Err(SyntaxError::new(unit_span, problem).with_help("write larger units first, each once: 1h30m"));
        }
        smallest_ns = unit_ns;
        let count = if digits.is_empty() { Some(1) } else { digits.parse::<u64>().ok() };
        total =
            count.and_then(|count| count.checked_mul(unit_ns)).and_then(|part| total.checked_add(part)).ok_or_else(
                || SyntaxError::new(start..unit_span.end, "the time is too long").with_help("write a shorter one"),
            )?;
    }
    Ok(total)
}

fn unknown_unit(word: &str, span: std::ops::Range<usize>) -> SyntaxError {
    let lower = word.to_lowercase();
    let meant = UNITS.into_iter().find(|(unit, name, _)| {
        let is_prefix = lower.len() > 2 && name.starts_with(lower.trim_end_matches('s'));
        lower == *unit || is_prefix
    });
    let help = meant.map(|(unit, name, _)| format!("did you mean `{unit}` ({name}s)? {UNITS_HELP}"));
    SyntaxError::new(span, format!("`{word}` is not a unit of time")).with_help_if(help.or(Some(UNITS_HELP.into())))
}

fn quoted_next(scanner: &Scanner<'_>) -> String {
    scanner.rest().chars().next().map_or_else(String::new, |c| format!("`{c}`"))
}

/// The duration as [`parse`] reads it, as short as it goes; what is below a millisecond is cut off.
pub fn short(duration_ns: u64) -> String {
    join(duration_ns, "", |count, unit, _| format!("{count}{unit}"))
}

/// The duration in words: `5 minutes`, `1 hour 30 minutes`.
pub fn words(duration_ns: u64) -> String {
    join(duration_ns, " ", |count, _, name| if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") })
}

fn join(duration_ns: u64, separator: &str, part: impl Fn(u64, &str, &str) -> String) -> String {
    let mut left = duration_ns;
    let mut parts = Vec::new();
    // A day is 24 h here, and 24h is how windows are asked for.
    for (unit, name, unit_ns) in UNITS.into_iter().filter(|(unit, _, _)| *unit != "d") {
        let count = left / unit_ns;
        left %= unit_ns;
        if count > 0 {
            parts.push(part(count, unit, name));
        }
    }
    if parts.is_empty() { part(0, "s", "second") } else { parts.join(separator) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_add_up() {
        for (text, seconds) in
            [("s", 1), ("m", 60), ("h", 3_600), ("10s", 10), ("5m", 300), ("1h30m", 5_400), ("1d", 86_400), ("0s", 0)]
        {
            assert_eq!(parse(text), Ok(seconds * SECOND_NS), "{text}");
        }
        assert_eq!(parse("1s500ms"), Ok(1_500_000_000));
    }

    #[test]
    fn an_error_points_at_the_character() {
        for (text, span, problem) in [
            ("", 0..0, "the time is missing"),
            ("5", 0..1, "`5` has no unit of time"),
            ("5x", 1..2, "`x` is not a unit of time"),
            ("5min", 1..4, "`min` is not a unit of time"),
            ("5m30", 2..4, "`30` has no unit of time"),
            ("30m1h", 4..5, "`h` comes after a unit that is not larger"),
            ("5m5m", 3..4, "`m` comes after a unit that is not larger"),
            ("1.5h", 1..2, "`.` does not belong in a time"),
            ("-5m", 0..1, "`-` does not belong in a time"),
            ("99999999999999999999s", 0..21, "the time is too long"),
            ("5µs", 1..4, "`µs` is not a unit of time"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.span, error.problem.as_str()), (span, problem), "{text}");
        }
    }

    #[test]
    fn spelt_out_units_are_told_the_letter() {
        for (text, letter) in [("5min", "`m`"), ("5minutes", "`m`"), ("5sec", "`s`"), ("5hours", "`h`"), ("5M", "`m`")]
        {
            let help = parse(text).expect_err(text).help.unwrap_or_default();
            assert!(help.contains(letter), "{text}: {help}");
        }
    }

    #[test]
    fn words_agree_with_their_number() {
        assert_eq!(words(60 * SECOND_NS), "1 minute");
        assert_eq!(words(5_400 * SECOND_NS), "1 hour 30 minutes");
        assert_eq!(words(SECOND_NS / 5), "200 milliseconds");
        assert_eq!(words(86_400 * SECOND_NS), "24 hours");
        assert_eq!(words(0), "0 seconds");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,12}|[0-9smhd]{0,24}") {
            if let Err(error) = parse(&text) {
                prop_assert!(text.get(error.span).is_some());
            }
        }

        #[test]
        fn what_is_printed_is_read_again(milliseconds in 0_u64..1_000_000_000) {
            let duration_ns = milliseconds * 1_000_000;
            prop_assert_eq!(parse(&short(duration_ns)), Ok(duration_ns));
        }
    }
}
