//! `cargo xtask dist`: what people without Rust install, their hashes, and what is in them, in `target/dist`.

pub(crate) mod deb;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::{cargo, run, setup, workspace};

/// Of all packages; the BPF object says nothing of it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Args)]
pub(crate) struct Options {
    /// Package this binary instead of building one: for trials
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Where the packages go
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let out = options.out.clone().unwrap_or_else(|| workspace::target_dir().join("dist"));
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let epoch = epoch()?;
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => release()?,
    };
    let package = deb::build(&binary, &out, epoch)?;
    println!("{}", package.display());
    Ok(ExitCode::SUCCESS)
}

fn release() -> Result<PathBuf> {
    setup::ensure(setup::Tier::Build)?;
    let artifacts = cargo::build(&["--release", "--package", "ratelimit-userspace", "--bin", "ratelimitd"])?;
    Ok(cargo::binary(&artifacts, "ratelimitd")?.executable.clone())
}

/// The time that files in packages bear: `SOURCE_DATE_EPOCH`, else that of the last commit.
pub(crate) fn epoch() -> Result<u64> {
    if let Ok(said) = std::env::var("SOURCE_DATE_EPOCH") {
        return said.parse().with_context(|| format!("SOURCE_DATE_EPOCH={said} is no number of seconds"));
    }
    let mut log = Command::new("git");
    log.current_dir(workspace::root()).args(["log", "-1", "--format=%ct"]);
    let commit = run::answer(&mut log).context("when the sources were made: set SOURCE_DATE_EPOCH to seconds since 1970")?;
    commit.parse().with_context(|| format!("git gave {commit:?} for a time"))
}

/// What Debian and others call this machine's architecture.
fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("packages are made on x86_64 and aarch64, not on {other}"),
    }
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}
