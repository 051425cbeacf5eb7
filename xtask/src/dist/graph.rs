//! Dependency graph of the shipped program, from cargo. Packages used only at build time or in tests are excluded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{run, workspace};

/// Name and version of a package, such as `serde 1.0.2`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) name: String,
    pub(crate) version: String,
}

/// Dependencies of each package.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Graph {
    pub(crate) edges: BTreeMap<Id, BTreeSet<Id>>,
}

/// Manifest and lock file data of a package.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) version: String,
    /// SPDX expression. Older ones use a slash for OR.
    pub(crate) license: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) repository: Option<String>,
    pub(crate) manifest_path: PathBuf,
    /// Origin of the package. None for a package of this workspace.
    pub(crate) source: Option<String>,
    /// SHA-256 of the package in the registry.
    #[serde(skip)]
    pub(crate) checksum: Option<String>,
}

/// Returns the graph of the daemon for this machine's target.
pub(crate) fn of_program() -> Result<Graph> {
    of("ratelimit-userspace", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
}

/// Returns the graph of the BPF object, which is built separately.
pub(crate) fn of_object() -> Result<Graph> {
    of("ratelimit-ebpf", "bpfel-unknown-none")
}

fn of(package: &str, target: &str) -> Result<Graph> {
    let mut tree = Command::new(workspace::cargo());
    tree.current_dir(workspace::root());
    tree.args(["tree", "--locked", "--package", package, "--target", target]);
    tree.args(["--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", " {p}"]);
    Graph::parse(&run::answer(&mut tree)?)
}

/// Returns the data of every package in the lock file.
pub(crate) fn about() -> Result<BTreeMap<Id, About>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<About>,
    }
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let mut metadata = Command::new(workspace::cargo());
    metadata.current_dir(workspace::root()).args(["metadata", "--locked", "--format-version", "1"]);
    let metadata: Metadata = serde_json::from_str(&run::answer(&mut metadata)?).context("read cargo's metadata")?;
    let lock: Lock =
        toml::from_str(&super::read_text(&workspace::root().join("Cargo.lock"))?).context("read Cargo.lock")?;
    let checksums: BTreeMap<Id, Option<String>> = lock
        .package
        .into_iter()
        .map(|locked| (Id { name: locked.name, version: locked.version }, locked.checksum))
        .collect();
    let with_checksum = |mut about: About| {
        let id = Id { name: about.name.clone(), version: about.version.clone() };
        about.checksum = checksums.get(&id).cloned().flatten();
        (id, about)
    };
    Ok(metadata.packages.into_iter().map(with_checksum).collect())
}

impl Graph {
    /// Parses lines of `DEPTH NAME vVERSION ...`. Each package belongs to the last one with a smaller depth. A repeated
    /// package has no lines below it.
    fn parse(text: &str) -> Result<Self> {
        let mut graph = Self::default();
        let mut above: Vec<Id> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let unread = || format!("cargo tree said {line:?}");
            let (depth, rest) = line.split_once(' ').with_context(unread)?;
            let depth: usize = depth.parse().with_context(unread)?;
            let mut words = rest.split(' ');
            let (name, version) = (words.next().with_context(unread)?, words.next().with_context(unread)?);
            let version = version.strip_prefix('v').with_context(unread)?;
            let id = Id { name: name.to_owned(), version: version.to_owned() };
            above.truncate(depth);
            if let Some(parent) = above.last() {
                graph.edges.entry(parent.clone()).or_default().insert(id.clone());
            }
            graph.edges.entry(id.clone()).or_default();
            above.push(id);
        }
        Ok(graph)
    }

    /// Merges two graphs.
    pub(crate) fn and(mut self, other: Self) -> Self {
        for (id, below) in other.edges {
            self.edges.entry(id).or_default().extend(below);
        }
        self
    }
}

impl About {
    /// Returns the licence expression in current SPDX syntax.
    pub(crate) fn expression(&self) -> Option<String> {
        let words = self.license.as_ref()?.replace('/', " OR ");
        Some(words.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> Id {
        Id { name: name.to_owned(), version: "1.0.0".to_owned() }
    }

    #[test]
    fn a_tree_is_read_with_the_branches_that_are_shown_only_once() {
        let text = "0 a v1.0.0 (/w/a)\n1 b v1.0.0\n2 c v1.0.0\n1 c v1.0.0 (*)\n1 d v1.0.0 (/w/d)\n2 b v1.0.0 (*)\n";
        let graph = Graph::parse(text).unwrap();
        let below = |name: &str| graph.edges[&id(name)].iter().map(|id| id.name.as_str()).collect::<Vec<_>>().join(" ");
        assert_eq!([below("a"), below("b"), below("c"), below("d")], ["b c d", "c", "", "b"]);
        assert!(Graph::parse("0 a").is_err());
    }

    #[test]
    fn both_graphs_are_of_what_is_shipped() {
        let (program, object) = (of_program().unwrap(), of_object().unwrap());
        let has = |graph: &Graph, name: &str| graph.edges.keys().any(|id| id.name == name);
        assert!(has(&program, "aya") && has(&program, "rusqlite") && has(&program, "ratelimit-common"));
        assert!(has(&object, "aya-ebpf") && has(&object, "ratelimit-common"));
        for absent in ["proptest", "aya-build", "serde_derive"] {
            assert!(!has(&program, absent) && !has(&object, absent), "{absent}");
        }
    }
}
