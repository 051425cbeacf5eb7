//! The times that logs have, in all their forms. Pure: the zone of times without one, and today's year, are arguments.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};
use ratelimit_common::time::{Nanos, SECOND_NS};

/// A local time that would be so much earlier than the one before it is the later of the two that a clock shows in
/// autumn.
const TURNED_BACK: SignedDuration = SignedDuration::from_mins(10);

/// nginx's and Apache's times. Years of two digits come first: of four, two would be left.
const COMMON: [&str; 2] = ["%d/%b/%y:%H:%M:%S", "%d/%b/%Y:%H:%M:%S"];
/// Those of ISO 8601, and as programs write them.
const ISO: [&str; 4] = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dt%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S"];
/// Those of RFC 3164.
const SYSLOG: [&str; 1] = ["%b %d %H:%M:%S"];

/// The begin of 2201, in nanoseconds since 1970. Windows of later times would end beyond what the kernel counts to.
const LATEST_NS: u64 = 7_289_654_400 * SECOND_NS;

/// It has every day that a year may have.
const LEAP_YEAR: i16 = 1972;

/// What times are taken by that do not say it themselves.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The zone of times without an offset.
    pub zone: TimeZone,
    /// Now: a time without a year is of the last twelve months.
    pub now: Timestamp,
}

impl Clock {
    /// What its zone is called.
    pub(super) fn name(&self) -> String {
        let name = self.zone.iana_name().map(str::to_owned);
        name.unwrap_or_else(|| self.zone.to_offset(self.now).to_string())
    }
}

/// A time as a log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// What its own clock shows.
    shown: DateTime,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    Said(Offset),
    Local,
    /// Local, and its year is not said: what is shown is of [`LEAP_YEAR`].
    LocalOfSomeYear,
}

/// Turns stamps into times, one after the other.
#[derive(Debug)]
pub(super) struct Times {
    clock: Clock,
    last: Timestamp,
    /// How many were taken by the zone of the clock.
    pub(super) local: u64,
}

impl Times {
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock, last: Timestamp::MIN, local: 0 }
    }

    /// When it is; else why it cannot be, a clause.
    pub(super) fn at(&mut self, Stamp { shown, zone }: Stamp) -> Result<Nanos, String> {
        let at = match zone {
            Zone::Said(offset) => offset.to_timestamp(shown).ok(),
            Zone::Local => self.local(shown),
            Zone::LocalOfSomeYear => self.of_the_last_year(shown),
        };
        self.last = at.ok_or("its time is no time of a calendar")?;
        self.local += u64::from(!matches!(zone, Zone::Said(_)));
        if self.last < Timestamp::UNIX_EPOCH {
            return Err("its time is before 1970".to_owned());
        }
        let nanos = u64::try_from(self.last.as_nanosecond()).ok().filter(|nanos| *nanos < LATEST_NS);
        nanos.map(Nanos).ok_or_else(|| "its time is after 2200".to_owned())
    }

    /// A time of the clock's zone. Of an hour that comes twice it is the first, until time would run backward.
    fn local(&self, shown: DateTime) -> Option<Timestamp> {
        let of = self.clock.zone.to_ambiguous_timestamp(shown);
        let first = of.compatible().ok()?;
        let is_twice = matches!(of.offset(), AmbiguousOffset::Fold { .. });
        let is_second = is_twice && self.last.duration_since(first) > TURNED_BACK;
        if is_second { of.later().ok() } else { Some(first) }
    }

    fn of_the_last_year(&self, shown: DateTime) -> Option<Timestamp> {
        // A clock may be a day ahead, and the 29th of February is of the last leap year.
        let latest = self.clock.now.checked_add(SignedDuration::from_hours(24)).ok()?;
        let year = self.clock.now.to_zoned(self.clock.zone.clone()).year();
        (0..=8).find_map(|back| {
            let shown = shown.with().year(year - back).build().ok()?;
            self.local(shown).filter(|at| *at <= latest)
        })
    }
}

