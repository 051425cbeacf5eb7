//! The programs of the machines with other kernels: those on PATH, else unpacked ones that are used from where they lie.
//!
//! They are not installed: other versions of what belongs to qemu may be, and apt-get would remove those to make room.
//! That a directory is there under its name is the record that its packages were unpacked whole.

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
/// For the tier of aarch64 alone.
pub(crate) const QEMU_AARCH64: Program = Program {
    name: "qemu-system-aarch64",
    package: "qemu-system-arm",
    purpose: "a machine of another architecture",
    trial: "--version",
};
pub(crate) const SHELL: Program =
    Program { name: "busybox", package: "busybox-static", purpose: "the shell of that machine", trial: "true" };
pub(crate) const ALL: [Program; 2] = [QEMU, SHELL];
/// No part of those machines: unpacked likewise, since its package has a server that nobody asked for.
pub(crate) const PROMTOOL: Program = Program {
    name: "promtool",
    package: "prometheus",
    purpose: "the checks of alerts, metrics and dashboard",
    trial: "--version",
};

/// Likewise: the fleet's tests start servers of their own.
pub(crate) const REDIS: Program =
    Program { name: "redis-server", package: "redis-server", purpose: "the store of a fleet", trial: "--version" };

/// Likewise: nobody asked for a runtime of containers on this machine.
pub(crate) const CRUN: Program =
    Program { name: "crun", package: "crun", purpose: "a runtime of containers", trial: "--version" };

/// Likewise: its package has services for containers that are none of the machine's business.
pub(crate) const NSPAWN: Program = Program {
    name: "systemd-nspawn",
    package: "systemd-container",
    purpose: "a container with systemd as its first process",
    trial: "--version",
};

/// Unpacked without what it depends on, which is Python alone: its package has a service that would read this host's logs.
const FAIL2BAN: &str = "fail2ban";

/// A fail2ban for the test of its action, used from where it lies.
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

/// Where packages have programs, in the order in which they are looked for.
const BIN: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];
const LIB: [&str; 2] = ["usr/lib", "lib"];

pub(crate) struct Program {
    pub(crate) name: &'static str,
    package: &'static str,
    purpose: &'static str,
    /// With this argument it ends at once, and well.
    trial: &'static str,
}

/// The kernels that the machines boot and the programs that they are made of.
pub(crate) fn dir() -> PathBuf {
    workspace::target_dir().join("kernels")
}

/// Without these the tests on other kernels are skipped.
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

    /// qemu finds its firmware and modules itself, by where it lies; the libraries it must be told.
    pub(crate) fn command(&self) -> Option<Command> {
        let file = self.file()?;
        let mut command = Command::new(&file);
        if let Some(libraries) = self.libraries() {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        Some(command)
    }

    /// The directories of the libraries that it needs, where it is an unpacked one.
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
        // The lists may be older than the archive, or not there yet.
        self.unpack().or_else(|_| packages::update("setup: programs").and_then(|()| self.unpack()))?;
        self.starts().with_context(|| format!("{package}, unpacked in {}", self.dir().display()))?;
        say(&format!("programs: {package} is not installed, only unpacked in {}", self.dir().display()));
        Ok(())
    }

    fn unpack(&self) -> Result<()> {
        let packages = packages::missing_for(self.package)?;
        packages::unpack(&format!("setup: programs: {}", self.package), &packages, &self.dir())
    }

    /// What was unpacked before may need libraries that were taken off since.
    fn starts(&self) -> Result<()> {
        let mut command = self.command().with_context(|| format!("it has no {}", self.name))?;
        run::answer(command.arg(self.trial)).map(drop)
    }
}

fn program_in(root: &Path, name: &str) -> Option<PathBuf> {
    BIN.map(|bin| root.join(bin).join(name)).into_iter().find(|file| file.is_file())
}

/// Every directory that has libraries, those below `lib/x86_64-linux-gnu` too: some packages keep theirs there, and say
/// where by a path or a link that holds only where they are installed. Before what the user has, as the versions fit.
fn library_path(root: &Path) -> OsString {
    let mut dirs = BTreeSet::new();
    for lib in LIB {
        add_library_dirs(&root.join(lib), &mut dirs);
    }
    let users = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let users: Vec<_> = env::split_paths(&users).filter(|dir| !dir.as_os_str().is_empty()).collect();
    // A path with a colon in it can be in no such list; then the libraries are not found, and the trial says so.
    env::join_paths(dirs.into_iter().chain(users)).unwrap_or_default()
}

fn add_library_dirs(dir: &Path, dirs: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Links to directories are not followed: what they lead to is found by itself.
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
