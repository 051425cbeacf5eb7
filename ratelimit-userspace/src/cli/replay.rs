//! `ratelimitd replay`: its flags and its output.

use std::path::PathBuf;

use clap::{ArgMatches, Args, FromArgMatches, ValueHint};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::ask::screen;
use super::limiter::{Limiter, arguments};
use super::run::{print_json, print_words, warn};
use super::{Global, OutputFormat};
use crate::error::{Diagnostic, Diagnostics, Exit, Place};
use ratelimit_policy::config::file;
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::Policy;
use ratelimit_report::replay::{self, Asked, Clock, InputError, Ports, Present};

/// Files to replay, and the limits to apply.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// Captures (pcap, pcapng) or access logs, also packed by gzip; several are merged by time; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required = true)]
    files: Vec<PathBuf>,
    /// Show how much of the refused traffic comes from this list file; repeatable
    #[arg(long = "list", value_name = "LIST", value_hint = ValueHint::FilePath)]
    lists: Vec<PathBuf>,
    /// What they are held to.
    #[command(flatten)]
    held: Held,
}

/// Flags of the limits that are applied to files.
const HELD: [&str; 6] = ["--limit", "--count", "--port", "--window", "--ipv4-prefix", "--ipv6-prefix"];

/// Limits that are applied to files.
#[derive(Clone, Debug)]
pub(super) struct Held(Limiter);

impl Args for Held {
    fn augment_args(command: clap::Command) -> clap::Command {
        let of_port = "Ports to protect: 80,443, 8000-8100, 53/udp, all; not for a log [default: 80,443]";
        command.args(arguments(&HELD).map(|of| of.requires("files"))).mut_arg("--port", |port| port.help(of_port))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Held {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(Limiter::of(HELD, matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Held {
    fn policy(self) -> Result<(Policy, Ports), Diagnostics> {
        let said = if self.0.text("--port").is_some() { Ports::Said } else { Ports::Default };
        Ok((self.0.settings().policy()?, said))
    }
}

/// Files to derive limits from without a daemon.
#[derive(Clone, Debug, Args)]
pub struct FromArgs {
    /// Read captures or access logs, as `replay` does, instead of asking the daemon; - is standard input
    #[arg(long = "from", value_name = "FILE", value_hint = ValueHint::FilePath, num_args = 1..)]
    files: Vec<PathBuf>,
    /// With --from: show how many sources over the proposed limits are in this list file; repeatable
    #[arg(long = "list", value_name = "LIST", value_hint = ValueHint::FilePath, requires = "files")]
    lists: Vec<PathBuf>,
    /// With --from: which limits hold now; without, what is wanted in 5m
    #[command(flatten)]
    held: Held,
}

impl FromArgs {
    /// Returns true if files are given.
    pub(super) fn is_said(&self) -> bool {
        !self.files.is_empty()
    }
}

/// Replays files and prints what the given limits would have done.
pub(super) fn replay(asked: ReplayArgs, global: &Global) -> anyhow::Result<Exit> {
    let (policy, ports) = asked.held.policy()?;
    let lists = loaded(asked.lists)?;
    let with = Asked { policy: &policy, ports, clock: clock(), lists: &lists };
    let report = replay::read(&asked.files, &with).map_err(diagnosed)?;
    match global.format() {
        OutputFormat::Human => {
            warn(&report.warnings, global);
            print_words(&ratelimit_view::replay(&report))
        }
        OutputFormat::Json => print_json(&report),
    }
}

/// Prints the limits that files suggest.
pub(super) fn suggest(asked: FromArgs, global: &Global) -> anyhow::Result<Exit> {
    let FromArgs { files, lists, held: Held(held) } = asked;
    let (held, present) = match (held.text("--limit"), held.text("--count")) {
        (Some(_), _) => (held, Present::Said),
        (None, Some("bytes")) => (held.with("--limit", BYTES_ASSUMED), Present::Assumed),
        (None, Some(_) | None) => (held.with("--limit", LIMIT_ASSUMED), Present::Assumed),
    };
    let (policy, ports) = Held(held).policy()?;
    let lists = loaded(lists)?;
    let with = Asked { policy: &policy, ports, clock: clock(), lists: &lists };
    let of = replay::suggest(&files, &with, present).map_err(diagnosed)?;
    match global.format() {
        OutputFormat::Human => {
            warn(&of.warnings, global);
            print_words(&ratelimit_view::suggest_from(&of, screen().width))
        }
        OutputFormat::Json => print_json(&of),
    }
}

/// Loads the list files at these paths.
fn loaded(paths: Vec<PathBuf>) -> Result<Vec<ListFile>, Diagnostics> {
    let load = |path: PathBuf| {
        let prefixes = file::load_list(&path)?.into();
        Ok(ListFile { named_by: path.display().to_string(), path, prefixes })
    };
    paths.into_iter().map(load).collect()
}

/// Assumed limits if none is given: only sources with at least this much in five minutes are observed.
const LIMIT_ASSUMED: &str = "1000/5m";
const BYTES_ASSUMED: &str = "100MB/5m";

/// Returns the local time zone and the present time, for logs that state neither zone nor year.
fn clock() -> Clock {
    Clock { zone: TimeZone::system(), now: Timestamp::now() }
}

/// Returns the error for a file. One that cannot be replayed is a mistake on the command line; a failure during reading
/// is not.
fn diagnosed(error: InputError) -> anyhow::Error {
    let (problem, help) = match error {
        InputError::Read { .. } => return error.into(),
        InputError::Open { ref source, .. } => {
            (format!("{error}: {source}"), "name a capture or an access log, or - for standard input".to_owned())
        }
        InputError::Unusable { ref help, .. } => (error.to_string(), help.clone()),
    };
    Diagnostic { problem, place: Place::CommandLine, help: vec![help] }.into()
}
