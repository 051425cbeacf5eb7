//! `cargo xtask tidy`: checks the invariants of ARCHITECTURE.md that a text search can check.
//!
//! The table in `rules` says which patterns are forbidden where, and why. This module applies it to the files of the
//! repository. `scenarios` checks a document against the tests, `documents` checks all documents against the
//! repository, and `comments` counts the doc comments that are hard to read. `layers` finds crates that need the BPF
//! compiler and should not.

mod comments;
mod documents;
pub(crate) mod lines;
mod quoted;
mod rules;
mod scenarios;
mod source;

use std::fmt;
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use regex_lite::Regex;

use crate::dist::licences;
use crate::layers::Graph;
use crate::{run, workspace};
use rules::{LONG_FILES, RULES, Rule, SHIPPED, SHIPPED_LINES_MAX, Scope};
use source::Source;

/// Maximum number of lines in a file. A longer file must be split.
const LINES_MAX: usize = 600;
const LONG: &str =
    "a file of more than 450 shipped lines is cut along a seam, or has its reason in LONG_FILES of tidy/rules.rs";
const NOT_LONG: &str =
    "a file in LONG_FILES of tidy/rules.rs is longer than 450 lines: this one needs no reason any more";

const NEEDS_BPF: &str =
    "a crate below the edge builds without the BPF compiler: it takes from the kernel side only what is handed in";
const NOT_AT_THE_EDGE: &str = "a crate in EDGE of layers.rs exists and needs the BPF compiler: this one does not";

const LICENCE: &str = "a dependency comes from the registry, under a licence that deny.toml allows";

pub(crate) fn run() -> Result<ExitCode> {
    let rules = RULES.iter().map(Compiled::new).collect::<Result<Vec<_>>>()?;
    // A file listed by git may be missing. A file that is not text is kept with empty text, so that documents can name
    // it.
    let text = |path: String| {
        let bytes = fs::read(workspace::root().join(&path)).ok()?;
        Some((path, String::from_utf8(bytes).unwrap_or_default()))
    };
    let files: Vec<_> = tracked_files()?.into_iter().filter_map(text).collect();
    let mut breaches: Vec<_> = files.iter().flat_map(|(path, text)| breaches_in(path, text, &rules)).collect();
    breaches.extend(scenarios::breaches(&files));
    breaches.extend(documents::breaches(&files)?);
    breaches.extend(quoted::breaches(&files)?);
    breaches.extend(comments::breaches(&files)?);
    let refused = licences::refused()?;
    breaches.extend(refused.iter().map(|package| breach("deny.toml", 1, package, LICENCE)));
    breaches.extend(breaches_of_layers(&Graph::read()?));
    for breach in &breaches {
        println!("{breach}");
    }
    if breaches.is_empty() {
        println!("tidy: {} rules hold in {} files", rules.len() + 14, files.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} breaches in {} files", breaches.len(), files.len());
    Ok(ExitCode::FAILURE)
}

struct Compiled<'a> {
    rule: &'a Rule,
    forbidden: Regex,
}

#[derive(Debug, PartialEq, Eq)]
struct Breach {
    path: String,
    line: usize,
    text: String,
    reason: &'static str,
}

impl<'a> Compiled<'a> {
    fn new(rule: &'a Rule) -> Result<Self> {
        let forbidden = Regex::new(rule.forbidden).with_context(|| format!("the pattern {}", rule.forbidden))?;
        Ok(Self { rule, forbidden })
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}: {}", self.path, self.line, self.reason)?;
        write!(f, "    {}", self.text.trim())
    }
}

/// Returns the tracked files, and the untracked ones that git does not ignore.
fn tracked_files() -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root());
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let list = run::answer(&mut git).context("tidy looks at the files that git knows")?;
    Ok(list.lines().map(str::to_owned).collect())
}

