//! bpf-linker of the pinned version: set-up's own, the user's, or a new build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Tools, say};
use crate::pins::Pins;
use crate::{run, workspace};

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

fn build(pins: &Pins, tools: &Tools) -> Result<()> {
    let label = format!("setup: linker: building bpf-linker {} (a minute or two, once)", pins.bpf_linker);
    let mut command = Command::new(workspace::cargo());
    command.args(["install", "bpf-linker", "--locked", "--force", "--version", &pins.bpf_linker]);
    command.arg("--root").arg(&tools.dir);
    let by_hand = run::shown(&command);
    run::step(&label, &mut command).with_context(|| format!("bpf-linker cannot be built; by hand: {by_hand}"))?;
    // Results of another linker do not apply to this one.
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
