//! Tests of a policy with many rules on a real interface: denials, bans, trials, and a site's example.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, IPV6, V4, V6, frame, tcp};
use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, HANGS_AFTER, Lab, SERVER, assert_refused, number, once};
use netlab::{HttpServer, Output, PacketSocket, needs_root};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;

/// Duration of a trial, the shortest one that is allowed.
const TRIAL: Duration = Duration::from_secs(5);
/// Time before a trial's end after which a confirmation may be too late.
const CONFIRMED_BEFORE: Duration = Duration::from_secs(1);
/// Maximum delay of the packet path's coarse clock, which lags by a tick of 10 ms at most.
const CLOCK_LATE_MAX: Duration = Duration::from_millis(20);
/// Window of a limit that frees during a test, and the first ban of a source that exceeds it.
const WINDOW: Duration = Duration::from_secs(1);
const FIRST_BAN: Duration = Duration::from_secs(2);

fn done(output: &Output) -> &str {
    assert_eq!(output.code(), 0, "{}", output.stderr);
    &output.stdout
}

fn json(lab: &Lab, args: &[&str]) -> Value {
    serde_json::from_str(done(&lab.ratelimitd(&[args, &["--json"]].concat()))).unwrap()
}

fn web(lab: &Lab) -> [HttpServer; 2] {
    SERVER.map(|address| {
        let address: IpAddr = address.parse().unwrap();
        HttpServer::start(&lab.server, (address, 80).into()).unwrap()
    })
}

fn write(lab: &Lab, rule: &str) {
    let text = format!(
        "interfaces = [\"s0\"]\nhook = \"{}\"\non_exit = \"keep\"\nmax_sources = 4096\nsocket = \"{}\"\n[rule]\n{rule}\n",
        integration_test::hook().label(),
        lab.socket().display()
    );
    fs::write(lab.directory().join("ratelimitd.toml"), text).unwrap();
}

fn start(lab: &Lab) -> Daemon {
    lab.start(&["run", "--config", lab.directory().join("ratelimitd.toml").to_str().unwrap()])
}

fn states(listed: &Value) -> Vec<(String, String)> {
    let entries = listed["entries"].as_array().unwrap();
    let word = |of: &Value| of.as_str().unwrap().to_owned();
    entries.iter().map(|entry| (word(&entry["prefix"]), word(&entry["state"]))).collect()
}

/// Returns the banned sources, each with the number of bans in a row.
fn banned_now(lab: &Lab) -> Vec<(String, u64)> {
    let listed = json(lab, &["list"]);
    let banned = listed["entries"].as_array().unwrap().iter().filter(|entry| entry["state"] == "banned");
    banned.map(|entry| (entry["prefix"].as_str().unwrap().to_owned(), number(entry, "/step"))).collect()
}

