//! Compares the numbers quoted in documents with their source: a measurement, a generated table, a snapshot or a
//! constant.
//!
//! [`QUOTED`] lists each phrase with the sources of its numbers. A missing phrase or a number that differs is a breach.
//! A cost, an amount of memory, a share or a factor that no phrase covers is a breach too, unless [`CHOSEN`] says why it
//! is not measured.

mod rows;
mod sources;

use std::ops::Range;

use anyhow::Result;

use super::{Breach, breach};
use rows::{CHOSEN, QUOTED};
use sources::{Source, World};

/// Documents in which each figure needs a source. A name that ends with `/` is a directory.
const SOURCED: [&str; 13] = [
    "README.md",
    "SECURITY.md",
    "docs/ACCESS-LOG.md",
    "docs/COUNTING.md",
    "docs/FAQ.md",
    "docs/FLEET.md",
    "docs/FLOODS.md",
    "docs/GROUPS.md",
    "docs/GUIDE.md",
    "docs/INTERNALS.md",
    "docs/NEIGHBOURS.md",
    "docs/OPERATIONS.md",
    "docs/recipes/",
];

/// Heading of a section that `cargo xtask test --tier fleet` writes.
const GENERATED: &str = "## Measured";

/// File with the two tables.
const TABLE: &str = "xtask/src/tidy/quoted/rows.rs";

/// Units of figures that are measured. Of times only those with decimals are: others are settings.
const UNITS: [&str; 13] = [
    "ns",
    "µs",
    "us",
    "nanoseconds",
    "microseconds",
    "MB",
    "MiB",
    "GB",
    "GiB",
    "%",
    "times",
    "requests a second",
    "lines a second",
];
const UNITS_OF_TIMES: [&str; 3] = ["ms", "s", "seconds"];

const DIFFERS: &str = "a document quotes a number that its source does not have: see QUOTED in tidy/quoted/rows.rs";
const GONE: &str = "a phrase of tidy/quoted/rows.rs is not in its document any more: change that row with it";
const NO_SOURCE: &str = "a figure without a source: name it in QUOTED of tidy/quoted/rows.rs, or in CHOSEN if nobody \
                         measures it";
const NO_NUMBER: &str = "a row of QUOTED in tidy/quoted/rows.rs names a measurement or constant that is not there";

/// Phrase of a document, with `#` for each number.
struct Quoted {
    document: &'static str,
    phrase: &'static str,
    sources: &'static [Source],
}

/// Phrase with figures that are not measured, and the reason.
struct Chosen {
    phrase: &'static str,
    reason: &'static str,
}

/// Output of `cargo xtask demo --write`, and the documents that quote lines of its tables.
const DEMO: &str = "docs/demo.txt";
const QUOTES_DEMO: [&str; 2] = ["README.md", "docs/GUIDE.md"];
const OTHER_DEMO: &str = "a document quotes a table of the demo that docs/demo.txt does not have";

/// Checks every quoted number. `files` holds path and text of each repository file.
pub(super) fn breaches(files: &[(String, String)]) -> Result<Vec<Breach>> {
    let mut breaches = breaches_of(QUOTED, CHOSEN, files)?;
    breaches.extend(breaches_of_demo(files));
    Ok(breaches)
}

/// Checks the tables of the demo: blocks of code of which the first line is a heading in [`DEMO`].
fn breaches_of_demo(files: &[(String, String)]) -> Vec<Breach> {
    let text_of = |path: &str| files.iter().find(|(of, _)| of == path).map_or("", |(_, text)| text);
    let tables: Vec<&str> = text_of(DEMO).lines().collect();
    let is_heading = |line: &str| line.starts_with("phase ") && tables.contains(&line);
    let mut breaches = Vec::new();
    for document in QUOTES_DEMO {
        let mut is_table = false;
        let mut quoted = 0;
        for (at, line) in text_of(document).lines().enumerate() {
            let code = line.strip_prefix("    ");
            is_table = code.is_some_and(|code| is_table || is_heading(code));
            let Some(code) = code.filter(|_| is_table) else { continue };
            quoted += 1;
            if !tables.contains(&code) {
                breaches.push(breach(document, at + 1, line, OTHER_DEMO));
            }
        }
        if quoted == 0 {
            breaches.push(breach(document, 1, "no table", OTHER_DEMO));
        }
    }
    breaches
}

fn breaches_of(rows: &[Quoted], chosen: &[Chosen], files: &[(String, String)]) -> Result<Vec<Breach>> {
    let world = World::of(files)?;
    let mut breaches = Vec::new();
    let mut sourced: Vec<(&str, Range<usize>)> = Vec::new();
    for Quoted { document, phrase, sources } in rows {
        let Some(text) = world.text(document) else { continue };
        let Some(found) = numbers_in(text, phrase) else {
            breaches.push(breach(document, 1, phrase, GONE));
            continue;
        };
        for (number, source) in found.into_iter().zip(*sources) {
            let said = &text[number.clone()];
            let line = line_of(text, number.start);
            match world.number(*source) {
                None => breaches.push(breach(document, line, &format!("{source:?}"), NO_NUMBER)),
                Some(is) if !is_rounded(is, said) => {
                    let words = format!("{said}, and {source:?} is {is}: {phrase}");
                    breaches.push(breach(document, line, &words, DIFFERS));
                }
                Some(_) => {}
            }
            sourced.push((document, number));
        }
    }
    for Chosen { phrase, reason } in chosen {
        let documents = files.iter().filter(|(path, _)| is_sourced(path));
        let places = documents.filter_map(|(path, text)| Some((path.as_str(), place_of(text, phrase)?)));
        let before = sourced.len();
        sourced.extend(places);
        if sourced.len() == before {
            breaches.push(breach(TABLE, 1, &format!("{phrase} ({reason})"), GONE));
        }
    }
    for (document, text) in files.iter().filter(|(path, _)| is_sourced(path)) {
        for found in figures(&prose(text)) {
            let has_source = |(of, range): &(&str, Range<usize>)| {
                of == document && range.start <= found.start && found.end <= range.end
            };
            if !sourced.iter().any(has_source) {
                let line = line_of(text, found.start);
                breaches.push(breach(document, line, text.lines().nth(line - 1).unwrap_or_default(), NO_SOURCE));
            }
        }
    }
    Ok(breaches)
}

