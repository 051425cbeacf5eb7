//! Remains of a flood of forged sources once it is over: in the history, and in memory.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{CLIENTS, Daemon, Lab, number, once};
use netlab::{PacketSocket, needs_root};
use serde_json::Value;

/// Maximum memory after a quiet time, in percent of the memory before the flood.
const LEFT_MAX: u64 = 150;
const QUIET: Duration = Duration::from_secs(20);
/// Maximum duration of the quiet time on a busy machine.
const WITHIN: Duration = Duration::from_secs(240);

/// Sends two SYNs of each of `sources` sources, the second of which is refused.
fn flood(lab: &Lab, sources: u32) {
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    for number in 0..sources {
        let source = Ipv4Addr::from_bits((100 << 24 | 64 << 16) + number).octets();
        let syn = frame(IPV4, V4 { source, ..V4::of(TCP) }.around(tcp(80, SYN)));
        sender.send(&syn).unwrap();
        sender.send(&syn).unwrap();
        if number % 64 == 0 {
            sleep(Duration::from_millis(1));
        }
    }
}

fn resident_kb(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse().unwrap()
}

fn story(lab: &Lab, of: &str) -> Option<Value> {
    serde_json::from_str(&lab.ratelimitd(&["history", of, "--json"]).stdout).ok()
}

#[test]
fn memory_returns_after_a_flood() {
    const SOURCES: u32 = 200_000;
    needs_root!();
    let lab = Lab::quiet();
    let daemon = lab.limit(&["--limit", "1/10s", "--count", "connections", "--port", "80"]);
    // Memory that every daemon allocates in its first seconds.
    flood(&lab, 100);
    sleep(Duration::from_secs(15));
    lab.stats();
    let before = resident_kb(&daemon);
    flood(&lab, SOURCES);
    let (over, mut most) = (Instant::now(), resident_kb(&daemon));
    let stats = lab.stats();
    assert!(number(&stats, "/events/lost") > 0, "{}", stats["events"]);
    let left = loop {
        let left = resident_kb(&daemon);
        most = most.max(left);
        if over.elapsed() >= QUIET && left * 100 <= before * LEFT_MAX || over.elapsed() >= WITHIN {
            break left;
        }
        sleep(Duration::from_secs(1));
    };
    println!("{before} kB before, {most} kB at most, {left} kB {:.0} s after", over.elapsed().as_secs_f64());
    assert!(left * 100 <= before * LEFT_MAX, "{left} kB are left of {most}, {before} kB before");
}

#[test]
fn a_source_that_is_still_refused_after_a_flood_is_taken_up_and_the_loss_is_named() {
    const SOURCES: u32 = 12_000;
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections", "--port", "80"]);
    flood(&lab, SOURCES);
    let lost = number(&lab.stats(), "/events/lost");
    assert!(lost > 0);
    let words = once(|| {
        let words = lab.ratelimitd(&["history", CLIENTS[0]]).stdout;
        words.contains("NOT COMPLETE").then_some(words)
    });
    assert!(!words.unwrap().contains("nothing is remembered"));
    // Even if an event was lost, each source is refused now and therefore has an episode.
    let of = |number: u32| Ipv4Addr::from_bits((100 << 24 | 64 << 16) + number).to_string();
    let begin = Instant::now();
    let has_episode = |of: &str| story(&lab, of).is_some_and(|story| story["episodes"][0]["reason"] == "over_limit");
    let mut numbers = (0..SOURCES).step_by(997);
    let mut waits_for = numbers.next();
    while let Some(number) = waits_for {
        assert!(begin.elapsed() < Duration::from_secs(150), "{} is not taken up", of(number));
        if has_episode(&of(number)) {
            waits_for = numbers.next();
        } else {
            sleep(Duration::from_secs(1));
        }
    }
    let story = story(&lab, CLIENTS[0]).unwrap();
    let named = story["losses"].as_array().unwrap().iter().map(|loss| loss["events"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(named, lost, "{}", story["losses"]);
    assert!(lab.ratelimitd(&["history", CLIENTS[0], "--csv"]).stdout.contains("\nloss,"));
    assert!(lab.ratelimitd(&["history"]).stdout.contains("NOT COMPLETE"));
}
