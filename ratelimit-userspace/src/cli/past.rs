//! Commands about the past: `events` and `history`.

use std::future;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::thread;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use ratelimit_policy::config::duration;
use tokio::sync::oneshot;

use super::OutputFormat;
use super::ask::{Daemon, client, screen};
use super::change::{parse_prefix, parse_seconds, wrong};
use super::run::{block_on, print, print_words};
use crate::error::{Exit, warn};
use ratelimit_control::Call;
use ratelimit_control::client::Followed;
use ratelimit_control::proto::{EventsOf, HistoryOf, Worst};
use ratelimit_policy::config::syntax::{SyntaxError, json_text, near_miss};
use ratelimit_report::event::{Event, EventKind};
use ratelimit_report::history::Loss;
use ratelimit_report::offenders::{self, Format, Offender};

/// Arguments of the command `events`.
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Keep printing new events until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Only events of this address, or of addresses in this network
    #[arg(long, value_name = "IP|CIDR")]
    pub source: Option<String>,
    /// Only events of the rule of this name
    #[arg(long, value_name = "NAME")]
    pub rule: Option<String>,
    /// Only events of this kind: refused, ban, ban_end, would_refuse, would_ban, allow, deny, unblock, ...
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only events of the last DUR: 10m, 1h
    #[arg(long, value_name = "DUR")]
    pub since: Option<String>,
}

/// Arguments of the command `history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryArgs {
    /// The address or network; without it, the sources that were refused most
    #[arg(value_name = "IP|CIDR")]
    pub prefix: Option<String>,
    /// Only what was going on after TIME: a time, as in 2026-01-31T08:00:00Z, or 24h for 24 hours ago
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only what began before TIME: a time, or 24h for 24 hours ago
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only refusals by the rule of this name
    #[arg(long, value_name = "NAME")]
    pub rule: Option<String>,
    /// Only for this reason: over_limit, guard, banned, dry_run
    #[arg(long, value_name = "REASON")]
    pub reason: Option<String>,
    /// Print comma-separated values, one line each
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// One row per source, for other programs: plain (one line each, also a list file), json (one object per line),
    /// abuse (a letter to the network's abuse desk), nft or ipset
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true, conflicts_with_all = ["csv", "json"])]
    pub format: Option<HistoryFormat>,
}

/// Output formats of `history`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HistoryFormat {
    /// One line per source: first and last time, packets, episodes, rules, reasons
    Plain,
    /// One object per line
    Json,
    /// A letter to the network's abuse desk
    Abuse,
    /// A script for nft -f
    Nft,
    /// A script for ipset restore
    Ipset,
}

impl From<HistoryFormat> for Format {
    fn from(format: HistoryFormat) -> Self {
        match format {
            HistoryFormat::Plain => Self::Plain,
            HistoryFormat::Json => Self::Json,
            HistoryFormat::Abuse => Self::Abuse,
            HistoryFormat::Nft => Self::Nft,
            HistoryFormat::Ipset => Self::Ipset,
        }
    }
}

/// Shows recent events, and with `--follow` those that follow.
pub(super) fn events(daemon: &Daemon<'_>, which: &EventsArgs) -> anyhow::Result<Exit> {
    let since = which.since.as_deref().map(|text| parse_seconds("--since", text)).transpose()?;
    let asked = EventsOf {
        source: which.source.as_deref().map(parse_prefix).transpose()?,
        rule: which.rule.clone(),
        kind: which.kind.as_deref().map(parse_kind).transpose()?,
        since: since.map(|seconds| ago(Timestamp::now(), seconds)),
        ..EventsOf::default()
    };
    let format = daemon.global.format();
    block_on(daemon.global, async {
        let client = client(&daemon.socket);
        if which.follow {
            return follow(&client, &asked, format).await;
        }
        let report = client.events(&asked).await?;
        match format {
            OutputFormat::Human => print_words(&ratelimit_view::events(&report, screen().width)),
            OutputFormat::Json => print(report.events.iter().map(json_line).collect::<String>().as_bytes()),
        }
    })
}

