//! Reboot tests: the package on a virtual disk, with systemd as the first process of a real boot. The filter must be in
//! place before the web server answers. After the plain reboot there is one for each fault in `faults`.
//!
//! The machine is emulated, so its times are many times those of a real one. Only the order of events is checked.

mod disk;
mod faults;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use super::figures::{self, TRANSCRIPT};
use super::{Transcript, Wanted, rootfs};
use crate::setup::machine::QEMU;
use crate::test::harness::Tally;
use crate::test::summary::Tier;
use crate::{run, workspace};

const ROW: &str = "after a reboot the filter is in place before nginx answers, and not one request more is answered";
/// Maximum time of all boots. Eight boots, with a verification of the program in each, take about ten minutes on an idle
/// machine.
const TIME_MAX: Duration = Duration::from_secs(3000);
const ARGUMENTS: &str =
    "-accel tcg,thread=multi,tb-size=256 -cpu max -smp 2 -m 1024 -nodefaults -display none -serial stdio";
const KERNEL_ARGUMENTS: &str = "root=/dev/vda rw console=ttyS0 quiet loglevel=3 panic=-1";
/// Prefix of the lines of the machine's script.
const SAID: &str = "machine: ";
const LIMIT: &str = "20";

pub(in crate::test) fn reboot(filter: Option<&str>, wanted: &Wanted<'_>) -> Result<Tier> {
    let start = Instant::now();
    let mut tally = Tally::default();
    if filter.is_none_or(|filter| ROW.contains(filter) || faults::ALL.iter().any(|fault| fault.title.contains(filter)))
    {
        let missing = ["mmdebstrap", "mke2fs"].into_iter().find(|program| workspace::program(program).is_none());
        match (super::obstacle(), missing, QEMU.file()) {
            (Some(reason), ..) => tally.skip(ROW, &reason),
            (None, Some(program), _) => tally.skip(ROW, &format!("there is no {program}")),
            (None, None, None) => tally.skip(ROW, &format!("there is no {}", QEMU.name)),
            (None, None, Some(_)) => {
                let said = boot_all(wanted);
                let outcome =
                    said.as_ref().map_or_else(|error| Err(anyhow!("{error:#}")), |said| hold_plain(said, wanted));
                conclude(ROW, start, outcome, &mut tally);
                for fault in &faults::ALL {
                    match &said {
                        Ok(said) => conclude(fault.title, start, fault.hold(said), &mut tally),
                        Err(_) => tally.skip(fault.title, "the machine did not get to its end"),
                    }
                }
            }
        }
    }
    Ok(Tier { name: "systemd-vm", tally, took: start.elapsed() })
}

/// Records the outcome of one row, and prints its error.
fn conclude(title: &str, start: Instant, outcome: Result<()>, tally: &mut Tally) {
    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("{:>5.1} s  {title} ... {word}", start.elapsed().as_secs_f32());
    tally.take(&format!("test {title} ... {word}"));
    if let Err(error) = outcome {
        println!("\nerror: {error:#}\n");
    }
}

/// Runs the machine through all its boots, and returns what it said.
fn boot_all(wanted: &Wanted<'_>) -> Result<Said> {
    let work = workspace::target_dir().join("systemd");
    let package = super::package_of(wanted)?;
    let packages = [&rootfs::SERVER[..], &rootfs::MACHINE].concat();
    let rootfs = rootfs::ensure("machine", &packages, &work)?;
    let machine = disk::make(&rootfs.archive, &package, &work)?;

    let start = Instant::now();
    let mut command = QEMU.command().with_context(|| format!("there is no {}", QEMU.name))?;
    command.args(ARGUMENTS.split(' ')).args(["-append", KERNEL_ARGUMENTS]);
    command.arg("-kernel").arg(&machine.kernel).arg("-initrd").arg(&machine.initrd);
    command.arg("-drive").arg(format!("file={},format=raw,if=virtio", machine.disk.display()));
    let said = until_off(&mut command)?;
    fs::remove_file(&machine.disk).with_context(|| format!("remove {}", machine.disk.display()))?;
    Ok(Said {
        rootfs_seconds: rootfs.made_in.map(|took| took.as_secs_f64()),
        total_seconds: start.elapsed().as_secs_f64(),
        ..said
    })
}

