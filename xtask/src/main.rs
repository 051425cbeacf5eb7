//! The project's own commands, one module each.
//!
//! Knows nothing of the other crates: it must build before the BPF program can be.

mod pins;
mod run;
mod setup;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find or install what the build and the tests need
    Setup(setup::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Setup(options) => setup::run(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
