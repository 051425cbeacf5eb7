//! Parser of one limit, word by word: amount, unit, window and group. Pure.

use std::ops::Range;

use ratelimit_common::layout::Unit;
use ratelimit_common::time::SECOND_NS;

use super::{condition, parse_unit, per, unit_of};
use crate::config::syntax::{Scanner, SyntaxError};
use crate::config::{amount, duration};
use crate::desired::Per;

/// Words that may separate an amount from its window instead of a slash.
const BETWEEN: [&str; 6] = ["per", "in", "every", "each", "a", "an"];

/// Words for a unit and a window together, as in `10rps`.
const RATES: [(&str, Unit, u64); 8] = [
    ("rps", Unit::Requests, SECOND_NS),
    ("rpm", Unit::Requests, 60 * SECOND_NS),
    ("rph", Unit::Requests, 3_600 * SECOND_NS),
    ("qps", Unit::Requests, SECOND_NS),
    ("cps", Unit::Connections, SECOND_NS),
    ("cpm", Unit::Connections, 60 * SECOND_NS),
    ("pps", Unit::Packets, SECOND_NS),
    ("ppm", Unit::Packets, 60 * SECOND_NS),
];

const LIMIT_HELP: &str = "a limit is N/DUR, as in 1000/5m; several are separated by commas, as in 10/1m,60/1h";

/// A parsed limit, not yet checked against the bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Said {
    /// Amount of the limit.
    pub(in crate::config) amount: u64,
    /// Byte range of the amount in the text.
    pub(in crate::config) amount_span: Range<usize>,
    /// Unit, if a word names it or the amount is a size in bytes.
    pub(in crate::config) unit: Option<Unit>,
    /// Length of the window in nanoseconds.
    pub(in crate::config) window_ns: u64,
    /// Byte range of the window in the text.
    pub(in crate::config) window_span: Range<usize>,
    /// Group of sources that the limit counts as one.
    pub(in crate::config) per: Per,
    /// Offset of the group in the text. The end if no group is written.
    pub(in crate::config) per_at: usize,
}

/// Yields the trimmed items of a comma-separated list, each with its offset. Empty items are errors. Commas between
/// the digits of an amount, between prefix lengths of a group and between statuses do not separate items.
pub(in crate::config) fn separate(text: &str) -> impl Iterator<Item = Result<(usize, &str), SyntaxError>> {
    let mut rest = Some(0);
    std::iter::from_fn(move || {
        let start = rest?;
        let item = text.get(start..)?;
        let digit = |at: usize| item.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let is_amount = |before: &str| before.chars().all(|c| !c.is_alphabetic() && c != '/');
        let groups = |at: usize| {
            let before = &item[..at];
            digit(at + 1) && before.ends_with(|c: char| c.is_ascii_digit()) && is_amount(before)
        };
        let end = item.match_indices(',').map(|(at, _)| at).find(|at| {
            let (before, after) = (&item[..*at], &item[at + 1..]);
            !groups(*at) && !per::joins(before, after) && !condition::joins(before, after)
        });
        rest = end.map(|end| start + end + 1);
        let item = &item[..end.unwrap_or(item.len())];
        let trimmed = item.trim_start();
        let start = start + (item.len() - trimmed.len());
        let trimmed = trimmed.trim_end();
        if trimmed.is_empty() {
            let problem = if text.trim().is_empty() { "it is empty" } else { "there is nothing between the commas" };
            return Some(Err(SyntaxError::new(start..start, problem).with_help("separate values by one comma each")));
        }
        Some(Ok((start, trimmed)))
    })
}

