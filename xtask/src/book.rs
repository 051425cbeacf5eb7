//! `cargo xtask book`: builds the documents as a book in `target/book` by mdBook, and checks its links.
//!
//! The chapters keep their places in the repository, so that links between them work in both. `docs/SUMMARY.md` orders
//! them. A document that is no chapter is an error.

mod links;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use regex_lite::Regex;

use crate::{markdown, run, setup, workspace};

/// Order of the chapters. Its links are relative to its directory.
const SUMMARY: &str = "docs/SUMMARY.md";
const SETTINGS: &str = "book.toml";
/// Directories of which every tracked file may be linked to.
const DIRECTORIES: [&str; 2] = ["docs", "examples"];

pub(crate) fn run() -> Result<ExitCode> {
    let found = build(&setup::mdbook::ensure()?)?;
    println!("{}", found.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the book by this mdBook, and returns the path of its first page. Fails if a link is dead.
pub(crate) fn build(mdbook: &Path) -> Result<PathBuf> {
    let (sources, out) = (workspace::target_dir().join("book-src"), workspace::target_dir().join("book"));
    for directory in [&sources, &out].into_iter().filter(|directory| directory.exists()) {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    lay_out(&sources)?;
    run::answer(Command::new(mdbook).arg("build").arg(&sources).arg("--dest-dir").arg(&out))?;
    let found = links::check(&out)?;
    ensure!(found.dead.is_empty(), "dead links in the book:\n    {}", found.dead.join("\n    "));
    eprintln!("book: {} pages, {} links, none is dead", found.pages, found.links);
    Ok(out.join("index.html"))
}

/// Copies the settings, the chapters and what they may link to.
fn lay_out(sources: &Path) -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let tracked = run::answer(&mut git).context("which files are documents")?;
    let files: Vec<&str> = tracked.lines().filter(|path| is_part(path)).collect();
    let summary = read(SUMMARY)?;
    let missing = not_in(&summary, &files)?;
    ensure!(missing.is_empty(), "{SUMMARY} has no chapter for {}", missing.join(", "));
    for path in files.into_iter().filter(|path| *path != SUMMARY) {
        let to = sources.join("src").join(path);
        fs::create_dir_all(to.parent().unwrap_or(sources)).with_context(|| format!("make a directory for {path}"))?;
        fs::copy(workspace::root().join(path), &to).with_context(|| format!("copy {path}"))?;
    }
    let write = |name: &str, text: String| {
        fs::write(sources.join(name), text).with_context(|| format!("write {name} of the book"))
    };
    write("src/SUMMARY.md", from_the_root(&summary)?)?;
    write(SETTINGS, read(SETTINGS)?)
}

/// Returns true for a document, and for other files that documents may link to.
fn is_part(path: &str) -> bool {
    let is_in_directory = DIRECTORIES.iter().any(|directory| path.starts_with(&format!("{directory}/")));
    is_in_directory || path.ends_with(".md") && !path.contains('/')
}

/// Returns the documents that a summary does not link to.
fn not_in<'a>(summary: &str, files: &[&'a str]) -> Result<Vec<&'a str>> {
    let link = link()?;
    let chapters: Vec<String> = link
        .captures_iter(summary)
        .filter_map(|found| Some(markdown::joined("docs", found.get(1)?.as_str())))
        .collect();
    let documents = files.iter().filter(|path| path.ends_with(".md") && **path != SUMMARY);
    Ok(documents.filter(|path| !chapters.iter().any(|chapter| chapter == *path)).copied().collect())
}

/// Rewrites the links of a summary in `docs` so that they are relative to the repository's root.
fn from_the_root(summary: &str) -> Result<String> {
    let rewritten = link()?.replace_all(summary, |found: &regex_lite::Captures<'_>| {
        format!("]({})", markdown::joined("docs", found.get(1).map_or("", |target| target.as_str())))
    });
    Ok(rewritten.into_owned())
}

fn link() -> Result<Regex> {
    Ok(Regex::new(r"\]\(([^)\s]+)\)")?)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(workspace::root().join(path)).with_context(|| format!("read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A_SUMMARY: &str = "# Summary\n\n[A](../README.md)\n\n- [B](GUIDE.md)\n  - [C](recipes/nginx.md)\n";

    #[test]
    fn chapters_are_found_from_the_root() {
        let expected = "# Summary\n\n[A](README.md)\n\n- [B](docs/GUIDE.md)\n  - [C](docs/recipes/nginx.md)\n";
        assert_eq!(from_the_root(A_SUMMARY).unwrap(), expected);
    }

    #[test]
    fn a_document_that_is_no_chapter_is_named() {
        let files = ["README.md", "docs/GUIDE.md", "docs/SUMMARY.md", "docs/recipes/nginx.md", "docs/a.svg"];
        assert_eq!(not_in(A_SUMMARY, &files).unwrap(), [""; 0]);
        assert_eq!(not_in(A_SUMMARY, &[&files[..], &["docs/NEW.md"]].concat()).unwrap(), ["docs/NEW.md"]);
        assert!(is_part("README.md") && is_part("docs/recipes/nginx.md") && is_part("examples/site.toml"));
        assert!(!is_part("netlab/README.md") && !is_part("Cargo.toml") && !is_part(".github/FORM.md"));
    }
}
