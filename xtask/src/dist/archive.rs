//! Archive for any Linux: the files of `cargo xtask install` below one directory, and the licences.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{VERSION, read_text, tree};
use crate::install::{self, File, Layout};
use crate::{run, workspace};

/// Directory in which users unpack the archive. The unit refers to the program there.
const PREFIX: &str = "/usr/local";

/// Creates `ratelimitd-VERSION-ARCHITECTURE-linux.tar.gz` in `out`.
pub(super) fn build(binary: &Path, licences: &str, out: &Path, epoch: u64) -> Result<PathBuf> {
    let name = format!("ratelimitd-{VERSION}-{}-linux", std::env::consts::ARCH);
    let layout = Layout::below(Path::new(PREFIX));
    let mut files = install::files(binary, &layout)?;
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files.push(File::text(layout.document(licence), read_text(&workspace::root().join(licence))?));
    }
    files.push(File::text(layout.document("THIRD-PARTY-LICENSES"), licences));
    for file in &mut files {
        let inside = file.path.strip_prefix(PREFIX).or_else(|_| file.path.strip_prefix("/")).unwrap_or(&file.path);
        file.path = Path::new("/").join(&name).join(inside);
    }
    let root = out.join(".archive");
    tree::make(&root, &files)?;
    let archive = root.join(format!("{name}.tar"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{epoch}")).arg("--directory").arg(&root).arg("--file").arg(&archive).arg(&name);
    run::answer(&mut tar)?;
    tree::gzip(&[archive])?;
    let package = out.join(format!("{name}.tar.gz"));
    fs::rename(root.join(format!("{name}.tar.gz")), &package).with_context(|| format!("make {}", package.display()))?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(package)
}
