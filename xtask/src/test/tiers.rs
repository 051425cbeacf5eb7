//! Test tiers: unprivileged tests, tests under every thread interleaving, and tests as root.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::harness::{Echo, Tally};
use super::summary::Tier;
use crate::cargo::{self, Artifact};
use crate::setup::axe;
use crate::setup::machine::{PROMTOOL, REDIS};
use crate::{dist, run, workspace};

pub(super) const PRIVILEGED: &str = "integration-test";
/// Cargo arguments that build binaries and tests together, so that both are linked with the same libraries.
pub(super) const EVERYTHING: [&str; 2] = ["--workspace", "--all-targets"];
/// Number of privileged test files that run in parallel. Most of them mostly wait.
const AT_ONCE: usize = 3;
/// Maximum time without a line of output, several times that of the longest test.
const SILENCE_MAX: Duration = Duration::from_mins(10);
/// Variable with the binary that the privileged tests run.
const BINARY_VARIABLE: &str = "RATELIMITD_BIN";
/// Variable with the path of promtool, if it exists.
const PROMTOOL_VARIABLE: &str = "PROMTOOL";
/// Variable with the path of axe-core, if it exists.
const AXE_VARIABLE: &str = "RATELIMITD_AXE";
/// Variables with the path of redis-server, and the libraries of an unpacked one.
const REDIS_VARIABLES: [&str; 2] = ["REDIS_SERVER", "REDIS_LIBRARIES"];
/// Variable with the path of the container image.
const IMAGE_VARIABLE: &str = "RATELIMITD_IMAGE";
/// Variables of the user's environment that are passed through sudo.
const PASSED_ON: [&str; 6] =
    ["PATH", "CI", "RUST_BACKTRACE", "INSTA_UPDATE", "RATELIMITD_CRASH_SEED", "RATELIMITD_CRASH_ONLY"];
/// Test file that kills the daemon at its crash points.
const CRASH: &str = "crash";

/// Runs the tests of every crate except the one that needs root, including the BPF crate on the host. The build is the
/// same as the privileged tier's, so that nothing is compiled twice.
pub(super) fn unprivileged(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let artifacts = cargo::build(&EVERYTHING)?;
    let mut tally = Tally::default();
    for test in artifacts.iter().filter(|artifact| artifact.is_test() && !artifact.is_test_in(PRIVILEGED)) {
        eprintln!("     Running {}", test.executable.display());
        let mut command = Command::new(&test.executable);
        command.current_dir(test.package()).envs(redis().filter_map(|(name, value)| Some((name, value?))));
        listen(command.arg("--show-output").args(filter), &test.target, &mut tally)?;
    }
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    command.args(["test", "--workspace", "--doc", "--no-fail-fast", "--", "--show-output"]).args(filter);
    listen(&mut command, "cargo test --doc", &mut tally)?;
    Ok(Tier { name: "unprivileged", tally, took: start.elapsed() })
}

/// Runs the window's protocol under every thread interleaving. The build needs a special flag and therefore its own
/// target directory, so that other tiers' builds stay valid.
pub(super) fn models(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let mut command = Command::new(workspace::cargo());
    command.current_dir(workspace::root());
    command.env("RUSTFLAGS", "--cfg loom").env_remove("CARGO_ENCODED_RUSTFLAGS");
    // Unoptimised models take minutes.
    command.args(["test", "--release", "--package", "ratelimit-common", "--test", "loom", "--target-dir"]);
    command.arg(workspace::target_dir().join("loom")).args(["--", "--show-output"]).args(filter);
    let mut tally = Tally::default();
    listen(&mut command, "cargo test --test loom", &mut tally)?;
    Ok(Tier { name: "models", tally, took: start.elapsed() })
}

/// Files that start many daemons and mostly wait. Two run in parallel, without any others.
const IN_PAIRS: [&str; 2] = ["fleet_hosts", "fleet_trouble"];

/// Files that measure or keep both CPUs busy. Each runs alone.
const ALONE: [&str; 11] =
    ["budget", "cost", "cpus", "depth", "drop_cache_full", "events", "failing", "flood", "large", "receivers", "scale"];

/// Variable with the hook at which the tests run the program.
const HOOK_VARIABLE: &str = "RATELIMITD_TEST_HOOK";

