//! Builds the BPF crate with the compiler that `cargo xtask setup` has found.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};

/// Programs of the BPF crate.
const PROGRAMS: [&str; 4] = ["ratelimit-ebpf", "classifier", "bare", "generator"];

/// Build of the BPF crate: its sources, compiler and features.
pub(crate) struct Build<'a> {
    /// Directory of the BPF crate.
    pub(crate) crate_dir: &'a Path,
    /// Name of the toolchain in rustup.
    pub(crate) toolchain: &'a str,
    /// Feature of the BPF crate to enable, if any.
    pub(crate) feature: Option<&'a str>,
}

impl Build<'_> {
    /// Builds all programs, always optimised, and returns their files. Fails with the compiler's output.
    pub(crate) fn run(&self, out_dir: &Path) -> Result<Vec<PathBuf>> {
        println!("cargo::rerun-if-changed={}", self.crate_dir.display());
        let target = target()?;
        let mut cargo = self.rustup("cargo");
        cargo.args(["build", "--package", "ratelimit-ebpf", "--bins", "--release", "--target", target]);
        if self.builds_core()? {
            cargo.arg("-Zbuild-std=core");
        }
        cargo.args(self.feature.iter().flat_map(|feature| ["--features", feature]));
        // Another directory than that of the calling cargo, which holds a lock on its own.
        let target_dir = out_dir.join("bpf");
        cargo.arg("--target-dir").arg(&target_dir);
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags()?);
        // The calling cargo sets these for its own compiler.
        for name in ["RUSTC", "RUSTC_WORKSPACE_WRAPPER"] {
            cargo.env_remove(name);
        }
        answer(&mut cargo)?;

        let built = target_dir.join(target).join("release");
        let copy = |name: &str| {
            let (from, to) = (built.join(name), out_dir.join(name));
            fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
            Ok(to)
        };
        PROGRAMS.into_iter().map(copy).collect()
    }

    /// Returns true for a nightly, which has no compiled `core` for BPF.
    fn builds_core(&self) -> Result<bool> {
        Ok(answer(self.rustup("rustc").arg("--version"))?.contains("-nightly"))
    }

    fn rustup(&self, program: &str) -> Command {
        let mut command = Command::new("rustup");
        command.args(["run", self.toolchain, program]);
        command
    }
}

/// Returns the BPF target with the byte order of the target that cargo builds for.
fn target() -> Result<&'static str> {
    match &*variable("CARGO_CFG_TARGET_ENDIAN")? {
        "little" => Ok("bpfel-unknown-none"),
        "big" => Ok("bpfeb-unknown-none"),
        other => Err(anyhow!("unknown byte order {other}")),
    }
}

/// Returns the compiler's flags, in the form of `CARGO_ENCODED_RUSTFLAGS`: the kernel's architecture, which decides its
/// structures, and the debug information from which the linker makes BTF.
fn flags() -> Result<String> {
    let architecture = variable("CARGO_CFG_TARGET_ARCH")?;
    let architecture = if architecture.starts_with("riscv64") { "riscv64" } else { &architecture };
    let architecture = format!("--cfg=bpf_target_arch=\"{architecture}\"");
    Ok([&architecture, "-Cdebuginfo=2", "-Clink-arg=--btf"].join("\x1f"))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("cargo sets {name}"))
}

/// Returns the stdout of a command. Fails with its stderr if the command fails.
fn answer(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {command:?}; https://rustup.rs says how to install rustup"))?;
    // Cargo shows these lines to the developer. Those of rustup say that it runs another toolchain's cargo.
    for line in String::from_utf8_lossy(&output.stderr).lines().filter(|line| !line.starts_with("info: ")) {
        println!("cargo::warning={line}");
    }
    ensure!(output.status.success(), "{command:?} failed ({})", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("read the output of {command:?}"))
}
