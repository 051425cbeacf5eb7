//! Debian's packages, for machines that have apt-get.
//!
//! Never removes a package to make room, and leaves the services that come along switched off.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::say;
use crate::{run, workspace};

/// While this file says 101, no package starts its service (invoke-rc.d and deb-systemd-invoke both ask it).
const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str = "#!/bin/sh\nexit 101\n";

/// Installs what is missing of `packages`; `purpose` says in the output what they are for.
pub(super) fn install(purpose: &str, packages: &[&str]) -> Result<()> {
    if workspace::program("apt-get").is_none() {
        bail!("there is no apt-get here");
    }
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let by_hand = format!("as root: apt-get install --no-install-recommends --no-remove {list}");
    if !workspace::is_root() {
        if workspace::program("sudo").is_none() {
            bail!("not root, and there is no sudo; {by_hand}");
        }
        say(&format!("{purpose}: sudo apt-get is about to install {list}; it may ask for your password"));
    }
    if !missing.iter().all(|package| is_known(package)) {
        step(&format!("setup: {purpose}: apt-get update"), &["update", "-q"])?;
        if let Some(unknown) = missing.iter().find(|package| !is_known(package)) {
            bail!("this distribution has no package {unknown}");
        }
    }
    let _quiet = ServicesOff::begin()?;
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends", "--no-remove"];
    arguments.extend(&missing);
    let label = format!("setup: {purpose}: installing {list}");
    if step(&label, &arguments).is_ok() {
        return Ok(());
    }
    // The lists may be older than the archive.
    step(&format!("setup: {purpose}: apt-get update"), &["update", "-q"])?;
    step(&label, &arguments).with_context(|| by_hand)
}

/// Keeps a service that was installed for the tests from starting with the machine.
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

fn step(label: &str, arguments: &[&str]) -> Result<()> {
    let mut command = run::as_root("apt-get", arguments).context("neither root nor sudo")?;
    run::step(label, &mut command)
}

fn is_installed(package: &str) -> bool {
    run::answer(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Abbrev}", package]))
        .is_ok_and(|status| status.starts_with("ii"))
}

fn is_known(package: &str) -> bool {
    run::answer(Command::new("apt-cache").args(["show", "--no-all-versions", package]))
        .is_ok_and(|text| !text.is_empty())
}

/// Puts the policy in place, unless there is one, and takes it away again.
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