/// Checks the plain reboot and writes its figures.
fn hold_plain(said: &Said, wanted: &Wanted<'_>) -> Result<()> {
    let figures = Figures::of(said)?;
    println!("{}", figures.words());
    said.hold()?;
    figures.hold()?;
    let path = workspace::target_dir().join("systemd").join("figures-vm.json");
    let text = serde_json::to_string_pretty(&figures).context("figures as JSON")?;
    fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    if wanted.transcript == Transcript::Written {
        figures::write_chapter(&workspace::root().join(TRANSCRIPT), figures::Chapter::Reboot, &figures.chapter(said))?;
        println!("wrote {TRANSCRIPT}");
    }
    Ok(())
}

/// Figures in seconds. Fields that end in `at` are measured from the machine's second start.
#[derive(Debug, Default, Serialize)]
struct Figures {
    schema: u32,
    /// Time from the first start until systemd reports `running`.
    boot_seconds: f64,
    /// Time from `systemctl enable --now` to its return, mostly the program's verification.
    start_seconds: f64,
    begun_at: f64,
    attached_at: f64,
    ready_at: f64,
    nginx_begun_at: f64,
    first_answer_at: f64,
    running_at: f64,
    /// Number of the client's unanswered requests before the first answer.
    asked_before: f64,
    rootfs_seconds: Option<f64>,
    total_seconds: f64,
}

impl Figures {
    fn of(said: &Said) -> Result<Self> {
        Ok(Self {
            schema: 1,
            boot_seconds: said.nth_number("running_at", 0)?,
            start_seconds: said.number("started_seconds")?,
            begun_at: said.number("begun_at")?,
            attached_at: said.number("attached_at")?,
            ready_at: said.number("ready_at")?,
            nginx_begun_at: said.number("nginx_begun_at")?,
            first_answer_at: said.number("first_answer_at")?,
            running_at: said.nth_number("running_at", 1)?,
            asked_before: said.number("asked_before")?,
            rootfs_seconds: said.rootfs_seconds,
            total_seconds: said.total_seconds,
        })
    }

