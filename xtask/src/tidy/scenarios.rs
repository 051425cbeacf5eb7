//! Check that every test named in docs/HOSTILE.md exists, in the crate that its letter stands for.

use std::collections::BTreeSet;

use super::{Breach, breach};

const TABLE: &str = "docs/HOSTILE.md";
const REASON: &str = "docs/HOSTILE.md names a test that is not there: `name` (C), (U), (I) or (X) for its crate";
const NO_TEST: &str = "a row of docs/HOSTILE.md names no test";

/// Predicate: returns true if a path belongs to a letter's crates.
type Letter = fn(&str) -> bool;

/// Letters after test names in the document, and the crates that they stand for.
const LETTERS: [(&str, Letter); 4] =
    [("(C)", is_common), ("(U)", is_of_user_space), ("(I)", is_integration), ("(X)", is_xtask)];

fn is_common(path: &str) -> bool {
    path.starts_with("ratelimit-common/")
}

fn is_integration(path: &str) -> bool {
    path.starts_with("integration-test/")
}

fn is_xtask(path: &str) -> bool {
    path.starts_with("xtask/")
}

fn is_of_user_space(path: &str) -> bool {
    !is_common(path) && !is_integration(path) && !is_xtask(path)
}

/// Test named in the document: its letter, if any, and its name.
type Test<'a> = (Option<Letter>, &'a str);

/// Returns the breaches in the table. `files` holds path and text of each repository file.
pub(super) fn breaches(files: &[(String, String)]) -> Vec<Breach> {
    let sources = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let tests: BTreeSet<(&str, &str)> =
        sources.flat_map(|(path, text)| tests_in(text).map(move |name| (path.as_str(), name))).collect();
    let is_there = |(is_in, name): &Test<'_>| {
        tests.iter().any(|(path, test)| test == name && is_in.is_some_and(|is_in| is_in(path)))
    };
    let tables = files.iter().filter(|(path, _)| path == TABLE);
    let lines = tables.flat_map(|(_, text)| text.lines().enumerate());
    let of_line = |(index, line): (usize, &str)| {
        let named = named_in(line);
        let reason = if named.is_empty() {
            is_row(line).then_some(NO_TEST)
        } else {
            named.iter().any(|named| !is_there(named)).then_some(REASON)
        };
        reason.map(|reason| breach(TABLE, index + 1, line, reason))
    };
    lines.filter_map(of_line).collect()
}

/// Returns true for a row of a scenario: `| S1 |`, `| R1 |`.
fn is_row(line: &str) -> bool {
    let name = line.strip_prefix("| ").and_then(|rest| rest.strip_prefix(['S', 'R']));
    name.is_some_and(|number| number.starts_with(|digit: char| digit.is_ascii_digit()))
}

/// Returns the test names in a row's last column, with the letter after each.
fn named_in(line: &str) -> Vec<Test<'_>> {
    // The text after the last bar of a row is empty.
    let Some(column) = line.rsplit('|').nth(1) else { return Vec::new() };
    let (mut named, mut waiting) = (Vec::new(), Vec::new());
    for (index, piece) in column.split('`').enumerate() {
        let is_code = index % 2 == 1;
        if is_code && piece.contains('_') && !piece.contains(' ') {
            waiting.push(piece);
        } else if let Some((_, is_in)) = LETTERS.iter().find(|(letter, _)| !is_code && piece.contains(letter)) {
            named.extend(waiting.drain(..).map(|name| (Some(*is_in), name)));
        }
    }
    named.extend(waiting.into_iter().map(|name| (None, name)));
    named
}

fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim_start).filter_map(move |line| {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            return None;
        }
        let is_first = std::mem::take(&mut is_test);
        let (_, rest) = line.split_once("fn ").filter(|_| is_first)?;
        rest.split_once('(').map(|(name, _)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#[test]\nfn a_b() {}\n    #[tokio::test(start_paused = true)]\n    #[ignore]\n    async fn c_d() {}\nfn e_f() {}\n";

    fn lines_in_breach(table: &str) -> Vec<usize> {
        let files =
            [("ratelimit-common/src/x.rs", SOURCE), (TABLE, table)].map(|(path, text)| (path.into(), text.into()));
        breaches(&files).iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn a_named_test_is_there_in_its_crate() {
        assert!(lines_in_breach("text\n| S1 | `no_test` | `a_b`, `c_d` (C) |\nSo much for S2.\n").is_empty());
    }

    #[test]
    fn a_row_without_a_test_is_a_breach() {
        assert_eq!(
            lines_in_breach("| | scenario | test |\n|---|---|---|\n| S2 | x | not yet |\n| R1 | x | by hand |\n"),
            [3, 4]
        );
    }

    #[test]
    fn a_name_without_a_test_in_its_crate_or_without_a_letter_is_a_breach() {
        let rows = ["`e_f` (C)", "`g_h` (C)", "`a_b` (U)", "`a_b`", "`a_b` (C); also: `g_h` (C)"];
        for row in rows {
            assert_eq!(lines_in_breach(&format!("| S1 | x | {row} |\n")), [1], "{row}");
        }
    }
}
