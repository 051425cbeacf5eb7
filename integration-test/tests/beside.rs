//! Tests of the limiter at TCX ingress, which it uses if another program has XDP or packets have no Ethernet header.
//! Verdicts, counters and lifecycle are the same.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, SERVICE_VLAN, V4, VLAN, tagged, tcp, udp_from};
use integration_test::lab::{CLIENTS, CLIENTS_V6, HANGS_AFTER, Lab, SERVER, assert_refused, binary, number, packets};
use integration_test::refused::start;
use netlab::{Child, PacketSocket, Tun, UdpCounter, needs_root};
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;

const KEPT: [&str; 6] = ["--limit", "3/1h", "--count", "connections", "--on-exit", "keep"];

fn hook_of(stats: &Value) -> (&Value, &Value) {
    (stats.pointer("/interfaces/0/hook").unwrap(), stats.pointer("/interfaces/0/xdp_mode").unwrap())
}

/// Returns what `doctor` sees at TCX of this interface.
fn at_tcx(lab: &Lab, interface: &str) -> String {
    let output = lab.ratelimitd(&["doctor", interface, "--json"]);
    let found: Value = serde_json::from_str(&output.stdout).unwrap();
    let checks = found["checks"].as_array().unwrap();
    let check = checks.iter().find(|of| of["id"] == "interface.tcx").unwrap();
    check["seen"].as_str().unwrap().to_owned()
}

#[test]
fn tcx_limits_through_kill_and_restart_beside_a_foreign_xdp_program() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    lab.attach_foreign("s0");
    let shown = lab.server.ip(&["link", "show", "dev", "s0"]).unwrap();
    let daemon = lab.limit(&KEPT);
    let said = daemon.child.stderr();
    assert!(said.contains("attached to s0 by TCX") && said.contains("350 ns"), "{said}");
    assert!(said.contains("s0 already has an XDP program"), "{said}");
    lab.assert_admitted(CLIENTS[0], 80, 3);
    lab.open(CLIENTS[1], 80);
    let stats = lab.stats();
    assert_eq!(hook_of(&stats), (&Value::from("tcx"), &Value::Null), "{stats:#}");
    let [received, passed, dropped, _] = packets(&stats);
    assert!(dropped > 0 && received == passed + dropped, "{stats:#}");
    let words = lab.ratelimitd(&["stats"]).stdout;
    assert!(words.contains("BY TCX on s0"), "{words}");
    assert!(at_tcx(&lab, "s0").contains("ratelimitd"));

    // The daemon is gone, and the filter is still there.
    assert_ne!(daemon.end(Signal::SIGKILL), 0);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 2);
    let daemon = lab.limit(&KEPT);
    assert_eq!(hook_of(&lab.stats()).0, "tcx");
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[2], 80, 3);
    // Only one daemon may limit an interface, at whichever hook.
    let elsewhere = lab.directory().join("other.sock");
    let refused = lab.ratelimitd(&["--iface", "s0", "--limit", "9/1h", "--socket", elsewhere.to_str().unwrap()]);
    assert_refused(&refused, 75, &["s0 already has", "ratelimitd"]);

    assert_eq!(daemon.end(Signal::SIGTERM), 0);
    lab.assert_blocked(CLIENTS[2], 80);
    let other_hook = lab.ratelimitd(&[&["--iface", "s0", "--hook", "xdp"][..], &KEPT].concat());
    assert_refused(&other_hook, 69, &["`--hook tcx` takes it over", "`ratelimitd detach s0`"]);
    assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    lab.open(CLIENTS[2], 80);
    assert_eq!(at_tcx(&lab, "s0"), "no TCX program for incoming packets");
    assert!(!lab.pins().exists());
    assert_eq!(lab.server.ip(&["link", "show", "dev", "s0"]).unwrap(), shown, "the foreign program is where it was");
}

