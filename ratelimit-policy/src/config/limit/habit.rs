//! Hints for limits that cannot be parsed: the probable meaning, as the same rate in valid syntax. Pure.

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;

use super::{WINDOW_NS_MAX, WINDOW_NS_MIN, check_amount, check_window, read};
use crate::config::syntax::Scanner;
use crate::config::{amount, duration};
use crate::desired::unit_label;

/// Window lengths that a person calls round, in nanoseconds, within the bounds of windows.
const ROUND_NS: [u64; 6] =
    [SECOND_NS, 10 * SECOND_NS, 60 * SECOND_NS, 600 * SECOND_NS, 3_600 * SECOND_NS, WINDOW_NS_MAX];

/// Formats a rate as a limit: `1000/5m`, `50MB/1m`, `20/1s requests`.
fn words(count: u64, window_ns: u64, unit: Option<Unit>) -> String {
    let window = duration::short(window_ns);
    match unit {
        Some(Unit::Bytes) => format!("{}/{window}", amount::size(count)),
        Some(unit @ (Unit::Requests | Unit::Connections | Unit::Packets)) => {
            format!("{count}/{window} {}", unit_label(unit))
        }
        None => format!("{count}/{window}"),
    }
}

/// Formats a rate as a limit. Returns None if such a limit would be invalid or could not be printed exactly.
fn countable(count: u64, window_ns: u64, unit: Option<Unit>, default_unit: Unit) -> Option<String> {
    let buckets = check_window(window_ns).ok()?;
    check_amount(count, unit.unwrap_or(default_unit), buckets).ok()?;
    let is_printed_exactly = window_ns.is_multiple_of(SECOND_NS / 1_000);
    is_printed_exactly.then(|| words(count, window_ns, unit))
}

/// Returns the help for a window that is too short or too long.
pub(super) fn in_bounds(count: u64, window_ns: u64, unit: Option<Unit>, default_unit: Unit) -> String {
    let bounds = "windows are 1s to 24h";
    match same_rate(count, window_ns, unit, default_unit) {
        Some(same) => format!("{bounds}: {same} is the same rate"),
        None => lower_rate(count, window_ns, unit, default_unit)
            .map_or_else(|| bounds.to_owned(), |lower| format!("{bounds}: {lower} is the nearest lower rate")),
    }
}

/// Returns exactly this rate in a valid window. Prefers a round window. Otherwise a window that is too short is
/// raised to its smallest multiple within the bounds.
fn same_rate(count: u64, window_ns: u64, unit: Option<Unit>, default_unit: Unit) -> Option<String> {
    let shortest = window_ns / gcd(count, window_ns).max(1);
    if count == 0 || shortest == 0 {
        return None;
    }
    let is_same = |window: &u64| window.is_multiple_of(shortest);
    let round = if window_ns < WINDOW_NS_MIN {
        ROUND_NS.into_iter().find(is_same)
    } else {
        ROUND_NS.into_iter().rev().find(is_same)
    };
    let multiple = || WINDOW_NS_MIN.div_ceil(window_ns).checked_mul(window_ns).filter(|_| window_ns < WINDOW_NS_MIN);
    let of = |window: u64| {
        let count = (window / shortest).checked_mul(count / (window_ns / shortest))?;
        countable(count, window, unit, default_unit)
    };
    round.and_then(of).or_else(|| of(multiple()?))
}

