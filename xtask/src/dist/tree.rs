//! File trees for packages: file modes, compressed pages, and no influence of the user's umask.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::install::{self, File};
use crate::run;

/// Creates `root` with exactly these files. Directories have mode 0755.
pub(super) fn make(root: &Path, files: &[File]) -> Result<()> {
    install::start_empty(root)?;
    for file in files {
        install::place(file, &install::below(root, &file.path))
            .with_context(|| format!("write {} below {}", file.path.display(), root.display()))?;
    }
    for directory in walk(root)?.iter().filter(|path| path.is_dir()) {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("chmod {}", directory.display()))?;
    }
    Ok(())
}

/// Compresses files in place, without time stamp or name.
pub(super) fn gzip(files: &[PathBuf]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    run::answer(Command::new("gzip").args(["-9", "-n", "--"]).args(files)).map(drop)
}

/// Returns a directory and everything in it, sorted.
pub(super) fn walk(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if path.is_dir() && !path.is_symlink() {
            for entry in fs::read_dir(&path).with_context(|| format!("list {}", path.display()))? {
                found.push(entry.with_context(|| format!("list {}", path.display()))?.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the checksums of files as `program`, sha256sum or md5sum, prints and checks them.
pub(super) fn sums(program: &str, dir: &Path, files: &[PathBuf]) -> Result<String> {
    ensure!(!files.is_empty(), "nothing in {}", dir.display());
    let names: Vec<&Path> = files.iter().map(|file| file.strip_prefix(dir).unwrap_or(file)).collect();
    Ok(run::answer(Command::new(program).current_dir(dir).arg("--").args(names))? + "\n")
}
