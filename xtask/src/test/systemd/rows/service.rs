//! Rows of the unit in normal use: enabled, reloaded, restarted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::test::systemd::stage::{Stage, json, number};
use crate::test::systemd::traffic::{Client, LIMIT, LIMITS};

const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// Maximum exposure on systemd's scale of 10. The unit's comments explain the remainder.
const EXPOSURE_MAX: f64 = 2.5;
/// Client that is over its limit from the dry run on.
pub(super) const OVER: Client = Client(2);

pub(super) fn dry_run(stage: &mut Stage<'_>) -> Result<()> {
    stage.edit(r#"interfaces = ["eth0"]"#, r#"interfaces = ["web0"]"#)?;
    stage.edit(r#"limits = ["1000/5m"]"#, LIMITS)?;
    stage.run("ratelimitd check-config")?;
    let start = Instant::now();
    stage.run("systemctl enable --now ratelimitd")?;
    stage.figures.start_seconds = start.elapsed().as_secs_f64();
    stage.says("attached to web0")?;
    let state =
        stage.run("systemctl show --property=Type,ActiveState,NRestarts,UnitFileState,StatusText ratelimitd")?;
    for expected in ["Type=notify", "ActiveState=active", "NRestarts=0", "UnitFileState=enabled"] {
        ensure!(state.contains(expected), "not {expected}");
    }
    stage.begin_to_count()?;
    stage.is_served(OVER, LIMIT + 10)?;
    stage.run("ratelimitd stats")?;
    let stats = stage.stats()?;
    let (dropped, would_drop) = (number(&stats, "/rules/0/dropped")?, number(&stats, "/rules/0/would_drop")?);
    stage.say(&format!("packets of the rule: {dropped} dropped, {would_drop} would drop"));
    ensure!(dropped == 0 && would_drop >= 10, "10 requests are over the limit, and none is dropped");
    stage.all_are_counted().map(drop)
}

pub(super) fn hardening(stage: &mut Stage<'_>) -> Result<()> {
    let table = stage.run("systemd-analyze security --no-pager ratelimitd | grep -E '✗|exposure level'")?;
    let exposure = table.rsplit_once("ratelimitd.service: ").and_then(|(_, rest)| rest.split_whitespace().next());
    stage.figures.exposure = exposure.and_then(|score| score.parse().ok()).context("no exposure level is said")?;
    ensure!(stage.figures.exposure <= EXPOSURE_MAX, "more than {EXPOSURE_MAX}");
    let verified = stage.ran("systemd-analyze verify --man=no ratelimitd.service")?.said();
    ensure!(verified.is_empty(), "{verified}");
    stage.run("grep -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/$(pidof ratelimitd)/status")?;
    // A container makes some of these paths read-only by itself, unlike a machine.
    let inside = "nsenter --target $(pidof ratelimitd) --mount test";
    for path in ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/mm/transparent_hugepage/enabled"]
    {
        stage.run(&format!("{inside} ! -w {path}"))?;
    }
    stage.run(&format!("{inside} -w /sys/fs/bpf/ratelimitd"))?;
    let warnings =
        stage.run("journalctl --unit=ratelimitd.service --priority=warning --output=cat --quiet --no-pager")?;
    ensure!(warnings.is_empty(), "the journal has warnings: {warnings}");
    Ok(())
}

pub(super) fn group(stage: &mut Stage<'_>) -> Result<()> {
    stage.run("ls -ld /run/ratelimitd /run/ratelimitd/control.sock /var/lib/ratelimitd /sys/fs/bpf/ratelimitd")?;
    let nobody = "setpriv --reuid=nobody --regid=nogroup --clear-groups ratelimitd stats --json";
    let refused = stage.exits(nobody, 77)?;
    ensure!(refused.said().contains("ratelimitd"), "no group is named");
    let member = nobody.replace("--clear-groups", "--groups=ratelimitd");
    stage.ask(&member)?;
    stage.say("a member of the group reads them");
    // A member may only read.
    stage.exits(&member.replace("stats --json", "mode enforce"), 77).map(drop)
}

pub(super) fn enforce(stage: &mut Stage<'_>) -> Result<()> {
    let process = stage.property("MainPID")?;
    stage.edit(r#"mode = "dry-run""#, r#"mode = "enforce""#)?;
    stage.run("systemctl reload ratelimitd")?;
    stage.is_refused(OVER)?;
    stage.is_limited(Client(3))?;
    ensure!(stage.property("MainPID")? == process, "the daemon is another");
    stage.exits(&format!("ratelimitd check {}", Client(3).address()), 3)?;
    stage.all_are_counted().map(drop)
}

/// Compares the journal, events, check and history. Queries the journal by the fields that an administrator would use.
pub(super) fn told(stage: &mut Stage<'_>) -> Result<()> {
    let address = Client(3).address();
    let entries = format!(
        "journalctl --no-pager _SYSTEMD_UNIT=ratelimitd.service RATELIMITD_SOURCE={address} RATELIMITD_KIND=refused"
    );
    stage.until("in the journal", Instant::now(), TOLD_WITHIN, |stage| {
        Ok(!stage.ask(&format!("{entries} --quiet --output=cat"))?.is_empty())
    })?;
    // Only the newest entries, because a bucket that ends meanwhile causes another event.
    let message = stage.run(&format!("{entries} --lines=1 --quiet --output=cat"))?;
    let entry = json(&stage.ask(&format!("{entries} --lines=1 --output=json"))?)?;
    let events = format!("ratelimitd events --json --source {address} --kind refused | tail -n 1");
    let event = json(&stage.run(&events)?)?;
    ensure!(event["detail"] == message.as_str(), "the journal and `events` have other words");
    for field in ["source", "rule", "limit", "used", "reason"] {
        let said = entry.get(format!("RATELIMITD_{}", field.to_uppercase())).and_then(Value::as_str);
        let expected = event[field].as_str().map_or_else(|| event[field].to_string(), str::to_owned);
        ensure!(said == Some(&expected), "{field}: {said:?} in the journal, {expected} in `events`");
    }
    let check = json(&stage.exits(&format!("ratelimitd check {address} --json"), 3)?.stdout)?;
    let history = json(&stage.run(&format!("ratelimitd history {address} --json"))?)?;
    for (command, reason) in [("check", &check["reason"]), ("history", &history["episodes"][0]["reason"])] {
        ensure!(*reason == event["reason"], "{command} says {reason}, `events` {}", event["reason"]);
    }
    stage.say(&format!("all four say {}", event["reason"]));
    Ok(())
}

pub(super) fn bad_file(stage: &mut Stage<'_>) -> Result<()> {
    let process = stage.property("MainPID")?;
    stage.edit(r#"mode = "enforce""#, r#"mode = "enfroce""#)?;
    stage.exits("systemctl reload ratelimitd", 1)?;
    stage.run("systemctl is-active ratelimitd")?;
    stage.run("journalctl --unit=ratelimitd.service --lines=4 --output=cat --no-pager")?;
    ensure!(stage.property("MainPID")? == process, "the daemon is another");
    stage.is_refused(OVER)?;
    stage.is_limited(Client(4))?;
    stage.edit(r#"mode = "enfroce""#, r#"mode = "enforce""#)?;
    stage.run("systemctl reload ratelimitd")?;
    stage.all_are_counted().map(drop)
}

pub(super) fn trial(stage: &mut Stage<'_>) -> Result<()> {
    stage.edit(LIMITS, r#"limits = ["30/10m"]"#)?;
    stage.run("ratelimitd apply --confirm 60s")?;
    stage.exits("systemctl reload ratelimitd", 1)?;
    stage.is_served(OVER, 5)?;
    stage.run("ratelimitd rollback")?;
    stage.is_refused(OVER)?;
    stage.edit(r#"limits = ["30/10m"]"#, LIMITS)?;
    stage.run("systemctl reload ratelimitd")?;
    stage.all_are_counted().map(drop)
}

pub(super) fn restart(stage: &mut Stage<'_>) -> Result<()> {
    let admitted = stage.number("/rules/0/admitted")?;
    let client = Client(5);
    stage.is_limited(client)?;
    let flood = stage.flood(client)?;
    stage.run("systemctl restart ratelimitd")?;
    ensure!(stage.end_flood(flood)? == 0, "packets of a client over its limit came past the filter");
    ensure!(stage.number("/rules/0/admitted")? > admitted, "what was admitted is no longer counted");
    stage.is_refused(OVER)?;
    stage.all_are_counted().map(drop)
}
