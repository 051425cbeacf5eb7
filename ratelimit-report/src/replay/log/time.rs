//! Parsing of the time formats in logs. Pure: the time zone of times without one, and the current time, are arguments.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};
use ratelimit_common::time::{Nanos, SECOND_NS};

/// Backward step from which an ambiguous local time means the second of two. Clocks show one hour twice in autumn.
const TURNED_BACK: SignedDuration = SignedDuration::from_mins(10);

/// Formats of nginx and Apache. The two-digit year comes first: it fails on four digits, of which two would be left.
const COMMON: [&str; 2] = ["%d/%b/%y:%H:%M:%S", "%d/%b/%Y:%H:%M:%S"];
/// Formats of ISO 8601, and variants that programs write.
const ISO: [&str; 4] = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dt%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S"];
/// Format of RFC 3164.
const SYSLOG: [&str; 1] = ["%b %d %H:%M:%S"];

/// Start of the year 2201, in nanoseconds since 1970. Windows of later times would exceed the kernel's counters.
const LATEST_NS: u64 = 7_289_654_400 * SECOND_NS;

/// Year for dates without one; as a leap year it has every possible day.
const LEAP_YEAR: i16 = 1972;

/// Zone and current time, which complete times that lack them.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Zone of times without an offset.
    pub zone: TimeZone,
    /// Current time. A time without a year is within the last twelve months.
    pub now: Timestamp,
}

impl Clock {
    /// Returns the name or offset of the zone.
    pub(super) fn name(&self) -> String {
        let name = self.zone.iana_name().map(str::to_owned);
        name.unwrap_or_else(|| self.zone.to_offset(self.now).to_string())
    }
}

/// Time as a log line contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Local date and time in the line.
    shown: DateTime,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    Said(Offset),
    Local,
    /// Local time without a year. The date is stored with the year [`LEAP_YEAR`].
    LocalOfSomeYear,
}

/// Converter from stamps to times, in the order of the lines.
#[derive(Debug)]
pub(super) struct Times {
    clock: Clock,
    last: Timestamp,
    /// Number of times that were read in the zone of the clock.
    pub(super) local: u64,
}

impl Times {
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock, last: Timestamp::MIN, local: 0 }
    }

    /// Converts a stamp, or returns a clause on why it has no time.
    pub(super) fn at(&mut self, Stamp { shown, zone }: Stamp) -> Result<Nanos, String> {
        let at = match zone {
            Zone::Said(offset) => offset.to_timestamp(shown).ok(),
            Zone::Local => self.local(shown),
            Zone::LocalOfSomeYear => self.of_the_last_year(shown),
        };
        self.last = at.ok_or("its time does not exist in the calendar")?;
        self.local += u64::from(!matches!(zone, Zone::Said(_)));
        if self.last < Timestamp::UNIX_EPOCH {
            return Err("its time is before 1970".to_owned());
        }
        let nanos = u64::try_from(self.last.as_nanosecond()).ok().filter(|nanos| *nanos < LATEST_NS);
        nanos.map(Nanos).ok_or_else(|| "its time is after 2200".to_owned())
    }

    /// Converts a time of the clock's zone. In an hour that occurs twice, the first is taken unless time would run
    /// backward.
    fn local(&self, shown: DateTime) -> Option<Timestamp> {
        let of = self.clock.zone.to_ambiguous_timestamp(shown);
        let first = of.compatible().ok()?;
        let is_twice = matches!(of.offset(), AmbiguousOffset::Fold { .. });
        let is_second = is_twice && self.last.duration_since(first) > TURNED_BACK;
        if is_second { of.later().ok() } else { Some(first) }
    }

    fn of_the_last_year(&self, shown: DateTime) -> Option<Timestamp> {
        // The clock may be a day ahead, and February 29 may be of the last leap year.
        let latest = self.clock.now.checked_add(SignedDuration::from_hours(24)).ok()?;
        let year = self.clock.now.to_zoned(self.clock.zone.clone()).year();
        (0..=8).find_map(|back| {
            let shown = shown.with().year(year - back).build().ok()?;
            self.local(shown).filter(|at| *at <= latest)
        })
    }
}

impl Stamp {
    /// Returns true if the stamp has its own offset.
    pub(super) const fn has_offset(self) -> bool {
        matches!(self.zone, Zone::Said(_))
    }

    /// Returns the stamp `ms` milliseconds earlier; none if it is out of range.
    pub(super) fn earlier_by_ms(self, ms: u64) -> Option<Self> {
        let shown = self.shown.checked_sub(SignedDuration::from_millis(i64::try_from(ms).ok()?)).ok()?;
        Some(Self { shown, ..self })
    }

    /// Parses `10/Oct/2000:13:55:36 -0700`. Fraction and offset are optional.
    pub(super) fn common(text: &[u8]) -> Option<Self> {
        Self::of_calendar(&COMMON, text)
    }

