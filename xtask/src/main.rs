//! The project's own commands, one module each.
//!
//! Depends on no other crate except netlab, because it must build before the BPF program can be built.

mod accuracy;
mod bench;
mod book;
mod cargo;
mod demo;
mod dist;
mod figures;
mod fuzz;
mod install;
mod interrupt;
mod layers;
mod lint;
mod markdown;
mod packages;
mod picture;
mod pins;
mod progress;
mod run;
mod setup;
mod shipped;
mod test;
mod tidy;
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
    /// Show the limiter at work: a good client and a bad one, in namespaces of their own
    Demo(demo::Options),
    /// Build the release binary and put it in place as a service
    Install(install::Options),
    /// Remove what `install` has installed
    Uninstall(install::remove::Options),
    /// Make the packages and archives that others install, in target/dist
    Dist(dist::Options),
    /// Run every tier of tests, the privileged ones included
    Test(test::Options),
    /// Make the pictures in docs/pictures again, in a run of a few minutes
    Screenshots,
    /// Record the moving picture in the README, in a run of a minute
    Picture(picture::Options),
    /// Build the documents as a book in target/book, and check its links
    Book,
    /// Measure what the program costs a packet
    Bench(bench::Options),
    /// Collect the figures of docs/TESTING.md
    Figures(figures::Options),
    /// Compare the counted requests with the logs of real servers
    Accuracy(accuracy::Options),
    /// Search with libFuzzer for input that makes a fuzz target panic
    Fuzz(fuzz::Options),
    /// Check the invariants that a text search can check
    Tidy,
    /// Count the shipped lines of code, by crate
    Lines,
    /// Lint the BPF program, which the host's clippy does not see
    Lint,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Setup(options) => setup::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Install(options) => install::run(&options),
        Command::Uninstall(options) => install::remove::run(&options),
        Command::Dist(options) => dist::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Screenshots => test::screenshots::run(),
        Command::Picture(options) => picture::run(&options),
        Command::Book => book::run(),
        Command::Bench(options) => bench::run(&options),
        Command::Figures(options) => figures::run(&options),
        Command::Accuracy(options) => accuracy::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Tidy => tidy::run(),
        Command::Lines => tidy::lines::run(),
        Command::Lint => lint::run(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
