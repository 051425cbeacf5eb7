//! Parser of the group of sources that a limit counts as one: `per /24,/56`, `per list`. Pure.

use std::ops::Range;

use crate::config::amount;
use crate::config::syntax::{Scanner, SyntaxError, near_miss};
use crate::desired::Per;

/// Keyword before a group.
const WORD: &str = "per";
/// Keyword for a group that is a list.
const LIST: &str = "list";

/// Maximum prefix lengths of a group. A /31 is the longest IPv4 prefix with several addresses. An IPv6 host usually
/// has a /64 for itself.
const IPV4_MOST: u8 = 31;
const IPV6_MOST: u8 = 64;

pub(super) const HELP: &str = "a group of sources is per /24,/56 (the IPv4 length, then the IPv6 length), or per list";

/// Names of the units that a limit may count.
const UNITS: [&str; 4] = ["requests", "connections", "packets", "bytes"];

/// Returns the trimmed text before a group, and the offset of the keyword `per`.
pub(super) fn split(text: &str) -> (&str, Option<usize>) {
    let is_word = |at: &usize| {
        let is_apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
        is_apart(text[..*at].chars().next_back()) && is_apart(text[at + WORD.len()..].chars().next())
    };
    let lower = text.to_ascii_lowercase();
    let at = lower.match_indices(WORD).map(|(at, _)| at).find(is_word);
    (text[..at.unwrap_or(text.len())].trim_end(), at)
}

/// Returns true if a comma between these two parts separates the two lengths of a group.
pub(super) fn joins(before: &str, after: &str) -> bool {
    let lower = before.to_ascii_lowercase();
    let lengths = lower.trim_end_matches(|c: char| c.is_ascii_digit() || amount::is_space(c) || matches!(c, '/' | ','));
    after.trim_start().starts_with('/') && lengths.len() < before.len() && lengths.ends_with(WORD)
}

/// Parses a group. `text` begins with the keyword and ends with the group.
pub(super) fn read(text: &str) -> Result<Per, SyntaxError> {
    let mut scanner = Scanner::new(text);
    scanner.take_while(char::is_alphabetic);
    scanner.take_while(amount::is_space);
    let at = scanner.at();
    let rest = scanner.rest();
    if rest.is_empty() {
        return Err(SyntaxError::new(at..at, "the group after `per` is missing").with_help(HELP));
    }
    if rest.eq_ignore_ascii_case(LIST) {
        return Ok(Per::List);
    }
    if !rest.starts_with('/') {
        let help = if rest.starts_with(|c: char| c.is_ascii_digit()) {
            Some("a length begins with a slash: per /24,/56".to_owned())
        } else {
            near_miss(rest, [LIST]).map(|meant| format!("did you mean per {meant}?"))
        };
        let error = SyntaxError::new(at..text.len(), format!("`{rest}` is no group of sources"));
        return Err(error.with_help(HELP).with_help_if(help));
    }
    let (v4, v4_span) = length(&mut scanner)?;
    scanner.take_while(amount::is_space);
    if scanner.is_done() {
        let (missing, both) =
            if v4 > u64::from(IPV4_MOST) { ("IPv4", format!("/24,/{v4}")) } else { ("IPv6", format!("/{v4},/56")) };
        let error = SyntaxError::new(text.len()..text.len(), format!("the length of {missing} prefixes is missing"));
        return Err(error.with_help(format!("give both, the one of IPv4 first: per {both}")));
    }
    if !scanner.take(',') {
        return Err(foreign(text, &scanner));
    }
    scanner.take_while(amount::is_space);
    let (v6, v6_span) = length(&mut scanner)?;
    scanner.take_while(amount::is_space);
    if !scanner.is_done() {
        return Err(foreign(text, &scanner));
    }
    if v4 > u64::from(IPV4_MOST) && (1..=u64::from(IPV4_MOST)).contains(&v6) && v4 <= u64::from(IPV6_MOST) {
        let error = SyntaxError::new(v4_span, format!("/{v4} is no group of IPv4 addresses"));
        return Err(error.with_help(format!("the length of IPv4 comes first: per /{v6},/{v4}")));
    }
    Ok(Per::Prefix { v4: within(v4, v4_span, IPV4_MOST, "IPv4")?, v6: within(v6, v6_span, IPV6_MOST, "IPv6")? })
}

/// Returns the error for text that does not belong in a group.
fn foreign(text: &str, scanner: &Scanner<'_>) -> SyntaxError {
    let span = scanner.next_span();
    let word = text[span.start..].trim();
    let error = SyntaxError::new(span, "this does not belong in a group");
    if UNITS.contains(&word) {
        return error.with_help(format!("the unit comes before the group: 5/1m {word} per /24,/56"));
    }
    error.with_help(HELP)
}

fn length(scanner: &mut Scanner<'_>) -> Result<(u64, Range<usize>), SyntaxError> {
    let start = scanner.at();
    if !scanner.take('/') {
        let error = SyntaxError::new(scanner.next_span(), "this is no prefix length");
        return Err(error.with_help("a length begins with a slash: per /24,/56"));
    }
    let digits = scanner.take_while(|c| c.is_ascii_digit());
    let span = scanner.span_from(start);
    match digits.parse() {
        Ok(length) => Ok((length, span)),
        Err(_) => Err(SyntaxError::new(span, "this is no prefix length").with_help(HELP)),
    }
}

