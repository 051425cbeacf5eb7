//! Statistics for people. Pure text from the read model. Only `watch` asks a daemon.

#![forbid(unsafe_code)]

use std::fmt::{Display, Write as _};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets::NOTHING};

mod check;
pub mod describe;
mod events;
mod explain;
mod fleet;
mod history;
mod list;
mod orders;
mod replay;
mod stats;
mod suggest;
mod watch;

pub use check::{check, check_prefix};
pub use events::{event, events};
pub use explain::explain;
pub use fleet::fleet;
pub use history::{history, worst};
pub use list::{accepted, applied, list, mode, mode_now, reloaded};
pub use orders::{confirmed, erased, granted, lifted, reset, rolled_back};
pub use replay::replay;
pub use stats::{Detail, Page, attachment, attention, left, mode_of, state, stats, stats_below, what_it_does, wrap_at};
pub use suggest::{suggest, suggest_from};
pub use watch::{Screen, WatchError, is_reader_gone, watch};

use ratelimit_report::snapshot::{Counting, Limit, WindowForm};

/// Formats 1234567 as `1,234,567`.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats seconds as `2m 13s`: the two largest units, rounded up so that no time is promised too early.
pub fn duration(seconds: f64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and no duration is below 0"
    )]
    let whole = seconds.ceil() as u64;
    let mut left = whole;
    let mut out = String::new();
    for (length, unit) in UNITS.into_iter().skip_while(|(length, _)| *length > whole).take(2) {
        if left >= length {
            let space = if out.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(out, "{space}{}{unit}", left / length);
        }
        left %= length;
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

/// Formats seconds for a sentence: `57 s`, `2 min 13 s`. Columns and windows of limits use [`duration`].
fn wait(seconds: f64) -> String {
    let unit = |part: &str| match part.split_at(part.len().saturating_sub(1)) {
        (number, "m") => format!("{number} min"),
        (number, unit) => format!("{number} {unit}"),
    };
    duration(seconds).split(' ').map(unit).collect::<Vec<_>>().join(" ")
}

/// Formats the condition of a limit: ` with status=401 path=/login`. Empty without a condition.
fn condition_words(condition: Option<impl Display>) -> String {
    condition.map_or_else(String::new, |condition| format!(" with {condition}"))
}

/// Formats a limit: `1,000 connections in 5m`.
fn limit(limit: &Limit) -> String {
    let per = limit.per.map_or_else(String::new, |per| per.to_string());
    let condition = condition_words(limit.condition);
    let (amount, window) = (number(limit.amount), duration(limit.window_seconds));
    format!("{amount} {} in {window}{per}{condition}", limit.unit.label())
}

/// Describes the form of a limit's window: `strict, in buckets of 1m`.
fn form(of: &Limit) -> String {
    match of.window {
        WindowForm::Strict => format!("strict, in buckets of {}", duration(of.bucket_seconds)),
        WindowForm::Lenient => format!("lenient, in buckets of {}", duration(of.bucket_seconds)),
        WindowForm::Fixed => "in fixed windows".to_owned(),
        WindowForm::Gcra => "as a leaky bucket".to_owned(),
    }
}

/// Describes the units that limits count and the accuracy of their counts, one line each.
fn counting(units: &[Counting]) -> String {
    let line = |of: &Counting| format!("Counted {}: {}\n", of.unit.label(), of.accuracy);
    units.iter().map(line).collect()
}

/// Formats a count: `1 source`, `2 sources`.
fn counted(count: u64, one: &str) -> String {
    format!("{} {one}{}", number(count), if count == 1 { "" } else { "s" })
}

/// Cuts a text to at most `width` characters. The last one is `…` if the text is longer.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Wraps each line of sentences at `width` columns. Further lines are indented by two more than the first.
pub fn folded(text: &str, width: usize) -> String {
    text.lines().flat_map(|line| stats::wrap(line, width)).map(|line| line + "\n").collect()
}

/// Formats a number in at most 7 characters: `999,999`, `12.3M`.
fn short(value: u64) -> String {
    const UNITS: [(u64, char); 5] = [
        (1_000_000_000_000_000_000, 'E'),
        (1_000_000_000_000_000, 'P'),
        (1_000_000_000_000, 'T'),
        (1_000_000_000, 'G'),
        (1_000_000, 'M'),
    ];
    match UNITS.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, letter)) => format!("{}.{}{letter}", value / unit, value % unit / (unit / 10)),
        None => number(value),
    }
}

/// Formats a table without lines, as wide as its text. Columns listed in `right` hold numbers.
fn table<const N: usize>(head: [&str; N], right: &[usize], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for &at in right {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests;
