//! `cargo xtask lint`: runs clippy on the BPF program as compiled for BPF. On the host its crate is an empty program.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::setup::linter::{self, Linter};
use crate::{run, workspace};

pub(crate) fn run() -> Result<ExitCode> {
    let Linter { toolchain, builds_core, driver, unstable_crates } = linter::ensure()?;
    let mut command = Command::new("rustup");
    command.current_dir(workspace::root()).args(["run", &toolchain, "cargo", "check", "--package", "ratelimit-ebpf"]);
    command.args(["--target", "bpfel-unknown-none"]);
    if builds_core {
        command.arg("-Zbuild-std=core");
    }
    command.arg("--target-dir").arg(workspace::target_dir().join("lint"));
    // Variables of the cargo that runs this command name another compiler.
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    let arch = format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH);
    command.env("CARGO_ENCODED_RUSTFLAGS", format!("{arch}\x1f-Cdebuginfo=2\x1f-Dwarnings"));
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("RUSTC_BOOTSTRAP", unstable_crates);
    let status = command.status().with_context(|| format!("start `{}`", run::shown(&command)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