/// Returns the largest limit per day that is not above the rate of a window longer than a day.
fn lower_rate(count: u64, window_ns: u64, unit: Option<Unit>, default_unit: Unit) -> Option<String> {
    let in_a_day = u128::from(count) * u128::from(WINDOW_NS_MAX) / u128::from(window_ns.max(1));
    let in_a_day = u64::try_from(in_a_day).ok().filter(|of| window_ns > WINDOW_NS_MAX && *of > 0)?;
    countable(in_a_day, WINDOW_NS_MAX, unit, default_unit)
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the meaning of an amount with a point. `1.5/s` is three in two seconds. `1.000/1m` has two possible
/// meanings, and both are returned.
pub(super) fn without_point(text: &str, default_unit: Unit) -> Option<String> {
    let point = text.find('.')?;
    let whole = text.get(..point)?.trim_start_matches("rate=");
    let rest = text.get(point + 1..)?;
    let fraction = rest.get(..rest.find(|c: char| !c.is_ascii_digit())?)?;
    let rest = &rest[fraction.len()..];
    let is_number = !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit()) && !fraction.is_empty();
    if !is_number || rest.starts_with('.') {
        return None;
    }
    let unscaled = format!("{whole}{fraction}").parse::<u64>().ok()?;
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let one = read(&format!("1{rest}")).ok()?;
    let in_all = unscaled.checked_mul(one.amount)?;
    let exact = in_all.is_multiple_of(scale).then(|| in_all / scale);
    let decimal = match exact {
        Some(count) => countable(count, one.window_ns, one.unit, default_unit),
        None => {
            let shared = gcd(in_all, scale).max(1);
            let window_ns = one.window_ns.checked_mul(scale / shared)?;
            countable(in_all / shared, window_ns, one.unit, default_unit)
        }
    };
    let may_group = fraction.len() == 3 && (1..=3).contains(&whole.len()) && !whole.starts_with('0');
    let grouped = if may_group {
        unscaled.checked_mul(one.amount).and_then(|count| countable(count, one.window_ns, one.unit, default_unit))
    } else {
        None
    };
    match (grouped, decimal) {
        (Some(grouped), Some(decimal)) => {
            Some(format!("write {grouped} if the point groups digits, or {decimal} if it begins a fraction"))
        }
        (Some(grouped), None) => {
            Some(format!("write {grouped} if the point groups digits; a fraction cannot be counted"))
        }
        (None, decimal) => Some(format!("whole numbers only: write {}", decimal?)),
    }
}

/// Returns the meaning of an ambiguous size: bits, or multiples like `k` without a unit.
fn of_size(text: &str, default_unit: Unit) -> Option<String> {
    let mut scanner = Scanner::new(text);
    let count = amount::number(&mut scanner).ok()?;
    scanner.take_while(amount::is_space);
    let word = scanner.take_while(char::is_alphabetic);
    let lower = word.to_ascii_lowercase();
    let (stem, per_second) = lower.strip_suffix("bps").map_or((lower.as_str(), false), |stem| (stem, true));
    let stem = stem.strip_suffix("bits").or_else(|| stem.strip_suffix("bit")).unwrap_or(stem);
    let factor = match stem {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        _ => return None,
    };
    let window_ns = if per_second { SECOND_NS } else { read(&format!("1{}", scanner.rest())).ok()?.window_ns };
    let all = count.checked_mul(factor)?;
    let bytes = |bytes: u64| countable(bytes, window_ns, Some(Unit::Bytes), default_unit);
    if word.ends_with("Bps") {
        Some(format!("write {}", bytes(all)?))
    } else if stem.len() < lower.len() {
        let exact = all.is_multiple_of(8).then_some(all / 8)?;
        Some(format!("sizes are in bytes, and these are bits: write {}", bytes(exact)?))
    } else {
        let number = countable(all, window_ns, None, default_unit)?;
        Some(format!("write {number} for a number, or {} for bytes", bytes(all)?))
    }
}

/// Returns the limit without a suffix like `/ip`, because each source has its own limit anyway.
fn of_each(text: &str, default_unit: Unit) -> Option<String> {
    let (before, whom) = text.rsplit_once(['/', ' '])?;
    let before = before.trim_end().strip_suffix("per").unwrap_or(before).trim_end();
    let is_source = ["ip", "source", "client", "host", "address", "user"].contains(&whom.to_ascii_lowercase().as_str());
    let said = read(before).ok().filter(|_| is_source)?;
    let limit = countable(said.amount, said.window_ns, said.unit, default_unit)?;
    Some(format!("each source has the limit for itself: write {limit}"))
}

/// Returns the probable meaning of a text that is not a list of limits.
pub(super) fn meant(text: &str, default_unit: Unit) -> Option<String> {
    of_size(text, default_unit).or_else(|| of_each(text, default_unit)).or_else(|| of_program(text))
}

