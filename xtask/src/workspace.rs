//! Paths of the workspace, cargo's home, and programs on PATH.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the directory of the workspace's Cargo.toml.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Returns cargo's default target directory.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the cargo that runs this program, or the one on PATH.
pub(crate) fn cargo() -> PathBuf {
    env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Returns `$CARGO_HOME`, or `~/.cargo` if unset. Fails if HOME is unset too.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(cargo_home) = env::var_os("CARGO_HOME") {
        return Ok(PathBuf::from(cargo_home));
    }
    let home = env::var_os("HOME").context("neither CARGO_HOME nor HOME is set: set one")?;
    Ok(PathBuf::from(home).join(".cargo"))
}

/// Returns the full path of a program, from PATH or the administrator's directories.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|candidate| is_executable(candidate))
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("bpf-toolchain.toml").is_file());
    }

    #[test]
    fn a_program_is_found_by_name_and_a_missing_one_is_not() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(program("no-such-program-anywhere"), None);
    }
}
