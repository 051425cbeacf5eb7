//! The programs of a machine of aarch64: Debian's packages, unpacked in the target directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cross;

/// A shell, namespaces, and what starts something in them.
const PACKAGES: [&str; 3] = ["busybox-static", "iproute2", "util-linux"];
const PROGRAMS: [&str; 5] = ["bin/busybox", "bin/ip", "usr/bin/nsenter", "usr/bin/setpriv", "usr/bin/unshare"];
/// What the shell is called where it is to be another program, and what that one is.
const AS_SHELL: [&str; 2] = ["bin/sh", "bin/mount"];
/// Where libraries are, those that the tests are linked with among them.
const LIBRARIES: [&str; 3] = ["lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];

/// What was unpacked.
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
        // The lists may be older than the archive, or not there yet.
        unpack().or_else(|_| apt.update("setup: aarch64").and_then(|()| unpack()))?;
    }
    Ok(guest)
}

impl Guest {
    /// Its files, by their paths in the machine.
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

/// Libraries and the loader, under each of their names.
fn libraries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_library = |name: &String| (name.starts_with("lib") || name.starts_with("ld-")) && name.contains(".so");
    // A link is as good as the file that it leads to.
    names.filter(is_library).filter(|name| dir.join(name).is_file()).collect()
}
