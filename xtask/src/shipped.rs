//! Check that a shipped binary has no crash points, at which tests kill the daemon.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Environment variable of `ratelimit-crash`. A binary with crash points contains its name.
const TRACE: &[u8] = b"RATELIMITD_CRASH_POINT";

/// Fails if the binary was built together with the tests.
pub(crate) fn refuse_crash_points(binary: &Path) -> Result<()> {
    let bytes = fs::read(binary).with_context(|| format!("read {}", binary.display()))?;
    let is_armed = bytes.windows(TRACE.len()).any(|part| part == TRACE);
    ensure!(
        !is_armed,
        "{} has crash points, as it was built together with the tests: build ratelimit-userspace alone",
        binary.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{run, workspace};

    #[test]
    fn a_binary_with_crash_points_is_refused_by_the_name_that_they_have() {
        let source = fs::read(workspace::root().join("ratelimit-crash/src/armed.rs")).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("ratelimitd");
        fs::write(&binary, [b"\x7fELF".as_slice(), &source].concat()).unwrap();
        assert!(refuse_crash_points(&binary).is_err());
        fs::write(&binary, b"\x7fELF").unwrap();
        refuse_crash_points(&binary).unwrap();
    }

    /// Returns true if a package built alone has crash points.
    fn has_crash_points(package: &str) -> bool {
        let mut tree = Command::new(workspace::cargo());
        tree.current_dir(workspace::root()).args(["tree", "--offline", "--package", package]);
        let tree = run::answer(tree.args(["--edges", "normal,build,features", "--prefix", "none"])).unwrap();
        assert!(tree.contains("ratelimit-crash"), "{tree}");
        tree.contains("ratelimit-crash feature \"armed\"")
    }

    #[test]
    fn shipped_packages_have_no_crash_points_and_tests_have_them() {
        assert!(!has_crash_points("ratelimit-userspace"));
        assert!(has_crash_points("integration-test"));
    }
}