/// Files that run again with the program at TCX. If words are given, only the matching tests run.
const AT_TCX: [(&str, &[&str]); 7] = [
    // The other tests of this file run no program.
    ("differential", &["the_program", "drop_cache"]),
    ("policy", &[]),
    ("traffic", &[]),
    ("program", &["every_named_frame", "classic_timeline", "behind_one_tag_or_two"]),
    ("groups", &["each_of_16_prefixes", "own_refusals_are_not_charged"]),
    ("refusals", &["becomes_a_reset"]),
    ("kept", &["another_build_takes_over"]),
];

/// Privileged test file, and its run settings.
struct Job<'a> {
    test: &'a Artifact,
    /// Words that select tests by name. All run if it is empty.
    wanted: Vec<&'a str>,
    /// Additional environment variables.
    told: &'a [(&'static str, PathBuf)],
}

/// Runs the privileged tests: first [`AT_ONCE`] files in parallel, then [`IN_PAIRS`], then [`ALONE`] one by one. Each
/// test has its own namespaces, BPF file systems and directories.
pub(super) fn privileged(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let artifacts = cargo::build(&EVERYTHING)?;
    let binary = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    let tests: Vec<&Artifact> = artifacts.iter().filter(|artifact| artifact.is_test_in(PRIVILEGED)).collect();
    let at_xdp = [(IMAGE_VARIABLE, image_of(binary)?)];
    let at_tcx = [&at_xdp[..], &[(HOOK_VARIABLE, PathBuf::from("tcx"))]].concat();
    let mut together = Vec::new();
    for (name, names) in AT_TCX {
        let test = tests.iter().find(|of| of.target == name).with_context(|| format!("there is no test {name}"))?;
        together.push(Job { test, wanted: filter.map_or_else(|| names.to_vec(), |word| vec![word]), told: &at_tcx });
    }
    let job = |test| Job { test, wanted: filter.into_iter().collect(), told: &at_xdp };
    let is_of = |names: &'static [&str]| move |job: &Job<'_>| names.contains(&job.test.target.as_str());
    let (alone, others): (Vec<Job<'_>>, Vec<Job<'_>>) = tests.into_iter().map(job).partition(is_of(&ALONE));
    let (in_pairs, others): (Vec<Job<'_>>, Vec<Job<'_>>) = others.into_iter().partition(is_of(&IN_PAIRS));
    together.extend(others);
    let mut tally = Tally::default();
    for (jobs, at_once) in [(together, AT_ONCE), (in_pairs, 2), (alone, 1)] {
        let waiting = Mutex::new(jobs.into_iter());
        let tallies = thread::scope(|scope| {
            let work = || -> Result<Tally> {
                let mut tally = Tally::default();
                while let Some(job) = next(&waiting) {
                    run_privileged(&job, binary, &mut tally)?;
                }
                Ok(tally)
            };
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect::<Vec<_>>()
        });
        for of_worker in tallies {
            tally.append(of_worker?);
        }
    }
    Ok(Tier { name: "privileged", tally, took: start.elapsed() })
}

/// Builds the container image as `cargo xtask dist` does, from the binary of the other tests.
fn image_of(binary: &Path) -> Result<PathBuf> {
    let out = workspace::target_dir().join("image");
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let stripped = out.join("ratelimitd");
    run::answer(Command::new("strip").arg("-o").arg(&stripped).arg(binary))?;
    dist::image::build(&stripped, &dist::licences::texts()?, &out, dist::epoch()?, dist::image::Layer::Plain)
}

/// Runs every crash point under every load.
pub(super) fn crash(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let artifacts = cargo::build(&EVERYTHING)?;
    let binary = &cargo::binary(&artifacts, "ratelimitd")?.executable;
    let mut tally = Tally::default();
    let told = [("RATELIMITD_CRASH_RUNS", PathBuf::from("all"))];
    for test in artifacts.iter().filter(|of| of.is_test_in(PRIVILEGED) && of.target == CRASH) {
        run_privileged(&Job { test, wanted: filter.into_iter().collect(), told: &told }, binary, &mut tally)?;
    }
    Ok(Tier { name: "crash", tally, took: start.elapsed() })
}

fn next<'a>(waiting: &Mutex<impl Iterator<Item = Job<'a>>>) -> Option<Job<'a>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
}

fn run_privileged(Job { test, wanted, told }: &Job<'_>, binary: &Path, tally: &mut Tally) -> Result<()> {
    let start = Instant::now();
    eprintln!("     Running {}", test.executable.display());
    let mut command = as_root(&test.executable, binary, told);
    command.current_dir(workspace::root().join(PRIVILEGED));
    command.args(["--test-threads=1", "--show-output"]).args(wanted);
    listen(&mut command, &test.target, tally)?;
    eprintln!("     {} took {:.1} s", test.target, start.elapsed().as_secs_f32());
    Ok(())
}

