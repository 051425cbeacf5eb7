//! The tier `stable`: builds and tests every crate that needs no BPF compiler, where none can be found.
//!
//! PATH has neither rustup, bpf-linker nor LLVM, and cargo's home lacks the record of `cargo xtask setup`. The build
//! has a target directory of its own, so that nothing built elsewhere hides a new dependency.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::harness::Tally;
use super::summary::Tier;
use super::tiers;
use crate::layers::Graph;
use crate::{cargo, run, workspace};

/// Beginnings of the names of programs that could compile or link the BPF program, or run another compiler that can.
const HIDDEN: [&str; 9] = ["bpf-linker", "cargo", "clang", "ld.lld", "llc", "lld", "llvm", "opt", "rust"];
/// Programs of the stable toolchain that replace the hidden ones.
const TOOLS: [&str; 3] = ["cargo", "rustc", "rustdoc"];
/// Entries of cargo's home that are not offered: installed programs, and what `cargo xtask setup` has recorded.
const NOT_OF_CARGO_HOME: [&str; 2] = ["bin", "ratelimitd"];
/// Beginnings of the names of variables that select a compiler, its flags or its libraries.
const CLEARED: [&str; 8] = [
    "CARGO_BUILD_RUST",
    "CARGO_BUILD_TARGET",
    "CARGO_ENCODED_",
    "CARGO_TARGET_",
    "LD_LIBRARY_PATH",
    "LIBCLANG",
    "LLVM",
    "RUST",
];
/// Crate that must not build here.
const NEEDS_BPF: &str = "ratelimit-kernel";
/// Words of the error with which its build script fails.
const NOT_SET_UP: &str = "are not set up";

/// Builds and runs the tests of every crate that needs no BPF compiler.
///
/// # Errors
/// Fails if the environment cannot be made, or a build fails.
pub(super) fn stable(filter: Option<&str>) -> Result<Tier> {
    let start = Instant::now();
    let graph = Graph::read()?;
    let packages: Vec<&str> = graph.stable_members().into_iter().flat_map(|name| ["--package", name]).collect();
    let here = Environment::make(&workspace::target_dir().join("stable"))?;
    let mut tally = Tally::default();
    if let Some(why) = here.builds_bpf()? {
        tally.failed.push(why);
    }
    let artifacts = cargo::build_by(here.cargo(), &[&["--locked", "--tests"][..], &packages].concat())?;
    for test in artifacts.iter().filter(|artifact| artifact.is_test()) {
        eprintln!("     Running {}", test.executable.display());
        let mut command = here.program(&test.executable);
        command.current_dir(test.package()).envs(tiers::redis().filter_map(|(name, value)| Some((name, value?))));
        tiers::listen(command.arg("--show-output").args(filter), &test.target, &mut tally)?;
    }
    let mut command = here.cargo();
    command.current_dir(workspace::root()).args(["test", "--locked", "--doc", "--no-fail-fast"]).args(&packages);
    tiers::listen(command.args(["--", "--show-output"]).args(filter), "cargo test --doc", &mut tally)?;
    Ok(Tier { name: "stable", tally, took: start.elapsed() })
}

/// Directories that a program sees instead of the user's.
struct Environment {
    /// Value of PATH: links to the programs that are not hidden, and to the stable toolchain.
    bin: PathBuf,
    cargo_home: PathBuf,
    rustup_home: PathBuf,
    target: PathBuf,
}

