//! `ratelimitd replay`: its flags, and what is printed of it.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::limiter::{Limiter, help, suggested};
use super::run::{print_json, print_words, warn};
use super::{Global, OutputFormat};
use crate::error::{Diagnostic, Exit, Place};
use ratelimit_report::replay::{self, InputError, Ports};

/// What is replayed, and what it is held to.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// A capture (pcap, pcapng), or an access log in the common or combined format; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// `rule.limits`
    #[arg(long = "limit", value_name = "N/DUR", help = help("--limit"))]
    limits: Vec<String>,
    /// `rule.count`
    #[arg(long, value_name = "UNIT", help = help("--count"), value_parser = suggested("--count"))]
    count: Option<String>,
    /// Ports to protect: 80,443, 8000-8100, 53/udp, all; not of a log [default: 80,443]
    #[arg(long = "port", value_name = "LIST")]
    ports: Option<String>,
    /// `rule.window`
    #[arg(long, value_name = "FORM", help = help("--window"), value_parser = suggested("--window"))]
    window: Option<String>,
    /// `ipv4_prefix`
    #[arg(long, value_name = "BITS", help = help("--ipv4-prefix"))]
    ipv4_prefix: Option<String>,
    /// `ipv6_prefix`
    #[arg(long, value_name = "BITS", help = help("--ipv6-prefix"))]
    ipv6_prefix: Option<String>,
}

/// Replays a file and prints what its limits would have made of it.
pub(super) fn replay(asked: ReplayArgs, global: &Global) -> anyhow::Result<Exit> {
    let ReplayArgs { file, limits, count, ports, window, ipv4_prefix, ipv6_prefix } = asked;
    let said = if ports.is_some() { Ports::Said } else { Ports::Default };
    let flags = Limiter { limits, count, ports, window, ipv4_prefix, ipv6_prefix, ..Limiter::default() };
    let policy = flags.settings().policy()?;
    let report = replay::read(&file, &policy, said).map_err(diagnosed)?;
    match global.format() {
        OutputFormat::Human => {
            warn(&report.warnings, global);
            print_words(&ratelimit_view::replay(&report))
        }
        OutputFormat::Json => print_json(&report),
    }
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
