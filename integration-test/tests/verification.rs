//! Tests of packets that are forged in a source's name and of its own: separate budgets, and bans by verified traffic.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, V4, frame, tcp_with, udp};
use integration_test::lab::{CLIENTS, Daemon, HANGS_AFTER, Lab, SERVER, ask, is_answered, number, packets};
use netlab::{Child, PacketSocket, needs_root, nginx, without_offloads};
use serde_json::Value;

/// Time without an answer after which a request was dropped.
const DROPPED_AFTER: Duration = Duration::from_millis(800);
/// Address of the innocent owner, which is forged.
const OWNER: &str = CLIENTS[0];
const OWNER_V4: [u8; 4] = [10, 9, 0, 2];

fn web(lab: &Lab) -> Child {
    // Segments are as on a wire.
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    nginx(&lab.server, lab.directory(), &[SocketAddr::new(SERVER[0].parse().unwrap(), 80)]).unwrap()
}

/// Returns a frame in the owner's name to the server's port 80, with this protocol and payload.
fn forged(protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut frame = frame(IPV4, V4 { source: OWNER_V4, ..V4::of(protocol) }.around(payload));
    // Offset behind the Ethernet header. The checksum is then wrong: what passes ends in the stack, and nobody answers.
    frame[14 + 16..14 + 20].copy_from_slice(&[10, 9, 0, 1]);
    frame
}

/// Returns one packet of each kind that any host can forge: a SYN, a segment without a connection, a datagram.
fn kinds() -> [Vec<u8>; 3] {
    [
        forged(TCP, tcp_with(80, SYN, &[], &[])),
        forged(TCP, tcp_with(80, ACK, &[], b"GET / HTTP/1.1\r\n\r\n")),
        forged(UDP, udp(80, [7; 100])),
    ]
}

/// Sends `each` packets of each kind, and waits until all are counted.
fn flood(lab: &Lab, sender: &PacketSocket, each: u64) {
    let before = packets(&lab.stats())[0];
    for _ in 0..each {
        for frame in kinds() {
            sender.send(&frame).unwrap();
        }
    }
    lab.stats_once(|stats| packets(stats)[0] >= before + 3 * each);
}

fn check(lab: &Lab) -> Value {
    serde_json::from_str(&lab.ratelimitd(&["check", OWNER, "--json"]).stdout).unwrap()
}

/// Returns the use of the owner's limit by budget: the unverified one, and that of its connections.
fn used(lab: &Lab) -> (u64, u64) {
    let check = check(lab);
    let of = |budget: &str| {
        let limits = check["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["budget"] == budget).map_or(0, |limit| number(limit, "/used"))
    };
    (of("unverified"), of("verified"))
}

fn banned(lab: &Lab) -> u64 {
    number(&lab.stats(), "/sources/banned")
}

fn dropped_of_the_rule(lab: &Lab) -> u64 {
    number(&lab.stats(), "/rules/0/dropped")
}

/// Starts a daemon with one rule that bans for an hour.
fn start(lab: &Lab, rule: &str) -> Daemon {
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = [\"s0\"]\nsocket = \"{}\"", lab.socket().display());
    fs::write(&file, format!("{top}\n[rule]\n{rule}\nblock_for = \"1h\"\n")).unwrap();
    lab.start(&["run", "--config", file.to_str().unwrap()])
}

#[test]
fn a_forged_source_keeps_its_open_connection_at_full_speed() {
    needs_root!();
    const FILE_BYTES: usize = 4 << 20;
    let lab = Lab::new();
    fs::create_dir(lab.directory().join("files")).unwrap();
    fs::write(lab.directory().join("files/large"), vec![b'x'; FILE_BYTES]).unwrap();
    let _web = web(&lab);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    // A download of 4 MB needs fewer acknowledgements. The forged packets are ten times as many.
    let _daemon = lab.limit(&["--limit", "6000/1h", "--count", "packets"]);
    let mut stream = lab.open(OWNER, 80);
    flood(&lab, &sender, 3_000);
    let dropped = dropped_of_the_rule(&lab);
    assert!(ask(&mut stream, "/files/large").len() >= FILE_BYTES);
    assert_eq!(dropped_of_the_rule(&lab), dropped, "nothing of it had to be repeated");
    let (unverified, verified) = used(&lab);
    assert_eq!(unverified, 6_000, "what is forged is held to the limit");
    // The stack decides how many segments acknowledge the file.
    assert!((20..6_000).contains(&verified), "{verified}");
    // No forged packet is admitted.
    lab.assert_blocked(OWNER, 80);
}

#[test]
fn an_open_connection_of_which_nothing_was_seen_goes_on_at_once() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let mut stream = lab.open(OWNER, 80);
    let _daemon = lab.limit(&["--limit", "600/1h", "--count", "packets"]);
    flood(&lab, &sender, 300);
    let dropped = dropped_of_the_rule(&lab);
    for _ in 0..20 {
        assert!(is_answered(&mut stream, HANGS_AFTER));
    }
    assert_eq!(dropped_of_the_rule(&lab), dropped, "none of them had to be repeated");
    assert_eq!(used(&lab).0, 600);
}

