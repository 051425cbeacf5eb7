//! The times that logs have, in all their forms. Pure: the zone of times without one, and today's year, are arguments.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use ratelimit_common::time::{Nanos, SECOND_NS};

/// A local time that would be so much earlier than the one before it is the later of the two that a clock shows in
/// autumn.
const TURNED_BACK_SECONDS: i64 = 600;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// What times are taken by that do not say it themselves.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The zone of times without an offset.
    pub zone: TimeZone,
    /// Now: a time without a year is of the last twelve months.
    pub now: jiff::Timestamp,
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
    /// Seconds since 1970, as its own clock shows them.
    shown: i64,
    nanos: u32,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    /// Seconds to the east of UTC.
    East(i64),
    Local,
    /// Local, and its year is not said: `shown` is of the year 1972, which has every day.
    LocalOfSomeYear,
}

/// Turns stamps into times, one after the other.
#[derive(Debug)]
pub(super) struct Times {
    clock: Clock,
    last: i64,
    /// How many were taken by the zone of the clock.
    pub(super) local: u64,
}

impl Times {
    pub(super) const fn new(clock: Clock) -> Self {
        Self { clock, last: i64::MIN, local: 0 }
    }

    /// When it is; else why it cannot be, a clause.
    pub(super) fn at(&mut self, stamp: Stamp) -> Result<Nanos, String> {
        let seconds = match stamp.zone {
            Zone::East(seconds) => stamp.shown.checked_sub(seconds),
            Zone::Local => self.local(stamp.shown),
            Zone::LocalOfSomeYear => self.of_the_last_year(stamp.shown),
        };
        let seconds = seconds.ok_or("its time is no time of a calendar")?;
        self.last = seconds;
        self.local += u64::from(!matches!(stamp.zone, Zone::East(_)));
        let seconds = u64::try_from(seconds).map_err(|_| "its time is before 1970")?;
        let nanos = seconds.checked_mul(SECOND_NS).and_then(|nanos| nanos.checked_add(stamp.nanos.into()));
        nanos.map(Nanos).ok_or_else(|| "its time is after 2554".to_owned())
    }

    /// A time of the clock's zone. Of an hour that comes twice it is the first, until time would run backward.
    fn local(&self, shown: i64) -> Option<i64> {
        let civil = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::from_second(shown).ok()?);
        let of = |offset: jiff::tz::Offset| shown - i64::from(offset.seconds());
        Some(match self.clock.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => of(offset),
            AmbiguousOffset::Gap { before, .. } => of(before),
            AmbiguousOffset::Fold { before, after } => {
                let is_second = of(before) < self.last.saturating_sub(TURNED_BACK_SECONDS);
                of(if is_second { after } else { before })
            }
        })
    }

    fn of_the_last_year(&self, shown: i64) -> Option<i64> {
        let now = self.clock.now.to_zoned(self.clock.zone.clone());
        let of = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::from_second(shown).ok()?);
        // A clock may be a day ahead, and the 29th of February is of the last leap year.
        let latest = now.timestamp().as_second() + 86_400;
        (0..=8).find_map(|back| {
            let year = now.year() - back;
            let civil = DateTime::new(year, of.month(), of.day(), of.hour(), of.minute(), of.second(), 0).ok()?;
            let shown = jiff::tz::Offset::UTC.to_timestamp(civil).ok()?.as_second();
            self.local(shown).filter(|seconds| *seconds <= latest)
        })
    }
}

impl Stamp {
    fn new(shown: i64, nanos: u32, zone: Zone) -> Self {
        Self { shown, nanos, zone }
    }

    /// Whether it says its own zone.
    pub(super) const fn has_offset(self) -> bool {
        matches!(self.zone, Zone::East(_))
    }

    /// `10/Oct/2000:13:55:36 -0700`, with a fraction or not, with an offset or not.
    pub(super) fn common(text: &[u8]) -> Option<Self> {
        let (day, rest) = digits(text, 2)?;
        let (month, rest) = month(rest.strip_prefix(b"/")?)?;
        let (year, rest) = year(rest.strip_prefix(b"/")?)?;
        let (second, nanos, rest) = clock(rest.strip_prefix(b":")?)?;
        let zone = zone(rest.strip_prefix(b" ").unwrap_or(rest))?;
        Some(Self::new(days(year, month, day)? * 86_400 + second, nanos, zone))
    }

    /// `2000-10-10T13:55:36Z`, with a fraction or not, with an offset or not; a blank or slashes will do too.
    pub(super) fn iso(text: &[u8]) -> Option<Self> {
        let (year, rest) = digits(text, 4)?;
        let (separator, rest) = rest.split_first().filter(|(byte, _)| matches!(byte, b'-' | b'/'))?;
        let (month, rest) = digits(rest, 2)?;
        let (day, rest) = digits(rest.strip_prefix(std::slice::from_ref(separator))?, 2)?;
        let (_, rest) = rest.split_first().filter(|(byte, _)| matches!(byte, b'T' | b't' | b' '))?;
        let (second, nanos, rest) = clock(rest)?;
        let zone = zone(rest.strip_prefix(b" ").unwrap_or(rest))?;
        Some(Self::new(days(year, month, day)? * 86_400 + second, nanos, zone))
    }

