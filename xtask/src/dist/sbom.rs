//! Bill of materials in CycloneDX 1.5 JSON. It covers the daemon, the BPF object, and SQLite, which one of the packages
//! contains as C code.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::graph::{About, Id};
use super::{VERSION, graph, read_text};
use crate::run;

const PROGRAM: &str = "ratelimit-userspace";
const OBJECT: &str = "ratelimit-ebpf";
/// Package that embeds the BPF object.
const CARRIER: &str = "ratelimit-kernel";
const SQLITE: &str = "libsqlite3-sys";

pub(super) fn document(epoch: u64) -> Result<String> {
    let about = graph::about()?;
    let mut graph = graph::of_program()?.and(graph::of_object()?);
    let named = |name: &str| graph.edges.keys().find(|id| id.name == name).cloned();
    let (carrier, object) = (named(CARRIER).context("no carrier")?, named(OBJECT).context("no object")?);
    let (sqlite_sys, program) = (named(SQLITE), named(PROGRAM).context("no program")?);
    graph.edges.entry(carrier).or_default().insert(object);

    let mut components = Vec::new();
    for id in graph.edges.keys().filter(|id| **id != program) {
        components.push(component("library", id, about.get(id).with_context(|| format!("nothing of {}", id.name))?));
    }
    let mut dependencies: Vec<Value> = graph.edges.iter().map(|(id, below)| depends(&reference(id), below)).collect();
    if let Some(sys) = sqlite_sys {
        let sqlite = sqlite(about.get(&sys).context("nothing of SQLite")?)?;
        // The package's own entry lists packages only, so the embedded SQLite is added.
        let entry = dependencies.iter_mut().find(|entry| entry["ref"] == reference(&sys));
        let list = entry.and_then(|entry| entry["dependsOn"].as_array_mut()).context("no entry of SQLite's package")?;
        list.push(sqlite["bom-ref"].clone());
        components.push(sqlite);
    }
    let mut main = component("application", &program, about.get(&program).context("nothing of the program")?);
    main["name"] = json!("ratelimitd");
    let bom = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": run::answer(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date"]).arg(format!("@{epoch}")))?,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist", "version": VERSION }] },
            "component": main,
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok(serde_json::to_string_pretty(&bom).context("write JSON")? + "\n")
}

fn reference(id: &Id) -> String {
    format!("pkg:cargo/{}@{}", id.name, id.version)
}

fn component(kind: &str, id: &Id, about: &About) -> Value {
    let mut component = BTreeMap::from([
        ("type", json!(kind)),
        ("bom-ref", json!(reference(id))),
        ("name", json!(id.name)),
        ("version", json!(id.version)),
        ("scope", json!("required")),
    ]);
    if about.source.is_some() {
        component.insert("purl", json!(reference(id)));
    }
    let optional = [
        ("description", about.description.as_ref().map(|text| json!(text.trim()))),
        ("licenses", about.expression().map(|expression| json!([{ "expression": expression }]))),
        ("hashes", about.checksum.as_ref().map(|sum| json!([{ "alg": "SHA-256", "content": sum }]))),
        ("externalReferences", about.repository.as_ref().map(|url| json!([{ "type": "vcs", "url": url }]))),
    ];
    component.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    json!(component)
}

fn depends<'a>(reference_of: &str, below: impl IntoIterator<Item = &'a Id>) -> Value {
    json!({ "ref": reference_of, "dependsOn": below.into_iter().map(reference).collect::<Vec<_>>() })
}

/// Returns the component of SQLite. The version comes from the header in the package.
fn sqlite(about: &About) -> Result<Value> {
    let header = about.manifest_path.with_file_name("sqlite3").join("sqlite3.h");
    let text = read_text(&header)?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("#define SQLITE_VERSION ")).context("no version of SQLite")?;
    let version = line.trim().trim_matches('"');
    let purl = format!("pkg:generic/sqlite@{version}");
    Ok(json!({
        "type": "library", "bom-ref": purl, "name": "sqlite", "version": version, "scope": "required", "purl": purl,
        "cpe": format!("cpe:2.3:a:sqlite:sqlite:{version}:*:*:*:*:*:*:*"),
        "licenses": [{ "license": { "name": "Public domain" } }],
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_dependency_is_a_component_and_no_path_of_this_machine_is_in_it() {
        let text = document(0).unwrap();
        let bom: Value = serde_json::from_str(&text).unwrap();
        let components = bom["components"].as_array().unwrap();
        let known: BTreeSet<&str> = components
            .iter()
            .chain([&bom["metadata"]["component"]])
            .map(|component| component["bom-ref"].as_str().unwrap())
            .collect();
        assert_eq!(known.len(), components.len() + 1, "each is named once");
        for entry in bom["dependencies"].as_array().unwrap() {
            let below = entry["dependsOn"].as_array().unwrap().iter();
            for reference in below.chain([&entry["ref"]]) {
                assert!(known.contains(reference.as_str().unwrap()), "{reference}");
            }
        }
        for name in ["aya", "aya-ebpf", "network-types", "sqlite", "ratelimit-ebpf"] {
            assert!(components.iter().any(|component| component["name"] == *name), "{name}");
        }
        assert!(!text.contains(crate::workspace::root().to_str().unwrap()));
        assert_eq!(bom["metadata"]["timestamp"], "1970-01-01T00:00:00Z");
    }
}
