//! axe-core, for a test of the web page's accessibility. npm fetches it into target; it is not shipped.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{programs, say};
use crate::{run, workspace};

const VERSION: &str = "4.14.1";
/// Hash of the archive, as reported by npm.
const INTEGRITY: &str =
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==";

fn dir() -> PathBuf {
    workspace::target_dir().join("axe-core")
}

/// Returns the script, if it was fetched.
pub(crate) fn file() -> Option<PathBuf> {
    Some(dir().join("axe.min.js")).filter(|file| file.is_file())
}

pub(super) fn ensure() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    programs::ensure_some(&["npm", "tar"])?;
    let parts = dir().with_added_extension("parts");
    let root = parts.join("root");
    if parts.exists() {
        fs::remove_dir_all(&parts).with_context(|| format!("remove {}", parts.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let mut pack = Command::new("npm");
    pack.current_dir(&parts).args(["pack", "--json", "--ignore-scripts", &format!("axe-core@{VERSION}")]);
    let archive = archive_of(&run::answer(&mut pack)?)?;
    run::answer(
        Command::new("tar").args(["-x", "--strip-components=1", "-f"]).arg(parts.join(archive)).arg("-C").arg(&root),
    )?;
    if dir().exists() {
        fs::remove_dir_all(dir()).with_context(|| format!("remove {}", dir().display()))?;
    }
    fs::rename(&root, dir()).with_context(|| format!("move {} to {}", root.display(), dir().display()))?;
    fs::remove_dir_all(&parts).with_context(|| format!("remove {}", parts.display()))?;
    ensure!(is_there(), "npm's axe-core {VERSION} has no axe.min.js");
    say(&format!("programs: axe-core {VERSION} is in {}", dir().display()));
    Ok(())
}

/// Returns true if the complete package of this version exists.
fn is_there() -> bool {
    let package = fs::read_to_string(dir().join("package.json")).unwrap_or_default();
    let package: Value = serde_json::from_str(&package).unwrap_or_default();
    file().is_some() && package["version"] == VERSION
}

/// Returns the name of the archive that npm wrote. Fails if its hash is wrong.
fn archive_of(told: &str) -> Result<String> {
    let told: Value = serde_json::from_str(told).context("read what `npm pack --json` printed")?;
    let of = |key: &str| told.pointer(&format!("/0/{key}")).and_then(Value::as_str).unwrap_or_default().to_owned();
    let integrity = of("integrity");
    ensure!(integrity == INTEGRITY, "npm's axe-core {VERSION} is {integrity}, and not {INTEGRITY}");
    Ok(of("filename"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_is_another_is_refused() {
        let told = |integrity: &str| format!(r#"[{{"integrity": "{integrity}", "filename": "axe-core-1.tgz"}}]"#);
        assert_eq!(archive_of(&told(INTEGRITY)).unwrap(), "axe-core-1.tgz");
        assert!(archive_of(&told("sha512-other")).is_err());
        assert!(archive_of("[]").is_err());
    }
}
