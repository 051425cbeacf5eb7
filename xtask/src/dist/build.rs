//! The release builds, the same bytes wherever they are made: no path of this machine is in them. Each carries the list of
//! its packages (`.dep-v0`), which `cargo audit bin` and other scanners read.
//!
//! The BPF object's own build script does the same for the object.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tools::AUDITABLE;
use crate::{cargo, shipped, workspace};

/// How it is linked with the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linkage {
    /// The system's: the packages depend on it.
    Dynamic,
    /// All in one file, for any Linux of this architecture.
    Static,
}

pub(super) fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds into `target_dir` and gives the binary.
pub(super) fn release(linkage: Linkage, target_dir: &Path) -> Result<PathBuf> {
    let target = target();
    let dir = target_dir.to_str().with_context(|| format!("the path {} is not UTF-8", target_dir.display()))?;
    // With a target named, the flags are those of the program alone, and build scripts run as they always do.
    let arguments = ["--release", "--locked", "--target", &target, "--target-dir", dir];
    let package = ["--package", "ratelimit-userspace", "--bin", "ratelimitd"];
    let mut auditable = Command::new(AUDITABLE.ensure()?);
    auditable.arg("auditable").env("RUSTFLAGS", flags(linkage, target_dir)?).env("CARGO_INCREMENTAL", "0");
    // It would go before the other.
    auditable.env_remove("CARGO_ENCODED_RUSTFLAGS");
    let artifacts = cargo::build_by(auditable, &[&arguments[..], &package].concat())?;
    let binary = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    shipped::refuse_crash_points(binary)?;
    Ok(binary.clone())
}

/// Of several prefixes that fit, the compiler takes the last.
fn flags(linkage: Linkage, target_dir: &Path) -> Result<OsString> {
    let cargo_home = workspace::cargo_home()?;
    let mut prefixes = vec![(cargo_home.clone(), "/cargo")];
    // Named by the host that the packages come from.
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
