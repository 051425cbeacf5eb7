//! Tools that build for aarch64 on another machine: a C compiler and Rust's standard library.
//!
//! Two standard libraries are suitable: rustup's for the compiler in use, and Debian's for the compiler of the same
//! package. Debian's is unpacked in the target directory, with apt's lists of arm64. Nothing of it is installed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::compiler::DEBIAN_SYSROOT;
use super::{apt, say};
use crate::packages::Apt;
use crate::{run, workspace};

/// Rust's name of the target.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Debian's name of the target's architecture.
pub(crate) const ARCHITECTURE: &str = "arm64";
/// C compiler and linker for the target. SQLite and ring contain C code.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const C_PACKAGES: [&str; 2] = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// Debian's compiler, and its standard library for another architecture.
const COMPILER_PACKAGE: &str = "rustc-web";
const LIBRARY_PACKAGE: &str = "libstd-rust-web-dev";

/// Compiler flags of the target: no optimisation and no debug information, since build time matters more than speed. As
/// target flags they leave the host's part of the build (macros, build scripts) unchanged.
const FLAGS: [&str; 3] = ["-Cdebuginfo=0", "-Copt-level=0", "-Cstrip=symbols"];
/// Cargo setting that turns off optimisation of C code, which follows the profile's level.
const PROFILE: &str = "profile.dev.package.libsqlite3-sys.opt-level=0";

/// Compiler for aarch64.
pub(crate) struct Cross {
    /// Debian's compiler with its library. None if the compiler in use has a library for the target.
    foreign: Option<Foreign>,
}

struct Foreign {
    compiler: PathBuf,
    sysroot: PathBuf,
}

/// Returns the directory for aarch64 downloads and measurements, below the target directory.
pub(crate) fn dir() -> PathBuf {
    workspace::target_dir().join("aarch64")
}

/// Returns apt for Debian's arm64 packages.
pub(crate) fn apt() -> Apt {
    Apt::Foreign { architecture: ARCHITECTURE, lists: dir().join("apt") }
}

/// Finds or installs the tools. Fails if neither standard library is available.
pub(crate) fn ensure() -> Result<Cross> {
    if workspace::program(LINKER).is_none() {
        apt::install("aarch64", &C_PACKAGES).with_context(|| format!("there is no {LINKER}, which links for it"))?;
    }
    let foreign = match of_rustup() {
        Ok(()) => None,
        Err(reason) => {
            let of_debian = of_debian().with_context(|| {
                format!(
                    "there is no standard library of Rust for {TARGET}: neither rustup's ({reason:#}), nor Debian's"
                )
            })?;
            Some(of_debian)
        }
    };
    Ok(Cross { foreign })
}

impl Cross {
    /// Returns the origin of the standard library.
    pub(crate) fn library(&self) -> &'static str {
        if self.foreign.is_some() { "Debian's" } else { "rustup's" }
    }

    /// Returns a cargo command that builds for aarch64, together with [`Self::arguments`].
    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new(workspace::cargo());
        let of_target = |what: &str| format!("CARGO_TARGET_{}_{what}", TARGET.replace('-', "_").to_uppercase());
        let mut flags = OsString::from(FLAGS.join(" "));
        if let Some(Foreign { compiler, sysroot }) = &self.foreign {
            flags.push(" --sysroot=");
            flags.push(sysroot);
            cargo.env("RUSTC", compiler);
        }
        cargo.env(of_target("LINKER"), LINKER).env(of_target("RUSTFLAGS"), flags);
        // These variables would take precedence over the target's flags.
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            cargo.env_remove(name);
        }
        cargo
    }

    /// Returns the arguments before the packages.
    pub(crate) fn arguments() -> [&'static str; 4] {
        ["--target", TARGET, "--config", PROFILE]
    }
}

