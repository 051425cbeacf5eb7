//! Crates that need the BPF compiler, and the check that no other crate depends on them.
//!
//! Everything else in the workspace builds and is tested with a stable toolchain alone. `cargo xtask tidy` runs the
//! check, and the tier `stable` of `cargo xtask test` tries it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{run, workspace};

/// Workspace members that need the BPF compiler: the program, the crate that builds and loads it, and those above.
pub(crate) const EDGE: [&str; 6] = [
    "integration-test",
    "ratelimit-doctor",
    "ratelimit-ebpf",
    "ratelimit-fuzz",
    "ratelimit-kernel",
    "ratelimit-userspace",
];

/// Members of [`EDGE`] that others reach the BPF compiler through.
const BUILD_THE_PROGRAM: [&str; 2] = ["ratelimit-ebpf", "ratelimit-kernel"];
/// Packages of aya that build without the BPF compiler: the stand-in for aya-build, and a library of bpf-linker.
const BUILD_WITHOUT_IT: [&str; 2] = ["aya-build", "aya-rustc-llvm-proxy"];

/// Dependency graph of the workspace, with optional dependencies.
#[derive(Debug)]
pub(crate) struct Graph {
    /// Names of the workspace's packages.
    members: BTreeSet<String>,
    edges: BTreeMap<String, BTreeSet<Edge>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    to: String,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Purpose {
    /// Needed by the package itself or its build script.
    Build,
    /// Needed only by the package's tests.
    Tests,
}

impl Graph {
    /// Reads the graph from cargo.
    ///
    /// # Errors
    /// Fails if cargo fails, or the lock file is out of date.
    pub(crate) fn read() -> Result<Self> {
        let mut metadata = Command::new(workspace::cargo());
        metadata.current_dir(workspace::root());
        metadata.args(["metadata", "--locked", "--all-features", "--format-version", "1"]);
        Self::parse(&run::answer(&mut metadata)?)
    }

    fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Metadata {
            packages: Vec<Package>,
            workspace_members: Vec<String>,
            resolve: Resolve,
        }
        #[derive(Deserialize)]
        struct Package {
            id: String,
            name: String,
        }
        #[derive(Deserialize)]
        struct Resolve {
            nodes: Vec<Node>,
        }
        #[derive(Deserialize)]
        struct Node {
            id: String,
            deps: Vec<Dependency>,
        }
        #[derive(Deserialize)]
        struct Dependency {
            pkg: String,
            dep_kinds: Vec<Kind>,
        }
        #[derive(Deserialize)]
        struct Kind {
            kind: Option<String>,
        }
        let metadata: Metadata = serde_json::from_str(text).context("read cargo's metadata")?;
        let names: BTreeMap<String, String> = metadata.packages.into_iter().map(|of| (of.id, of.name)).collect();
        let name = |id: &String| names.get(id).cloned().with_context(|| format!("cargo does not name {id}"));
        let mut edges: BTreeMap<String, BTreeSet<Edge>> = BTreeMap::new();
        for Node { id, deps } in metadata.resolve.nodes {
            // Versions of one package share an entry, so the graph has at least the edges of each.
            let below = edges.entry(name(&id)?).or_default();
            for Dependency { pkg, dep_kinds } in deps {
                let is_for_tests = dep_kinds.iter().all(|of| of.kind.as_deref() == Some("dev"));
                let purpose = if is_for_tests { Purpose::Tests } else { Purpose::Build };
                below.insert(Edge { to: name(&pkg)?, purpose });
            }
        }
        let members = metadata.workspace_members.iter().map(name).collect::<Result<_>>()?;
        Ok(Self { members, edges })
    }

    /// Returns the members that build without the BPF compiler, sorted.
    pub(crate) fn stable_members(&self) -> Vec<&str> {
        self.members.iter().map(String::as_str).filter(|name| !EDGE.contains(name)).collect()
    }

    /// Returns the shortest chain of dependencies from a member, its tests included, to a package of the BPF program.
    fn way_to_bpf(&self, member: &str) -> Option<Vec<String>> {
        let (mut seen, mut queue) = (BTreeSet::from([member]), VecDeque::from([vec![member]]));
        while let Some(way) = queue.pop_front() {
            let last = *way.last()?;
            if is_bpf(last) {
                return Some(way.into_iter().map(str::to_owned).collect());
            }
            // Cargo builds the tests of the member alone, and not those of its dependencies.
            let edges = self.edges.get(last).into_iter().flatten();
            for Edge { to, .. } in edges.filter(|of| of.purpose == Purpose::Build || last == member) {
                if seen.insert(to) {
                    queue.push_back([&way[..], &[to]].concat());
                }
            }
        }
        None
    }

    /// Returns the members that depend on the BPF program although they are not in [`EDGE`], each with its chain.
    pub(crate) fn needless(&self) -> Vec<Vec<String>> {
        self.stable_members().into_iter().filter_map(|member| self.way_to_bpf(member)).collect()
    }

