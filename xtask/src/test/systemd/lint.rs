//! lintian on the package under test, beside the rows, which wait for other things than processors.

use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};

use crate::test::harness::Tally;
use crate::workspace;

const TITLE: &str = "lintian finds no error in the package";

/// What it says of a package that was made in no time.
const OF_QUICK: &str = "uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball";

/// lintian at work; none where it is missing.
pub(super) struct Lint(Option<JoinHandle<Result<Said>>>);

struct Said {
    is_fine: bool,
    text: String,
}

impl Lint {
    /// A package that is made for the test alone `is_quick`: it is not compressed.
    pub(super) fn start(package: &Path, is_quick: bool) -> Self {
        if workspace::program("lintian").is_none() {
            return Self(None);
        }
        let package = package.to_owned();
        Self(Some(thread::spawn(move || lint(&package, is_quick))))
    }

    /// Waits for its end, and counts it as one test.
    pub(super) fn end(self, tally: &mut Tally) -> Result<()> {
        let Some(lint) = self.0 else {
            tally.skip(TITLE, "there is no lintian; `cargo xtask setup` gets it where apt-get is");
            return Ok(());
        };
        let said = lint.join().map_err(|_| anyhow!("the thread of lintian panicked"))??;
        let word = if said.is_fine { "ok" } else { "FAILED" };
        println!("        {TITLE} ... {word}\n{}", said.text);
        tally.take(&format!("test {TITLE} ... {word}"));
        Ok(())
    }
}

/// Warnings are shown, errors fail.
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

    /// A package whose control file lacks a description, in a directory of its own.
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
