//! Unit file, made from a template that lacks only the program's directory.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::workspace;

const TEMPLATE: &str = "dist/systemd/ratelimitd.service";
const PLACEHOLDER: &str = "@BINDIR@";

/// Returns the unit for a program in `bin_dir`.
pub(super) fn render(bin_dir: &Path) -> Result<String> {
    let template = fs::read_to_string(workspace::root().join(TEMPLATE)).with_context(|| format!("read {TEMPLATE}"))?;
    // The comment about the placeholder is only for readers of the template.
    let lines = template.lines().filter(|line| !(line.starts_with('#') && line.contains(PLACEHOLDER)));
    Ok(lines.map(|line| line.replace(PLACEHOLDER, &bin_dir.to_string_lossy()) + "\n").collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Maximum exposure score of systemd 252, in tenths. The remainder comes from root, the three capabilities, the
    /// host's network and /sys/fs/bpf.
    const EXPOSURE_MAX: u32 = 23;

    /// Runs systemd-analyze on the unit and returns its output. The unit's program is replaced by one that exists. None
    /// if systemd-analyze is missing.
    fn analyze(test: &str, arguments: &[&str]) -> Option<String> {
        if workspace::program("systemd-analyze").is_none() {
            println!("skipped: {test}: systemd-analyze is missing (package systemd)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let unit = dir.path().join("ratelimitd.service");
        let text = render(Path::new("/usr/bin")).unwrap().replace("/usr/bin/ratelimitd", "/bin/true");
        fs::write(&unit, text).unwrap();
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Some(said.into_owned())
    }

    #[test]
    fn the_unit_names_the_program_where_it_is_installed() {
        let text = render(Path::new("/opt/bin")).unwrap();
        assert!(text.contains("\nExecStart=/opt/bin/ratelimitd run --config /etc/ratelimitd/ratelimitd.toml\n"));
        assert!(!text.contains(PLACEHOLDER), "{text}");
    }

    #[test]
    fn systemd_finds_no_fault_with_the_unit() {
        let test = "install::unit::tests::systemd_finds_no_fault_with_the_unit";
        // systemd-analyze succeeds even if a key is misspelt, and only prints a message.
        assert_eq!(analyze(test, &["verify", "--man=no"]).unwrap_or_default(), "");
    }

    #[test]
    fn the_unit_is_no_more_exposed_than_recorded() {
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let test = "install::unit::tests::the_unit_is_no_more_exposed_than_recorded";
        let _table = analyze(test, &["security", "--offline=true", "--no-pager", &threshold]);
    }
}
