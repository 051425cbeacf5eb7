//! Expiry dates: an RFC 3339 date, which lasts to its end in UTC, or a date and time with offset. Pure.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use ratelimit_common::time::Nanos;

use super::syntax::SyntaxError;

const HELP: &str =
    "write a date, which counts to its end in UTC, as in 2027-03-31, or a time, as in 2027-03-31T18:00:00Z";

/// Parses a date, or a date and time, and returns the instant at which it ends.
pub fn parse(text: &str) -> Result<Nanos, SyntaxError> {
    let wrong = |problem: String| SyntaxError::new(0..text.len(), problem).with_help(HELP);
    let is_date = text.len() == "2027-03-31".len();
    let instant = if is_date { text.parse::<Date>().ok().and_then(end_of) } else { text.parse::<Timestamp>().ok() };
    let Some(instant) = instant else {
        let has_no_offset = text.parse::<jiff::civil::DateTime>().is_ok();
        return Err(if has_no_offset {
            wrong("the time has no offset".to_owned()).with_help(format!("did you mean {text}Z, the time in UTC?"))
        } else {
            wrong(format!("`{text}` is not a date"))
        });
    };
    let after_1970 = u64::try_from(instant.as_nanosecond()).ok().filter(|nanos| *nanos > 0);
    after_1970.map(Nanos).ok_or_else(|| wrong("the date is out of range: dates are 1970 to 2554".to_owned()))
}

fn end_of(date: Date) -> Option<Timestamp> {
    let next = date.checked_add(1.day()).ok()?;
    Some(next.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_date_counts_to_its_end_and_a_time_is_that_instant() {
        for (text, instant) in [
            ("2027-03-31", "2027-04-01T00:00:00Z"),
            ("2028-02-29", "2028-03-01T00:00:00Z"),
            ("2027-03-31T18:00:00Z", "2027-03-31T18:00:00Z"),
            ("2027-03-31T18:00:00+02:00", "2027-03-31T16:00:00Z"),
        ] {
            let expected: Timestamp = instant.parse().expect("an instant");
            let nanos = u64::try_from(expected.as_nanosecond()).expect("after 1970");
            assert_eq!(parse(text), Ok(Nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn an_invalid_date_is_refused_with_a_valid_example() {
        for (text, problem, help) in [
            ("", "`` is not a date", "2027-03-31"),
            ("31.3.2027", "`31.3.2027` is not a date", "2027-03-31"),
            ("2027-02-30", "`2027-02-30` is not a date", "2027-03-31"),
            ("2027-03-31T18:00:00", "the time has no offset", "did you mean 2027-03-31T18:00:00Z"),
            ("1969-01-01", "the date is out of range: dates are 1970 to 2554", "2027-03-31"),
            ("2600-12-31", "the date is out of range: dates are 1970 to 2554", "2027-03-31"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!((error.problem.as_str(), error.span), (problem, 0..text.len()), "{text}");
            assert!(error.help.unwrap_or_default().contains(help), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}|[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:]{0,8}[Z+-]?[0-9:]{0,5})?") {
            if let Err(error) = parse(&text) {
                prop_assert!(text.get(error.span).is_some());
            }
        }
    }
}