    /// A date and a time of day in UTC, each for itself.
    pub(super) fn of_date_and_time(date: &[u8], time: &[u8]) -> Option<Self> {
        let text = [date, b"T", time, b"Z"].concat();
        Self::iso(&text)
    }

    /// `Oct  5 13:55:36`, with a fraction or not, and what is behind it.
    pub(super) fn syslog(text: &[u8]) -> Option<(Self, &[u8])> {
        let (month, rest) = month(text)?;
        let rest = rest.strip_prefix(b" ")?;
        let (day, rest) = match rest.strip_prefix(b" ") {
            Some(rest) => digits(rest, 1)?,
            None => digits(rest, 2)?,
        };
        let (second, nanos, rest) = clock(rest.strip_prefix(b" ")?)?;
        Some((Self::new(days(1972, month, day)? * 86_400 + second, nanos, Zone::LocalOfSomeYear), rest))
    }

    /// Seconds since 1970, or thousandths, millionths or billionths of them: the number's size tells which.
    pub(super) fn epoch(text: &[u8]) -> Option<Self> {
        let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, [].as_slice()),
        };
        if whole.is_empty() || whole.len() > 19 {
            return None;
        }
        let number = whole.iter().try_fold(0_i64, |number, byte| {
            let digit = char::from(*byte).to_digit(10)?;
            number.checked_mul(10)?.checked_add(digit.into())
        })?;
        let (parts, nanos_of_one) = match number {
            100_000_000..100_000_000_000 => (1, 1_000_000_000),
            100_000_000_000..100_000_000_000_000 => (1_000, 1_000_000),
            100_000_000_000_000..100_000_000_000_000_000 => (1_000_000, 1_000),
            100_000_000_000_000_000.. => (1_000_000_000, 1),
            _ => return None,
        };
        let nanos = if parts == 1 { fractional(fraction)? } else { 0 };
        let rest = u32::try_from(number % parts * nanos_of_one).ok()?;
        Some(Self::new(number / parts, nanos + rest, Zone::East(0)))
    }

    /// In any of the forms that a text may have.
    pub(super) fn any(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        Self::iso(text).or_else(|| Self::common(text)).or_else(|| Self::epoch(text))
    }
}

/// A number of so many digits, and what is behind it.
fn digits(text: &[u8], count: usize) -> Option<(i64, &[u8])> {
    let (digits, rest) = text.split_at_checked(count)?;
    let number = digits
        .iter()
        .try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0')))?;
    Some((number, rest))
}

/// Of four digits, or of two: those are of this century.
fn year(text: &[u8]) -> Option<(i64, &[u8])> {
    digits(text, 4).or_else(|| digits(text, 2).map(|(year, rest)| (2000 + year, rest)))
}

fn month(text: &[u8]) -> Option<(i64, &[u8])> {
    let (name, rest) = text.split_first_chunk::<3>()?;
    let number = (1..).zip(MONTHS).find(|(_, month)| month.eq_ignore_ascii_case(name))?.0;
    Some((number, rest))
}

/// The second of the day, nanoseconds, and what is behind. The last minute of a day may have a leap second.
fn clock(text: &[u8]) -> Option<(i64, u32, &[u8])> {
    let (hour, rest) = digits(text, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    let (second, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let of_day = hour * 3600 + minute * 60 + second;
    let Some(rest) = rest.strip_prefix(b".").or_else(|| rest.strip_prefix(b",")) else {
        return Some((of_day, 0, rest));
    };
    let len = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    Some((of_day, fractional(&rest[..len])?, &rest[len..]))
}

/// Nanoseconds of the digits behind a point.
fn fractional(digits: &[u8]) -> Option<u32> {
    let digits = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    digits.into_iter().try_fold(0, |number, byte| byte.is_ascii_digit().then(|| number * 10 + u32::from(byte - b'0')))
}

/// `Z`, `UTC`, `+0200`, `+02:00`, or nothing; and nothing behind it.
fn zone(text: &[u8]) -> Option<Zone> {
    let (sign, rest) = match text {
        [] => return Some(Zone::Local),
        b"Z" | b"z" | b"UTC" | b"GMT" => return Some(Zone::East(0)),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, rest) = digits(rest, 2)?;
    let (minutes, rest) = digits(rest.strip_prefix(b":").unwrap_or(rest), 2)?;
    let is_zone = rest.is_empty() && hours < 24 && minutes < 60;
    is_zone.then_some(Zone::East(sign * (hours * 3600 + minutes * 60)))
}

/// Days from 1970 to a day of the calendar; none of a day that no month has.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=last).contains(&day) {
        return None;
    }
    // Years that begin in March, so that a leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    Some(
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (month * 153 + 2) / 5 + day
            - 719_469,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        assert!(times("UTC0").at(Stamp::any(b"9999-01-01T00:00:00Z").expect("a stamp")).is_err());
    }

    proptest! {
        #[test]
        fn days_are_those_of_the_calendar(day in -700_000_i32..2_900_000) {
            let date = jiff::civil::date(1970, 1, 1).checked_add(jiff::Span::new().days(day));
            if let Ok(date) = date {
                prop_assert_eq!(
                    days(date.year().into(), date.month().into(), date.day().into()),
                    Some(day.into())
                );
            }
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
