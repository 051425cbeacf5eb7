//! Reproducible release builds: they contain no path of this machine. Each binary carries the list of its packages
//! (`.dep-v0`), which `cargo audit bin` and other scanners read.
//!
//! The BPF object's own build script makes the object reproducible.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tools::AUDITABLE;
use crate::{cargo, shipped, workspace};

/// Linkage with the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// Linked with the system's C library, which the packages depend on.
    Dynamic,
    /// Linked statically into one file, for any Linux of this architecture.
    Static,
}

pub(super) fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds into `target_dir` and returns the binary. Fails if the binary has crash points.
pub(super) fn release(linkage: Linkage, target_dir: &Path) -> Result<PathBuf> {
    let target = target();
    let dir = target_dir.to_str().with_context(|| format!("the path {} is not UTF-8", target_dir.display()))?;
    // With an explicit target, the flags apply only to the program, and build scripts are built as usual.
    let arguments = ["--release", "--locked", "--target", &target, "--target-dir", dir];
    let package = ["--package", "ratelimit-userspace", "--bin", "ratelimitd"];
    let mut auditable = Command::new(AUDITABLE.ensure()?);
    auditable.arg("auditable").env("RUSTFLAGS", flags(linkage, target_dir)?).env("CARGO_INCREMENTAL", "0");
    // This variable would take precedence over RUSTFLAGS.
    auditable.env_remove("CARGO_ENCODED_RUSTFLAGS");
    let artifacts = cargo::build_by(auditable, &[&arguments[..], &package].concat())?;
    let binary = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    shipped::refuse_crash_points(binary)?;
    Ok(binary.clone())
}

/// Returns the compiler flags. Of several matching path prefixes the compiler takes the last.
fn flags(linkage: Linkage, target_dir: &Path) -> Result<OsString> {
    let cargo_home = workspace::cargo_home()?;
    let mut prefixes = vec![(cargo_home.clone(), "/cargo")];
    // Registry directories are named after their host.
    let registries = fs::read_dir(cargo_home.join("registry/src")).into_iter().flatten().flatten();
    prefixes.extend(registries.map(|entry| (entry.path(), "/cargo")));
    prefixes.sort();
    prefixes.extend([(workspace::root().to_owned(), ""), (target_dir.to_owned(), "target")]);
    let mut flags = OsString::from("-Cstrip=symbols");
    if linkage == Linkage::Static {
        flags.push(" -Ctarget-feature=+crt-static");
    }
    for (from, to) in prefixes {
        flags.push(" --remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    Ok(flags)
}