/// Returns the number of bans that have started, whether they have ended or not.
fn bans_begun(lab: &Lab) -> u64 {
    let metrics = request(&lab.socket(), "GET", "/metrics", "");
    let line = metrics.lines().find_map(|line| line.strip_prefix("ratelimitd_bans_total{rule=\"default\"} "));
    line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

/// Exceeds a limit of one connection by data on an open one, because a SYN alone never bans.
fn exceed(lab: &Lab, from: &str) {
    let before = bans_begun(lab);
    let mut open = lab.open(from, 80);
    lab.assert_blocked(from, 80);
    open.write_all(b"GET").unwrap();
    once(|| (bans_begun(lab) > before).then_some(())).unwrap_or_else(|| panic!("{from} is not banned"));
}

/// Exceeds a limit of one connection that is free again after its window. Repeats the attempt if the machine took
/// longer than the window between two steps.
fn exceed_within_the_window(lab: &Lab, from: &str) {
    let before = bans_begun(lab);
    let banned = once(|| {
        let began = Instant::now();
        let mut open = lab.open(from, 80);
        // Closed by a reset, so that no retransmission exceeds the limit once more.
        setsockopt(&open, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
        if !lab.is_blocked(from, 80) {
            assert!(began.elapsed() >= WINDOW, "two connections of {from} within {:?}", began.elapsed());
            return None;
        }
        open.write_all(b"GET").unwrap();
        while bans_begun(lab) == before && began.elapsed() < 2 * WINDOW {}
        (bans_begun(lab) > before).then_some(())
    });
    banned.unwrap_or_else(|| panic!("{from} is not banned"));
}

#[test]
fn a_denied_source_is_dropped_at_once_until_its_end_and_no_other_is() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let daemon = lab.limit(&["--limit", "100/1h", "--count", "connections", "--on-exit", "keep"]);
    for (denied, other, prefix) in
        [(CLIENTS[0], CLIENTS[1], "10.9.0.2/32"), (CLIENTS_V6[0], CLIENTS_V6[2], "fd09:0:0:a::/64")]
    {
        lab.open(denied, 80);
        done(&lab.ratelimitd(&["deny", prefix, "--for", "1h", "--reason", "a test"]));
        lab.assert_blocked(denied, 80);
        lab.open(other, 80);
    }
    let check = lab.ratelimitd(&["check", CLIENTS[0], "--json"]);
    assert_eq!(check.code(), 3, "{}", check.stdout);
    assert!(check.stdout.contains("\"denied\""), "{}", check.stdout);
    daemon.kill();
    lab.assert_blocked(CLIENTS[0], 80);
    let _daemon = lab.limit(&["--limit", "100/1h", "--count", "connections", "--on-exit", "keep"]);
    lab.assert_blocked(CLIENTS_V6[0], 80);
    done(&lab.ratelimitd(&["unblock", "10.9.0.2"]));
    lab.open(CLIENTS[0], 80);

    let began = Instant::now();
    done(&lab.ratelimitd(&["deny", CLIENTS[1], "--for", "2s"]));
    // The SYN is retransmitted until one passes.
    lab.open(CLIENTS[1], 80);
    assert!(began.elapsed() >= Duration::from_secs(2), "it passes after {:?}", began.elapsed());
    assert!(number(&lab.stats(), "/reasons/denied") >= 4);
}

#[test]
fn a_source_over_its_limit_is_banned_over_restarts_until_it_is_lifted() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    write(&lab, "limits = [\"1/1h connections\"]\nblock_for = \"1h\"");
    let daemon = start(&lab);
    exceed(&lab, CLIENTS[0]);
    exceed(&lab, CLIENTS_V6[0]);
    let banned = [("10.9.0.2".to_owned(), 1), ("fd09:0:0:a::/64".to_owned(), 1)];
    assert_eq!(banned_now(&lab), banned);
    assert_eq!(lab.ratelimitd(&["check", CLIENTS[0]]).code(), 3);
    daemon.kill();
    let _daemon = start(&lab);
    assert_eq!(number(&lab.stats(), "/sources/banned"), 2);
    done(&lab.ratelimitd(&["unblock", "fd09:0:0:a::/64"]));
    lab.open(CLIENTS_V6[0], 80);
    assert_eq!(banned_now(&lab), banned[..1]);
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn a_ban_outlasts_the_window_and_the_next_one_is_longer_until_a_reset() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let (window, ban) = (WINDOW.as_secs(), FIRST_BAN.as_secs());
    write(&lab, &format!("limits = [\"1/{window}s connections\"]\nblock_for = [\"{ban}s\", \"1h\"]"));
    let _daemon = start(&lab);
    let began = Instant::now();
    exceed_within_the_window(&lab, CLIENTS[0]);
    // Once the first ban is over.
    exceed_within_the_window(&lab, CLIENTS[0]);
    assert!(began.elapsed() >= FIRST_BAN, "{:?}", began.elapsed());
    assert_eq!(banned_now(&lab), [("10.9.0.2".to_owned(), 2)]);
    once(|| {
        let check: Value = serde_json::from_str(&lab.ratelimitd(&["check", CLIENTS[0], "--json"]).stdout).unwrap();
        (number(&check, "/limits/0/used") == 0).then_some(())
    })
    .expect("the window is free again");
    lab.assert_blocked(CLIENTS[0], 80);
    done(&lab.ratelimitd(&["reset", CLIENTS[0]]));
    exceed_within_the_window(&lab, CLIENTS[0]);
    // A third ban would last for an hour, but this one is a first.
    lab.open(CLIENTS[0], 80);
}

/// A daemon with a limit of 3 on trial and a confirmed limit of 1.
struct OnTrial {
    daemon: Daemon,
    lab: Lab,
    _web: [HttpServer; 2],
    /// Bounds of the trial's start.
    began: [Instant; 2],
}