fn breaches_in(path: &str, text: &str, rules: &[Compiled<'_>]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let source = Source::of(text);
    for Compiled { rule, forbidden } in rules.iter().filter(|compiled| compiled.rule.holds_for(path)) {
        let part = match rule.part {
            Scope::Everything => text,
            Scope::Code => &source.code,
            // Test files are not shipped.
            Scope::ShippedCode if is_tests(path) => continue,
            Scope::ShippedCode => &source.shipped_code,
        };
        let lines = part.lines().zip(text.lines()).enumerate().filter(|(_, (part, _))| forbidden.is_match(part));
        breaches.extend(lines.map(|(index, (_, line))| breach(path, index + 1, line, rule.reason)));
    }
    if path.ends_with(".rs") {
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("//!") {
            breaches.push(breach(path, 1, first, "a file begins with what it knows and must not know (`//!`)"));
        }
        if let Some(line) = text.lines().nth(LINES_MAX) {
            breaches.push(breach(path, LINES_MAX + 1, line, "a file of more than 600 lines is two files"));
        }
        breaches.extend(breach_of_length(path, &source));
    }
    breaches
}

/// Checks the number of shipped lines of a file. Tests at its end do not count.
fn breach_of_length(path: &str, source: &Source) -> Option<Breach> {
    if is_tests(path) || !SHIPPED.iter().any(|pattern| rules::is_match(pattern, path)) {
        return None;
    }
    let lines = source.shipped_code.trim_end().lines().count();
    let is_listed = LONG_FILES.iter().any(|(long, _)| *long == path);
    let reason = match (lines > SHIPPED_LINES_MAX, is_listed) {
        (true, false) => LONG,
        (false, true) => NOT_LONG,
        (true, true) | (false, false) => return None,
    };
    Some(breach(path, lines, &format!("{lines} lines"), reason))
}

/// Checks which crates need the BPF compiler.
fn breaches_of_layers(graph: &Graph) -> Vec<Breach> {
    let needless = graph.needless().into_iter().map(|chain| {
        breach(&format!("{}/Cargo.toml", chain.first().map_or("", String::as_str)), 1, &chain.join(" -> "), NEEDS_BPF)
    });
    let others = graph.not_at_the_edge().into_iter().map(|name| breach(name, 1, name, NOT_AT_THE_EDGE));
    needless.chain(others).collect()
}

fn is_tests(path: &str) -> bool {
    // Fixtures are shared by unit tests, and fuzz targets are tests.
    let (files, directories) = (["/tests.rs", "/fixture.rs", "/fuzz.rs"], ["/tests/", "/fuzz/"]);
    files.iter().any(|file| path.ends_with(file)) || directories.iter().any(|directory| path.contains(directory))
}

fn breach(path: &str, line: usize, text: &str, reason: &'static str) -> Breach {
    Breach { path: path.to_owned(), line, text: text.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(path: &str, text: &str) -> Vec<Breach> {
        let rules: Vec<_> = RULES.iter().map(|rule| Compiled::new(rule).unwrap()).collect();
        breaches_in(path, text, &rules)
    }

    #[test]
    fn every_rule_fires_on_its_own_example_and_on_nothing_harmless() {
        for rule in RULES {
            for path in rule.paths.iter().map(|pattern| rules::example_of(pattern)) {
                for example in rule.examples {
                    let found = breaches(&path, &format!("//! A module.\n{example}\n"));
                    let is_meant = |breach: &Breach| breach.reason == rule.reason && breach.line == 2;
                    assert!(found.iter().any(is_meant), "{path}: {rule:?}: {found:?}");
                }
                assert_eq!(breaches(&path, "//! A module.\nfn harmless() {}\n"), [], "{path}: {rule:?}");
            }
            assert!(!rule.examples.is_empty(), "{rule:?}");
        }
    }

    #[test]
    fn a_shipped_file_is_450_lines_long_its_tests_apart_or_has_a_reason_that_it_needs() {
        let of = |path: &str, lines: usize| {
            let tests = "#[cfg(test)]\nmod tests {\n    fn test() {}\n}\n";
            let text = format!("//! A module.\n{}{tests}", "const A: u8 = 0;\n".repeat(lines - 1));
            breaches(path, &text).into_iter().map(|breach| breach.reason).collect::<Vec<_>>()
        };
        assert_eq!(of("ratelimit-daemon/src/some.rs", 450), [""; 0]);
        assert_eq!(of("ratelimit-daemon/src/some.rs", 451), [LONG]);
        for path in ["ratelimit-daemon/src/some/tests.rs", "ratelimit-daemon/tests/some.rs", "xtask/src/some.rs"] {
            assert_eq!(of(path, 451), [""; 0], "{path}");
        }
        for (path, reason) in LONG_FILES {
            assert!(!reason.is_empty());
            assert_eq!((of(path, 451), of(path, 450)), (vec![], vec![NOT_LONG]), "{path}");
        }
        let files = tracked_files().unwrap();
        assert!(LONG_FILES.iter().all(|(path, _)| files.iter().any(|file| file == path)), "a file that is not there");
    }

    #[test]
    fn every_rule_and_every_exception_is_about_some_file_that_there_is() {
        let files = tracked_files().unwrap();
        let is_there = |pattern: &&str| files.iter().any(|path| rules::is_match(pattern, path));
        for rule in RULES {
            assert!(rule.paths.iter().any(is_there), "{rule:?}");
            assert!(rule.except.iter().all(is_there), "{rule:?}");
        }
    }

    #[test]
    fn the_metrics_are_made_of_the_snapshot_alone() {
        let found = breaches("ratelimit-report/src/export.rs", "//! X.\nuse ratelimit_datapath::Datapath;\n");
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_rule_leaves_its_exceptions_alone() {
        for rule in RULES {
            for (except, example) in
                rule.except.iter().flat_map(|except| rule.examples.iter().map(move |of| (except, of)))
            {
                let path = rules::example_of(except);
                let found = breaches(&path, &format!("//! A module.\n{example}\n"));
                assert!(found.iter().all(|breach| breach.reason != rule.reason), "{rule:?}: {found:?}");
            }
        }
    }

    #[test]
    fn an_unwrap_is_fine_in_a_test_in_a_comment_and_in_a_string() {
        let text = "//! It never calls .unwrap().\nconst A: &str = \".unwrap()\"; // .unwrap()\n\
                    #[cfg(test)]\nmod tests {\n    fn a() { b().unwrap(); }\n}\n";
        assert_eq!(breaches("ratelimit-policy/src/config.rs", text), []);
        assert_eq!(breaches("ratelimit-policy/src/config.rs", "//! X.\nfn a() { b().unwrap(); }\n").len(), 1);
    }

    #[test]
    fn a_file_without_a_heading_is_reported_and_so_is_the_line_after_the_last_allowed() {
        assert_eq!(breaches("a.rs", "fn a() {}\n").len(), 1);
        let longest = format!("//! X.\n{}", "\n".repeat(LINES_MAX - 1));
        assert_eq!(breaches("a.rs", &longest), []);
        assert_eq!(breaches("a.rs", &format!("{longest}\n")).len(), 1);
    }
}
