//! Parser of list files: their lines and prefixes. Pure.

use std::path::Path;

use ipnet::IpNet;
use ratelimit_common::layout::PREFIXES_MAX;

use super::{LIST_ENTRIES_MAX, entry, kind, published};
use crate::diagnostic::{Diagnostic, Diagnostics, Excerpt, Found, Place};

/// Maximum share of unreadable entries, in percent, that a start leaves out of a list file. Above that share the last
/// good copy is used.
pub const LEFT_OUT_PERCENT: usize = 5;

/// A list file with some lines left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tolerated {
    /// Prefixes of all other lines: sorted, without duplicates.
    pub prefixes: Vec<IpNet>,
    /// Number of lines left out, at least one.
    pub lines_left_out: usize,
    /// Error of the first line left out.
    pub first: Diagnostic,
}

/// Parses a list file and returns its prefixes, sorted and without duplicates. A line has one address, prefix or
/// range, in one of the forms of published lists (docs/NEIGHBOURS.md). `#` and `;` begin a comment. The file may also
/// be a JSON document of a known publisher.
///
/// Bits beyond a prefix's length are cut off, because published lists contain them. Errors do not quote the text,
/// because their reader may not be allowed to read the file.
///
/// # Errors
/// Fails for every line that names no source, or that may name more than this parser understands. A file of another
/// kind is one error.
pub fn parse(path: &Path, contents: &str) -> Result<Vec<IpNet>, Diagnostics> {
    let Reading { prefixes, bad_lines, mut found, .. } = read(path, contents, None);
    // A file of another kind causes one error for each line, so they are replaced by one error.
    if found.is_full() && prefixes.is_empty() && bad_lines > 1 {
        let problem = format!("it is no list of addresses: none of its first {bad_lines} lines has one");
        return Err(at_start(path, problem, "a list has one address, prefix or range in a line").into());
    }
    if found.count() == 0 {
        found.keep(check_room(path, &prefixes));
    }
    found.into_result(prefixes)
}

/// Parses a list file as [`parse`] does, but leaves out unreadable lines, up to [`LEFT_OUT_PERCENT`] of all lines.
/// Returns None if more lines are unreadable, if none is, or if the whole file is refused.
pub fn parse_tolerant(path: &Path, contents: &str) -> Option<Tolerated> {
    let most = lines(contents).count() * LEFT_OUT_PERCENT / 100;
    let Reading { prefixes, bad_lines, first, is_whole, .. } = read(path, contents, Some(most));
    if !is_whole || bad_lines > most || check_room(path, &prefixes).is_err() {
        return None;
    }
    Some(Tolerated { prefixes, lines_left_out: bad_lines, first: first? })
}

/// Result of reading a list file's lines.
struct Reading {
    prefixes: Vec<IpNet>,
    bad_lines: usize,
    /// Error of the first bad line.
    first: Option<Diagnostic>,
    found: Found,
    /// Set if only single lines are wrong.
    is_whole: bool,
}

/// Reads lines until more than `most` are bad. If `most` is None, until no further errors can be kept.
fn read(path: &Path, contents: &str, most: Option<usize>) -> Reading {
    let mut of = Reading { prefixes: Vec::new(), bad_lines: 0, first: None, found: Found::default(), is_whole: true };
    match published::prefixes(contents) {
        Some(Ok(prefixes)) => return of.of_document(path, prefixes),
        Some(Err(refused)) => {
            of.found.push(at_start(path, format!("{}, not a list of addresses", refused.0), published::KNOWN));
            return Reading { is_whole: false, ..of };
        }
        None => {}
    }
    if let Some(kind) = kind::foreign(contents) {
        of.found.push(at_start(path, kind.problem, kind.help));
        return Reading { is_whole: false, ..of };
    }
    if let Some(line) = lone_return(contents) {
        let problem = "it contains a carriage return that does not end a line";
        of.found.push(wrong(path, line, 1, problem, "end lines as on Unix or Windows"));
        of.is_whole = false;
    }
    for line in lines(contents) {
        // The header line of a table stands before all entries.
        if of.prefixes.is_empty() && of.bad_lines == 0 && entry::is_head(line.text) {
            let Some(column) = entry::extent_column(line.text) else { continue };
            let problem = format!("its column `{column}` extends each line to more than one address");
            of.found.push(at_start(
                path,
                problem,
                "write prefixes, as in 192.0.2.0/24, or ranges, as in 192.0.2.0-192.0.2.9",
            ));
            of.is_whole = false;
            break;
        }
        match entry::read(line.text) {
            Ok(prefixes) => of.prefixes.extend(prefixes),
            Err(bad) => {
                let column = line.column + line.text.get(..bad.at).map_or(0, |before| before.chars().count());
                let diagnostic = wrong(path, line.number, column, bad.problem, bad.help);
                of.bad_lines += 1;
                of.first.get_or_insert_with(|| diagnostic.clone());
                of.found.push(diagnostic);
            }
        }
        if of.prefixes.len() > LIST_ENTRIES_MAX {
            of.has_too_many(path, line.number, line.column);
            break;
        }
        if most.map_or(of.found.is_full(), |most| of.bad_lines > most) {
            break;
        }
    }
    of.sorted()
}

