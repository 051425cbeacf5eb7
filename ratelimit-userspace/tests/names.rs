//! Names that stay from version to version. docs/names.txt lists them, so that each change of one is seen in review.
//! `UPDATE_DOCS=1 cargo test --package ratelimit-userspace --test names` renews the list.
#![expect(clippy::expect_used, reason = "a test that cannot read the sources fails")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ratelimit_common::layout::Fault;
use ratelimit_common::verdict::Reason;
use ratelimit_policy::config::keys::TABLES;
use ratelimit_report::event::EventKind;
use ratelimit_userspace::cli::definition;

/// Crates that define the JSON of the API and of `--json`.
const OF_JSON: [&str; 4] = ["ratelimit-control", "ratelimit-history", "ratelimit-report", "ratelimit-view"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// Returns the flags of a command and of all commands below it, each with the command's name.
fn flags(command: &clap::Command, name: &str) -> Vec<String> {
    let mut names = vec![name.to_owned()];
    let flag = |of: &clap::Arg| Some(format!("{name} --{}", of.get_long()?).trim_start().to_owned());
    names.extend(command.get_arguments().filter_map(flag));
    names.extend(command.get_subcommands().flat_map(|of| flags(of, format!("{name} {}", of.get_name()).trim())));
    names
}

/// Returns the metrics with their types and labels, from the rows of docs/METRICS.md, which a test holds to the code.
fn metrics() -> Vec<String> {
    let text = read(&root().join("docs/METRICS.md"));
    let rows = text.lines().filter(|line| line.starts_with("| `ratelimitd_"));
    rows.map(|row| row.split('|').skip(1).take(3).map(str::trim).collect::<Vec<_>>().join(" ").replace('`', ""))
        .collect()
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).expect("sources").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort_unstable();
    let is_test = |path: &Path| path.file_stem().is_some_and(|name| name == "tests" || name == "fixture");
    let shipped = paths.into_iter().filter(|path| !is_test(path));
    shipped.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Returns the name in JSON of a field or variant, which stands below these attributes.
fn in_json(line: &str, attributes: &str, is_snake_case: bool) -> Option<String> {
    if let Some((_, rest)) = attributes.split_once("rename = \"") {
        return rest.split_once('"').map(|(name, _)| name.to_owned());
    }
    let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
    let name = line.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())?;
    if attributes.contains("skip)") {
        return None;
    }
    let mut snake = String::new();
    for (at, c) in name.char_indices() {
        if is_snake_case && c.is_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(if is_snake_case { c.to_ascii_lowercase() } else { c });
    }
    Some(snake)
}

/// Returns the fields and variants of the types that a source file writes as JSON.
fn json_names(source: &str) -> Vec<String> {
    let (mut names, mut attributes) = (Vec::new(), String::new());
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            attributes += line;
            continue;
        }
        let is_written = attributes.contains("Serialize");
        let is_snake_case = attributes.contains("snake_case");
        attributes.clear();
        let words: Vec<&str> = line.trim_start_matches("pub ").split([' ', '<', '(']).collect();
        let (["struct" | "enum", of, ..], true) = (&words[..], is_written && line.ends_with('{')) else { continue };
        for line in lines.by_ref().take_while(|line| *line != "}") {
            let Some(line) = line.strip_prefix("    ").filter(|line| !line.starts_with([' ', '}', ')', '/'])) else {
                continue;
            };
            if line.starts_with("#[") {
                attributes += line;
                continue;
            }
            names.extend(in_json(line, &attributes, is_snake_case).map(|name| format!("{of}.{name}")));
            attributes.clear();
        }
    }
    names
}

fn names() -> String {
    let keys = TABLES.iter().flat_map(|table| table.keys.iter().map(|key| format!("{}{}", table.prefix, key.name)));
    let faults = Fault::ALL.iter().map(|fault| format!("{} {}", fault.labels().0, fault.labels().1));
    let json = OF_JSON.iter().flat_map(|name| sources(&root().join(name).join("src")));
    let json = json.flat_map(|path| json_names(&read(&path)));
    let sections: [(&str, Vec<String>); 7] = [
        ("Commands and flags", flags(&definition(), "")),
        ("Keys of the configuration", keys.collect()),
        ("Reasons", Reason::ALL.iter().map(|reason| reason.label().to_owned()).collect()),
        ("Kinds of events", EventKind::ALL.iter().map(|kind| kind.label().to_owned()).collect()),
        ("Map errors: map and operation", faults.collect()),
        ("Metrics: name, type and labels", metrics()),
        ("JSON: fields and values by the type that has them", json.collect()),
    ];
    let mut text =
        "Names that stay from version to version; ratelimit-userspace/tests/names.rs makes this list.\n".to_owned();
    for (title, mut names) in sections {
        names.retain(|name| !name.is_empty());
        names.sort_unstable();
        names.dedup();
        writeln!(text, "\n{title}\n\n{}", names.join("\n")).expect("a string takes all");
    }
    text
}

#[test]
fn no_name_changes_unnoticed() {
    let path = root().join("docs/names.txt");
    let made = names();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &made).expect("write docs/names.txt");
    }
    let (frozen, made): (Vec<_>, Vec<_>) =
        (read(&path).lines().map(str::to_owned).collect(), made.lines().map(str::to_owned).collect());
    let gone: Vec<_> = frozen.iter().filter(|name| !made.contains(name)).collect();
    let new: Vec<_> = made.iter().filter(|name| !frozen.contains(name)).collect();
    assert!(frozen == made, "docs/names.txt is stale: gone {gone:#?}, new {new:#?}; UPDATE_DOCS=1 renews it");
}

#[test]
fn fields_and_variants_are_found_under_their_names_in_json() {
    let source = "#[derive(Debug, Serialize)]\npub struct A {\n    /// Comment.\n    #[serde(rename = \"5m\")]\n    pub of: u8,\n    \
                  pub(crate) b: Vec<u8>,\n    #[serde(skip)]\n    c: u8,\n}\n\
                  #[derive(Serialize)]\n#[serde(rename_all = \"snake_case\")]\nenum B {\n    BanEnd,\n    Two(u8),\n}\n\
                  #[derive(Debug)]\nstruct C {\n    d: u8,\n}\n";
    assert_eq!(json_names(source), ["A.5m", "A.b", "B.ban_end", "B.two"]);
}
