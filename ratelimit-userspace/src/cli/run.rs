//! Runs each command: turns the command line into a call to the daemon, or into a call of the responsible module.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use jiff::Timestamp;
use ratelimit_common::layout;
use ratelimit_common::time::Nanos;
use tracing::level_filters::LevelFilter;

use super::ask::{Daemon, folded, screen};
use super::paint::paint;
use super::{
    Cli, Command, Extent, Global, Insistence, Limiter, ListFormat, ListsCommand, ModeArg, OnFleet, OutputFormat,
    Repeat, Socket, ask, change, definition, doctor, host, neighbours, past, texts, warnings,
};
use crate::error::{self, Diagnostic, Diagnostics, Excerpt, Exit, Place};
use crate::log;
use ratelimit_control::proto::{
    AcceptList, Allow, Confirm, Deny, Explain, FleetStatus, Forget, GrantRequest, ModeRequest, ModeWord, PrefixRequest,
    ReloadRequest, Rollback, SourceRequest, Suggest, UnblockRequest,
};
use ratelimit_daemon::{self, ConfigSource, Fallbacks, Limited, Loaded};
use ratelimit_datapath::{DatapathError, path};
use ratelimit_kernel::{Kernel, heap, probe};
use ratelimit_policy::config::lists::KnownLists;
use ratelimit_policy::config::syntax::{json_text, printable_lines};
use ratelimit_policy::config::{Config, FILE_DEFAULT, file};
use ratelimit_policy::diagnostic::Found;
use ratelimit_policy::safety;
use ratelimit_report::entries::Format;
use ratelimit_view::{Detail, describe};

