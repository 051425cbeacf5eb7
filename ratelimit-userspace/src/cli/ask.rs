//! Commands that ask a running daemon and print its answer.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use super::change::parse_target;
use super::each::Targets;
use super::run::{block_on, in_colour, print_json, print_words, show};
use super::{Extent, Global, ListArgs, OutputFormat, Repeat};
use crate::error::{self, Diagnostic, Exit, Place};
use ipnet::IpNet;
use ratelimit_control::Call;
use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::{Check, CheckPrefix, Detach, Stats};
use ratelimit_datapath::{DatapathError, Orphans};
use ratelimit_kernel::orphans::orphans_of_host;
use ratelimit_kernel::pins::{self, PinsError};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::config::syntax::{json_text, printable_lines};
use ratelimit_policy::safety;
use ratelimit_report::snapshot::{ListFilter, ModeNow, Outcome, Snapshot};
use ratelimit_top::{Paint, TopError};
use ratelimit_view::{self, Detail, Page, Screen, WatchError};
use terminal_size::{Height, Width, terminal_size_of};

/// The daemon to ask, and the output settings.
pub(super) struct Daemon<'a> {
    pub(super) socket: PathBuf,
    pub(super) global: &'a Global,
}

impl Daemon<'_> {
    /// Runs a command and shows its result.
    pub(super) fn ask<C: Call>(&self, call: &C, words: impl Fn(&C::Report) -> String) -> anyhow::Result<Exit> {
        self.judge(call, words, |_| Exit::Done)
    }

    /// Runs a command and shows its result; `exit` returns the exit code.
    pub(super) fn judge<C: Call>(
        &self,
        call: &C,
        words: impl Fn(&C::Report) -> String,
        exit: impl Fn(&C::Report) -> Exit,
    ) -> anyhow::Result<Exit> {
        block_on(self.global, async {
            let report = client(&self.socket).call(call).await?;
            show(&report, words, self.global.format())?;
            Ok(exit(&report))
        })
    }

    /// Runs one command for each given address or prefix.
    pub(super) fn each<C: Call>(
        &self,
        verb: &str,
        named: Vec<String>,
        call: impl Fn(&str) -> anyhow::Result<C>,
        words: impl Fn(&C::Report) -> String,
        exit: impl Fn(&C::Report) -> Exit,
    ) -> anyhow::Result<Exit> {
        let client = client(&self.socket);
        let ask = async |text: &str| Ok(client.call(&call(text)?).await?);
        let targets = Targets::read(named, io::stdin())?;
        block_on(self.global, targets.each(verb, self.global.format(), ask, words, exit))
    }
}

/// Returns a client for a socket, which passes on the user who called `sudo`. If no daemon answers, it looks for filters
/// that an earlier one left.
pub(super) fn client(socket: &Path) -> Client {
    let name = std::env::var("SUDO_USER").ok();
    Client::new(socket).with_orphan_search(orphans_of_host).for_sudo_user(name.as_deref())
}

/// Settings for the output of `stats`.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) format: OutputFormat,
    pub(super) repeat: Repeat,
    pub(super) extent: Extent,
    pub(super) detail: Detail,
}

/// Shows what passes and what is blocked.
pub(super) async fn stats(socket: &Path, shown: Shown) -> anyhow::Result<Exit> {
    let client = client(socket);
    let words = |snapshot: &Snapshot| ratelimit_view::stats(snapshot, page(shown));
    match (shown.repeat, shown.format) {
        (Repeat::Once, format) => show(&asked(&client, shown).await?, words, format),
        (Repeat::Watch, OutputFormat::Human) => {
            let screen = if io::stdout().is_terminal() { Screen::Terminal } else { Screen::Stream };
            let render = |notice: Option<&str>, snapshot: &Snapshot| {
                in_colour(printable_lines(&ratelimit_view::stats_below(notice, snapshot, page(shown))))
            };
            watch(&client, shown, screen, render).await
        }
        (Repeat::Watch, OutputFormat::Json) => {
            watch(&client, shown, Screen::Stream, |_, snapshot| json_line(snapshot)).await
        }
    }
}

/// Returns the request for as many sources as the output shows: all with `--all`, and in a pipe or file without
/// `--watch`.
fn request(Shown { format, repeat, extent, .. }: Shown) -> Stats {
    let is_whole = format == OutputFormat::Human && repeat == Repeat::Once && terminal_size_of(io::stdout()).is_none();
    if extent == Extent::All || is_whole { Stats::of_all_sources() } else { Stats::now() }
}