/// Translates settings of another program: nginx, iptables, nftables, fail2ban, HAProxy, Caddy, Traefik or Envoy.
fn of_program(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let is_between = |c: char| c.is_whitespace() || ",;={}()\"'".contains(c);
    let words: Vec<&str> =
        lower.split(is_between).map(|word| word.trim_end_matches(':')).filter(|word| !word.is_empty()).collect();
    let after = |names: &[&str]| {
        let at = words.iter().position(|word| names.contains(word))?;
        words.get(at + 1..)?.iter().find(|word| !["over", "until"].contains(*word)).copied()
    };
    let number = |names: &[&str]| after(names).and_then(|word| word.parse::<u64>().ok());
    // A bare number in fail2ban is in seconds.
    let time = |names: &[&str]| {
        let word = after(names)?;
        let bare = word.bytes().all(|byte| byte.is_ascii_digit());
        duration::parse(&if bare { format!("{word}s") } else { word.to_owned() }).ok()
    };
    let limit = |count: u64, window_ns: u64, unit: Option<Unit>| {
        let default_unit = unit.unwrap_or(Unit::Requests);
        same_rate_or_itself(count, window_ns, unit, default_unit)
    };
    let burst_words = |burst: Option<u64>| {
        let of = |burst| format!("; a burst is a key of its own: algorithm = \"gcra\" and burst = {burst}");
        burst.map_or_else(String::new, of)
    };

    let rate_key = ["rate", "--limit", "--hashlimit-upto", "--hashlimit-above", "--hashlimit"];
    let burst_key = ["burst", "--limit-burst", "--hashlimit-burst"];
    if let Some(said) = after(&rate_key).and_then(|word| read(word).ok()) {
        // nginx's `burst` counts requests beyond the one that the rate admits.
        let nginx = lower.contains("burst=");
        let burst = number(&burst_key).and_then(|burst| burst.checked_add(u64::from(nginx)));
        let limit = limit(said.amount, said.window_ns, said.unit)?;
        return Some(format!("write {limit}{}", burst_words(burst)));
    }
    if let Some(count) = number(&["maxretry"]) {
        let limit = limit(count, time(&["findtime"])?, None)?;
        let ban = time(&["bantime"]).map_or_else(String::new, |ban_ns| {
            format!(", and block_for = \"{}\" to ban sources that exceed it", duration::short(ban_ns))
        });
        return Some(format!("write {limit}{ban}"));
    }
    if let Some(count) = number(&["events", "max_events"]) {
        return Some(format!("write {}", limit(count, time(&["window"])?, None)?));
    }
    if let Some(count) = number(&["average"]) {
        let period = if words.contains(&"period") { time(&["period"])? } else { SECOND_NS };
        return Some(format!("write {}{}", limit(count, period, None)?, burst_words(number(&["burst"]))));
    }
    if let Some(count) = number(&["requests_per_unit"]) {
        return Some(format!(
            "write {}",
            limit(count, duration::parse(after(&["unit"])?).ok()?, Some(Unit::Requests))?
        ));
    }
    let haproxy = [("http_req_rate", Unit::Requests), ("conn_rate", Unit::Connections), ("bytes_in_rate", Unit::Bytes)];
    let (at, unit) = words.iter().enumerate().find_map(|(at, word)| {
        haproxy.into_iter().find(|(name, _)| word.ends_with(name)).map(|(_, unit)| (at, unit))
    })?;
    let window = words.get(at + 1).and_then(|word| duration::parse(word).ok());
    let label = unit_label(unit);
    match (window, number(&["gt", "ge", ">", ">="])) {
        (Some(window_ns), Some(count)) => Some(format!("write {}", limit(count, window_ns, Some(unit))?)),
        (Some(window_ns), None) => {
            Some(format!("give the amount for that time, as in {}", limit(100, window_ns, Some(unit))?))
        }
        (None, Some(count)) => {
            Some(format!("the window is that of the stick-table: write {count}/DUR {label}, with its time for DUR"))
        }
        (None, None) => Some(format!("write N/DUR {label}, as in {}", words_of_example(unit))),
    }
}

fn words_of_example(unit: Unit) -> String {
    words(100, 10 * SECOND_NS, Some(unit))
}

