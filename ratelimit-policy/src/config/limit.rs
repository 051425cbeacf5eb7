//! Parser of limits: `1000/5m`, `10/s`, `"10/1m,60/1h"`, `50MB/1m`, `"100/1m connections"`. It also reads other usual
//! forms: `10r/s`, `1,000/1m`, `5 requests per minute`. A group of sources may follow: `per /24,/56`. The module also
//! divides windows into buckets. Pure.

use std::ops::Range;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;
use ratelimit_common::window::amount_max;

use super::duration;
use super::syntax::{SyntaxError, near_miss};
use crate::desired::{Condition, Per, unit_label};

mod condition;
mod habit;
mod per;
mod written;

pub(super) use written::{Said, read, separate};

/// Minimum length of a window, in nanoseconds: 1 s.
pub const WINDOW_NS_MIN: u64 = SECOND_NS;
/// Maximum length of a window, in nanoseconds: 24 h.
pub const WINDOW_NS_MAX: u64 = 86_400 * SECOND_NS;

/// Lengths that a person calls round, in nanoseconds, roundest first. Any bucket of whole nanoseconds is a multiple of
/// one of them.
const ROUND_NS: [u64; 13] = [
    3_600 * SECOND_NS,
    1_800 * SECOND_NS,
    600 * SECOND_NS,
    300 * SECOND_NS,
    60 * SECOND_NS,
    30 * SECOND_NS,
    10 * SECOND_NS,
    5 * SECOND_NS,
    SECOND_NS,
    SECOND_NS / 10,
    SECOND_NS / 100,
    SECOND_NS / 1_000,
    1,
];

/// A limit as it was written, without form, rule and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Amount admitted in a window.
    pub amount: u64,
    /// Unit of the amount.
    pub unit: Unit,
    /// Length of the window in nanoseconds.
    pub window_ns: u64,
    /// Division of the window into buckets.
    pub buckets: Buckets,
    /// Group of sources that the limit counts as one.
    pub per: Per,
    /// Byte offset of the group in the text, up to the limit's end.
    pub per_at: usize,
    /// Condition of the logged requests that the limit counts. None if it counts packets.
    pub condition: Option<Condition>,
}

/// Division of a window: `count * bucket_ns` is exactly its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Number of buckets, 5 to 7.
    pub count: u8,
    /// Length of one bucket in nanoseconds.
    pub bucket_ns: u64,
}

/// Divides a window into 5, 6 or 7 equal buckets of whole nanoseconds. Prefers buckets that are a multiple of the
/// roundest of: 1 h, 30 min, 10 min, 5 min, 1 min, 30 s, 10 s, 5 s, 1 s, 100 ms, 10 ms, 1 ms, 1 ns. If two are
/// equally round, the shorter bucket wins, because admissions expire sooner.
///
/// For example, 5, 6 and 7 minutes have buckets of 1 minute. 1 minute has 6 of 10 s, 10 s has 5 of 2 s, 10 minutes
/// have 5 of 2 minutes. 1 hour has 6 of 10 minutes, and 1 s has 5 of 200 ms.
///
/// Returns None if none of the three numbers divides the window. A window of whole milliseconds always has a result,
/// because 5 divides it.
pub fn buckets(window_ns: u64) -> Option<Buckets> {
    (5_u8..=7)
        .filter(|&count| window_ns > 0 && window_ns.is_multiple_of(u64::from(count)))
        .map(|count| Buckets { count, bucket_ns: window_ns / u64::from(count) })
        .min_by_key(|buckets| {
            let roundness = ROUND_NS.iter().position(|round_ns| buckets.bucket_ns.is_multiple_of(*round_ns));
            (roundness, buckets.bucket_ns)
        })
}

/// Parses one or more limits, separated by commas, and returns each with its span in the text. Limits without a unit
/// count `default_unit`.
pub fn parse(text: &str, default_unit: Unit) -> Result<Vec<(Range<usize>, Rate)>, SyntaxError> {
    let each = separate(text).map(|item| {
        let (start, item) = item.map_err(|error| error.with_help("a limit is N/DUR, as in 1000/5m"))?;
        let rate = parse_one(item, default_unit).map_err(|error| error.shifted(start))?;
        Ok((start..start + item.len(), Rate { per_at: start + rate.per_at, ..rate }))
    });
    each.collect::<Result<_, SyntaxError>>().map_err(|error| error.with_help_if(habit::meant(text, default_unit)))
}

