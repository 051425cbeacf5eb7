//! The bug report: findings, configuration, statistics, events, versions and pins, as texts. Only fields on the lists
//! below are added, so that neither secrets nor free text get in. Addresses in them are masked.

use std::env::consts::ARCH;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ratelimit_control::proto::{EventsOf, Stats};
use ratelimit_kernel::pins;
use ratelimit_report::snapshot::ListFilter;
use ratelimit_view::describe::ConfigJson;
use serde::Serialize;
use serde_json::Value;

use crate::bundle::Bundle;
use crate::facts::{ConfigFile, Daemon, Facts, Machine, Program};
use crate::finding::{Report, State};
use crate::mask::Masks;
use crate::read::client;
use crate::words;

/// Maximum depth of directories in the listing of pins.
const DEPTH_MAX: usize = 4;

/// Fields of an event. Left out are the user, the description, and the reason: a user may have given it.
const OF_EVENTS: &str = "time kind source rule limit used until";
/// Fields of `list`. Left out are users, owners, reasons and files.
const OF_LIST: &str = "\
schema time entries omitted would_ban prefix state until by rule step since decides list line of count";
/// Fields of the configuration. Notes, files, and the address and user of the fleet's store are left out.
const OF_CONFIGURATION: &str = "\
schema interfaces hook xdp_mode on_exit max_sources listen ipv4_prefix ipv6_prefix allow deny lists list prefixes rules
memory_bytes safety exempt_ssh_peer exempt_gateway exempt_resolvers breaker_percent breaker_after_seconds
without_daemon_seconds history enabled keep_seconds max_bytes mask_ipv4 mask_ipv6 fleet interval_seconds hosts bans
floor_percent name mode refuse refuse_with guard from to ports limits shadow_limits candidates block_for_seconds
forget_after_seconds block_prefix_after ban_unverified block_kill under_attack_ok new_sources quic_ports unparsable
until words burst sum bound bound_alone step";

const ABOUT: &str = "\
What `ratelimitd bug-report` found. Nothing was changed to find it.

It has the findings of `doctor`, the parsed configuration, statistics without sources, events, entries, versions and
pins: only fields that the program itself wrote. The log, the texts of files, users, reasons and notes are not in it. If
the log helps, read it and attach it yourself: journalctl -u ratelimitd -n 1000
";
const ABOUT_MASKS: &str = "\
Addresses and prefixes are masked as <ipv4:1> and <ipv6:2>. An address has the same number in all of these files.
Loopback and unspecified addresses stay. Names of interfaces, rules, lists and files stay.
";
const ABOUT_ADDRESSES: &str = "Addresses are as they are (--with-addresses).\n";

/// Treatment of addresses in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Addresses are replaced by masks.
    Masked,
    /// Addresses stay as they are.
    Kept,
}

/// Bundle that masks addresses when a text is added.
struct Collected {
    bundle: Bundle,
    masks: Masks,
}

impl Collected {
    fn add(&mut self, name: &str, text: &str) {
        let text = self.masks.mask(text);
        self.bundle.add(name, text);
    }

    fn add_json(&mut self, name: &str, value: &impl Serialize) -> anyhow::Result<()> {
        self.add(name, &(serde_json::to_string_pretty(value)? + "\n"));
        Ok(())
    }
}

