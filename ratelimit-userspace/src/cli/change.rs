//! The commands that change what a running daemon enforces, and say what came of it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ratelimit_common::time::SECOND_NS;

use super::run::{parse_source, print_json, print_words};
use super::{GrantArgs, Insistence, OutputFormat};
use crate::error::{Diagnostic, Exit, Place};
use ratelimit_control::client::Client;
use ratelimit_control::proto::{ApplyRequest, GrantRequest, ModeWord};
use ratelimit_policy::config::duration;
use ratelimit_policy::config::network::Target;
use ratelimit_policy::config::syntax::SyntaxError;
use ratelimit_policy::desired::{Grant, Sent};
use ratelimit_policy::safety;

/// What stands for no end.
const FOREVER: &str = "forever";

/// An address or a prefix, as it was written: what a source is, the daemon knows.
pub(super) fn parse_prefix(text: &str) -> anyhow::Result<String> {
    parse_target("CIDR", text)?;
    Ok(text.to_owned())
}

/// An address or a prefix.
pub(super) fn parse_target(argument: &'static str, text: &str) -> anyhow::Result<Target> {
    Target::parse(text).map_err(|error| wrong(argument, text, error))
}

/// Who is let through or kept out.
pub(super) fn parse_grant(args: &GrantArgs) -> anyhow::Result<GrantRequest> {
    let prefix = parse_prefix(&args.prefix)?;
    let timed = args.duration.as_deref().filter(|text| *text != FOREVER);
    Ok(GrantRequest {
        prefix,
        seconds: timed.map(|text| parse_seconds("--for", text)).transpose()?,
        forever: args.duration.is_some() && timed.is_none(),
        reason: args.reason.clone(),
        force: args.force,
        ssh_peer: safety::ssh_session_of_this_process().map(|session| session.peer),
    })
}

/// A packet from one address to a port.
pub(super) fn parse_sent(source: &str, to: &str, to_address: Option<&str>) -> anyhow::Result<Sent> {
    let source = parse_source("explain", source)?;
    let to_address = to_address.map(|text| parse_source("--to-address", text)).transpose()?;
    Sent::to_port(source, to_address, to).ok_or_else(|| {
        let error = SyntaxError::new(0..to.len(), format!("`{to}` is not a port"));
        wrong("--to", to, error.with_help("write a number from 0 to 65535, as in 443, 443/tcp or 53/udp"))
    })
}

/// A file to put in force.
pub(super) fn parse_apply(
    file: Option<PathBuf>,
    confirm: Option<&str>,
    insistence: Insistence,
) -> anyhow::Result<ApplyRequest> {
    let absolute = |file: PathBuf| std::path::absolute(&file).with_context(|| format!("find {}", file.display()));
    Ok(ApplyRequest {
        file: file.map(absolute).transpose()?,
        confirm_seconds: confirm.map(|text| parse_seconds("--confirm", text)).transpose()?,
        ssh: safety::ssh_session_of_this_process(),
        force: insistence.force,
    })
}

/// A time of whole seconds, at least one.
fn parse_seconds(flag: &'static str, text: &str) -> anyhow::Result<u64> {
    let duration_ns = duration::parse(text).map_err(|error| wrong(flag, text, error))?;
    if duration_ns < SECOND_NS {
        let error = SyntaxError::new(0..text.len(), "the time is too short").with_help("one second is the least");
        return Err(wrong(flag, text, error));
    }
    Ok(duration_ns.div_ceil(SECOND_NS))
}

fn wrong(flag: &'static str, text: &str, error: SyntaxError) -> anyhow::Error {
    let place = Place::Flag { flag, text: text.to_owned(), span: error.span };
    let help = error.help.into_iter().collect();
    Diagnostic { problem: format!("bad value for {flag}: {}", error.problem), place, help }.into()
}

/// Lets a prefix through, or keeps it out.
pub(super) async fn grant(
    socket: &Path,
    grant: Grant,
    request: GrantRequest,
    format: OutputFormat,
) -> anyhow::Result<Exit> {
    let report = Client::new(socket).grant(grant, &request).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::granted(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Takes off a denial, and the bans within it.
pub(super) async fn unblock(socket: &Path, prefix: &str, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).unblock(prefix).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::unblocked(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Forgets what a source has used.
pub(super) async fn reset(socket: &Path, source: IpAddr, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).reset(source).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::reset(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Says whether anything is dropped.
pub(super) async fn mode(socket: &Path, word: ModeWord, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).mode(word).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::mode(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Puts a file in force.
pub(super) async fn apply(socket: &Path, request: ApplyRequest, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).apply(&request).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::applied(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Keeps what was put in force for a while.
pub(super) async fn confirm(socket: &Path, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).confirm().await?;
    match format {
        OutputFormat::Human => print_words(&format!("confirmed: {} holds for good\n", report.file.display())),
        OutputFormat::Json => print_json(&report),
    }
}
