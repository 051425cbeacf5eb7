//! Child processes, by id: run to their end, or killed with the value that holds them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// What a child that ran to its end left.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// The exit code; -1 for a child that a signal ended.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
}

/// A running child, killed on drop with all of its own. It dies with the thread that started it, too.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    lines: Receiver<String>,
    said: Arc<Mutex<String>>,
}

impl Child {
    /// Starts a command; its standard error is kept, its standard output dropped.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let name = format!("{command:?}");
        // A group of its own, so that its own children go with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().with_context(|| format!("start {name}"))?;
        let stderr = process.stderr.take().context("standard error is piped")?;
        let (send, lines) = channel();
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut all = heard.lock().unwrap_or_else(PoisonError::into_inner);
                all.push_str(&line);
                all.push('\n');
                // Nobody may be waiting any more; what was said is kept all the same.
                let _nobody_waits = send.send(line);
            }
        });
        Ok(Self { name, process, lines, said })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it has said on standard error so far.
    pub fn stderr(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it says a line that contains `text` on standard error.
    ///
    /// # Errors
    /// If it ends or the time passes first; the error has all that it said.
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

    /// Sends a signal.
    ///
    /// # Errors
    /// If it is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid()?, signal).with_context(|| format!("signal {}", self.name))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If the time passes first.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {within:?}:\n{}", self.name, self.stderr());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Processor time that it and the children it has waited for have used.
    ///
    /// # Errors
    /// If it is gone.
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
        // Already gone is as good.
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

/// Runs a command that must succeed, and gives what it printed.
pub(crate) fn must(program: &str, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args);
    let output = run(command)?;
    if !output.status.success() {
        bail!("`{program} {}` failed: {}{}", args.join(" "), output.stderr.trim(), output.stdout.trim());
    }
    Ok(output.stdout)
}

/// A file's text, or nothing.
pub(crate) fn text_of(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = std::fs::File::open(path) {
        // A file that goes away under way is one that is not there.
        let _gone = file.read_to_string(&mut text);
    }
    text
}

/// A directory of one's own under the system's temporary one, not yet there.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir().join(crate::unique_name())
}