fn same_rate_or_itself(count: u64, window_ns: u64, unit: Option<Unit>, default_unit: Unit) -> Option<String> {
    countable(count, window_ns, unit, default_unit).or_else(|| same_rate(count, window_ns, unit, default_unit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Rate, parse};
    use super::*;

    fn help(text: &str) -> String {
        parse(text, Unit::Requests).expect_err(text).help.unwrap_or_default()
    }

    /// Parses every limit that a help text names, in order.
    fn limits_in(help: &str) -> Vec<Rate> {
        let words: Vec<&str> = help.split([' ', ';', ':']).filter(|word| !word.is_empty()).collect();
        let named = words.iter().enumerate().filter(|(_, word)| {
            word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('/') && !word.ends_with("/DUR")
        });
        let read = |(at, word): (usize, &&str)| {
            let with_unit = words.get(at + 1).map(|unit| format!("{word} {unit}"));
            let with_unit = with_unit.and_then(|text| parse(&text, Unit::Requests).ok());
            let rates = with_unit.or_else(|| parse(word.trim_end_matches(','), Unit::Requests).ok());
            rates.unwrap_or_else(|| panic!("{word} of {help} cannot be read"))[0].1
        };
        named.map(read).collect()
    }

    #[test]
    fn a_hint_is_the_same_rate() {
        for (text, expected) in [
            ("10/500ms", "windows are 1s to 24h: 20/1s is the same rate"),
            ("10/100ms", "windows are 1s to 24h: 100/1s is the same rate"),
            ("10r/500ms", "windows are 1s to 24h: 20/1s requests is the same rate"),
            ("10/300ms", "windows are 1s to 24h: 2000/1m is the same rate"),
            ("1MB/250ms", "windows are 1s to 24h: 4MB/1s is the same rate"),
            ("70/1w", "windows are 1s to 24h: 10/24h is the same rate"),
            ("60/30 days", "windows are 1s to 24h: 2/24h is the same rate"),
            ("1000/1w", "windows are 1s to 24h: 142/24h is the nearest lower rate"),
            ("1/1w", "windows are 1s to 24h"),
            ("1.5/s", "whole numbers only: write 3/2s"),
            ("0.5r/s", "whole numbers only: write 1/2s requests"),
            ("1.5MB/s", "whole numbers only: write 1500kB/1s"),
            ("100Mbit/s", "sizes are in bytes, and these are bits: write 12500kB/1s"),
            ("800bps", "sizes are in bytes, and these are bits: write 100B/1s"),
            ("10MBps", "write 10MB/1s"),
            ("100k/1m", "write 100000/1m for a number, or 100kB/1m for bytes"),
            ("10/minute/ip", "each source has the limit for itself: write 10/1m"),
            ("10r/s per client", "each source has the limit for itself: write 10/1s requests"),
            ("5 hits per minute", "units are requests (the default), connections, packets and bytes"),
            ("1.000/1m", "write 1000/1m if the point groups digits, or 1/1m if it begins a fraction"),
            ("1.500/1m", "write 1500/1m if the point groups digits, or 3/2m if it begins a fraction"),
        ] {
            assert_eq!(help(text), expected, "{text}");
        }
    }

    #[test]
    fn limits_of_other_programs_are_translated_to_this_syntax() {
        for (text, expected) in [
            (
                "rate=10r/s burst=20",
                "write 10/1s requests; a burst is a key of its own: algorithm = \"gcra\" and burst = 21",
            ),
            ("zone=one:10m rate=30r/m", "write 30/1m requests"),
            (
                "limit rate over 10/second burst 5 packets",
                "write 10/1s; a burst is a key of its own: algorithm = \"gcra\" and burst = 5",
            ),
            (
                "--hashlimit-above 10/sec --hashlimit-burst 20",
                "write 10/1s; a burst is a key of its own: algorithm = \"gcra\" and burst = 20",
            ),
            (
                "maxretry = 5, findtime = 600, bantime = 1h",
                "write 5/10m, and block_for = \"1h\" to ban sources that exceed it",
            ),
            ("maxretry=70 findtime=1w", "write 10/24h"),
            ("http_req_rate(10s)", "give the amount for that time, as in 100/10s requests"),
            (
                "sc_http_req_rate(0) gt 100",
                "the window is that of the stick-table: write 100/DUR requests, with its time for DUR",
            ),
            ("conn_rate(3s) gt 20", "write 20/3s connections"),
            ("events 100 window 1m", "write 100/1m"),
            (
                "average: 100, period: 1m, burst: 50",
                "write 100/1m; a burst is a key of its own: algorithm = \"gcra\" and burst = 50",
            ),
            ("average=100", "write 100/1s"),
            ("requests_per_unit: 10, unit: minute", "write 10/1m requests"),
        ] {
            assert_eq!(help(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_window_out_of_bounds_is_hinted_at_by_the_same_rate_or_the_nearest_lower_one(
            count in 1_u64..100_000,
            milliseconds in prop_oneof![1_u64..1_000, 86_400_001..4_000_000_000_u64],
            unit in prop::sample::select(vec!["", "r", " requests", " packets", "kB"]),
        ) {
            let window = duration::short(milliseconds * 1_000_000);
            let text = format!("{count}{unit}/{window}");
            let asked = if unit == "kB" { count * 1_000 } else { count };
            let help = help(&text);
            for rate in limits_in(&help) {
                let hinted = u128::from(rate.amount) * u128::from(milliseconds) * 1_000_000;
                let asked = u128::from(asked) * u128::from(rate.window_ns);
                if help.contains("same rate") {
                    prop_assert_eq!(hinted, asked, "{}: {}", text, help);
                } else {
                    prop_assert!(hinted <= asked && asked - hinted < u128::from(milliseconds) * 1_000_000, "{}: {}", text, help);
                }
            }
        }

        #[test]
        fn a_fraction_is_hinted_at_by_the_same_rate(
            whole in 0_u64..2_000,
            fraction in "[0-9]{1,4}",
            window in prop::sample::select(vec!["s", "10s", "1m", "5 minutes", "hour"]),
            unit in prop::sample::select(vec!["", "r", "MB"]),
        ) {
            let text = format!("{whole}.{fraction}{unit}/{window}");
            let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap());
            let factor = if unit == "MB" { 1_000_000 } else { 1 };
            let unscaled = format!("{whole}{fraction}").parse::<u128>().unwrap() * factor;
            let window_ns = u128::from(duration::parse(window).unwrap());
            let help = help(&text);
            let limits = limits_in(&help);
            let is_decimal = |rate: &Rate| u128::from(rate.amount) * window_ns * scale == unscaled * u128::from(rate.window_ns);
            let is_grouped = |rate: &Rate| u128::from(rate.amount) == unscaled && u128::from(rate.window_ns) == window_ns;
            if help.contains("groups digits") {
                prop_assert!(fraction.len() == 3 && is_grouped(&limits[0]), "{}: {}", text, help);
                prop_assert!(limits[1..].iter().all(is_decimal), "{}: {}", text, help);
            } else if help.contains("write") {
                prop_assert!(limits.iter().all(is_decimal) && limits.len() == 1, "{}: {}", text, help);
            }
        }

        #[test]
        fn no_settings_of_another_program_panic(
            text in "((rate|burst|maxretry|findtime|average|events|window|http_req_rate)[ =:(]{1,2}[0-9a-z/]{0,20}[ ,)]{0,2}){0,4}",
        ) {
            if let Err(error) = parse(&text, Unit::Requests) {
                prop_assert!(text.get(error.span).is_some());
            }
        }

        #[test]
        fn however_a_limit_is_written_it_is_the_same(
            count in 1_u64..10_000_000,
            unit in prop::sample::select(vec![("", Unit::Packets), ("r", Unit::Requests), (" requests", Unit::Requests), (" conn", Unit::Connections)]),
            separator in prop::sample::select(vec!["/", " / ", " per ", " in ", " every "]),
            minutes in 1_u64..1_000,
            minute in prop::sample::select(vec!["m", " min", " minutes", "mins"]),
            group in prop::sample::select(vec!["", "_", ",", " ", "'"]),
        ) {
            let digits = count.to_string();
            let grouped: String = digits.char_indices().map(|(at, c)| {
                let is_start = at > 0 && (digits.len() - at).is_multiple_of(3);
                if is_start { format!("{group}{c}") } else { c.to_string() }
            }).collect();
            let text = format!("{grouped}{}{separator}{minutes}{minute}", unit.0);
            let rates = parse(&text, Unit::Packets).map_err(|error| TestCaseError::fail(format!("{text}: {error:?}")))?;
            let found = (rates[0].1.amount, rates[0].1.unit, rates[0].1.window_ns, rates.len());
            prop_assert_eq!(found, (count, unit.1, minutes * 60 * SECOND_NS, 1), "{}", text);
        }
    }
}
