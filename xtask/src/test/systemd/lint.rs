//! Runs lintian on the package, in parallel with the rows, which mostly wait.

use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};

use crate::test::harness::Tally;
use crate::workspace;

const TITLE: &str = "lintian finds no error in the package";

/// lintian tags that an uncompressed package triggers.
const OF_QUICK: &str = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";

/// Running lintian. None if it is missing.
pub(super) struct Lint(Option<JoinHandle<Result<Said>>>);

struct Said {
    is_fine: bool,
    text: String,
}

impl Lint {
    /// Starts lintian. `is_quick` is true for an uncompressed package that was made only for the test.
    pub(super) fn start(package: &Path, is_quick: bool) -> Self {
        if workspace::program("lintian").is_none() {
            return Self(None);
        }
        let package = package.to_owned();
        Self(Some(thread::spawn(move || lint(&package, is_quick))))
    }

    /// Waits for lintian and counts it as one test.
    pub(super) fn end(self, tally: &mut Tally) -> Result<()> {
        let Some(lint) = self.0 else {
            tally.skip(TITLE, "there is no lintian; `cargo xtask setup` installs it if there is apt-get");
            return Ok(());
        };
        let said = lint.join().map_err(|_| anyhow!("the thread of lintian panicked"))??;
        let word = if said.is_fine { "ok" } else { "FAILED" };
        println!("        {TITLE} ... {word}\n{}", said.text);
        tally.take(&format!("test {TITLE} ... {word}"));
        Ok(())
    }
}

/// Runs lintian. Warnings are only shown; errors are failures.
fn lint(package: &Path, is_quick: bool) -> Result<Said> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error"]);
    if is_quick {
        lintian.args(["--suppress-tags", OF_QUICK]);
    }
    lintian.arg("--").arg(package);
    let output = lintian.output().context("start lintian")?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Ok(Said { is_fine: output.status.success(), text: text.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    /// Builds a package with this control file in a temporary directory.
    fn package(control: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("DEBIAN")).unwrap();
        std::fs::write(root.join("DEBIAN/control"), control).unwrap();
        let package = dir.path().join("a_1_all.deb");
        run::answer(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&package)).unwrap();
        (dir, package)
    }

    #[test]
    fn a_package_with_an_error_fails_with_what_is_wrong() {
        if workspace::program("lintian").is_none() {
            println!(
                "skipped: test::systemd::lint::tests::a_package_with_an_error_fails_with_what_is_wrong: no lintian"
            );
            return;
        }
        let control = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: a\n";
        let (_dir, package) = package(control);
        let said = lint(&package, true).unwrap();
        assert!(!said.is_fine && said.text.contains("E: a: "), "{}", said.text);
    }
}