#[test]
fn hook_xdp_on_a_taken_interface_is_refused_with_its_owner_and_a_remedy() {
    needs_root!();
    let lab = Lab::new();
    lab.attach_foreign("s0");
    let refused = lab.ratelimitd(&["--iface", "s0", "--limit", "3/1h", "--hook", "xdp"]);
    assert_refused(
        &refused,
        75,
        &["s0 already has an XDP program: ", "id ", "native", "`--hook auto` attaches beside it"],
    );
    assert_eq!(at_tcx(&lab, "s0"), "no TCX program for incoming packets");
}

#[test]
fn both_hooks_hold_one_count_and_what_ends_leaves_nothing() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    lab.connect_second_ends();
    lab.attach_foreign("s1");
    for on_exit in ["detach", "keep"] {
        let daemon = lab.start(
            &[&["--iface", "s0", "--iface", "s1", "--on-exit", on_exit][..], &KEPT[..4], &["--allow", "10.9.0.4"]]
                .concat(),
        );
        let stats = lab.stats();
        let hooks: Vec<_> = stats["interfaces"].as_array().unwrap().iter().map(|of| of["hook"].clone()).collect();
        assert_eq!(hooks, ["xdp", "tcx"]);
        lab.assert_admitted(CLIENTS[0], 80, 3);
        // A source is one client on all interfaces.
        let sender = PacketSocket::sender(&lab.client, "c1").unwrap();
        let source = CLIENTS[0].parse::<std::net::Ipv4Addr>().unwrap().octets();
        let syn = tagged(&[], IPV4, V4 { source, ..V4::of(TCP) }.around(tcp(80, 2)));
        sender.send(&syn).unwrap();
        let stats = lab.stats_once(|stats| number(stats, "/interfaces/1/packets/dropped") > 0);
        assert_eq!(number(&stats, "/interfaces/1/packets/dropped"), 1, "{stats:#}");
        assert_eq!(lab.ratelimitd(&["detach", "s1"]).code(), 0);
        assert_eq!(at_tcx(&lab, "s1"), "no TCX program for incoming packets");
        lab.assert_blocked(CLIENTS[0], 80);
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
        if on_exit == "keep" {
            assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
        }
        assert!(!lab.has_xdp("s0") && !lab.pins().exists());
    }
}

#[test]
fn packets_without_an_ethernet_header_are_limited_and_counted_to_the_byte() {
    needs_root!();
    let lab = Lab::new();
    let mut tun = Tun::new(&lab.server, "tun0", "192.0.2.1/24").unwrap();
    let heard = UdpCounter::start(&lab.server, "192.0.2.1:5000".parse().unwrap()).unwrap();
    let refused = lab.ratelimitd(&["--iface", "tun0", "--limit", "3/1h", "--hook", "xdp"]);
    assert_refused(&refused, 69, &["tun0", "no Ethernet header", "`--hook auto`"]);
    let _daemon = lab.start(&["--iface", "tun0", "--limit", "3/1h", "--count", "packets", "--port", "5000/udp"]);
    assert_eq!(hook_of(&lab.stats()).0, "tcx");
    // The second address reads as the type of an Ethernet frame, where a program looks for one.
    for source in [[192, 0, 2, 2], [8, 0, 0x45, 0]] {
        let packet = V4 { source, ..V4::of(UDP) }.around(udp_from(4000, 5000, [7; 100]));
        let before = packets(&lab.stats());
        for _ in 0..5 {
            tun.send(&packet).unwrap();
        }
        let stats = lab.stats_once(|stats| packets(stats)[0] == before[0] + 5);
        assert_eq!(packets(&stats)[2], before[2] + 2, "three pass, and two are over the limit: {stats:#}");
        assert_eq!(number(&stats, "/interfaces/0/bytes/received") % packet.len() as u64, 0);
    }
    let source: std::net::IpAddr = [192, 0, 2, 2].into();
    assert!(integration_test::lab::once(|| (heard.datagrams().get(&source) == Some(&3)).then_some(())).is_some());
}

