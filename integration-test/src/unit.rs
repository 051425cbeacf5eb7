//! The unit file as systemd reads it: its capabilities, the system calls that it allows, and the daemon under it.
//!
//! Knows the few settings that the tests apply to a daemon. Names of system calls and of their sets come from
//! `systemd-analyze` and the kernel's headers, so that only the unit file says what is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use netlab::Child;

use crate::lab::{Daemon, HANGS_AFTER, Lab, binary};

/// Text of the shipped unit.
pub const TEXT: &str = include_str!("../../dist/systemd/ratelimitd.service");

/// Number of the unit's group in tests.
pub const GID: u32 = 64_321;

/// Headers with the numbers of system calls, where a compiler is installed.
const HEADERS: [&str; 3] = [
    "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "/usr/include/asm/unistd_64.h",
    "/usr/include/asm-generic/unistd.h",
];
/// Maximum depth of nested sets.
const DEPTH_MAX: usize = 8;

/// Returns the values of all lines of a setting such as `CapabilityBoundingSet`, in order.
pub fn setting(name: &str) -> Vec<&'static str> {
    let value = |line: &'static str| line.strip_prefix(name)?.strip_prefix('=').map(str::trim);
    TEXT.lines().filter_map(value).collect()
}

/// Returns the unit's capabilities such as `CAP_BPF`, sorted.
pub fn capabilities() -> Vec<&'static str> {
    let mut names: Vec<_> = setting("CapabilityBoundingSet").into_iter().flat_map(str::split_whitespace).collect();
    names.sort_unstable();
    names
}

/// Returns the numbers of the system calls that the unit's filter passes on this machine.
///
/// # Errors
/// Fails if `systemd-analyze` or the kernel's headers are missing, or if the filter does not begin with what it allows.
pub fn system_calls() -> Result<BTreeSet<u32>> {
    let sets = Sets::of_systemd()?;
    let numbers = numbers()?;
    // systemd always adds these to the allowed calls of a filter.
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
    // A call without a number in this machine's kernel cannot be made.
    Ok(allowed.iter().filter_map(|name| numbers.get(name)).copied().collect())
}

/// Starts the daemon with these arguments under the unit's restrictions, which the binary `confine` applies. The host's
/// list of groups has the unit's group. Returns once the daemon is ready.
///
/// # Panics
/// Panics if the daemon does not become ready.
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

/// Sets of system calls by name. A set contains names of calls and of other sets.
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
