//! Tests of answers with hundreds of thousands of entries. Members who request them without reading do not delay root,
//! and use little of the daemon's memory.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use integration_test::lab::{Daemon, Lab, once};
use netlab::{Child, needs_root};
use serde_json::Value;

const ENTRIES: u32 = 120_000;
/// Maximum time of an answer to root's commands.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// Maximum memory for a daemon's large answers together: two of 120000 entries x 600 B, built and serialised.
const LARGE_KB_MAX: u64 = 400 << 10;
/// Users without any rights.
const MEMBERS: [&str; 3] = ["65531", "65532", "65533"];

fn daemon(lab: &Lab) -> Daemon {
    let mut list = String::new();
    for at in 0..ENTRIES {
        writeln!(list, "11.{}.{}.{} ; entry {at}", at >> 16, at >> 8 & 255, at & 255).unwrap();
    }
    fs::write(lab.directory().join("bad.txt"), list).unwrap();
    let config = "interfaces = [\"s0\"]\ndeny = [\"file:bad.txt\"]\n[rule]\nlimits = [\"10/1h connections\"]\n";
    let path = lab.directory().join("r.toml");
    fs::write(&path, format!("socket = \"{}\"\n{config}", lab.socket().display())).unwrap();
    let daemon = lab.start(&["run", "--config", path.to_str().unwrap()]);
    fs::set_permissions(lab.directory(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(lab.socket(), Permissions::from_mode(0o666)).unwrap();
    daemon
}

/// Starts a shell of a member.
fn member(lab: &Lab, uid: &str, script: &str) -> Child {
    let mut command = lab.command("setpriv");
    command.args(["--reuid", uid, "--regid", uid, "--clear-groups", "--", "sh", "-c", script]);
    Child::start(command).unwrap()
}

/// Sends a request as root, and returns the time until the whole answer arrived.
fn ask(lab: &Lab, request: &str) -> Duration {
    let began = Instant::now();
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    write!(stream, "{request}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
    began.elapsed()
}

fn memory_kb(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn unread_large_answers_of_members_never_keep_root_waiting() {
    needs_root!();
    let lab = Lab::quiet();
    let daemon = daemon(&lab);
    let before = memory_kb(&daemon);
    let socket = lab.socket().display().to_string();
    // curl reads a little, and then one byte per second.
    let curl = format!("curl -s --limit-rate 1 -o /dev/null --unix-socket {socket}");
    let unread = format!("for i in 1 2 3 4 5 6 7 8 9 10; do {curl} http://a/api/v1/list & done; wait");
    // Ends with the daemon, even if the test was killed.
    let read = format!(
        "while [ -S {socket} ]; do for path in list check-prefix?prefix=11.0.0.0/8 events; do \
         curl -s -o /dev/null --unix-socket {socket} http://a/api/v1/$path; done; done"
    );
    let _members = MEMBERS.map(|uid| [member(&lab, uid, &unread), member(&lab, uid, &read)]);
    // Waits until the first answers are built.
    once(|| (memory_kb(&daemon) > before + (10 << 10)).then_some(())).unwrap();
    let mut times = Vec::new();
    for _ in 0..60 {
        for path in ["/healthz", "/api/v1/stats", "/api/v1/check/192.0.2.7", "/api/v1/events?most=5"] {
            times.push((ask(&lab, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")), path));
        }
    }
    times.sort_unstable();
    // The machine may have other load, so the slowest tenth does not count.
    let (typical, path) = times[times.len() * 9 / 10];
    assert!(typical < ANSWER_TIME, "{path} took {typical:?}, the slowest {:?}", times.last());
    let grown = memory_kb(&daemon) - before;
    assert!(grown < LARGE_KB_MAX, "large answers took {grown} kB at a time");
}

#[test]
fn clients_that_do_not_read_have_nobody_wait_and_the_oldest_loses_its_answer() {
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = daemon(&lab);
    // More than the limit of unread answers together, which is 64 MB. One answer has about 30 MB.
    let mut silent = [(); 4].map(|()| {
        let mut stream = UnixStream::connect(lab.socket()).unwrap();
        write!(stream, "GET /api/v1/list HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream
    });
    let began = Instant::now();
    let whole = lab.ratelimitd(&["list", "--json"]);
    assert_eq!(whole.code(), 0, "{}", whole.stderr);
    let report: Value = serde_json::from_str(&whole.stdout).unwrap();
    let listed = report["entries"].as_array().unwrap().iter().filter(|of| of["state"] == "denied").count();
    assert_eq!(listed, ENTRIES as usize);
    assert!(began.elapsed() < Duration::from_secs(10), "it waited for {:?}", began.elapsed());
    // The data sent before arrives, followed by the end.
    let mut answer = Vec::new();
    let end = silent[0].read_to_end(&mut answer);
    assert!(end.is_err() || answer.len() < 10 << 20, "the whole answer came: {} bytes", answer.len());
}
