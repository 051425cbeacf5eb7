//! Fuzz targets: functions of arbitrary bytes that panic if a property does not hold. `cargo xtask fuzz` runs them
//! under libFuzzer, which searches for such bytes by coverage. A test runs each target on its seeds.
//!
//! The targets cover untrusted input: packets, files, requests on the control socket, answers of the fleet's store, and
//! entries of pinned maps.

#![forbid(unsafe_code)]
#![expect(clippy::expect_used, reason = "all of this is test code: where it cannot go on, the target fails")]

mod files;
mod logs;
mod others;
mod packets;

/// Panic message for a failure of the test setup itself.
const WORKS: &str = "what a target needs works";

/// Fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, and of the directory with its seeds.
    pub name: &'static str,
    /// Function that panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", run: packets::frame },
    Target { name: "conversation", run: packets::conversation },
    Target { name: "config", run: files::config },
    Target { name: "config-mix", run: files::config_mix },
    Target { name: "list", run: files::list },
    Target { name: "log", run: files::log },
    Target { name: "access-log", run: logs::access_log },
    Target { name: "capture", run: files::capture },
    Target { name: "request", run: others::request },
    Target { name: "fleet", run: others::fleet },
    Target { name: "maps", run: others::maps },
];

/// Returns the target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
