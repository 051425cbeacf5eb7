//! Files installed beside the daemon: other units, the script that fetches lists, and fail2ban's action.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::layout::Layout;
use super::{File, read};
use crate::workspace;

/// Units for CrowdSec and for published lists.
pub(super) const UNITS: [&str; 3] =
    ["ratelimitd-crowdsec.service", "ratelimitd-feed@.service", "ratelimitd-feed@.timer"];
const FEED: &str = "ratelimitd-feed";
const ACTION: &str = "fail2ban/action.d/ratelimitd.conf";

/// State directories of these units.
pub(super) const STATES: [&str; 2] = ["/var/lib/ratelimitd-crowdsec", "/var/lib/ratelimitd-feeds"];

/// Returns all these files. No unit is enabled.
pub(super) fn files(layout: &Layout) -> Result<Vec<File>> {
    let dist = workspace::root().join("dist");
    let mut files = Vec::new();
    for unit in UNITS {
        let text = read(&dist.join("systemd").join(unit))?;
        let text = String::from_utf8_lossy(&text).replace("@BINDIR@", &layout.bin_dir().to_string_lossy());
        let text = text.replace("@LIBEXECDIR@", &layout.libexec_dir().to_string_lossy());
        files.push(File::text(layout.other_unit(unit), text));
    }
    files.push(File::program(layout.libexec_dir().join(FEED), read(&dist.join("feeds").join(FEED))?));
    files.push(File::kept(action(), read(&dist.join(ACTION))?));
    Ok(files)
}

/// Returns the path of the action in fail2ban's directory.
fn action() -> PathBuf {
    Path::new("/etc").join(ACTION)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn timer() -> String {
        String::from_utf8(read(&workspace::root().join("dist/systemd/ratelimitd-feed@.timer")).unwrap()).unwrap()
    }

    #[test]
    fn a_timer_that_makes_up_for_missed_days_goes_by_the_calendar() {
        let text = timer();
        let has = |setting: &str| text.lines().any(|line| line.starts_with(setting));
        assert!(has("OnCalendar=daily") && has("RandomizedDelaySec="), "{text}");
        // systemd.timer(5): Persistent= only affects OnCalendar=.
        for monotonic in ["OnActiveSec", "OnBootSec", "OnStartupSec", "OnUnitActiveSec", "OnUnitInactiveSec"] {
            assert!(!has(monotonic), "{monotonic}");
        }
    }

    #[test]
    fn systemd_takes_every_unit() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::below(Path::new("/usr/local"));
        let feed = format!("={} ", layout.libexec_dir().join(FEED).display());
        for file in files(&layout).unwrap() {
            let name = file.path.file_name().unwrap();
            if UNITS.iter().any(|unit| name == *unit) {
                // Programs that are not installed here are replaced by /bin/true.
                let text = String::from_utf8(file.content).unwrap();
                let text = text.replace("=/usr/local/bin/ratelimitd ", "=/bin/true ");
                let text = text.replace(&feed, "=/bin/true ");
                std::fs::write(directory.path().join(name), text).unwrap();
            }
        }
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).args(UNITS.map(|unit| directory.path().join(unit)));
        match command.output() {
            Err(_) => println!("skipped: systemd_takes_every_unit: there is no systemd-analyze"),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && !said.contains("ratelimitd-"), "{said}");
            }
        }
    }
}