impl Stamp {
    /// Whether it says its own zone.
    pub(super) const fn has_offset(self) -> bool {
        matches!(self.zone, Zone::Said(_))
    }

    /// The time so many milliseconds before.
    pub(super) fn earlier_by_ms(self, ms: u64) -> Option<Self> {
        let shown = self.shown.checked_sub(SignedDuration::from_millis(i64::try_from(ms).ok()?)).ok()?;
        Some(Self { shown, ..self })
    }

    /// `10/Oct/2000:13:55:36 -0700`, with a fraction or not, with an offset or not.
    pub(super) fn common(text: &[u8]) -> Option<Self> {
        Self::of_calendar(&COMMON, text)
    }

    /// `2000-10-10T13:55:36Z`, with a fraction or not, with an offset or not; a blank or slashes will do too.
    pub(super) fn iso(text: &[u8]) -> Option<Self> {
        Self::of_calendar(&ISO, text)
    }

    fn of_calendar(formats: &[&str], text: &[u8]) -> Option<Self> {
        let (shown, rest) = shown(formats, text)?;
        Some(Self { shown, zone: zone(rest.trim_ascii_start())? })
    }

    /// A date and a time of day in UTC, each for itself.
    pub(super) fn of_date_and_time(date: &[u8], time: &[u8]) -> Option<Self> {
        let text = [date, b"T", time, b"Z"].concat();
        Self::iso(&text)
    }

    /// `Oct  5 13:55:36`, with a fraction or not, and what is behind it.
    pub(super) fn syslog(text: &[u8]) -> Option<(Self, &[u8])> {
        let (shown, rest) = shown(&SYSLOG, text)?;
        Some((Self { shown, zone: Zone::LocalOfSomeYear }, rest))
    }

    /// Seconds since 1970, or thousandths, millionths or billionths of them: the number's size tells which.
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

    /// In any of the forms that a text may have.
    pub(super) fn any(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        Self::epoch(text).or_else(|| Self::iso(text)).or_else(|| Self::common(text))
    }
}

/// Returns the milliseconds of a duration in seconds, up to a year: a longer one is a fault of who wrote it.
pub(super) fn millis(seconds: &str) -> Option<u64> {
    const SECONDS_MAX: f64 = 366.0 * 86_400.0;
    let seconds: f64 = seconds.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to SECONDS_MAX")]
    (0.0..=SECONDS_MAX).contains(&seconds).then(|| (seconds * 1_000.0).round() as u64)
}

/// What a clock shows, in one of these formats, with a fraction or not; and what is behind it.
fn shown<'a>(formats: &[&str], text: &'a [u8]) -> Option<(DateTime, &'a [u8])> {
    formats.iter().find_map(|format| {
        let (mut parsed, len) = BrokenDownTime::parse_prefix(format, text).ok()?;
        if parsed.year().is_none() {
            parsed.set_year(Some(LEAP_YEAR)).ok()?;
        }
        let (second, rest) = text.split_at_checked(len)?;
        let (nanos, rest) = fraction(rest);
        // The parser takes a leap second to be the second before it.
        let further = Span::new().seconds(i64::from(second.ends_with(b":60"))).nanoseconds(nanos);
        Some((parsed.to_datetime().ok()?.checked_add(further).ok()?, rest))
    })
}

/// The nanoseconds of `.123` or `,123`, and what is behind it.
fn fraction(text: &[u8]) -> (i64, &[u8]) {
    let Some(text) = text.strip_prefix(b".").or_else(|| text.strip_prefix(b",")) else { return (0, text) };
    let (digits, rest) = text.split_at(digits_len(text));
    let nine = digits.iter().chain(std::iter::repeat(&b'0')).take(9);
    (nine.fold(0, |number, digit| number * 10 + i64::from(digit - b'0')), rest)
}

fn digits_len(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// `Z`, `UTC`, `+0200`, `+02:00`, or nothing; and nothing behind it.
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

    /// The rules of Berlin, which need no database of zones.
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
        // Summer time ended at three, and it was two again.
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
    fn what_is_no_time_is_none() {
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
