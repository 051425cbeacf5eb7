//! Entry point of the binary `ratelimitd`.

use std::process::ExitCode;

use ratelimit_userspace::{cli, error};

fn main() -> ExitCode {
    cli::parse().and_then(cli::run).unwrap_or_else(|error| error::report(&error)).into()
}