impl Environment {
    /// Makes the directories below `dir`. A previous build there stays.
    fn make(dir: &Path) -> Result<Self> {
        let at = |name: &str| dir.join(name);
        let (bin, cargo_home, rustup_home, target) = (at("bin"), at("cargo-home"), at("rustup-home"), at("target"));
        let toolchain = stable_toolchain()?;
        renew(&bin)?;
        for name in TOOLS {
            link(&toolchain.join(name), &bin.join(name))?;
        }
        for dir in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
            offer(&dir, &bin, |name| HIDDEN.iter().any(|hidden| name.starts_with(hidden)))?;
        }
        // What cargo itself has written there before stays, on a machine without another home.
        fs::create_dir_all(&cargo_home).with_context(|| format!("make {}", cargo_home.display()))?;
        offer(&workspace::cargo_home()?, &cargo_home, |name| NOT_OF_CARGO_HOME.contains(&name))?;
        renew(&rustup_home)?;
        Ok(Self { bin, cargo_home, rustup_home, target })
    }

    /// Returns cargo of the stable toolchain.
    fn cargo(&self) -> Command {
        self.program(&self.bin.join("cargo"))
    }

    /// Returns a command that sees only these directories.
    fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            if CLEARED.iter().any(|cleared| name.starts_with(cleared)) || name == "CARGO" {
                command.env_remove(&*name);
            }
        }
        let homes = [("CARGO_HOME", &self.cargo_home), ("RUSTUP_HOME", &self.rustup_home)];
        command.env("PATH", &self.bin).envs(homes).env("CARGO_TARGET_DIR", &self.target);
        command
    }

    /// Checks that the crate that needs the BPF compiler does not build. Returns what is wrong with the environment.
    fn builds_bpf(&self) -> Result<Option<String>> {
        let mut command = self.cargo();
        command.current_dir(workspace::root()).args(["check", "--locked", "--package", NEEDS_BPF]);
        eprintln!("     Running {}, which must fail", run::shown(&command));
        let output =
            command.stdin(Stdio::null()).output().with_context(|| format!("start `{}`", run::shown(&command)))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        Ok(match (output.status.success(), stderr.contains(NOT_SET_UP)) {
            (true, _) => Some(format!("{NEEDS_BPF} builds, so a BPF compiler is found and this tier proves nothing")),
            (false, false) => Some(format!("{NEEDS_BPF} fails for another reason than the BPF compiler:\n{stderr}")),
            (false, true) => None,
        })
    }
}

/// Returns the directory of the programs of the toolchain that runs this program. Fails if it is not a stable one.
fn stable_toolchain() -> Result<PathBuf> {
    let rustc = |argument: &[&str]| run::answer(Command::new("rustc").current_dir(workspace::root()).args(argument));
    let version = rustc(&["--version"])?;
    ensure!(!version.contains("nightly") && !version.contains("-dev"), "{version} is no stable toolchain");
    Ok(PathBuf::from(rustc(&["--print", "sysroot"])?).join("bin"))
}

/// Links every entry of a directory that is not hidden. Earlier links stay. A missing directory has no entries.
fn offer(from: &Path, to: &Path, is_hidden: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        if !is_hidden(&name.to_string_lossy()) {
            link(&entry.path(), &to.join(name))?;
        }
    }
    Ok(())
}

/// Makes a symbolic link, unless the path exists.
fn link(to: &Path, at: &Path) -> Result<()> {
    match symlink(to, at) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("link {}", at.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes an empty directory.
fn renew(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("empty {}", dir.display()));
        }
        Ok(()) | Err(_) => {}
    }
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_could_build_the_bpf_program_are_not_offered() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        renew(&from).unwrap();
        renew(&to).unwrap();
        let named = ["bpf-linker", "cargo", "cc", "clang-19", "ip", "ld", "ld.lld", "llvm-config", "rustc", "rustup"];
        named.iter().for_each(|name| fs::write(from.join(name), "").unwrap());
        fs::write(to.join("ip"), "the first on PATH").unwrap();
        offer(&from, &to, |name| HIDDEN.iter().any(|hidden| name.starts_with(hidden))).unwrap();
        let mut offered: Vec<_> = fs::read_dir(&to).unwrap().map(|of| of.unwrap().file_name()).collect();
        offered.sort();
        assert_eq!(offered, ["cc", "ip", "ld"]);
        assert_eq!(fs::read_to_string(to.join("ip")).unwrap(), "the first on PATH");
        assert!(offer(&dir.path().join("missing"), &to, |_| false).is_ok());
    }
}