    /// Returns the names in [`EDGE`] of packages that do not exist, or build without the BPF compiler.
    pub(crate) fn not_at_the_edge(&self) -> Vec<&'static str> {
        let is_at_edge = |name: &&str| self.members.contains(*name) && self.way_to_bpf(name).is_some();
        EDGE.into_iter().filter(|name| !is_at_edge(name)).collect()
    }
}

/// Returns whether a package belongs to the BPF program or loads it.
fn is_bpf(name: &str) -> bool {
    let is_aya = name == "aya" || name.starts_with("aya-");
    is_aya && !BUILD_WITHOUT_IT.contains(&name) || BUILD_THE_PROGRAM.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a graph from rows of member or package, dependency, and purpose.
    fn graph(members: &[&str], rows: &[(&str, &str, Purpose)]) -> Graph {
        let mut edges: BTreeMap<String, BTreeSet<Edge>> = BTreeMap::new();
        for (from, to, purpose) in rows {
            edges.entry((*from).to_owned()).or_default().insert(Edge { to: (*to).to_owned(), purpose: *purpose });
        }
        Graph { members: members.iter().map(|name| (*name).to_owned()).collect(), edges }
    }

    #[test]
    fn a_crate_that_reaches_the_bpf_program_is_named_with_its_shortest_chain() {
        let rows = [
            ("ratelimit-report", "ratelimit-history", Purpose::Build),
            ("ratelimit-report", "ratelimit-datapath", Purpose::Build),
            ("ratelimit-history", "ratelimit-datapath", Purpose::Build),
            ("ratelimit-datapath", "ratelimit-kernel", Purpose::Build),
            ("ratelimit-kernel", "aya", Purpose::Build),
        ];
        let found = graph(&["ratelimit-report", "ratelimit-kernel"], &rows).needless();
        assert_eq!(found, [["ratelimit-report", "ratelimit-datapath", "ratelimit-kernel"]]);
        assert_eq!(graph(&["ratelimit-report", "ratelimit-kernel"], &rows[..3]).needless(), [[""; 0]; 0]);
    }

    #[test]
    fn tests_of_a_crate_count_and_tests_of_its_dependencies_do_not() {
        let rows = [("a", "b", Purpose::Build), ("b", "aya-obj", Purpose::Tests)];
        assert_eq!(graph(&["a"], &rows).needless(), [[""; 0]; 0]);
        assert_eq!(graph(&["b"], &rows).needless(), [["b", "aya-obj"]]);
    }

    #[test]
    fn the_linker_of_the_bpf_program_is_no_way_to_its_compiler() {
        let rows = [("xtask", "bpf-linker", Purpose::Build), ("bpf-linker", "aya-rustc-llvm-proxy", Purpose::Build)];
        assert_eq!(graph(&["xtask"], &rows).needless(), [[""; 0]; 0]);
        let rows = [rows[0], ("bpf-linker", "aya-obj", Purpose::Build)];
        assert_eq!(graph(&["xtask"], &rows).needless(), [["xtask", "bpf-linker", "aya-obj"]]);
    }

    #[test]
    fn a_name_at_the_edge_that_needs_no_bpf_compiler_is_reported() {
        let rows: Vec<_> = EDGE[1..].iter().map(|name| (*name, "aya", Purpose::Build)).collect();
        assert_eq!(graph(&EDGE, &rows).not_at_the_edge(), [EDGE[0]]);
        let rows: Vec<_> = EDGE.iter().map(|name| (*name, "aya", Purpose::Build)).collect();
        assert_eq!(graph(&EDGE, &rows).not_at_the_edge(), [""; 0]);
        assert_eq!(graph(&EDGE[1..], &rows).not_at_the_edge(), [EDGE[0]], "a package that does not exist");
    }

    #[test]
    fn cargos_metadata_is_read_with_the_purpose_of_each_dependency() {
        let text = r#"{
            "packages": [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}, {"id": "3", "name": "c"}],
            "workspace_members": ["1"],
            "resolve": {"nodes": [{"id": "1", "deps": [
                {"pkg": "2", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
                {"pkg": "3", "dep_kinds": [{"kind": "dev"}]}
            ]}]}
        }"#;
        let read = Graph::parse(text).unwrap();
        let edge = |to: &str, purpose| Edge { to: to.to_owned(), purpose };
        assert_eq!(read.edges["a"], BTreeSet::from([edge("b", Purpose::Build), edge("c", Purpose::Tests)]));
        assert_eq!(read.stable_members(), ["a"]);
    }

    #[test]
    fn no_crate_below_the_edge_of_this_workspace_needs_the_bpf_compiler() {
        let graph = Graph::read().unwrap();
        assert_eq!(graph.needless(), [[""; 0]; 0]);
        assert_eq!(graph.not_at_the_edge(), [""; 0]);
        let below = graph.stable_members();
        for name in ["ratelimit-common", "ratelimit-control", "ratelimit-daemon", "ratelimit-datapath"] {
            assert!(below.contains(&name), "{name} in {below:?}");
        }
    }
}
