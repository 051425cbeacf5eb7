//! Container with systemd as its first process, in separate namespaces and with its own BPF file system.
//!
//! The container lives as long as its holder keeps the other end of a pipe. Even if the holder is killed, the PID
//! namespace ends with its first process, and all mounts with the last.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run;
use crate::setup::machine::NSPAWN;

/// Directory in the container with the packages.
pub(super) const SHARED: &str = "/mnt";

const STARTS_WITHIN: Duration = Duration::from_secs(120);
const ENDS_WITHIN: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
const NAMESPACES: &str = "--mount --net --pid --fork --kill-child --mount-proc";

/// Script that starts the container and ends with its standard input. The root file system is unpacked in memory, so
/// that nothing remains.
const SCRIPT: &str = r#"
dir=$1 rootfs=$2 shared=$3 log=$4
shift 4
mount --make-rprivate /
ip link set lo up
mount -t tmpfs -o mode=0755 tmpfs "$dir"
cd "$dir"
mkdir root bpffs
mount -t bpf bpf bpffs
tar -xf "$rootfs" -C root
"$@" --directory=root --bind="$dir/bpffs:/sys/fs/bpf" --bind-ro="$shared:/mnt" </dev/null >"$log" 2>&1 &
read -r _ || true
"#;

/// Arguments of nspawn. The added capabilities are the unit's. nspawn does not allow bpf(2) by default.
const NSPAWN_ARGUMENTS: [&str; 10] = [
    "--quiet",
    "--boot",
    "--register=no",
    "--keep-unit",
    "--private-network",
    // The container must not use this machine's resolver.
    "--resolv-conf=off",
    "--machine=web",
    "--console=pipe",
    "--capability=CAP_BPF,CAP_NET_ADMIN,CAP_PERFMON",
    "--system-call-filter=bpf",
];

/// Complete environment of every command in the container.
const ENVIRONMENT: [&str; 5] =
    ["-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"];

pub(super) struct Container {
    holder: Child,
    /// Pipe that ends the container when it is closed on drop.
    lifeline: Option<ChildStdin>,
    /// Process id of systemd outside the container.
    init: u32,
}

impl Container {
    /// Starts the container and waits until every unit has started. Fails if a unit failed.
    pub(super) fn start(rootfs: &Path, shared: &Path, work: &Path) -> Result<Self> {
        let dir = work.join("container");
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let log = work.join("nspawn.log");
        File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let nspawn = NSPAWN.file().with_context(|| format!("there is no {}", NSPAWN.name))?;

        let mut command = run::as_root("unshare", &[]).context("neither root nor sudo")?;
        command.args(NAMESPACES.split(' ')).args(["sh", "-ec", SCRIPT, "sh"]);
        command.arg(&dir).arg(rootfs).arg(shared).arg(&log);
        if let Some(libraries) = NSPAWN.libraries() {
            command.arg("env").arg(format!("LD_LIBRARY_PATH={}", libraries.to_string_lossy()));
        }
        command.arg(nspawn).args(NSPAWN_ARGUMENTS).stdin(Stdio::piped());
        let mut holder = command.spawn().with_context(|| format!("start `{}`", run::shown(&command)))?;
        let lifeline = holder.stdin.take();
        let mut container = Self { holder, lifeline, init: 0 };
        container.wait_until_running(&log)?;
        Ok(container)
    }

    /// Returns a shell command in the container, as root with all capabilities. Tests of restricted capabilities must
    /// start units instead.
    pub(super) fn command(&self, line: &str) -> Result<Command> {
        let init = self.init.to_string();
        let mut command =
            run::as_root("nsenter", &["--target", &init, "--all", "env"]).context("neither root nor sudo")?;
        command.args(ENVIRONMENT).args(["sh", "-c", line]).stdin(Stdio::null());
        Ok(command)
    }

    fn wait_until_running(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + STARTS_WITHIN;
        loop {
            if let Some(init) = systemd_below(self.holder.id()) {
                self.init = init;
                let state = self.command("systemctl is-system-running")?.output().context("start nsenter")?;
                match String::from_utf8_lossy(&state.stdout).trim() {
                    "running" => return Ok(()),
                    "degraded" => bail!("a unit of the container failed: {}", self.failed_units()?),
                    _ => {}
                }
            }
            let ended = self.holder.try_wait().context("wait for the container")?;
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("systemd was not running after {} s: {said}", STARTS_WITHIN.as_secs());
            }
            thread::sleep(PAUSE);
        }
    }

    fn failed_units(&self) -> Result<String> {
        run::answer(&mut self.command("systemctl --failed --no-legend --plain")?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let deadline = Instant::now() + ENDS_WITHIN;
        while Instant::now() < deadline {
            // A process that cannot be waited for has ended.
            if !matches!(self.holder.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(PAUSE);
        }
        // Without root this process cannot kill root's process. The end of its standard input must suffice.
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}

/// Returns the process that systemd-nspawn started, among the descendants of `ancestor`.
fn systemd_below(ancestor: u32) -> Option<u32> {
    let processes = processes();
    let name_of = |id: u32| processes.get(&id).map(|process| process.name.as_str());
    let descends = |mut id: u32| {
        while let Some(process) = processes.get(&id) {
            if id == ancestor {
                return true;
            }
            id = process.parent;
        }
        false
    };
    let is_init = |(id, of): &(&u32, &Process)| {
        of.name == "systemd" && name_of(of.parent) == Some("systemd-nspawn") && descends(**id)
    };
    processes.iter().find(is_init).map(|(id, _)| *id)
}

struct Process {
    name: String,
    parent: u32,
}

fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, process(&fs::read_to_string(PathBuf::from(format!("/proc/{id}/stat"))).ok()?)?)))
        .collect()
}

/// Parses `24022 (systemd) S 24001 ...`. The name may contain blanks and brackets, and the kernel cuts it at 15 bytes.
fn process(stat: &str) -> Option<Process> {
    let (begin, rest) = stat.rsplit_once(')')?;
    let (_, name) = begin.split_once('(')?;
    let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
    Some(Process { name: name.to_owned(), parent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_with_its_parent() {
        let of = process("24022 (systemd) S 24001 24022 24022 0 -1 4194560").unwrap();
        assert_eq!((of.name.as_str(), of.parent), ("systemd", 24001));
        assert_eq!(process("7 (a (b) c) S 1 7").unwrap().name, "a (b) c");
        assert!(process("7").is_none());
    }
}
