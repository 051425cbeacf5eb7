//! `ratelimitd replay`: its flags, and what is printed of it.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::limiter::{Limiter, help, suggested};
use super::run::{print_json, print_words, warn};
use super::{Global, OutputFormat};
use crate::error::{Diagnostic, Diagnostics, Exit, Place};
use ratelimit_policy::desired::Policy;
use ratelimit_report::replay::{self, Asked, Clock, InputError, Ports, Present};

/// What is replayed, and what it is held to.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// Captures (pcap, pcapng) or access logs, also packed by gzip; several are merged by time; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required = true)]
    files: Vec<PathBuf>,
    /// What they are held to.
    #[command(flatten)]
    held: Held,
}

/// The limits that files are held to.
#[derive(Clone, Debug, Args)]
pub(super) struct Held {
    /// `rule.limits`
    #[arg(long = "limit", value_name = "N/DUR", requires = "files", help = help("--limit"))]
    limits: Vec<String>,
    /// `rule.count`
    #[arg(long, value_name = "UNIT", requires = "files", help = help("--count"), value_parser = suggested("--count"))]
    count: Option<String>,
    /// Ports to protect: 80,443, 8000-8100, 53/udp, all; not of a log [default: 80,443]
    #[arg(long = "port", value_name = "LIST", requires = "files")]
    ports: Option<String>,
    /// `rule.window`
    #[arg(long, value_name = "FORM", requires = "files", help = help("--window"), value_parser = suggested("--window"))]
    window: Option<String>,
    /// `ipv4_prefix`
    #[arg(long, value_name = "BITS", requires = "files", help = help("--ipv4-prefix"))]
    ipv4_prefix: Option<String>,
    /// `ipv6_prefix`
    #[arg(long, value_name = "BITS", requires = "files", help = help("--ipv6-prefix"))]
    ipv6_prefix: Option<String>,
}

impl Held {
    fn policy(self) -> Result<(Policy, Ports), Diagnostics> {
        let Self { limits, count, ports, window, ipv4_prefix, ipv6_prefix } = self;
        let said = if ports.is_some() { Ports::Said } else { Ports::Default };
        let flags = Limiter { limits, count, ports, window, ipv4_prefix, ipv6_prefix, ..Limiter::default() };
        Ok((flags.settings().policy()?, said))
    }
}

/// What files are proposed limits by, where no daemon is asked.
#[derive(Clone, Debug, Args)]
pub struct FromArgs {
    /// Observe what captures or access logs have, as `replay` reads them, and ask no daemon; - is standard input
    #[arg(long = "from", value_name = "FILE", value_hint = ValueHint::FilePath, num_args = 1..)]
    files: Vec<PathBuf>,
    /// With --from: which limits hold now; without, what is wanted in 5m
    #[command(flatten)]
    held: Held,
}

impl FromArgs {
    /// Whether files are to be observed.
    pub(super) fn is_said(&self) -> bool {
        !self.files.is_empty()
    }
}

/// Replays files and prints what their limits would have made of them.
pub(super) fn replay(asked: ReplayArgs, global: &Global) -> anyhow::Result<Exit> {
    let (policy, ports) = asked.held.policy()?;
    let report = replay::read(&asked.files, &Asked { policy: &policy, ports, clock: clock() }).map_err(diagnosed)?;
    match global.format() {
        OutputFormat::Human => {
            warn(&report.warnings, global);
            print_words(&ratelimit_view::replay(&report))
        }
        OutputFormat::Json => print_json(&report),
    }
}

/// Prints what limits are proposed by files.
pub(super) fn suggest(asked: FromArgs, global: &Global) -> anyhow::Result<Exit> {
    let FromArgs { files, mut held } = asked;
    let present = if held.limits.is_empty() { Present::Assumed } else { Present::Said };
    if present == Present::Assumed {
        let limit = if held.count.as_deref() == Some("bytes") { BYTES_ASSUMED } else { LIMIT_ASSUMED };
        held.limits.push(limit.to_owned());
    }
    let (policy, ports) = held.policy()?;
    let of = replay::suggest(&files, &Asked { policy: &policy, ports, clock: clock() }, present).map_err(diagnosed)?;
    match global.format() {
        OutputFormat::Human => {
            warn(&of.warnings, global);
            print_words(&ratelimit_view::suggest_from(&of))
        }
        OutputFormat::Json => print_json(&of),
    }
}

/// What is observed where no limit is said: in five minutes, so much or more.
const LIMIT_ASSUMED: &str = "1000/5m";
const BYTES_ASSUMED: &str = "100MB/5m";

/// Logs say neither their zone nor their year where they are on the machine that they are about.
fn clock() -> Clock {
    Clock { zone: TimeZone::system(), now: Timestamp::now() }
}

/// A file that cannot be replayed is a mistake on the command line; one that fails while it is read is none.
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
