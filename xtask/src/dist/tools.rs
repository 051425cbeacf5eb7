//! Programs from the registry that only `dist` runs, built once at pinned versions and kept beside the tools of
//! `setup`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{run, workspace};

/// A program and its version.
pub(super) struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Adds the list of packages to the binary, for vulnerability scanners.
pub(super) const AUDITABLE: Tool = Tool { name: "cargo-auditable", version: "0.7.7" };
/// Makes an RPM package without rpmbuild.
pub(super) const GENERATE_RPM: Tool = Tool { name: "cargo-generate-rpm", version: "0.21.1" };

impl Tool {
    /// Returns the path of the program. Builds it if it is missing.
    pub(super) fn ensure(&self) -> Result<PathBuf> {
        let dir = workspace::cargo_home()?.join("ratelimitd").join(format!("{}-{}", self.name, self.version));
        let file = dir.join("bin").join(self.name);
        if !file.is_file() {
            let mut install = Command::new(workspace::cargo());
            install.args(["install", self.name, "--locked", "--version", self.version, "--root"]).arg(&dir);
            // Settings for builds of this project do not apply to it.
            for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_BUILD_TARGET"] {
                install.env_remove(name);
            }
            run::step(&format!("dist: building {} {} (a minute or two, once)", self.name, self.version), &mut install)?;
        }
        Ok(file)
    }
}
