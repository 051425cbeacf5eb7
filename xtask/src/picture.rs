//! `cargo xtask picture`: records the first dry run and `stats` in a terminal, for the README.
//!
//! The scene runs in network namespaces of its own, with real traffic and the real binary. asciinema records it, and
//! termtosvg makes a moving picture of the recording.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use netlab::{Child, End, HttpServer, Namespace, veth};

use crate::setup::{self, cast};
use crate::{cargo, run, workspace};

const PICTURE: &str = "docs/pictures/first-dry-run.svg";
/// Maximum size in bytes of the picture, which readers of the README download.
const BYTES_MAX: u64 = 300_000;
/// Directory of the scene's scripts, relative to the repository's root.
const SCRIPTS: &str = "xtask/src/picture";
/// Look of the picture: a window, and colours that are bright where the terminal's are bold.
const LOOK: [&str; 4] = ["--template", "window_frame", "--theme", "gjm8"];
/// Words that the recording must have. Without one, the scene did not show what it is for.
const SHOWN: [&str; 6] =
    ["--dry-run", "ratelimitd: ready", "WOULD DROP", "over the limit", "would be refused", "decided by"];

/// Documentation addresses (RFC 5737) of the server and its clients, as the scripts have them.
const SERVER: &str = "192.0.2.1";
const CLIENTS: [&str; 4] = ["198.51.100.23", "198.51.100.7", "203.0.113.9", "203.0.113.40"];
const NETWORKS: [&str; 2] = ["198.51.100.0/24", "203.0.113.0/24"];

#[derive(Args)]
pub(crate) struct Options {
    /// Record this binary instead of a build of the sources
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    ensure!(workspace::is_root(), "network namespaces need root: sudo -E cargo xtask picture");
    cast::ensure_recorder()?;
    let mut converter = cast::converter()?;
    let binary = match &options.binary {
        Some(binary) => fs::canonicalize(binary).with_context(|| format!("find {}", binary.display()))?,
        None => build()?,
    };
    let recording = workspace::target_dir().join("first-dry-run.cast");
    record(&binary, &recording)?;
    let text = fs::read_to_string(&recording).with_context(|| format!("read {}", recording.display()))?;
    let missing = missing_in(&shown_by(&text)?);
    ensure!(missing.is_empty(), "the recording lacks {missing:?}: {}", recording.display());

    let made = recording.with_extension("svg");
    run::answer(converter.arg("render").arg(&recording).arg(&made).args(LOOK))?;
    let size = fs::metadata(&made).with_context(|| format!("look at {}", made.display()))?.len();
    ensure!(size <= BYTES_MAX, "{} has {size} bytes, more than {BYTES_MAX}", made.display());
    fs::copy(&made, workspace::root().join(PICTURE)).with_context(|| format!("write {PICTURE}"))?;
    println!("{PICTURE}: {size} bytes");
    Ok(ExitCode::SUCCESS)
}

/// Builds the binary as the tests do, so that it is built once for both.
fn build() -> Result<PathBuf> {
    setup::ensure(setup::Tier::Build)?;
    eprintln!("picture: building the binary");
    let artifacts = cargo::build(&["--package", "ratelimit-userspace", "--bin", "ratelimitd"])?;
    Ok(cargo::binary(&artifacts, "ratelimitd")?.executable.clone())
}

/// Records the scene: a web server on `eth0`, a crawler and three visitors.
fn record(binary: &Path, recording: &Path) -> Result<()> {
    for swept in netlab::sweep()? {
        eprintln!("picture: removed leftovers of an earlier run: {swept}");
    }
    let (server, clients) = (Namespace::named("picture-server")?, Namespace::named("picture-clients")?);
    let near = CLIENTS.map(|client| format!("{client}/32"));
    let near: Vec<&str> = near.iter().map(String::as_str).chain(["192.0.2.2/24"]).collect();
    veth(
        End { namespace: &clients, interface: "c0", addresses: &near },
        End { namespace: &server, interface: "eth0", addresses: &[&format!("{SERVER}/24")] },
    )?;
    for network in NETWORKS {
        server.ip(&["route", "add", network, "dev", "eth0"])?;
    }
    let _web = HttpServer::start(&server, format!("{SERVER}:80").parse().context("an address and a port")?)?;
    let scripts = workspace::root().join(SCRIPTS);
    let mut traffic = clients.command("bash");
    traffic.arg(scripts.join("traffic.sh"));
    let _traffic = Child::start(traffic)?;
    let mut stage = server.command("unshare");
    stage.args(["--mount", "--propagation", "private", "bash"]);
    stage.arg(scripts.join("stage.sh")).arg(scripts.join("scene.sh")).arg(recording);
    stage.env("PATH", path_with(binary)?);
    run::step("picture: recording a scene of a minute", &mut stage)
}

/// Returns PATH with the binary's directory before all others.
fn path_with(binary: &Path) -> Result<std::ffi::OsString> {
    let directory = binary.parent().context("a binary lies in a directory")?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths([directory].into_iter().chain(std::env::split_paths(&path))).context("make a PATH")
}

/// Returns all text that a recording shows: a header, then a line `[TIME, "o", TEXT]` for each output.
fn shown_by(recording: &str) -> Result<String> {
    let mut shown = String::new();
    for line in recording.lines().skip(1) {
        let (_, kind, text): (f64, String, String) =
            serde_json::from_str(line).with_context(|| format!("read the recording's line {line}"))?;
        if kind == "o" {
            shown += &text;
        }
    }
    Ok(shown)
}

fn missing_in(shown: &str) -> Vec<&'static str> {
    SHOWN.into_iter().filter(|words| !shown.contains(words)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::VERSION;

    #[test]
    fn a_recording_is_read_as_its_text() {
        let text = "{\"version\": 2}\n[0.1, \"o\", \"$ ratelimitd --dry\"]\n[0.2, \"i\", \"x\"]\n[0.3, \"o\", \"-run\\r\\n\"]\n";
        let shown = shown_by(text).unwrap();
        assert_eq!(shown, "$ ratelimitd --dry-run\r\n");
        assert_eq!(missing_in(&shown), &SHOWN[1..]);
        assert!(shown_by("{}\nno recording\n").is_err());
    }

    #[test]
    fn the_scripts_have_the_addresses_of_the_namespaces() {
        let read = |name: &str| fs::read_to_string(workspace::root().join(SCRIPTS).join(name)).unwrap();
        let traffic = read("traffic.sh");
        for address in CLIENTS.iter().chain([&SERVER]) {
            assert!(traffic.contains(address), "{address}");
        }
        assert!(read("scene.sh").contains(CLIENTS[0]), "the scene asks about the crawler");
    }

    #[test]
    fn the_picture_in_the_readme_is_small_and_of_this_scene() {
        let path = workspace::root().join(PICTURE);
        let (text, size) = (fs::read_to_string(&path).unwrap(), fs::metadata(&path).unwrap().len());
        assert!(size <= BYTES_MAX && text.contains("@keyframes"), "{size} bytes");
        assert!(text.contains(CLIENTS[0]) && text.contains("dry-run"));
        assert!(text.contains(&format!("ratelimitd {VERSION},")), "record it again: it shows another version");
        let readme = fs::read_to_string(workspace::root().join("README.md")).unwrap();
        assert!(readme.contains(&format!("]({PICTURE})")));
    }
}
