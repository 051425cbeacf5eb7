//! A qemu machine, from its start until it powers off.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::console::Console;
use crate::run;
use crate::setup::machine::{Program, QEMU, QEMU_AARCH64};
use crate::test::harness::Echo;

/// Maximum run time of a machine. Beside another machine, a test that loads the program takes up to 25 s, because its
/// verification is emulated. The longest test program has 21 such tests. A longer run means that the program has become
/// too large for the oldest kernel's verifier.
const TIME_MAX: Duration = Duration::from_secs(1100);
/// Maximum run time of an aarch64 machine: all test programs in sequence and the daemon's starts, beside another
/// machine.
const TIME_MAX_AARCH64: Duration = Duration::from_secs(3600);

/// Arguments for an emulated CPU, which is the same everywhere. A panic ends the machine: `panic=-1` restarts, and
/// `-no-reboot` turns that into an end. Kernel messages would split the tests' lines, so only panics are printed.
const ARGUMENTS: &str = "-accel tcg -smp 2 -m 2048 -nodefaults -no-reboot -display none -serial stdio";
const KERNEL_ARGUMENTS: &str = "quiet loglevel=1 panic=-1";

/// Architecture of a machine, as arguments for qemu.
pub(super) struct Kind {
    qemu: &'static Program,
    arguments: &'static [&'static str],
    console: &'static str,
    time_max: Duration,
}

pub(super) const X86_64: Kind = Kind { qemu: &QEMU, arguments: &["-cpu", "max"], console: "ttyS0", time_max: TIME_MAX };
/// Emulating the default pointer authentication algorithm is slow, so a simpler one is used.
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
    /// Prefix of the machine's lines in the output.
    pub(super) name: String,
    pub(super) kernel: PathBuf,
    pub(super) initramfs: &'a Path,
}

impl Machine<'_> {
    /// Runs the machine until it ends. Prints its relevant lines as they arrive.
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
                // The last line, without a line end, names the test that hangs.
                lines.iter().for_each(|line| take(&line));
                return Ok(End::TimeIsUp(limit));
            }
        }
    }
    Ok(End::Off)
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
