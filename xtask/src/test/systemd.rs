//! Tests of the package under a real systemd with clients: installed, started, reloaded, killed, upgraded and removed.
//!
//! Uses apt, systemctl and the commands in the documents, but none of the daemon's code. Each row begins with the state
//! that the previous row left, so the first failure ends the run.

mod container;
mod figures;
mod lint;
mod package;
mod rootfs;
mod rows;
mod stage;
mod traffic;
pub(super) mod vm;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use super::harness::Tally;
use super::summary::Tier;
use crate::setup::machine::NSPAWN;
use crate::workspace;
use container::Container;
use figures::{Figures, TRANSCRIPT, Told};
use rows::Row;
use stage::Stage;

/// Settings of the tier besides the filter.
pub(super) struct Wanted<'a> {
    /// Package to test instead of a newly built one.
    pub(super) package: Option<&'a Path>,
    pub(super) transcript: Transcript,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Transcript {
    Written,
    Dropped,
}

pub(super) fn systemd(filter: Option<&str>, wanted: &Wanted<'_>) -> Result<Tier> {
    let start = Instant::now();
    let mut tally = Tally::default();
    // Each row needs the rows before it.
    let count = rows::ALL.iter().rposition(|row| filter.is_none_or(|filter| row.title.contains(filter)));
    let rows = &rows::ALL[..count.map_or(0, |last| last + 1)];
    if !rows.is_empty() {
        match obstacle() {
            Some(reason) => tally.skip("all rows", &reason),
            None => run(rows, wanted, &mut tally)?,
        }
    }
    Ok(Tier { name: "systemd", tally, took: start.elapsed() })
}

fn obstacle() -> Option<String> {
    if NSPAWN.file().is_none() {
        return Some(format!("there is no {}; `cargo xtask setup` installs it if there is apt-get", NSPAWN.name));
    }
    let missing = ["mmdebstrap", "dpkg-deb", "unshare", "nsenter", "tar"]
        .into_iter()
        .find(|program| workspace::program(program).is_none());
    match missing {
        Some(program) => Some(format!("there is no {program}")),
        None if !workspace::is_root() && workspace::program("sudo").is_none() => {
            Some("not root, and no sudo".to_owned())
        }
        None => None,
    }
}

fn run(rows: &[Row], wanted: &Wanted<'_>, tally: &mut Tally) -> Result<()> {
    let work = workspace::target_dir().join("systemd");
    let package = package_of(wanted)?;
    let lint = lint::Lint::start(&package, wanted.package.is_none());
    let rootfs = rootfs::ensure("server", &rootfs::SERVER, &work)?;
    let mut figures = Figures { schema: 1, ..Figures::default() };
    figures.rootfs_seconds = rootfs.made_in.map(|took| took.as_secs_f64());
    figures.rootfs_bytes = fs::metadata(&rootfs.archive).map_or(0, |archive| archive.len());
    let (shared, size) = package::share(&package, &work)?;
    figures.package_bytes = size;

    let begun = Instant::now();
    let container = Container::start(&rootfs.archive, &shared, &work)?;
    figures.boot_seconds = begun.elapsed().as_secs_f64();
    let mut stage = Stage::new(&container, &mut figures);
    stage.figures.systemd = stage.ask("systemctl --version | head -n 1")?;
    let told = act_all(rows, &mut stage, tally);
    figures.total_seconds = begun.elapsed().as_secs_f64();
    drop(container);
    lint.end(tally)?;
    report(&figures, &told, wanted, tally, &work, rows.len() == rows::ALL.len())
}

/// Runs the rows in order until one fails. The rest count as skipped.
fn act_all(rows: &[Row], stage: &mut Stage<'_>, tally: &mut Tally) -> Vec<Told> {
    let mut told = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let start = Instant::now();
        let outcome = (row.act)(stage);
        let (seconds, shown) = (start.elapsed().as_secs_f64(), stage.take_shown());
        stage.figures.rows.push(figures::RowFigure { row: row.title.to_owned(), seconds });
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("{seconds:>5.1} s  {} ... {word}", row.title);
        tally.take(&format!("test {} ... {word}", row.title));
        told.push(Told { title: row.title.to_owned(), seconds, shown });
        if let (Err(error), Some(failed)) = (outcome, told.last()) {
            let journal = stage
                .ask("journalctl --unit=ratelimitd.service --lines=30 --no-pager --output=cat")
                .unwrap_or_default();
            println!("\n{}error: {error:#}\n\nthe journal:\n{journal}\n", failed.shown);
            for after in &rows[index + 1..] {
                tally.skip(after.title, "a row before it failed");
            }
            break;
        }
    }
    told
}

fn report(
    figures: &Figures,
    told: &[Told],
    wanted: &Wanted<'_>,
    tally: &Tally,
    work: &Path,
    is_whole: bool,
) -> Result<()> {
    println!(
        "{:>5.1} s  in all, {:.1} s of it the container's start; exposure {} of 10 (`systemd-analyze security`)",
        figures.total_seconds, figures.boot_seconds, figures.exposure
    );
    // Figures of some rows could be mistaken for those of all rows.
    if !is_whole || !tally.failed.is_empty() {
        return Ok(());
    }
    figures.write(work)?;
    Figures::write_transcript(work, told)?;
    if wanted.transcript == Transcript::Written {
        let rows = figures.table(told);
        figures::write_chapter(&workspace::root().join(TRANSCRIPT), figures::Chapter::Rows, &rows)?;
        println!("wrote {TRANSCRIPT}");
    }
    Ok(())
}

fn package_of(wanted: &Wanted<'_>) -> Result<PathBuf> {
    match wanted.package {
        Some(package) => Ok(package.to_owned()),
        None => package::of_this_tree(&workspace::target_dir().join("systemd")),
    }
}
