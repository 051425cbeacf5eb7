//! Tests that events, the log, the history, `check` and `stats` describe what happens to a client in the same words.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process;
use std::thread::sleep;
use std::time::Duration;

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, binary, number, once};
use netlab::{PacketSocket, needs_root};
use serde_json::Value;

/// Number of sources in the flood, each of which is refused once.
const SOURCES: u32 = 20_000;
/// Maximum resident memory in kB. Measured without optimisation, with 20000 sources refused in two seconds: 65 MB.
const RESIDENT_KB_MAX: u64 = 120_000;

fn done(lab: &Lab, args: &[&str]) -> String {
    let output = lab.ratelimitd(args);
    assert_eq!(output.code(), 0, "{args:?}: {}", output.stderr);
    output.stdout
}

fn lines(lab: &Lab, args: &[&str]) -> Vec<Value> {
    done(lab, args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn json(lab: &Lab, args: &[&str]) -> Value {
    serde_json::from_str(&lab.ratelimitd(args).stdout).unwrap()
}

fn get(lab: &Lab, path: &str) -> Value {
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn limiting_ban_and_release_are_reported_in_the_same_words_everywhere() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let limit = ["--limit", "1/1h", "--count", "connections", "--name", "web", "--block-for", "1h"];
    let daemon = lab.limit(&limit);
    let client = CLIENTS[0];
    let mut open = lab.open(client, 80);
    lab.assert_blocked(client, 80);
    // A SYN alone causes no ban.
    open.write_all(b"GET").unwrap();
    let logged = daemon.child.wait_for_line("10.9.0.2 banned by rule \"web\" until ", HANGS_AFTER).unwrap();

    let banned = ["events", "--json", "--source", client, "--kind", "ban"];
    let ban = once(|| lines(&lab, &banned).pop()).unwrap();
    assert_eq!(lines(&lab, &banned).len(), 1, "a ban is told once");
    assert!(logged.ends_with(ban["detail"].as_str().unwrap()), "{logged} {ban}");
    assert_eq!((&ban["source"], &ban["rule"]), (&client.into(), &"web".into()));
    assert_eq!((&ban["limit"], &ban["used"], &ban["by"]), (&"1/1h connections".into(), &1.into(), &Value::Null));
    let check = json(&lab, &["check", client, "--json"]);
    assert_eq!((&check["verdict"], &check["reason"]), (&"drop".into(), &ban["reason"]));
    assert_eq!(lab.ratelimitd(&["check", client]).code(), 3);
    let refused = lines(&lab, &["events", "--json", "--source", client, "--kind", "refused"]);
    assert!(
        refused.iter().all(|event| event["reason"] == "over_limit" && event["limit"] == ban["limit"]),
        "{refused:?}"
    );
    let stats = lab.stats();
    assert_eq!((number(&stats, "/sources/banned"), &stats["history"]["state"]), (1, &"ok".into()));

    let story = || {
        let output = lab.ratelimitd(&["history", client, "--json"]);
        serde_json::from_str::<Value>(&output.stdout).ok()
    };
    let episode = once(|| story()?.pointer("/episodes/0").cloned().filter(|of| of["reason"] == "banned")).unwrap();
    assert_eq!(
        (&episode["reason"], &episode["rule"], &episode["limit"]),
        (&ban["reason"], &ban["rule"], &ban["limit"])
    );
    assert_eq!((&episode["ended"], &episode["peak"]), (&Value::Null, &1.into()));

    done(&lab, &["unblock", client]);
    daemon.child.wait_for_line("10.9.0.2/32 unblocked by root", HANGS_AFTER).unwrap();
    let unblock = lines(&lab, &["events", "--json", "--source", client, "--kind", "unblock"]).pop().unwrap();
    assert!(unblock["by"].as_str().unwrap().starts_with("root"), "{unblock}");
    assert!(!lab.is_blocked(client, 80));
    let act = once(|| story()?.pointer("/acts/0").cloned()).unwrap();
    assert_eq!((&act["what"], &act["by"]), (&"unblock".into(), &unblock["by"]));
    let ended = once(|| story()?.pointer("/episodes/0/ended").cloned().filter(|of| !of.is_null())).unwrap();
    assert!(ended.is_string());

    let words = done(&lab, &["history", client]);
    assert!(words.contains("banned") && words.contains("web 1/1h connections"), "{words}");
    assert!(done(&lab, &["history"]).contains(client));
    assert!(done(&lab, &["history", client, "--csv"]).starts_with("what,source,"));
    assert!(done(&lab, &["events"]).contains(" ban "));
    assert!(done(&lab, &["forget", client]).contains("erased"));
    assert_eq!(lines(&lab, &["events", "--json", "--source", client]), [Value::Null; 0]);
    assert_eq!(story().unwrap()["episodes"], Value::Array(vec![]));
    assert_eq!(lab.ratelimitd(&["events", "--kind", "bann"]).code(), 2);
}

/// A running `events -f` with these arguments, which writes its lines to a file. Killed on drop.
struct Follower {
    process: process::Child,
    path: PathBuf,
}

impl Follower {
    fn start(lab: &Lab, args: &[&str]) -> Self {
        let path = lab.directory().join(format!("followed{}", args.concat().replace('/', "_")));
        let mut command = lab.command(binary());
        command.args(["events", "-f"]).args(args).stdout(File::create(&path).unwrap()).process_group(0);
        Self { process: command.spawn().unwrap(), path }
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.path).unwrap().lines().map(str::to_owned).collect()
    }

    /// Waits until `count` events are shown, and returns their kinds and sources.
    fn shown(&self, count: usize) -> Vec<String> {
        let lines = once(|| Some(self.lines()).filter(|lines| lines.len() >= count));
        let lines = lines.unwrap_or_else(|| panic!("{:?}", self.lines()));
        let of = |line: &String| {
            let event: Value = serde_json::from_str(line).unwrap();
            format!("{} {}", event["kind"].as_str().unwrap(), event["source"].as_str().unwrap_or("-"))
        };
        lines.iter().map(of).collect()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        let _gone = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _gone = self.process.wait();
    }
}

#[test]
fn each_flag_of_events_that_are_followed_shows_what_it_says_and_nothing_else() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections", "--name", "web"]);
    once(|| Some(lines(&lab, &["events", "--json"])).filter(|all| !all.is_empty())).unwrap();
    done(&lab, &["deny", "192.0.2.1"]);
    // Waits until the event is older than what is queried.
    once(|| lines(&lab, &["events", "--json", "--since", "1s"]).is_empty().then_some(())).unwrap();
    let of = |args: &[&str]| Follower::start(&lab, args);
    let all = of(&["--json"]);
    let source = of(&["--json", "--source", CLIENTS[0]]);
    let prefix = of(&["--json", "--source", "192.0.2.0/24"]);
    let rule = of(&["--json", "--rule", "web"]);
    let other_rule = of(&["--json", "--rule", "ssh"]);
    let kind = of(&["--json", "--kind", "deny"]);
    let since = of(&["--json", "--since", "1s"]);
    let long_since = of(&["--json", "--since", "1h"]);
    let words = of(&[]);
    // Each follower first shows the earlier events, or its flag leaves them out.
    assert_eq!(all.shown(2), ["attach -", "deny 192.0.2.1"]);
    assert_eq!(long_since.shown(2), ["attach -", "deny 192.0.2.1"]);
    assert_eq!(
        (prefix.shown(1), kind.shown(1)),
        (vec!["deny 192.0.2.1".to_owned()], vec!["deny 192.0.2.1".to_owned()])
    );
    lab.open(CLIENTS[0], 80);
    lab.assert_blocked(CLIENTS[0], 80);
    // The daemon reads the event within a second, and shows it at once to a follower that is already there.
    let refused = format!("refused {}", CLIENTS[0]);
    assert_eq!(source.shown(1), [refused.as_str()]);
    done(&lab, &["deny", "192.0.2.2"]);
    done(&lab, &["unblock", "192.0.2.2"]);
    done(&lab, &["reset", CLIENTS[0]]);
    let reset = format!("reset {}", CLIENTS[0]);
    let later = [refused.as_str(), "deny 192.0.2.2", "unblock 192.0.2.2", reset.as_str()];
    let from_start = [&["attach -", "deny 192.0.2.1"], later.as_slice()].concat();
    assert_eq!(all.shown(6), from_start);
    assert_eq!(long_since.shown(6), from_start);
    assert_eq!(since.shown(4), later, "what was before is left out");
    assert_eq!(source.shown(2), [refused.as_str(), reset.as_str()]);
    assert_eq!(prefix.shown(3), ["deny 192.0.2.1", "deny 192.0.2.2", "unblock 192.0.2.2"]);
    assert_eq!(rule.shown(1), [refused.as_str()]);
    assert_eq!(kind.shown(2), ["deny 192.0.2.1", "deny 192.0.2.2"]);
    assert_eq!(other_rule.lines(), [""; 0]);
    let said = once(|| Some(words.lines()).filter(|lines| lines.len() >= 6)).unwrap();
    assert!(said[2].contains(" refused ") && said[2].contains("used 1 of 1/1h connections"), "{said:?}");
    assert!(!said[0].starts_with('{'), "{said:?}");
}

