//! The manifests for Kubernetes as the cluster would read them: documents, pods, containers, volumes.
//!
//! Knows YAML and the few fields that the tests hold; knows nothing of how a container is run.

use std::fs;
use std::path::{Path, PathBuf};

use saphyr::{LoadableYamlNode as _, Scalar, Yaml};
use serde_json::Value;

/// Where they lie.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/kubernetes")
}

/// Every file, sorted.
pub fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).expect("dist/kubernetes");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// The documents of a file.
pub fn documents(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory().join(name)).expect("a manifest");
    Yaml::load_from_str(&text).expect("YAML").iter().map(value).collect()
}

/// As JSON, which is what a cluster is sent.
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

/// The one document of a kind.
pub fn of_kind(name: &str, kind: &str) -> Value {
    let mut of_kind = documents(name).into_iter().filter(|document| document["kind"] == kind);
    let found = of_kind.next().unwrap_or_else(|| panic!("{name} has no {kind}"));
    assert!(of_kind.next().is_none(), "{name} has more than one {kind}");
    found
}

/// The pod that a DaemonSet starts on each node.
pub fn pod(name: &str) -> Value {
    of_kind(name, "DaemonSet")["spec"]["template"]["spec"].take()
}

/// The containers of a pod, those first that run before the others.
pub fn containers(pod: &Value) -> Vec<&Value> {
    let of = |key: &str| pod[key].as_array().map(Vec::as_slice).unwrap_or_default();
    of("initContainers").iter().chain(of("containers")).collect()
}

/// A container by its name.
pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = containers(pod);
    all.into_iter().find(|container| container["name"] == name).unwrap_or_else(|| panic!("no container {name}"))
}

/// Texts in a list; none where there is no list.
pub fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().expect("a text")).collect()
}

/// What a container may, sorted: `CAP_BPF`. All are taken from it first.
pub fn capabilities(container: &Value) -> Vec<String> {
    let of = &container["securityContext"]["capabilities"];
    assert_eq!(texts(&of["drop"]), ["ALL"], "{}", container["name"]);
    let mut names: Vec<_> = texts(&of["add"]).iter().map(|name| format!("CAP_{name}")).collect();
    names.sort_unstable();
    names
}

/// A volume by its name.
pub fn volume<'a>(pod: &'a Value, name: &Value) -> &'a Value {
    let mut volumes = pod["volumes"].as_array().into_iter().flatten();
    volumes.find(|volume| volume["name"] == *name).unwrap_or_else(|| panic!("no volume {name}"))
}
