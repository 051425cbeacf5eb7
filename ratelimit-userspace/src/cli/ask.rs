//! The commands that ask a running daemon, and print its answer.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use super::change::parse_target;
use super::run::{in_colour, print_json, print_words};
use super::{Insistence, ListArgs, OutputFormat, Repeat};
use crate::error::Exit;
use ipnet::IpNet;
use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::ReloadRequest;
use ratelimit_datapath::DatapathError;
use ratelimit_datapath::orphans::{self, Orphans};
use ratelimit_datapath::pins::{self, PinsError};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::config::syntax::printable_lines;
use ratelimit_policy::desired::Sent;
use ratelimit_policy::safety;
use ratelimit_report::snapshot::{ListFilter, ModeNow, Outcome, Snapshot};
use ratelimit_view::{self, Screen, WatchError};

/// What passes and what is blocked.
pub(super) async fn stats(socket: &Path, format: OutputFormat, repeat: Repeat) -> anyhow::Result<Exit> {
    let client = Client::new(socket);
    match (repeat, format) {
        (Repeat::Once, OutputFormat::Human) => print_words(&ratelimit_view::stats(&asked(&client, format).await?)),
        (Repeat::Once, OutputFormat::Json) => print_json(&asked(&client, format).await?),
        (Repeat::Watch, OutputFormat::Human) => {
            let screen = if io::stdout().is_terminal() { Screen::Terminal } else { Screen::Stream };
            watch(&client, screen, |snapshot| in_colour(printable_lines(&ratelimit_view::stats(snapshot)))).await
        }
        (Repeat::Watch, OutputFormat::Json) => watch(&client, Screen::Stream, json_line).await,
    }
}

/// Statistics; where no daemon answers, what pins tell is printed before that is said.
async fn asked(client: &Client, format: OutputFormat) -> anyhow::Result<Snapshot> {
    let answer = client.stats().await;
    if let Err(ClientError::NoDaemon { orphans: Orphans::Enforcing(left), .. }) = &answer {
        super::orphan::stats(left, format)?;
    }
    Ok(answer?)
}

async fn watch(client: &Client, screen: Screen, render: impl Fn(&Snapshot) -> String) -> anyhow::Result<Exit> {
    match ratelimit_view::watch(client, screen, &mut io::stdout(), render).await {
        Ok(()) => Ok(Exit::Done),
        Err(WatchError::Client(error)) => Err(error.into()),
        Err(error @ WatchError::Output(_)) => Err(error.into()),
    }
}

/// One snapshot a line, for programs that read on.
fn json_line(snapshot: &Snapshot) -> String {
    // A snapshot is numbers, strings and lists of them: it cannot fail.
    serde_json::to_string(snapshot).map(|line| line + "\n").unwrap_or_default()
}

/// Rows of each origin that a screen takes.
const ROWS_MAX: u64 = 50;

/// The verdict for one address, or for all of a prefix.
pub(super) async fn check(socket: &Path, target: Target, format: OutputFormat) -> anyhow::Result<Exit> {
    let client = Client::new(socket);
    let whole = |network: &IpNet| network.prefix_len() < network.max_prefix_len();
    let verdict = match target {
        Target::Prefix { network, .. } if whole(&network) => {
            let report = client.check_prefix(network, ROWS_MAX).await?;
            match format {
                OutputFormat::Human => print_words(&ratelimit_view::check_prefix(&report))?,
                OutputFormat::Json => print_json(&report)?,
            };
            report.verdict
        }
        Target::Prefix { .. } | Target::Address(_) => {
            let report = client.check(target.address()).await?;
            match format {
                OutputFormat::Human => print_words(&ratelimit_view::check(&report))?,
                OutputFormat::Json => print_json(&report)?,
            };
            report.verdict
        }
    };
    Ok(match verdict {
        Outcome::Pass => Exit::Done,
        Outcome::Drop => Exit::Blocked,
    })
}

