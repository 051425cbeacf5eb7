//! A stopwatch for sending and receiving on one CPU. It reads CPU time if the kernel counts it correctly, which
//! excludes other load on the machine. Otherwise it reads the wall clock.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_gettime};

/// Kernel option that takes softirqs out of a thread's time. Receiving is a softirq, and runs in the sender's time or
/// in that of the CPU's `ksoftirqd`.
const SOFTIRQS_APART: &str = "CONFIG_IRQ_TIME_ACCOUNTING=y";

/// A running stopwatch.
pub struct Stopwatch {
    at: Instant,
    spent: Option<Spent>,
}

struct Spent {
    sender: Duration,
    receiver: Duration,
    schedstat: PathBuf,
}

impl Stopwatch {
    /// Starts a stopwatch, on the thread that sends and that stays on this CPU.
    pub fn start(cpu: usize) -> Result<Self> {
        let spent = match (counts_softirqs(), ksoftirqd(cpu)) {
            (true, Some(schedstat)) => Some(Spent { sender: sender()?, receiver: receiver(&schedstat)?, schedstat }),
            (true, None) | (false, _) => None,
        };
        Ok(Self { at: Instant::now(), spent })
    }

    /// Returns the time since the start.
    pub fn stop(self) -> Result<Duration> {
        let wall = self.at.elapsed();
        let Some(Spent { sender: sent, receiver: received, schedstat }) = self.spent else { return Ok(wall) };
        Ok((sender()? - sent) + receiver(&schedstat)?.saturating_sub(received))
    }
}

/// Returns the name of the clock that is read.
pub fn clock() -> &'static str {
    if counts_softirqs() && ksoftirqd(0).is_some() { "CPU time" } else { "wall clock" }
}

/// Returns whether a thread's time includes the softirqs that run in it.
fn counts_softirqs() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| config().is_some_and(|config| !config.contains(SOFTIRQS_APART)))
}

/// Returns the kernel's configuration, if it can be found.
fn config() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    if let Ok(config) = fs::read_to_string(format!("/boot/config-{}", release.trim())) {
        return Some(config);
    }
    let output = Command::new("zcat").arg("/proc/config.gz").output().ok()?;
    (output.status.success() && !output.stdout.is_empty()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn sender() -> Result<Duration> {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("read the thread's time")?;
    Ok(now.into())
}

/// Returns the time that a thread has run, in nanoseconds: the first number of its schedstat.
fn receiver(schedstat: &PathBuf) -> Result<Duration> {
    let text = fs::read_to_string(schedstat).with_context(|| format!("read {}", schedstat.display()))?;
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    Ok(Duration::from_nanos(ns.with_context(|| format!("{} has no time", schedstat.display()))?))
}

/// Returns the path of the schedstat of a CPU's `ksoftirqd`, if it is visible.
fn ksoftirqd(cpu: usize) -> Option<PathBuf> {
    static ALL: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let named = processes.filter_map(|path| {
            let name = fs::read_to_string(path.join("comm")).ok()?;
            let schedstat = path.join("schedstat");
            (name.starts_with("ksoftirqd/") && schedstat.exists()).then(|| (name.trim().to_owned(), schedstat))
        });
        named.collect()
    });
    all.iter().find(|(name, _)| *name == format!("ksoftirqd/{cpu}")).map(|(_, schedstat)| schedstat.clone())
}