/// Runs the command and returns its exit code.
pub fn run(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { global, limiter, command } = cli;
    let format = global.format();
    let daemon = |socket: Socket| Daemon { socket: socket.path, global: &global };
    match command {
        None if limiter.is_empty() => {
            // If standard error is gone, no one can read the message.
            let _gone = anstream::stderr().write_all(texts::NOTHING.as_bytes());
            Ok(Exit::Usage)
        }
        None => {
            let (config, fallbacks) = ratelimit_daemon::with_lists(|read| {
                let mut settings = limiter.settings();
                settings.read_lists_by(read)?;
                settings.config()
            })?;
            refuse_shared_paths(&config, None)?;
            let source = if config.list_files.is_empty() {
                ConfigSource::Flags
            } else {
                ConfigSource::flags_with_lists(fallbacks, move |known| Ok(from_flags(&limiter, known)?))
            };
            limit(config, source, &global)
        }
        Some(Command::Run { config }) => {
            if config.is_relative() {
                // Report mistakes with the file's name as it was typed.
                start(&config)?;
            }
            // Commands name files by their absolute paths, and list files are compared by theirs.
            let config = std::path::absolute(&config).with_context(|| format!("find {}", config.display()))?;
            let (Loaded { config: of, text }, fallbacks) = start(&config)?;
            refuse_shared_paths(&of, Some((&config, &text)))?;
            let parse = |path: &Path, text: &str, known: &KnownLists| Ok(file::parse_beside(path, text, known)?);
            limit(of, ConfigSource::file(config, text, fallbacks, load, parse), &global)
        }
        Some(Command::Stats { watch, all, socket }) => {
            let repeat = if watch { Repeat::Watch } else { Repeat::Once };
            let extent = if all { Extent::All } else { Extent::Screen };
            let detail = if global.verbose > 0 { Detail::Verbose } else { Detail::Normal };
            block_on(&global, ask::stats(&socket.path, ask::Shown { format, repeat, extent, detail }))
        }
        Some(Command::Top { socket }) => ask::top(&daemon(socket)),
        Some(Command::Check { source, socket }) => ask::check(&daemon(socket), change::parse_target("check", &source)?),
        Some(Command::Doctor(asked)) => doctor::doctor(asked, &global),
        Some(Command::BugReport(asked)) => doctor::bug_report(asked, &global),
        Some(Command::Detach { interface, if_attached, socket }) => {
            let wanted = ask::Unwanted { interface: interface.as_deref(), may_be_missing: if_attached };
            block_on(&global, ask::detach(&socket.path, wanted, format))
        }
        Some(Command::Explain { source, to, to_address, socket }) => {
            let sent = change::parse_sent(&source, &to, to_address.as_deref())?;
            daemon(socket).ask(&Explain::new(&sent), ratelimit_view::explain)
        }
        Some(Command::Suggest { from, .. }) if from.is_said() => super::replay::suggest(from, &global),
        Some(Command::Suggest { rule, socket, .. }) => {
            daemon(socket).ask(&Suggest { rule }, |report| ratelimit_view::suggest(report, screen().width))
        }
        Some(Command::List { which, socket }) => match which.format {
            Some(ListFormat::Plain) => neighbours::export(&daemon(socket), which, Format::Plain),
            Some(ListFormat::Nft) => neighbours::export(&daemon(socket), which, Format::Nft),
            Some(ListFormat::Ipset) => neighbours::export(&daemon(socket), which, Format::Ipset),
            Some(ListFormat::Json) => {
                let global = Global { json: true, ..global.clone() };
                ask::list(&Daemon { socket: socket.path, global: &global }, which)
            }
            None => ask::list(&daemon(socket), which),
        },
        Some(Command::Import { file, owner, socket }) => {
            super::import::import(&file, owner.as_deref(), &daemon(socket))
        }
        Some(Command::Lists { what: ListsCommand::Check { files } }) => neighbours::check_lists(&files, &global),
        Some(Command::Lists { what: ListsCommand::Accept { file, version, socket } }) => {
            let file = std::path::absolute(&file).with_context(|| format!("find {}", file.display()))?;
            daemon(socket).ask(&AcceptList { file, version }, folded(ratelimit_view::accepted))
        }
        Some(Command::Lists { what: ListsCommand::FromMmdb(args) }) => super::from_mmdb::from_mmdb(args, &global),
        Some(Command::Crowdsec { crowdsec }) => neighbours::crowdsec(crowdsec, &global),
        Some(Command::Fleet { socket }) => daemon(socket).ask(&FleetStatus {}, ratelimit_view::fleet),
        Some(Command::Events { which, socket }) => past::events(&daemon(socket), &which),
        Some(Command::History { which, socket }) => past::history(&daemon(socket), which),
        Some(Command::Forget { source, socket }) => {
            let source = parse_source("forget", &source)?;
            daemon(socket).ask(&Forget { source }, folded(ratelimit_view::erased))
        }
        Some(Command::Allow { grant }) => {
            let request = change::parse_grant(&grant)?;
            let call = |text: &str| Ok(Allow(request.clone().of(change::parse_prefix(text)?)));
            daemon(grant.socket).each("allow", grant.prefixes, call, folded(ratelimit_view::granted), |_| Exit::Done)
        }
        Some(Command::Deny { grant, kill, owner }) => {
            let request = GrantRequest { kill, owner, ..change::parse_grant(&grant)? };
            let call = |text: &str| Ok(Deny(request.clone().of(change::parse_prefix(text)?)));
            daemon(grant.socket).each("deny", grant.prefixes, call, folded(ratelimit_view::granted), |_| Exit::Done)
        }
        Some(Command::Unblock { all: true, owner, fleet: OnFleet { fleet }, socket, .. }) => daemon(socket)
            .ask(&UnblockRequest { prefix: None, all: true, fleet, owner }, folded(ratelimit_view::lifted)),
        Some(Command::Unblock { prefixes, all: false, owner, fleet: OnFleet { fleet }, socket }) => {
            let call = |text: &str| {
                let prefix = Some(change::parse_prefix(text)?);
                Ok(UnblockRequest { prefix, all: false, fleet, owner: owner.clone() })
            };
            let exit = |report: &_| if owner.is_some() { Exit::Done } else { change::lifted(report) };
            daemon(socket).each("unblock", prefixes, call, folded(ratelimit_view::lifted), exit)
        }
        Some(Command::Unallow { prefixes, fleet: OnFleet { fleet }, socket }) => {
            let call = |text: &str| Ok(PrefixRequest { prefix: change::parse_prefix(text)?, fleet });
            daemon(socket).each("unallow", prefixes, call, folded(ratelimit_view::lifted), change::lifted)
        }
        Some(Command::Reset { sources, fleet: OnFleet { fleet }, socket }) => {
            let call = |text: &str| Ok(SourceRequest { source: parse_source("reset", text)?, fleet });
            daemon(socket).each("reset", sources, call, folded(ratelimit_view::reset), |_| Exit::Done)
        }
        Some(Command::Panic { socket }) => {
            daemon(socket).ask(&ModeRequest { mode: ModeWord::Panic }, folded(ratelimit_view::mode))
        }
        Some(Command::Mode { mode: None, socket }) => block_on(&global, ask::mode(&socket.path, format)),
        Some(Command::Mode { mode: Some(mode), socket }) => {
            let mode = match mode {
                ModeArg::DryRun => ModeWord::DryRun,
                ModeArg::Enforce => ModeWord::Enforce,
            };
            daemon(socket).ask(&ModeRequest { mode }, folded(ratelimit_view::mode))
        }
        Some(Command::Apply { file, confirm, insistence, socket }) => {
            let request = change::parse_apply(file, confirm.as_deref(), insistence)?;
            daemon(socket).ask(&request, folded(ratelimit_view::applied))
        }
        Some(Command::Confirm { socket }) => daemon(socket).ask(&Confirm {}, folded(ratelimit_view::confirmed)),
        Some(Command::Rollback { socket }) => daemon(socket).ask(&Rollback {}, folded(ratelimit_view::rolled_back)),
        Some(Command::Reload { insistence: Insistence { force }, socket }) => {
            let request = ReloadRequest { ssh: safety::ssh_session_of_this_process(), force };
            daemon(socket).ask(&request, folded(ratelimit_view::reloaded))
        }
        Some(Command::WebToken) => show(&ratelimit_daemon::web_link()?, |link| format!("{}\n", link.url), format),
        Some(Command::Log { socket }) => super::pipe::forward_stdin(&socket),
        Some(Command::Replay { replay }) => super::replay::replay(replay, &global),
        Some(Command::CheckConfig { file, limiter }) => check_config(file, &limiter, &global),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut definition(), "ratelimitd", &mut script);
            print(&script)
        }
        Some(Command::Man { dir: None }) => {
            let mut page = Vec::new();
            clap_mangen::Man::new(definition()).render(&mut page)?;
            print(&page)
        }
        Some(Command::Man { dir: Some(dir) }) => write_pages(&dir),
        Some(Command::Version) => version(format),
    }
}

