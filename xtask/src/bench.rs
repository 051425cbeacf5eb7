//! `cargo xtask bench`: measures the cost per packet, compared with an empty program and with other limiters.
//!
//! integration-test does the measuring: `src/bin/cost.rs` measures the program alone, `src/bin/flood.rs` measures
//! floods in its own namespaces. This command builds and runs it as root, compares the results with the goals and
//! prints them. No interface of the machine is touched.

mod budget;
mod goals;
mod measured;
mod plot;
mod receivers;
mod report;

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;

use crate::{cargo, run, setup};
use measured::{ProgramCost, Report};
use receivers::Receiver;

#[derive(Args)]
pub(crate) struct Options {
    /// Only the flood rows whose name or id contains one of these words, and nothing else
    #[arg(value_name = "WORD", conflicts_with_all = ["part", "write"])]
    words: Vec<String>,
    /// What to measure; repeatable [default: all but growth; with --write, everything]
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<Section>,
    /// Measure growth too: sources, rules, exempt prefixes, a second CPU
    #[arg(long)]
    growth: bool,
    /// Fail if a median misses its goal; a row is measured again, at most twice, if its floor varied by more than a
    /// fifth between rounds
    #[arg(long)]
    check: bool,
    /// Measure this program too in the floods: sh runs COMMAND in the receiver's network namespace, {iface} and $IFACE
    /// name its interface; it is ready once an XDP program is attached there, it says `ready` on stderr, or it has
    /// ended successfully
    #[arg(long, value_name = "NAME='COMMAND'", conflicts_with_all = ["write", "write_budget", "render"])]
    receiver: Vec<Receiver>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Write docs/PERFORMANCE.md, its plots, and docs/performance.json
    #[arg(long, conflicts_with = "part")]
    write: bool,
    /// Measure nothing: record how large the program is now, with room to grow, in integration-test/budget.toml
    #[arg(long, conflicts_with_all = ["words", "part", "growth", "check", "json", "write"])]
    write_budget: bool,
    /// Measure nothing: write docs/PERFORMANCE.md and its plots again from docs/performance.json
    #[arg(long, conflicts_with_all = ["words", "part", "growth", "json", "write", "write_budget"])]
    render: bool,
    /// Number of rounds of every row, from which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Packets in each turn of the program alone
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
}

/// Maximum number of repeated measurements of a row with an unsteady floor, when goals are checked.
const AGAIN_MAX: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// The program alone, run on one frame again and again
    Program,
    /// Floods between namespaces, beside other limiters
    Floods,
    /// Requests a second that a whole server answers
    Servers,
    /// How the cost grows
    Growth,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.render {
        let report = report::read()?;
        report::write(&report)?;
        return Ok(held(&report, options));
    }
    setup::ensure(setup::Tier::Build)?;
    let bins = ["--bin", "cost", "--bin", "flood"];
    let artifacts = cargo::build(&[&["--release", "--package", "integration-test"], bins.as_slice()].concat())?;
    let [cost, flood] = ["cost", "flood"]
        .map(|name| cargo::binary(&artifacts, name).map(|artifact| artifact.executable.to_string_lossy().into_owned()));
    let (cost, flood) = (cost?, flood?);
    if options.write_budget {
        let measured: ProgramCost = output_of(&cost, &["1", "1", "0"])?;
        budget::write(&measured)?;
        return Ok(ExitCode::SUCCESS);
    }
    let parts = options.parts();
    if parts != [Section::Program] {
        setup::ensure_bench_programs()?;
    }
    receivers::ensure_distinct(&options.receiver)?;
    let again = if options.check || options.write { AGAIN_MAX } else { 0 };
    let [rounds, repeat, again] = [options.rounds, options.repeat, again].map(|number| number.to_string());
    let mut report = Report::default();
    for part in parts {
        match part {
            Section::Program => report.program = Some(output_of(&cost, &[&rounds, &repeat, &again])?),
            Section::Floods => {
                let words = options.words.iter().map(String::as_str);
                let first = [rounds.as_str(), "--again", &again].into_iter();
                let others = receivers::arguments(&options.receiver);
                let arguments: Vec<&str> = first.chain(others).chain(["rows"]).chain(words).collect();
                report.floods = Some(output_of(&flood, &arguments)?);
            }
            Section::Servers => report.servers = Some(output_of(&flood, &[&rounds, "--again", &again, "servers"])?),
            Section::Growth => report.growth = Some(output_of(&flood, &[&rounds, "growth"])?),
        }
    }
    if options.json {
        println!("{}", report.to_json()?);
    } else {
        print!("{}", report::tables(&report));
    }
    if options.write {
        report::write(&report)?;
    }
    Ok(held(&report, options))
}

/// Prints the missed goals. Returns failure if goals are checked and any is missed.
fn held(report: &Report, options: &Options) -> ExitCode {
    let missed = goals::missed(report);
    for line in &missed {
        eprintln!("bench: missed: {line}");
    }
    if options.check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Options {
    fn parts(&self) -> Vec<Section> {
        let mut parts = match (self.write, self.words.is_empty(), self.part.is_empty()) {
            (true, ..) => vec![Section::Program, Section::Floods, Section::Servers, Section::Growth],
            (false, false, _) => vec![Section::Floods],
            (false, true, true) => vec![Section::Program, Section::Floods, Section::Servers],
            (false, true, false) => self.part.clone(),
        };
        if self.growth && !parts.contains(&Section::Growth) {
            parts.push(Section::Growth);
        }
        parts
    }
}

/// Runs a program as root and parses its stdout as JSON. Its progress output goes to stderr.
fn output_of<T: DeserializeOwned>(program: &str, arguments: &[&str]) -> Result<T> {
    let mut command: Command =
        run::as_root(program, arguments).context("the benchmark needs root, and there is no sudo")?;
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    ensure!(output.status.success(), "`{}` failed ({})", run::shown(&command), output.status);
    serde_json::from_slice(&output.stdout).context("read what the benchmark printed")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parts(arguments: &[&str]) -> Vec<&'static str> {
        let cli = Cli::try_parse_from([&["bench"], arguments].concat()).unwrap();
        let name = |part| match part {
            Section::Program => "program",
            Section::Floods => "floods",
            Section::Servers => "servers",
            Section::Growth => "growth",
        };
        cli.options.parts().into_iter().map(name).collect()
    }

    #[test]
    fn other_receivers_are_given_by_name_and_never_written_to_the_document() {
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["bench"], arguments].concat());
        let cli = parse(&["--receiver", "one=./one", "--receiver", "two=./two {iface}"]).ok().unwrap();
        assert_eq!(cli.options.receiver.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(parse(&["--receiver", "one"]).is_err());
        assert!(parse(&["--receiver", "one=./one", "--write"]).is_err());
    }

    #[test]
    fn the_parts_measured_are_those_asked_for() {
        assert_eq!(parts(&[]), ["program", "floods", "servers"]);
        assert_eq!(parts(&["--growth"]), ["program", "floods", "servers", "growth"]);
        assert_eq!(parts(&["forged"]), ["floods"]);
        assert_eq!(parts(&["--part", "growth"]), ["growth"]);
        assert_eq!(parts(&["--write"]), ["program", "floods", "servers", "growth"]);
    }
}
