//! `cargo xtask test`: runs every tier of tests, and reports each test that did not run.
//!
//! The privileged tests are built as the user and run as root, up to three files at a time. Some of them run again on
//! other kernels. A test that cannot run prints `skipped: NAME: REASON` and passes. If CI is set, a skipped test fails
//! the run.

mod book;
mod cross;
mod fleet;
mod harness;
mod kernels;
pub(crate) mod screenshots;
mod stable;
mod summary;
mod systemd;
mod tiers;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::setup;
use summary::Summary;
use systemd::Transcript;

#[derive(Args)]
pub(crate) struct Options {
    /// Fail the run if a test is skipped (the default if CI is set)
    #[arg(long)]
    no_skips: bool,
    /// Run only this tier
    #[arg(long, value_enum)]
    tier: Option<Tier>,
    /// For the tier systemd: test this package instead of the built one
    #[arg(long, value_name = "FILE")]
    package: Option<PathBuf>,
    /// For the tier systemd: write docs/SYSTEMD-TRANSCRIPT.md
    #[arg(long)]
    write: bool,
    /// Run only the tests whose name contains this
    filter: Option<String>,
}

impl Options {
    /// Returns the share of tests that the kernels tier runs.
    fn kernels(&self) -> kernels::Share {
        if self.tier == Some(Tier::Kernels) { kernels::Share::All } else { kernels::Share::Named }
    }
}

/// Tiers of tests, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// Crates that need no BPF compiler, built and tested where none can be found, even before `setup`; only if this
    /// tier is named, the tier unprivileged runs the same tests
    Stable,
    /// Tests that run without root
    Unprivileged,
    /// The window's protocol in every interleaving of its threads
    Models,
    /// Tests that run as root, on this kernel
    Privileged,
    /// The BPF program on other kernels, in qemu; all its tests only if this tier is named, otherwise a third
    Kernels,
    /// The book of the documents, without a dead link
    Book,
    /// The build for aarch64, and its refusal for a big-endian machine
    Cross,
    /// The BPF program and the daemon on aarch64, in qemu; only if this tier is named
    Aarch64,
    /// The package under a real systemd, in a container
    Systemd,
    /// The package under systemd across a reboot, in qemu; only if this tier is named
    SystemdVm,
    /// The daemon killed at each crash point under each load; only if this tier is named, the privileged tier does a
    /// third
    Crash,
    /// A fleet for a minute in each failure, and its cost; takes twenty minutes, writes docs/FLEET.md; only if this
    /// tier is named
    Fleet,
}

impl Tier {
    /// Returns true if the tier runs. Tiers that take many minutes run only when they are named.
    fn is_wanted(self, only: Option<Self>) -> bool {
        only.map_or(
            !matches!(self, Self::Stable | Self::Aarch64 | Self::SystemdVm | Self::Crash | Self::Fleet),
            |only| only == self,
        )
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let is_stable_alone = options.tier == Some(Tier::Stable);
    if !is_stable_alone {
        setup::ensure(setup::Tier::Test)?;
    }
    let filter = options.filter.as_deref();
    let wanted = systemd::Wanted {
        package: options.package.as_deref(),
        transcript: if options.write { Transcript::Written } else { Transcript::Dropped },
    };
    let mut summary = Summary::default();
    for tier in Tier::value_variants().iter().filter(|tier| tier.is_wanted(options.tier)) {
        summary.add(match tier {
            Tier::Stable => stable::stable(filter)?,
            Tier::Unprivileged => tiers::unprivileged(filter)?,
            Tier::Models => tiers::models(filter)?,
            Tier::Privileged => tiers::privileged(filter)?,
            Tier::Kernels => kernels::kernels(filter, options.kernels())?,
            Tier::Book => book::book(filter),
            Tier::Cross => cross::cross(filter),
            Tier::Aarch64 => kernels::aarch64::aarch64(filter)?,
            Tier::Systemd => systemd::systemd(filter, &wanted)?,
            Tier::SystemdVm => systemd::vm::reboot(filter, &wanted)?,
            Tier::Crash => tiers::crash(filter)?,
            Tier::Fleet => fleet::fleet(filter)?,
        });
    }
    print!("{summary}");
    // Before `setup` some programs are missing. CI runs the skipped tests in the tier unprivileged.
    let may_skip = !options.no_skips && (is_stable_alone || !is_ci());
    Ok(if summary.failed() > 0 || (summary.skipped() > 0 && !may_skip) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}