#[test]
fn a_flood_of_refused_sources_is_counted_to_the_last_and_takes_a_bounded_memory() {
    needs_root!();
    let lab = Lab::quiet();
    let daemon = lab.limit(&["--limit", "1/1h", "--count", "connections", "--port", "80", "--max-sources", "65536"]);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let follower = UnixStream::connect(lab.socket()).unwrap();
    (&follower).write_all(b"GET /api/v1/events?follow=true HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    for number in 0..SOURCES {
        let [_, high, middle, low] = number.to_be_bytes();
        let syn = frame(IPV4, V4 { source: [100, 64 + high, middle, low], ..V4::of(TCP) }.around(tcp(80, SYN)));
        // The second SYN is refused.
        sender.send(&syn).unwrap();
        sender.send(&syn).unwrap();
        if number % 64 == 0 {
            sleep(Duration::from_millis(2));
        }
    }
    let stats = lab.stats_once(|stats| {
        number(stats, "/rules/0/dropped") + number(stats, "/sources/not_admitted") >= u64::from(SOURCES)
    });
    let begun = number(&stats, "/rules/0/dropped");
    assert_eq!(number(&stats, "/events/sent") + number(&stats, "/events/lost"), begun, "{}", stats["events"]);
    // The daemon reads events five times per second.
    let report = once(|| {
        let report = get(&lab, "/api/v1/events");
        let events = report["events"].as_array()?;
        let others = events.iter().filter(|event| event["kind"] != "refused").count() as u64;
        let told = number(&report, "/overwritten") + events.len() as u64 - others;
        (told >= number(&stats, "/events/sent")).then_some((told, events.len()))
    });
    let (told, remembered) = report.unwrap();
    // The events before the flood, that an interface is protected, are overwritten too.
    assert!(told <= number(&stats, "/events/sent") + 2 && remembered <= 4096, "{told} {remembered}");
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    println!("the daemon has {resident} kB");
    assert!(resident < RESIDENT_KB_MAX, "{resident} kB, though one follower reads nothing");
    let logged = daemon.child.stderr().lines().filter(|line| line.contains(" refused by rule ")).count();
    assert!((1..2_000).contains(&logged), "{logged} lines of {begun}");
}
