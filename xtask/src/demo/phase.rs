//! One phase of the demo: the limiter in one mode or absent, two simultaneous clients, and their results.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::client::{self, Outcome};
use super::interrupt;
use super::lab::{BAD, CRAWLER_FIRST, GOOD, Lab};
use super::limiter::{Limiter, Mode, Stats};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    NoLimiter,
    DryRun,
    Enforce,
    /// A crawler with many addresses replaces the bad client.
    Crawler,
}

impl Phase {
    pub(super) const ALL: [Self; 4] = [Self::NoLimiter, Self::DryRun, Self::Enforce, Self::Crawler];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NoLimiter => "no limiter",
            Self::DryRun => "dry-run",
            Self::Enforce => "enforce",
            Self::Crawler => "crawler",
        }
    }

    /// Returns the name of the phase's second client.
    pub(super) const fn other(self) -> &'static str {
        match self {
            Self::NoLimiter | Self::DryRun | Self::Enforce => "bad",
            Self::Crawler => "crawler",
        }
    }

    const fn mode(self) -> Option<Mode> {
        match self {
            Self::NoLimiter => None,
            Self::DryRun => Some(Mode::DryRun),
            Self::Enforce => Some(Mode::Enforce),
            Self::Crawler => Some(Mode::Groups),
        }
    }
}

/// Results of one phase.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) phase: Phase,
    pub(super) good: Outcome,
    pub(super) bad: Outcome,
    /// Requests of the bad client or the crawler, as counted by the web server.
    pub(super) bad_seen_by_web: u64,
    pub(super) web_cpu: Option<Duration>,
    pub(super) stats: Option<Stats>,
    /// Process id of the limiter, to check that it has ended.
    pub(super) limiter: Option<u32>,
}

pub(super) fn run(phase: Phase, lab: &Lab, binary: &Path, seconds: u32) -> Result<Measured> {
    interrupt::check()?;
    let limiter = phase.mode().map(|mode| Limiter::start(lab, binary, mode)).transpose()?;
    let seen = || match phase {
        Phase::NoLimiter | Phase::DryRun | Phase::Enforce => lab.seen_by_web(BAD.client),
        Phase::Crawler => lab.crawler_seen_by_web(),
    };
    let (cpu_before, seen_before) = (lab.web_cpu_time()?, seen()?);
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let (of_good, of_bad) = (&lab.good, &lab.bad);
    let (good, bad) = thread::scope(|scope| {
        let good = scope.spawn(move || client::good(of_good, GOOD.target(), end));
        let bad = scope.spawn(move || match phase {
            Phase::NoLimiter | Phase::DryRun | Phase::Enforce => client::bad(of_bad, BAD.target(), end),
            Phase::Crawler => client::crawl(of_bad, BAD.target(), CRAWLER_FIRST),
        });
        count_down(phase, end);
        let panicked = |_| anyhow!("a client panicked");
        Ok::<_, anyhow::Error>((good.join().map_err(panicked)??, bad.join().map_err(panicked)??))
    })?;
    interrupt::check()?;
    let web_cpu = lab.web_cpu_time()?.zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    let bad_seen_by_web = seen()? - seen_before;
    let stats = limiter.as_ref().map(Limiter::stats).transpose()?;
    let id = limiter.as_ref().map(Limiter::process_id);
    limiter.map(Limiter::stop).transpose()?;
    Ok(Measured { phase, good, bad, bad_seen_by_web, web_cpu, stats, limiter: id })
}

/// Counts down in one line on a terminal, otherwise prints one line.
fn count_down(phase: Phase, end: Instant) {
    let number = Phase::ALL.iter().position(|&other| other == phase).map_or(0, |position| position + 1);
    let label = format!("phase {number} of {}, {}", Phase::ALL.len(), phase.name());
    if !io::stderr().is_terminal() {
        eprintln!("{label} ...");
        return interrupt::sleep_until(end);
    }
    while !interrupt::came() && Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        eprint!("\r\x1b[2K{label}: {} s left", left.as_secs() + 1);
        // A failed write to the terminal cannot be handled.
        io::stderr().flush().ok();
        interrupt::sleep_until((Instant::now() + Duration::from_secs(1)).min(end));
    }
    eprintln!("\r\x1b[2K{label}: done");
}