/// Returns the current width and number of free rows of the terminal. A pipe or file has no bounds.
pub(super) fn screen() -> Page {
    terminal_size_of(io::stdout()).map_or(Page::ENDLESS, |(Width(width), Height(height))| Page {
        width: usize::from(width),
        // Leave a row for the prompt.
        rows: Some(usize::from(height).saturating_sub(1)),
        ..Page::ENDLESS
    })
}

/// Wraps sentences for people at the terminal's width.
pub(super) fn folded<R>(words: impl Fn(&R) -> String) -> impl Fn(&R) -> String {
    move |report| ratelimit_view::folded(&words(report), screen().width)
}

/// Returns the page's size now, as a terminal may be resized. Output to another program, and output with `--all`, is
/// not cut.
fn page(Shown { repeat, extent, detail, .. }: Shown) -> Page {
    let Page { width, rows, .. } = screen();
    let rows = match (extent, repeat) {
        (Extent::All, _) => None,
        // No prompt appears during `--watch`.
        (Extent::Screen, Repeat::Watch) => rows.map(|rows| rows + 1),
        (Extent::Screen, Repeat::Once) => rows,
    };
    Page { width, rows, detail }
}

/// Returns the statistics. If no daemon answers, first prints what pins contain, and then fails.
async fn asked(client: &Client, shown: Shown) -> anyhow::Result<Snapshot> {
    let answer = client.call(&request(shown)).await;
    if let Err(ClientError::NoDaemon { orphans: Orphans::Enforcing(left), .. }) = &answer {
        super::orphan::stats(left, shown.format, page(shown))?;
    }
    Ok(answer?)
}

async fn watch(
    client: &Client,
    shown: Shown,
    screen: Screen,
    render: impl Fn(Option<&str>, &Snapshot) -> String,
) -> anyhow::Result<Exit> {
    match ratelimit_view::watch(client, || request(shown), screen, &mut io::stdout(), render, error::warn).await {
        Ok(()) => Ok(Exit::Done),
        Err(WatchError::Client(error)) => Err(error.into()),
        Err(error @ WatchError::Output(_)) => Err(error.into()),
    }
}

/// Shows everything in a terminal until a key ends it. Fails without a terminal, which has no keys.
pub(super) fn top(daemon: &Daemon<'_>) -> anyhow::Result<Exit> {
    if !io::stdout().is_terminal() || daemon.global.format() == OutputFormat::Json {
        let problem = "`top` draws on a terminal, and cannot write JSON, a file or a pipe".to_owned();
        let again = "`ratelimitd stats --watch` prints the same every second".to_owned();
        let programs = "`ratelimitd stats --json` is for programs".to_owned();
        return Err(Diagnostic { problem, place: Place::CommandLine, help: vec![again, programs] }.into());
    }
    let paint = match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => Paint::Plain,
        anstream::ColorChoice::Auto | anstream::ColorChoice::Always | anstream::ColorChoice::AlwaysAnsi => {
            Paint::Colours
        }
    };
    let ssh_peer = safety::ssh_session_of_this_process().map(|session| session.peer);
    block_on(daemon.global, async {
        match ratelimit_top::run(client(&daemon.socket), ssh_peer, paint).await {
            Ok(()) => Ok(Exit::Done),
            Err(TopError::Client(error)) => Err(error.into()),
            Err(error @ TopError::Terminal(_)) => Err(error.into()),
        }
    })
}

/// Returns one snapshot as a line of JSON, for programs that keep reading.
fn json_line(snapshot: &Snapshot) -> String {
    // A snapshot is numbers, strings and lists of them: serialising cannot fail.
    serde_json::to_string(snapshot).map(|line| json_text(&line) + "\n").unwrap_or_default()
}

/// Maximum number of rows of each origin on a screen.
const ROWS_MAX: u64 = 50;

/// Shows the verdict for one address, or for all of a prefix.
pub(super) fn check(daemon: &Daemon<'_>, target: Target) -> anyhow::Result<Exit> {
    let exit = |verdict| match verdict {
        Outcome::Pass => Exit::Done,
        Outcome::Drop => Exit::Blocked,
    };
    let detail = if daemon.global.verbose > 0 { Detail::Verbose } else { Detail::Normal };
    match target {
        Target::Prefix { network, .. } if network.prefix_len() < network.max_prefix_len() => {
            let call = CheckPrefix { prefix: network.to_string(), most: Some(ROWS_MAX) };
            daemon.judge(&call, ratelimit_view::check_prefix, |report| exit(report.verdict))
        }
        Target::Prefix { .. } | Target::Address(_) => {
            let call = Check { ip: target.address() };
            daemon.judge(&call, |report| ratelimit_view::check(report, detail), |report| exit(report.verdict))
        }
    }
}

