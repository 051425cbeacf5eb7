//! Parser of durations as Go prints them, such as `3h59m49s`, `-1m0.5s`, `100ms` or `1.5h`.

/// Names of the units and their length in nanoseconds.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
/// Maximum number of digits of a number. // as many as 10^15 hours
const DIGITS_MAX: usize = 18;

/// Returns the duration in nanoseconds, or none if the text is not a Go duration. Saturates at about 292 years.
pub(crate) fn nanoseconds(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum: i128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest)?;
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after)?,
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum = sum.saturating_add(number(whole)? * unit);
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        sum = sum.saturating_add(number(fraction)? * unit / scale);
        rest = after;
    }
    Some(i64::try_from(sign * sum).unwrap_or(if sign < 0 { i64::MIN } else { i64::MAX }))
}

/// Splits a text after its leading digits. Returns none if there are more than [`DIGITS_MAX`].
fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end <= DIGITS_MAX).then(|| text.split_at(end))
}

fn number(digits: &str) -> Option<i128> {
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_read_as_go_prints_them() {
        for (text, ns) in [
            ("3h59m49s", 14_389_000_000_000),
            ("-1h0m0s", -3_600_000_000_000),
            ("0s", 0),
            ("0", 0),
            ("-0", 0),
            ("+0", 0),
            ("-0s", 0),
            ("+1s", 1_000_000_000),
            ("1.5s", 1_500_000_000),
            ("100ms", 100_000_000),
            ("1.5h", 5_400_000_000_000),
            ("-3.25us", -3_250),
            ("2µs", 2_000),
            ("167h59m55.916s", 604_795_916_000_000),
            ("999999999999h", i64::MAX),
            ("-999999999999h", i64::MIN),
        ] {
            assert_eq!(nanoseconds(text), Some(ns), "{text}");
        }
        for text in ["", "-", "+", "1", "h", ".s", "1x", "1h-2m", "4d", "1 h", "1..5s", "9999999999999999999h", "µ"] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,12}|[-+]?([0-9.]{0,20}(h|m|s|ms|us|µs|ns)?){0,4}") {
            let _ = nanoseconds(&text);
        }

        #[test]
        fn durations_in_gos_format_parse_to_the_same_time(seconds in -1_000_000_000_i64..1_000_000_000) {
            let (sign, of) = (if seconds < 0 { "-" } else { "" }, seconds.abs());
            let text = format!("{sign}{}h{}m{}s", of / 3600, of / 60 % 60, of % 60);
            prop_assert_eq!(nanoseconds(&text), Some(seconds * 1_000_000_000));
        }
    }
}