    /// Parses `2000-10-10T13:55:36Z`. Fraction and offset are optional, and blanks or slashes are accepted.
    pub(super) fn iso(text: &[u8]) -> Option<Self> {
        Self::of_calendar(&ISO, text)
    }

    fn of_calendar(formats: &[&str], text: &[u8]) -> Option<Self> {
        let (shown, rest) = shown(formats, text)?;
        Some(Self { shown, zone: zone(rest.trim_ascii_start())? })
    }

    /// Parses a date and a time of day in UTC from separate fields.
    pub(super) fn of_date_and_time(date: &[u8], time: &[u8]) -> Option<Self> {
        let text = [date, b"T", time, b"Z"].concat();
        Self::iso(&text)
    }

    /// Parses `Oct  5 13:55:36` with an optional fraction, and returns the text after it too.
    pub(super) fn syslog(text: &[u8]) -> Option<(Self, &[u8])> {
        let (shown, rest) = shown(&SYSLOG, text)?;
        Some((Self { shown, zone: Zone::LocalOfSomeYear }, rest))
    }

    /// Parses seconds, milliseconds, microseconds or nanoseconds since 1970, depending on the number's size.
    pub(super) fn epoch(text: &[u8]) -> Option<Self> {
        let (whole, rest) = text.split_at(digits_len(text));
        let number: i128 = std::str::from_utf8(whole).ok()?.parse().ok()?;
        let nanos_of_one = match number {
            100_000_000..100_000_000_000 => 1_000_000_000,
            100_000_000_000..100_000_000_000_000 => 1_000_000,
            100_000_000_000_000..100_000_000_000_000_000 => 1_000,
            100_000_000_000_000_000..10_000_000_000_000_000_000 => 1,
            _ => return None,
        };
        let (fraction, rest) = fraction(rest);
        let nanos = number * nanos_of_one + i128::from(fraction) * nanos_of_one / 1_000_000_000;
        let shown = Offset::UTC.to_datetime(Timestamp::from_nanosecond(nanos).ok()?);
        rest.is_empty().then_some(Self { shown, zone: Zone::Said(Offset::UTC) })
    }

    /// Parses a time in any of the numeric, ISO or common forms.
    pub(super) fn any(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        Self::epoch(text).or_else(|| Self::iso(text)).or_else(|| Self::common(text))
    }
}

/// Converts a duration in seconds to milliseconds. Returns none above 366 days, because such a value is an error.
pub(super) fn millis(seconds: &str) -> Option<u64> {
    const SECONDS_MAX: f64 = 366.0 * 86_400.0;
    let seconds: f64 = seconds.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to SECONDS_MAX")]
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| (seconds * 1_000.0).round() as u64)
}

/// Parses a date and time in one of the formats, with an optional fraction, and returns the text after it too.
fn shown<'a>(formats: &[&str], text: &'a [u8]) -> Option<(DateTime, &'a [u8])> {
    formats.iter().find_map(|format| {
        let (mut parsed, len) = BrokenDownTime::parse_prefix(format, text).ok()?;
        if parsed.year().is_none() {
            parsed.set_year(Some(LEAP_YEAR)).ok()?;
        }
        let (second, rest) = text.split_at_checked(len)?;
        let (nanos, rest) = fraction(rest);
        // The parser maps a leap second to the second before it.
        let further = Span::new().seconds(i64::from(second.ends_with(b":60"))).nanoseconds(nanos);
        Some((parsed.to_datetime().ok()?.checked_add(further).ok()?, rest))
    })
}

/// Parses `.123` or `,123` as nanoseconds, and returns the text after it too. Returns 0 without a fraction.
fn fraction(text: &[u8]) -> (i64, &[u8]) {
    let Some(text) = text.strip_prefix(b".").or_else(|| text.strip_prefix(b",")) else { return (0, text) };
    let (digits, rest) = text.split_at(digits_len(text));
    let nine = digits.iter().chain(std::iter::repeat(&b'0')).take(9);
    (nine.fold(0, |number, digit| number * 10 + i64::from(digit - b'0')), rest)
}