fn is_sourced(path: &str) -> bool {
    SOURCED.iter().any(|of| path == *of || of.ends_with('/') && path.starts_with(of) && path.ends_with(".md"))
}

/// Returns the positions of the numbers that have a unit of [`UNITS`], or decimals and a unit of time.
fn figures(text: &str) -> Vec<Range<usize>> {
    let mut figures = Vec::new();
    let mut end = 0;
    for (at, _) in text.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        let is_inside = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        if at < end || is_inside {
            continue;
        }
        end = at + number_len(&text[at..]);
        let rest: String = text[end..].chars().take(24).map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
        let rest = rest.strip_prefix(' ').unwrap_or(&rest);
        let has = |unit: &&str| {
            rest.strip_prefix(unit).is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric()))
        };
        if UNITS.iter().any(has) || text[at..end].contains('.') && UNITS_OF_TIMES.iter().any(has) {
            figures.push(at..end);
        }
    }
    figures
}

/// Returns the number of the line that has this byte, from 1.
fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// Returns true if a document may say this for a number: rounded to as many decimals as the text has.
fn is_rounded(number: f64, said: &str) -> bool {
    let decimals = said.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    // Adding zero makes a negative zero positive.
    format!("{:.decimals$}", number + 0.0) == said.replace(' ', "")
}

/// Returns a text of the same length, with blanks in place of code and generated sections.
fn prose(text: &str) -> String {
    let (mut prose, mut is_fenced, mut is_generated) = (String::new(), false, false);
    for line in text.split_inclusive('\n') {
        if line.starts_with("## ") {
            is_generated = line.trim() == GENERATED;
        }
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        let is_blank = is_generated || is_fenced || is_fence || line.starts_with("    ");
        let mut is_code = is_blank;
        for c in line.chars() {
            is_code ^= c == '`' && !is_blank;
            // A character of several bytes is replaced by as many.
            let blank = || " ".repeat(c.len_utf8());
            if c != '\n' && (is_code || c == '`') { prose += &blank() } else { prose.push(c) }
        }
    }
    prose
}

/// Returns the positions of a phrase's numbers in a text, where lines may break at any space. None if the phrase is
/// missing.
fn numbers_in(text: &str, phrase: &str) -> Option<Vec<Range<usize>>> {
    let (words, places) = unbroken(text);
    let parts: Vec<&str> = phrase.split('#').collect();
    let first = parts.first()?;
    words.match_indices(first).find_map(|(at, _)| {
        let mut end = at + first.len();
        let mut numbers = Vec::new();
        for part in parts.get(1..)? {
            let len = number_len(&words[end..]);
            let last = (end + len).checked_sub(1).filter(|_| len > 0)?;
            numbers.push(*places.get(end)?..*places.get(last)? + 1);
            words[end + len..].starts_with(part).then_some(())?;
            end += len + part.len();
        }
        Some(numbers)
    })
}

/// Returns the position of a phrase without holes.
fn place_of(text: &str, phrase: &str) -> Option<Range<usize>> {
    let (words, places) = unbroken(text);
    let at = words.find(phrase)?;
    Some(*places.get(at)?..*places.get(at + phrase.len() - 1)? + 1)
}

/// Returns a text with one space for each run of white space, and the position of each of its bytes in the text.
fn unbroken(text: &str) -> (String, Vec<usize>) {
    let (mut words, mut places) = (String::new(), Vec::new());
    for (at, c) in text.char_indices() {
        let c = if c.is_whitespace() { ' ' } else { c };
        if c != ' ' || !words.ends_with(' ') {
            words.push(c);
            places.resize(words.len(), at);
        }
    }
    (words, places)
}

/// Returns the length of the number at the start of a text. Its digits may be grouped by spaces, and it may have
/// decimals: `16 384`, `0.5`.
fn number_len(text: &str) -> usize {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut len = digits(text);
    while len > 0 && text[len..].strip_prefix(' ').is_some_and(|rest| digits(rest) == 3) {
        len += 4;
    }
    match text[len..].strip_prefix('.').map(digits) {
        Some(decimals) if len > 0 && decimals > 0 => len + 1 + decimals,
        Some(_) | None => len,
    }
}

/// Returns the value of a number as documents write it.
fn value(text: &str) -> Option<f64> {
    text.replace(char::is_whitespace, "").parse().ok()
}

#[cfg(test)]
mod tests;
