//! Tests of a broken history database. Limits go on, `stats`, `/healthz` and the log report the fault, nothing panics,
//! and writing resumes once it is possible again.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use integration_test::lab::{CLIENTS, Daemon, Lab, once};
use netlab::needs_root;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::Value;

const RULE: [&str; 6] = ["--limit", "2/1h", "--count", "connections", "--name", "web"];

/// A file system of limited size for the daemon's state, unmounted on drop.
struct Disk(PathBuf);

impl Disk {
    fn mount(lab: &Lab, bytes: u32) -> Self {
        let path = lab.directory().join("state");
        fs::create_dir(&path).unwrap();
        let options = format!("size={bytes}");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self(path)
    }

    fn make_read_only(&self) {
        mount::<str, _, str, str>(None, &self.0, None, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None).unwrap();
    }

    /// Makes the file system writable again, also for the daemon, which has its own mounts.
    fn make_writable(&self, daemon: &Daemon) {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &daemon.child.id().to_string(), "mount", "-o", "remount,rw"]);
        assert!(command.arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn database(lab: &Lab) -> PathBuf {
    lab.directory().join("state/history.db")
}

fn deny(lab: &Lab, prefix: &str) {
    let output = lab.ratelimitd(&["deny", prefix]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
}

/// Returns the number of acts in a prefix's history, or `None` if there is no answer.
fn acts(lab: &Lab, prefix: &str) -> Option<usize> {
    let output = lab.ratelimitd(&["history", prefix, "--json"]);
    Some(serde_json::from_str::<Value>(&output.stdout).ok()?["acts"].as_array()?.len())
}

fn written(lab: &Lab, prefix: &str) {
    let found = once(|| acts(lab, prefix).filter(|acts| *acts > 0));
    assert!(found.is_some(), "{prefix} is not remembered: {}", lab.stats()["history"]);
}

fn healthz(lab: &Lab) -> Value {
    let mut curl: Command = lab.command("curl");
    curl.args(["-fsS", "--unix-socket"]).arg(lab.socket()).arg("http://localhost/healthz");
    serde_json::from_slice(&curl.output().unwrap().stdout).unwrap()
}

/// Asserts that `stats` has this state, and that all outputs contain these words about it.
fn said(lab: &Lab, daemon: &Daemon, state: &str, words: &str) {
    lab.stats_once(|stats| {
        stats["history"]["state"] == state
            && stats["history"]["detail"].as_str().is_some_and(|detail| detail.contains(words))
    });
    let text = lab.ratelimitd(&["stats"]).stdout;
    assert!(text.contains("HISTORY: "), "{text}");
    let health = once(|| {
        let health = healthz(lab);
        let notes = health["notes"].as_array()?.iter();
        notes.filter_map(Value::as_str).any(|note| note.contains(words)).then_some(health.clone())
    });
    assert_eq!(health.unwrap()["healthy"], true, "packets are limited all the same");
    assert!(once(|| daemon.child.stderr().contains(words).then_some(())).is_some(), "{}", daemon.child.stderr());
}

/// Asserts that a further client is limited as all are, and that nothing panicked.
fn limits_go_on(lab: &Lab, daemon: &Daemon, client: &str) {
    lab.assert_admitted(client, 80, 2);
    assert!(!daemon.child.stderr().contains("panicked"), "{}", daemon.child.stderr());
}

#[test]
fn a_full_disk_is_said_limits_go_on_and_what_waited_is_written_once_there_is_room() {
    needs_root!();
    let lab = Lab::new();
    let disk = Disk::mount(&lab, 1 << 20);
    let _web = lab.web();
    let daemon = lab.limit(&RULE);
    deny(&lab, "192.0.2.1");
    written(&lab, "192.0.2.1");
    let ballast = disk.0.join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap_err();
    // This many denials need another page of the database.
    for number in 0..60 {
        deny(&lab, &format!("198.51.100.{number}"));
    }
    let long = "x".repeat(200);
    for number in 0..60 {
        let output = lab.ratelimitd(&["deny", &format!("203.0.113.{number}"), "--reason", &long]);
        assert_eq!(output.code(), 0, "{}", output.stderr);
    }
    said(&lab, &daemon, "failing", "the disk is full; it resumes by itself once there is room");
    limits_go_on(&lab, &daemon, CLIENTS[0]);
    let erased = lab.ratelimitd(&["forget", "192.0.2.1"]);
    assert!(erased.code() != 0 && erased.stderr.contains("the disk is full"), "{}", erased.stderr);
    fs::remove_file(&ballast).unwrap();
    lab.stats_once(|stats| stats["history"]["state"] == "ok" && stats["history"]["detail"].is_null());
    written(&lab, "203.0.113.59");
    assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
}

#[test]
fn a_directory_that_cannot_be_written_is_said_and_used_once_it_can() {
    needs_root!();
    let lab = Lab::new();
    let disk = Disk::mount(&lab, 4 << 20);
    let _web = lab.web();
    disk.make_read_only();
    let daemon = lab.limit(&RULE);
    said(&lab, &daemon, "failing", "it resumes by itself once the directory can be written");
    limits_go_on(&lab, &daemon, CLIENTS[0]);
    disk.make_writable(&daemon);
    deny(&lab, "192.0.2.1");
    written(&lab, "192.0.2.1");
    assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
}

/// Overwrites ranges of a file at random positions.
fn corrupt(path: &Path, rng: &mut TestRng) {
    let mut contents = fs::read(path).unwrap();
    for _ in 0..60 {
        let at = usize::try_from(rng.next_u64() % contents.len() as u64).unwrap();
        let end = contents.len().min(at + 256);
        rng.fill_bytes(&mut contents[at..end]);
    }
    fs::write(path, contents).unwrap();
}

#[test]
fn a_corrupt_history_is_reported_set_aside_and_begun_anew() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    for (seed, client) in (0..2_u8).zip(CLIENTS) {
        println!("seed {seed}");
        let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let daemon = lab.limit(&RULE);
        for number in 0..20 {
            deny(&lab, &format!("192.0.2.{number}"));
        }
        written(&lab, "192.0.2.19");
        assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
        corrupt(&database(&lab), &mut rng);
        let daemon = lab.limit(&RULE);
        said(&lab, &daemon, "ok", "and a new one is created");
        limits_go_on(&lab, &daemon, client);
        deny(&lab, "203.0.113.1");
        written(&lab, "203.0.113.1");
        // A corruption of the open file, as by a disk. Whatever the result is, nothing ends.
        corrupt(&database(&lab), &mut rng);
        deny(&lab, "203.0.113.2");
        let _answer = lab.ratelimitd(&["history"]);
        let _answer = lab.ratelimitd(&["forget", "203.0.113.2"]);
        lab.stats_once(|stats| stats["history"]["waiting"] == 0);
        assert!(!daemon.child.stderr().contains("panicked"), "{}", daemon.child.stderr());
        assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
        fs::remove_dir_all(lab.directory().join("state")).unwrap();
    }
}

#[test]
fn a_database_of_a_newer_program_is_said_and_left_as_it_is() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&RULE);
    deny(&lab, "192.0.2.1");
    written(&lab, "192.0.2.1");
    assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
    // The version is a big-endian number at byte 60 of an SQLite file.
    let mut contents = fs::read(database(&lab)).unwrap();
    contents[60..64].copy_from_slice(&77_u32.to_be_bytes());
    fs::write(database(&lab), &contents).unwrap();
    let daemon = lab.limit(&RULE);
    said(&lab, &daemon, "off", "it is of version 77, which a newer program wrote");
    limits_go_on(&lab, &daemon, CLIENTS[0]);
    let erased = lab.ratelimitd(&["forget", "192.0.2.1"]);
    assert!(erased.code() != 0 && erased.stderr.contains("use the newer program"), "{}", erased.stderr);
    assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
    assert_eq!(fs::read(database(&lab)).unwrap(), contents);
}
