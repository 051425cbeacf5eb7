//! Rows about the state that remains after a stop.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::service::OVER;
use crate::test::systemd::stage::Stage;
use crate::test::systemd::traffic::Client;

pub(super) const PINS: &str = "/sys/fs/bpf/ratelimitd";
const FREED_WITHIN: Duration = Duration::from_secs(2);

pub(super) fn keep(stage: &mut Stage<'_>) -> Result<()> {
    stage.run("systemctl stop ratelimitd")?;
    stage.exits("systemctl is-active ratelimitd", 3)?;
    ensure!(stage.has_filter("web0")? && stage.has(PINS)?, "the filter is gone");
    stage.is_limited(Client(10))?;
    stage.is_refused(OVER)?;
    stage.exits("ratelimitd stats", 69)?;
    stage.run("systemctl start ratelimitd")?;
    stage.is_refused(Client(10))?;
    stage.all_are_counted().map(drop)
}

/// Detaches the filter by hand, as described in docs/OPERATIONS.md.
pub(super) fn by_hand(stage: &mut Stage<'_>) -> Result<()> {
    stage.exits("ip link set dev web0 xdp off", 2)?;
    stage.is_refused(OVER)?;
    stage.run("systemctl stop ratelimitd")?;
    stage.run(&format!("rm -r {PINS}"))?;
    is_unfiltered(stage)?;
    stage.is_served(OVER, 3)?;
    let state = stage.run("systemctl show --property=SubState ratelimitd")?;
    ensure!(state == "SubState=dead", "systemd is about to start it again");
    stage.run("systemctl start ratelimitd")?;
    stage.begin_to_count()?;
    stage.is_limited(Client(12))
}

pub(super) fn detach(stage: &mut Stage<'_>) -> Result<()> {
    stage.edit(r#"on_exit = "keep""#, r#"on_exit = "detach""#)?;
    // A filter that outlives its daemon is not taken over by a daemon that would detach it. The journal names the
    // command to type.
    stage.exits("systemctl restart ratelimitd", 1)?;
    let said = stage.run("journalctl --unit=ratelimitd.service --output=cat --no-pager --grep='^error' --lines=1")?;
    ensure!(said.contains("`ratelimitd detach web0`"), "it is not said what to type");
    ensure!(!said.contains("\"\""), "a name that the kernel does not tell is shown as an empty one");
    stage.is_refused(Client(12))?;
    stage.run("ratelimitd detach && systemctl start ratelimitd")?;
    stage.is_limited(Client(13))?;
    ensure!(!stage.has(PINS)?, "there are pins");
    stage.run("systemctl stop ratelimitd")?;
    nothing_enforces(stage)?;
    stage.is_served(Client(13), 3)?;
    stage.edit(r#"on_exit = "detach""#, r#"on_exit = "keep""#)?;
    stage.run("systemctl start ratelimitd")?;
    stage.begin_to_count()
}

pub(super) fn nothing_enforces(stage: &mut Stage<'_>) -> Result<()> {
    is_unfiltered(stage)?;
    ensure!(!stage.has(PINS)?, "there are pins: {}", stage.ask(&format!("find {PINS}"))?);
    ensure!(stage.ran("pidof ratelimitd")?.code == 1, "the daemon runs");
    stage.say("no filter, no pins, no daemon");
    Ok(())
}

/// Waits until the filter is gone. The kernel frees unreferenced objects with a short delay.
fn is_unfiltered(stage: &Stage<'_>) -> Result<()> {
    let start = Instant::now();
    while stage.has_filter("web0")? {
        ensure!(start.elapsed() < FREED_WITHIN, "web0 is still filtered");
    }
    Ok(())
}