#[test]
fn an_interface_without_a_header_that_comes_later_is_limited_too() {
    needs_root!();
    let lab = Lab::new();
    let file = lab.directory().join("ratelimitd.toml");
    let text = format!(
        "interfaces = [\"s0\", \"tun0\"]\nsocket = \"{}\"\n[rule]\nlimits = [\"3/1h packets\"]\nports = \"5000/udp\"\n",
        lab.socket().display()
    );
    fs::write(&file, text).unwrap();
    let mut command = lab.command(binary());
    command.args(["run", "--config"]).arg(&file);
    let daemon = Child::start(command).unwrap();
    daemon.wait_for_line("ratelimitd: up, but NOT PROTECTED: tun0 is not attached", HANGS_AFTER).unwrap();
    // At this time the daemon may load no more programs.
    let mut tun = Tun::new(&lab.server, "tun0", "192.0.2.1/24").unwrap();
    let stats = lab.stats_once(|stats| stats.pointer("/interfaces/1/attached").unwrap() == true);
    assert_eq!(stats.pointer("/interfaces/1/hook").unwrap(), "tcx");
    let packet = V4 { source: [192, 0, 2, 2], ..V4::of(UDP) }.around(udp_from(4000, 5000, [7; 100]));
    for _ in 0..5 {
        tun.send(&packet).unwrap();
    }
    let stats = lab.stats_once(|stats| number(stats, "/interfaces/1/packets/received") >= 5);
    assert_eq!(number(&stats, "/interfaces/1/packets/dropped"), 2, "{stats:#}");
}

#[test]
fn tags_that_the_stack_has_taken_off_are_seen() {
    needs_root!();
    let lab = Lab::quiet();
    let _daemon = lab.limit(&["--limit", "3/1h", "--count", "packets", "--port", "5000/udp", "--hook", "tcx"]);
    assert!(!lab.has_xdp("s0"), "it is asked for TCX, where XDP is free too");
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let counter = |stats: &Value, reason: &str, what: &str| -> u64 {
        let counters = stats["interfaces"][0]["counters"].as_array().unwrap();
        let of = counters.iter().filter(|of| of["reason"] == reason);
        of.map(|of| of[what].as_u64().unwrap()).sum()
    };
    let packet = |last: u8| V4 { source: [10, 9, 0, last], ..V4::of(UDP) }.around(udp_from(4000, 5000, [7; 100]));
    let mut sent = 0;
    for (last, tags) in [(20, &[(VLAN, 7)][..]), (21, &[(SERVICE_VLAN, 7), (VLAN, 8)])] {
        let frame = tagged(tags, IPV4, packet(last));
        let before = lab.stats();
        for _ in 0..5 {
            sender.send(&frame).unwrap();
        }
        sent += 5;
        let stats = lab.stats_once(|stats| packets(stats)[0] == sent);
        let grown = |reason, what| counter(&stats, reason, what) - counter(&before, reason, what);
        let long = frame.len() as u64;
        assert_eq!((grown("within_limit", "packets"), grown("over_limit", "packets")), (3, 2), "{tags:?}");
        assert_eq!(grown("within_limit", "bytes"), 3 * long, "with every tag");
    }
    sender.send(&tagged(&[(VLAN, 7), (VLAN, 8), (VLAN, 9)], IPV4, packet(22))).unwrap();
    let stats = lab.stats_once(|stats| packets(stats)[0] == sent + 1);
    assert_eq!(counter(&stats, "too_many_tags", "packets"), 1);
}

/// Reads everything on one connection, and returns the number of bytes.
fn sink(lab: &Lab, address: SocketAddr) -> thread::JoinHandle<u64> {
    let listener = lab.server.inside(|| Ok(TcpListener::bind(address)?)).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        let mut part = vec![0; 1 << 16];
        let mut all = 0;
        loop {
            match stream.read(&mut part).unwrap() {
                0 => return all,
                bytes => all += bytes as u64,
            }
        }
    })
}