    fn steps(&self) -> [(&'static str, f64); 6] {
        [
            ("the daemon is started", self.begun_at),
            ("the filter is attached", self.attached_at),
            ("the unit is active", self.ready_at),
            ("nginx is started", self.nginx_begun_at),
            ("the first request is answered", self.first_answer_at),
            ("systemd says running", self.running_at),
        ]
    }

    /// Checks the order of the steps. The last one is exempt: the machine may be running before the client gets an
    /// answer.
    fn hold(&self) -> Result<()> {
        let steps = self.steps();
        for pair in steps[..5].windows(2) {
            let [(before, at), (after, then)] = [pair[0], pair[1]];
            ensure!(at <= then, "{after} at {then} s, before {before} at {at} s");
        }
        ensure!(
            self.asked_before > 0.0,
            "the client did not ask before nginx answered, so it would not have seen a gap"
        );
        Ok(())
    }

    fn words(&self) -> String {
        let steps = self.steps().map(|(step, at)| format!("        {at:>7.2} s  {step}\n"));
        format!("        after the reboot, since the kernel's start:\n{}", steps.concat())
    }

    fn chapter(&self, said: &Said) -> String {
        let steps = self.steps().map(|(step, at)| format!("| {step} | {at:.2} |\n")).concat();
        let stats: String = said.all("stats").map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect();
        format!(
            "Written by `cargo xtask test --tier systemd-vm --write`: the package on a virtual disk, Debian's kernel in an\n\
             emulated machine, so that its seconds are many times those of a real one. After `systemctl enable --now`\n\
             ({:.1} s, mostly the program's verification) comes `systemctl reboot`. A client asks four times a second from\n\
             before the servers start: {:.0} times in vain, then {LIMIT} times with an answer, which is its limit, then no more.\n\n\
             | after the reboot | seconds since the kernel's start |\n|---|---|\n{steps}\n\
             What `ratelimitd stats` said then:\n\n{stats}",
            self.start_seconds, self.asked_before
        )
    }
}

/// Lines of the machine as names and values in order, and run times.
#[derive(Debug, Default)]
struct Said {
    lines: Vec<(String, String)>,
    rootfs_seconds: Option<f64>,
    total_seconds: f64,
}

impl Said {
    fn take(&mut self, line: &str) {
        let Some((_, said)) = line.split_once(SAID) else { return };
        let (name, value) = said.split_once(' ').unwrap_or((said, ""));
        self.lines.push((name.to_owned(), value.to_owned()));
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.lines.iter().filter(move |(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    fn last(&self, name: &str) -> Result<&str> {
        self.all(name).last().with_context(|| format!("the machine did not say {name}"))
    }

    fn number(&self, name: &str) -> Result<f64> {
        parsed(name, self.last(name)?)
    }

    /// Returns a number that every boot prints, for the given boot counted from 0.
    fn nth_number(&self, name: &str, boot: usize) -> Result<f64> {
        parsed(name, self.all(name).nth(boot).with_context(|| format!("boot {boot} did not say {name}"))?)
    }

    fn hold(&self) -> Result<()> {
        for (name, expected) in [
            ("installed", "yes"),
            ("running", "running"),
            ("unit", "enabled active restarts 0"),
            ("answered", LIMIT),
            ("end", "yes"),
        ] {
            let found = self.last(name)?;
            ensure!(found == expected, "{name} is {found:?}, not {expected:?}");
        }
        ensure!(self.number("refused_after")? >= 3.0, "what was over the limit was answered");
        Ok(())
    }
}

fn parsed(name: &str, value: &str) -> Result<f64> {
    value.trim().parse().with_context(|| format!("{name} is no number: {value:?}"))
}

fn until_off(command: &mut Command) -> Result<Said> {
    let deadline = Instant::now() + TIME_MAX;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Running(command.spawn().with_context(|| format!("start `{}`", run::shown(command)))?);
    let lines = run::lines_of(machine.0.stdout.take().context("its output is piped")?);
    let (mut said, mut tail) = (Said::default(), Vec::new());
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                said.take(&line);
                tail.push(line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let last = tail[tail.len().saturating_sub(30)..].join("\n");
                anyhow::bail!("the machine was not off after {} s; its last lines:\n{last}", TIME_MAX.as_secs());
            }
        }
    }
    if said.all("end").next().is_none() {
        let last = tail[tail.len().saturating_sub(30)..].join("\n");
        anyhow::bail!("the machine went off before its end; its last lines:\n{last}");
    }
    Ok(said)
}

/// Child process that does not outlive this process's wait for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Killing a process that has already ended fails, which is harmless.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Files of the machine.
struct Machine {
    kernel: std::path::PathBuf,
    initrd: std::path::PathBuf,
    disk: std::path::PathBuf,
}

impl Machine {
    fn below(dir: &Path) -> Self {
        Self { kernel: dir.join("vmlinuz"), initrd: dir.join("initrd.img"), disk: dir.join("disk.img") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "[    1.0] Linux\nmachine: installed yes\nmachine: running running\nmachine: running_at 24.5\n\
        machine: started_seconds 9.5\nmachine: running running\nmachine: running_at 31\nmachine: unit enabled active restarts 0\n\
        machine: begun_at 15.1\nmachine: attached_at 25.2\nmachine: ready_at 25.3\nmachine: nginx_begun_at 25.4\n\
        machine: first_answer_at 27.0\nmachine: asked_before 40\nmachine: answered 20\nmachine: refused_after 3\nmachine: end yes\n";

    fn said(text: &str) -> Said {
        let mut said = Said::default();
        text.lines().for_each(|line| said.take(line));
        said
    }

    fn held(text: &str) -> Result<()> {
        let said = said(text);
        said.hold().and_then(|()| Figures::of(&said)?.hold())
    }

    #[test]
    fn a_boot_in_the_right_order_holds() {
        held(LINES).unwrap();
        let figures = Figures::of(&said(LINES)).unwrap();
        assert_eq!((figures.boot_seconds, figures.running_at), (24.5, 31.0));
    }

    #[test]
    fn an_answer_before_the_filter_or_one_too_many_does_not() {
        for (from, to, why) in [
            ("first_answer_at 27.0", "first_answer_at 25.0", "before nginx is started"),
            ("nginx_begun_at 25.4", "nginx_begun_at 20.0", "before the unit is active"),
            ("answered 20", "answered 21", "answered is \"21\""),
            ("asked_before 40", "asked_before 0", "did not ask"),
            ("refused_after 3", "refused_after 0", "over the limit was answered"),
            ("restarts 0", "restarts 1", "unit is"),
            ("machine: attached_at 25.2\n", "", "did not say attached_at"),
        ] {
            let error = held(&LINES.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
