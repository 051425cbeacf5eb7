//! Tests of the BPF program on the kernels of typical servers. Verifiers differ, so an object may load on one kernel
//! only.
//!
//! qemu boots each Debian kernel without hardware acceleration, with only the tests and their libraries. Nothing is
//! installed, not even qemu, and no root is needed.

pub(super) mod aarch64;
mod console;
mod cpio;
mod image;
mod initramfs;
mod machine;

use std::env::consts::ARCH;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::harness::{Skip, Tally};
use super::summary::Tier;
use super::tiers;
use crate::cargo::{self, Artifact};
use crate::run;
use crate::setup::machine::{self as programs, Program};
use console::Console;
use image::Source;
use machine::Machine;

/// Kernel versions that the README names, besides the developers' own.
const VERSIONS: [[u32; 2]; 2] = [[6, 1], [6, 12]];
/// Test files that need only the kernel, with words that select their tests when other tiers run too. The selected
/// tests run each map, each hook and the verifier.
const TESTS: [(&str, &[&str]); 2] = [
    (
        "program",
        &["verifier", "the_capabilities_of_the_unit", "every_named_frame", "classic_timeline_of_30", "tag", "at_tcx"],
    ),
    ("trial", &["no_counter_is_lost", "application_charges_count", "an_unconfirmed_trial"]),
];

/// Share of the tests that run on the other kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All tests of [`TESTS`]. They take some 20 minutes, since qemu emulates the CPU.
    All,
    /// Only the tests that [`TESTS`] names.
    Named,
}

/// Runs the tests on all kernels in parallel, since a test keeps only one CPU busy with the program's verification. A
/// filter selects from all tests.
pub(super) fn kernels(filter: Option<&str>, share: Share) -> Result<Tier> {
    let start = Instant::now();
    let artifacts = cargo::build(&tiers::EVERYTHING)?;
    let mut tally = Tally::default();
    for (name, named) in TESTS {
        let wanted = match (filter, share) {
            (Some(filter), _) => vec![filter],
            (None, Share::All) => Vec::new(),
            (None, Share::Named) => named.to_vec(),
        };
        let of_name = |test: &&Artifact| test.is_test_in(tiers::PRIVILEGED) && test.target == name;
        let test = artifacts.iter().find(of_name).with_context(|| format!("there is no test {name}"))?;
        for word in named {
            ensure!(has_tests(test, &[word])?, "no test of {name} has {word} in its name");
        }
        if has_tests(test, &wanted)? {
            run_everywhere(test, &wanted, &mut tally)?;
        }
    }
    Ok(Tier { name: "kernels", tally, took: start.elapsed() })
}

fn run_everywhere(test: &Artifact, filter: &[&str], tally: &mut Tally) -> Result<()> {
    if let Err(reason) = machine_programs() {
        skip_all(tally, &reason);
        return Ok(());
    }
    let initramfs = initramfs::write(&test.executable, filter)?;
    let mut machines = Vec::new();
    for (version, image) in VERSIONS.into_iter().zip(image::ensure(&Source::x86_64(), &VERSIONS)?) {
        let name = title(version);
        match image {
            Ok(image) => {
                eprintln!("     Running {} on Linux {}", test.target, image.release);
                machines.push(Machine { kind: &machine::X86_64, name, kernel: image.file, initramfs: &initramfs });
            }
            Err(reason) => tally.skipped.push(Skip { test: name, reason }),
        }
    }
    for (machine, of_machine) in machines.iter().zip(run_at_once(&machines)) {
        tally.add(&machine.name, of_machine?.0);
    }
    Ok(())
}

/// Runs all machines in parallel. Returns each one's results and run time.
fn run_at_once(machines: &[Machine<'_>]) -> Vec<Result<(Tally, Duration)>> {
    thread::scope(|scope| {
        let running: Vec<_> = machines.iter().map(|machine| scope.spawn(|| tally_of(machine))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

fn tally_of(machine: &Machine<'_>) -> Result<(Tally, Duration)> {
    let (mut console, start) = (Console::default(), Instant::now());
    let end = machine.run(&mut console)?;
    Ok((console.into_tally(end), start.elapsed()))
}

/// Returns true if the filter matches a test. Otherwise no machine has to boot.
fn has_tests(test: &Artifact, filter: &[&str]) -> Result<bool> {
    let list = run::answer(Command::new(&test.executable).args(["--list", "--format=terse"]).args(filter))
        .with_context(|| format!("list the tests of {}", test.executable.display()))?;
    Ok(!list.is_empty())
}

fn machine_programs() -> Result<(), String> {
    if ARCH != "x86_64" {
        return Err(format!("the kernels are for x86_64, and this is {ARCH}"));
    }
    match programs::ALL.iter().find(|program| program.file().is_none()) {
        Some(Program { name, .. }) => {
            Err(format!("there is no {name}; `cargo xtask setup` installs it if there is apt-get"))
        }
        None => Ok(()),
    }
}

fn skip_all(tally: &mut Tally, reason: &str) {
    tally.skipped.extend(VERSIONS.map(|version| Skip { test: title(version), reason: reason.to_owned() }));
}

fn title([major, minor]: [u32; 2]) -> String {
    format!("Linux {major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_cannot_be_had_is_one_skip_for_each_kernel() {
        let mut tally = Tally::default();
        skip_all(&mut tally, "no qemu");
        let named: Vec<_> = tally.skipped.iter().map(|skip| format!("{}: {}", skip.test, skip.reason)).collect();
        assert_eq!(named, ["Linux 6.1: no qemu", "Linux 6.12: no qemu"]);
    }
}