/// Parses one limit without its conditions.
pub(in crate::config) fn read(text: &str) -> Result<Said, SyntaxError> {
    let mut scanner = Scanner::new(text);
    // nginx writes `rate=` before a limit.
    "rate=".chars().take_while(|c| text.starts_with("rate=") && scanner.take(*c)).for_each(drop);
    let start = scanner.at();
    let count = amount::number(&mut scanner)?;
    let mut amount_span = scanner.span_from(start);
    let (mut word, mut at) = next_word(&mut scanner);
    let mut amount = count;
    let mut unit = None;
    if let Some(bytes) = amount::bytes(count, word) {
        amount_span = scanner.span_from(start);
        amount = bytes.map_err(|error| SyntaxError { span: amount_span.clone(), ..error })?;
        unit = Some(Unit::Bytes);
        (word, at) = next_word(&mut scanner);
    }
    let is_size = unit.is_some();
    if let Some((_, of, window_ns)) = RATES.into_iter().find(|(name, _, _)| !is_size && word.eq_ignore_ascii_case(name))
    {
        scanner.take_while(amount::is_space);
        let (before, _) = per::split(scanner.rest());
        if !before.is_empty() {
            return Err(out_of_place(&scanner));
        }
        let window_span = at..at + word.len();
        let (per, per_at) = group(&scanner, text)?;
        return Ok(Said { amount, amount_span, unit: Some(of), window_ns, window_span, per, per_at });
    }
    if let Some(of) = unit_of(word) {
        check_size(&text[amount_span.clone()], is_size, of, at..at + word.len())?;
        unit = Some(of);
        (word, at) = next_word(&mut scanner);
    }
    let is_said = unit.is_some() && !is_size;
    if word.is_empty() {
        match scanner.rest().chars().next() {
            None => {
                let missing = SyntaxError::new(text.len()..text.len(), "the window is missing");
                return Err(missing.with_help("add a time after a slash, as in 1000/5m"));
            }
            Some('/') => {
                scanner.take('/');
            }
            Some(_) => return Err(out_of_place(&scanner)),
        }
    } else if !BETWEEN.contains(&word.to_ascii_lowercase().as_str()) {
        return Err(unknown(word, at, unit.is_some()));
    }
    scanner.take_while(amount::is_space);
    let window_at = scanner.at();
    let window_ns = duration::read(&mut scanner)?;
    let window_span = scanner.span_from(window_at);
    scanner.take_while(amount::is_space);
    let (at, (word, _)) = (scanner.at(), per::split(scanner.rest()));
    let span = at..at + word.len();
    if word.starts_with(char::is_alphabetic) {
        let of = parse_unit(word).map_err(|error| error.shifted(at))?;
        if is_said {
            let error = SyntaxError::new(span, "the unit is already given before the window");
            return Err(error.with_help("leave one of the two out"));
        }
        check_size(&text[amount_span.clone()], is_size, of, span)?;
        unit = Some(of);
    } else if !word.is_empty() {
        return Err(out_of_place(&scanner));
    }
    let (per, per_at) = group(&scanner, text)?;
    Ok(Said { amount, amount_span, unit, window_ns, window_span, per, per_at })
}

/// Returns the group that the remaining text names, and its offset. Without a group it is each source.
fn group(scanner: &Scanner<'_>, text: &str) -> Result<(Per, usize), SyntaxError> {
    let (_, Some(at)) = per::split(scanner.rest()) else { return Ok((Per::Source, text.len())) };
    let at = scanner.at() + at;
    let per = per::read(&text[at..]).map_err(|error| error.shifted(at))?;
    Ok((per, at))
}

/// Returns the next word, possibly empty, and its offset.
fn next_word<'a>(scanner: &mut Scanner<'a>) -> (&'a str, usize) {
    scanner.take_while(amount::is_space);
    let at = scanner.at();
    (scanner.take_while(char::is_alphabetic), at)
}

fn out_of_place(scanner: &Scanner<'_>) -> SyntaxError {
    let next = scanner.rest().chars().next().unwrap_or(' ');
    let help = if next == '/' { per::HELP } else { LIMIT_HELP };
    SyntaxError::new(scanner.next_span(), format!("`{next}` does not belong in a limit")).with_help(help)
}

fn check_size(amount: &str, is_size: bool, unit: Unit, span: Range<usize>) -> Result<(), SyntaxError> {
    match unit {
        Unit::Requests | Unit::Connections | Unit::Packets if is_size => {
            let problem = format!("`{amount}` is a size, and {} have none", crate::desired::unit_label(unit));
            let help = "leave the word out to count bytes, or the size's letters to count something else";
            Err(SyntaxError::new(span, problem).with_help(help))
        }
        Unit::Requests | Unit::Connections | Unit::Packets | Unit::Bytes => Ok(()),
    }
}

/// Returns the error for a word that is neither a size nor a unit. It names the more similar kind.
fn unknown(word: &str, at: usize, has_unit: bool) -> SyntaxError {
    let span = at..at + word.len();
    if has_unit {
        return SyntaxError::new(span, format!("`{word}` does not belong in a limit")).with_help(LIMIT_HELP);
    }
    if amount::near_size(word).is_some() {
        return amount::unknown_size(word, span);
    }
    parse_unit(word).map_or_else(|error| error.shifted(at), |_| amount::unknown_size(word, span))
}
