//! Recorder of terminals, and the converter of its recordings to moving pictures.

use std::process::Command;

use anyhow::Result;

use super::programs;
use super::python::Packages;

const CONVERTER: Packages = Packages {
    name: "termtosvg",
    version: "1.4.1",
    requirements: &["termtosvg-ng==1.4.1", "lxml==6.1.3", "pyte==0.8.2", "wcwidth==0.9.4"],
    arguments: &[],
};

/// Ensures the recorder, and the programs of the recorded scene.
pub(crate) fn ensure_recorder() -> Result<()> {
    programs::ensure_some(&["asciinema", "curl", "ip", "nsenter", "setpriv"])
}

/// Returns the converter as a command without arguments. Fetches it if it is missing.
pub(crate) fn converter() -> Result<Command> {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", CONVERTER.ensure()?).args(["-m", "termtosvg"]);
    Ok(command)
}