#[test]
fn a_forged_source_has_its_requests_answered_up_to_the_limit_and_no_further() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let _daemon = lab.limit(&["--limit", "20/1h", "--count", "requests"]);
    flood(&lab, &sender, 50);
    let mut stream = lab.open(OWNER, 80);
    for _ in 0..20 {
        assert!(is_answered(&mut stream, HANGS_AFTER));
        flood(&lab, &sender, 1);
    }
    assert_eq!(used(&lab), (20, 20));
    assert!(!is_answered(&mut stream, DROPPED_AFTER), "one too many");
}

#[test]
fn forged_traffic_never_bans_in_any_unit_unless_the_rule_says_so() {
    needs_root!();
    for unit in ["connections", "packets", "bytes", "requests"] {
        let lab = Lab::new();
        let _web = web(&lab);
        let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
        let limit = if unit == "bytes" { "4000/1h" } else { "12/1h" };
        let _daemon = lab.limit(&["--limit", limit, "--count", unit, "--block-for", "1h"]);
        // The owner is active too, well within its limit.
        let mut stream = lab.open(OWNER, 80);
        assert!(is_answered(&mut stream, HANGS_AFTER));
        flood(&lab, &sender, 100);
        assert!(number(&lab.stats(), "/reasons/over_limit") > 80, "{unit}");
        assert_eq!(banned(&lab), 0, "{unit}");
        assert!(is_answered(&mut stream, HANGS_AFTER), "{unit}");
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let _daemon = start(&lab, "limits = [\"8/1h connections\"]\nban_unverified = true");
    flood(&lab, &sender, 100);
    assert_eq!(banned(&lab), 1);
}

#[test]
fn forged_traffic_adds_nothing_to_the_verified_traffic_of_its_owner() {
    needs_root!();
    for (rule, opened) in [
        // Forged packets fill a burst, and three quarters of the limit are far away.
        ("limits = [\"100/1h connections\"]\nburst = 10", 2),
        ("limits = [\"100/1h connections\"]\nalgorithm = \"gcra\"\nburst = 10", 2),
        // Another limit refuses than the one that the owner is close to.
        ("limits = [\"1000/1h connections\", \"50/1h packets\"]", 4),
        ("limits = [\"8/1h requests\"]", 4),
    ] {
        let lab = Lab::new();
        let _web = web(&lab);
        let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
        let _daemon = start(&lab, rule);
        for _ in 0..opened {
            assert!(lab.http(OWNER, 80).ends_with("ok\n"), "{rule}");
        }
        flood(&lab, &sender, 100);
        assert!(number(&lab.stats(), "/reasons/over_limit") > 80, "{rule}");
        // An application's charges only count against the verified budget.
        let charge = format!(r#"{{"source":"{OWNER}","rule":"default","amount":1}}"#);
        let url = "http://localhost/v1/charge";
        let socket = lab.socket();
        let answer =
            lab.server.run(&["curl", "-s", "--unix-socket", socket.to_str().unwrap(), url, "-d", &charge]).unwrap();
        assert!(answer.stdout.contains("verdict"), "{}{}", answer.stdout, answer.stderr);
        flood(&lab, &sender, 10);
        assert_eq!(banned(&lab), 0, "{rule}");
    }
}

#[test]
fn a_source_that_connects_and_goes_on_over_the_limit_is_banned_in_any_unit() {
    needs_root!();
    for (unit, limit) in [("connections", "8/1h"), ("packets", "60/1h"), ("bytes", "6000/1h"), ("requests", "20/1h")] {
        let lab = Lab::new();
        let _web = web(&lab);
        let _daemon = lab.limit(&["--limit", limit, "--count", unit, "--block-for", "1h"]);
        // One after another, each with its own request, until the source is banned.
        let url = format!("http://{}/", SERVER[0]);
        let one = ["timeout", "5", "curl", "-s", "-m", "1", "--interface", OWNER, "-o", "/dev/null", &url];
        // Limits of packets, bytes and requests ban by a segment of an established connection.
        let mut open = lab.open(OWNER, 80);
        let tried = (1..40).find(|_| {
            lab.client.run(&one).unwrap();
            is_answered(&mut open, DROPPED_AFTER);
            banned(&lab) == 1
        });
        assert!(tried.is_some_and(|tried| tried > 5), "{unit}: {tried:?}, {:#}", lab.stats());
        assert_eq!(check(&lab)["reason"], "banned", "{unit}");
    }
}

/// Opens a connection, sends one request, and closes it. Returns whether an answer arrived within a second.
fn asks_and_closes(lab: &Lab) -> bool {
    let url = format!("http://{}/", SERVER[0]);
    let one = ["curl", "-s", "-m", "1", "--interface", OWNER, "-o", "/dev/null", &url];
    lab.client.run(&one).unwrap().status.success()
}

#[test]
fn clients_that_close_after_each_request_are_banned_when_over_the_limit() {
    needs_root!();
    for rule in [
        "limits = [\"8/1h connections\"]",
        "limits = [\"8/1h connections\"]\nalgorithm = \"gcra\"",
        "limits = [\"8/1h connections\", \"1000/1h requests\"]",
        "limits = [\"8/1h connections\"]\nrefuse_with = \"reset\"",
    ] {
        let lab = Lab::new();
        let _web = web(&lab);
        let _daemon = start(&lab, rule);
        for opened in 1..=8 {
            assert!(asks_and_closes(&lab), "{rule}: {opened}");
            assert_eq!(banned(&lab), 0, "{rule}: {opened}");
        }
        assert!(!asks_and_closes(&lab), "{rule}");
        assert_eq!(banned(&lab), 1, "{rule}");
        assert_eq!(check(&lab)["reason"], "banned", "{rule}");
    }
}

#[test]
fn forged_syns_ban_no_source_that_has_opened_fewer_connections_than_its_limit() {
    needs_root!();
    // Three quarters of the limit, and one less than the limit.
    for opened in [6, 7] {
        let lab = Lab::new();
        let _web = web(&lab);
        let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
        let _daemon = start(&lab, "limits = [\"8/1h connections\"]");
        assert!((0..opened).all(|_| asks_and_closes(&lab)), "{opened}");
        let mut open = None;
        if opened < 7 {
            open = Some(lab.open(OWNER, 80));
        }
        flood(&lab, &sender, 100);
        assert!(number(&lab.stats(), "/reasons/over_limit") > 80, "{opened}");
        assert!(open.is_none_or(|mut open| is_answered(&mut open, HANGS_AFTER)), "{opened}");
        assert!(!asks_and_closes(&lab), "{opened}: what is forged uses up the limit");
        assert_eq!(banned(&lab), 0, "{opened}");
    }
}
