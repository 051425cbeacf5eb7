//! Programs for machines with other kernels: from PATH, or unpacked and used in place.
//!
//! The packages are not installed: other versions of qemu's parts may be, and apt-get would remove those. The directory
//! of a package exists only if it was unpacked completely.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::say;
use crate::{packages, run, workspace};

pub(crate) const QEMU: Program = Program {
    name: "qemu-system-x86_64",
    package: "qemu-system-x86",
    purpose: "a machine with another kernel",
    trial: "--version",
};
/// Used only by the aarch64 tier.
pub(crate) const QEMU_AARCH64: Program = Program {
    name: "qemu-system-aarch64",
    package: "qemu-system-arm",
    purpose: "a machine of another architecture",
    trial: "--version",
};
pub(crate) const SHELL: Program =
    Program { name: "busybox", package: "busybox-static", purpose: "the shell of that machine", trial: "true" };
pub(crate) const ALL: [Program; 2] = [QEMU, SHELL];
/// Unrelated to those machines. It is only unpacked, because its package contains a server.
pub(crate) const PROMTOOL: Program = Program {
    name: "promtool",
    package: "prometheus",
    purpose: "the checks of alerts, metrics and dashboard",
    trial: "--version",
};

/// Only unpacked, because the fleet's tests start their own servers.
pub(crate) const REDIS: Program =
    Program { name: "redis-server", package: "redis-server", purpose: "the store of a fleet", trial: "--version" };

/// Only unpacked, because this machine should not get a container runtime.
pub(crate) const CRUN: Program =
    Program { name: "crun", package: "crun", purpose: "a runtime of containers", trial: "--version" };

/// Only unpacked, because its package contains services for containers.
pub(crate) const NSPAWN: Program = Program {
    name: "systemd-nspawn",
    package: "systemd-container",
    purpose: "a container with systemd as its first process",
    trial: "--version",
};

/// Unpacked without its dependencies, which are only Python. Its package has a service that would read this host's
/// logs.
const FAIL2BAN: &str = "fail2ban";

/// Ensures a fail2ban for the test of its action, installed or unpacked.
pub(super) fn ensure_fail2ban() -> Result<()> {
    let dir = dir().join(FAIL2BAN);
    if Path::new("/usr/lib/python3/dist-packages/fail2ban").is_dir() || dir.is_dir() {
        return Ok(());
    }
    if workspace::program("apt-get").is_none() {
        bail!("there is no apt-get here to get {FAIL2BAN} with");
    }
    let unpack = || packages::unpack("setup: programs: fail2ban", &[FAIL2BAN.to_owned()], &dir);
    unpack().or_else(|_| packages::update("setup: programs").and_then(|()| unpack()))
}

/// Directories of programs in packages, in search order.
const BIN: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];
const LIB: [&str; 2] = ["usr/lib", "lib"];

pub(crate) struct Program {
    pub(crate) name: &'static str,
    package: &'static str,
    purpose: &'static str,
    /// Argument with which the program ends at once and successfully.
    trial: &'static str,
}

/// Returns the directory of the kernels and programs for these machines.
pub(crate) fn dir() -> PathBuf {
    workspace::target_dir().join("kernels")
}

/// Ensures the programs without which the tests on other kernels are skipped.
pub(super) fn ensure() -> Result<()> {
    for program in ALL {
        program.ensure()?;
    }
    say(&format!("programs: {}", ALL.map(|program| program.name).join(" ")));
    Ok(())
}

impl Program {
    pub(crate) fn file(&self) -> Option<PathBuf> {
        workspace::program(self.name).or_else(|| program_in(&self.dir(), self.name))
    }

