//! The tiers: what runs as the user, and what runs as root.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::harness::{Echo, Tally};
use super::summary::Tier;
use crate::{run, workspace};

const PRIVILEGED: &str = "integration-test";
/// Tells the privileged tests which binary to run.
const BINARY_VARIABLE: &str = "RATELIMITD_BIN";
/// What of the user's environment the tests see under sudo too.
const PASSED_ON: [&str; 4] = ["PATH", "CI", "RUST_BACKTRACE", "INSTA_UPDATE"];

/// Every crate but the one that needs root, the BPF crate on the host included.
pub(super) fn unprivileged(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    command.args(["test", "--workspace", "--exclude", PRIVILEGED, "--no-fail-fast", "--", "--show-output"]);
    command.args(filter);
    let mut tally = Tally::default();
    listen(&mut command, "cargo test", &mut tally)?;
    Ok(Tier { name: "unprivileged", tally, took: start.elapsed() })
}

/// One at a time: they share the machine's network namespaces and BPF file systems.
pub(super) fn privileged(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let artifacts = built()?;
    let binary = artifacts.iter().find(|artifact| artifact.is_binary("ratelimitd"));
    let binary = binary.context("cargo built no ratelimitd")?;
    let mut tally = Tally::default();
    for test in artifacts.iter().filter(|artifact| artifact.is_test_in(PRIVILEGED)) {
        eprintln!("     Running {}", test.executable.display());
        let mut command = as_root(&test.executable, &binary.executable);
        command.current_dir(workspace::root().join(PRIVILEGED));
        command.args(["--test-threads=1", "--show-output"]).args(filter);
        listen(&mut command, &test.target, &mut tally)?;
    }
    Ok(Tier { name: "privileged", tally, took: start.elapsed() })
}

/// An executable that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Artifact {
    executable: PathBuf,
    target: String,
    manifest: PathBuf,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Test,
    Other,
}

impl Artifact {
    fn is_binary(&self, name: &str) -> bool {
        self.kind == Kind::Other && self.target == name
    }

    fn is_test_in(&self, package: &str) -> bool {
        self.kind == Kind::Test && self.manifest == workspace::root().join(package).join("Cargo.toml")
    }

    /// From a line of cargo's JSON, where it tells of one.
    fn from_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(Self {
            executable: message.get("executable")?.as_str()?.into(),
            target: message.pointer("/target/name")?.as_str()?.to_owned(),
            manifest: message.get("manifest_path")?.as_str()?.into(),
            kind: if message.pointer("/profile/test")?.as_bool()? { Kind::Test } else { Kind::Other },
        })
    }
}

/// Without root and without sudo the tests run all the same, and say themselves that they are skipped.
fn as_root(test: &Path, binary: &Path) -> Command {
    let sudo = if workspace::is_root() { None } else { workspace::program("sudo") };
    let Some(sudo) = sudo else {
        let mut command = Command::new(test);
        command.env(BINARY_VARIABLE, binary);
        return command;
    };
    let mut command = Command::new(sudo);
    command.arg("env").arg(format!("{BINARY_VARIABLE}={}", binary.display()));
    let variables = PASSED_ON.iter().filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    command.args(variables).arg(test);
    command
}

/// Binaries and tests in one go, so that both are linked with the same libraries.
fn built() -> Result<Vec<Artifact>> {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    command.args(["build", "--workspace", "--all-targets", "--message-format=json-render-diagnostics"]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    ensure!(output.status.success(), "`{}` failed, see above", run::shown(&command));
    let stdout = String::from_utf8_lossy(&output.stdout);
    Ok(stdout.lines().filter_map(Artifact::from_message).collect())
}

/// Runs tests, shows and counts what they report. One that ends badly without saying why counts as failed.
fn listen(command: &mut Command, name: &str, tally: &mut Tally) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start `{}`", run::shown(command)))?;
    let failed_before = tally.failed.len();
    if let Some(stdout) = child.stdout.take() {
        take_all(stdout, tally);
    }
    let status = child.wait().with_context(|| format!("wait for `{}`", run::shown(command)))?;
    if !status.success() && tally.failed.len() == failed_before {
        tally.failed.push(format!("{name} ended with {status}, see above"));
    }
    Ok(())
}

fn take_all(stdout: impl Read, tally: &mut Tally) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    while stdout.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line);
        if tally.take(text.trim_end()) == Echo::Show {
            print!("{text}");
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_is_read_from_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"a"},"profile":{"test":true},"executable":"/t/a-1"}"#;
        let artifact = Artifact::from_message(line).unwrap();
        assert_eq!(artifact.executable, PathBuf::from("/t/a-1"));
        assert_eq!((artifact.target.as_str(), &artifact.kind), ("a", &Kind::Test));
        assert_eq!(Artifact::from_message(&line.replace("\"/t/a-1\"", "null")), None);
        assert_eq!(Artifact::from_message("not JSON"), None);
    }

    #[test]
    fn an_executable_that_dies_without_a_word_counts_as_failed() {
        let mut tally = Tally::default();
        listen(&mut Command::new("false"), "false", &mut tally).unwrap();
        assert_eq!(tally.failed.len(), 1, "{tally:?}");
    }
}
