//! Runs other programs: silently for their output, with progress for long steps, and as root if required.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::progress::{self, Step};
use crate::workspace;

/// Number of output lines that are shown of a failed step.
const TAIL_LINES: usize = 40;

/// Returns the trimmed stdout of a command. Fails if the command fails.
pub(crate) fn answer(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start `{}`", shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a long command. Shows the end of its output only on failure.
pub(crate) fn step(label: &str, command: &mut Command) -> Result<()> {
    let mut running = Step::begin(label);
    let (reader, writer) = io::pipe().context("make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().context("make a pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{label}: start `{}`", shown(command)))?;
    // The command holds the writing end too; the pipe ends when both are closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let output = follow(&mut running, &lines_of(reader));
    let status = child.wait().with_context(|| format!("{label}: wait for it"))?;
    if status.success() {
        running.done();
        return Ok(());
    }
    drop(running);
    for line in &output[output.len().saturating_sub(TAIL_LINES)..] {
        progress::say(&format!("    {line}"));
    }
    bail!("{label}: `{}` failed ({status})", shown(command))
}

/// Builds a command that runs as root, through sudo if necessary. None if this process is not root and sudo is missing.
pub(crate) fn as_root(program: &str, arguments: &[&str]) -> Option<Command> {
    let mut command = if workspace::is_root() {
        Command::new(program)
    } else {
        let mut sudo = Command::new(workspace::program("sudo")?);
        sudo.arg("env").arg("DEBIAN_FRONTEND=noninteractive").arg(program);
        sudo
    };
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    Some(command)
}

/// Returns the command as a user would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Returns the lines of an output as they arrive, without line ends. The last line may be incomplete.
pub(crate) fn lines_of(reader: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

fn follow(step: &mut Step, lines: &Receiver<String>) -> Vec<String> {
    let mut output = Vec::new();
    let mut status = Status::default();
    loop {
        match lines.recv_timeout(step.wait()) {
            Ok(line) => {
                for part in line.split('\r') {
                    output.extend(status.update(part));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return output,
            Err(RecvTimeoutError::Timeout) => {}
        }
        step.show(&status.to_string());
    }
}

/// Latest output of a step.
#[derive(Default)]
struct Status {
    line: String,
    /// Part of the work that is done, such as `12/344`, if the step is cargo with a progress bar.
    fraction: Option<String>,
}

impl Status {
    /// Takes a part of the output. Returns it unless it is empty or a progress bar.
    fn update(&mut self, part: &str) -> Option<String> {
        let text = part.trim_start_matches("\x1b[K").trim_end();
        if let Some((_, bar)) = text.trim_start().strip_prefix("Building [").and_then(|bar| bar.split_once("] ")) {
            self.fraction = bar.split(':').next().map(str::to_owned);
            return None;
        }
        if text.is_empty() {
            return None;
        }
        text.trim_start().clone_into(&mut self.line);
        Some(text.to_owned())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fraction) = &self.fraction {
            write!(f, "{fraction} ")?;
        }
        f.write_str(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_trimmed_and_a_failure_names_the_command() {
        assert_eq!(answer(Command::new("echo").arg("yes")).unwrap(), "yes");
        let error = answer(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("why") && error.contains("sh -c"), "{error}");
    }

    #[test]
    fn a_progress_bar_of_cargo_is_shown_as_a_fraction_and_is_no_output() {
        let mut status = Status::default();
        let bar = "    Building [==>      ] 12/344: syn, libc(build)";
        let parts = [bar, "\x1b[K   Compiling serde v1.0.229", "\x1b[K", bar];
        let output: Vec<_> = parts.iter().filter_map(|part| status.update(part)).collect();
        assert_eq!(output, ["   Compiling serde v1.0.229"]);
        assert_eq!(status.to_string(), "12/344 Compiling serde v1.0.229");
    }

    #[test]
    fn a_step_ends_with_its_command_and_reports_its_failure() {
        step("true", &mut Command::new("true")).unwrap();
        let error = step("breaks", &mut Command::new("false")).unwrap_err().to_string();
        assert!(error.starts_with("breaks: `false` failed"), "{error}");
    }
}
