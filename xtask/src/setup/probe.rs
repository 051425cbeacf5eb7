//! Check that compiler, linker and libLLVM work together: they build a small program in the same way as the real one.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Tools;
use super::compiler::Compiler;
use crate::pins::Pins;
use crate::{run, workspace};

/// `e_machine` of a BPF object, at byte 18 of the ELF header.
const EM_BPF: [u8; 2] = 247u16.to_le_bytes();

/// Builds the probe and checks that it is a BPF object. Cargo caches the result, so a repetition costs almost nothing.
pub(super) fn build(pins: &Pins, compiler: &Compiler, linker: &Path, tools: &Tools) -> Result<()> {
    let mut command = Command::new("rustup");
    command.args(["run", &compiler.toolchain, "cargo", "build", "--quiet", "--release"]);
    command.args(["--target", "bpfel-unknown-none"]);
    if compiler.builds_core {
        command.arg("-Zbuild-std=core");
    }
    command.arg("--manifest-path").arg(workspace::root().join("xtask/probe/Cargo.toml"));
    command.arg("--target-dir").arg(tools.probe_target_dir().join(&compiler.toolchain));
    command.env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker);
    command.env("CARGO_ENCODED_RUSTFLAGS", "-Cdebuginfo=2\x1f-Clink-arg=--btf");
    command.env("LD_LIBRARY_PATH", tools.llvm_dir());
    command.env("RUSTC_BOOTSTRAP", pins.unstable_crates.join(","));
    // Variables of the cargo that runs this program name another compiler.
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    run::answer(&mut command)?;

    let object = tools.probe_target_dir().join(&compiler.toolchain).join("bpfel-unknown-none/release/bpf-probe");
    let bytes = fs::read(&object).with_context(|| format!("read {}", object.display()))?;
    ensure!(bytes.get(18..20) == Some(&EM_BPF), "{} is not a BPF object", object.display());
    Ok(())
}
