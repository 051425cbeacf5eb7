//! Table of sources, with one row per source that matches the filter.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row as TableRow, Table, TableState, Wrap};
use ratelimit_report::snapshot::{Mode, State as SourceState, TopSource};
use ratelimit_view::{duration, number};

use super::{HEAD, Paint, cut};
use crate::rates::{refused, whole};
use crate::state::{Row, Sort, State};

/// Width in columns from which a row shows its limit.
const WIDE: u16 = 112;

const RULE: u16 = 9;
const SHARE: u16 = 5;
const COUNT: u16 = 8;
const RATE: u16 = 6;
const WORDS: u16 = 14;
const WAIT: u16 = 7;
const LIMIT: u16 = 34;
/// Mark of the selected row, which is also reversed.
const MARK: &str = "> ";

pub(super) fn sources(frame: &mut Frame<'_>, state: &State, area: Rect, paint: Paint) {
    let rows = state.rows();
    let block = Block::new().borders(Borders::TOP).title(Line::styled(title(state, rows.len()), HEAD));
    if rows.is_empty() {
        let text = Paragraph::new(none_shown(state)).wrap(Wrap { trim: true }).block(block);
        return frame.render_widget(text, area);
    }
    let is_wide = area.width >= WIDE;
    let mut widths = vec![Constraint::Fill(1), Constraint::Length(RULE), Constraint::Length(SHARE)];
    widths.extend([COUNT, RATE, WORDS, WAIT].map(Constraint::Length));
    let fixed = RULE + SHARE + COUNT + RATE + WORDS + WAIT + 6 + 2 + if is_wide { LIMIT + 1 } else { 0 };
    let name_max = usize::from(area.width.saturating_sub(fixed));
    if is_wide {
        widths.push(Constraint::Length(LIMIT));
    }
    let lines = rows.iter().map(|row| line(state, row, name_max, is_wide, paint));
    let table = Table::new(lines, widths)
        .header(heads(state.sort, is_wide))
        .column_spacing(1)
        .highlight_symbol(MARK)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(block);
    let mut place = TableState::default().with_selected(state.chosen(&rows));
    frame.render_stateful_widget(table, area, &mut place);
}

/// Returns the table's title, such as `Sources: 20 shown, 5,120 tracked, by packets refused, filter "web"`. A banned
/// source is shown even after its window is no longer tracked.
fn title(state: &State, shown: usize) -> String {
    let of = &state.snapshot.sources;
    let filter = match state.filter.trim() {
        "" => String::new(),
        filter => format!(", filter \"{filter}\""),
    };
    let banned = if of.banned > 0 { format!(", {} banned", number(of.banned)) } else { String::new() };
    format!("Sources: {shown} shown, {} tracked{banned}, by {}{filter} ", number(of.tracked), state.sort.words())
}

/// Explains why no source is shown, and what to do about it.
fn none_shown(state: &State) -> String {
    match state.filter.trim() {
        "" if state.snapshot.top.is_none() => "The daemon names no sources.".to_owned(),
        "" => "No source uses anything of a limit now.".to_owned(),
        filter if filter.parse::<std::net::IpAddr>().is_ok() => {
            format!("{filter} is not among the sources nearest to a limit: Enter opens it anyway, Esc shows all.")
        }
        filter => {
            format!("None of the sources nearest to a limit matches \"{filter}\": Esc shows all.")
        }
    }
}

fn heads(sort: Sort, is_wide: bool) -> TableRow<'static> {
    let of = |name: &'static str, by: Sort, width: u16| {
        let name = if sort == by { format!("\u{25bc}{name}") } else { name.to_owned() };
        right(name, width)
    };
    let mut cells = vec![
        Cell::from("SOURCE"),
        Cell::from("RULE"),
        of("USED", Sort::Share, SHARE),
        of("REFUSED", Sort::Refused, COUNT),
        of("/S", Sort::Rate, RATE),
        Cell::from("STATE"),
        of("AGAIN", Sort::Wait, WAIT),
    ];
    if is_wide {
        cells.push(Cell::from("USED OF THE LIMIT"));
    }
    TableRow::new(cells).style(HEAD)
}

fn line(state: &State, row: &Row<'_>, name_max: usize, is_wide: bool, paint: Paint) -> TableRow<'static> {
    let of = row.of;
    let (words, color) = stands(state, of);
    let mut cells = vec![
        Cell::from(cut(&of.source, name_max)),
        Cell::from(cut(&of.rule, usize::from(RULE))),
        right(share(of), SHARE),
        right(short(refused(of), COUNT), COUNT),
        right(row.per_second.map_or_else(|| "-".to_owned(), |rate| short(whole(rate), RATE)), RATE),
        Cell::from(words).style(paint.of(color)),
        right(wait(of), WAIT),
    ];
    if is_wide {
        let (used, limit) = (number(of.used), number(of.limit));
        let own = || format!("{used} of {limit} {} in {}", of.unit.label(), duration(of.window_seconds));
        let text = of.group.as_ref().map_or_else(own, |group| format!("group {group}"));
        cells.push(Cell::from(cut(&text, usize::from(LIMIT))));
    }
    TableRow::new(cells)
}

/// Returns a source's state in the words of `stats`, or "would drop" if its rule is in dry run.
fn stands(state: &State, of: &TopSource) -> (&'static str, Color) {
    let is_dry = state.snapshot.rules.iter().any(|rule| rule.name == of.rule && rule.mode == Mode::DryRun);
    let words = ratelimit_view::state(of);
    match of.state {
        SourceState::Ok => (words, Color::Green),
        SourceState::OverLimit | SourceState::Banned | SourceState::Denied if is_dry => ("would drop", Color::Yellow),
        SourceState::OverLimit => (words, Color::Yellow),
        SourceState::Banned | SourceState::Denied => (words, Color::Red),
        SourceState::Exempt => (words, Color::Green),
    }
}

fn wait(of: &TopSource) -> String {
    match of.state {
        SourceState::Ok | SourceState::Exempt => "-".to_owned(),
        SourceState::OverLimit | SourceState::Banned | SourceState::Denied if of.never => "never".to_owned(),
        SourceState::OverLimit | SourceState::Banned | SourceState::Denied => duration(of.retry_after_seconds),
    }
}

fn share(of: &TopSource) -> String {
    let percent = of.used.saturating_mul(100).checked_div(of.limit);
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{}%", percent.min(999)))
}

fn right(text: String, width: u16) -> Cell<'static> {
    let width = usize::from(width);
    Cell::from(format!("{text:>width$}"))
}

/// Formats a number to fit the given number of columns, such as `1,234,567` or `12.3M`.
pub(super) fn short(value: u64, width: u16) -> String {
    let full = number(value);
    if full.len() <= usize::from(width) {
        return full;
    }
    const UNITS: [(u64, &str); 4] = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let unit = UNITS.iter().find(|(size, _)| value >= *size);
    unit.map_or(full, |(size, name)| {
        let tenths = value / (size / 10);
        format!("{}.{}{name}", number(tenths / 10), tenths % 10)
    })
}