/// Parses the conditions that follow a limit: `status=401,403 path=/login method=POST`.
///
/// # Errors
/// Fails if the text holds no condition, or anything besides conditions.
pub fn parse_condition(text: &str) -> Result<Condition, SyntaxError> {
    condition::read(text)?.ok_or_else(|| SyntaxError::new(0..text.len(), "there is no condition"))
}

fn parse_one(text: &str, default_unit: Unit) -> Result<Rate, SyntaxError> {
    let end = condition::begin(text);
    let condition = condition::read(&text[end..]).map_err(|error| error.shifted(end))?;
    let (text, whole) = (text[..end].trim_end(), 0..text.len());
    let said = read(text).map_err(|error| error.with_help_if(habit::without_point(text, default_unit)))?;
    let Said { amount, window_ns, per, per_at, .. } = said;
    let unit = said.unit.unwrap_or(default_unit);
    let buckets = check_window(window_ns).map_err(|problem| {
        let help = habit::in_bounds(amount, window_ns, said.unit, default_unit);
        SyntaxError::new(said.window_span, problem).with_help(help)
    })?;
    check_amount(amount, unit, buckets).map_err(|error| SyntaxError { span: said.amount_span, ..error })?;
    if condition.is_some() && (unit != Unit::Requests || per != Per::Source) {
        let problem = "only limits of requests of each source have conditions: a log counts requests";
        return Err(SyntaxError::new(whole, problem).with_help("for example 20/10m requests status=401,403"));
    }
    Ok(Rate { amount, unit, window_ns, buckets, per, per_at, condition })
}

fn check_window(window_ns: u64) -> Result<Buckets, &'static str> {
    if window_ns < WINDOW_NS_MIN {
        return Err("the window is too short");
    }
    if window_ns > WINDOW_NS_MAX {
        return Err("the window is too long");
    }
    buckets(window_ns).ok_or("the window cannot be cut into buckets")
}

fn check_amount(amount: u64, unit: Unit, buckets: Buckets) -> Result<(), SyntaxError> {
    if amount == 0 {
        return Err(SyntaxError::new(0..0, "a limit of 0 would drop everything")
            .with_help("the smallest limit is 1; to close a port altogether, use the firewall"));
    }
    let most = amount_max(buckets.bucket_ns);
    if amount > most {
        let length = duration::words(buckets.bucket_ns);
        let problem = format!("more {} than can be counted in buckets of {length}", unit_label(unit));
        return Err(SyntaxError::new(0..0, problem)
            .with_help(format!("the most for this window is {most} {}", unit_label(unit))));
    }
    Ok(())
}

/// The units, each with its abbreviations.
const UNITS: [(Unit, &[&str]); 4] = [
    (Unit::Requests, &["r", "rq", "req", "reqs"]),
    (Unit::Connections, &["conn", "conns"]),
    (Unit::Packets, &["pkt", "pkts"]),
    (Unit::Bytes, &[]),
];

/// Returns the unit with this name, in the plural, singular or abbreviated.
fn unit_of(word: &str) -> Option<Unit> {
    let lower = word.to_ascii_lowercase();
    let is_named = |(unit, short): &(Unit, &[&str])| {
        unit_label(*unit) == lower || unit_label(*unit).strip_suffix('s') == Some(&*lower) || short.contains(&&*lower)
    };
    UNITS.into_iter().find(is_named).map(|(unit, _)| unit)
}

