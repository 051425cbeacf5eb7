//! Environment of a row: the container, its commands with their output, and the clock.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::container::Container;
use super::figures::Figures;
use crate::run;

pub(super) const CONFIG: &str = "/etc/ratelimitd/ratelimitd.toml";
const PAUSE: Duration = Duration::from_millis(50);
const SAID_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Stage<'a> {
    container: &'a Container,
    pub(super) figures: &'a mut Figures,
    /// Transcript of the current row, as a user would have typed and read it.
    shown: String,
    /// Number of packets that the client sent while no filter was attached.
    pub(super) unfiltered: u64,
}

/// Result of a command.
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) stdout: String,
    stderr: String,
}

impl Ran {
    /// Returns both outputs, as on a terminal.
    pub(super) fn said(&self) -> String {
        [self.stdout.as_str(), self.stderr.as_str()].map(str::trim_end).join("\n").trim().to_owned()
    }
}

impl<'a> Stage<'a> {
    pub(super) fn new(container: &'a Container, figures: &'a mut Figures) -> Self {
        Self { container, figures, shown: String::new(), unfiltered: 0 }
    }

    pub(super) fn take_shown(&mut self) -> String {
        std::mem::take(&mut self.shown)
    }

    /// Runs a command that must succeed, and adds it to the transcript.
    pub(super) fn run(&mut self, line: &str) -> Result<String> {
        Ok(self.exits(line, 0)?.stdout.trim().to_owned())
    }

    /// Runs a command that must end with this code, and adds it to the transcript.
    pub(super) fn exits(&mut self, line: &str, code: i32) -> Result<Ran> {
        let ran = self.ran(line)?;
        self.show(line, &ran);
        ensure!(ran.code == code, "`{line}` ended with {}, not {code}: {}", ran.code, ran.said());
        Ok(ran)
    }

    /// Runs a command that must succeed, without adding it to the transcript.
    pub(super) fn ask(&self, line: &str) -> Result<String> {
        let ran = self.ran(line)?;
        ensure!(ran.code == 0, "`{line}` ended with {}: {}", ran.code, ran.said());
        Ok(ran.stdout.trim().to_owned())
    }

    pub(super) fn ran(&self, line: &str) -> Result<Ran> {
        let mut command = self.container.command(line)?;
        let output = command.output().with_context(|| format!("start `{}`", run::shown(&command)))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Ok(Ran { code, stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    /// Starts a command in the background, which ends by itself.
    pub(super) fn beside(&self, line: &str) -> Result<Child> {
        let mut command: Command = self.container.command(line)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().with_context(|| format!("start `{}`", run::shown(&command)))
    }

    /// Adds a checked fact to the transcript.
    pub(super) fn say(&mut self, line: &str) {
        // Writing to a String cannot fail.
        writeln!(self.shown, "-> {line}").ok();
    }

    fn show(&mut self, line: &str, ran: &Ran) {
        writeln!(self.shown, "# {line}").ok();
        for said in ran.said().lines() {
            writeln!(self.shown, "{}", said.trim_end()).ok();
        }
        if ran.code != 0 {
            writeln!(self.shown, "[exit code {}]", ran.code).ok();
        }
    }

    /// Waits until `is_so` returns true. Returns the time since `start`. Fails after `limit`.
    pub(super) fn until(
        &mut self,
        what: &str,
        start: Instant,
        limit: Duration,
        mut is_so: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<Duration> {
        while !is_so(self)? {
            if start.elapsed() > limit {
                let journal = self.ask("journalctl --unit=ratelimitd.service --lines=20 --no-pager --output=cat")?;
                bail!("not {what} within {} s; the journal: {journal}", limit.as_secs());
            }
            thread::sleep(PAUSE);
        }
        let took = start.elapsed();
        self.say(&format!("{what} after {:.1} s", took.as_secs_f32()));
        Ok(took)
    }

    /// Waits until the unit's status text contains `words`. It is set shortly after the unit becomes active.
    pub(super) fn says(&mut self, words: &str) -> Result<()> {
        let start = Instant::now();
        while !self.property("StatusText")?.contains(words) {
            ensure!(
                start.elapsed() < SAID_WITHIN,
                "the state does not say {words}, but {}",
                self.property("StatusText")?
            );
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns a property of the unit from systemd.
    pub(super) fn property(&self, name: &str) -> Result<String> {
        self.ask(&format!("systemctl show --property={name} --value ratelimitd"))
    }

    pub(super) fn is_active(&self) -> Result<bool> {
        Ok(self.property("ActiveState")? == "active")
    }

    pub(super) fn stats(&self) -> Result<Value> {
        json(&self.ask("ratelimitd stats --json")?)
    }

    /// Returns a number from the statistics, by its JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> Result<u64> {
        number(&self.stats()?, pointer)
    }

    /// Returns true if an XDP program is attached, with or without a daemon.
    pub(super) fn has_filter(&self, interface: &str) -> Result<bool> {
        let links = json(&self.ask(&format!("ip -json -details link show dev {interface}"))?)?;
        Ok(links.pointer("/0/xdp/mode").and_then(Value::as_u64).is_some_and(|mode| mode != 0))
    }

    pub(super) fn has(&self, path: &str) -> Result<bool> {
        Ok(self.ran(&format!("test -e {path}"))?.code == 0)
    }

    /// Edits the configuration with sed, as a user might.
    pub(super) fn edit(&mut self, from: &str, to: &str) -> Result<()> {
        let before = self.ask(&format!("cat {CONFIG}"))?;
        ensure!(before.contains(from), "{CONFIG} has no line {from}");
        self.run(&format!("sed --in-place 's|^{}|{to}|' {CONFIG}", from.replace('[', r"\[").replace(']', r"\]")))?;
        Ok(())
    }
}

pub(super) fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("this is no JSON: {text}"))
}

pub(super) fn number(value: &Value, pointer: &str) -> Result<u64> {
    value.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("there is no number {pointer} in {value}"))
}