/// Loads a configuration file with its text.
fn load(path: &Path) -> anyhow::Result<Loaded> {
    let text = file::read_text(path)?;
    Ok(Loaded { config: file::parse(path, &text, file::read_list)?, text })
}

/// Loads a configuration file for a start, which uses the readable part of its list files.
fn start(path: &Path) -> anyhow::Result<(Loaded, Fallbacks)> {
    let text = file::read_text(path)?;
    let (config, fallbacks) = ratelimit_daemon::with_lists(|read| file::parse_by(path, &text, read))?;
    Ok((Loaded { config, text }, fallbacks))
}

fn limit(config: Config, source: ConfigSource, global: &Global) -> anyhow::Result<Exit> {
    heap::configure();
    log::start(log::level(LevelFilter::INFO, global.verbose, global.quiet));
    warn(&warnings::of_policy(&config), global);
    for note in describe::access_log_notes(&config.policy) {
        tracing::info!("{note}");
    }
    tracing::info!("kernel memory: {}", describe::memory_short(&config));
    if let Some(beside) = probe::processors().ok().and_then(|(possible, online)| describe::idle_cpus(possible, online))
    {
        tracing::info!("kernel memory for other purposes: {beside}");
    }
    let absent = source.absent();
    let attached = |of: Limited<'_>| {
        if !of.interfaces.is_empty() {
            tracing::info!("{}", describe::first_line(of.policy, of.interfaces));
        }
    };
    let open = move |config: &Config| Kernel::open(config, absent);
    runtime()?.block_on(ratelimit_daemon::run(config, source, open, attached, host::FUNCTIONS))?;
    Ok(Exit::Done)
}

