//! The bug report: findings, configuration, statistics, events, log, versions and pins, as texts. Addresses are masked
//! and secrets removed in each text before it is added.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ratelimit_control::proto::{EventsOf, Stats};
use ratelimit_kernel::pins;
use ratelimit_policy::config::file;
use ratelimit_report::snapshot::ListFilter;

use crate::bundle::Bundle;
use crate::facts::{ConfigFile, Daemon, Facts, Program};
use crate::finding::Report;
use crate::mask::Masks;
use crate::read::{SERVICE, client, output};
use crate::secrets::{Secrets, Whose};
use crate::words;

/// Number of log lines in the report.
const LOG_LINES: &str = "1000";
/// Maximum depth of directories in the listing of pins.
const DEPTH_MAX: usize = 4;

const ABOUT: &str = "\
What `ratelimitd bug-report` found. Nothing was changed to find it.

Masked: IPv4 and IPv6 addresses and prefixes, in any usual spelling, as <ipv4:...> and <ipv6:...>; hardware addresses;
this host's name; the names of hosts in URLs. An address has the same mask in all of these files, and another mask in
another report. Loopback and unspecified addresses stay.
Removed: the contents of secret files, values next to words such as password, secret and token, everything before the @
of a URL and after its host, tokens with a known beginning, passwords on command lines, private keys. In reasons and
comments that users wrote, everything after such a word.
Not masked: names of interfaces, rules, users and files, what else users wrote into reasons and comments, other hosts'
names outside of URLs, addresses that are written as one decimal number.
";
const ABOUT_ADDRESSES: &str = "\
What `ratelimitd bug-report --with-addresses` found. Nothing was changed to find it. Addresses and names are as they are.
Removed: the contents of secret files, values next to words such as password, secret and token, everything before the @
of a URL and after its host, tokens with a known beginning, passwords on command lines, private keys. In reasons and
comments that users wrote, everything after such a word.
";

/// Treatment of addresses in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Addresses are replaced by masks.
    Masked,
    /// Addresses stay as they are.
    Kept,
}

/// Bundle that removes secrets and masks addresses when a text is added.
struct Collected {
    bundle: Bundle,
    masks: Masks,
    secrets: Secrets,
}

impl Collected {
    fn add(&mut self, name: &str, text: &str) {
        let text = if name.ends_with(".json") || name.ends_with(".jsonl") {
            self.secrets.hide_json(text, |text| self.masks.mask(text))
        } else {
            let whose = if name.ends_with(".toml") { Whose::Configuration } else { Whose::Ours };
            self.masks.mask(&self.secrets.hide(text, whose))
        };
        self.bundle.add(name, text);
    }

    /// Adds a text, or the reason why it is missing.
    fn add_known(&mut self, name: &str, text: &Result<String, String>) {
        match text {
            Ok(text) => self.add(name, text),
            Err(why) => self.add(name, &format!("not available: {why}\n")),
        }
    }
}

/// Collects the report. `version` is the output of `version --json`.
///
/// # Errors
/// Fails if the system provides no random bytes for the masks, or if a fact cannot be serialised.
pub async fn collect(
    facts: &Facts,
    findings: &Report,
    socket: &Path,
    version: &str,
    addresses: Addresses,
) -> anyhow::Result<Bundle> {
    let masks = match addresses {
        Addresses::Masked => {
            Masks::new(host_name().as_deref()).map_err(|error| anyhow::anyhow!("random bytes: {error}"))?
        }
        Addresses::Kept => Masks::none(),
    };
    let mut to = Collected { bundle: Bundle::default(), masks, secrets: secrets(facts) };
    let about = match addresses {
        Addresses::Masked => ABOUT,
        Addresses::Kept => ABOUT_ADDRESSES,
    };
    // This text has no address, and names words beside which values would be hidden.
    to.bundle.add("README.txt", about);
    to.add("doctor.txt", &words(findings));
    to.add("doctor.json", &(serde_json::to_string_pretty(findings)? + "\n"));
    to.add("version.json", version);
    to.add("system.txt", &system());
    configuration(&mut to, &facts.file);
    daemon(&mut to, facts, socket).await?;
    to.add_known(
        "log.txt",
        &output("journalctl", &["-u", SERVICE, "-n", LOG_LINES, "--no-hostname", "--no-pager", "-o", "short-iso"]),
    );
    to.add("pins.txt", &listing());
    unit(&mut to, facts);
    if let Program::Refused { log: Some(log), .. } = &facts.kernel.program {
        to.add("verifier.log", log);
    }
    Ok(to.bundle)
}

fn host_name() -> Option<String> {
    Some(nix::sys::utsname::uname().ok()?.nodename().to_str()?.to_owned())
}

