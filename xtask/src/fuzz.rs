//! `cargo xtask fuzz`: runs libFuzzer with coverage, to find bytes that make a target of `ratelimit-fuzz` panic.
//!
//! The engine is a separate package outside the workspace. The stable compiler builds it with coverage into its own
//! target directory. Finds are stored in `target/fuzz/found/TARGET`, the growing corpus in `target/fuzz/corpus/TARGET`,
//! and the statistics in `target/fuzz/figures.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{run, workspace};

/// Compiler flags for libFuzzer: a counter per edge, and tracing of comparisons.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
const PACKAGE: &str = "ratelimit-fuzz";
/// Maximum input size in bytes: a few frames, or a file with some rules.
const BYTES_MAX: u32 = 4_096;
/// Time in seconds after which a single input counts as a find.
const SECONDS_MAX: u32 = 10;

#[derive(Args)]
pub(crate) struct Options {
    /// The target; without one, each of them in turn
    target: Option<String>,
    /// How long each is run: 90, 90s, 10m or 2h
    #[arg(long = "for", value_name = "DUR", default_value = "60s", value_parser = duration)]
    time: Duration,
}

/// Statistics of one target, summed over all runs since `target/fuzz` was created.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Figures {
    executions: u64,
    seconds: f64,
    /// Number of code edges that the inputs have reached.
    edges: u64,
    corpus: usize,
    found: usize,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let targets = targets()?;
    let chosen: Vec<&String> =
        targets.iter().filter(|name| options.target.as_ref().is_none_or(|only| only == *name)).collect();
    ensure!(!chosen.is_empty(), "there is no such target; there are {}", targets.join(", "));
    let engine = build()?;
    let directory = workspace::target_dir().join("fuzz");
    let file = directory.join("figures.json");
    let mut figures: BTreeMap<String, Figures> =
        fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    for name in chosen {
        let of = fuzz(&engine, name, options.time, &directory)?;
        println!("{name}: {} executions in {:.0} s, {} edges, {} found", of.executions, of.seconds, of.edges, of.found);
        let all = figures.entry(name.clone()).or_default();
        *all = Figures {
            executions: all.executions + of.executions,
            seconds: all.seconds + of.seconds,
            edges: all.edges.max(of.edges),
            ..of
        };
        fs::write(&file, serde_json::to_string_pretty(&figures)? + "\n")
            .with_context(|| format!("write {}", file.display()))?;
    }
    let found = figures.values().map(|of| of.found).sum::<usize>();
    println!("{found} found, below {}", directory.join("found").display());
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the names of the targets. Each has a directory of seeds.
fn targets() -> Result<Vec<String>> {
    let seeds = workspace::root().join(PACKAGE).join("seeds");
    let mut names = names_in(&seeds).with_context(|| format!("list {}", seeds.display()))?;
    names.sort_unstable();
    Ok(names)
}

fn names_in(directory: &Path) -> Result<Vec<String>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn build() -> Result<PathBuf> {
    let mut version = Command::new("rustc");
    version.arg("-vV");
    let version = run::answer(&mut version)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names its host")?;
    let directory = workspace::target_dir().join("fuzz").join("build");
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root().join(PACKAGE).join("engine"));
    // With an explicit target, cargo builds the build scripts without coverage.
    command.args(["build", "--release", "--target", host, "--target-dir"]).arg(&directory);
    command.env("RUSTFLAGS", COVERAGE.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = command.status().with_context(|| format!("start `{}`", run::shown(&command)))?;
    ensure!(status.success(), "`{}` failed, see above", run::shown(&command));
    Ok(directory.join(host).join("release").join("ratelimit-fuzz-engine"))
}

fn fuzz(engine: &Path, name: &str, time: Duration, directory: &Path) -> Result<Figures> {
    let (corpus, found) = (directory.join("corpus").join(name), directory.join("found").join(name));
    for made in [&corpus, &found] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    let before = names_in(&found)?.len();
    let began = Instant::now();
    let mut of = Figures::default();
    let left = |since: Instant| time.saturating_sub(since.elapsed());
    // The engine ends at its first find.
    while left(began) > Duration::ZERO {
        let mut command = Command::new(engine);
        command.arg(&corpus).arg(workspace::root().join(PACKAGE).join("seeds").join(name));
        command.env("FUZZ_TARGET", name).arg(format!("-max_total_time={}", left(began).as_secs().max(1)));
        command.args([
            format!("-max_len={BYTES_MAX}"),
            format!("-timeout={SECONDS_MAX}"),
            "-print_final_stats=1".to_owned(),
        ]);
        command.arg(format!("-artifact_prefix={}/", found.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start `{}`", run::shown(&command)))?;
        let said = child.stderr.take().context("its standard error is piped")?;
        for line in BufReader::new(said).lines() {
            of.take(&line.context("read what libFuzzer says")?);
        }
        let status = child.wait().context("wait for libFuzzer")?;
        ensure!(status.success() || of.executions > 0, "libFuzzer ended with {status} and has run nothing");
        let is_more = names_in(&found)?.len() > before;
        if is_more {
            break;
        }
    }
    of.seconds = began.elapsed().as_secs_f64();
    (of.corpus, of.found) = (names_in(&corpus)?.len(), names_in(&found)?.len());
    Ok(of)
}

impl Figures {
    /// Updates the statistics from a line of libFuzzer's output, and prints crash lines.
    fn take(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions += count.trim().parse::<u64>().unwrap_or(0);
        }
        if let Some((_, rest)) = line.split_once(" cov: ") {
            let edges = rest.split_whitespace().next().and_then(|count| count.parse().ok());
            self.edges = self.edges.max(edges.unwrap_or(0));
        }
        let is_news = line.starts_with("==") || line.contains("panicked at") || line.starts_with("SUMMARY");
        if is_news {
            eprintln!("    {line}");
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err("it is a number of s, m or h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "it is a number of s, m or h".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_what_libfuzzer_says() {
        let mut of = Figures::default();
        for line in [
            "#2\tINITED cov: 97 ft: 98 corp: 1/1b exec/s: 0 rss: 30Mb",
            "#4096\tpulse  cov: 340 ft: 900 corp: 40/2Kb lim: 43 exec/s: 2048 rss: 40Mb",
            "stat::number_of_executed_units: 81920",
            "stat::average_exec_per_sec:     2048",
        ] {
            of.take(line);
        }
        assert_eq!((of.executions, of.edges), (81_920, 340));
    }

    #[test]
    fn times_are_read() {
        assert_eq!(["90", "90s", "10m", "2h"].map(|text| duration(text).unwrap().as_secs()), [90, 90, 600, 7_200]);
        assert!(["", "m", "3d", "-1s"].iter().all(|text| duration(text).is_err()));
    }

    #[test]
    fn each_target_has_seeds() {
        let targets = targets().unwrap();
        assert!(targets.len() >= 10, "{targets:?}");
    }
}
