//! The units beside the daemon's, the script that fetches lists, and fail2ban's action.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::layout::Layout;
use super::{File, read};
use crate::workspace;

/// The units: of CrowdSec, and of published lists.
pub(super) const UNITS: [&str; 3] =
    ["ratelimitd-crowdsec.service", "ratelimitd-feed@.service", "ratelimitd-feed@.timer"];
const FEED: &str = "ratelimitd-feed";
const ACTION: &str = "fail2ban/action.d/ratelimitd.conf";

/// What the units keep.
pub(super) const STATES: [&str; 2] = ["/var/lib/ratelimitd-crowdsec", "/var/lib/ratelimitd-feeds"];

/// All of them. None is enabled.
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

/// Where fail2ban looks for actions.
fn action() -> PathBuf {
    Path::new("/etc").join(ACTION)
}