/// Parses the name of a unit, in the plural, singular or abbreviated.
pub fn parse_unit(text: &str) -> Result<Unit, SyntaxError> {
    const HELP: &str = "units are requests (the default), connections, packets and bytes";
    if let Some(unit) = unit_of(text) {
        return Ok(unit);
    }
    let meant = near_miss(text, UNITS.map(|(unit, _)| unit_label(unit)));
    let help = meant.map_or(HELP.to_owned(), |unit| format!("did you mean `{unit}`? {HELP}"));
    let problem = if text.is_empty() { "the unit is missing".into() } else { format!("`{text}` is not a unit") };
    Err(SyntaxError::new(0..text.len(), problem).with_help(help))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Result<Rate, SyntaxError> {
        parse(text, Unit::Connections).map(|rates| rates[0].1)
    }

    #[test]
    fn a_window_has_the_buckets_of_the_design() {
        for (window_s, count, bucket_ms) in [
            (1, 5, 200),
            (7, 7, 1_000),
            (10, 5, 2_000),
            (11, 5, 2_200),
            (30, 6, 5_000),
            (60, 6, 10_000),
            (300, 5, 60_000),
            (360, 6, 60_000),
            (420, 7, 60_000),
            (600, 5, 120_000),
            (900, 5, 180_000),
            (1_800, 6, 300_000),
            (3_600, 6, 600_000),
            (7_200, 6, 1_200_000),
            (86_400, 6, 14_400_000),
        ] {
            let expected = Buckets { count, bucket_ns: bucket_ms * 1_000_000 };
            assert_eq!(buckets(window_s * SECOND_NS), Some(expected), "{window_s} s");
        }
    }

    #[test]
    fn every_window_of_whole_seconds_is_cut_exactly() {
        for window_s in 1..=86_400 {
            let window_ns = window_s * SECOND_NS;
            let cut = buckets(window_ns).expect("5 divides every whole second");
            assert!((5..=7).contains(&cut.count));
            assert_eq!(u64::from(cut.count) * cut.bucket_ns, window_ns);
        }
    }

    #[test]
    fn limits_read_as_documented() {
        for (text, amount, unit, window_s) in [
            ("1000/5m", 1_000, Unit::Connections, 300),
            ("10/s", 10, Unit::Connections, 1),
            ("50MB/1m", 50_000_000, Unit::Bytes, 60),
            ("50MB/1m bytes", 50_000_000, Unit::Bytes, 60),
            ("100/1m packets", 100, Unit::Packets, 60),
            ("1/1h30m connection", 1, Unit::Connections, 5_400),
            ("5/24h", 5, Unit::Connections, 86_400),
            ("5/1d", 5, Unit::Connections, 86_400),
            ("100/1m requests", 100, Unit::Requests, 60),
            ("1/1m request", 1, Unit::Requests, 60),
            ("10r/s", 10, Unit::Requests, 1),
            ("10 r/m", 10, Unit::Requests, 60),
            ("rate=10r/s", 10, Unit::Requests, 1),
            ("10rps", 10, Unit::Requests, 1),
            ("600 RPM", 600, Unit::Requests, 60),
            ("10pps", 10, Unit::Packets, 1),
            ("1,000/1m", 1_000, Unit::Connections, 60),
            ("1_000/1m", 1_000, Unit::Connections, 60),
            ("1 000/5m", 1_000, Unit::Connections, 300),
            ("1,000,000/1h packets", 1_000_000, Unit::Packets, 3_600),
            ("5 per minute", 5, Unit::Connections, 60),
            ("5 requests per minute", 5, Unit::Requests, 60),
            ("5 requests in 10 minutes", 5, Unit::Requests, 600),
            ("100 req/min", 100, Unit::Requests, 60),
            ("100 conns / 1 hour 30 minutes", 100, Unit::Connections, 5_400),
            ("5/minute", 5, Unit::Connections, 60),
            ("100/hour", 100, Unit::Connections, 3_600),
            ("10/sec", 10, Unit::Connections, 1),
            ("10/second", 10, Unit::Connections, 1),
            ("10/day", 10, Unit::Connections, 86_400),
            ("5/1h30m", 5, Unit::Connections, 5_400),
            ("5/1 day", 5, Unit::Connections, 86_400),
            ("1000 /5m", 1_000, Unit::Connections, 300),
            ("50 MB per minute", 50_000_000, Unit::Bytes, 60),
            ("500 bytes/s", 500, Unit::Bytes, 1),
        ] {
            let rate = one(text).expect(text);
            assert_eq!((rate.amount, rate.unit, rate.window_ns), (amount, unit, window_s * SECOND_NS), "{text}");
        }
    }

    #[test]
    fn several_limits_know_their_places() {
        let rates = parse("10/1m, 60/1h", Unit::Packets).expect("both are right");
        assert_eq!(rates.iter().map(|(span, _)| span.clone()).collect::<Vec<_>>(), [0..5, 7..12]);
        assert!(rates.iter().all(|(_, rate)| rate.unit == Unit::Packets));
        let rates = parse("1,000 per minute,10,000/1h,5/s", Unit::Packets).expect("a comma groups or separates");
        assert_eq!(rates.iter().map(|(_, rate)| rate.amount).collect::<Vec<_>>(), [1_000, 10_000, 5]);
        assert_eq!(rates.iter().map(|(span, _)| span.clone()).collect::<Vec<_>>(), [0..16, 17..26, 27..30]);
    }

    #[test]
    fn an_error_points_at_the_character() {
        for (text, span, problem) in [
            ("", 0..0, "it is empty"),
            ("10/1m,", 6..6, "there is nothing between the commas"),
            ("1000", 4..4, "the window is missing"),
            ("abc", 0..1, "`a` is not a digit"),
            ("1000/", 5..5, "the time is missing"),
            ("1000/5", 5..6, "`5` has no unit of time"),
            ("1000/5x", 6..7, "`x` is not a unit of time"),
            ("10/1m,60/1y", 10..11, "`y` is not a unit of time"),
            ("/5m", 0..0, "the number is missing"),
            ("0/5m", 0..1, "a limit of 0 would drop everything"),
            ("10,5/1m", 2..3, "`,` does not group the digits by three"),
            ("10/5,100/1h", 3..4, "`5` has no unit of time"),
            ("10/1m;60/1h", 5..6, "`;` does not belong in a limit"),
            ("10 requets/1m", 3..10, "`requets` is not a unit"),
            ("10mb/1m", 2..4, "`mb` is not a size"),
            ("10 requests/1m packets", 15..22, "the unit is already given before the window"),
            ("10rps/1m", 5..6, "`/` does not belong in a limit"),
            ("1.000/1m", 1..2, "`.` does not belong in a number"),
            ("10/999ms", 3..8, "the window is too short"),
            ("10/25h", 3..6, "the window is too long"),
            ("10/1m conections", 6..16, "`conections` is not a unit"),
            ("10/1m request s", 6..15, "`request s` is not a unit"),
            ("50MB/1m packets", 8..15, "`50MB` is a size, and packets have none"),
            ("50MB packets/1m", 5..12, "`50MB` is a size, and packets have none"),
        ] {
            let error = one(text).expect_err(text);
            assert_eq!((error.span, error.problem.as_str()), (span, problem), "{text}");
        }
    }

    #[test]
    fn the_largest_amount_is_the_last_that_fits_a_cell() {
        let most = amount_max(SECOND_NS / 5);
        assert_eq!(one(&format!("{most}/1s")).map(|rate| rate.amount), Ok(most));
        assert!(one(&format!("{}/1s", most + 1)).is_err());
    }

    #[test]
    fn both_ends_of_the_windows_lengths_are_in() {
        assert!(one("1/1s").is_ok());
        assert!(one("1/24h").is_ok());
        assert!(one("1/24h1ms").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(
            text in "\\PC{0,16}|[0-9a-zA-Z/,._ =]{0,24}|[0-9]{1,4}[kMG]?i?B?/[0-9]{0,3}[smhd]?( [a-z]{0,11})?",
        ) {
            if let Err(error) = parse(&text, Unit::Connections) {
                prop_assert!(text.get(error.span).is_some());
            }
        }

        #[test]
        fn a_window_of_whole_milliseconds_is_cut_exactly(window_ms in 1_000_u64..=86_400_000) {
            let cut = buckets(window_ms * 1_000_000).expect("5 divides it");
            prop_assert_eq!(u64::from(cut.count) * cut.bucket_ns, window_ms * 1_000_000);
        }
    }
}
