//! The unit file as systemd would read it: its capabilities, and the system calls that it allows; and the daemon under it.
//!
//! Knows the few settings that the tests hold a daemon to. Names of system calls and their sets come from
//! `systemd-analyze` and the kernel's headers, so that the unit file is all that says what is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use netlab::Child;

use crate::lab::{Daemon, HANGS_AFTER, Lab, binary};

/// The shipped unit.
pub const TEXT: &str = include_str!("../../dist/systemd/ratelimitd.service");

/// What the unit's group has for a number in tests.
pub const GID: u32 = 64_321;

/// Numbers of system calls by name, where a compiler is installed.
const HEADERS: [&str; 3] = [
    "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "/usr/include/asm/unistd_64.h",
    "/usr/include/asm-generic/unistd.h",
];
/// Sets within sets within sets.
const DEPTH_MAX: usize = 8;

/// What all lines of one setting say, in order: `CapabilityBoundingSet`.
pub fn setting(name: &str) -> Vec<&'static str> {
    let value = |line: &'static str| line.strip_prefix(name)?.strip_prefix('=').map(str::trim);
    TEXT.lines().filter_map(value).collect()
}

/// Its capabilities: `CAP_BPF`, sorted.
pub fn capabilities() -> Vec<&'static str> {
    let mut names: Vec<_> = setting("CapabilityBoundingSet").into_iter().flat_map(str::split_whitespace).collect();
    names.sort_unstable();
    names
}

/// Numbers of the system calls that its filter passes on this machine.
///
/// # Errors Where `systemd-analyze` or the kernel's headers are missing, and where the filter is not one that begins
/// with what it allows.
pub fn system_calls() -> Result<BTreeSet<u32>> {
    let sets = Sets::of_systemd()?;
    let numbers = numbers()?;
    // Whatever a filter says, systemd adds these to what it allows.
    let mut allowed = sets.members("@default", DEPTH_MAX)?;
    let mut lines = setting("SystemCallFilter").into_iter();
    let first = lines.next().context("the unit has no SystemCallFilter=")?;
    ensure!(!first.starts_with('~'), "the filter begins with what it refuses: {first}");
    for line in [first].into_iter().chain(lines) {
        let (is_refused, names) = line.strip_prefix('~').map_or((false, line), |names| (true, names));
        for name in names.split_whitespace() {
            for member in sets.members(name, DEPTH_MAX)? {
                if is_refused {
                    allowed.remove(&member);
                } else {
                    allowed.insert(member);
                }
            }
        }
    }
    // What this machine's kernel has no number for cannot be called.
    Ok(allowed.iter().filter_map(|name| numbers.get(name)).copied().collect())
}

/// The daemon with these arguments under the unit's restrictions, which the binary `confine` puts on it, and with the
/// unit's group in the host's list of groups. Returns once it is ready.
///
/// # Panics
/// Where it does not come to that.
pub fn start(lab: &Lab, confine: &str, args: &[&str]) -> Daemon {
    let groups = lab.directory().join("group");
    let known = fs::read_to_string("/etc/group").expect("the host has groups");
    fs::write(&groups, format!("{known}{}:x:{GID}:\n", setting("Group")[0])).expect("a file");
    let mut command = lab.command("sh");
    command.arg("-c").arg(r#"mount --bind "$0" /etc/group && exec "$@""#).arg(groups);
    command.arg(confine).arg(binary()).args(args);
    let child = Child::start(command).expect("the daemon starts");
    child.wait_for_line("ratelimitd: ready", HANGS_AFTER).expect("the daemon is ready");
    Daemon { child }
}

/// Sets of system calls by name, and what they have: names, and names of sets.
struct Sets(BTreeMap<String, Vec<String>>);

impl Sets {
    fn of_systemd() -> Result<Self> {
        let output = Command::new("systemd-analyze").arg("syscall-filter").output();
        let output = output.context("run systemd-analyze (package systemd)")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut sets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut current = None;
        for line in text.lines() {
            let name = line.trim();
            if line.starts_with('@') {
                current = Some(name.to_owned());
            } else if let Some(set) = current.as_ref().filter(|_| !name.is_empty() && !name.starts_with('#')) {
                sets.entry(set.clone()).or_default().push(name.to_owned());
            }
        }
        ensure!(sets.len() > 10, "systemd-analyze syscall-filter says: {text}");
        Ok(Self(sets))
    }

    fn members(&self, name: &str, depth: usize) -> Result<BTreeSet<String>> {
        if !name.starts_with('@') {
            return Ok([name.to_owned()].into());
        }
        let Some(depth) = depth.checked_sub(1) else { bail!("{name} is within too many sets") };
        let members = self.0.get(name).with_context(|| format!("systemd has no set {name}"))?;
        let mut all = BTreeSet::new();
        for member in members {
            all.extend(self.members(member, depth)?);
        }
        Ok(all)
    }
}

fn numbers() -> Result<BTreeMap<String, u32>> {
    let text = HEADERS.iter().find_map(|path| fs::read_to_string(path).ok());
    let text = text.context("there are no headers of the kernel (package linux-libc-dev)")?;
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    Ok(text.lines().filter_map(number).collect())
}
