//! Rows of apt: install, upgrade, remove, purge.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::stops::{PINS, nothing_enforces};
use crate::test::systemd::container::SHARED;
use crate::test::systemd::package::{NAME, NEWER, NEWER_VERSION};
use crate::test::systemd::stage::{CONFIG, Stage};
use crate::test::systemd::traffic::{self, Client, LIMIT};

/// Client that is over its limit from the upgrade on.
const OVER: Client = Client(14);
/// Client that is over its limit during the second installation.
const OVER_LATER: Client = Client(15);
/// Command that enables the other units and creates their state, as after a run.
const BESIDE: &str = "systemctl enable --quiet ratelimitd-crowdsec.service ratelimitd-feed@drop.timer && mkdir -p /var/lib/ratelimitd-crowdsec /var/lib/ratelimitd-feeds";

fn apt(what: &str) -> String {
    format!("apt-get {what} -qq -o Dpkg::Use-Pty=0")
}

pub(super) fn install(stage: &mut Stage<'_>) -> Result<()> {
    ensure!(stage.ran("command -v cargo || command -v rustc")?.code != 0, "there is Rust in the container");
    traffic::connect(stage)?;
    stage.run(&apt(&format!("install {SHARED}/{NAME}")))?;
    stage.exits("systemctl is-enabled ratelimitd", 1)?;
    stage.exits("systemctl is-active ratelimitd", 3)?;
    stage.run("getent group ratelimitd")?;
    stage.run(&format!("grep -E '^(mode|on_exit)' {CONFIG}"))?;
    nothing_enforces(stage)?;
    stage.is_served(Client(1), LIMIT + 10)
}

pub(super) fn upgrade(stage: &mut Stage<'_>) -> Result<()> {
    stage.is_limited(OVER)?;
    let mark = "# of the administrator";
    stage.ask(&format!("echo '{mark}' >>{CONFIG}"))?;
    let process = stage.property("MainPID")?;
    let flood = stage.flood(OVER)?;
    let received = stage.number("/interfaces/0/packets/received")?;
    let start = Instant::now();
    stage.run(&apt(&format!("install {SHARED}/{NEWER}")))?;
    stage.figures.upgrade.seconds = start.elapsed().as_secs_f64();
    stage.figures.upgrade.unfiltered = stage.end_flood(flood)?;

    let version = stage.run("dpkg-query --show --showformat='${Version} ${db:Status-Abbrev}' ratelimitd")?;
    ensure!(version.starts_with(NEWER_VERSION) && version.ends_with("ii"), "not {NEWER_VERSION}");
    let state = stage.run("systemctl show --property=ActiveState,NRestarts,UnitFileState ratelimitd")?;
    ensure!(state.contains("=active") && state.contains("=enabled"), "it is no longer active and enabled");
    ensure!(stage.property("MainPID")? != process, "the old daemon still runs");
    ensure!(stage.ask(&format!("tail -n 1 {CONFIG}"))? == mark, "the configuration was replaced");

    stage.figures.upgrade.packets = stage.all_are_counted()? - received;
    let packets = stage.figures.upgrade.packets;
    stage.say(&format!("{packets} packets during the upgrade"));
    ensure!(packets > 500, "that was no traffic");
    ensure!(stage.figures.upgrade.unfiltered == 0, "packets came past the filter");
    stage.is_refused(OVER)
}

pub(super) fn upgrade_while_stopped(stage: &mut Stage<'_>) -> Result<()> {
    stage.run("systemctl stop ratelimitd")?;
    stage.run(&apt(&format!("install --reinstall {SHARED}/{NEWER}")))?;
    stage.exits("systemctl is-active ratelimitd", 3)?;
    ensure!(stage.has_filter("web0")?, "the filter that was kept is gone");
    stage.is_refused(OVER)?;
    stage.run("systemctl start ratelimitd")?;
    stage.is_refused(OVER)
}

pub(super) fn remove(stage: &mut Stage<'_>) -> Result<()> {
    stage.run(BESIDE)?;
    stage.run(&apt("remove -y ratelimitd"))?;
    nothing_enforces(stage)?;
    stage.is_served(OVER, 3)?;
    ensure!(stage.has(CONFIG)? && stage.has("/var/lib/ratelimitd/history.db")?, "a removal keeps what is configured");
    ensure!(!stage.has("/run/ratelimitd")?, "there is /run/ratelimitd");
    stage.say("the configuration and the state are there");
    stage.run("systemctl show --property=LoadState,ActiveState ratelimitd")?;
    Ok(())
}

pub(super) fn purge(stage: &mut Stage<'_>) -> Result<()> {
    stage.run(&apt("purge -y ratelimitd"))?;
    stays_nothing(stage)
}

pub(super) fn purge_while_stopped(stage: &mut Stage<'_>) -> Result<()> {
    stage.run(&apt(&format!("install {SHARED}/{NAME}")))?;
    stage.exits("systemctl is-enabled ratelimitd", 1)?;
    stage.exits("systemctl is-active ratelimitd", 3)?;
    for (from, to) in [
        (r#"interfaces = ["eth0"]"#, r#"interfaces = ["web0"]"#),
        (r#"limits = ["1000/5m"]"#, traffic::LIMITS),
        (r#"mode = "dry-run""#, r#"mode = "enforce""#),
    ] {
        stage.edit(from, to)?;
    }
    stage.run("systemctl start ratelimitd")?;
    stage.is_limited(OVER_LATER)?;
    stage.run("systemctl stop ratelimitd")?;
    stage.is_refused(OVER_LATER)?;
    ensure!(stage.has(PINS)?, "the filter was not kept");
    stage.run(&apt("purge -y ratelimitd"))?;
    nothing_enforces(stage)?;
    stage.is_served(OVER_LATER, 3)?;
    stays_nothing(stage)
}

/// Checks that only the group is left. Debian keeps a package's group, because files anywhere may belong to it.
fn stays_nothing(stage: &mut Stage<'_>) -> Result<()> {
    ensure!(!stage.has(PINS)?, "there is still {PINS}");
    let left = stage.ask(
        "find / -xdev -path /proc -prune -o -name '*ratelimitd*' -print | grep -v -E '^/(sys|proc|dev|mnt)' || true",
    )?;
    ensure!(left.is_empty(), "there is still {left}");
    stage.say("no file with its name is left");
    stage.run("getent group ratelimitd")?;
    Ok(())
}
