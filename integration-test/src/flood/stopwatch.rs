//! How long sending and receiving took, on one CPU: by the CPU's time where the kernel counts it right, so that
//! whatever else the machine does at the same time is not in it; else by the wall clock.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::time::{ClockId, clock_gettime};

/// Receiving is a softirq, and runs in the sender's time or in that of the CPU's `ksoftirqd`. A kernel with this
/// option takes it out of both.
const SOFTIRQS_APART: &str = "CONFIG_IRQ_TIME_ACCOUNTING=y";

/// A start.
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
    /// Starts, on the thread that sends and stays on this CPU.
    pub fn start(cpu: usize) -> Result<Self> {
        let spent = match (counts_softirqs(), ksoftirqd(cpu)) {
            (true, Some(schedstat)) => Some(Spent { sender: sender()?, receiver: receiver(&schedstat)?, schedstat }),
            (true, None) | (false, _) => None,
        };
        Ok(Self { at: Instant::now(), spent })
    }

    /// What has passed since then.
    pub fn stop(self) -> Result<Duration> {
        let wall = self.at.elapsed();
        let Some(Spent { sender: sent, receiver: received, schedstat }) = self.spent else { return Ok(wall) };
        Ok((sender()? - sent) + receiver(&schedstat)?.saturating_sub(received))
    }
}

/// What it is that is measured.
pub fn clock() -> &'static str {
    if counts_softirqs() && ksoftirqd(0).is_some() { "CPU time" } else { "wall clock" }
}

/// Whether a thread's time has the softirqs in it that run there.
fn counts_softirqs() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| config().is_some_and(|config| !config.contains(SOFTIRQS_APART)))
}

/// The kernel's configuration, where it can be found.
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

/// Of a thread's schedstat the first number is the nanoseconds that it has run.
fn receiver(schedstat: &PathBuf) -> Result<Duration> {
    let text = fs::read_to_string(schedstat).with_context(|| format!("read {}", schedstat.display()))?;
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    Ok(Duration::from_nanos(ns.with_context(|| format!("{} has no time", schedstat.display()))?))
}

/// The schedstat of the kernel's thread that takes the softirqs of a CPU, where it can be seen.
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
