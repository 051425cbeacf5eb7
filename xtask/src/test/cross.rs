//! Checks of builds for other machines. For aarch64, the daemon and the tests of its tier must build and link. For
//! big-endian machines, the build must fail with an explanation. Nothing of it runs here.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::harness::Tally;
use super::summary::Tier;
use super::tiers::PRIVILEGED;
use crate::cargo::{self, Artifact};
use crate::setup::cross::{self, Cross};
use crate::setup::linter;
use crate::{run, workspace};

/// Test files that run on aarch64.
pub(super) const TESTS: [&str; 4] = ["program", "rules", "trial", "traffic"];
/// `e_machine` of an ELF file, at byte 18 of its header: `EM_AARCH64`.
const EM_AARCH64: [u8; 2] = 183_u16.to_le_bytes();
/// Start of the message in `ratelimit-common/src/endian.rs` for a big-endian machine.
const REFUSED: &str = "ratelimitd is for little-endian machines";

/// Test of this tier. Returns a reason if it cannot run.
type Holds = fn() -> Result<Option<String>>;
const ALL: [(&str, Holds); 2] = [
    ("the_daemon_and_the_programs_tests_are_linked_for_aarch64", is_linked),
    ("the_program_is_refused_for_a_big_endian_machine", is_refused),
];

pub(super) fn cross(filter: Option<&str>) -> Tier {
    let start = Instant::now();
    let mut tally = Tally::default();
    for (name, holds) in ALL.into_iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter))) {
        let start = Instant::now();
        let outcome = holds();
        let word = match outcome {
            Ok(None) => "ok".to_owned(),
            Ok(Some(reason)) => format!("ignored, {reason}"),
            Err(error) => {
                println!("{error:#}");
                "FAILED".to_owned()
            }
        };
        println!("test {name} ... {word} ({:.1} s)", start.elapsed().as_secs_f32());
        tally.take(&format!("test {name} ... {word}"));
    }
    Tier { name: "cross", tally, took: start.elapsed() }
}

/// Builds the daemon and [`TESTS`] for aarch64. Earlier results are reused.
pub(super) fn build(cross: &Cross) -> Result<Vec<Artifact>> {
    let tests = TESTS.iter().flat_map(|test| ["--test", *test]);
    let packages = ["--package", "ratelimit-userspace", "--bin", "ratelimitd", "--package", PRIVILEGED];
    cargo::build_by(cross.cargo(), &Cross::arguments().into_iter().chain(packages).chain(tests).collect::<Vec<_>>())
}

fn is_linked() -> Result<Option<String>> {
    let cross = match cross::ensure() {
        Ok(cross) => cross,
        Err(error) => return Ok(Some(format!("{error:#}"))),
    };
    let artifacts = build(&cross)?;
    let daemon = cargo::binary(&artifacts, "ratelimitd")?;
    let tests: Vec<&Artifact> = artifacts.iter().filter(|artifact| artifact.is_test_in(PRIVILEGED)).collect();
    ensure!(tests.len() == TESTS.len(), "cargo built {} of {} files of tests", tests.len(), TESTS.len());
    tests.into_iter().chain([daemon]).try_for_each(|artifact| is_for_aarch64(&artifact.executable))?;
    Ok(None)
}

fn is_for_aarch64(file: &Path) -> Result<()> {
    let bytes = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    ensure!(bytes.get(18..20) == Some(&EM_AARCH64), "{} is not for aarch64", file.display());
    Ok(())
}

/// Checks the refusal with a compiler that supports big-endian BPF. Its message is that of a build on a big-endian
/// machine.
fn is_refused() -> Result<Option<String>> {
    let (little, big) = (check("bpfel-unknown-none")?, check("bpfeb-unknown-none")?);
    if let Err(said) = little {
        bail!("even a little-endian machine is refused:\n{said}");
    }
    let Err(said) = big else { bail!("a big-endian machine is not refused") };
    ensure!(said.contains(REFUSED), "a big-endian machine is refused without a reason:\n{said}");
    Ok(None)
}

/// Checks `ratelimit-common` for a target. The inner error is the compiler's message.
fn check(target: &str) -> Result<Result<(), String>> {
    let linter = linter::ensure()?;
    let mut command = Command::new("rustup");
    command.current_dir(workspace::root()).args(["run", &linter.toolchain, "cargo", "check", "--quiet"]);
    command.args(["--package", "ratelimit-common", "--target", target]);
    if linter.builds_core {
        command.arg("-Zbuild-std=core");
    }
    command.arg("--target-dir").arg(workspace::target_dir().join("lint"));
    // Variables of the cargo that runs this program name another compiler.
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    command.env("RUSTC_BOOTSTRAP", linter.unstable_crates);
    let output = command.output().with_context(|| format!("start `{}`", run::shown(&command)))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(said) })
}