impl OnTrial {
    fn new() -> Self {
        loop {
            let lab = Lab::new();
            let web = web(&lab);
            write(&lab, "limits = [\"1/1h connections\"]");
            let daemon = start(&lab);
            lab.assert_admitted(CLIENTS[0], 80, 1);
            write(&lab, "limits = [\"3/1h connections\"]");
            let before = Instant::now();
            done(&lab.ratelimitd(&["apply", "--confirm", "5s"]));
            let trial = Self { daemon, lab, _web: web, began: [before, Instant::now()] };
            let reaches = || trial.lab.reaches(CLIENTS[0], 80, TRIAL);
            if reaches() && reaches() && trial.lab.is_blocked(CLIENTS[0], 80) {
                return trial;
            }
            // If the machine took the whole trial for that, another trial is started.
            assert!(before.elapsed() >= TRIAL, "what is tried does not hold");
        }
    }

    fn kill_its_daemon(&mut self) {
        self.daemon.child.signal(Signal::SIGKILL).unwrap();
        self.daemon.child.wait(HANGS_AFTER).unwrap();
    }

    /// Sleeps until the trial is over by the kernel's clock, whether a daemon runs or not.
    fn outlast(&self) {
        thread::sleep((self.began[1] + TRIAL + CLOCK_LATE_MAX).saturating_duration_since(Instant::now()));
    }
}

#[test]
fn an_unconfirmed_trial_is_rolled_back_with_the_daemon_alive() {
    needs_root!();
    let OnTrial { lab, daemon, began: [began, _], .. } = &OnTrial::new();
    lab.stats_once(|stats| stats.pointer("/rules/0/limits/0/amount").unwrap() == 1);
    assert!(began.elapsed() >= TRIAL, "after {:?}", began.elapsed());
    lab.assert_admitted(CLIENTS[1], 80, 1);
    daemon.child.wait_for_line("ROLLED BACK", HANGS_AFTER).unwrap();
    assert_refused(&lab.ratelimitd(&["confirm"]), 75, &["too late"]);
    assert_refused(&lab.ratelimitd(&["reload"]), 75, &["tried and not confirmed"]);
    let said = lab.ratelimitd(&["stats"]).stdout;
    assert!(said.contains("ROLLED BACK: ") && said.contains("it was not confirmed in time"), "{said}");
    lab.assert_admitted(CLIENTS_V6[0], 80, 1);
    assert_eq!(lab.stats().pointer("/rules/0/limits/0/amount").unwrap(), 1);
}

#[test]
fn an_unconfirmed_trial_is_rolled_back_with_the_daemon_killed() {
    needs_root!();
    let mut trial = OnTrial::new();
    done(&trial.lab.ratelimitd(&["deny", CLIENTS_V6[2]]));
    trial.kill_its_daemon();
    let lab = &trial.lab;
    lab.assert_blocked(CLIENTS_V6[2], 80);
    trial.outlast();
    lab.assert_admitted(CLIENTS[1], 80, 1);
    lab.assert_blocked(CLIENTS_V6[2], 80);
    let _daemon = start(lab);
    lab.assert_admitted(CLIENTS[2], 80, 1);
    lab.assert_blocked(CLIENTS_V6[2], 80);
    assert_eq!(lab.stats().pointer("/rules/0/limits/0/amount").unwrap(), 1);
}

#[test]
fn an_unconfirmed_trial_is_rolled_back_with_the_daemon_restarted() {
    needs_root!();
    let mut trial = OnTrial::new();
    trial.kill_its_daemon();
    let daemon = start(&trial.lab);
    trial.outlast();
    trial.lab.assert_admitted(CLIENTS[1], 80, 1);
    daemon.child.wait_for_line("ROLLED BACK", HANGS_AFTER).unwrap();
    assert_eq!(trial.lab.stats().pointer("/rules/0/limits/0/amount").unwrap(), 1);
}

#[test]
fn a_trial_confirmed_under_a_daemon_that_took_over_stays_in_force() {
    needs_root!();
    loop {
        let mut trial = OnTrial::new();
        trial.kill_its_daemon();
        let _daemon = start(&trial.lab);
        let confirmed = trial.lab.ratelimitd(&["confirm"]);
        if confirmed.code() == 75 && trial.began[0].elapsed() + CONFIRMED_BEFORE >= TRIAL {
            // The machine took the whole trial for that, so another one is started.
            continue;
        }
        done(&confirmed);
        trial.outlast();
        trial.lab.assert_admitted(CLIENTS[1], 80, 3);
        return;
    }
}

#[test]
fn an_application_charges_what_it_knows_to_be_dear() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let _daemon = lab.limit(&["--limit", "5/1h", "--count", "connections"]);
    for source in [CLIENTS[0], CLIENTS_V6[0]] {
        let body = format!("{{\"source\":\"{source}\",\"rule\":\"default\",\"amount\":4}}");
        let answer = request(&lab.socket(), "POST", "/v1/charge", &body);
        assert!(answer.contains("200 OK") && answer.contains("\"remaining\":1"), "{answer}");
        lab.assert_admitted(source, 80, 1);
    }
}

