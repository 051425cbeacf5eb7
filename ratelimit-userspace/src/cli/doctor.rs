//! The commands `doctor` and `bug-report`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueHint};
use jiff::Timestamp;
use ratelimit_doctor::facts::ConfigFile;
use ratelimit_doctor::{Addresses, Asked, Bundle, BundleError, absent, collect, examine, out_of_reach, read, words};
use ratelimit_policy::config::{FILE_DEFAULT, file};
use ratelimit_policy::files;

use super::run::{block_on, print_json, print_words, show, version_json};
use super::warnings;
use super::{Global, OutputFormat, Socket};
use crate::error::{Diagnostic, Exit, Place};

/// Arguments of the command `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// The interface to check; without it, those of the configuration
    #[arg(value_name = "IF")]
    pub interface: Option<String>,
    /// The rest.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of the command `bug-report`.
#[derive(Clone, Debug, Args)]
pub struct BugReportArgs {
    /// The file to write, which must not exist yet; without it, ratelimitd-report-TIME.tar.gz
    #[arg(short = 'O', long = "out", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    /// Do not mask addresses
    #[arg(long)]
    pub with_addresses: bool,
    /// The rest.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Configuration file and socket that both commands read.
#[derive(Clone, Debug, Args)]
pub struct PlaceArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = FILE_DEFAULT)]
    pub config: PathBuf,
    /// The daemon to ask.
    #[command(flatten)]
    pub socket: Socket,
}

/// Runs all checks and prints the findings. The exit code is 1 if there is a problem.
pub(super) fn doctor(DoctorArgs { interface, place }: DoctorArgs, global: &Global) -> anyhow::Result<Exit> {
    if let Some(name) = &interface
        && let Some(others) = absent(name)
    {
        let place = Place::Flag { flag: "doctor", text: name.clone(), span: 0..name.len() };
        return Err(Diagnostic { problem: format!("there is no interface {name}"), place, help: vec![others] }.into());
    }
    block_on(global, async {
        let report = examine(&read(asked(interface, place)).await);
        show(&report, words, global.format())?;
        Ok(if report.is_without_problem() { Exit::Done } else { Exit::Internal })
    })
}

#[derive(serde::Serialize)]
struct Written {
    schema: u32,
    file: String,
    bytes: u64,
    entries: Vec<WrittenEntry>,
}

#[derive(serde::Serialize)]
struct WrittenEntry {
    name: String,
    bytes: usize,
}

/// Writes a bug report to a file, and lists its contents.
pub(super) fn bug_report(asked_for: BugReportArgs, global: &Global) -> anyhow::Result<Exit> {
    let BugReportArgs { out, with_addresses, place } = asked_for;
    let addresses = if with_addresses { Addresses::Kept } else { Addresses::Masked };
    let now = Timestamp::now();
    let path =
        out.unwrap_or_else(|| PathBuf::from(format!("ratelimitd-report-{}.tar.gz", now.strftime("%Y%m%dT%H%M%SZ"))));
    if path.symlink_metadata().is_ok() {
        return Err(exists(&path));
    }
    let socket = place.socket.path.clone();
    let bundle = block_on_value(global, async {
        let facts = read(asked(None, place)).await;
        let findings = examine(&facts);
        collect(&facts, &findings, &socket, &version_json()?, addresses).await
    })?;
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let bytes = bundle.write(&path, seconds).map_err(|error| match error {
        BundleError::Exists(path) => exists(&path),
        BundleError::Io(path, error) => anyhow::Error::from(error).context(format!("write {}", path.display())),
    })?;
    written(&path, bytes, &bundle, addresses, global)
}

fn exists(path: &Path) -> anyhow::Error {
    let text = path.display().to_string();
    let place = Place::Flag { flag: "--out", span: 0..text.len(), text };
    let help = "name another file, or remove that one".to_owned();
    Diagnostic { problem: format!("{} exists already and is not overwritten", path.display()), place, help: vec![help] }
        .into()
}

fn written(path: &Path, bytes: u64, bundle: &Bundle, addresses: Addresses, global: &Global) -> anyhow::Result<Exit> {
    match global.format() {
        OutputFormat::Json => {
            let entry = |of: &ratelimit_doctor::Entry| WrittenEntry { name: of.name.clone(), bytes: of.text.len() };
            let entries = bundle.entries.iter().map(entry).collect();
            print_json(&Written { schema: 1, file: path.display().to_string(), bytes, entries })
        }
        OutputFormat::Human => {
            let line = |of: &ratelimit_doctor::Entry| format!("  {:>9}  {}\n", of.text.len(), of.name);
            let lines: String = bundle.entries.iter().map(line).collect();
            let said = match addresses {
                Addresses::Masked => "addresses are masked",
                Addresses::Kept => "WITH ADDRESSES",
            };
            print_words(&format!("{}: {bytes} bytes, {said}\n{lines}\nRead it before you send it.\n", path.display()))
        }
    }
}

fn asked(interface: Option<String>, place: PlaceArgs) -> Asked {
    let file = configuration(place.config);
    Asked { interface, file, socket: place.socket.path, state_dir: ratelimit_daemon::state_directory() }
}

/// Reads the file as `check-config` does.
fn configuration(path: PathBuf) -> ConfigFile {
    match files::open_named(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return ConfigFile::Missing(path),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return ConfigFile::Unreadable(path, "permission denied".to_owned());
        }
        Ok(_) | Err(_) => {}
    }
    match file::load(&path) {
        Ok(config) => {
            let mut warnings = warnings::all(&config);
            warnings.extend(out_of_reach(&path, &config));
            ConfigFile::Good(path, Box::new(config), warnings)
        }
        Err(error) => {
            // Report the first mistake, on one line; `check-config` shows all of them with their places.
            let first = error.first();
            let line = first.line().map_or_else(String::new, |line| format!("line {line}: "));
            ConfigFile::Bad(path, format!("{line}{}", first.problem))
        }
    }
}

fn block_on_value<T>(global: &Global, answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut value = None;
    block_on(global, async {
        value = Some(answer.await?);
        Ok(Exit::Done)
    })?;
    value.context("there is no report")
}
