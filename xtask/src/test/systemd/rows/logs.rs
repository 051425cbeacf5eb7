//! Row of a server that sends its log to the daemon's socket as a separate user.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::test::systemd::stage::Stage;
use crate::test::systemd::traffic::LIMITS;

const DROP_IN: &str = "/etc/systemd/system/ratelimitd.service.d/log.conf";
const READ_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn socket(stage: &mut Stage<'_>) -> Result<()> {
    stage.edit(LIMITS, &format!(r#"{LIMITS}\naccess_log = ["unix:/run/ratelimitd/log.sock group=adm"]"#))?;
    stage.run(&format!("mkdir --parents $(dirname {DROP_IN})"))?;
    stage.run(&format!("printf '[Service]\\nSupplementaryGroups=adm\\n' > {DROP_IN}"))?;
    stage.run("systemctl daemon-reload && systemctl restart ratelimitd")?;
    let line = r#"198.51.100.250 - - [$(date --utc '+%d/%b/%Y:%H:%M:%S +0000')] \"GET / HTTP/2.0\" 200 3"#;
    let server = "setpriv --reuid=nobody --regid=nogroup --groups=adm ratelimitd log";
    stage.until("a line of another user is read", Instant::now(), READ_WITHIN, |stage| {
        stage.ran(&format!("echo \"{line}\" | {server}"))?;
        Ok(stage.number("/access_logs/0/lines/not_a_peer").is_ok_and(|lines| lines > 0))
    })?;
    stage.run("ls -ld /run/ratelimitd /run/ratelimitd/log.sock")?;
    stage.run(&format!("rm {DROP_IN} && sed --in-place '/^access_log/d' /etc/ratelimitd/ratelimitd.toml"))?;
    stage.run("systemctl daemon-reload && systemctl restart ratelimitd")?;
    stage.all_are_counted().map(drop)
}
