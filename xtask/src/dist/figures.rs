//! Sizes of the build results, printed and stored as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::run;

/// Prints and stores the sizes of both binaries and all files, sorted by name.
pub(super) fn write(file: &Path, dynamic: &Path, fixed: &Path, made: &[PathBuf]) -> Result<()> {
    let version: Value = serde_json::from_str(&run::answer(Command::new(dynamic).args(["version", "--json"]))?)
        .context("read the version")?;
    let mut sizes =
        BTreeMap::from([("binary, dynamic".to_owned(), bytes(dynamic)?), ("binary, static".to_owned(), bytes(fixed)?)]);
    for path in made {
        sizes.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned(), bytes(path)?);
    }
    for (name, bytes) in &sizes {
        println!("{bytes:>10} bytes  {name}");
    }
    let figures = json!({ "schema": 1, "bytes": sizes, "bpf_object_sha256": version["bpf_object_sha256"] });
    save(file, &figures)
}

/// Adds the number of files that a build from a copy reproduced exactly.
pub(super) fn add_reproduced(file: &Path, same: usize) -> Result<()> {
    let mut figures: Value = serde_json::from_str(&super::read_text(file)?).context("read the figures")?;
    figures["files_reproduced"] = json!(same);
    save(file, &figures)
}

fn save(file: &Path, figures: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(figures).context("write JSON")? + "\n";
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

fn bytes(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path).with_context(|| format!("look at {}", path.display()))?.len())
}