fn request(socket: &Path, method: &str, path: &str, body: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns a SYN with these addresses. Nobody checks the checksum.
fn syn(from: &str, to: &str, port: u16) -> Vec<u8> {
    match (from.parse().unwrap(), to.parse().unwrap()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut syn = frame(IPV4, V4 { source: from.octets(), ..V4::of(TCP) }.around(tcp(port, SYN)));
            syn[30..34].copy_from_slice(&to.octets());
            syn
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut syn = frame(IPV6, V6 { source: from.octets(), ..V6::of(TCP) }.around(tcp(port, SYN)));
            syn[38..54].copy_from_slice(&to.octets());
            syn
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_rule_of_the_example_of_a_site_holds_on_both_sides_and_in_both_families() {
    needs_root!();
    let lab = Lab::quiet();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples");
    let site = fs::read_to_string(examples.join("site.toml")).unwrap().replace("\"eth0\"", "\"s0\"");
    // A SYN is no request.
    let site = site.replace("[[rule]]", "[[rule]]\ncount = \"connections\"");
    // These packets belong to no connection.
    let site = site.replace("\nblock_for", "\nban_unverified = true\nblock_for");
    let path = lab.directory().join("site.toml");
    fs::write(&path, format!("max_sources = 4096\nsocket = \"{}\"\n{site}", lab.socket().display())).unwrap();
    fs::copy(examples.join("deny.txt"), lab.directory().join("deny.txt")).unwrap();
    let _daemon = lab.start(&["run", "--config", path.to_str().unwrap()]);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let rule_of = |stats: &Value, name: &str| {
        let rules = stats["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["name"] == name).unwrap().clone();
        [number(&rule, "/admitted"), number(&rule, "/dropped")]
    };
    let here = ["192.0.2.1", "2001:db8:2::1"];
    let api = ["192.0.2.80", "2001:db8:2::80"];
    let everyone = ["198.51.100.9", "2001:db8:9::9"];
    let premium = ["203.0.113.65", "2001:db8:100::9"];
    let partner = ["203.0.113.7", "2001:db8:7::9"];
    let denied = ["198.51.100.129", "2001:db8:bad::9"];
    for (name, from, to, port, [admitted, dropped]) in [
        ("premium", premium, here, 80, [10_000, 5]),
        ("login", everyone, here, 22, [10, 5]),
        ("api", everyone, api, 443, [6, 5]),
        ("api:partner", partner, api, 443, [5_000, 5]),
        ("web", everyone, here, 80, [1_000, 1_005]),
        ("web", denied, here, 80, [0, 5]),
    ] {
        for family in 0..2 {
            let before = rule_of(&lab.stats(), name);
            let syn = syn(from[family], to[family], port);
            (0..admitted + dropped).for_each(|_| sender.send(&syn).unwrap());
            let counted = |stats: &Value| {
                let after = rule_of(stats, name);
                [after[0] - before[0], after[1] - before[1]]
            };
            let stats = lab.stats_once(|stats| counted(stats).iter().sum::<u64>() == admitted + dropped);
            assert_eq!(counted(&stats), [admitted, dropped], "{name} {}", from[family]);
        }
    }
    let stats = lab.stats();
    let shadows = stats["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == "web").unwrap().clone();
    let shadows = shadows["shadow_limits"].as_array().unwrap().clone();
    let would_drop: Vec<_> = shadows.iter().map(|of| [number(of, "/amount"), number(of, "/would_drop")]).collect();
    assert_eq!(would_drop, [[300, 2 * 1_705], [500, 2 * 1_505], [2_000, 2 * 5]], "{shadows:?}");
    let reasons = stats["reasons"].clone();
    assert_eq!((number(&reasons, "/denied"), number(&reasons, "/banned")), (10, 8));
    let monitoring = syn("192.0.2.10", here[0], 22);
    (0..100).for_each(|_| sender.send(&monitoring).unwrap());
    lab.stats_once(|stats| number(stats, "/reasons/exempt") == 100);
    let listed = states(&json(&lab, &["list"]));
    for (prefix, state) in [("198.51.100.9", "banned"), ("2001:db8:9::/64", "banned"), ("192.0.2.10", "exempt")] {
        assert!(listed.contains(&(prefix.to_owned(), state.to_owned())), "{prefix}: {listed:?}");
    }
}
