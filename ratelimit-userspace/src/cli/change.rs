//! Parses the arguments of commands that change something.

use std::path::PathBuf;

use anyhow::Context as _;
use ratelimit_common::time::SECOND_NS;

use super::run::parse_source;
use super::{GrantArgs, Insistence};
use crate::error::{Diagnostic, Exit, Place};
use ratelimit_control::proto::{ApplyRequest, GrantRequest, UnblockReport};
use ratelimit_policy::config::duration;
use ratelimit_policy::config::network::Target;
use ratelimit_policy::config::syntax::SyntaxError;
use ratelimit_policy::desired::Sent;
use ratelimit_policy::safety;

/// Words for an entry without an end.
const PERMANENT: [&str; 2] = ["permanent", "forever"];

/// Checks an address or a prefix, and returns it as it was typed: only the daemon knows what one source is.
pub(super) fn parse_prefix(text: &str) -> anyhow::Result<String> {
    parse_target("CIDR", text)?;
    Ok(text.to_owned())
}

/// Parses an address or a prefix.
pub(super) fn parse_target(argument: &'static str, text: &str) -> anyhow::Result<Target> {
    Target::parse(text).map_err(|error| wrong(argument, text, error))
}

/// Returns the request to allow or deny, with an empty prefix.
pub(super) fn parse_grant(args: &GrantArgs) -> anyhow::Result<GrantRequest> {
    let timed = args.duration.as_deref().filter(|text| !PERMANENT.contains(text));
    Ok(GrantRequest {
        prefix: String::new(),
        seconds: timed.map(parse_for).transpose()?,
        permanent: args.duration.is_some() && timed.is_none(),
        replace: args.replace,
        reason: args.reason.clone(),
        force: args.force,
        ssh_peer: safety::ssh_session_of_this_process().map(|session| session.peer),
        fleet: args.fleet.fleet,
        kill: false,
        owner: None,
    })
}

/// Parses a packet: source address, destination port and perhaps destination address.
pub(super) fn parse_sent(source: &str, to: &str, to_address: Option<&str>) -> anyhow::Result<Sent> {
    let source = parse_source("explain", source)?;
    let to_address = to_address.map(|text| parse_source("--to-address", text)).transpose()?;
    Sent::to_port(source, to_address, to).ok_or_else(|| {
        let error = SyntaxError::new(0..to.len(), format!("`{to}` is not a port"));
        wrong("--to", to, error.with_help("write a number from 0 to 65535, as in 443, 443/tcp or 53/udp"))
    })
}

/// Returns the request to put a file in force.
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

/// Parses the time of an entry. An error also suggests `permanent`.
fn parse_for(text: &str) -> anyhow::Result<u64> {
    parse_seconds("--for", text).map_err(|error| match error.downcast::<Diagnostic>() {
        Ok(mut diagnostic) => {
            diagnostic.help.push("for an entry without an end: --for permanent".to_owned());
            diagnostic.into()
        }
        Err(error) => error,
    })
}

/// Parses a duration of at least one second, rounded up to whole seconds.
pub(super) fn parse_seconds(flag: &'static str, text: &str) -> anyhow::Result<u64> {
    let duration_ns = duration::parse(text).map_err(|error| wrong(flag, text, error))?;
    if duration_ns < SECOND_NS {
        let error = SyntaxError::new(0..text.len(), "the time is too short").with_help("the minimum is one second");
        return Err(wrong(flag, text, error));
    }
    Ok(duration_ns.div_ceil(SECOND_NS))
}

pub(super) fn wrong(flag: &'static str, text: &str, error: SyntaxError) -> anyhow::Error {
    let place = Place::Flag { flag, text: text.to_owned(), span: error.span };
    let help = error.help.into_iter().collect();
    Diagnostic { problem: format!("bad value for {flag}: {}", error.problem), place, help }.into()
}

/// Returns the exit code of `unblock` and `unallow`.
pub(super) const fn lifted(report: &UnblockReport) -> Exit {
    if report.still.is_empty() { Exit::Done } else { Exit::Blocked }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn permanent_has_two_words_and_every_other_end_is_a_time() {
        for (duration, seconds, is_permanent) in [
            (Some("permanent"), None, true),
            (Some("forever"), None, true),
            (Some("90s"), Some(90), false),
            (Some("7d"), Some(604_800), false),
            (None, None, false),
        ] {
            let of: Vec<&str> = duration.map_or(vec![], |duration| vec!["--for", duration]);
            let cli = Cli::parse_from([&["ratelimitd", "deny", "192.0.2.1", "192.0.2.2"][..], &of].concat());
            let Some(Command::Deny { grant, .. }) = cli.command else { panic!("{duration:?}") };
            let request = parse_grant(&grant).unwrap();
            assert_eq!((request.seconds, request.permanent, grant.prefixes.len()), (seconds, is_permanent, 2));
        }
    }
}
