//! `cargo xtask test`: every tier of tests, and an account of each test that did not run.
//!
//! The privileged tests are built as the user and run as root, one at a time. A test that cannot run prints
//! `skipped: NAME: REASON` and passes; where CI is set, one of those fails the whole.

mod harness;
mod summary;
mod tiers;

use std::env;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::setup;
use summary::Summary;

#[derive(Args)]
pub(crate) struct Options {
    /// A skipped test fails the run (the default where CI is set)
    #[arg(long)]
    no_skips: bool,
    /// Run only the tests whose name contains this
    filter: Option<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::ensure(setup::Tier::Test)?;
    let filter = options.filter.as_deref();
    let mut summary = Summary::default();
    summary.add(tiers::unprivileged(filter)?);
    summary.add(tiers::models(filter)?);
    summary.add(tiers::privileged(filter)?);
    print!("{summary}");
    Ok(if summary.failed() > 0 || (summary.skipped() > 0 && (options.no_skips || is_ci())) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}
