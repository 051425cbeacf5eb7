//! Fuzz targets: functions of any bytes, which panic where something does not hold. `cargo xtask fuzz` has libFuzzer look
//! for such bytes by coverage; a test gives each target its seeds.
//!
//! A target takes what others write: senders of packets, authors of files, users of the socket, a store, and who can write
//! to pinned maps.

#![forbid(unsafe_code)]
#![expect(clippy::expect_used, reason = "all of this is test code: where it cannot go on, the target fails")]

mod files;
mod logs;
mod others;
mod packets;

/// What the target itself does.
const WORKS: &str = "what a target needs works";

/// A function of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and the directory of its seeds.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
}

/// All of them.
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

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
