//! Clippy beside the compiler of the BPF program: of the same package or toolchain, as it must know that compiler's `core`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::record::Record;
use super::{Tier, Tools, apt};
use crate::pins::Pins;
use crate::run;

/// What lints for BPF.
pub(crate) struct Linter {
    /// Its name in rustup.
    pub(crate) toolchain: String,
    /// A nightly: cargo is asked for `-Zbuild-std=core`.
    pub(crate) builds_core: bool,
    /// The driver that takes the compiler's place.
    pub(crate) driver: PathBuf,
    /// The crates of the object that use unstable features.
    pub(crate) unstable_crates: String,
}

/// Finds it, else installs it.
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