fn within(length: u64, span: Range<usize>, most: u8, family: &str) -> Result<u8, SyntaxError> {
    if let Some(length) = u8::try_from(length).ok().filter(|length| (1..=most).contains(length)) {
        return Ok(length);
    }
    let problem = format!("/{length} is no group of {family} addresses");
    let help = if length == 0 {
        format!("lengths are 1 to {most}; /0 would refuse everyone for the excess of a few")
    } else {
        format!("lengths are 1 to {most}; a limit without `per` is of each source")
    };
    Err(SyntaxError::new(span, problem).with_help(help))
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use ratelimit_common::layout::Unit;

    const STEP: Per = Per::Prefix { v4: 24, v6: 56 };

    #[test]
    fn a_group_stands_behind_any_limit() {
        for (text, per) in [
            ("300/1m", Per::Source),
            ("5000/1m per /24,/56", STEP),
            ("5000/1m per /24, /56", STEP),
            ("5000/1m per /24 ,/56", STEP),
            ("5000/1m requests per /24,/56", STEP),
            ("5 requests per minute per /24,/56", STEP),
            ("5 per minute PER /24,/56", STEP),
            ("50MB/1m per /24,/56", STEP),
            ("10rps per /24,/56", STEP),
            ("10r/s per /24,/56", STEP),
            ("1/1m per /1,/1", Per::Prefix { v4: 1, v6: 1 }),
            ("1/1m per /31,/64", Per::Prefix { v4: 31, v6: 64 }),
            ("20000/1m per list", Per::List),
            ("20000/1m connections per List", Per::List),
        ] {
            let rates = parse(text, Unit::Requests).expect(text);
            assert_eq!(rates.iter().map(|(_, rate)| rate.per).collect::<Vec<_>>(), [per], "{text}");
        }
    }

    #[test]
    fn a_comma_between_two_lengths_separates_no_limits() {
        let rates = parse("300/1m, 5000/1m per /24,/56,20000/1m per /20, /48,9/1h per list", Unit::Requests);
        let rates = rates.expect("four limits");
        assert_eq!(rates.iter().map(|(span, _)| span.clone()).collect::<Vec<_>>(), [0..6, 8..27, 28..49, 50..63]);
        let wide = Per::Prefix { v4: 20, v6: 48 };
        assert_eq!(rates.iter().map(|(_, rate)| rate.per).collect::<Vec<_>>(), [Per::Source, STEP, wide, Per::List]);
        assert_eq!(rates[1].1.per_at, 16);
    }

    #[test]
    fn errors_in_a_group_are_reported_at_their_place() {
        for (text, span, problem, help) in [
            ("5/1m per", 8..8, "the group after `per` is missing", HELP),
            ("5/1m per lists", 9..14, "`lists` is no group of sources", "did you mean per list?"),
            ("5/1m per country", 9..16, "`country` is no group of sources", HELP),
            ("5/1m per 24", 9..11, "`24` is no group of sources", "a length begins with a slash: per /24,/56"),
            (
                "5/1m per /24",
                12..12,
                "the length of IPv6 prefixes is missing",
                "give both, the one of IPv4 first: per /24,/56",
            ),
            (
                "5/1m per /56",
                12..12,
                "the length of IPv4 prefixes is missing",
                "give both, the one of IPv4 first: per /24,/56",
            ),
            (
                "5/1m per /56,/24",
                9..12,
                "/56 is no group of IPv4 addresses",
                "the length of IPv4 comes first: per /24,/56",
            ),
            (
                "5/1m per /32,/56",
                9..12,
                "/32 is no group of IPv4 addresses",
                "lengths are 1 to 31; a limit without `per` is of each source",
            ),
            (
                "5/1m per /24,/65",
                13..16,
                "/65 is no group of IPv6 addresses",
                "lengths are 1 to 64; a limit without `per` is of each source",
            ),
            (
                "5/1m per /0,/56",
                9..11,
                "/0 is no group of IPv4 addresses",
                "lengths are 1 to 31; /0 would refuse everyone for the excess of a few",
            ),
            ("5/1m per /,/56", 9..10, "this is no prefix length", HELP),
            (
                "5/1m per /24,56",
                12..12,
                "the length of IPv6 prefixes is missing",
                "give both, the one of IPv4 first: per /24,/56",
            ),
            ("5/1m per /24,/", 13..14, "this is no prefix length", HELP),
            ("5/1m per /24,/56,/64", 16..17, "this does not belong in a group", HELP),
            ("5/1m per /24;/56", 12..13, "this does not belong in a group", HELP),
            (
                "5/1m per /24,/56 connections",
                17..18,
                "this does not belong in a group",
                "the unit comes before the group: 5/1m connections per /24,/56",
            ),
            ("5/1m per /99999999999999999999,/56", 9..30, "this is no prefix length", HELP),
            (
                "5/1m /24,/56",
                5..6,
                "`/` does not belong in a limit",
                "a group of sources is per /24,/56 (the IPv4 length, then the IPv6 length), or per list",
            ),
        ] {
            let error = parse(text, Unit::Requests).expect_err(text);
            let found = (error.span, error.problem.as_str(), error.help.as_deref().unwrap_or_default());
            assert_eq!(found, (span, problem, help), "{text}");
        }
        let each = parse("5/1m per ip", Unit::Requests).expect_err("each source has it anyway");
        assert_eq!(each.help.as_deref(), Some("each source has the limit for itself: write 5/1m"));
    }
}
