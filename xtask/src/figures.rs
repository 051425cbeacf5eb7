//! `cargo xtask figures`: collects the numbers for docs/TESTING.md. Measures memory at rest, and reads the figures that
//! other commands left in the target directory.

use std::fs;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::{cargo, markdown, run, setup, workspace};

#[derive(Args)]
pub(crate) struct Options {
    /// Write them into docs/TESTING.md
    #[arg(long)]
    write: bool,
}

const DOCUMENT: &str = "docs/TESTING.md";
const BEGIN: &str = "<!-- begin: `cargo xtask figures --write` -->";
const END: &str = "<!-- end -->";

/// Title, file below the target directory, and the command that writes the file.
const GATHERED: [[&str; 3]; 5] = [
    ["Packages", "dist/figures.json", "cargo xtask dist --check"],
    ["Under systemd", "systemd/figures.json", "cargo xtask test --tier systemd"],
    ["On aarch64", "aarch64/figures.json", "cargo xtask test --tier aarch64"],
    ["Crash points", "crash/figures.json", "cargo xtask test --tier crash"],
    ["Fuzzing", "fuzz/figures.json", "cargo xtask fuzz"],
];

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut text = section("Memory at rest", &memory_at_rest()?);
    for [title, file, command] in GATHERED {
        match fs::read(workspace::target_dir().join(file)) {
            Ok(bytes) => {
                let value: Value = serde_json::from_slice(&bytes).with_context(|| format!("read {file}"))?;
                text += &section(title, &value);
            }
            Err(_) => {
                text += &format!("### {title}\n\nNot measured: run `{command}`.\n\n");
            }
        }
    }
    if options.write {
        let path = workspace::root().join(DOCUMENT);
        let document = fs::read_to_string(&path).with_context(|| format!("read {DOCUMENT}"))?;
        fs::write(&path, replaced(&document, &text)?).with_context(|| format!("write {DOCUMENT}"))?;
    } else {
        print!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the memory at rest of the release build with the one-liner's defaults.
fn memory_at_rest() -> Result<Value> {
    setup::ensure(setup::Tier::Build)?;
    let packages = ["--package", "ratelimit-userspace", "--package", "integration-test"];
    let bins = ["--bin", "ratelimitd", "--bin", "rest"];
    let artifacts = cargo::build(&[&["--release"], packages.as_slice(), &bins].concat())?;
    let [rest, daemon] =
        ["rest", "ratelimitd"].map(|name| cargo::binary(&artifacts, name).map(|found| &found.executable));
    let (rest, daemon) = (rest?.to_string_lossy(), daemon?.to_string_lossy());
    let mut command: Command = run::as_root(&rest, &[&daemon]).context("this needs root, and there is no sudo")?;
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    ensure!(output.status.success(), "`{}` failed ({})", run::shown(&command), output.status);
    serde_json::from_slice(&output.stdout).context("read what it printed")
}

/// Returns a section with a table of all values, one row per number, word or boolean.
fn section(title: &str, value: &Value) -> String {
    let mut rows = Vec::new();
    flatten(String::new(), value, &mut rows);
    format!("### {title}\n\n{}\n", markdown::table(&["figure", "value"], &rows))
}

fn flatten(path: String, value: &Value, rows: &mut Vec<Vec<String>>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| flatten(below(&name.replace('_', " ")), value, rows))
        }
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(at, value)| flatten(below(&(at + 1).to_string()), value, rows));
        }
        Value::Number(number) => rows.push(vec![path, grouped(&number.to_string())]),
        Value::String(text) => rows.push(vec![path, text.replace('|', "\\|")]),
        Value::Bool(is_so) => rows.push(vec![path, if *is_so { "yes" } else { "no" }.to_owned()]),
        Value::Null => rows.push(vec![path, "not measured".to_owned()]),
    }
}

/// Groups the digits of a whole number, `1234567` as `1 234 567`. Other text is returned unchanged.
fn grouped(number: &str) -> String {
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return number.to_owned();
    }
    let first = number.len() % 3;
    let (head, tail) = number.split_at(first);
    let groups = tail.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    std::iter::once(head.to_owned()).filter(|head| !head.is_empty()).chain(groups).collect::<Vec<_>>().join(" ")
}

/// Replaces the text between the two marks of the document with `figures`. Fails if a mark is missing.
fn replaced(document: &str, figures: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).with_context(|| format!("{DOCUMENT} has no `{BEGIN}`"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{DOCUMENT} has no `{END}` behind it"))?;
    Ok(format!("{before}{BEGIN}\n\n{}\n{END}{after}", figures.trim_end().to_owned() + "\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_figure_has_a_row() {
        let value = json!({ "a_b": { "c": 1_234_567, "d": 2.5 }, "e": ["x|y", true, null] });
        let mut rows = Vec::new();
        flatten(String::new(), &value, &mut rows);
        let rows: Vec<_> = rows.iter().map(|row| row.join(": ")).collect();
        assert_eq!(rows, ["a b c: 1 234 567", "a b d: 2.5", "e 1: x\\|y", "e 2: yes", "e 3: not measured"]);
        assert_eq!(["7", "123", "1234"].map(grouped), ["7", "123", "1 234"]);
    }

    #[test]
    fn only_what_lies_between_the_marks_is_replaced() {
        let document = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        let once = replaced(&document, "new\n").unwrap();
        assert_eq!(once, format!("a\n{BEGIN}\n\nnew\n\n{END}\nb\n"));
        assert_eq!(replaced(&once, "new\n").unwrap(), once);
        assert!(replaced("a\n", "new\n").is_err());
    }
}