/// What would become of a packet.
pub(super) async fn explain(socket: &Path, sent: Sent, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).explain(&sent).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::explain(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Limits read off what was observed.
pub(super) async fn suggest(socket: &Path, rule: Option<&str>, format: OutputFormat) -> anyhow::Result<Exit> {
    let report = Client::new(socket).suggest(rule).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::suggest(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// The mode of each rule, and what holds them all.
pub(super) async fn mode(socket: &Path, format: OutputFormat) -> anyhow::Result<Exit> {
    let now = ModeNow::of(&Client::new(socket).stats().await?);
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::mode_now(&now)),
        OutputFormat::Json => print_json(&now),
    }
}

/// What is allowed, denied and banned.
pub(super) async fn list(socket: &Path, which: ListArgs, format: OutputFormat) -> anyhow::Result<Exit> {
    let prefix = which.prefix.as_deref().map(|text| parse_target("CIDR", text)).transpose()?;
    let prefix = prefix.map(|target| match target {
        Target::Address(address) => IpNet::from(address),
        Target::Prefix { network, .. } => network,
    });
    // What goes to another program is all of it: that one finds what it looks for.
    let is_bounded = format == OutputFormat::Human && !which.all && io::stdout().is_terminal();
    let most = is_bounded.then_some(ROWS_MAX);
    let filter = ListFilter { rule: which.rule, reason: which.reason, prefix, most };
    let report = Client::new(socket).list_of(&filter).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::list(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// Has the daemon read its file again.
pub(super) async fn reload(socket: &Path, insistence: Insistence, format: OutputFormat) -> anyhow::Result<Exit> {
    let request = ReloadRequest { ssh: safety::ssh_session_of_this_process(), force: insistence.force };
    let report = Client::new(socket).reload_by(&request).await?;
    match format {
        OutputFormat::Human => print_words(&ratelimit_view::reloaded(&report)),
        OutputFormat::Json => print_json(&report),
    }
}

/// What took a filter off.
#[derive(serde::Serialize)]
struct Detached {
    schema: u32,
    detached: Vec<String>,
    by: DetachedBy,
}

#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum DetachedBy {
    /// The daemon, which goes on.
    Daemon,
    /// The daemon, which had nothing left to do.
    DaemonThatEnds,
    /// This command: no daemon answers.
    Command,
}

/// Takes the filter off one interface, or all: by the daemon if one answers, else what an earlier one has left pinned.
pub(super) async fn detach(socket: &Path, interface: Option<&str>, format: OutputFormat) -> anyhow::Result<Exit> {
    let (detached, by) = match Client::new(socket).detach(interface).await {
        Ok(report) if report.stopping => (report.detached, DetachedBy::DaemonThatEnds),
        Ok(report) => (report.detached, DetachedBy::Daemon),
        Err(error @ ClientError::NoDaemon { .. }) => (remove_pinned(interface, error)?, DetachedBy::Command),
        Err(error) => return Err(error.into()),
    };
    match format {
        OutputFormat::Human => {
            let how = match by {
                DetachedBy::Daemon => "nothing is limited there any more",
                DetachedBy::DaemonThatEnds => "nothing is limited any more, and the daemon ends",
                DetachedBy::Command => "no daemon answered, so what an earlier one had left pinned was removed",
            };
            print_words(&format!("detached from {}: {how}\n", detached.join(", ")))
        }
        OutputFormat::Json => print_json(&Detached { schema: 1, detached, by }),
    }
}

fn remove_pinned(interface: Option<&str>, no_daemon: ClientError) -> anyhow::Result<Vec<String>> {
    let root = Path::new(pins::ROOT);
    if let Orphans::Hidden(_) = orphans::orphans(root) {
        return Err(DatapathError::NotPrivileged { what: format!("look for a pinned filter in {}", pins::ROOT) }.into());
    }
    let removed = pins::remove_pinned(root, interface).map_err(|error| match error {
        PinsError::Locked(path) => DatapathError::InUse {
            path: path.display().to_string(),
            remedy: "say where its socket is, `ratelimitd detach --socket PATH`, or stop it first",
        },
        error @ (PinsError::NoBpfFileSystem(_)
        | PinsError::Foreign { .. }
        | PinsError::OtherVersion(_)
        | PinsError::Io { .. }) => error.into(),
    })?;
    if removed.is_empty() { Err(no_daemon.into()) } else { Ok(removed) }
}
