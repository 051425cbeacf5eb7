//! `cargo xtask setup`: finds or installs everything that the build and the tests need, and tries it out.
//!
//! Changes none of the user's defaults. Its own builds go to a separate directory under cargo's home. The compiler that
//! it links in rustup has its own name. A service that comes with a package stays off. The result is a record that
//! ratelimit-kernel/build.rs reads.

mod apt;
pub(crate) mod axe;
pub(crate) mod cast;
mod compiler;
pub(crate) mod cross;
pub(crate) mod guest;
pub(crate) mod linker;
pub(crate) mod linter;
mod llvm;
pub(crate) mod machine;
pub(crate) mod mdbook;
mod probe;
mod programs;
mod python;
mod record;
mod schemas;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::pins::Pins;
use crate::{progress, workspace};
use record::Record;

#[derive(Args)]
pub(crate) struct Options {
    /// What to prepare
    #[arg(long, value_enum, default_value_t = Tier::Test)]
    tier: Tier,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// The compiler and linker of the BPF program
    Build,
    /// The compiler and linker, and the programs that the tests and the demo run
    Test,
}

/// Ensures the demo's programs besides the build. Returns false without nginx; the demo then uses its own server.
pub(crate) fn ensure_demo_programs() -> Result<bool> {
    programs::ensure_some(&["ip", "nsenter", "setpriv"])?;
    if let Err(error) = programs::ensure_some(&["nginx"]) {
        say(&format!("{error:#}; the demo's own small server takes its place"));
        return Ok(false);
    }
    Ok(true)
}

/// Ensures the servers and clients that `cargo xtask accuracy` runs.
pub(crate) fn ensure_accuracy_programs() -> Result<()> {
    programs::ensure_for_accuracy()
}

/// Returns the names of the programs for `cargo xtask accuracy`.
#[cfg(test)]
pub(crate) fn accuracy_programs() -> Vec<&'static str> {
    programs::for_accuracy()
}

/// Ensures the tools that make Debian packages.
pub(crate) fn ensure_packaging_programs() -> Result<()> {
    programs::ensure_for_packages()
}

/// Ensures qemu for aarch64, and unpacks Debian's arm64 packages for its tests.
pub(crate) fn ensure_aarch64_machine() -> Result<guest::Guest> {
    machine::QEMU_AARCH64.ensure()?;
    guest::ensure()
}

/// Ensures the programs that `cargo xtask bench` runs: namespaces and other limiters.
pub(crate) fn ensure_bench_programs() -> Result<()> {
    programs::ensure_for_bench()
}

/// Directory of set-up's own tools: `$CARGO_HOME/ratelimitd/bpf-linker-VERSION`, shared by all clones.
struct Tools {
    dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let start = Instant::now();
    ensure(options.tier)?;
    say(&format!("all there ({:.1} s)", start.elapsed().as_secs_f32()));
    Ok(ExitCode::SUCCESS)
}

/// Ensures everything that a tier needs. Other commands call this before they build; it takes well under a second if
/// all is there.
pub(crate) fn ensure(tier: Tier) -> Result<()> {
    let setup = Setup::begin()?;
    let linker = thread::scope(|scope| {
        scope.spawn(|| setup.download_compiler());
        setup.ensure_linker()
    })?;
    setup.finish(linker)?;
    match tier {
        Tier::Build => Ok(()),
        Tier::Test => programs::ensure(),
    }
}

/// Set-up of compiler and linker.
pub(crate) struct Setup {
    pins: Pins,
    tools: Tools,
}

/// Linker, and a lock. The build script of ratelimit-kernel waits until it is released, in every cargo of this user.
pub(crate) struct Linker {
    path: PathBuf,
    _lock: File,
}

impl Setup {
    /// Prepares a set-up. Fails without rustup, before minutes are spent on the linker.
    pub(crate) fn begin() -> Result<Self> {
        let pins = Pins::read()?;
        let tools = Tools::locate(&pins)?;
        compiler::installed_toolchains()?;
        Ok(Self { pins, tools })
    }

    /// Returns true if an earlier set-up has left its record.
    pub(crate) fn has_record(&self) -> bool {
        Record::read(&self.tools.record_file()).is_some()
    }

    /// Downloads a compiler if there is none.
    pub(crate) fn download_compiler(&self) {
        compiler::download(&self.pins);
    }

    /// Returns the linker. Builds it if necessary, in cargo's target directory.
    ///
    /// The lock is taken afterwards. A build script that waited for it during the build would belong to a cargo that
    /// holds the directory, and neither would end.
    pub(crate) fn ensure_linker(&self) -> Result<Linker> {
        let path = linker::ensure(&self.pins, &self.tools)?;
        let lock = self.tools.lock_file();
        let file = File::create(&lock).with_context(|| format!("make {}", lock.display()))?;
        if file.try_lock().is_err() {
            say("waiting for another set-up");
            file.lock().with_context(|| format!("lock {}", lock.display()))?;
        }
        Ok(Linker { path, _lock: file })
    }

    /// Ensures the compiler, and records it with the linker.
    pub(crate) fn finish(&self, linker: Linker) -> Result<()> {
        let Linker { path, _lock } = linker;
        let compiler = compiler::ensure(&self.pins, &self.tools, &path)?;
        Record::of(&compiler, &path, &self.tools).write(&self.tools.record_file())
    }
}

fn say(line: &str) {
    progress::say(&format!("setup: {line}"));
}

impl Tools {
    fn locate(pins: &Pins) -> Result<Self> {
        let dir = workspace::cargo_home()?.join("ratelimitd").join(format!("bpf-linker-{}", pins.bpf_linker));
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Self { dir })
    }

    fn linker(&self) -> PathBuf {
        self.dir.join("bin/bpf-linker")
    }

    fn llvm_dir(&self) -> PathBuf {
        self.dir.join("llvm")
    }

    fn probe_target_dir(&self) -> PathBuf {
        self.dir.join("probe")
    }

    /// Returns the file that is locked during a set-up. ratelimit-kernel/build.rs has its name too.
    fn lock_file(&self) -> PathBuf {
        self.dir.join("setup.lock")
    }

    fn record_file(&self) -> PathBuf {
        self.dir.join("record.toml")
    }
}