impl Reading {
    /// Takes the prefixes of a publisher's document.
    fn of_document(mut self, path: &Path, prefixes: Vec<IpNet>) -> Self {
        self.prefixes = prefixes;
        if self.prefixes.len() > LIST_ENTRIES_MAX {
            self.has_too_many(path, 1, 1);
        }
        self.sorted()
    }

    fn has_too_many(&mut self, path: &Path, line: usize, column: usize) {
        let problem = format!("there are more than {LIST_ENTRIES_MAX} entries");
        self.found.push(wrong(path, line, column, &problem, "join neighbouring prefixes"));
        self.is_whole = false;
    }

    fn sorted(mut self) -> Self {
        self.prefixes.sort_unstable();
        self.prefixes.dedup();
        self
    }
}

fn wrong(path: &Path, line: usize, column: usize, problem: &str, help: &str) -> Diagnostic {
    let excerpt = Excerpt { line, column, text: None, span: 0..0 };
    Diagnostic {
        problem: format!("bad line in a list file: {problem}"),
        place: Place::File { path: path.to_owned(), excerpt: Some(Box::new(excerpt)) },
        help: vec![help.to_owned()],
    }
}

fn whole(path: &Path, problem: String, help: &str) -> Diagnostic {
    Diagnostic { problem, place: Place::File { path: path.to_owned(), excerpt: None }, help: vec![help.to_owned()] }
}

/// Returns an error that concerns the whole file, placed at its start.
fn at_start(path: &Path, problem: String, help: &str) -> Diagnostic {
    let excerpt = Excerpt { line: 1, column: 1, text: None, span: 0..0 };
    let place = Place::File { path: path.to_owned(), excerpt: Some(Box::new(excerpt)) };
    Diagnostic { place, ..whole(path, problem, help) }
}

/// Fails if the kernel cannot hold that many prefixes of one family.
fn check_room(path: &Path, prefixes: &[IpNet]) -> Result<(), Diagnostic> {
    match super::too_many_of(prefixes.iter()) {
        Some(family) => {
            let problem = format!("there are more than {PREFIXES_MAX} prefixes of {family} in this list file");
            Err(whole(path, problem, "join neighbouring prefixes"))
        }
        None => Ok(()),
    }
}

/// Returns the first line with a carriage return that is not at its end.
fn lone_return(contents: &str) -> Option<usize> {
    let is_within = |line: &str| line.trim_end_matches('\r').contains('\r');
    contents.split('\n').position(is_within).map(|before| before + 1)
}

/// A line of a list file that has an entry.
pub(in crate::config) struct Line<'a> {
    /// Number of the line, from 1.
    pub(in crate::config) number: usize,
    /// Column at which the entry begins, in characters, from 1.
    column: usize,
    /// Text of the line from the entry on, without trailing blanks.
    pub(in crate::config) text: &'a str,
    /// Text after the first word, without the comment mark.
    pub(in crate::config) comment: &'a str,
}

/// Yields the lines of a list file that have an entry.
pub(in crate::config) fn lines(contents: &str) -> impl Iterator<Item = Line<'_>> {
    let is_blank = |c: char| c.is_whitespace() || c == '\u{feff}';
    contents.split('\n').zip(1..).filter_map(move |(line, number)| {
        let text = line.trim_start_matches(is_blank);
        let column = line[..line.len() - text.len()].chars().count() + 1;
        let text = text.trim_end();
        if text.starts_with('{') {
            // Spaces and comment marks are part of the JSON.
            return Some(Line { number, column, text, comment: text });
        }
        let end = text.find(|c: char| c.is_whitespace() || c == '#' || c == ';').unwrap_or(text.len());
        let (first, rest) = text.split_at(end);
        let comment = rest.trim_start_matches(|c: char| is_blank(c) || c == '#' || c == ';').trim_end();
        (!first.is_empty()).then_some(Line { number, column, text, comment })
    })
}
