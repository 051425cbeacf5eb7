//! `cargo xtask bench`: what the program costs a packet, above what an empty program costs.
//!
//! integration-test/src/bin/cost.rs measures; this builds it, runs it as root and shows what it says.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use crate::{cargo, run, setup, workspace};

/// What a packet of a source over its limit may cost above the empty program, where the rule has one limit.
const OVER_LIMIT_NS_MAX: i64 = 100;
const REPORT: &str = "docs/PERFORMANCE.md";

#[derive(Args)]
pub(crate) struct Options {
    /// Fail where refusing a packet by a rule's one limit costs more than 100 ns above the empty program
    #[arg(long)]
    check: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write the table to docs/PERFORMANCE.md
    #[arg(long)]
    write: bool,
    /// How often every row has its turn
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Packets in each turn
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
}

/// What integration-test/src/bin/cost.rs prints.
#[derive(Deserialize)]
struct Report {
    kernel: String,
    processor: String,
    rounds: u32,
    repeat: u32,
    verified_instructions: u32,
    translated_bytes: u32,
    bare_ns: Spread,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    verdict: String,
    /// How many limits the rule has.
    limits: usize,
    ns: Spread,
    above_bare_ns: Spread,
}

#[derive(Deserialize)]
struct Spread {
    median: i64,
    min: i64,
    max: i64,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::ensure(setup::Tier::Build)?;
    let artifacts = cargo::build(&["--release", "--package", "integration-test", "--bin", "cost"])?;
    let program = cargo::binary(&artifacts, "cost")?.executable.to_string_lossy().into_owned();
    let mut command = run::as_root(&program, &[&options.rounds.to_string(), &options.repeat.to_string()])
        .context("the benchmark needs root, and there is no sudo")?;
    let text = output_of(&mut command)?;
    let report: Report = serde_json::from_str(&text).context("read what the benchmark printed")?;
    if options.json {
        print!("{text}");
    } else {
        print!("{}", table(&report));
    }
    if options.write {
        let file = workspace::root().join(REPORT);
        fs::create_dir_all(workspace::root().join("docs")).context("make docs")?;
        fs::write(&file, document(&report)).with_context(|| format!("write {}", file.display()))?;
    }
    let slow: Vec<_> = report.rows.iter().filter(|row| row.is_too_slow()).collect();
    for row in &slow {
        eprintln!(
            "{}: {} ns above the empty program, more than {OVER_LIMIT_NS_MAX}",
            row.name, row.above_bare_ns.median
        );
    }
    Ok(if options.check && !slow.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Row {
    fn is_too_slow(&self) -> bool {
        self.limits == 1 && self.verdict == "over_limit" && self.above_bare_ns.median > OVER_LIMIT_NS_MAX
    }
}

/// Its stdout; its progress goes where this one's does.
fn output_of(command: &mut Command) -> Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{}`", run::shown(command)))?;
    ensure!(output.status.success(), "`{}` failed ({})", run::shown(command), output.status);
    String::from_utf8(output.stdout).context("the benchmark printed no text")
}

fn table(report: &Report) -> String {
    let mut text = format!("{:<44} {:<14} {:>6} {:>12} {:>16}\n", "packet", "verdict", "ns", "above bare", "min..max");
    let bare = &report.bare_ns;
    let spread = format!("{}..{}", bare.min, bare.max);
    writeln!(text, "{:<44} {:<14} {:>6} {:>12} {spread:>16}", "the empty program", "", bare.median, "").ok();
    for Row { name, verdict, ns, above_bare_ns: above, .. } in &report.rows {
        let spread = format!("{}..{}", above.min, above.max);
        writeln!(text, "{name:<44} {verdict:<14} {:>6} {:>12} {spread:>16}", ns.median, above.median).ok();
    }
    writeln!(
        text,
        "\n{} rounds of {} packets; {} instructions verified, {} bytes translated\n{}, Linux {}",
        report.rounds,
        report.repeat,
        report.verified_instructions,
        report.translated_bytes,
        report.processor,
        report.kernel
    )
    .ok();
    text
}

fn document(report: &Report) -> String {
    format!(
        "# Performance\n\n\
         What the program costs a packet, in nanoseconds. Written by `cargo xtask bench --write`; `--check` fails where\n\
         refusing a packet by a rule's one limit costs more than {OVER_LIMIT_NS_MAX} ns above the empty program. Each\n\
         further limit is a further look-up: its row is there to be seen, and has no bound yet.\n\n\
         ```text\n{}```\n\n\
         `BPF_PROG_TEST_RUN` runs the program on one frame again and again, at the kernel's own clock. In each round every row\n\
         is timed between two runs of an empty program (`XDP_DROP` at once) on the same frame; \"above bare\" is the median over\n\
         the rounds of the difference, with its extremes. The verdict of each frame is checked before and after. A source over\n\
         its limit is one the program already knows; the windows are one hour in six buckets.\n\n\
         What this does not show: the frame, the source's window and the program are always in the nearest cache, so\n\
         many sources cost more; there is no driver and no other CPU; sources that are new have no row, as one frame is one\n\
         source. The kernel reports whole nanoseconds. The machine is a virtual one that others use at the same time,\n\
         so the extremes are theirs.\n",
        table(report)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(verdict: &str, median: i64) -> Row {
        let limits = 1;
        let spread = |median| Spread { median, min: median - 1, max: median + 1 };
        Row {
            name: "a row".into(),
            verdict: verdict.into(),
            limits,
            ns: spread(median + 30),
            above_bare_ns: spread(median),
        }
    }

    #[test]
    fn only_refusing_has_a_limit() {
        assert!(!row("over_limit", OVER_LIMIT_NS_MAX).is_too_slow());
        assert!(row("over_limit", OVER_LIMIT_NS_MAX + 1).is_too_slow());
        assert!(!row("within_limit", OVER_LIMIT_NS_MAX + 1).is_too_slow());
        assert!(!Row { limits: 2, ..row("over_limit", OVER_LIMIT_NS_MAX + 1) }.is_too_slow());
    }
}
