//! Tests of what the running daemon detects by itself: changed list files, and a rule that drops nearly everything.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{Daemon, HANGS_AFTER, Lab, number};
use netlab::{Namespace, PacketSocket, needs_root};
use ratelimit_daemon::netlink::LinkEvents;

fn start(lab: &Lab, text: &str) -> Daemon {
    let path = lab.directory().join("ratelimitd.toml");
    let head = format!("interfaces = [\"s0\"]\nmax_sources = 4096\nsocket = \"{}\"\n", lab.socket().display());
    fs::write(&path, head + text).unwrap();
    lab.start(&["run", "--config", path.to_str().unwrap()])
}

fn syn(from: [u8; 4], port: u16) -> Vec<u8> {
    frame(IPV4, V4 { source: from, ..V4::of(TCP) }.around(tcp(port, SYN)))
}

fn done(lab: &Lab, args: &[&str]) -> String {
    let output = lab.ratelimitd(args);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    output.stdout
}

fn metrics(lab: &Lab) -> String {
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_list_file_is_followed_and_a_broken_one_is_not() {
    needs_root!();
    let lab = Lab::quiet();
    let list = lab.directory().join("bad.txt");
    let replace = |text: &str| {
        let new = lab.directory().join("bad.txt.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &list).unwrap();
    };
    replace("203.0.113.0/24\n");
    let config = "deny = [\"@bad\"]\n[lists]\nbad = \"file:bad.txt\"\n[rule]\nlimits = [\"1000/1h connections\"]\n";
    let daemon = start(&lab, config);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let denied = || number(&lab.stats(), "/reasons/denied");
    let send = |octet: u8| (0..10).for_each(|_| sender.send(&syn([198, 51, 100, octet], 80)).unwrap());
    send(7);
    lab.stats_once(|stats| number(stats, "/rules/0/admitted") == 10);
    assert_eq!(denied(), 0);

    replace("203.0.113.0/25\n198.51.100.7\n198.51.100.8\n");
    daemon.child.wait_for_line("3 added, 1 removed", HANGS_AFTER).unwrap();
    send(7);
    lab.stats_once(|stats| number(stats, "/reasons/denied") == 10);

    replace("198.51.100.9\nnonsense\n");
    let line = daemon.child.wait_for_line("bad.txt:2:1", HANGS_AFTER).unwrap();
    // The file may contain anything, and others can read the journal, so the log does not quote the file.
    assert!(line.contains("list bad (") && !line.contains("nonsense"), "{line}");
    assert!(metrics(&lab).contains("\nratelimitd_config_last_reload_successful 0\n"));
    assert!(done(&lab, &["stats"]).contains("bad.txt IS NOT FOLLOWED"));
    send(8);
    send(9);
    lab.stats_once(|stats| number(stats, "/reasons/denied") == 20 && number(stats, "/rules/0/admitted") == 20);
}

#[test]
fn a_start_enforces_limits_whatever_its_list_files_have_become() {
    needs_root!();
    let lab = Lab::quiet();
    let list = lab.directory().join("bad.txt");
    let config = "deny = [\"@bad\"]\n[lists]\nbad = \"file:bad.txt\"\n[rule]\nports = \"80\"\n\
        limits = [\"5/1h connections\"]\n";
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let send = |from: [u8; 4]| (0..10).for_each(|_| sender.send(&syn(from, 80)).unwrap());
    let good: String = (0..200).map(|at| format!("198.51.100.{at}\n")).collect();
    let page = "<!DOCTYPE html>\n<html>Error 503</html>\n".to_owned();
    // First and later starts with a list file. Each later start has the version before as its last good one.
    for (at, (text, state, is_denied)) in [
        (None, "left_out", false),
        (Some(page.clone()), "left_out", false),
        (Some(good.clone()), "in_force", true),
        (Some(good + "203.0.113.4254.0.2.223\n"), "in_force", true),
        (Some(page), "last_good", true),
        (None, "last_good", true),
    ]
    .into_iter()
    .enumerate()
    {
        match &text {
            Some(text) => fs::write(&list, text).unwrap(),
            None => drop(fs::remove_file(&list)),
        }
        let daemon = start(&lab, config);
        let stats = lab.stats();
        assert_eq!(stats["lists"][0]["state"], state, "{at}: {stats}");
        let is_whole = stats["lists"][0]["why"].is_null();
        assert_eq!(done(&lab, &["stats"]).contains("PARTLY PROTECTED"), !is_whole, "{at}");
        assert_eq!(is_whole, at == 2, "{at}: {stats}");
        assert!(metrics(&lab).contains(&format!("bad.txt\",state=\"{state}\"}} 1\n")), "{at}");
        // Limits apply to everyone, and the list applies if it is in force.
        let third = u8::try_from(at).unwrap();
        send([203, 0, 113, third]);
        send([198, 51, 100, 7]);
        let dropped = if is_denied { 15 } else { 10 };
        lab.stats_once(|stats| number(stats, "/rules/0/dropped") == dropped);
        assert_eq!(daemon.end(nix::sys::signal::Signal::SIGTERM), 0);
    }
}

#[test]
fn a_rule_that_drops_nearly_everything_falls_back_and_one_that_may_does_not() {
    needs_root!();
    let lab = Lab::quiet();
    let config = "[safety]\nbreaker = \"50%\"\nbreaker_after = \"5s\"\n\
        [[rule]]\nname = \"web\"\nports = \"80\"\nlimits = [\"1/1h connections\"]\n\
        [[rule]]\nname = \"attacked\"\nports = \"443\"\nlimits = [\"1/1h connections\"]\nunder_attack_ok = true\n";
    let daemon = start(&lab, config);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let fallen_back = || lab.stats().get("fallen_back").map_or_else(String::new, ToString::to_string);
    let flood_until = |is_over: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_over() {
            assert!(began.elapsed() < HANGS_AFTER, "it never comes to hold: {}", daemon.child.stderr());
            for port in [80, 443] {
                (0..40).for_each(|_| sender.send(&syn([198, 51, 100, 7], port)).unwrap());
            }
            thread::sleep(Duration::from_millis(200));
        }
        began.elapsed()
    };
    let enforcing =
        |rule: &str, value: u8| metrics(&lab).contains(&format!("ratelimitd_enforcing{{rule=\"{rule}\"}} {value}\n"));
    let after = flood_until(&|| fallen_back() == "[\"web\"]");
    assert!(after >= Duration::from_secs(5), "{after:?}");
    daemon.child.wait_for_line("RULE web FALLS BACK TO DRY RUN", HANGS_AFTER).unwrap();
    assert!(done(&lab, &["stats"]).contains("RULE web FELL BACK TO DRY RUN"));
    assert!(enforcing("web", 0) && enforcing("attacked", 1));
    let dropped = |rule: usize| number(&lab.stats(), &format!("/rules/{rule}/dropped"));
    let before = [dropped(0), dropped(1)];
    (0..10).for_each(|_| sender.send(&syn([198, 51, 100, 7], 80)).unwrap());
    (0..10).for_each(|_| sender.send(&syn([198, 51, 100, 7], 443)).unwrap());
    lab.stats_once(|stats| number(stats, "/rules/1/dropped") == before[1] + 10);
    assert_eq!(dropped(0), before[0], "what is over the limit of the rule that fell back passes");

    done(&lab, &["mode", "enforce"]);
    assert!(fallen_back().is_empty() && enforcing("web", 1));
    flood_until(&|| fallen_back() == "[\"web\"]");
    done(&lab, &["reload"]);
    assert!(fallen_back().is_empty() && enforcing("web", 1));
}

#[test]
fn a_new_link_is_announced() {
    needs_root!();
    let server = Namespace::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut events = server.inside(|| Ok(runtime.block_on(async { LinkEvents::open() })?)).unwrap();
    server.ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"]).unwrap();
    runtime.block_on(async { tokio::time::timeout(HANGS_AFTER, events.changed()).await }).unwrap().unwrap();
}
