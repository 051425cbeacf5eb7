//! Access to Debian packages without installing them: downloads and unpacks them into a directory. This needs no root
//! and changes nothing in the system. Packages of another architecture use separate apt lists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run;

/// Architecture of the packages.
#[derive(Clone, Debug)]
pub(crate) enum Apt {
    /// Architecture of this machine.
    Host,
    /// Another architecture, by Debian's name, with apt lists in `lists`. Its packages are never installed here.
    Foreign { architecture: &'static str, lists: PathBuf },
}

impl Apt {
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Self::Foreign { architecture, lists } = self {
            for of in ["Architecture", "Architectures"] {
                command.arg("-o").arg(format!("APT::{of}={architecture}"));
            }
            // The system's settings decide whose signatures are trusted.
            for (of, at) in [("State::lists", "lists"), ("State::status", "status"), ("Cache", "cache")] {
                command.arg("-o").arg(format!("Dir::{of}={}", lists.join(at).display()));
            }
        }
        command
    }

    /// Updates apt's lists. The host's lists are updated as root.
    pub(crate) fn update(&self, purpose: &str) -> Result<()> {
        let mut command = match self {
            Self::Host => run::as_root("apt-get", &["update", "-q"]).context("neither root nor sudo")?,
            Self::Foreign { lists, .. } => {
                for made in ["lists/partial", "cache/archives/partial"] {
                    fs::create_dir_all(lists.join(made)).with_context(|| format!("make {}", lists.display()))?;
                }
                let status = lists.join("status");
                fs::write(&status, "").with_context(|| format!("write {}", status.display()))?;
                let mut command = self.command("apt-get");
                command.args(["update", "-q"]);
                command
            }
        };
        run::step(&format!("{purpose}: apt-get update"), &mut command)
    }

    /// Returns the packages that an installation of `packages` would add, including `packages`. Each is `name=version`,
    /// as apt-get takes it. A simulated removal of other packages does not matter, since nothing is installed.
    pub(crate) fn missing_for(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut simulate = self.command("apt-get");
        simulate.args(["install", "--simulate", "--no-install-recommends"]).args(packages);
        let missing: Vec<_> = run::answer(&mut simulate)?.lines().filter_map(to_install).collect();
        ensure!(!missing.is_empty(), "apt-get says that {} is installed", packages.join(" "));
        Ok(missing)
    }

    /// Unpacks the packages into `dir`, completely or not at all. An interrupt leaves `dir` unchanged.
    pub(crate) fn unpack(&self, purpose: &str, packages: &[String], dir: &Path) -> Result<()> {
        unpack_by(self, purpose, packages, dir)
    }
}

/// Updates the host's apt lists. Only this step needs root.
pub(crate) fn update(purpose: &str) -> Result<()> {
    Apt::Host.update(purpose)
}

/// [`Apt::missing_for`] for this machine.
pub(crate) fn missing_for(package: &str) -> Result<Vec<String>> {
    Apt::Host.missing_for(&[package])
}

/// [`Apt::unpack`] for this machine.
pub(crate) fn unpack(purpose: &str, packages: &[String], dir: &Path) -> Result<()> {
    Apt::Host.unpack(purpose, packages, dir)
}

fn unpack_by(apt: &Apt, purpose: &str, packages: &[String], dir: &Path) -> Result<()> {
    let parts = dir.with_added_extension("parts");
    remove(&parts)?;
    let (archives, root) = (parts.join("archives"), parts.join("root"));
    for made in [&archives, &root] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    let label = format!("{purpose}: downloading {}", some_of(packages));
    run::step(&label, apt.command("apt-get").args(["download", "-q"]).args(packages).current_dir(&archives))?;
    for archive in files(&archives)? {
        run::answer(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&root))?;
    }
    remove(dir)?;
    fs::rename(&root, dir).with_context(|| format!("move {} to {}", root.display(), dir.display()))?;
    remove(&parts)
}

/// Parses a line like `Inst libfdt1 [1.6.0] (1.6.1-4+b1 Debian:12/stable [amd64])`. Square brackets hold an installed
/// version.
fn to_install(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
    let (_, new) = rest.split_once('(')?;
    let version = new.split_whitespace().next()?;
    Some(format!("{name}={version}"))
}

fn some_of(packages: &[String]) -> String {
    match packages {
        [one] => one.clone(),
        several => format!("{} packages", several.len()),
    }
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    entries.map(|entry| Ok(entry.with_context(|| format!("read {}", dir.display()))?.path())).collect()
}

fn remove(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_to_install_are_read_with_their_version_and_nothing_else() {
        let text = "NOTE: This is only a simulation!\nThe following NEW packages will be installed:\n  libfdt1\n\
            Remv qemu-utils [1:10.0.2+ds-2~bpo12+1]\n\
            Inst libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])\n\
            Inst libnl-3-200 [3.6.0] (3.7.0-0.2+b1 Debian:12.15/oldstable, Debian-Security:12 [amd64]) []\n\
            Inst gcc-12-base:i386 (12.2.0-14 Debian:12.15/oldstable [i386])\n\
            Inst qemu-system-x86 (1:7.2+dfsg-7+deb12u18+b3 Debian:12.15/oldstable [amd64])\n\
            Conf libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])\n";
        let found: Vec<_> = text.lines().filter_map(to_install).collect();
        assert_eq!(
            found,
            [
                "libfdt1=1.6.1-4+b1",
                "libnl-3-200=3.7.0-0.2+b1",
                "gcc-12-base:i386=12.2.0-14",
                "qemu-system-x86=1:7.2+dfsg-7+deb12u18+b3"
            ]
        );
    }

    #[test]
    fn a_line_that_is_cut_off_names_no_package() {
        for line in ["", "Inst", "Inst name", "Inst name [1.0]", "Inst name (", "Install name (1.0 Debian)"] {
            assert_eq!(to_install(line), None, "{line:?}");
        }
    }
}
