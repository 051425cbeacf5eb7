//! bpf-linker of the pinned version: set-up's own, the user's, or a new build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Tools, say};
use crate::pins::Pins;
use crate::{cargo, run, workspace};

/// Packages that cargo builds together for the demo: the linker is a feature of this one.
pub(crate) const PACKAGES: [&str; 8] =
    ["--package", "xtask", "--package", "bpf-linker", "--package", "ratelimit-userspace", "--features", "xtask/linker"];

pub(super) fn ensure(pins: &Pins, tools: &Tools) -> Result<PathBuf> {
    let users = workspace::cargo_home()?.join("bin/bpf-linker");
    let candidates = [Some(tools.linker()), workspace::program("bpf-linker"), Some(users)];
    if let Some(linker) = candidates.into_iter().flatten().find(|path| has_version(path, &pins.bpf_linker)) {
        say(&format!("linker: {}", linker.display()));
        return Ok(linker);
    }
    build(pins, tools)?;
    Ok(tools.linker())
}

/// Builds the linker from the workspace's lock file, together with the libraries that the daemon shares with it. Cargo
/// gives each library the features that all named packages need, so the daemon's build finds the same libraries.
fn build(pins: &Pins, tools: &Tools) -> Result<()> {
    let mut arguments = PACKAGES.map(str::to_owned).to_vec();
    arguments.extend(["--bin", "bpf-linker"].map(str::to_owned));
    // Most of its libraries are fast enough without optimisation. Its own code and the reader of debug information are
    // not, and trust their input as in a release.
    for package in ["bpf-linker", "gimli"] {
        for setting in ["opt-level=3", "debug-assertions=false", "overflow-checks=false"] {
            arguments.extend(["--config".to_owned(), format!("profile.dev.package.{package}.{setting}")]);
        }
    }
    let label = format!("setup: linker: building bpf-linker {} (a minute, once)", pins.bpf_linker);
    let by_hand = format!("by hand: cargo install bpf-linker --locked --version {}", pins.bpf_linker);
    let built = cargo::build_step(&label, &arguments, "bpf-linker").with_context(|| by_hand)?;
    // Renamed into place, so that a concurrent build finds a complete one.
    let linker = tools.linker();
    let new = linker.with_extension("new");
    let dir = linker.parent().context("the linker has a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    fs::copy(&built, &new).with_context(|| format!("copy {} to {}", built.display(), new.display()))?;
    fs::rename(&new, &linker).with_context(|| format!("make {}", linker.display()))?;
    // The probe's results with another linker do not apply to this one.
    match fs::remove_dir_all(tools.probe_target_dir()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove {}", tools.probe_target_dir().display())),
    }
}

fn has_version(linker: &Path, version: &str) -> bool {
    linker.is_file()
        && run::answer(Command::new(linker).arg("--version")).is_ok_and(|line| line == format!("bpf-linker {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_has_the_pinned_version() {
        let lock = fs::read_to_string(workspace::root().join("Cargo.lock")).unwrap();
        let pinned = format!("name = \"bpf-linker\"\nversion = \"{}\"\n", Pins::read().unwrap().bpf_linker);
        assert!(lock.contains(&pinned), "xtask/Cargo.toml has another version than bpf-toolchain.toml: {pinned}");
    }
}
