//! Child processes that run to their end, or are killed when their value is dropped.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Result of a child that ran to its end.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status of the child.
    pub status: ExitStatus,
    /// Text of standard output.
    pub stdout: String,
    /// Text of standard error.
    pub stderr: String,
}

impl Output {
    /// Returns the exit code, or -1 for a child that a signal ended.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// A running child. It is killed on drop with all of its own children, and dies with the thread that started it.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    said: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

/// Maximum time in which the last lines of an ended child are read. Its own children may keep standard error open.
const READ_WITHIN: Duration = Duration::from_millis(500);

impl Child {
    /// Starts a command. Its standard error is kept, its standard output is discarded.
    ///
    /// # Errors
    /// Fails if the command cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let name = format!("{command:?}");
        // The child gets its own process group, so that its children are killed with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {name}"))?;
        let stderr = process.stderr.take().context("standard error is piped")?;
        let (send, lines) = channel();
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut all = heard.lock().unwrap_or_else(PoisonError::into_inner);
                all.push_str(&line);
                all.push('\n');
                // The text is kept even if nobody waits for a line any more.
                let _nobody_waits = send.send(line);
            }
        });
        Ok(Self { name, process, lines, said, reader })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the standard error so far.
    pub fn stderr(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the child prints a line that contains `text` on standard error, and returns that line.
    ///
    /// # Errors
    /// Fails if the child ends or the time passes first. The error contains the standard error so far.
    pub fn wait_for_line(&self, text: &str, within: Duration) -> Result<String> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} did not say {text:?} within {within:?}:\n{}", self.name, self.stderr())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{} ended without saying {text:?}:\n{}", self.name, self.stderr())
                }
            }
        }
    }

    /// Sends the child a signal.
    ///
    /// # Errors
    /// Fails if the child is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid()?, signal).with_context(|| format!("signal {}", self.name))
    }

    /// Waits until the child ends and its last lines are read, and returns its status.
    ///
    /// # Errors
    /// Fails if the time passes first.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.process.try_wait()? {
                let deadline = Instant::now() + READ_WITHIN;
                while !self.reader.is_finished() && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(1));
                }
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {within:?}:\n{}", self.name, self.stderr());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the processor time that the child and its own reaped children have used.
    ///
    /// # Errors
    /// Fails if the child is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.id());
        let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The name in parentheses may hold spaces; utime, stime, cutime and cstime are fields 14 to 17.
        let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
        let ticks: u64 = fields.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
        // USER_HZ, which the kernel's interface fixes at 100.
        Ok(Duration::from_millis(ticks * 10))
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(i32::try_from(self.id()).context("a process id fits")?))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A child that is already gone needs no signal.
        let _gone = self.pid().map(|pid| killpg(pid, Signal::SIGKILL));
        let _gone = self.process.wait();
    }
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> Result<Output> {
    command.stdin(Stdio::null());
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    Ok(Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn must(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    let output = run(command)?;
    if !output.status.success() {
        bail!("`{program} {}` failed: {}{}", args.join(" "), output.stderr.trim(), output.stdout.trim());
    }
    Ok(output.stdout)
}

/// Returns a file's text, or an empty string if the file cannot be read.
pub(crate) fn text_of(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = std::fs::File::open(path) {
        // A file that disappears during the read counts as missing.
        let _gone = file.read_to_string(&mut text);
    }
    text
}

/// Returns a unique path below the system's temporary directory that does not exist yet.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir().join(crate::unique_name())
}