pub(super) fn redis() -> impl Iterator<Item = (&'static str, Option<PathBuf>)> + Clone {
    REDIS_VARIABLES.into_iter().zip([REDIS.file(), REDIS.libraries().map(PathBuf::from)])
}

/// Returns a test command as root. Without root and sudo the tests run anyway, and report themselves as skipped.
pub(super) fn as_root(test: &Path, binary: &Path, more: &[(&'static str, PathBuf)]) -> Command {
    let programs =
        [(BINARY_VARIABLE, Some(binary.to_owned())), (PROMTOOL_VARIABLE, PROMTOOL.file()), (AXE_VARIABLE, axe::file())];
    let told =
        programs.into_iter().chain(redis()).filter_map(|(name, path)| Some((name, path?))).chain(more.iter().cloned());
    let sudo = if workspace::is_root() { None } else { workspace::program("sudo") };
    let Some(sudo) = sudo else {
        let mut command = Command::new(test);
        command.envs(told);
        return command;
    };
    let mut command = Command::new(sudo);
    command.arg("env").args(told.map(|(name, path)| format!("{name}={}", path.display())));
    let variables = PASSED_ON.iter().filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
    command.args(variables).arg(test);
    command
}

/// Runs tests, shows and counts their results. An unexplained failure of the executable counts as a failed test. An
/// executable without output for [`SILENCE_MAX`] is ended and counts as failed.
pub(super) fn listen(command: &mut Command, name: &str, tally: &mut Tally) -> Result<()> {
    listen_for(SILENCE_MAX, command, name, tally)
}

fn listen_for(silence_max: Duration, command: &mut Command, name: &str, tally: &mut Tally) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start `{}`", run::shown(command)))?;
    let failed_before = tally.failed.len();
    if let Some(stdout) = child.stdout.take() {
        let pid = Pid::from_raw(child.id().cast_signed());
        let unfinished = thread::scope(|scope| {
            let (heard, hears) = mpsc::channel();
            let watch = scope.spawn(move || end_when_silent(pid, &hears, silence_max));
            let unfinished = take_all(stdout, tally, &heard);
            drop(heard);
            let was_ended = watch.join().unwrap_or_else(|panic| resume_unwind(panic));
            was_ended.then_some(unfinished)
        });
        if let Some(line) = unfinished {
            let test = line.strip_prefix("test ").and_then(|rest| rest.split(" ... ").next()).unwrap_or(name);
            tally.failed.push(format!("{test} printed nothing for {} s and was ended", silence_max.as_secs()));
        }
    }
    let status = child.wait().with_context(|| format!("wait for `{}`", run::shown(command)))?;
    if !status.success() && tally.failed.len() == failed_before {
        tally.failed.push(format!("{name} ended with {status}, see above"));
    }
    Ok(())
}

/// Ends the process after `silence_max` without a line. Returns true if it was ended.
fn end_when_silent(pid: Pid, lines: &Receiver<()>, silence_max: Duration) -> bool {
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return kill(pid, Signal::SIGTERM).is_ok(),
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// Counts all lines of an output. Returns the last line if it has no line end.
fn take_all(stdout: impl Read, tally: &mut Tally, heard: &Sender<()>) -> String {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    while stdout.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let text = String::from_utf8_lossy(&line);
        if tally.take(text.trim_end()) == Echo::Show {
            print!("{text}");
        }
        if !line.ends_with(b"\n") {
            return text.into_owned();
        }
        // The watcher exists until this side is dropped, or it has ended the tests.
        let _nobody_watches = heard.send(());
        line.clear();
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_that_dies_without_a_word_counts_as_failed() {
        let mut tally = Tally::default();
        listen(&mut Command::new("false"), "false", &mut tally).unwrap();
        assert_eq!(tally.failed.len(), 1, "{tally:?}");
    }

    #[test]
    fn a_test_that_hangs_is_ended_and_named() {
        let mut tally = Tally::default();
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "echo 'test one ... ok'; printf 'test two ... '; exec sleep 60"]);
        listen_for(Duration::from_millis(300), &mut hangs, "file", &mut tally).unwrap();
        assert_eq!(tally.failed, ["two printed nothing for 0 s and was ended"]);
        assert_eq!(tally.passed(), 1);
    }
}
