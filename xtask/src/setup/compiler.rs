//! Rust compiler for the BPF target: an installed one, or one that can be installed.
//!
//! Two kinds are suitable: a stable compiler with `core` compiled for BPF (Debian's rustc-web), and a nightly with
//! rust-src, which compiles `core` itself. A compiler is accepted only if it builds the probe.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::record::Record;
use super::{Tools, apt, llvm, probe, say};
use crate::pins::Pins;
use crate::run;

/// Sysroot of Debian's rustc packages.
pub(super) const DEBIAN_SYSROOT: &str = "/usr";

pub(super) struct Compiler {
    /// Name of the toolchain in rustup.
    pub(super) toolchain: String,
    /// True for a nightly: cargo gets `-Zbuild-std=core`.
    pub(super) builds_core: bool,
    /// libLLVM that bpf-linker has to load.
    pub(super) llvm: PathBuf,
    /// Files and directories that must continue to exist.
    pub(super) needs: Vec<PathBuf>,
}

pub(super) fn ensure(pins: &Pins, tools: &Tools, linker: &Path) -> Result<Compiler> {
    let recorded = Record::read(&tools.record_file()).map(|record| record.toolchain);
    let mut failures = String::new();
    for name in candidates(recorded.as_deref(), pins)? {
        match try_toolchain(&name, pins, tools, linker) {
            Ok(compiler) => return Ok(compiler),
            Err(reason) => note(&mut failures, &format!("toolchain {name}"), &reason),
        }
    }
    for (way, install) in [("Debian's packages", from_debian as Install), ("rustup", from_rustup)] {
        match install(pins).and_then(|name| try_toolchain(&name, pins, tools, linker)) {
            Ok(compiler) => return Ok(compiler),
            Err(reason) => note(&mut failures, way, &reason),
        }
    }
    bail!(
        "no Rust compiler for the BPF target could be found or installed; tried:\n{failures}\
         Either of these, then `cargo xtask setup` again, gives one:\n  \
         apt-get install {packages}\n  \
         rustup toolchain install {nightly} --profile minimal --component rust-src",
        packages = pins.debian_packages.join(" "),
        nightly = pins.nightly,
    )
}

/// Installs a compiler if no installed one looks suitable. [`ensure`] tries the result, and reports what failed here.
pub(super) fn download(pins: &Pins) {
    let is_there = candidates(None, pins).is_ok_and(|names| names.iter().any(|name| Found::look(name, pins).is_ok()));
    if !is_there && let Err(reason) = from_debian(pins) {
        say(&format!("compiler: Debian's packages: {reason:#}"));
        // The second attempt, by `ensure`, reports the failure.
        from_rustup(pins).ok();
    }
}

/// Returns the installed toolchains to try, in this order.
fn candidates(recorded: Option<&str>, pins: &Pins) -> Result<Vec<String>> {
    let installed = installed_toolchains()?;
    let mut candidates: Vec<String> = Vec::new();
    for name in recorded.into_iter().chain([&*pins.linked_toolchain, &*pins.nightly, "nightly"]) {
        let name = installed.iter().find(|known| is_same_toolchain(known, name));
        candidates.extend(name.filter(|name| !candidates.contains(name)).cloned());
    }
    Ok(candidates)
}

/// Installs a toolchain and returns its name.
type Install = fn(&Pins) -> Result<String>;

fn from_debian(pins: &Pins) -> Result<String> {
    let packages: Vec<&str> = pins.debian_packages.iter().map(String::as_str).collect();
    apt::install("compiler", &packages)?;
    say(&format!("compiler: linking {DEBIAN_SYSROOT} in rustup as {}", pins.linked_toolchain));
    run::answer(Command::new("rustup").args(["toolchain", "link", &pins.linked_toolchain, DEBIAN_SYSROOT]))?;
    Ok(pins.linked_toolchain.clone())
}

fn from_rustup(pins: &Pins) -> Result<String> {
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", &pins.nightly, "--profile", "minimal", "--component", "rust-src"]);
    command.arg("--no-self-update");
    run::step(&format!("setup: compiler: installing {}", pins.nightly), &mut command)?;
    Ok(pins.nightly.clone())
}

/// An installed toolchain that could build the BPF program.
struct Found {
    /// Output of `rustc -vV`.
    about: String,
    sysroot: PathBuf,
    builds_core: bool,
    /// Directory with `core`, compiled or as source.
    core: PathBuf,
}