/// Shows the mode of each rule, and what overrides all modes.
pub(super) async fn mode(socket: &Path, format: OutputFormat) -> anyhow::Result<Exit> {
    show(&ModeNow::of(&client(socket).call(&Stats::now()).await?), ratelimit_view::mode_now, format)
}

/// Parses the prefix that a list is filtered by.
pub(super) fn prefix_asked(text: Option<&str>) -> anyhow::Result<Option<IpNet>> {
    let target = text.map(|text| parse_target("CIDR", text)).transpose()?;
    Ok(target.map(|target| match target {
        Target::Address(address) => IpNet::from(address),
        Target::Prefix { network, .. } => network,
    }))
}

/// Lists what is allowed, denied and banned.
pub(super) fn list(daemon: &Daemon<'_>, which: ListArgs) -> anyhow::Result<Exit> {
    let prefix = prefix_asked(which.prefix.as_deref())?;
    // Another program gets all entries, and filters them itself.
    let is_bounded = daemon.global.format() == OutputFormat::Human && !which.all && io::stdout().is_terminal();
    let most = is_bounded.then_some(ROWS_MAX);
    daemon.ask(&ListFilter { rule: which.rule, reason: which.reason, prefix, most }, |report| {
        ratelimit_view::list(report, screen().width)
    })
}

/// Result of `detach` in JSON.
#[derive(serde::Serialize)]
struct Detached {
    schema: u32,
    detached: Vec<String>,
    by: DetachedBy,
}

#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum DetachedBy {
    /// The daemon, which keeps running.
    Daemon,
    /// The daemon, which ends because nothing is attached any more.
    DaemonThatEnds,
    /// This command, because no daemon answers.
    Command,
}

/// Arguments of the command `detach`.
#[derive(Clone, Copy)]
pub(super) struct Unwanted<'a> {
    /// Interface to detach from; `None` for all.
    pub(super) interface: Option<&'a str>,
    /// True if it is no error that nothing is attached.
    pub(super) may_be_missing: bool,
}

/// Detaches the filter from one interface or all. If a daemon answers, it does so; otherwise this command removes the
/// pins of an earlier one.
pub(super) async fn detach(socket: &Path, unwanted: Unwanted<'_>, format: OutputFormat) -> anyhow::Result<Exit> {
    let call = Detach { interface: unwanted.interface.map(str::to_owned) };
    let (detached, by) = match client(socket).call(&call).await {
        Ok(report) if report.stopping => (report.detached, DetachedBy::DaemonThatEnds),
        Ok(report) => (report.detached, DetachedBy::Daemon),
        Err(error @ ClientError::NoDaemon { .. }) => (remove_pinned(unwanted, error)?, DetachedBy::Command),
        Err(error) => return Err(error.into()),
    };
    match format {
        OutputFormat::Human if detached.is_empty() => print_words("nothing was attached\n"),
        OutputFormat::Human => {
            let how = match by {
                DetachedBy::Daemon => "nothing is limited there any more",
                DetachedBy::DaemonThatEnds => "nothing is limited any more, and the daemon ends",
                DetachedBy::Command => "no daemon answered, so the pins of an earlier daemon were removed",
            };
            print_words(&format!("detached from {}: {how}\n", detached.join(", ")))
        }
        OutputFormat::Json => print_json(&Detached { schema: 1, detached, by }),
    }
}

fn remove_pinned(unwanted: Unwanted<'_>, no_daemon: ClientError) -> anyhow::Result<Vec<String>> {
    let root = Path::new(pins::ROOT);
    if let Orphans::Hidden(_) = orphans_of_host() {
        return Err(DatapathError::NotPrivileged { what: format!("look for a pinned filter in {}", pins::ROOT) }.into());
    }
    let was_there = root.exists();
    let removed = pins::remove_pinned(root, unwanted.interface).map_err(|error| match error {
        PinsError::Locked(path) => DatapathError::InUse {
            path: path.display().to_string(),
            remedy: "say where its socket is, `ratelimitd detach --socket PATH`, or stop it first",
        },
        error @ (PinsError::NoBpfFileSystem(_)
        | PinsError::Foreign { .. }
        | PinsError::OtherVersion(_)
        | PinsError::Io { .. }) => error.into(),
    })?;
    // The pins of an earlier run may enforce nothing.
    let is_cleared = was_there && !root.exists();
    let is_missing = removed.is_empty() && unwanted.interface.is_some() && !unwanted.may_be_missing;
    if is_missing && !is_cleared { Err(no_daemon.into()) } else { Ok(removed) }
}