/// Returns a value with only these fields of its objects, at any depth.
fn only(fields: &str, value: impl Serialize) -> serde_json::Result<Value> {
    fn keep(fields: &str, value: &mut Value) {
        match value {
            Value::Object(of) => {
                of.retain(|name, _| fields.split_whitespace().any(|field| field == name));
                of.values_mut().for_each(|value| keep(fields, value));
            }
            Value::Array(of) => of.iter_mut().for_each(|value| keep(fields, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut value = serde_json::to_value(value)?;
    keep(fields, &mut value);
    Ok(value)
}

/// Collects the report. `version` is the output of `version --json`.
///
/// # Errors
/// Fails if a fact cannot be serialised.
pub async fn collect(
    facts: &Facts,
    findings: &Report,
    socket: &Path,
    version: &str,
    addresses: Addresses,
) -> anyhow::Result<Bundle> {
    let (masks, about) = match addresses {
        Addresses::Masked => (Masks::new(), ABOUT_MASKS),
        Addresses::Kept => (Masks::none(), ABOUT_ADDRESSES),
    };
    let mut to = Collected { bundle: Bundle::default(), masks };
    to.add("README.txt", &format!("{ABOUT}{about}"));
    let findings = without_quotes(findings);
    to.add("doctor.txt", &words(&findings));
    to.add_json("doctor.json", &findings)?;
    to.add("version.json", version);
    to.add("system.txt", &system(facts));
    configuration(&mut to, &facts.file)?;
    daemon(&mut to, facts, socket).await?;
    to.add("pins.txt", &listing());
    let unit: String = facts.unit.shown.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    to.add("unit.txt", if unit.is_empty() { "systemd does not run here\n" } else { &unit });
    if let Program::Refused { log: Some(log), .. } = &facts.kernel.program {
        to.add("verifier.log", log);
    }
    Ok(to.bundle)
}

/// Returns the findings without what a refused configuration file says, which the error quotes.
fn without_quotes(findings: &Report) -> Report {
    let mut findings = findings.clone();
    for of in &mut findings.checks {
        if of.id == "configuration.file" && of.state == State::Problem {
            "the file is refused".clone_into(&mut of.seen);
        }
    }
    findings
}

fn system(facts: &Facts) -> String {
    let (kernel, Machine { possible_cpus, online_cpus, available, page_bytes, has_tcx }) =
        (&facts.kernel, &facts.machine);
    format!(
        "kernel: {} on {ARCH}\ndistribution: {} {}\nprocessors: {online_cpus:?} of {possible_cpus:?}\navailable \
         bytes: {available:?}\nbytes of a page: {page_bytes}\nTCX: {has_tcx}\n",
        kernel.release, kernel.distribution.id, kernel.distribution.version
    )
}

fn configuration(to: &mut Collected, file: &ConfigFile) -> anyhow::Result<()> {
    let why = match file {
        ConfigFile::Good(_, config, _) => {
            return to.add_json("config.json", &only(OF_CONFIGURATION, ConfigJson::new(config, Vec::new()))?);
        }
        ConfigFile::Missing(path) => format!("there is no {}", path.display()),
        ConfigFile::Unreadable(path, why) => format!("{}: {why}", path.display()),
        ConfigFile::Bad(path, _) => format!("{} is refused; attach it yourself", path.display()),
    };
    to.add("config.txt", &format!("not available: {why}\n"));
    Ok(())
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
    let snapshot = snapshot.as_ref().clone().without_sources();
    to.add_json("stats.json", &snapshot)?;
    to.add("stats.txt", &ratelimit_view::stats(&snapshot, ratelimit_view::Page::ENDLESS));
    let client = client(socket);
    match client.events(&EventsOf::default()).await {
        Ok(report) => {
            let line = |event| Ok(only(OF_EVENTS, event)?.to_string() + "\n");
            to.add("events.jsonl", &report.events.iter().map(line).collect::<serde_json::Result<String>>()?);
        }
        Err(error) => to.add("events.txt", &format!("not available: {error}\n")),
    }
    match client.call(&ListFilter::default()).await {
        Ok(list) => to.add_json("list.json", &only(OF_LIST, list)?),
        Err(error) => {
            to.add("list.txt", &format!("not available: {error}\n"));
            Ok(())
        }
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_listed_fields_are_left_at_any_depth() {
        let list = json!({
            "schema": 1, "entries": [
                { "prefix": "192.0.2.7/32", "state": "denied", "user": "alice", "reason": "token hunter2" },
                { "prefix": "192.0.2.8/32", "overridden_by": { "prefix": "192.0.2.0/24" } },
            ],
        });
        let left = json!({
            "schema": 1, "entries": [{ "prefix": "192.0.2.7/32", "state": "denied" }, { "prefix": "192.0.2.8/32" }],
        });
        assert_eq!(only(OF_LIST, list).unwrap(), left);
        let event = json!({ "kind": "deny", "source": "192.0.2.7", "user": "alice", "reason": "token hunter2" });
        assert_eq!(only(OF_EVENTS, event).unwrap(), json!({ "kind": "deny", "source": "192.0.2.7" }));
    }
}
