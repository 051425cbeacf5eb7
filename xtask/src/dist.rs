//! `cargo xtask dist`: builds packages for people without Rust into `target/dist`, with checksums and a bill of
//! materials.

mod archive;
mod build;
pub(crate) mod deb;
mod differ;
mod figures;
mod graph;
pub(crate) mod image;
pub(crate) mod licences;
mod rpm;
mod sbom;
mod tools;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::{run, setup, workspace};
use build::Linkage;

/// Version of all packages.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Addresses in all packages, from the workspace's Cargo.toml.
const HOMEPAGE: &str = env!("CARGO_PKG_HOMEPAGE");
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// Host of placeholders (RFC 2606), which no real address has.
const PLACEHOLDER: &str = "://example.org/";

const SUMS: &str = "SHA256SUMS";

#[derive(Args)]
pub(crate) struct Options {
    /// Build twice, in two directories, and compare every byte
    #[arg(long, conflicts_with = "binary")]
    check: bool,
    /// Make the Debian package alone, of this binary: for trials
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Make the container image of that binary instead
    #[arg(long, requires = "binary")]
    image: bool,
    /// Where the packages go
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::ensure(setup::Tier::Build)?;
    setup::ensure_packaging_programs()?;
    let out = options.out.clone().unwrap_or_else(|| workspace::target_dir().join("dist"));
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let epoch = epoch()?;
    if let Some(binary) = &options.binary {
        let made = if options.image {
            image::build(binary, &licences::texts()?, &out, epoch, image::Layer::Compressed)?
        } else {
            deb::build(binary, &out, epoch, deb::Compression::Small)?
        };
        println!("{}", made.display());
        return Ok(ExitCode::SUCCESS);
    }
    if [HOMEPAGE, REPOSITORY].iter().any(|address| address.contains(PLACEHOLDER)) {
        eprintln!("dist: homepage or repository is still a placeholder: see docs/RELEASING.md before you publish");
    }
    let target_dir = out.join(".build");
    make(&out, &target_dir, epoch)?;
    if options.check {
        check(&out, epoch)?;
    }
    print!("{}", read_text(&out.join(SUMS))?);
    Ok(ExitCode::SUCCESS)
}

/// Builds all packages. Replaces the results of an earlier run in `out`.
fn make(out: &Path, target_dir: &Path, epoch: u64) -> Result<()> {
    let dynamic = build::release(Linkage::Dynamic, target_dir)?;
    let kept = out.join(".dynamic");
    fs::copy(&dynamic, &kept).with_context(|| format!("copy {}", dynamic.display()))?;
    let licences = licences::texts()?;
    let sbom = out.join(format!("ratelimitd-{VERSION}.cdx.json"));
    fs::write(&sbom, sbom::document(epoch)?).with_context(|| format!("write {}", sbom.display()))?;
    let third_party = out.join("THIRD-PARTY-LICENSES");
    fs::write(&third_party, &licences).with_context(|| format!("write {}", third_party.display()))?;
    let mut made = vec![
        deb::build(&kept, out, epoch, deb::Compression::Small)?,
        rpm::build(&kept, &licences, out, epoch)?,
        sbom,
        third_party,
    ];
    let fixed = build::release(Linkage::Static, target_dir)?;
    made.push(archive::build(&fixed, &licences, out, epoch)?);
    made.push(image::build(&fixed, &licences, out, epoch, image::Layer::Compressed)?);
    made.sort();
    let sums = out.join(SUMS);
    fs::write(&sums, tree::sums("sha256sum", out, &made)?).with_context(|| format!("write {}", sums.display()))?;
    figures::write(&out.join("figures.json"), &kept, &fixed, &made)
}

/// Builds a copy of the tracked files in another directory. Fails if a package differs.
fn check(out: &Path, epoch: u64) -> Result<()> {
    let elsewhere = std::env::temp_dir().join(format!("ratelimitd-dist-{}", std::process::id()));
    let outcome = build_copy(&elsewhere, epoch).and_then(|again| {
        let same = differ::compare(out, &again, SUMS)?;
        eprintln!("dist: {same} files are the same, built in {}", elsewhere.display());
        figures::add_reproduced(&out.join("figures.json"), same)
    });
    fs::remove_dir_all(&elsewhere).ok();
    outcome
}

/// Copies and builds the sources. Returns the directory with the packages.
fn build_copy(elsewhere: &Path, epoch: u64) -> Result<PathBuf> {
    let source = elsewhere.join("source");
    fs::create_dir_all(&source).with_context(|| format!("make {}", source.display()))?;
    let mut files = Command::new("git");
    files.current_dir(workspace::root()).args(["ls-files", "-z"]);
    let tracked = run::answer(&mut files).context("which files are ours")?;
    for name in tracked.split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (workspace::root().join(name), source.join(name));
        fs::create_dir_all(to.parent().context("a file lies in a directory")?).context("make a directory")?;
        fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
    }
    let mut again = Command::new(workspace::cargo());
    again.current_dir(&source).args(["run", "--quiet", "--package", "xtask", "--", "dist"]);
    again.env("SOURCE_DATE_EPOCH", epoch.to_string());
    for name in ["CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR", "CARGO_BUILD_TARGET_DIR"] {
        again.env_remove(name);
    }
    run::step("dist: building a copy elsewhere", &mut again)?;
    Ok(source.join("target/dist"))
}

/// Returns the time stamp for files in packages: `SOURCE_DATE_EPOCH` if set, otherwise the time of the last commit.
pub(crate) fn epoch() -> Result<u64> {
    if let Ok(said) = std::env::var("SOURCE_DATE_EPOCH") {
        return said.parse().with_context(|| format!("SOURCE_DATE_EPOCH={said} is no number of seconds"));
    }
    let mut log = Command::new("git");
    log.current_dir(workspace::root()).args(["log", "-1", "--format=%ct"]);
    let commit =
        run::answer(&mut log).context("when the sources were made: set SOURCE_DATE_EPOCH, seconds since 1970")?;
    commit.parse().with_context(|| format!("git gave {commit:?} for a time"))
}

/// Returns Debian's name of this machine's architecture. Fails on architectures without packages.
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
