//! Clippy for the compiler of the BPF program, from the same package or toolchain, so that it can read the compiler's
//! `core`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::record::Record;
use super::{Tier, Tools, apt};
use crate::pins::Pins;
use crate::run;

/// Clippy for BPF.
pub(crate) struct Linter {
    /// Name of the toolchain in rustup.
    pub(crate) toolchain: String,
    /// True for a nightly: cargo gets `-Zbuild-std=core`.
    pub(crate) builds_core: bool,
    /// Clippy driver that replaces the compiler.
    pub(crate) driver: PathBuf,
    /// Crates of the object that use unstable features, separated by commas.
    pub(crate) unstable_crates: String,
}

/// Finds clippy for the recorded toolchain, or installs it.
pub(crate) fn ensure() -> Result<Linter> {
    super::ensure(Tier::Build)?;
    let pins = Pins::read()?;
    let toolchain = Record::read(&Tools::locate(&pins)?.record_file()).context("set-up has left no record")?.toolchain;
    let rustc = |argument: &str| run::answer(Command::new("rustup").args(["run", &toolchain, "rustc", argument]));
    let driver =
        PathBuf::from(run::answer(Command::new("rustup").args(["run", &toolchain, "rustc", "--print", "sysroot"]))?)
            .join("bin/clippy-driver");
    if !driver.exists() && toolchain == pins.linked_toolchain {
        apt::install("clippy for BPF", &[&pins.debian_clippy])?;
    } else if !driver.exists() {
        let mut command = Command::new("rustup");
        command.args(["component", "add", "clippy", "--toolchain", &toolchain]);
        run::step(&format!("setup: clippy for BPF: of {toolchain}"), &mut command)?;
    }
    ensure!(driver.exists(), "there is no {} for the toolchain {toolchain}", driver.display());
    let builds_core = rustc("-vV")?.contains("-nightly");
    let unstable_crates = pins.unstable_crates.join(",");
    Ok(Linter { toolchain, builds_core, driver, unstable_crates })
}