#[test]
fn segments_that_travel_together_are_counted_as_the_packets_that_they_are() {
    needs_root!();
    const PAYLOAD: u64 = 4 << 20;
    /// Size of the headers of Ethernet, IPv4 or IPv6, and TCP with timestamps.
    const HEADERS: [u64; 2] = [14 + 20 + 32, 14 + 40 + 32];
    let lab = Lab::new();
    let _daemon = lab.limit(&["--limit", "1000000/1h", "--count", "packets", "--port", "9000", "--hook", "tcx"]);
    for (from, to, headers) in [(CLIENTS[0], SERVER[0], HEADERS[0]), (CLIENTS_V6[0], SERVER[1], HEADERS[1])] {
        let sink = sink(&lab, SocketAddr::new(to.parse().unwrap(), 9000));
        let before = (buffers(&lab), lab.stats());
        let mut stream = lab.open(from, 9000);
        stream.set_write_timeout(Some(HANGS_AFTER)).unwrap();
        stream.write_all(&vec![7; usize::try_from(PAYLOAD).unwrap()]).unwrap();
        drop(stream);
        assert_eq!(sink.join().unwrap(), PAYLOAD);
        let received = |stats: &Value| number(stats, "/interfaces/0/packets/received");
        let stats = lab.stats_once(|stats| received(stats) - received(&before.1) >= PAYLOAD / 1448);
        let after = (buffers(&lab), stats);
        let grown = |pointer| number(&after.1, pointer) - number(&before.1, pointer);
        let (packets, bytes) = (grown("/interfaces/0/packets/received"), grown("/interfaces/0/bytes/received"));
        let buffers = after.0 - before.0;
        println!("{PAYLOAD} bytes to {to}: {buffers} buffers, {packets} packets of {bytes} bytes");
        assert!(buffers * 4 < packets, "{buffers} buffers, {packets} packets: nothing was put together");
        // A few packets have no payload, or belong to another protocol. On a busy machine some buffers are sent twice,
        // and none is lost.
        let expected = PAYLOAD + packets * headers;
        let may_be = expected - PAYLOAD / 100..expected + PAYLOAD / 8;
        assert!(may_be.contains(&bytes), "{bytes} bytes in {packets} packets, not {expected}");
    }
}

/// Returns the number of buffers that `s0` has received.
fn buffers(lab: &Lab) -> u64 {
    let shown = lab.server.ip(&["-json", "-stats", "link", "show", "dev", "s0"]).unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    shown[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

#[test]
fn datagrams_that_travel_together_are_each_what_they_are_alone() {
    needs_root!();
    const SENDS: usize = 20;
    const TOGETHER: usize = 20;
    let initial = [&[0xc3, 0, 0, 0, 1, 8][..], &[7; 8], &[8], &[9; 8], &[0, 0x44, 0x90], &[1; 1200]].concat();
    // On a port without QUIC each datagram is a request. Eight QUIC Initials belong to one connection.
    for (port, rule, bytes, most) in [
        (53, "quic_ports = \"none\"\nlimits = [\"100/1h\"]", 40, 100),
        (443, "quic_ports = \"443\"\nlimits = [\"10/1h connections\"]", 1200, 80),
    ] {
        let lab = Lab::quiet();
        let rule = format!("ports = \"{port}/udp\"\n{rule}\nguard = \"off\"");
        let _daemon = start(&lab, "hook = \"tcx\"", "drop", &rule);
        let to = SocketAddr::new(SERVER[0].parse().unwrap(), port);
        let server = lab.server.inside(|| Ok(UdpSocket::bind(to)?)).unwrap();
        setsockopt(&server, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        let from = SocketAddr::new(CLIENTS[0].parse().unwrap(), 4433);
        let client = lab.client.inside(|| Ok(UdpSocket::bind(from)?)).unwrap();
        setsockopt(&client, sockopt::UdpGsoSegment, &i32::try_from(bytes).unwrap()).unwrap();
        let datagrams = initial[..bytes].repeat(TOGETHER);
        for _ in 0..SENDS {
            client.send_to(&datagrams, to).unwrap();
        }
        let all = u64::try_from(SENDS * TOGETHER).unwrap();
        let stats = lab.stats_once(|stats| packets(stats)[0] >= all);
        assert_eq!(packets(&stats)[1] + packets(&stats)[2], packets(&stats)[0], "{stats:#}");
        server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let received = std::iter::from_fn(|| server.recv(&mut [0; 2048]).ok()).count();
        assert!((most / 2..=most).contains(&received), "{port}: {received} of {all}, {most} are admitted");
    }
}
