//! `cargo xtask demo`: a web server with a good and a bad client, without and with the limiter, then a crawler with
//! many addresses.
//!
//! Everything runs in temporary network namespaces. No interface of the machine is touched. The build runs as the user;
//! only the part in the namespaces runs as root. At the end the demo checks its own promises, and fails if one does not
//! hold.

mod build;
mod client;
mod lab;
mod leftovers;
mod limiter;
mod phase;
mod promises;
mod table;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::{interrupt, run, workspace};
use lab::Lab;
use phase::Phase;

#[derive(Args)]
pub(crate) struct Options {
    /// How long each of the four phases takes, in seconds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(2..=20))]
    seconds: u32,
    /// Write the tables to docs/demo.txt, which the README quotes
    #[arg(long)]
    write: bool,
    /// Run the part that needs root, with this binary; the demo starts it through sudo
    #[arg(long, value_name = "PATH", hide = true)]
    binary: Option<PathBuf>,
    /// What serves
    #[arg(long, value_enum, hide = true, default_value_t = Server::Nginx)]
    server: Server,
}

/// Web server that the clients send requests to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Server {
    Nginx,
    /// The laboratory's, where nginx cannot be had.
    Own,
}

/// Tables of the run that documents quote.
const TABLES: &str = "docs/demo.txt";
/// Limit in requests per minute. A phase is shorter than the window, so exactly this many requests are admitted.
const LIMIT: u64 = 100;
const LIMIT_TEXT: &str = "100/1m";
/// Limit per group. One such prefix contains all of the crawler's addresses.
const GROUP_LIMIT_TEXT: &str = "100/1m per /21,/48";

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    interrupt::watch()?;
    if let Some(binary) = &options.binary {
        return show(binary, options);
    }
    let build::Prepared { binary, server } = build::prepare()?;
    let options = Options { server, binary: Some(binary.clone()), ..*options };
    if workspace::is_root() { show(&binary, &options) } else { show_as_root(&binary, &options) }
}

/// Runs this program again through sudo.
fn show_as_root(binary: &Path, options: &Options) -> Result<ExitCode> {
    let this = env::current_exe().context("find this very program")?;
    let server = options.server.to_possible_value().context("a server has a name")?;
    let mut arguments = vec!["demo".to_owned(), "--binary".to_owned(), binary.display().to_string()];
    arguments.extend(["--server".to_owned(), server.get_name().to_owned()]);
    arguments.extend(["--seconds".to_owned(), options.seconds.to_string()]);
    arguments.extend(options.write.then(|| "--write".to_owned()));
    let by_hand = format!("as root: {} {}", this.display(), arguments.join(" "));
    let sudo = workspace::program("sudo")
        .with_context(|| format!("network namespaces need root, and there is no sudo; {by_hand}"))?;
    eprintln!(
        "demo: network namespaces need root: sudo is about to start this part again; it may ask for your password"
    );
    let mut command = Command::new(sudo);
    // Ctrl-C reaches both processes; this one waits until the other has cleaned up.
    let status = command.arg(this).args(arguments).status();
    let status = status.with_context(|| format!("start `{}`", run::shown(&command)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(binary: &Path, options: &Options) -> Result<ExitCode> {
    ensure!(workspace::is_root(), "network namespaces need root");
    for swept in netlab::sweep()? {
        eprintln!("demo: removed leftovers of an earlier run: {swept}");
    }
    let before = leftovers::Before::look();
    let lab = Lab::build(options.server)?;
    introduce(&lab, options.seconds);
    let mut phases = Vec::new();
    for phase in Phase::ALL {
        // A failing phase drops the laboratory on return, which removes everything.
        phases.push(phase::run(phase, &lab, binary, options.seconds)?);
    }
    let traces = lab.traces();
    drop(lab);
    let tables = table::of(&phases);
    print!("\n{tables}\n{}", table::NOTE);
    let limiters: Vec<u32> = phases.iter().filter_map(|measured| measured.limiter).collect();
    let promises = promises::of(&phases, &before.left(&traces, &limiters)?);
    println!();
    for promise in &promises {
        println!("{promise}");
    }
    if !promises.iter().all(|promise| promise.holds) {
        return Ok(ExitCode::FAILURE);
    }
    if options.write {
        fs::write(workspace::root().join(TABLES), tables).with_context(|| format!("write {TABLES}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn introduce(lab: &Lab, seconds: u32) {
    println!(
        "A web server ({}) with two interfaces, a client on each, all in network namespaces of their own.\n\
         good  {}  {} requests a second, each on a connection of its own\n\
         bad   {}  as many as {} threads can send\n\
         The limit is {LIMIT} requests a minute for each source: ratelimitd --iface {} --iface {} --limit {LIMIT_TEXT}\n\
         Four phases of {seconds} seconds each. In the last, a crawler asks once from each of {} addresses in {}, and\n\
         a second limit holds: --limit \"{GROUP_LIMIT_TEXT}\"",
        lab.server_name(),
        lab::GOOD.client,
        client::GOOD_PER_SECOND,
        lab::BAD.client,
        client::BAD_THREADS,
        lab::GOOD.interface,
        lab::BAD.interface,
        client::CRAWLER_ADDRESSES,
        lab::CRAWLER,
    );
}