    /// Returns the program as a command. qemu finds its firmware and modules by its own path, but needs the library
    /// path.
    pub(crate) fn command(&self) -> Option<Command> {
        let file = self.file()?;
        let mut command = Command::new(&file);
        if let Some(libraries) = self.libraries() {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        Some(command)
    }

    /// Returns the library directories of an unpacked program. None for an installed one.
    pub(crate) fn libraries(&self) -> Option<OsString> {
        self.file()?.starts_with(self.dir()).then(|| library_path(&self.dir()))
    }

    fn dir(&self) -> PathBuf {
        dir().join(self.package)
    }

    pub(super) fn ensure(&self) -> Result<()> {
        let Self { name, package, purpose, .. } = self;
        if workspace::program(name).is_some() || self.starts().is_ok() {
            return Ok(());
        }
        say(&format!("programs: {name} is missing ({purpose}), package {package}"));
        if workspace::program("apt-get").is_none() {
            bail!("there is no apt-get here to get {package} with");
        }
        // The lists may be older than the archive, or missing.
        self.unpack().or_else(|_| packages::update("setup: programs").and_then(|()| self.unpack()))?;
        self.starts().with_context(|| format!("{package}, unpacked in {}", self.dir().display()))?;
        say(&format!("programs: {package} is not installed, only unpacked in {}", self.dir().display()));
        Ok(())
    }

    fn unpack(&self) -> Result<()> {
        let packages = packages::missing_for(self.package)?;
        packages::unpack(&format!("setup: programs: {}", self.package), &packages, &self.dir())
    }

    /// Tries the program. An unpacked program may lack libraries that were removed from the system since.
    fn starts(&self) -> Result<()> {
        let mut command = self.command().with_context(|| format!("it has no {}", self.name))?;
        run::answer(command.arg(self.trial)).map(drop)
    }
}

fn program_in(root: &Path, name: &str) -> Option<PathBuf> {
    BIN.map(|bin| root.join(bin).join(name)).into_iter().find(|file| file.is_file())
}

/// Returns every directory with libraries, including those below `lib/x86_64-linux-gnu`. Some packages keep libraries
/// there, behind paths or links that are valid only after installation. They precede the user's directories, since
/// their versions match.
fn library_path(root: &Path) -> OsString {
    let mut dirs = BTreeSet::new();
    for lib in LIB {
        add_library_dirs(&root.join(lib), &mut dirs);
    }
    let users = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let users: Vec<_> = env::split_paths(&users).filter(|dir| !dir.as_os_str().is_empty()).collect();
    // A path with a colon cannot be in the list. The libraries are then not found, which the trial reports.
    env::join_paths(dirs.into_iter().chain(users)).unwrap_or_default()
}

fn add_library_dirs(dir: &Path, dirs: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Links to directories are not followed, since their targets are found directly.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add_library_dirs(&entry.path(), dirs);
        } else if name.starts_with("lib") && name.contains(".so") {
            dirs.insert(dir.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_files(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn a_program_is_found_wherever_its_package_puts_it() {
        let root = with_files(&["bin/busybox", "usr/bin/qemu-system-x86_64", "usr/share/doc/other"]);
        assert_eq!(program_in(root.path(), "busybox"), Some(root.path().join("bin/busybox")));
        assert_eq!(program_in(root.path(), QEMU.name), Some(root.path().join("usr/bin/qemu-system-x86_64")));
        assert_eq!(program_in(root.path(), "other"), None);
    }

    #[test]
    fn libraries_are_found_in_directories_of_their_own_too() {
        let root = with_files(&[
            "lib/x86_64-linux-gnu/libusb-1.0.so.0",
            "usr/lib/x86_64-linux-gnu/pulseaudio/libpulsecommon-16.1.so",
            "usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so",
            "usr/lib/ipxe/qemu/efi.rom",
        ]);
        let mut dirs = BTreeSet::new();
        LIB.iter().for_each(|lib| add_library_dirs(&root.path().join(lib), &mut dirs));
        let expected = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"].map(|dir| root.path().join(dir));
        assert_eq!(dirs.into_iter().collect::<Vec<_>>(), expected);
    }
}
