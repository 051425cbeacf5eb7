//! Lines that fit a width: wrapped text, and tables with narrower forms.

use crate::cut;

/// One column of a table.
pub(crate) struct Column {
    pub(super) head: &'static str,
    pub(super) side: Side,
    pub(super) cells: Vec<String>,
}

/// Alignment of a cell's text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Column {
    pub(crate) fn left<T>(head: &'static str, rows: &[T], cell: impl Fn(&T) -> String) -> Self {
        Self { head, side: Side::Left, cells: rows.iter().map(cell).collect() }
    }

    pub(super) fn right<T>(head: &'static str, rows: &[T], cell: impl Fn(&T) -> String) -> Self {
        Self { head, side: Side::Right, cells: rows.iter().map(cell).collect() }
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|cell| characters(cell)).chain([self.head.len()]).max().unwrap_or(0)
    }
}

/// Returns the first of several forms of a table that fits, widest first. If none fits, cuts the last form.
pub(super) fn fitting(forms: &[&dyn Fn() -> Vec<Column>], width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for form in forms {
        lines = table(&form());
        if lines.iter().all(|line| characters(line) <= width) {
            return lines;
        }
    }
    lines.iter().map(|line| cut(line, width)).collect()
}

/// Minimum width of a wrapped last column.
const LAST_LEAST: usize = 20;

/// Formats a table and wraps its last column below itself, so that no line exceeds `width` columns and nothing is cut.
/// Returns none if the other columns leave too little room.
pub(crate) fn wrapping(columns: &[Column], width: usize) -> Option<Vec<String>> {
    let (last, others) = columns.split_last()?;
    // One space precedes the first column, and two precede each other column.
    let at = others.iter().map(|column| column.width() + 2).sum::<usize>() + 1;
    let last_width = last.width();
    if at.saturating_add(LAST_LEAST.min(last_width)) > width {
        return None;
    }
    Some(table(columns).iter().flat_map(|line| wrap_at(line, width, at)).collect())
}

/// Formats the head and the rows of a table.
fn table(columns: &[Column]) -> Vec<String> {
    let widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let line = |cell: &dyn Fn(&Column) -> String| {
        let mut line = String::new();
        for (column, width) in columns.iter().zip(&widths) {
            let (text, space) = (cell(column), if line.is_empty() { " " } else { "  " });
            line += &match column.side {
                Side::Left => format!("{space}{text:<width$}"),
                Side::Right => format!("{space}{text:>width$}"),
            };
        }
        line.trim_end().to_owned()
    };
    let rows = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let rows = (0..rows).map(|row| line(&|column| column.cells.get(row).cloned().unwrap_or_default()));
    [line(&|column| column.head.to_owned())].into_iter().chain(rows).collect()
}

/// Wraps a sentence at `width` characters. Further lines are indented by two more than the first.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let indent = text.chars().take_while(|c| *c == ' ').count();
    wrap_at(text, width, indent + 2)
}

/// Wraps a sentence at `width` characters. Further lines begin at column `at`.
pub fn wrap_at(text: &str, width: usize, at: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = text.to_owned();
    while characters(&rest) > width {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(end, _)| end);
        let start = rest.len() - rest.trim_start().len();
        // A word that is longer than a line is split.
        let space = rest[..end].rfind(' ').filter(|space| *space > start);
        let space = if rest[end..].starts_with(' ') { end } else { space.unwrap_or(end) };
        lines.push(rest[..space].trim_end().to_owned());
        rest = format!("{:at$}{}", "", rest[space..].trim_start());
    }
    lines.push(rest);
    lines
}

pub(super) fn characters(text: &str) -> usize {
    text.chars().count()
}