pub(super) fn block_on(global: &Global, answer: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    log::start(log::level(LevelFilter::WARN, global.verbose, global.quiet));
    runtime()?.block_on(answer)
}

/// Returns a runtime on this thread only. Capabilities belong to threads, and the daemon drops its own before it starts
/// others.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")
}

/// Parses the address that a command applies to.
pub(super) fn parse_source(command: &'static str, text: &str) -> anyhow::Result<IpAddr> {
    text.parse().map_err(|_| {
        let help = match text.split_once('/') {
            Some((address, _)) => format!("ask about one address: ratelimitd {command} {address}"),
            None => "write an address, as in 198.51.100.7 or 2001:db8::7".to_owned(),
        };
        let place = Place::Flag { flag: command, text: text.to_owned(), span: 0..text.len() };
        Diagnostic { problem: format!("`{text}` is not an IP address"), place, help: vec![help] }.into()
    })
}

fn check_config(file: Option<PathBuf>, limiter: &Limiter, global: &Global) -> anyhow::Result<Exit> {
    let file = file.or_else(|| limiter.is_empty().then(|| PathBuf::from(FILE_DEFAULT)));
    let read = read_config(file.as_deref(), limiter).and_then(|config| {
        if let Some(wrong) = beyond_bounds(&config) {
            return Err(wrong);
        }
        let text = file.as_deref().and_then(|path| file::read_text(path).ok()).unwrap_or_default();
        refuse_shared_paths(&config, file.as_deref().map(|path| (path, text.as_str()))).map(|()| config)
    });
    let config = match read {
        Ok(config) => config,
        Err(error) => {
            if global.format() == OutputFormat::Json {
                print_json(&describe::InvalidJson::from(&error))?;
            }
            return Err(error.into());
        }
    };
    let mut warnings = warnings::all(&config);
    warnings.extend(file.iter().flat_map(|file| ratelimit_doctor::out_of_reach(file, &config)));
    match global.format() {
        OutputFormat::Human => {
            warn(&warnings, global);
            let good = file.map_or_else(String::new, |path| format!("{}: good\n\n", path.display()));
            // The text is not wrapped, so that it can be copied.
            let acl = config.fleet.as_ref().map_or_else(String::new, |of| format!("\n{}", describe::acl_words(of)));
            print_words(&format!("{good}{}{acl}", describe::config_words(&config)))
        }
        OutputFormat::Json => print_json(&describe::ConfigJson::new(&config, warnings)),
    }
}

/// Returns errors for list files that a reload would not put in force until `lists accept` names them.
fn beyond_bounds(config: &Config) -> Option<Diagnostics> {
    let mut found = Found::default();
    for (path, problem) in ratelimit_daemon::list_objections(config) {
        found.push(Diagnostic { problem, place: Place::File { path, excerpt: None }, help: Vec::new() });
    }
    found.into_result(()).err()
}

/// Fails if one of the existing interfaces receives another's packets.
fn refuse_shared_paths(config: &Config, file: Option<(&Path, &str)>) -> Result<(), Diagnostics> {
    // If the interfaces cannot be listed, a warning says so.
    let links = ratelimit_kernel::links().unwrap_or_default();
    let write = if file.is_some() { path::as_key } else { path::as_flags };
    let Err(error) = path::refuse(&config.interfaces, &links, write) else { return Ok(()) };
    let (problem, help) = if let DatapathError::SharedPath { what, instead } = error {
        (what, vec![instead])
    } else {
        (error.to_string(), Vec::new())
    };
    let place = match file {
        None => Place::CommandLine,
        Some((path, text)) => {
            let excerpt = key_in(text, "interfaces").map(|span| Box::new(Excerpt::of(text, span)));
            Place::File { path: path.to_owned(), excerpt }
        }
    };
    Err(Diagnostic { problem, place, help }.into())
}

/// Returns the place of the key in the first line that begins with it.
fn key_in(text: &str, key: &str) -> Option<Range<usize>> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('=')) {
            return Some(at + indent..at + indent + key.len());
        }
        at += line.len();
    }
    None
}

