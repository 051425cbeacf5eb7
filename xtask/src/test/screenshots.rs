//! `cargo xtask screenshots`: runs the test that makes the pictures in the documents.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::tiers::{PRIVILEGED, as_root};
use crate::{cargo, run, setup, workspace};

/// Test that makes the pictures.
const TEST: &str = "pictures";
/// Variable with the directory for the pictures.
const DIRECTORY_VARIABLE: &str = "RATELIMITD_SCREENSHOTS";
const KEPT: &str = "docs/pictures";
const NAMES: [&str; 4] = ["page-light.png", "page-dark.png", "page-phone.png", "top.png"];

pub(crate) fn run() -> Result<ExitCode> {
    setup::ensure(setup::Tier::Test)?;
    let arguments =
        ["--package", PRIVILEGED, "--test", TEST, "--package", "ratelimit-userspace", "--bin", "ratelimitd"];
    let artifacts = cargo::build(&arguments)?;
    let binary = cargo::binary(&artifacts, "ratelimitd")?;
    let test =
        artifacts.iter().find(|artifact| artifact.is_test_in(PRIVILEGED)).context("cargo built no test of pictures")?;
    // The directory belongs to the user, so that root's files in it can be removed.
    let made = workspace::target_dir().join(TEST);
    fs::create_dir_all(&made).with_context(|| format!("make {}", made.display()))?;
    for name in NAMES {
        remove(&made.join(name))?;
    }
    let mut command = as_root(&test.executable, &binary.executable, &[(DIRECTORY_VARIABLE, made.clone())]);
    command.current_dir(workspace::root().join(PRIVILEGED));
    run::step("screenshots: traffic for some minutes", &mut command)?;
    let kept = workspace::root().join(KEPT);
    fs::create_dir_all(&kept).with_context(|| format!("make {}", kept.display()))?;
    for name in NAMES {
        fs::copy(made.join(name), kept.join(name))
            .with_context(|| format!("the run made no {name}: it needs root, chromium and chromedriver"))?;
        println!("{KEPT}/{name}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes a file of an earlier run, if it exists.
fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}
