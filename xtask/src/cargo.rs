//! Builds with cargo and returns the executables.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{run, workspace};

/// An executable that cargo built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub(crate) executable: PathBuf,
    /// Name of the binary, or of the test file.
    pub(crate) target: String,
    manifest: PathBuf,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Test,
    Other,
}

/// Runs `cargo build` with these arguments. Its messages go to stderr. Fails if the build fails.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Artifact>> {
    build_by(Command::new(workspace::cargo()), arguments)
}

/// Same as [`build`], with a command that has its variables set and accepts cargo's arguments.
pub(crate) fn build_by(mut command: Command, arguments: &[&str]) -> Result<Vec<Artifact>> {
    command.current_dir(workspace::root()).arg("build").args(arguments);
    command.arg("--message-format=json-render-diagnostics");
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    ensure!(output.status.success(), "`{}` failed, see above", run::shown(&command));
    let stdout = String::from_utf8_lossy(&output.stdout);
    Ok(stdout.lines().filter_map(Artifact::from_message).collect())
}

/// Builds a binary as a step with progress, and returns its file. Fails if the build fails.
pub(crate) fn build_step(label: &str, arguments: &[String], name: &str) -> Result<PathBuf> {
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root()).arg("build").args(arguments);
    command.env("CARGO_TERM_COLOR", "never");
    // The step reads the bar.
    command.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "100");
    run::step(label, &mut command)?;
    // All is built, so this only returns the file.
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--quiet"]).collect();
    Ok(binary(&build(&arguments)?, name)?.executable.clone())
}

/// Returns the binary with this name among the artifacts. Fails if there is none.
pub(crate) fn binary<'a>(artifacts: &'a [Artifact], name: &str) -> Result<&'a Artifact> {
    let found = artifacts.iter().find(|artifact| artifact.kind == Kind::Other && artifact.target == name);
    found.with_context(|| format!("cargo built no binary {name}"))
}

impl Artifact {
    pub(crate) fn is_test(&self) -> bool {
        self.kind == Kind::Test
    }

    pub(crate) fn is_test_in(&self, package: &str) -> bool {
        self.is_test() && self.package() == workspace::root().join(package)
    }

    /// Returns the directory of the artifact's package.
    pub(crate) fn package(&self) -> &Path {
        self.manifest.parent().unwrap_or(&self.manifest)
    }

    /// Parses a line of cargo's JSON output. None if the line does not describe an executable.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_is_read_from_cargos_messages() {
        let line = r#"{"manifest_path":"/w/a/Cargo.toml","target":{"name":"a"},"profile":{"test":true},"executable":"/t/a-1"}"#;
        let artifact = Artifact::from_message(line).unwrap();
        assert_eq!(artifact.executable, PathBuf::from("/t/a-1"));
        assert_eq!((artifact.target.as_str(), &artifact.kind), ("a", &Kind::Test));
        assert_eq!(Artifact::from_message(&line.replace("\"/t/a-1\"", "null")), None);
        assert_eq!(Artifact::from_message("not JSON"), None);
    }
}
