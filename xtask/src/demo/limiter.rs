//! Limiter of the demo: the daemon's binary, controlled as a user would control it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netlab::{Child, Namespace};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::lab::{BAD, CRAWLER, GOOD, Lab};
use super::{GROUP_LIMIT_TEXT, LIMIT_TEXT, interrupt};

const READY: Duration = Duration::from_secs(15);
const STOPPED: Duration = Duration::from_secs(10);

pub(super) struct Limiter<'a> {
    process: Child,
    binary: &'a Path,
    namespace: &'a Namespace,
    socket: PathBuf,
}

/// Operating mode of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    DryRun,
    Enforce,
    /// Enforces, and also limits groups of sources.
    Groups,
}

/// Displayed part of `ratelimitd stats`. Counts packets: a request is one, and each retransmission another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stats {
    pub(super) admitted: u64,
    pub(super) dropped: u64,
    pub(super) would_drop: u64,
    /// Packets dropped on the good client's interface.
    pub(super) dropped_of_good: u64,
    /// Requests in the bad client's window.
    pub(super) used_by_bad: u64,
    /// Requests in the window of the crawler's prefix.
    pub(super) used_by_crawler: u64,
}

impl<'a> Limiter<'a> {
    pub(super) fn start(lab: &'a Lab, binary: &'a Path, mode: Mode) -> Result<Self> {
        let socket = lab.files.path().join("control.sock");
        let mut command = lab.server.command(binary);
        command.args(["--iface", GOOD.interface, "--iface", BAD.interface, "--limit", LIMIT_TEXT]);
        command.arg("--socket").arg(&socket);
        command.env("RATELIMITD_STATE_DIR", lab.files.path().join("state"));
        match mode {
            Mode::DryRun => {
                command.arg("--dry-run");
            }
            Mode::Enforce => {}
            Mode::Groups => {
                command.args(["--limit", GROUP_LIMIT_TEXT]);
            }
        }
        let process = Child::start(command)?;
        process.wait_for_line("ratelimitd: ready", READY)?;
        interrupt::check()?;
        Ok(Self { process, binary, namespace: &lab.server, socket })
    }

    pub(super) fn process_id(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn stats(&self) -> Result<Stats> {
        let (binary, socket) = (self.binary.to_string_lossy(), self.socket.to_string_lossy());
        let output = self.namespace.run(&[&binary, "stats", "--json", "--socket", &socket])?;
        ensure!(output.status.success(), "`ratelimitd stats` failed: {}", output.stderr.trim());
        let stats = serde_json::from_str(&output.stdout).context("read what `ratelimitd stats --json` printed")?;
        Stats::read(&stats)
    }

    /// Stops the daemon in an orderly way, which detaches the filter.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait(STOPPED)?;
        ensure!(status.success(), "ratelimitd ended with {status}:\n{}", self.process.stderr());
        Ok(())
    }
}

impl Stats {
    fn read(stats: &Value) -> Result<Self> {
        let number = |pointer: &str| {
            stats.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("the statistics have no {pointer}"))
        };
        let position = |list: &str, key: &str, value: &str| {
            let is_it = |entry: &Value| entry.get(key).and_then(Value::as_str) == Some(value);
            stats.get(list).and_then(Value::as_array).and_then(|entries| entries.iter().position(is_it))
        };
        let good = position("interfaces", "name", GOOD.interface).context("the statistics lack an interface")?;
        let crawler = position("groups", "group", CRAWLER);
        let bad = position("top", "source", &Ipv4Addr::to_string(&BAD.client));
        Ok(Self {
            admitted: number("/rules/0/admitted")?,
            dropped: number("/rules/0/dropped")?,
            would_drop: number("/rules/0/would_drop")?,
            dropped_of_good: number(&format!("/interfaces/{good}/packets/dropped"))?,
            used_by_bad: bad.map_or(Ok(0), |bad| number(&format!("/top/{bad}/used")))?,
            used_by_crawler: crawler.map_or(Ok(0), |at| number(&format!("/groups/{at}/used")))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_by_name_not_by_position() {
        let stats = serde_json::json!({
            "interfaces": [
                { "name": "bad0", "packets": { "dropped": 9 } }, { "name": "good0", "packets": { "dropped": 1 } },
            ],
            "rules": [ { "admitted": 150, "dropped": 10, "would_drop": 2 } ],
            "groups": [ { "group": "198.18.0.0/21", "used": 99 } ],
            "top": [ { "source": "192.0.2.7", "used": 50 }, { "source": "198.51.100.7", "used": 100 } ],
        });
        let stats = Stats::read(&stats).unwrap();
        assert_eq!((stats.admitted, stats.dropped, stats.would_drop), (150, 10, 2));
        assert_eq!((stats.dropped_of_good, stats.used_by_bad, stats.used_by_crawler), (1, 100, 99));
        assert!(Stats::read(&serde_json::json!({})).is_err());
    }
}