fn digits_len(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Parses `Z`, `UTC`, `+0200`, `+02:00` or the empty text. Fails if anything follows.
fn zone(text: &[u8]) -> Option<Zone> {
    match text {
        [] => Some(Zone::Local),
        b"Z" | b"z" | b"UTC" | b"GMT" => Some(Zone::Said(Offset::UTC)),
        _ => ["%z", "%:z"].iter().find_map(|form| BrokenDownTime::parse(form, text).ok()?.offset()).map(Zone::Said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ratelimit_common::time::SECOND_NS;

    /// Zone rules of Berlin in POSIX form, which need no time zone database.
    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    fn times(zone: &str) -> Times {
        let now = "2026-11-24T12:00:00Z".parse().expect("a time");
        Times::new(Clock { zone: TimeZone::posix(zone).expect("a zone"), now })
    }

    fn at(zone: &str, stamp: Option<Stamp>) -> String {
        let at = times(zone).at(stamp.expect("a stamp")).expect("a time");
        jiff::Timestamp::from_nanosecond(at.0.into()).expect("in range").to_string()
    }

    #[test]
    fn every_form_is_the_same_time() {
        let at = |stamp| at("UTC0", stamp);
        for stamp in [
            Stamp::common(b"10/Oct/2026:13:55:36 -0700"),
            Stamp::common(b"10/Oct/2026:22:25:36 +0130"),
            Stamp::common(b"10/Oct/26:20:55:36 +0000"),
            Stamp::iso(b"2026-10-10T20:55:36Z"),
            Stamp::iso(b"2026-10-10T13:55:36-07:00"),
            Stamp::iso(b"2026/10/10 20:55:36"),
            Stamp::of_date_and_time(b"2026-10-10", b"20:55:36"),
            Stamp::epoch(b"1791665736"),
            Stamp::epoch(b"1791665736.000"),
            Stamp::epoch(b"1791665736000"),
            Stamp::epoch(b"1791665736000000"),
            Stamp::epoch(b"1791665736000000000"),
            Stamp::syslog(b"Oct 10 20:55:36 web nginx: x").map(|(stamp, _)| stamp),
        ] {
            assert_eq!(at(stamp), "2026-10-10T20:55:36Z", "{stamp:?}");
        }
        assert_eq!(at(Stamp::iso(b"2026-10-10T20:55:36.123456+00:00")), "2026-10-10T20:55:36.123456Z");
        assert_eq!(at(Stamp::epoch(b"1791665736.5")), "2026-10-10T20:55:36.5Z");
        assert_eq!(at(Stamp::iso(b"2016-12-31T23:59:60Z")), "2017-01-01T00:00:00Z");
    }

    #[test]
    fn a_time_without_a_year_is_of_the_last_twelve_months() {
        let of = |text: &[u8]| at("UTC0", Stamp::syslog(text).map(|(stamp, _)| stamp));
        assert_eq!(of(b"Nov 24 13:00:00"), "2026-11-24T13:00:00Z");
        assert_eq!(of(b"Dec  1 00:00:00"), "2025-12-01T00:00:00Z");
        assert_eq!(of(b"Feb 29 00:00:00"), "2024-02-29T00:00:00Z");
    }

    #[test]
    fn an_hour_that_comes_twice_comes_twice() {
        let mut times = times(BERLIN);
        // Summer time ended at 03:00, and the clock went back to 02:00.
        let mut at = |text: &str| times.at(Stamp::iso(text.as_bytes()).expect(text)).expect(text).0 / SECOND_NS;
        let first = at("2026-10-25 02:30:00");
        assert_eq!(at("2026-10-25 02:59:59"), first + 1799);
        assert_eq!(at("2026-10-25 02:00:00"), first + 1800, "an hour later, not earlier");
        assert_eq!(at("2026-10-25 02:30:00"), first + 3600);
        assert_eq!(at("2026-10-25 03:00:00"), first + 5400);
        assert_eq!(times.local, 5);
    }

    #[test]
    fn an_hour_that_never_came_is_taken_to_be_of_the_clock_before_it() {
        assert_eq!(at(BERLIN, Stamp::iso(b"2026-03-29 02:30:00")), "2026-03-29T01:30:00Z");
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in
            ["", "31/Feb/2026:00:00:00 +0000", "10/Oct/2026:24:00:00 +0000", "10/Okt/2026:00:00:00 +0000", "0.003"]
        {
            assert_eq!(Stamp::any(text.as_bytes()), None, "{text}");
        }
        assert!(times("UTC0").at(Stamp::any(b"1960-01-01T00:00:00Z").expect("a stamp")).is_err());
        for late in ["2201-01-01T00:00:00Z", "9999-01-01T00:00:00Z"] {
            assert!(times("UTC0").at(Stamp::any(late.as_bytes()).expect("a stamp")).is_err(), "{late}");
        }
    }

    proptest! {
        #[test]
        fn days_are_those_of_the_calendar(day in 0_i64..84_371) {
            let midnight = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * day);
            prop_assert_eq!(at("UTC0", Stamp::iso(midnight.to_string().as_bytes())), midnight.to_string());
            let common = midnight.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
            prop_assert_eq!(at("UTC0", Stamp::common(common.as_bytes())), midnight.to_string());
        }

        #[test]
        fn no_text_panics(text in "[0-9A-Za-z:/ .+-]{0,40}") {
            let mut times = times(BERLIN);
            for stamp in [Stamp::any(text.as_bytes()), Stamp::syslog(text.as_bytes()).map(|(stamp, _)| stamp)] {
                let _any = stamp.map(|stamp| times.at(stamp));
            }
        }
    }
}
