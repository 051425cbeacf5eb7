//! Durations: `300s`, `5m`, `1h30m`, `500ms`, `2d`, `30 minutes`. Pure.

use ratelimit_common::time::SECOND_NS;

use super::amount::is_space;
use super::syntax::{Scanner, SyntaxError, near_miss};

/// A unit of time.
struct TimeUnit {
    /// Abbreviation used for output, for example `m`.
    letter: &'static str,
    /// Singular name in words. The plural adds an `s`.
    name: &'static str,
    /// Other abbreviations that are accepted in input.
    short: &'static [&'static str],
    /// Length in nanoseconds.
    ns: u64,
}

const DAY_NS: u64 = 86_400 * SECOND_NS;

/// Units of time, longest first.
const UNITS: [TimeUnit; 6] = [
    TimeUnit { letter: "w", name: "week", short: &["wk", "wks"], ns: 7 * DAY_NS },
    TimeUnit { letter: "d", name: "day", short: &[], ns: DAY_NS },
    TimeUnit { letter: "h", name: "hour", short: &["hr", "hrs"], ns: 3_600 * SECOND_NS },
    TimeUnit { letter: "m", name: "minute", short: &["min", "mins"], ns: 60 * SECOND_NS },
    TimeUnit { letter: "s", name: "second", short: &["sec", "secs"], ns: SECOND_NS },
    TimeUnit { letter: "ms", name: "millisecond", short: &["msec", "msecs"], ns: SECOND_NS / 1_000 },
];

const UNITS_HELP: &str = "units of time are ms, s, m, h, d and w, as in 10s, 5m or 1h30m";

/// Parses a duration into nanoseconds.
pub fn parse(text: &str) -> Result<u64, SyntaxError> {
    let mut scanner = Scanner::new(text);
    let duration_ns = read(&mut scanner)?;
    let end = scanner.clone();
    scanner.take_while(is_space);
    match scanner.rest().chars().next() {
        None => Ok(duration_ns),
        Some(c) => {
            Err(SyntaxError::new(end.next_span(), format!("`{c}` does not belong in a time")).with_help(UNITS_HELP))
        }
    }
}

/// Reads a duration, `1h30m` or `1 hour 30 minutes`, and stops at the first character that does not belong to it. A
/// unit without a number counts once: `s` is one second.
pub fn read(scanner: &mut Scanner<'_>) -> Result<u64, SyntaxError> {
    let begin = scanner.at();
    let mut total: u64 = 0;
    let mut smallest_ns = u64::MAX;
    if scanner.is_done() {
        return Err(SyntaxError::new(begin..begin, "the time is missing").with_help(UNITS_HELP));
    }
    loop {
        let start = scanner.at();
        let digits = scanner.take_while(|c| c.is_ascii_digit());
        let digits_end = scanner.at();
        scanner.take_while(is_space);
        let unit_at = scanner.at();
        let word = scanner.take_while(char::is_alphabetic);
        let unit_span = scanner.span_from(unit_at);
        if word.is_empty() {
            return Err(match scanner.rest().chars().next() {
                None => SyntaxError::new(start..digits_end, format!("`{digits}` has no unit of time"))
                    .with_help(format!("write {digits}s if these are seconds; {UNITS_HELP}")),
                Some(c) => SyntaxError::new(scanner.next_span(), format!("`{c}` does not belong in a time"))
                    .with_help(UNITS_HELP)
                    .with_help_if(without_point(digits, scanner.rest())),
            });
        }
        let Some(unit_ns) = unit_of(word) else { return Err(unknown_unit(word, unit_span)) };
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
        let mut ahead = scanner.clone();
        ahead.take_while(is_space);
        if !ahead.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(total);
        }
        *scanner = ahead;
    }
}

fn unit_of(word: &str) -> Option<u64> {
    let lower = word.to_lowercase();
    let is_named = |unit: &TimeUnit| {
        let is_name = lower.strip_suffix('s').unwrap_or(&lower) == unit.name;
        unit.letter == word || is_name || unit.short.contains(&lower.as_str())
    };
    UNITS.into_iter().find(is_named).map(|unit| unit.ns)
}