/// Ensures the standard library of the compiler in use. rustup installs it if it is missing.
fn of_rustup() -> Result<()> {
    if has_library(&sysroot("rustc")?) {
        return Ok(());
    }
    let mut add = Command::new("rustup");
    add.args(["target", "add", TARGET]);
    // Toolchain of the cargo that runs this program. Otherwise rustup decides, as it did for cargo.
    if let Some(toolchain) = env::var_os("RUSTUP_TOOLCHAIN") {
        add.arg("--toolchain").arg(toolchain);
    }
    run::step(&format!("setup: aarch64: rustup target add {TARGET}"), &mut add)?;
    ensure!(has_library(&sysroot("rustc")?), "rustup has added {TARGET}, and it is not there");
    Ok(())
}

/// Ensures Debian's compiler and library. The compiler's package lacks the library for other architectures.
fn of_debian() -> Result<Foreign> {
    let compiler = Path::new(DEBIAN_SYSROOT).join("bin/rustc");
    if workspace::program("apt-get").is_none() {
        bail!("there is no apt-get here");
    }
    apt::install("aarch64", &[COMPILER_PACKAGE])?;
    let version = run::answer(Command::new("dpkg-query").args(["-W", "-f", "${Version}", COMPILER_PACKAGE]))?;
    // The library must have exactly the compiler's version.
    let unpacked = dir().join(format!("{LIBRARY_PACKAGE}-{}", version.replace('/', "-")));
    let sysroot = unpacked.join("usr");
    if !has_library(&sysroot) {
        fs::create_dir_all(dir()).with_context(|| format!("make {}", dir().display()))?;
        let (apt, packages) = (apt(), [format!("{LIBRARY_PACKAGE}={version}")]);
        let unpack = || apt.unpack("setup: aarch64", &packages, &unpacked);
        // The lists may be older than the archive, or missing.
        unpack().or_else(|_| apt.update("setup: aarch64").and_then(|()| unpack()))?;
        ensure!(has_library(&sysroot), "{LIBRARY_PACKAGE} {version} has no library for {TARGET}");
        say(&format!("aarch64: {LIBRARY_PACKAGE} is not installed, only unpacked in {}", unpacked.display()));
    }
    Ok(Foreign { compiler, sysroot })
}

fn sysroot(compiler: &str) -> Result<PathBuf> {
    let mut rustc = Command::new(compiler);
    Ok(run::answer(rustc.current_dir(workspace::root()).args(["--print", "sysroot"]))?.into())
}

fn has_library(sysroot: &Path) -> bool {
    let entries = fs::read_dir(sysroot.join("lib/rustlib").join(TARGET).join("lib")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| {
        let name = name.to_string_lossy();
        name.starts_with("libstd-") && name.ends_with(".rlib")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cross: &Cross, name: &str) -> Option<String> {
        let command = cross.cargo();
        let value = command.get_envs().find(|(of, _)| *of == name).and_then(|(_, value)| value);
        value.map(|value| value.to_string_lossy().into_owned())
    }

    #[test]
    fn a_library_is_one_that_is_there_for_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib/rustlib").join(TARGET).join("lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libcore-1.rlib"), "").unwrap();
        assert!(!has_library(dir.path()));
        fs::write(lib.join("libstd-1.rlib"), "").unwrap();
        assert!(has_library(dir.path()));
    }

    #[test]
    fn the_target_alone_is_told_of_another_library() {
        let of_rustup = Cross { foreign: None };
        assert_eq!(told(&of_rustup, "RUSTC"), None);
        let flags = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS";
        assert!(!told(&of_rustup, flags).unwrap().contains("--sysroot"));
        let foreign = Foreign { compiler: "/usr/bin/rustc".into(), sysroot: "/a/usr".into() };
        let of_debian = Cross { foreign: Some(foreign) };
        assert_eq!(told(&of_debian, "RUSTC").as_deref(), Some("/usr/bin/rustc"));
        assert!(told(&of_debian, flags).unwrap().ends_with(" --sysroot=/a/usr"));
        assert_eq!(told(&of_debian, "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER").as_deref(), Some(LINKER));
    }
}
