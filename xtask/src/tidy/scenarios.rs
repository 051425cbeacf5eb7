//! Every test that docs/HOSTILE.md names is there, in the crate that its letter says.

use std::collections::BTreeSet;

use super::{Breach, breach};

const TABLE: &str = "docs/HOSTILE.md";
const REASON: &str = "docs/HOSTILE.md names a test that is not there: `name` (C), (U), (I) or (X) for its crate";

/// What stands behind the names of tests, and where these are.
const CRATES: [(&str, &[&str]); 4] = [
    ("(C)", &["ratelimit-common/"]),
    (
        "(U)",
        &[
            "ratelimit-control/",
            "ratelimit-daemon/",
            "ratelimit-datapath/",
            "ratelimit-doctor/",
            "ratelimit-policy/",
            "ratelimit-report/",
            "ratelimit-top/",
            "ratelimit-userspace/",
            "ratelimit-view/",
            "ratelimit-web/",
        ],
    ),
    ("(I)", &["integration-test/"]),
    ("(X)", &["xtask/"]),
];

/// A test by the paths that its file may be below of, and its name.
type Test<'a> = (&'static [&'static str], &'a str);

/// `files` are the repository's, path and text.
pub(super) fn breaches(files: &[(String, String)]) -> Vec<Breach> {
    let sources = files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let tests: BTreeSet<(&str, &str)> =
        sources.flat_map(|(path, text)| tests_in(text).map(move |name| (path.as_str(), name))).collect();
    let is_there = |(directories, name): &Test<'_>| {
        let is_in = |path: &str| directories.iter().any(|directory| path.starts_with(directory));
        tests.iter().any(|(path, test)| test == name && is_in(path))
    };
    let tables = files.iter().filter(|(path, _)| path == TABLE);
    let lines = tables.flat_map(|(_, text)| text.lines().enumerate());
    lines
        .filter(|(_, line)| named_in(line).iter().any(|named| !is_there(named)))
        .map(|(index, line)| breach(TABLE, index + 1, line, REASON))
        .collect()
}

/// The names in a row's last column, with the directories of the letter behind them; none where no letter follows.
fn named_in(line: &str) -> Vec<Test<'_>> {
    // The text behind the last bar of a row is empty.
    let Some(column) = line.rsplit('|').nth(1) else { return Vec::new() };
    let (mut named, mut waiting) = (Vec::new(), Vec::new());
    for (index, piece) in column.split('`').enumerate() {
        let is_code = index % 2 == 1;
        if is_code && piece.contains('_') && !piece.contains(' ') {
            waiting.push(piece);
        } else if let Some((_, directories)) = CRATES.iter().find(|(letter, _)| !is_code && piece.contains(letter)) {
            named.extend(waiting.drain(..).map(|name| (*directories, name)));
        }
    }
    named.extend(waiting.into_iter().map(|name| (&[] as &[&str], name)));
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
        assert!(lines_in_breach("text\n| S1 | `no_test` | `a_b`, `c_d` (C) |\n| S2 | x | not yet |\n").is_empty());
    }

    #[test]
    fn what_is_no_test_or_elsewhere_or_without_a_letter_is_a_breach() {
        let rows = ["`e_f` (C)", "`g_h` (C)", "`a_b` (U)", "`a_b`", "`a_b` (C); also: `g_h` (C)"];
        for row in rows {
            assert_eq!(lines_in_breach(&format!("| S1 | x | {row} |\n")), [1], "{row}");
        }
    }
}