/// Returns the contents of the secret files that the configuration names, and of the web token in the state directory.
fn secrets(facts: &Facts) -> Secrets {
    let fleet = facts.file.config().and_then(|config| config.fleet.as_ref());
    let of_fleet =
        fleet.into_iter().flat_map(|of| [&of.secret_file, &of.store.password_file, &of.store.key_file]).flatten();
    let tls = facts.file.config().and_then(|config| config.tls.as_ref()).map(|tls| &tls.key);
    let token = facts.state_dir.path.join("web-token.json");
    let paths: Vec<&Path> = of_fleet.chain(tls).chain([&token]).map(std::path::PathBuf::as_path).collect();
    Secrets::of(&paths)
}

fn system() -> String {
    let mut out = String::new();
    for path in ["/proc/version", "/proc/cmdline", "/etc/os-release", "/proc/loadavg", "/proc/meminfo"] {
        let text = fs::read_to_string(path).unwrap_or_else(|error| format!("not available: {error}\n"));
        // Writing to a String cannot fail.
        let _infallible = writeln!(out, "== {path}\n{}", text.trim_end());
    }
    out
}

fn configuration(to: &mut Collected, file: &ConfigFile) {
    let path = match file {
        ConfigFile::Missing(path) => {
            to.add("config/ratelimitd.toml", &format!("not available: there is no {}\n", path.display()));
            return;
        }
        ConfigFile::Unreadable(path, _) | ConfigFile::Bad(path, _) | ConfigFile::Good(path, ..) => path,
    };
    to.add_known("config/ratelimitd.toml", &file::read_text(path).map_err(|error| error.problem));
    if let Some(config) = file.config() {
        let line = |list: &ratelimit_policy::config::lists::ListFile| {
            let bytes =
                fs::metadata(&list.path).map_or_else(|error| error.to_string(), |of| format!("{} bytes", of.len()));
            format!("{} ({}): {} prefixes, {bytes}\n", list.path.display(), list.named_by, list.prefixes.len())
        };
        let lists: String = config.list_files.iter().map(line).collect();
        to.add("config/lists.txt", if lists.is_empty() { "no list files\n" } else { &lists });
    }
}

async fn daemon(to: &mut Collected, facts: &Facts, socket: &Path) -> anyhow::Result<()> {
    let Daemon::Answers(snapshot, _) = &facts.daemon else {
        let why = match client(socket).call(&Stats::now()).await {
            Ok(_) => "it answers only now; make the report again".to_owned(),
            Err(error) => error.to_string(),
        };
        to.add("daemon.txt", &format!("statistics, events and lists are not available: {why}\n"));
        return Ok(());
    };
    to.add("stats.json", &(serde_json::to_string_pretty(snapshot)? + "\n"));
    to.add("stats.txt", &ratelimit_view::stats(snapshot, ratelimit_view::Page::ENDLESS));
    let client = client(socket);
    let nothing = EventsOf { source: None, rule: None, kind: None, since: None, most: None, follow: None };
    let events = client.events(&nothing).await.map_err(|error| error.to_string());
    let lines = events.and_then(|report| {
        let line = |event| serde_json::to_string(event).map(|line| line + "\n").map_err(|error| error.to_string());
        report.events.iter().map(line).collect::<Result<String, String>>()
    });
    to.add_known("events.jsonl", &lines);
    let all = ListFilter { rule: None, reason: None, prefix: None, most: None };
    let list = client.call(&all).await.map_err(|error| error.to_string());
    let list = list.and_then(|list| serde_json::to_string_pretty(&list).map_err(|error| error.to_string()));
    to.add_known("list.json", &list.map(|text| text + "\n"));
    Ok(())
}

fn listing() -> String {
    let mut out = String::new();
    list(Path::new(pins::ROOT), DEPTH_MAX, &mut out);
    if out.is_empty() { format!("there is no {}, or it is not for this user\n", pins::ROOT) } else { out }
}

/// Lists mode, owner and path of each entry, sorted by name.
fn list(path: &Path, depth: usize, out: &mut String) {
    let Ok(of) = fs::symlink_metadata(path) else { return };
    let _infallible = writeln!(out, "{:04o} {}:{} {}", of.mode() & 0o7777, of.uid(), of.gid(), path.display());
    if of.is_dir() && depth > 0 {
        let mut entries: Vec<_> = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        entries.iter().for_each(|entry| list(&entry.path(), depth - 1, out));
    }
}

fn unit(to: &mut Collected, facts: &Facts) {
    let mut out = String::new();
    for (path, text) in facts.unit.file.iter().chain(&facts.unit.drop_ins) {
        let _infallible = writeln!(out, "== {}\n{}", path.display(), text.trim_end());
    }
    for (name, value) in &facts.unit.shown {
        let _infallible = writeln!(out, "{name}={value}");
    }
    to.add("unit.txt", if out.is_empty() { "no unit is installed, or systemd does not run here\n" } else { &out });
}
