//! Installation of Debian packages on machines with apt-get.
//!
//! Never removes a package to make room, and leaves the services of installed packages off.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::say;
use crate::{run, workspace};

/// Policy script. While it exits with 101, no package starts its service (invoke-rc.d and deb-systemd-invoke both ask
/// it).
const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "#!/bin/sh\nexit 101\n";

/// Installs the missing ones of `packages`. `purpose` explains their use in the output.
pub(super) fn install(purpose: &str, packages: &[&str]) -> Result<()> {
    install_on(&mut Debian, purpose, packages)
}

/// Operations that `install` needs from a machine.
trait Machine {
    /// Fails if nothing can be installed at all. `list` names the packages.
    fn may_install(&self, purpose: &str, list: &str) -> Result<()>;
    fn is_installed(&self, package: &str) -> bool;
    /// Returns true if the archive's lists contain the package.
    fn is_known(&self, package: &str) -> bool;
    fn apt_get(&mut self, label: &str, arguments: &[&str]) -> Result<()>;
    fn warn(&mut self, text: &str) {
        say(text);
    }
}

fn install_on(machine: &mut impl Machine, purpose: &str, packages: &[&str]) -> Result<()> {
    let missing = missing_of(machine, packages);
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    machine.may_install(purpose, &list)?;
    let update = format!("setup: {purpose}: apt-get update");
    if !missing.iter().all(|package| machine.is_known(package)) {
        machine.apt_get(&update, &["update", "-q"])?;
        if let Some(unknown) = missing.iter().find(|package| !machine.is_known(package)) {
            bail!("this distribution has no package {unknown}");
        }
    }
    let label = format!("setup: {purpose}: installing {list}");
    if install_once(machine, &label, &missing).is_ok() {
        return Ok(());
    }
    // The lists may be older than the archive. If the update fails, the second attempt reports the reason.
    if let Err(error) = machine.apt_get(&update, &["update", "-q"]) {
        machine.warn(&format!("{error:#}"));
    }
    let by_hand = format!("as root: apt-get install --no-install-recommends --no-remove {list}");
    install_once(machine, &label, &missing).with_context(|| by_hand)
}

/// Installs the missing packages. apt-get also fails if an unrelated package is half configured. That is only a warning
/// as long as every requested package is installed.
fn install_once(machine: &mut impl Machine, label: &str, packages: &[&str]) -> Result<()> {
    let missing = missing_of(machine, packages);
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends", "--no-remove"];
    arguments.extend(&missing);
    let Err(error) = machine.apt_get(label, &arguments) else { return Ok(()) };
    let missing = missing_of(machine, packages);
    if !missing.is_empty() {
        return Err(error.context(format!("not installed: {}", missing.join(" "))));
    }
    machine.warn(&format!(
        "apt-get failed, but {} is installed, so setup goes on; another package may be half configured: dpkg --audit \
         names it ({error:#})",
        packages.join(" ")
    ));
    Ok(())
}

fn missing_of<'a>(machine: &impl Machine, packages: &[&'a str]) -> Vec<&'a str> {
    packages.iter().copied().filter(|package| !machine.is_installed(package)).collect()
}

/// The machine that runs this program.
struct Debian;

impl Machine for Debian {
    fn may_install(&self, purpose: &str, list: &str) -> Result<()> {
        if workspace::program("apt-get").is_none() {
            bail!("there is no apt-get here");
        }
        if !workspace::is_root() {
            if workspace::program("sudo").is_none() {
                bail!(
                    "not root, and there is no sudo; as root: apt-get install --no-install-recommends --no-remove {list}"
                );
            }
            say(&format!("{purpose}: sudo apt-get is about to install {list}; it may ask for your password"));
        }
        Ok(())
    }

    fn is_installed(&self, package: &str) -> bool {
        run::answer(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}\n", package]))
            .is_ok_and(|answer| is_installed_by(&answer))
    }

    fn is_known(&self, package: &str) -> bool {
        run::answer(Command::new("apt-cache").args(["show", "--no-all-versions", package]))
            .is_ok_and(|text| !text.is_empty())
    }

    fn apt_get(&mut self, label: &str, arguments: &[&str]) -> Result<()> {
        let _quiet = if arguments.first() == Some(&"install") { Some(ServicesOff::begin()?) } else { None };
        let mut command = run::as_root("apt-get", arguments).context("neither root nor sudo")?;
        run::step(label, &mut command)
    }
}

/// Returns true if dpkg-query's answer, one line per architecture, reports an installed package. A package on hold
/// counts as installed.
fn is_installed_by(answer: &str) -> bool {
    answer.lines().any(|status| status.trim() == "installed")
}

/// Disables a service that was installed for the tests, so that it does not start with the machine.
pub(super) fn disable_service(name: &str) {
    if !Path::new("/run/systemd/system").is_dir() {
        return;
    }
    let disabled =
        run::as_root("systemctl", &["disable", "--quiet", name]).map(|mut command| run::answer(&mut command));
    match disabled {
        Some(Ok(_)) => say(&format!("programs: the service {name} is left disabled; only its program is used")),
        Some(Err(_)) | None => say(&format!("programs: the service {name} is enabled; systemctl disable {name}")),
    }
}

