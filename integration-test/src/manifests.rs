//! The manifests for Kubernetes as the cluster would read them: documents, pods, containers, volumes.
//!
//! Knows YAML and the few fields that the tests check, and nothing about how a container is run.

use std::fs;
use std::path::{Path, PathBuf};

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use serde_json::Value;

/// Returns the directory of the manifests.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/kubernetes")
}

/// Returns the path of every manifest, sorted.
pub fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).expect("dist/kubernetes");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Returns the documents of a file.
pub fn documents(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory().join(name)).expect("a manifest");
    Yaml::load_from_str(&text).expect("YAML").iter().map(value).collect()
}

/// Converts YAML to JSON, which is what a cluster receives.
fn value(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(is_so)) => (*is_so).into(),
        Yaml::Value(Scalar::Integer(number)) => (*number).into(),
        Yaml::Value(Scalar::FloatingPoint(number)) => number.0.into(),
        Yaml::Value(Scalar::String(text)) => text.clone().into(),
        Yaml::Sequence(list) => list.iter().map(value).collect(),
        Yaml::Mapping(map) => {
            map.iter().map(|(key, of)| (key.as_str().expect("a key is a text").to_owned(), value(of))).collect()
        }
        Yaml::Tagged(..) | Yaml::Representation(..) | Yaml::Alias(_) | Yaml::BadValue => {
            panic!("{yaml:?} in a manifest")
        }
    }
}

/// Returns the only document of a kind.
pub fn of_kind(name: &str, kind: &str) -> Value {
    let mut of_kind = documents(name).into_iter().filter(|document| document["kind"] == kind);
    let found = of_kind.next().unwrap_or_else(|| panic!("{name} has no {kind}"));
    assert!(of_kind.next().is_none(), "{name} has more than one {kind}");
    found
}

/// Returns the pod that a DaemonSet starts on each node.
pub fn pod(name: &str) -> Value {
    of_kind(name, "DaemonSet")["spec"]["template"]["spec"].take()
}

/// Returns the containers of a pod, the init containers first.
pub fn containers(pod: &Value) -> Vec<&Value> {
    let of = |key: &str| pod[key].as_array().map(Vec::as_slice).unwrap_or_default();
    of("initContainers").iter().chain(of("containers")).collect()
}

/// Returns a container by its name.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = containers(pod);
    all.into_iter().find(|container| container["name"] == name).unwrap_or_else(|| panic!("no container {name}"))
}

/// Returns the texts in a list, or none if there is no list.
pub fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().expect("a text")).collect()
}

/// Returns a container's capabilities such as `CAP_BPF`, sorted. Asserts that all others are dropped.
pub fn capabilities(container: &Value) -> Vec<String> {
    let of = &container["securityContext"]["capabilities"];
    assert_eq!(texts(&of["drop"]), ["ALL"], "{}", container["name"]);
    let mut names: Vec<_> = texts(&of["add"]).iter().map(|name| format!("CAP_{name}")).collect();
    names.sort_unstable();
    names
}

/// Returns a volume by its name.
pub fn volume<'a>(pod: &'a Value, name: &Value) -> &'a Value {
    let mut volumes = pod["volumes"].as_array().into_iter().flatten();
    volumes.find(|volume| volume["name"] == *name).unwrap_or_else(|| panic!("no volume {name}"))
}