/// Returns a hint for a duration with a decimal point, for example `1h30m` for `1.5h`. `rest` begins with the point.
fn without_point(whole: &str, rest: &str) -> Option<String> {
    let (fraction, unit) = rest.strip_prefix('.')?.split_at_checked(rest[1..].find(|c: char| !c.is_ascii_digit())?)?;
    let unit_ns = u128::from(unit_of(unit.trim_start_matches(is_space))?);
    let tenths = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let total = format!("{whole}{fraction}").parse::<u128>().ok()?.checked_mul(unit_ns)?;
    let is_exact = total.is_multiple_of(tenths * u128::from(SECOND_NS / 1_000));
    let duration_ns = u64::try_from(total / tenths).ok().filter(|of| is_exact && *of > 0)?;
    Some(format!("did you mean {}?", short(duration_ns)))
}

fn unknown_unit(word: &str, span: std::ops::Range<usize>) -> SyntaxError {
    let lower = word.to_lowercase();
    let meant = UNITS.into_iter().find(|unit| lower == unit.letter).map(|unit| (unit.letter, unit.name));
    let meant = meant.or_else(|| {
        let name = near_miss(&lower, UNITS.iter().flat_map(|unit| [unit.name]).filter(|_| lower.len() > 2))?;
        UNITS.into_iter().find(|unit| unit.name == name).map(|unit| (unit.letter, unit.name))
    });
    let help = meant.map(|(letter, name)| format!("did you mean `{letter}` ({name}s)? {UNITS_HELP}"));
    SyntaxError::new(span, format!("`{word}` is not a unit of time")).with_help(UNITS_HELP).with_help_if(help)
}

/// Formats a duration in the shortest form that [`parse`] reads. Fractions of a millisecond are cut off.
pub fn short(duration_ns: u64) -> String {
    join(duration_ns, "", |count, unit, _| format!("{count}{unit}"))
}

/// Formats a duration in words: `5 minutes`, `1 hour 30 minutes`.
pub fn words(duration_ns: u64) -> String {
    join(duration_ns, " ", |count, _, name| if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") })
}

fn join(duration_ns: u64, separator: &str, part: impl Fn(u64, &str, &str) -> String) -> String {
    let mut left = duration_ns;
    let mut parts = Vec::new();
    // Days and weeks are printed in hours, because windows are written as 24h.
    for unit in UNITS.into_iter().filter(|unit| unit.ns < DAY_NS) {
        let count = left / unit.ns;
        left %= unit.ns;
        if count > 0 {
            parts.push(part(count, unit.letter, unit.name));
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
        for (text, seconds) in [
            ("s", 1),
            ("m", 60),
            ("h", 3_600),
            ("10s", 10),
            ("5m", 300),
            ("1h30m", 5_400),
            ("1d", 86_400),
            ("0s", 0),
            ("1w", 604_800),
            ("30 days", 2_592_000),
            ("minute", 60),
            ("5min", 300),
            ("2 Hours", 7_200),
            ("1 hour 30 mins", 5_400),
            ("1 week 1 day", 691_200),
            ("90 sec", 90),
        ] {
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
            ("5 parsecs", 2..9, "`parsecs` is not a unit of time"),
            ("5m30", 2..4, "`30` has no unit of time"),
            ("5m s", 2..3, "`s` does not belong in a time"),
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
    fn suggestions_for_a_wrong_duration_mean_the_same_time() {
        for (text, meant) in [
            ("5M", "`m` (minutes)"),
            ("5 minuts", "`m` (minutes)"),
            ("600", "write 600s if these are seconds"),
            ("1.5h", "did you mean 1h30m?"),
            ("0.25 s", "did you mean 250ms?"),
            ("1y", "units of time are ms, s, m, h, d and w"),
        ] {
            let help = parse(text).expect_err(text).help.unwrap_or_default();
            assert!(help.contains(meant), "{text}: {help}");
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
        fn printed_values_parse_back_to_the_same_value(milliseconds in 0_u64..1_000_000_000) {
            let duration_ns = milliseconds * 1_000_000;
            prop_assert_eq!(parse(&short(duration_ns)), Ok(duration_ns));
        }
    }
}
