//! Tier of long fleet tests: a fleet in each fault for a real minute, and its cost. The measurements become a section
//! of docs/FLEET.md.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::harness::Tally;
use super::summary::Tier;
use super::tiers::{PRIVILEGED, as_root};
use crate::{cargo, run, workspace};

const DOCUMENT: &str = "docs/FLEET.md";
/// Section that this tier writes.
const HEADING: &str = "## Measured";
/// Section before which a missing section is inserted.
const NEXT: &str = "## Compared";
/// Prefix of a test's line with a measurement. The kind and the columns follow.
const MARK: &str = "measured: ";
const TESTS: [&str; 2] = ["fleet_trouble", "fleet_cost"];

/// Runs the fleet tests with the release binary, because they also measure its cost.
pub(super) fn fleet(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let binary = cargo::build(&["--release", "--package", "ratelimit-userspace", "--bin", "ratelimitd"])?;
    let binary = cargo::binary(&binary, "ratelimitd")?;
    let tests = TESTS.iter().flat_map(|test| ["--test", *test]);
    let artifacts = cargo::build(&["--package", PRIVILEGED].into_iter().chain(tests).collect::<Vec<_>>())?;
    let (mut tally, mut measured) = (Tally::default(), Vec::new());
    for test in artifacts.iter().filter(|artifact| artifact.is_test_in(PRIVILEGED)) {
        let mut command = as_root(&test.executable, &binary.executable, &[]);
        command.current_dir(workspace::root().join(PRIVILEGED));
        command.args(["--ignored", "--test-threads=1", "--show-output"]).args(filter);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start `{}`", run::shown(&command)))?;
        let stdout = child.stdout.take().context("it has no stdout")?;
        for line in BufReader::new(stdout).lines() {
            let line = line.context("read what a test prints")?;
            tally.take(&line);
            println!("{line}");
            measured.extend(line.strip_prefix(MARK).map(str::to_owned));
        }
        let status = child.wait().with_context(|| format!("wait for `{}`", run::shown(&command)))?;
        if !status.success() && tally.failed.is_empty() {
            tally.failed.push(format!("{} ended with {status}, see above", test.target));
        }
    }
    if tally.failed.is_empty() && filter.is_none() {
        write(&section(&measured)?)?;
    }
    Ok(Tier { name: "fleet", tally, took: start.elapsed() })
}

fn write(section: &str) -> Result<()> {
    let path = workspace::root().join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("read {DOCUMENT}"))?;
    fs::write(&path, replaced(&text, section)?).with_context(|| format!("write {DOCUMENT}"))
}

/// Returns the document with its section replaced, or inserted if missing.
fn replaced(text: &str, section: &str) -> Result<String> {
    if let Some((before, old)) = text.split_once(HEADING) {
        let after = old.find("\n## ").map_or("", |at| &old[at + 1..]);
        return Ok(format!("{before}{section}\n{after}"));
    }
    let at = text.find(NEXT).with_context(|| format!("{DOCUMENT} has neither `{HEADING}` nor `{NEXT}`"))?;
    let (before, after) = text.split_at(at);
    Ok(format!("{before}{section}\n{after}"))
}

/// Builds the section from the measured lines. Fails if a kind was not measured.
fn section(measured: &[String]) -> Result<String> {
    let mut out = format!(
        "{HEADING}\n\nBy `cargo xtask test --tier fleet`: 4 hosts, `1000/1m`, a source that asks all of them by turns, 400 \
         times a second, for\nmore than a minute in each state.\n"
    );
    for (kind, head) in [
        ("state: ", "| state | admitted in its first minute | most in any minute | bound of that state |"),
        ("whole: ", "| cure | whole again after | a new source is admitted |"),
        ("cost: ", "| 4 hosts, real maps, about 10 000 active sources each, interval 1 s | each host |"),
    ] {
        let rows: Vec<_> = measured.iter().filter_map(|line| line.strip_prefix(kind)).collect();
        ensure!(!rows.is_empty(), "nothing was measured of `{kind}`: were the tests skipped?");
        let columns = head.matches('|').count() - 1;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{head}\n|{}", "---|".repeat(columns));
        rows.iter().for_each(|row| out += &format!("| {row} |\n"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_alone_is_written_anew_and_nothing_that_was_not_measured() {
        let measured =
            ["state: away | 4000 | 4000 | 4000", "whole: back | 1.0 s | 1010", "cost: CPU | 3 %"].map(str::to_owned);
        let section = section(&measured).unwrap();
        let new = replaced("# A\n\n## Measured\n\nold\n\n## Last\n\nb\n", &section).unwrap();
        assert!(
            new.starts_with("# A\n\n## Measured\n\nBy `cargo") && new.ends_with("| CPU | 3 % |\n\n## Last\n\nb\n"),
            "{new}"
        );
        assert!(!new.contains("old") && new.contains("|---|---|---|---|\n| away | 4000 | 4000 | 4000 |\n"), "{new}");
        assert!(super::section(&measured[..2]).is_err());
        let first = replaced("# A\n\n## Compared\n\nb\n", &section).unwrap();
        assert!(
            first.starts_with("# A\n\n## Measured\n") && first.ends_with("| CPU | 3 % |\n\n## Compared\n\nb\n"),
            "{first}"
        );
        assert!(replaced("# A\n", &section).is_err());
    }
}