fn read_config(file: Option<&Path>, limiter: &Limiter) -> Result<Config, Diagnostics> {
    match file {
        None => from_flags(limiter, &KnownLists::new()),
        Some(path) if limiter.is_empty() => file::load(path),
        Some(path) => Err(Diagnostic {
            problem: "a file and flags cannot be checked together".to_owned(),
            place: Place::CommandLine,
            help: vec![format!("leave out the flags to check {}", path.display())],
        }
        .into()),
    }
}

pub(super) fn now() -> Nanos {
    Nanos(u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0))
}

fn from_flags(limiter: &Limiter, known: &KnownLists) -> Result<Config, Diagnostics> {
    let mut settings = limiter.settings();
    settings.read_lists_beside(known, file::read_list)?;
    settings.config()
}

pub(super) fn warn(warnings: &[String], global: &Global) {
    if global.quiet == 0 {
        warnings.iter().for_each(|warning| error::warn(warning));
    }
}

fn write_pages(dir: &Path) -> anyhow::Result<Exit> {
    let failed = || format!("write manual pages to {}", dir.display());
    std::fs::create_dir_all(dir).with_context(failed)?;
    clap_mangen::generate_to(definition(), dir).with_context(failed)?;
    std::fs::write(dir.join("ratelimitd.toml.5"), super::manual::page()).with_context(failed)?;
    Ok(Exit::Done)
}

#[derive(serde::Serialize)]
struct Version {
    schema: u32,
    version: &'static str,
    layout: u32,
    target: String,
    bpf_object_sha256: String,
}

impl Version {
    fn this() -> Self {
        Self {
            schema: 1,
            version: env!("CARGO_PKG_VERSION"),
            layout: layout::VERSION,
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            bpf_object_sha256: ratelimit_kernel::object::sha256(),
        }
    }
}

/// Returns the output of `version --json`.
pub(super) fn version_json() -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&Version::this())? + "\n")
}

fn version(format: OutputFormat) -> anyhow::Result<Exit> {
    let this = Version::this();
    match format {
        OutputFormat::Human => {
            let Version { version, layout, target, bpf_object_sha256, .. } = &this;
            let bpf_object = format!("BPF object {bpf_object_sha256} (SHA-256)");
            print(format!("ratelimitd {version}\nlayout     v{layout}\ntarget     {target}\n{bpf_object}\n").as_bytes())
        }
        OutputFormat::Json => print_json(&this),
    }
}

/// Shows a report in the given format.
pub(super) fn show<R: serde::Serialize>(
    report: &R,
    words: impl FnOnce(&R) -> String,
    format: OutputFormat,
) -> anyhow::Result<Exit> {
    match format {
        OutputFormat::Human => print_words(&words(report)),
        OutputFormat::Json => print_json(report),
    }
}

pub(super) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<Exit> {
    print(json_text(&(serde_json::to_string_pretty(value)? + "\n")).as_bytes())
}

/// Prints lines for people. Texts from files and other users cannot control the terminal.
pub(super) fn print_words(text: &str) -> anyhow::Result<Exit> {
    print(in_colour(printable_lines(text)).as_bytes())
}

/// Returns the text for standard output, with colours if that is a terminal or they are requested.
pub(super) fn in_colour(text: String) -> String {
    match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => text,
        anstream::ColorChoice::Auto | anstream::ColorChoice::Always | anstream::ColorChoice::AlwaysAnsi => paint(&text),
    }
}

/// Prints to standard output. A closed pipe or a vanished terminal is no error.
pub(super) fn print(text: &[u8]) -> anyhow::Result<Exit> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if !is_nobody_left(&error) => Err(error).context("write to standard output"),
        _ => Ok(Exit::Done),
    }
}

/// Returns true if standard output's reader is gone. A file on a broken disk fails with the same error number as a
/// vanished terminal.
fn is_nobody_left(error: &io::Error) -> bool {
    let is_file = || std::fs::metadata("/proc/self/fd/1").is_ok_and(|of| of.is_file());
    ratelimit_view::is_reader_gone(error) && !is_file()
}
