//! One machine of qemu's, from its start until it goes off.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::console::Console;
use crate::run;
use crate::setup::machine::{Program, QEMU, QEMU_AARCH64};
use crate::test::harness::Echo;

/// A test that loads the program takes up to 25 s beside another machine: its verification, emulated. The longest of the test programs
/// has 21. What needs more has become too much for the oldest kernel's verifier, and is not waited for.
const TIME_MAX: Duration = Duration::from_secs(1100);
/// All the test programs one after the other, and the daemon's starts, beside another machine.
const TIME_MAX_AARCH64: Duration = Duration::from_secs(3600);

/// Emulated, so that it is the same everywhere. Off at a panic (`panic=-1` restarts, and `-no-reboot` makes that an end);
/// the kernel's own messages would cut the tests' lines in two, and a panic is printed at any level.
const ARGUMENTS: &str = "-accel tcg -smp 2 -m 2048 -nodefaults -no-reboot -display none -serial stdio";
const KERNEL_ARGUMENTS: &str = "quiet loglevel=1 panic=-1";

/// An architecture: what qemu is told of it.
pub(super) struct Kind {
    qemu: &'static Program,
    arguments: &'static [&'static str],
    console: &'static str,
    time_max: Duration,
}

pub(super) const X86_64: Kind = Kind { qemu: &QEMU, arguments: &["-cpu", "max"], console: "ttyS0", time_max: TIME_MAX };
/// The kernel signs its pointers, by an algorithm that takes long to emulate; it need not be that one.
pub(super) const AARCH64: Kind = Kind {
    qemu: &QEMU_AARCH64,
    arguments: &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
    console: "ttyAMA0",
    time_max: TIME_MAX_AARCH64,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Off,
    TimeIsUp(Duration),
}

pub(super) struct Machine<'a> {
    pub(super) kind: &'static Kind,
    /// What its lines are shown with.
    pub(super) name: String,
    pub(super) kernel: PathBuf,
    pub(super) initramfs: &'a Path,
}

impl Machine<'_> {
    /// Shows each line that a person wants to see when it comes.
    pub(super) fn run(&self, console: &mut Console) -> Result<End> {
        let Kind { qemu, arguments, console: of_kernel, time_max } = self.kind;
        let mut command = qemu.command().with_context(|| format!("there is no {}", qemu.name))?;
        command.args(*arguments).args(ARGUMENTS.split(' '));
        command.arg("-append").arg(format!("console={of_kernel} {KERNEL_ARGUMENTS}"));
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(self.initramfs);
        run_for(*time_max, &mut command, &self.name, console)
    }
}

fn run_for(limit: Duration, command: &mut Command, name: &str, console: &mut Console) -> Result<End> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut machine = Running(command.spawn().with_context(|| format!("start `{}`", run::shown(command)))?);
    let stdout = machine.0.stdout.take().with_context(|| format!("no output of `{}`", run::shown(command)))?;
    let lines = run::lines_of(stdout);
    let mut take = |line: &str| {
        if console.take(line) == Echo::Show {
            println!("{name}: {line}");
        }
    };
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => take(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                drop(machine);
                // The last of them, without an end, names the test that hangs.
                lines.iter().for_each(|line| take(&line));
                return Ok(End::TimeIsUp(limit));
            }
        }
    }
    Ok(End::Off)
}

/// Does not outlive the process that waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_does_not_end_is_ended_and_its_last_line_taken() {
        let mut console = Console::default();
        let mut command = Command::new("sh");
        command.args(["-c", "echo test a ... ok; printf 'test b ... FAILED'; exec sleep 600"]);
        let limit = Duration::from_millis(500);
        let end = run_for(limit, &mut command, "a machine", &mut console).unwrap();
        assert_eq!(end, End::TimeIsUp(limit));
        let tally = console.into_tally(end);
        assert_eq!((tally.passed(), tally.failed[0].as_str()), (1, "b"));
    }
}
