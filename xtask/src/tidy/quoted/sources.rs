//! Sources of quoted numbers: measurements, generated tables, snapshots and constants. Knows their formats, and no
//! document that quotes them.

use anyhow::{Context, Result};
use serde_json::Value;

const PERFORMANCE: &str = "docs/performance.json";

/// Place from which the number in a document comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Median nanoseconds above the floor of a flood's row: the row and the receiver.
    Above(&'static str, &'static str),
    /// Number in docs/performance.json: object keys with a `/` before each, and for a list the `id` of an element.
    Measured(&'static str),
    /// Cell of a generated document. The row is the only one that contains all the words.
    Cell { document: &'static str, row: &'static [&'static str], column: &'static str },
    /// Lowest number of a column, over all rows that contain all the words.
    Lowest { document: &'static str, row: &'static [&'static str], column: &'static str },
    /// Number in another file, as a phrase with one `#`.
    Said(&'static str, &'static str),
    /// Constant of a file, divided by a unit.
    Constant(&'static str, &'static str, u64),
    /// Product of two constants, divided by a unit.
    Product([(&'static str, &'static str); 2], u64),
    /// Two to the power of a constant, divided by a unit.
    Power(&'static str, &'static str, u64),
    /// Sum of the numbers of several sources.
    Sum(&'static [Source]),
    /// First number less the second.
    Less(&'static Source, &'static Source),
    /// Number divided by another.
    Per(&'static Source, f64),
    /// Number rounded to a multiple.
    Rounded(&'static Source, u64),
    /// Number that needs no source, such as 100 in a difference of percents.
    Plain(f64),
}

/// Files that sources are read from.
pub(super) struct World<'a> {
    files: &'a [(String, String)],
    performance: Value,
}

impl<'a> World<'a> {
    pub(super) fn of(files: &'a [(String, String)]) -> Result<Self> {
        let mut world = Self { files, performance: Value::Null };
        world.performance = serde_json::from_str(world.text(PERFORMANCE).unwrap_or("null")).context(PERFORMANCE)?;
        Ok(world)
    }

    pub(super) fn text(&self, path: &str) -> Option<&'a str> {
        self.files.iter().find(|(of, _)| of == path).map(|(_, text)| text.as_str())
    }

    /// Returns the number of a source. None if the source does not exist.
    pub(super) fn number(&self, source: Source) -> Option<f64> {
        match source {
            Source::Above(row, receiver) => {
                let row = member(self.performance.pointer("/floods/rows")?, row)?;
                let floor = if row.get("floor")?.as_str()? == "bare" { "above_bare_ns" } else { "above_floor_ns" };
                member(row.get("receivers")?, receiver)?.get(floor)?.get("median")?.as_f64()
            }
            Source::Measured(path) => path.split('/').skip(1).try_fold(&self.performance, member)?.as_f64(),
            Source::Cell { document, row, column } => match &self.cells(document, row, column)[..] {
                [number] => Some(*number),
                _ => None,
            },
            Source::Lowest { document, row, column } => self.cells(document, row, column).into_iter().reduce(f64::min),
            Source::Said(path, phrase) => {
                let text = self.text(path)?;
                let [number] = &super::numbers_in(text, phrase)?[..] else { return None };
                super::value(&text[number.clone()])
            }
            Source::Constant(file, name, unit) => Some(float(self.constant(file, name)? / unit)),
            Source::Product([(file, name), (other_file, other)], unit) => {
                Some(float(self.constant(file, name)? * self.constant(other_file, other)? / unit))
            }
            Source::Power(file, name, unit) => Some(float((1 << self.constant(file, name)?) / unit)),
            Source::Sum(parts) => parts.iter().map(|part| self.number(*part)).sum(),
            Source::Less(one, other) => Some(self.number(*one)? - self.number(*other)?),
            Source::Per(one, other) => Some(self.number(*one)? / other),
            Source::Rounded(source, multiple) => {
                Some((self.number(*source)? / float(multiple)).round() * float(multiple))
            }
            Source::Plain(number) => Some(number),
        }
    }

    /// Returns the numbers in a column of a document's tables, of the rows that contain all the words.
    fn cells(&self, document: &str, words: &[&str], column: &str) -> Vec<f64> {
        let mut numbers = Vec::new();
        let mut place = None;
        for line in self.text(document).unwrap_or_default().lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if !line.starts_with('|') {
                place = None;
            } else if place.is_none() {
                // The first row of a table is its heading.
                place = Some(cells.iter().position(|cell| *cell == column));
            } else if words.iter().all(|word| line.contains(word)) {
                let cell = place.flatten().and_then(|at| cells.get(at));
                numbers.extend(cell.and_then(|cell| super::value(&cell[..super::number_len(cell)])));
            }
        }
        numbers
    }

    /// Returns the value of `const NAME: TYPE = VALUE;`: a number, a shifted number, or a duration in its own unit.
    fn constant(&self, path: &str, name: &str) -> Option<u64> {
        let (_, rest) = self.text(path)?.split_once(&format!("const {name}: "))?;
        let (_, rest) = rest.split_once('=')?;
        let (value, _) = rest.split_once(';')?;
        let value = value.trim();
        let value = ["Duration::from_secs(", "Duration::from_millis("]
            .iter()
            .find_map(|duration| value.strip_prefix(duration))
            .map_or(value, |value| value.trim_end_matches(')'));
        match value.split_once("<<") {
            Some((one, by)) => Some(self.value(path, one)? << self.value(path, by)?),
            None => self.value(path, value),
        }
    }

    /// Returns the value of a number or of another constant in the file.
    fn value(&self, path: &str, text: &str) -> Option<u64> {
        let text = text.trim();
        text.replace('_', "").parse().ok().or_else(|| self.constant(path, text))
    }
}

/// Returns a value of an object by its key, or an element of a list by its `id`.
fn member<'a>(of: &'a Value, name: &str) -> Option<&'a Value> {
    match of {
        Value::Array(list) => list.iter().find(|element| element.get("id").and_then(Value::as_str) == Some(name)),
        Value::Object(object) => object.get(name),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Converts a number of less than 2^53, as all in documents are.
fn float(number: u64) -> f64 {
    number as f64
}
