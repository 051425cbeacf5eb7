//! Errors in the TOML syntax: their messages, and how much of the file can be read despite them. Pure.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Error};

use super::super::syntax::shortened;
use crate::diagnostic::{Diagnostic, Excerpt, Found, Place};

/// Messages of errors that affect one value only. The file behind such a value is read correctly.
const OF_ONE_VALUE: [&str; 6] = [
    "duplicate key",
    "string values must be quoted",
    "invalid date",
    "invalid time",
    "invalid integer",
    "unexpected key or value",
];

/// Adds the syntax errors to `found`, and removes errors that only follow from them.
pub(super) fn add(path: &Path, contents: &str, top: &Spanned<DeTable<'_>>, errors: &[Error], found: &mut Found) {
    let line_of = |at: usize| contents.get(..at).map_or(usize::MAX, |before| before.matches('\n').count() + 1);
    let line = |error: &Error| error.span().map_or(usize::MAX, |span| line_of(span.start));
    let is_of_one_value = |error: &&Error| OF_ONE_VALUE.iter().any(|of| error.message().trim().starts_with(of));
    let structural = errors.iter().find(|error| !is_of_one_value(error));
    // An unclosed value swallows all that follows, so its start bounds what can be trusted.
    let of_span = |span: std::ops::Range<usize>| line_of(begin(top.get_ref(), span.start).min(span.start));
    let end = structural.map(|error| error.span().map_or(1, of_span));
    found.retain(|diagnostic| match (end, diagnostic.line()) {
        (Some(end), line) => line.is_some_and(|line| line < end),
        (None, at) => errors.iter().all(|error| at != Some(line(error))),
    });
    let mut is_doubled = false;
    for error in errors.iter().filter(is_of_one_value).filter(|error| end.is_none_or(|end| line(error) < end)) {
        // The keys of a second [rule] are read as keys of the first, so their duplicates are not reported.
        if !(is_doubled && is_second(error) && !is_second_rule(contents, error)) {
            found.push(diagnostic(path, contents, error, None));
        }
        is_doubled |= is_second_rule(contents, error);
    }
    if let Some(error) = structural {
        found.push(diagnostic(path, contents, error, Some("the lines after it are not checked until this is fixed")));
    }
}

fn is_second(error: &Error) -> bool {
    error.message().trim().starts_with("duplicate key")
}

fn is_second_rule(contents: &str, error: &Error) -> bool {
    is_second(error) && error.span().and_then(|span| contents.get(span)) == Some("rule")
}

/// Returns the start of the outermost array or value that contains offset `at`, or [`usize::MAX`] if none does.
fn begin(table: &DeTable<'_>, at: usize) -> usize {
    let of_value = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::Table(table) => begin(table, at),
        DeValue::Array(values) => {
            let nested = values.iter().filter_map(|value| value.get_ref().as_table()).map(|table| begin(table, at));
            let is_in = (value.span().start..=value.span().end).contains(&at);
            nested.chain(is_in.then(|| value.span().start)).min().unwrap_or(usize::MAX)
        }
        DeValue::String(_) | DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => {
            if (value.span().start..=value.span().end).contains(&at) {
                value.span().start
            } else {
                usize::MAX
            }
        }
    };
    table.iter().map(|(_, value)| of_value(value)).min().unwrap_or(usize::MAX)
}

fn diagnostic(path: &Path, contents: &str, error: &Error, and: Option<&str>) -> Diagnostic {
    let message = error.message().trim();
    let span = error.span();
    let (problem, help) = if is_second_rule(contents, error) {
        ("there is a [rule] already".to_owned(), "write [[rule]] for each of several, with a name of its own")
    } else {
        said(message, span.as_ref().is_none_or(std::ops::Range::is_empty))
    };
    let excerpt = Some(Box::new(Excerpt::of(contents, span.unwrap_or(0..0))));
    let help = [Some(help), and].into_iter().flatten().map(str::to_owned).collect();
    Diagnostic { problem: shortened(problem), place: Place::File { path: path.to_owned(), excerpt }, help }
}

/// Returns a TOML message in plain words, and what to do.
fn said(message: &str, is_nothing: bool) -> (String, &'static str) {
    let message = message.lines().collect::<Vec<_>>().join(": ");
    if message.starts_with("string values must be quoted") {
        let missing = ("the value is missing".to_owned(), "write it after the `=`, texts in quotes: \"…\"");
        return if is_nothing { missing } else { ("a text needs quotes".to_owned(), "put it in quotes: \"…\"") };
    }
    let help = if message.contains("invalid date") || message.contains("invalid time") {
        "write a date that exists, as in 2027-03-31"
    } else if message.contains("duplicate key") {
        "keep one of the two"
    } else if message.contains("unclosed array") || message.contains("array elements") {
        "close the list with `]`, with a comma between its values: [\"…\", \"…\"]"
    } else if message.contains("expected newline") {
        "write one value on a line, several in brackets: [\"…\", \"…\"]"
    } else {
        "the file is TOML: key = value on a line, texts in quotes, lists in brackets"
    };
    (message, help)
}
