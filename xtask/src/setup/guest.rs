//! Programs of the aarch64 machine: Debian packages, unpacked in the target directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cross;

/// Packages with a shell, tools for namespaces, and tools that start programs in them.
const PACKAGES: [&str; 3] = ["busybox-static", "iproute2", "util-linux"];
const PROGRAMS: [&str; 5] = ["bin/busybox", "bin/ip", "usr/bin/nsenter", "usr/bin/setpriv", "usr/bin/unshare"];
/// Names under which busybox is called as another program.
const AS_SHELL: [&str; 2] = ["bin/sh", "bin/mount"];
/// Library directories, including those with the libraries of the tests.
const LIBRARIES: [&str; 3] = ["lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];

/// Unpacked packages.
pub(crate) struct Guest {
    root: PathBuf,
}

pub(super) fn ensure() -> Result<Guest> {
    let guest = Guest { root: cross::dir().join("guest") };
    if !guest.root.is_dir() {
        fs::create_dir_all(cross::dir()).with_context(|| format!("make {}", cross::dir().display()))?;
        let apt = cross::apt();
        let unpack = || {
            let packages = apt.missing_for(&PACKAGES)?;
            apt.unpack("setup: aarch64", &packages, &guest.root)
        };
        // The lists may be older than the archive, or missing.
        unpack().or_else(|_| apt.update("setup: aarch64").and_then(|()| unpack()))?;
    }
    Ok(guest)
}

impl Guest {
    /// Returns the files by their paths in the machine. Fails if a program is missing.
    pub(crate) fn files(&self) -> Result<BTreeMap<String, PathBuf>> {
        let mut files = BTreeMap::new();
        for program in PROGRAMS {
            let file = self.root.join(program);
            ensure!(file.is_file(), "there is no {}", file.display());
            files.insert(program.to_owned(), file);
        }
        for name in AS_SHELL {
            files.insert(name.to_owned(), self.root.join(PROGRAMS[0]));
        }
        for dir in LIBRARIES {
            for name in libraries(&self.root.join(dir)) {
                files.insert(format!("{dir}/{name}"), self.root.join(dir).join(&name));
            }
        }
        Ok(files)
    }
}

/// Returns the libraries and the loader, under each of their names.
fn libraries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_library = |name: &String| (name.starts_with("lib") || name.starts_with("ld-")) && name.contains(".so");
    // A link counts like the file that it points to.
    names.filter(is_library).filter(|name| dir.join(name).is_file()).collect()
}
