//! Rows with faults: a hanging or killed daemon, an invalid file, a missing interface.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::service::OVER;
use crate::test::systemd::stage::Stage;
use crate::test::systemd::traffic::Client;

/// Drop-in with shorter times. The unit's are 30 s and 5 s, too long for a test.
const QUICKER: &str = "[Service]\\nWatchdogSec=6\\nRestartSec=1\\n";
const DROP_IN: &str = "/run/systemd/system/ratelimitd.service.d/watchdog.conf";
/// Sum of the watchdog's time, the stop timeout of a hanging process, and the pause before the next start.
const BACK_WITHIN: Duration = Duration::from_secs(45);
/// Maximum time until the daemon attaches to a missing interface after it appears.
const ATTACHED_WITHIN: Duration = Duration::from_secs(20);

pub(super) fn watchdog(stage: &mut Stage<'_>) -> Result<()> {
    stage.run(&format!("mkdir -p $(dirname {DROP_IN}) && printf '{QUICKER}' >{DROP_IN}"))?;
    stage.run("systemctl daemon-reload && systemctl restart ratelimitd")?;
    let restarts = restarts(stage)?;
    let stopped = Instant::now();
    stage.run("kill -STOP $(systemctl show --property=MainPID --value ratelimitd)")?;
    stage.is_limited(Client(6))?;
    stage.is_refused(OVER)?;
    let took = stage.until("restarted and active", stopped, BACK_WITHIN, |stage| {
        Ok(self::restarts(stage)? == restarts + 1 && stage.is_active()?)
    })?;
    stage.figures.watchdog_seconds = took.as_secs_f64();
    let said =
        stage.run("journalctl --output=cat --no-pager --grep='[Ww]atchdog' --unit=ratelimitd.service | tail -n 2")?;
    ensure!(said.contains("atchdog"), "it was not the watchdog");
    stage.is_refused(Client(6))?;
    stage.all_are_counted()?;
    stage.run(&format!("rm {DROP_IN} && systemctl daemon-reload && systemctl restart ratelimitd")).map(drop)
}

pub(super) fn killed(stage: &mut Stage<'_>) -> Result<()> {
    let restarts = restarts(stage)?;
    let killed = Instant::now();
    stage.run("systemctl kill --signal=KILL ratelimitd")?;
    let alone = stage.exits("ratelimitd stats", 69)?;
    ensure!(alone.said().contains("STILL ENFORCING on web0"), "it is not said that the filter goes on");
    stage.is_limited(Client(7))?;
    stage.is_refused(OVER)?;
    let took = stage.until("restarted and active", killed, BACK_WITHIN, |stage| {
        Ok(self::restarts(stage)? == restarts + 1 && stage.is_active()?)
    })?;
    stage.figures.killed_seconds = took.as_secs_f64();
    stage.is_refused(Client(7))?;
    stage.all_are_counted().map(drop)
}

pub(super) fn bad_file_at_start(stage: &mut Stage<'_>) -> Result<()> {
    stage.edit(r#"mode = "enforce""#, r#"mode = "enfroce""#)?;
    stage.exits("systemctl restart ratelimitd", 1)?;
    let state = stage.run("systemctl show --property=ActiveState,SubState,ExecMainStatus,NRestarts ratelimitd")?;
    ensure!(state.contains("ActiveState=failed") && state.contains("ExecMainStatus=78"), "{state}");
    stage.is_limited(Client(8))?;
    stage.is_refused(OVER)?;
    stage.edit(r#"mode = "enfroce""#, r#"mode = "enforce""#)?;
    stage.run("systemctl start ratelimitd")?;
    stage.all_are_counted().map(drop)
}

pub(super) fn late_interface(stage: &mut Stage<'_>) -> Result<()> {
    stage.edit(r#"interfaces = ["web0"]"#, r#"interfaces = ["web0", "late0"]"#)?;
    stage.run("systemctl restart ratelimitd")?;
    ensure!(stage.is_active()?, "it waits for the interface");
    stage.says("late0")?;
    stage.run("systemctl show --property=ActiveState,StatusText ratelimitd")?;
    stage.run("journalctl --output=cat --no-pager --grep='NOT PROTECTED' --lines=1 --unit=ratelimitd")?;
    stage.is_limited(Client(9))?;
    let come = Instant::now();
    stage.run("ip link add late0 type veth peer name late1 && ip link set late0 up && ip link set late1 up")?;
    stage.until("attached", come, ATTACHED_WITHIN, |stage| stage.has_filter("late0"))?;
    stage.run("systemctl show --property=StatusText --value ratelimitd")?;
    stage.edit(r#"interfaces = ["web0", "late0"]"#, r#"interfaces = ["web0"]"#)?;
    stage.run("systemctl reload ratelimitd")?;
    ensure!(!stage.has_filter("late0")?, "an interface that the file no longer has is still filtered");
    stage.run("ip link del late0")?;
    stage.all_are_counted().map(drop)
}

fn restarts(stage: &Stage<'_>) -> Result<u32> {
    Ok(stage.property("NRestarts")?.parse()?)
}
