//! Package under test, and a copy that differs only in its version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::test::tiers;
use crate::{cargo, dist, run};

pub(super) const NAME: &str = "ratelimitd.deb";
pub(super) const NEWER: &str = "ratelimitd-newer.deb";
pub(super) const NEWER_VERSION: &str = "999.0.0";

/// Builds the package as `cargo xtask dist` does, from the binary of the other tests. A release build would take longer
/// than the rows.
pub(super) fn of_this_tree(work: &Path) -> Result<PathBuf> {
    let artifacts = cargo::build(&tiers::EVERYTHING)?;
    let built = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    let stripped = work.join("ratelimitd");
    fs::create_dir_all(work).with_context(|| format!("make {}", work.display()))?;
    run::answer(Command::new("strip").arg("-o").arg(&stripped).arg(built))?;
    dist::deb::build(&stripped, work, dist::epoch()?, dist::deb::Compression::Quick)
}

/// Puts both packages into a directory that the container sees. Returns the directory and the package's size.
pub(super) fn share(package: &Path, work: &Path) -> Result<(PathBuf, u64)> {
    let shared = work.join("shared");
    fs::create_dir_all(&shared).with_context(|| format!("make {}", shared.display()))?;
    let size = fs::copy(package, shared.join(NAME)).with_context(|| format!("copy {}", package.display()))?;
    renew(package, &shared.join(NEWER), &work.join("newer"))?;
    Ok((shared, size))
}

fn renew(package: &Path, newer: &Path, unpacked: &Path) -> Result<()> {
    if unpacked.exists() {
        fs::remove_dir_all(unpacked).with_context(|| format!("empty {}", unpacked.display()))?;
    }
    run::answer(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(unpacked))?;
    let control = unpacked.join("DEBIAN/control");
    let text = fs::read_to_string(&control).with_context(|| format!("read {}", control.display()))?;
    fs::write(&control, with_version(&text)).with_context(|| format!("write {}", control.display()))?;
    run::answer(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]).arg(unpacked).arg(newer))?;
    fs::remove_dir_all(unpacked).with_context(|| format!("remove {}", unpacked.display()))
}

fn with_version(control: &str) -> String {
    let line = |line: &str| {
        if line.starts_with("Version:") { format!("Version: {NEWER_VERSION}\n") } else { format!("{line}\n") }
    };
    control.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_version_differs() {
        let control = "Package: ratelimitd\nVersion: 0.1.0-1\nDescription: a\n Version: of a limiter\n";
        assert_eq!(with_version(control), control.replace("0.1.0-1", NEWER_VERSION));
    }
}
