//! A BPF file system of one's own, so that pins of a test are nobody else's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::child::{directory, must, text_of};

/// A BPF file system on a temporary directory, unmounted on drop. What is pinned in it outlives the processes that pinned it.
#[derive(Debug)]
pub struct Bpffs {
    path: PathBuf,
}

impl Bpffs {
    /// Mounts one.
    ///
    /// # Errors
    /// If `mount` cannot.
    pub fn mount() -> Result<Self> {
        let path = directory();
        std::fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        let bpffs = Self { path };
        must("mount", &["-t", "bpf", "-o", "mode=0700", "bpf", &bpffs.path.to_string_lossy()])?;
        Ok(bpffs)
    }

    /// Where it is for processes that are not told otherwise.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        // What cannot be removed now, the next run sweeps.
        let _left = remove(&self.path);
    }
}

fn remove(path: &Path) -> Result<()> {
    let is_mounted = text_of(Path::new("/proc/self/mounts"))
        .lines()
        .any(|line| line.split(' ').nth(1).is_some_and(|mounted| Path::new(mounted) == path));
    if is_mounted {
        must("umount", &["--lazy", &path.to_string_lossy()])?;
    }
    std::fs::remove_dir(path).with_context(|| format!("remove {}", path.display()))
}

pub(crate) fn sweep() -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for entry in std::fs::read_dir(std::env::temp_dir()).context("list the temporary directory")? {
        let path = entry?.path();
        let is_leftover = path.file_name().is_some_and(|name| crate::is_leftover(&name.to_string_lossy()));
        if is_leftover && path.is_dir() && remove(&path).is_ok() {
            swept.push(format!("BPF file system {}", path.display()));
        }
    }
    Ok(swept)
}
