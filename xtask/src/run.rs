//! Runs other programs: silently for their output, with progress for long steps, and as root if required.
//!
//! Progress goes to stderr. On a terminal a long step is one line that keeps changing. Elsewhere it prints a line at
//! the start, one at the end, and one every half minute.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::workspace;

const REDRAW: Duration = Duration::from_millis(200);
const PLAIN_SIGN_OF_LIFE: Duration = Duration::from_secs(30);
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
    let start = Instant::now();
    let (reader, writer) = io::pipe().context("make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().context("make a pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{label}: start `{}`", shown(command)))?;
    // The command holds the writing end too; the pipe ends when both are closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());

    let output = follow(label, start, &lines_of(reader));
    let status = child.wait().with_context(|| format!("{label}: wait for it"))?;
    let seconds = start.elapsed().as_secs_f32();
    if status.success() {
        eprintln!("{label}: done in {seconds:.1} s");
        return Ok(());
    }
    for line in &output[output.len().saturating_sub(TAIL_LINES)..] {
        eprintln!("    {line}");
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

fn follow(label: &str, start: Instant, lines: &Receiver<String>) -> Vec<String> {
    let terminal = io::stderr().is_terminal();
    let pause = if terminal { REDRAW } else { PLAIN_SIGN_OF_LIFE };
    let mut output = Vec::new();
    let mut next_sign = start + pause;
    if !terminal {
        eprintln!("{label} ...");
    }
    loop {
        match lines.recv_timeout(next_sign.saturating_duration_since(Instant::now())) {
            Ok(line) => output.push(line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = start.elapsed().as_secs();
                let last = output.last().map_or("", String::as_str).trim();
                if terminal {
                    let line: String = format!("{label}: {seconds} s  {last}").chars().take(100).collect();
                    eprint!("\r\x1b[2K{line}");
                } else {
                    eprintln!("{label}: {seconds} s so far, {last}");
                }
                next_sign = Instant::now() + pause;
            }
        }
    }
    if terminal {
        eprint!("\r\x1b[2K");
        // A failed write to the terminal cannot be handled.
        io::stderr().flush().ok();
    }
    output
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
    fn a_step_ends_with_its_command_and_reports_its_failure() {
        step("true", &mut Command::new("true")).unwrap();
        let error = step("breaks", &mut Command::new("false")).unwrap_err().to_string();
        assert!(error.starts_with("breaks: `false` failed"), "{error}");
    }
}
