//! `cargo xtask screenshots`: the pictures of the documents, of a run of the test that makes them.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::tiers::{PRIVILEGED, as_root};
use crate::{cargo, run, setup, workspace};

/// The test of them.
const TEST: &str = "pictures";
/// Tells it where to leave them.
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
    // The user's, so that what root leaves in it can be removed.
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

/// Of an earlier run.
fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}