async fn follow(
    client: &ratelimit_control::client::Client,
    asked: &EventsOf,
    format: OutputFormat,
) -> anyhow::Result<Exit> {
    let mut printed = Ok(Exit::Done);
    let take = |followed| {
        printed = match (followed, format) {
            (Followed::Event(event), OutputFormat::Human) => {
                print_words(&ratelimit_view::event(&event, screen().width))
            }
            (Followed::Event(event), OutputFormat::Json) => print(json_line(&event).as_bytes()),
            (Followed::Missed { missed }, _) => {
                warn(&format!("{missed} events were missed: they came faster than they were read"));
                return ControlFlow::Continue(());
            }
        };
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    // An interrupt is the normal end.
    tokio::select! {
        followed = client.follow(asked, take) => followed?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        () = reader_is_gone() => (),
    }
    printed
}

/// Waits until nobody can read standard output any more: its terminal has vanished, or the other end of its pipe is
/// closed. Never returns if standard output is a file.
async fn reader_is_gone() {
    let (gone, is_gone) = oneshot::channel();
    // The thread ends with the process.
    thread::spawn(move || {
        // Some terminals do not wake a waiting thread when they vanish.
        const LOOK_EVERY_MS: u16 = 500;
        let output = io::stdout();
        // No flag is requested: errors and hang-ups are always reported.
        let look = || poll(&mut [PollFd::new(output.as_fd(), PollFlags::empty())], LOOK_EVERY_MS);
        while matches!(look(), Ok(0) | Err(Errno::EINTR)) {}
        let _nobody_waits = gone.send(());
    });
    if is_gone.await.is_err() {
        future::pending::<()>().await;
    }
}

/// Shows the history of a source, or the sources that were refused most.
pub(super) fn history(daemon: &Daemon<'_>, which: HistoryArgs) -> anyhow::Result<Exit> {
    let now = Timestamp::now();
    let at = |flag, text: Option<&str>| text.map(|text| parse_time(flag, text, now)).transpose();
    let since = at("--since", which.since.as_deref())?;
    let until = at("--until", which.until.as_deref())?;
    let HistoryArgs { prefix, rule, reason, csv, format, .. } = which;
    match prefix {
        Some(prefix) => {
            let call = HistoryOf { prefix: parse_prefix(&prefix)?, since, until, rule, reason };
            if let Some(format) = format {
                return offenders(daemon, &call, format, |of| {
                    (offenders::of_history(of), of.more_episodes, Loss::sum(&of.losses))
                });
            }
            answer(daemon, &call, csv.then_some(|of: &_| ratelimit_report::history::HistoryReport::csv(of)), |of| {
                ratelimit_view::history(of, now, screen())
            })
        }
        None => {
            let call = Worst { since, until, rule, reason };
            if let Some(format) = format {
                return offenders(daemon, &call, format, |of| {
                    (offenders::of_worst(of), of.omitted > 0, Loss::sum(&of.losses))
                });
            }
            let csv = csv.then_some(|of: &_| ratelimit_report::history::WorstReport::csv(of));
            answer(daemon, &call, csv, |of| ratelimit_view::worst(of, screen()))
        }
    }
}

/// Prints one row per source. `of` returns the rows, whether there are more than one answer holds, and the number of
/// lost events.
fn offenders<C: Call>(
    daemon: &Daemon<'_>,
    call: &C,
    format: HistoryFormat,
    of: impl Fn(&C::Report) -> (Vec<Offender>, bool, u64),
) -> anyhow::Result<Exit> {
    block_on(daemon.global, async {
        let (offenders, is_more, lost) = of(&client(&daemon.socket).call(call).await?);
        if is_more {
            warn("one answer does not hold all rows: --since and --until show the others");
        }
        if lost > 0 {
            warn(&format!("NOT COMPLETE: {lost} events were lost; --json says when, and sources may be missing"));
        }
        print(offenders::export(&offenders, format.into(), Timestamp::now()).as_bytes())
    })
}

fn answer<C: Call>(
    daemon: &Daemon<'_>,
    call: &C,
    csv: Option<impl Fn(&C::Report) -> String>,
    words: impl Fn(&C::Report) -> String,
) -> anyhow::Result<Exit> {
    match csv {
        None => daemon.ask(call, words),
        Some(csv) => block_on(daemon.global, async {
            let report = client(&daemon.socket).call(call).await?;
            print(csv(&report).as_bytes())
        }),
    }
}

/// Returns one event as a line of JSON, for programs.
fn json_line(event: &Event) -> String {
    // Strings and numbers: serialising cannot fail.
    serde_json::to_string(event).map(|line| json_text(&line) + "\n").unwrap_or_default()
}

fn parse_kind(text: &str) -> anyhow::Result<EventKind> {
    EventKind::ALL.into_iter().find(|kind| kind.label() == text).ok_or_else(|| {
        let labels = || EventKind::ALL.into_iter().map(EventKind::label);
        let error = SyntaxError::new(0..text.len(), format!("`{text}` is no kind of event"));
        let help = match near_miss(text, labels()) {
            None if text == "pressure" => "it is called overload now".to_owned(),
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("there are {}", labels().collect::<Vec<_>>().join(", ")),
        };
        wrong("--kind", text, error.with_help(help))
    })
}

/// Parses a duration before now, or a time.
fn parse_time(flag: &'static str, text: &str, now: Timestamp) -> anyhow::Result<Timestamp> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    match duration::parse(text) {
        Ok(ns) => Ok(ago(now, ns / 1_000_000_000)),
        Err(error) => Err(wrong(
            flag,
            text,
            error.with_help("write a time before now, as in 24h, or a date, as in 2026-01-31T08:00:00Z"),
        )),
    }
}

/// Returns the time that many seconds ago, at the earliest the calendar's beginning.
fn ago(now: Timestamp, seconds: u64) -> Timestamp {
    let second = now.as_second().saturating_sub_unsigned(seconds);
    Timestamp::from_second(second).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_so_long_ago_or_that_time() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let parsed = |text| parse_time("--since", text, now).map(Timestamp::as_second);
        assert_eq!(parsed("1h").unwrap(), 996_400);
        assert_eq!(parsed("1970-01-01T00:00:05Z").unwrap(), 5);
        let error = parsed("yesterday").unwrap_err().downcast::<crate::error::Diagnostic>().unwrap();
        assert!(error.help.iter().any(|help| help.contains("24h")), "{error:?}");
        assert_eq!(ago(now, u64::MAX), Timestamp::MIN);
    }

    #[test]
    fn a_kind_is_one_that_there_is_and_a_near_miss_is_named() {
        assert_eq!(parse_kind("ban_end").unwrap(), EventKind::BanEnd);
        let error = parse_kind("bann").unwrap_err().downcast::<crate::error::Diagnostic>().unwrap();
        assert_eq!(error.help, ["did you mean ban?"]);
        let error = parse_kind("pressure").unwrap_err().downcast::<crate::error::Diagnostic>().unwrap();
        assert_eq!(error.help, ["it is called overload now"]);
    }
}
