//! Licences of the shipped packages: their texts for users, and a check against deny.toml.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::graph::{self, About, Id};
use super::read_text;
use crate::workspace;

/// Prefixes of the names of licence files, in lower case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];

/// Part of deny.toml that is checked here without cargo-deny.
#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

/// Returns each licence text once, below the packages that use it.
pub(crate) fn texts() -> Result<String> {
    let about = graph::about()?;
    let mut packages_of: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let mut list = String::new();
    for id in shipped()? {
        let about = about.get(&id).with_context(|| format!("cargo does not list {}", id.name))?;
        if about.source.is_none() {
            continue;
        }
        let title = format!("{} {}", id.name, id.version);
        let files = files(about)?;
        let note = if files.is_empty() { "; its package has no text of it" } else { "" };
        let licence = about.expression().unwrap_or_else(|| "no licence named".to_owned());
        writeln!(
            list,
            "{title}: {licence}{note}{}",
            about.repository.as_ref().map_or_else(String::new, |url| format!(" ({url})"))
        )?;
        for file in files {
            let text = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            packages_of.entry(words).or_insert_with(|| (text, BTreeSet::new())).1.insert(title.clone());
        }
    }
    let mut out = format!("ratelimitd is linked with these libraries. Their licences follow.\n\n{list}");
    // Sorted by packages, so that a change of one package does not move the other texts.
    let mut texts: Vec<_> = packages_of.into_values().map(|(text, packages)| (packages, text)).collect();
    texts.sort();
    for (packages, text) in texts {
        let line = "-".repeat(78);
        let packages: Vec<_> = packages.into_iter().collect();
        write!(out, "\n{line}\n{}\n{line}\n\n{}\n", packages.join(", "), text.trim_matches('\n'))?;
    }
    Ok(out)
}

/// Returns one line per package with a licence that deny.toml does not allow, or from outside the registry.
pub(crate) fn refused() -> Result<Vec<String>> {
    let deny: Deny = toml::from_str(&read_text(&workspace::root().join("deny.toml"))?).context("read deny.toml")?;
    let about = graph::about()?;
    let mut refused = Vec::new();
    for (id, about) in &about {
        let title = format!("{} {}", id.name, id.version);
        if let Err(why) = accepted(about, &deny.licenses.allow) {
            refused.push(format!("{title}: {why}"));
        }
        if about.source.as_ref().is_some_and(|source| !source.starts_with("registry+")) {
            refused.push(format!("{title} comes from {}", about.source.as_deref().unwrap_or_default()));
        }
    }
    Ok(refused)
}

fn accepted(about: &About, allowed: &[String]) -> Result<(), String> {
    let text = about.expression().ok_or("it names no licence")?;
    let expression =
        spdx::Expression::parse_mode(&text, spdx::ParseMode::LAX).map_err(|error| format!("{text}: {error}"))?;
    let is_allowed = |needed: &spdx::LicenseReq| allowed.contains(&needed.to_string());
    if expression.evaluate(is_allowed) { Ok(()) } else { Err(format!("{text} is not among what deny.toml allows")) }
}

/// Returns the packages of the program and of the BPF object, sorted.
fn shipped() -> Result<BTreeSet<Id>> {
    Ok(graph::of_program()?.and(graph::of_object()?).edges.into_keys().collect())
}

/// Returns the licence files beside a package's manifest, or in a directory of licences there.
fn files(about: &About) -> Result<Vec<PathBuf>> {
    let dir = about.manifest_path.parent().context("a manifest lies in a directory")?;
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if !NAMES.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        if path.is_file() {
            found.push(path);
        } else if path.is_dir() {
            let inner = fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?;
            found.extend(inner.flatten().map(|entry| entry.path()).filter(|path| path.is_file()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn licensed(license: &str) -> About {
        About { license: Some(license.to_owned()), ..About::default() }
    }

    #[test]
    fn a_licence_is_accepted_where_one_of_a_choice_is_and_each_of_several() {
        let allowed = ["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
        for good in ["MIT", "MIT/GPL-3.0", "GPL-2.0 OR MIT", "Apache-2.0 WITH LLVM-exception"] {
            assert_eq!(accepted(&licensed(good), &allowed), Ok(()), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "nonsense"] {
            assert!(accepted(&licensed(bad), &allowed).is_err(), "{bad}");
        }
        assert!(accepted(&About::default(), &allowed).is_err());
    }

    #[test]
    fn every_dependency_has_a_licence_that_is_accepted() {
        assert_eq!(refused().unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_texts_name_what_is_shipped_and_nothing_of_this_machine() {
        let texts = texts().unwrap();
        for name in ["aya ", "aya-ebpf ", "rusqlite ", "tokio "] {
            assert!(texts.lines().any(|line| line.starts_with(name)), "{name}");
        }
        assert!(texts.contains("Permission is hereby granted") && !texts.contains("/registry/"));
    }
}
