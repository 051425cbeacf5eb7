//! libLLVM for bpf-linker.
//!
//! bpf-linker loads the first file named libLLVM* on LD_LIBRARY_PATH, regardless of its version. It therefore gets a
//! directory with a single one. The name there differs from the library's soname, otherwise rustc itself would load it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Tools;

const NAME: &str = "libLLVM-for-bpf-linker.so";

/// Returns the libraries under each sysroot's lib and one directory below (Debian's multiarch), in the order of the
/// sysroots.
pub(super) fn candidates(sysroots: &[PathBuf], major: u32) -> Vec<PathBuf> {
    sysroots.iter().flat_map(|sysroot| in_lib(&sysroot.join("lib"), major)).collect()
}

/// Makes `library` the one that bpf-linker loads.
pub(super) fn offer(library: &Path, tools: &Tools) -> Result<()> {
    let dir = tools.llvm_dir();
    let link = dir.join(NAME);
    if fs::read_link(&link).is_ok_and(|target| target == library) {
        return Ok(());
    }
    fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    // Renamed into place, so that a concurrent build always finds one.
    let new = dir.join("new");
    fs::remove_file(&new).ok();
    symlink(library, &new).with_context(|| format!("make {}", new.display()))?;
    fs::rename(&new, &link).with_context(|| format!("make {}", link.display()))
}

fn in_lib(lib: &Path, major: u32) -> Vec<PathBuf> {
    let mut dirs = vec![lib.to_owned()];
    dirs.extend(entries(lib).into_iter().filter(|path| path.is_dir() && is_multiarch(path)));
    let wanted = format!("libLLVM.so.{major}.");
    let is_wanted = |path: &PathBuf| name(path).starts_with(&wanted) && path.is_file();
    dirs.iter().flat_map(|dir| entries(dir)).filter(is_wanted).collect()
}

fn is_multiarch(path: &Path) -> bool {
    name(path).contains("-linux-gnu")
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_of_the_wanted_major_version_are_candidates() {
        let dir = tempfile::tempdir().unwrap();
        let multiarch = dir.path().join("lib/x86_64-linux-gnu");
        fs::create_dir_all(&multiarch).unwrap();
        for name in ["libLLVM.so.22.1", "libLLVM.so.2", "libLLVM-14.so.1", "libLLVM.so.19.1"] {
            fs::write(multiarch.join(name), "").unwrap();
        }
        assert_eq!(candidates(&[dir.path().to_owned()], 22), [multiarch.join("libLLVM.so.22.1")]);
    }
}
