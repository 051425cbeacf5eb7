//! `cargo xtask accuracy`: compares the requests that the limiter counts with the logs of real servers.
//!
//! Servers, clients and the limiter run in temporary network namespaces. No interface of the machine is touched. The
//! build runs as the user; only the measurement in the namespaces runs as root. A row that breaks its bound fails the
//! command.

mod enforce;
mod lab;
mod limiter;
mod measure;
mod programs;
mod report;
mod rows;
mod servers;

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use netlab::Forwarded;

use crate::{cargo, interrupt, run, setup, workspace};
use lab::{Family, Lab};
use measure::Measured;
use programs::Tools;
use report::Report;

use rows::{Link, Row, Server};

#[derive(Args)]
pub(crate) struct Options {
    /// Only rows that contain all of these words in their traffic, client, server, protocol or wire; with --adversary,
    /// only the worst clients that contain them
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    /// A few rows over IPv4, to see whether it works at all
    #[arg(long)]
    quick: bool,
    /// Only the measurements with the servers' access logs
    #[arg(long)]
    logs: bool,
    /// Only the worst clients of each protocol, without a log and with one
    #[arg(long, conflicts_with_all = ["logs", "quick"])]
    adversary: bool,
    /// Write the tables to docs/ACCURACY.md; with --logs, only its part about access logs
    #[arg(long, conflicts_with_all = ["words", "quick", "adversary"])]
    write: bool,
    /// Run the part that needs root, with this binary; used through sudo
    #[arg(long, value_name = "PATH", hide = true)]
    binary: Option<PathBuf>,
    /// Directory of the programs that it has built and installed for itself
    #[arg(long, value_name = "DIR", hide = true, requires = "binary")]
    tools: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    interrupt::watch()?;
    if let (Some(binary), Some(tools)) = (&options.binary, &options.tools) {
        let tools = Tools { limiter: binary.clone(), dir: tools.clone() };
        print!("{}", report::to_json(&measure_all(&tools, options)?)?);
        return Ok(ExitCode::SUCCESS);
    }
    setup::ensure(setup::Tier::Build)?;
    setup::ensure_accuracy_programs()?;
    eprintln!("accuracy: building the release binary");
    let artifacts = cargo::build(&["--release", "--package", "ratelimit-userspace", "--bin", "ratelimitd"])?;
    let tools = Tools::prepare(cargo::binary(&artifacts, "ratelimitd")?.executable.clone())?;
    let report = if workspace::is_root() { measure_all(&tools, options)? } else { measure_as_root(&tools, options)? };
    print!("\n{}", report.table());
    match (options.write, options.logs) {
        (true, false) => report.write()?,
        (true, true) => report.write_logs()?,
        (false, _) => {}
    }
    let broken = report.broken();
    for line in &broken {
        eprintln!("accuracy: broken: {line}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs this program again through sudo, and reads its measurements as JSON.
fn measure_as_root(tools: &Tools, options: &Options) -> Result<Report> {
    let sudo = workspace::program("sudo").context("network namespaces need root, and there is no sudo")?;
    eprintln!("accuracy: network namespaces need root: sudo is about to start this part; it may ask for your password");
    let mut command = Command::new(sudo);
    command.arg(env::current_exe().context("find this very program")?);
    command.arg("accuracy").arg("--binary").arg(&tools.limiter).arg("--tools").arg(&tools.dir);
    if options.quick {
        command.arg("--quick");
    }
    for (is_asked, flag) in [(options.logs, "--logs"), (options.adversary, "--adversary")] {
        if is_asked {
            command.arg(flag);
        }
    }
    command.arg("--").args(&options.words).stderr(std::process::Stdio::inherit());
    let output = command.output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    ensure!(output.status.success(), "`{}` failed ({})", run::shown(&command), output.status);
    report::from_json(&output.stdout)
}

fn measure_all(tools: &Tools, options: &Options) -> Result<Report> {
    ensure!(workspace::is_root(), "network namespaces need root");
    for swept in netlab::sweep()? {
        eprintln!("accuracy: removed leftovers of an earlier run: {swept}");
    }
    let rows: Vec<Row> = rows::all().into_iter().filter(|row| is_chosen(row, options)).collect();
    let (mut measured, mut failed) = (Vec::new(), Vec::new());
    for (link, has_log) in Link::ALL.into_iter().flat_map(|link| [(link, false), (link, true)]) {
        let rows: Vec<&Row> = rows.iter().filter(|row| (row.link, row.has_log) == (link, has_log)).collect();
        if !rows.is_empty() {
            measure_over(link, &rows, options, tools, (&mut measured, &mut failed))?;
        }
    }
    let mut enforced = Vec::new();
    let mut adversaries = Vec::new();
    if options.adversary {
        adversaries = enforce::adversaries(tools, |client| says(client, &options.words))?;
    } else if !options.quick && (options.words.is_empty() || is_enforcement(&options.words)) {
        if !options.logs {
            enforced.extend(enforce::from_packets(tools)?);
        }
        enforced.extend(enforce::with_logs(tools)?);
        adversaries = enforce::adversaries(tools, |_| true)?;
    }
    ensure!(
        !measured.is_empty() || !failed.is_empty() || !enforced.is_empty() || !adversaries.is_empty(),
        "no row says {}",
        options.words.join(" ")
    );
    let (programs, kernel) = (programs::versions(tools), programs::kernel()?);
    Ok(Report { programs, kernel, rows: measured, failed, enforced, adversaries })
}

/// Measures the rows of one link, in their own laboratory and with their own limiter. Reports rows that cannot be
/// measured, and continues with the next row.
fn measure_over(
    link: Link,
    rows: &[&Row],
    options: &Options,
    tools: &Tools,
    (measured, failed): (&mut Vec<Measured>, &mut Vec<String>),
) -> Result<()> {
    let asked: Vec<Server> =
        Server::ALL.into_iter().filter(|server| rows.iter().any(|row| row.server == *server)).collect();
    let lab = Lab::build(link, tools, &asked)?;
    let logs = if rows.iter().any(|row| row.has_log) { &asked[..] } else { &[] };
    let limiter = limiter::Limiter::start(&lab, tools, "1000000000/1h", logs)?;
    for row in rows {
        let families = row.families.iter().filter(|family| !options.quick || **family == Family::V4);
        for &family in families {
            interrupt::check()?;
            match measure::row(row, family, &lab, &limiter, tools) {
                Ok(result) => {
                    eprintln!("accuracy: {result}");
                    measured.push(result);
                }
                Err(error) => {
                    eprintln!("accuracy: not measured: {row}, {family}: {error:#}");
                    failed.push(format!("{row}, {family}: {error:#}"));
                }
            }
        }
    }
    if let Some(Forwarded { lost, held, carried }) = lab.forwarded() {
        eprintln!("accuracy: the wire lost {lost} frames, held {held} back, carried {carried}");
    }
    limiter.stop()
}

fn is_chosen(row: &Row, options: &Options) -> bool {
    if options.quick {
        return row.is_quick;
    }
    if options.adversary || options.logs && !row.has_log {
        return false;
    }
    says(&row.to_string(), &options.words)
}

/// Returns true if a text contains all of these words.
fn says(text: &str, words: &[String]) -> bool {
    let text = text.to_lowercase();
    words.iter().all(|word| text.contains(&word.to_lowercase()))
}

/// Returns true for `cargo xtask accuracy enforcement`, which measures only the enforcement table.
fn is_enforcement(words: &[String]) -> bool {
    words.iter().any(|word| word == "enforcement")
}
