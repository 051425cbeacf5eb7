//! Packages of Python's registry, at pinned versions, each set in a directory of its own beside set-up's other tools.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::programs;
use crate::{run, workspace};

/// Packages that are installed together.
pub(super) struct Packages {
    /// Name and version of the directory.
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// Lines of a requirements file for pip.
    pub(super) requirements: &'static [&'static str],
    /// Further arguments of pip.
    pub(super) arguments: &'static [&'static str],
}

impl Packages {
    /// Returns the directory of the packages. Fetches them if they are missing.
    pub(super) fn ensure(&self) -> Result<PathBuf> {
        let dir = workspace::cargo_home()?.join("ratelimitd").join(format!("{}-{}", self.name, self.version));
        let wanted = self.requirements.join("\n") + "\n";
        // The list is written before the directory gets its name, so it marks a complete installation.
        if fs::read_to_string(dir.join("requirements.txt")).is_ok_and(|list| list == wanted) {
            return Ok(dir);
        }
        programs::ensure_some(&["pip3"])?;
        let parts = dir.with_added_extension("parts");
        for leftover in [&parts, &dir].into_iter().filter(|path| path.exists()) {
            fs::remove_dir_all(leftover).with_context(|| format!("remove {}", leftover.display()))?;
        }
        fs::create_dir_all(&parts).with_context(|| format!("make {}", parts.display()))?;
        let list = parts.join("requirements.txt");
        fs::write(&list, wanted).with_context(|| format!("write {}", list.display()))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]);
        pip.args(self.arguments).arg("--requirement").arg(&list).arg("--target").arg(&parts);
        run::step(&format!("setup: fetching {} {} by pip", self.name, self.version), &mut pip)?;
        fs::rename(&parts, &dir).with_context(|| format!("move {} to {}", parts.display(), dir.display()))?;
        Ok(dir)
    }
}