/// Policy script in place, removed on drop. An existing policy is left alone.
struct ServicesOff {
    is_ours: bool,
}

impl ServicesOff {
    fn begin() -> Result<Self> {
        if Path::new(POLICY).exists() {
            return Ok(Self { is_ours: false });
        }
        let draft = std::env::temp_dir().join(format!("policy-rc.d.{}", std::process::id()));
        let mut file = fs::File::create_new(&draft).with_context(|| format!("make {}", draft.display()))?;
        file.write_all(POLICY_TEXT.as_bytes()).with_context(|| format!("write {}", draft.display()))?;
        file.set_permissions(fs::Permissions::from_mode(0o755))
            .with_context(|| format!("chmod {}", draft.display()))?;
        let source = draft.to_string_lossy();
        let placed = run::as_root("install", &["-m", "0755", &source, POLICY]).context("neither root nor sudo");
        let placed = placed.and_then(|mut command| run::answer(&mut command));
        fs::remove_file(&draft).ok();
        placed.with_context(|| format!("place {POLICY}, which keeps services from starting"))?;
        Ok(Self { is_ours: true })
    }
}

impl Drop for ServicesOff {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        let removed = run::as_root("rm", &["-f", POLICY]).map(|mut command| run::answer(&mut command));
        if !matches!(removed, Some(Ok(_))) {
            say(&format!("{POLICY} could not be removed; as root: rm {POLICY}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeSet;

    /// Fake machine with some packages. Its apt-get installs all packages except broken ones.
    #[derive(Default)]
    struct Fake {
        installed: BTreeSet<String>,
        /// Packages that cannot be installed.
        broken: BTreeSet<String>,
        /// True if an unrelated package is half configured, so that each installation fails at its end.
        has_half_configured: bool,
        calls: Vec<String>,
        warnings: Vec<String>,
    }

    impl Machine for Fake {
        fn may_install(&self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }

        fn is_installed(&self, package: &str) -> bool {
            self.installed.contains(package)
        }

        fn is_known(&self, _: &str) -> bool {
            true
        }

        fn apt_get(&mut self, _: &str, arguments: &[&str]) -> Result<()> {
            let packages = arguments.iter().filter(|word| **word != "-q" && !word.starts_with('-'));
            self.calls.push(packages.copied().collect::<Vec<_>>().join(" "));
            if arguments[0] == "update" {
                return Ok(());
            }
            let asked = || arguments[1..].iter().filter(|word| !word.starts_with('-'));
            for package in asked().filter(|package| !self.broken.contains(**package)) {
                self.installed.insert((*package).to_owned());
            }
            if self.has_half_configured || asked().any(|package| self.broken.contains(*package)) {
                bail!("apt-get ended with 100");
            }
            Ok(())
        }

        fn warn(&mut self, text: &str) {
            self.warnings.push(text.to_owned());
        }
    }

    fn with(installed: &[&str]) -> Fake {
        Fake { installed: installed.iter().map(|package| (*package).to_owned()).collect(), ..Fake::default() }
    }

    #[test]
    fn only_missing_packages_are_installed_and_none_where_all_are_there() {
        let mut machine = with(&["nginx", "curl"]);
        install_on(&mut machine, "programs", &["nginx", "curl"]).expect("nothing to do");
        assert_eq!(machine.calls, Vec::<String>::new());
        install_on(&mut machine, "programs", &["nginx", "wrk", "curl"]).expect("one to install");
        assert_eq!((machine.calls, machine.warnings), (vec!["install wrk".to_owned()], Vec::new()));
    }

    #[test]
    fn another_package_that_is_half_configured_is_a_warning() {
        let mut machine = Fake { has_half_configured: true, ..with(&["nginx"]) };
        install_on(&mut machine, "programs", &["nginx", "wrk"]).expect("wrk is there afterwards");
        assert_eq!(machine.calls, ["install wrk"]);
        let [warning] = machine.warnings.as_slice() else { panic!("{:?}", machine.warnings) };
        assert!(warning.contains("apt-get failed, but wrk is installed") && warning.contains("ended with 100"));
    }

    #[test]
    fn a_package_that_cannot_be_installed_is_tried_twice_and_named() {
        let mut machine = Fake { broken: BTreeSet::from(["wrk".to_owned()]), ..with(&[]) };
        let error = install_on(&mut machine, "programs", &["curl", "wrk"]).expect_err("wrk is broken");
        assert_eq!(machine.calls, ["install curl wrk", "update", "install wrk"]);
        let error = format!("{error:#}");
        assert!(error.starts_with("as root: apt-get install") && error.contains("not installed: wrk"), "{error}");
    }

    #[test]
    fn a_package_is_installed_where_dpkg_says_so_for_any_architecture() {
        for (answer, expected) in [
            ("installed\n", true),
            ("config-files\ninstalled\n", true),
            ("half-configured\n", false),
            ("not-installed\n", false),
            ("", false),
        ] {
            assert_eq!(is_installed_by(answer), expected, "{answer:?}");
        }
    }
}
