//! Tests that commands, flags and documents exist if help or messages name them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::error::Exit;

/// Words that follow the program's name in a sentence and are no commands.
const PROSE: [&str; 15] = [
    "that",
    "as",
    "about",
    "ended",
    "with",
    "is",
    "never",
    "may",
    "takes",
    "works",
    "there",
    "does",
    "counts",
    "maintainers",
    "contributors",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

/// Returns the files in a directory of the workspace with one of these endings, except those of tests.
fn files(directory: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut directories = vec![root().join(directory)];
    let mut found = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "snapshots", "target", "tidy"].contains(&name.as_str()) {
                directories.push(path);
            } else if path.is_file() && name != "tests.rs" && endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{directory}");
    found
}

/// Returns the text of a file that a reader may see. For code, that includes strings and the help, and excludes tests.
fn shown(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("text");
    if path.extension().is_none_or(|of| of != "rs") {
        return text;
    }
    let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let is_comment = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("//") && !line.starts_with("/// ")
    };
    // A string that continues on the next line is one string.
    shipped.lines().filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n").replace("\\\n", "")
}

/// Returns each crate's sources, and the files that are installed beside the program.
fn everything() -> Vec<(PathBuf, String)> {
    let crates = std::fs::read_dir(root()).expect("the workspace").filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?.to_owned();
        (path.join("src").is_dir()
            && path.join("Cargo.toml").is_file()
            && name != "integration-test"
            && name != "netlab")
            .then(|| format!("{name}/src"))
    });
    let mut paths: Vec<PathBuf> = crates.flat_map(|directory| files(&directory, &[".rs"])).collect();
    paths.extend(files("dist", &[".toml", ".service", ".sysusers"]));
    paths.into_iter().map(|path| (path.clone(), shown(&path))).collect()
}

/// Returns the words of the command line that begins here, up to its first special character.
fn words(rest: &str) -> Vec<&str> {
    let line = rest.split(['`', '\n', '"', '|', ';', '(', ')', '·']).next().unwrap_or_default();
    line.split(' ')
        .map(|word| word.trim_end_matches(['.', ',', ':', '\\']))
        .take_while(|word| !word.is_empty())
        .collect()
}

#[test]
fn every_command_that_is_named_exists() {
    let definition = definition();
    let limiter: BTreeSet<_> = definition.get_arguments().filter_map(clap::Arg::get_long).collect();
    let mut named = 0;
    for (path, text) in everything() {
        for rest in text.split("ratelimitd ").skip(1) {
            let words = words(rest);
            let Some(first) = words.first().copied() else { continue };
            let is_word = first.starts_with(|c: char| c.is_ascii_lowercase())
                && first.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let command = if first.starts_with("--") {
                None
            } else if is_word && !PROSE.contains(&first) {
                let command = definition.find_subcommand(first);
                assert!(command.is_some(), "{}: there is no command `ratelimitd {first}`", path.display());
                command
            } else {
                continue;
            };
            named += 1;
            let below = command.iter().flat_map(|command| command.get_subcommands());
            let own: BTreeSet<_> = command
                .into_iter()
                .chain(below)
                .flat_map(|command| command.get_arguments())
                .filter_map(clap::Arg::get_long)
                .collect();
            for flag in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let flag = flag.split('=').next().unwrap_or_default();
                let is_global = ["json", "output", "color", "verbose", "quiet", "help", "version"].contains(&flag);
                let is_known = own.contains(flag) || is_global || command.is_none() && limiter.contains(flag);
                assert!(
                    is_known || flag.is_empty(),
                    "{}: `ratelimitd {}` has no --{flag}",
                    path.display(),
                    words.join(" ")
                );
            }
        }
    }
    assert!(named > 50, "{named}");
}

#[test]
fn no_message_names_a_document_that_is_not_installed() {
    let mut named = 0;
    for (path, text) in everything() {
        // Check the shipped program only: documents link to each other.
        let is_program =
            path.extension().is_some_and(|of| of == "rs" || of == "service") && !path.starts_with(root().join("xtask"));
        // These texts are part of a document, or its test.
        let is_program =
            is_program && !["config/keys.rs", "keys/fleet.rs", "tests/schema.rs"].iter().any(|of| path.ends_with(of));
        for line in text.lines().filter(|line| is_program && line.contains(".md") && !line.contains("include_str!")) {
            for (at, _) in line.match_indices(".md") {
                let start = line[..at]
                    .rfind(|c: char| !(c.is_ascii_alphanumeric() || "-_./".contains(c)))
                    .map_or(0, |at| at + 1);
                let cited = &line[start..at + 3];
                if line.trim_start().starts_with("/// ")
                    && !path.starts_with(root().join("ratelimit-userspace/src/cli"))
                {
                    continue;
                }
                let name = cited.strip_prefix("share/doc/ratelimitd/docs/");
                let is_there = name.is_some_and(|name| root().join("docs").join(name).is_file());
                assert!(is_there, "{}: {cited} is not installed", path.display());
                named += 1;
            }
        }
    }
    assert!(named > 0);
}

#[test]
fn every_exit_code_is_said_the_same_everywhere() {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let help = plain(&definition().render_long_help().to_string());
    let unit = plain(&std::fs::read_to_string(root().join("dist/systemd/ratelimitd.service")).expect("the unit"));
    let documents: Vec<_> = files("docs", &[".md"]).into_iter().map(|path| (path.clone(), shown(&path))).collect();
    for exit in Exit::ALL {
        let (code, words) = (exit as u8, exit.words());
        assert!(help.contains(&format!("{code} {words}")), "--help on {code}");
        if [Exit::Unavailable, Exit::Occupied, Exit::NotPrivileged, Exit::Config].contains(&exit) {
            assert!(unit.contains(&format!("# {code} {words}")), "the unit on {code}");
        }
        for (path, text) in &documents {
            let Some((_, section)) = text.split_once("\n## Exit codes\n") else { continue };
            let section = section.split("\n## ").next().unwrap_or_default();
            let row = format!("\n| {code} | {words} |\n");
            assert!(section.contains(&row), "{} on {code}: {section}", path.display());
        }
    }
}