impl Found {
    fn look(name: &str, pins: &Pins) -> Result<Self> {
        let rustc = |argument: &[&str]| run::answer(Command::new("rustup").args(["run", name, "rustc"]).args(argument));
        let about = rustc(&["--version", "--verbose"])?;
        let sysroot = PathBuf::from(rustc(&["--print", "sysroot"])?);
        let major = llvm_major(&about).context("rustc names no LLVM version")?;
        ensure!(
            major <= pins.llvm_major,
            "its LLVM {major} is later than LLVM {}, which bpf-linker {} reads",
            pins.llvm_major,
            pins.bpf_linker
        );
        let builds_core = about.contains("-nightly");
        let rustlib = sysroot.join("lib/rustlib");
        let core = rustlib.join(if builds_core { "src/rust/library/core" } else { "bpfel-unknown-none/lib" });
        ensure!(core.is_dir(), "it has no {}", core.display());
        Ok(Self { about, sysroot, builds_core, core })
    }
}

fn try_toolchain(name: &str, pins: &Pins, tools: &Tools, linker: &Path) -> Result<Compiler> {
    let Found { about, sysroot, builds_core, core } = Found::look(name, pins)?;
    // A toolchain's own LLVM reads its own output and is tried first. An LLVM with the same major version works too.
    let mut sysroots = vec![sysroot.clone()];
    sysroots.extend(other_sysroots(&sysroot)?);
    let mut last = None;
    for llvm in llvm::candidates(&sysroots, pins.llvm_major) {
        llvm::offer(&llvm, tools)?;
        let needs = vec![sysroot.join("bin/rustc"), core.clone(), toolchain_dir(name)?];
        let compiler = Compiler { toolchain: name.to_owned(), builds_core, llvm, needs };
        match probe::build(pins, &compiler, linker, tools) {
            Ok(()) => {
                let version = about.lines().next().unwrap_or_default();
                say(&format!("compiler: {name} ({version}), its probe is a BPF object"));
                return Ok(compiler);
            }
            Err(reason) => last = Some(reason),
        }
    }
    Err(last.with_context(|| format!("no libLLVM {} for bpf-linker in any toolchain", pins.llvm_major))?)
}

/// Returns the names of the toolchains that rustup lists.
pub(super) fn installed_toolchains() -> Result<Vec<String>> {
    let list = run::answer(Command::new("rustup").args(["toolchain", "list", "--quiet"]))
        .context("rustup is needed: https://rustup.rs says how to install it")?;
    Ok(list.lines().map(|line| line.trim().to_owned()).collect())
}

/// Returns true if a listed name is this toolchain. rustup lists `nightly-x86_64-unknown-linux-gnu` for `nightly`.
fn is_same_toolchain(listed: &str, name: &str) -> bool {
    let rest = listed.strip_prefix(name);
    rest.is_some_and(|host| host.is_empty() || (host.starts_with('-') && !host.starts_with("-20")))
}

fn toolchain_dir(name: &str) -> Result<PathBuf> {
    let home = run::answer(Command::new("rustup").args(["show", "home"]))?;
    let toolchains = PathBuf::from(home).join("toolchains");
    let full = installed_toolchains()?.into_iter().find(|listed| is_same_toolchain(listed, name));
    Ok(toolchains.join(full.with_context(|| format!("rustup does not list {name}"))?))
}

fn other_sysroots(own: &Path) -> Result<Vec<PathBuf>> {
    let dirs: Result<Vec<PathBuf>> = installed_toolchains()?.iter().map(|name| toolchain_dir(name)).collect();
    Ok(dirs?.into_iter().filter(|dir| dir != own).collect())
}

/// Parses the major version from the line `LLVM version: 22.1.2` of `rustc -vV`.
fn llvm_major(about: &str) -> Option<u32> {
    about.lines().find_map(|line| line.strip_prefix("LLVM version: "))?.split('.').next()?.parse().ok()
}

fn note(failures: &mut String, way: &str, reason: &anyhow::Error) {
    // Writing to a String cannot fail.
    writeln!(failures, "  {way}: {reason:#}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_of_llvm_is_read_from_what_rustc_says() {
        assert_eq!(llvm_major("rustc 1.96.0\nrelease: 1.96.0\nLLVM version: 22.1.8"), Some(22));
        assert_eq!(llvm_major("rustc 1.96.0"), None);
    }

    #[test]
    fn a_toolchain_is_known_by_its_name_with_and_without_the_host() {
        assert!(is_same_toolchain("nightly-x86_64-unknown-linux-gnu", "nightly"));
        assert!(is_same_toolchain("ratelimitd-bpf", "ratelimitd-bpf"));
        assert!(!is_same_toolchain("nightly-2026-05-20-x86_64-unknown-linux-gnu", "nightly"));
        assert!(!is_same_toolchain("stable-x86_64-unknown-linux-gnu", "nightly"));
    }
}
