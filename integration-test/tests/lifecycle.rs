//! Tests of the binary's start and end, and of what it refuses.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::time::Duration;

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, frame, tcp, v4};
use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, ask, assert_refused, binary, packets};
use netlab::{Child, PacketSocket, needs_root};
use nix::sys::signal::Signal;

const STARTS_WITHIN: Duration = Duration::from_secs(30);
const KEEP: [&str; 6] = ["--limit", "3/1h", "--count", "connections", "--on-exit", "keep"];

#[test]
fn a_signal_ends_it_orderly_and_takes_the_filter_off() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let daemon = lab.limit(&["--limit", "1/1h", "--count", "connections"]);
        assert!(lab.has_xdp("s0"));
        lab.assert_admitted(CLIENTS[0], 80, 1);
        assert_eq!(daemon.end(signal), 0);
        assert!(!lab.has_xdp("s0"));
        assert!(!lab.socket().exists());
        lab.open(CLIENTS[0], 80);
    }
}

#[test]
fn a_killed_daemon_that_keeps_nothing_leaves_nothing() {
    needs_root!();
    let lab = Lab::new();
    lab.limit(&["--limit", "1/1h", "--count", "connections"]).kill();
    assert!(!lab.has_xdp("s0"));
    assert_refused(&lab.ratelimitd(&["stats"]), 69, &["no daemon answers"]);
    drop(lab.limit(&["--limit", "1/1h", "--count", "connections"]));
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    needs_root!();
    let lab = Lab::new();
    lab.connect_second_ends();
    let _web = lab.web();
    let _daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let elsewhere = lab.directory().join("other.sock");
    let elsewhere = elsewhere.to_str().unwrap();
    let same_socket = lab.ratelimitd(&["--iface", "s1", "--limit", "9/1h"]);
    assert_refused(&same_socket, 75, &["control.sock"]);
    let same_pins = lab.ratelimitd(&["--iface", "s1", "--limit", "9/1h", "--on-exit", "keep", "--socket", elsewhere]);
    assert_refused(&same_pins, 75, &["belongs to another running ratelimitd"]);
    let same_interface = lab.ratelimitd(&["--iface", "s0", "--limit", "9/1h", "--socket", elsewhere]);
    assert_refused(&same_interface, 75, &["s0 already has an XDP program"]);
    assert!(!lab.has_xdp("s1"));
    lab.assert_blocked(CLIENTS[0], 80);
    assert_eq!(lab.stats().pointer("/rules/0/limits/0/amount").unwrap(), 3);
}

#[test]
fn an_interface_of_another_daemon_is_refused_with_the_detach_command() {
    needs_root!();
    let lab = Lab::new();
    let elsewhere = lab.directory().join("other.sock");
    let elsewhere = elsewhere.to_str().unwrap();
    let first = lab.limit(&["--limit", "3/1h", "--count", "connections", "--socket", elsewhere]);
    let second = lab.ratelimitd(&["--iface", "s0", "--limit", "9/1h"]);
    assert_refused(&second, 75, &["s0 already has an XDP program", "`ratelimitd detach --socket PATH s0`"]);
    assert!(!second.stderr.contains("the tool that put it there"), "{}", second.stderr);
    assert_eq!(lab.ratelimitd(&["detach", "--socket", elsewhere, "s0"]).code(), 0);
    drop(first);
    drop(lab.limit(&["--limit", "9/1h", "--count", "connections"]));
}

#[test]
fn a_program_that_is_not_ours_is_left_where_it_is() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    lab.attach_foreign("s0");
    let shown = lab.server.ip(&["link", "show", "dev", "s0"]).unwrap();
    for mode in ["auto", "native", "generic"] {
        let asked = ["--iface", "s0", "--limit", "9/1h", "--hook", "xdp", "--xdp-mode", mode];
        let refused = lab.ratelimitd(&asked);
        assert_refused(&refused, 75, &["s0 already has an XDP program", "id ", "the tool that put it there"]);
        let kept = lab.ratelimitd(&[&asked[..], &["--on-exit", "keep"]].concat());
        assert_refused(&kept, 75, &["s0 already has an XDP program"]);
    }
    assert_eq!(lab.server.ip(&["link", "show", "dev", "s0"]).unwrap(), shown);
    assert!(!lab.pins().exists(), "a start that is refused leaves no pins");
    lab.open(CLIENTS[0], 80);
}

#[test]
fn an_interface_that_was_deleted_is_said_so_and_protected_again_when_it_is_back() {
    needs_root!();
    let lab = Lab::new();
    let web = lab.web();
    for keep in ["detach", "keep"] {
        let daemon =
            lab.limit(&["--limit", "2/1h", "--count", "connections", "--listen", "127.0.0.1:9464", "--on-exit", keep]);
        let health = || {
            let address = "127.0.0.1:9464".parse().unwrap();
            let mut stream = lab
                .server
                .inside(|| Ok(std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5))?))
                .unwrap();
            ask(&mut stream, "/healthz")
        };
        assert!(health().starts_with("HTTP/1.1 200"), "{}", health());
        lab.open(CLIENTS[0], 80);
        lab.client.ip(&["link", "del", "c0"]).unwrap();
        lab.stats_once(|stats| stats.pointer("/interfaces/0/attached").unwrap() == false);
        let unwell = health();
        assert!(unwell.starts_with("HTTP/1.1 503") && unwell.contains("s0"), "{unwell}");
        lab.connect_ends();
        let stats = lab.stats_once(|stats| stats.pointer("/interfaces/0/attached").unwrap() == true);
        assert_eq!(stats.pointer("/interfaces/0/xdp_mode").unwrap(), "native", "{stats:#}");
        assert!(health().starts_with("HTTP/1.1 200"), "{}", health());
        lab.assert_admitted(CLIENTS[0], 80, 1);
        assert!(daemon.child.stderr().contains("protected again"), "{}", daemon.child.stderr());
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
    }
    drop(web);
}

#[test]
fn a_renamed_interface_is_reported_gone_and_protected_when_named_back() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    for keep in ["detach", "keep"] {
        let daemon = lab.limit(&["--limit", "2/1h", "--count", "connections", "--on-exit", keep]);
        let is_attached = |stats: &serde_json::Value| stats.pointer("/interfaces/0/attached").unwrap() == true;
        lab.rename("s0", "s9.100");
        lab.stats_once(|stats| !is_attached(stats));
        daemon.child.wait_for_line("NOT PROTECTED: s0", HANGS_AFTER).unwrap();
        lab.rename("s9.100", "s0");
        lab.stats_once(is_attached);
        lab.assert_admitted(CLIENTS[0], 80, 2);
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
        assert_eq!(lab.has_xdp("s0"), keep == "keep");
    }
}

#[test]
fn an_interface_that_is_not_there_is_answered_with_those_that_are() {
    needs_root!();
    let lab = Lab::new();
    for keep in ["detach", "keep"] {
        let refused = lab.ratelimitd(&["--iface", "s7", "--limit", "3/1h", "--on-exit", keep]);
        assert_refused(&refused, 2, &["no interface s7", "lo", "s0"]);
    }
    // One of two interfaces does not exist. Nothing is left on the other one.
    let refused = lab.ratelimitd(&["--iface", "s0", "--iface", "s7", "--limit", "3/1h", "--on-exit", "keep"]);
    assert_refused(&refused, 2, &["no interface s7"]);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
}

/// Starts the daemon as a service on s0 and s1, with a configuration file.
fn service(lab: &Lab, limit: &str) -> Child {
    let path = lab.directory().join("ratelimitd.toml");
    let text = format!(
        "interfaces = [\"s0\", \"s1\"]\nsocket = \"{}\"\non_exit = \"keep\"\n[rule]\nlimits = [\"{limit} connections\"]\n",
        lab.socket().display()
    );
    fs::write(&path, text).unwrap();
    let mut command = lab.command(binary());
    command.args(["run", "--config"]).arg(&path);
    Child::start(command).unwrap()
}

#[test]
fn a_service_protects_what_is_there_and_attaches_to_what_was_missing_when_it_comes() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let up = "ratelimitd: up, but NOT PROTECTED: s1 is not attached";
    let daemon = service(&lab, "3/1h");
    daemon.wait_for_line(up, STARTS_WITHIN).unwrap();
    let said = daemon.stderr();
    assert!(
        said.contains("NOT PROTECTED: no interface s1; there are lo, ") && said.contains("when it comes"),
        "{said}"
    );
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let stats = lab.ratelimitd(&["stats"]).stdout;
    for words in ["dropped on s0; NOT PROTECTED: s1 not attached\n", "s1 IS NOT ATTACHED: no interface s1; there are"] {
        assert!(stats.contains(words), "no {words:?} in: {stats}");
    }
    // Killed and started again while s1 is still missing. The filter is taken over with its counts.
    daemon.signal(Signal::SIGKILL).unwrap();
    let mut killed = daemon;
    killed.wait(Duration::from_secs(5)).unwrap();
    let mut daemon = service(&lab, "4/1h");
    daemon.wait_for_line(up, STARTS_WITHIN).unwrap();
    lab.assert_admitted(CLIENTS[0], 80, 1);

    lab.connect_second_ends();
    lab.stats_once(|stats| stats.pointer("/interfaces/1/attached").unwrap() == true);
    daemon.wait_for_line("s1 has come and is protected now", Duration::from_secs(5)).unwrap();
    assert!(lab.has_xdp("s1"));
    daemon.signal(Signal::SIGTERM).unwrap();
    assert_eq!(daemon.wait(Duration::from_secs(5)).unwrap().code(), Some(0));
    assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    assert!(!lab.has_xdp("s0") && !lab.has_xdp("s1"));
}

#[test]
fn a_service_that_has_none_of_its_interfaces_waits_and_is_not_healthy() {
    needs_root!();
    let lab = Lab::new();
    lab.rename("s0", "s9");
    let mut daemon = service(&lab, "3/1h");
    daemon.wait_for_line("ratelimitd: up, but NOT PROTECTED: s0 is not attached", STARTS_WITHIN).unwrap();
    let stats = lab.stats();
    let attached: Vec<_> = stats["interfaces"].as_array().unwrap().iter().map(|of| of["attached"].clone()).collect();
    assert_eq!(attached, [false, false]);
    assert!(lab.ratelimitd(&["stats"]).stdout.contains(": NOT PROTECTED: s0, s1 not attached"));
    lab.rename("s9", "s0");
    lab.stats_once(|stats| stats.pointer("/interfaces/0/attached").unwrap() == true);
    let _web = lab.web();
    lab.assert_admitted(CLIENTS[0], 80, 3);
    assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    assert_eq!(daemon.wait(Duration::from_secs(5)).unwrap().code(), Some(0));
}

#[test]
fn without_privileges_it_says_what_it_needs() {
    needs_root!();
    let lab = Lab::new();
    // Nobody cannot enter the binary's directory, so the binary is copied.
    let copy = std::env::temp_dir().join(format!("{}ratelimitd", lab.server.name()));
    fs::copy(binary(), &copy).unwrap();
    let socket = format!("{}.sock", copy.display());
    let mut command = lab.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
    command.args(["--iface", "s0", "--limit", "3/1h", "--count", "connections", "--socket", &socket]);
    let output = integration_test::lab::run(command);
    fs::remove_file(&copy).unwrap();
    assert_refused(&output, 77, &["root"]);
}

#[test]
fn an_interface_without_an_ethernet_header_is_refused_at_xdp_and_left_alone() {
    needs_root!();
    let lab = Lab::new();
    for (mode, name) in [("tun", "tun0"), ("tap", "tap0")] {
        lab.server.ip(&["tuntap", "add", name, "mode", mode]).unwrap();
    }
    for iface in [&["--iface", "tun0"][..], &["--iface", "s0", "--iface", "tun0"]] {
        let refused = lab.ratelimitd(&[iface, &["--limit", "3/1h", "--hook", "xdp"]].concat());
        assert_refused(&refused, 69, &["tun0", "no Ethernet header", "`--hook auto` limits it"]);
        assert!(!lab.has_xdp("tun0") && !lab.has_xdp("s0"));
    }
    let _daemon = lab.start(&["--iface", "tap0", "--limit", "3/1h", "--count", "connections"]);
    assert!(lab.has_xdp("tap0"));
}

#[test]
fn a_device_without_native_xdp_is_said_to_be_slow_or_refused() {
    needs_root!();
    let lab = Lab::new();
    lab.server.ip(&["link", "add", "br0", "type", "bridge"]).unwrap();
    lab.server.ip(&["link", "set", "br0", "up"]).unwrap();
    let refused = lab.ratelimitd(&["--iface", "br0", "--limit", "3/1h", "--xdp-mode", "native"]);
    assert_refused(&refused, 69, &["br0", "no native XDP"]);
    let daemon = lab.start(&["--iface", "br0", "--limit", "3/1h", "--count", "connections"]);
    let said = daemon.child.stderr();
    assert_eq!(said.matches("GENERIC").count(), 1, "{said}");
    assert!(said.contains("no native XDP"), "why it is generic: {said}");
    assert_eq!(lab.stats().pointer("/interfaces/0/xdp_mode").unwrap(), "generic");
}

#[test]
fn generic_mode_limits_as_native_does() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = lab.limit(&["--limit", "3/1h", "--count", "connections", "--xdp-mode", "generic"]);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    lab.open(CLIENTS[1], 80);
}

#[test]
fn jumbo_frames_are_no_reason_to_give_up_native_mode() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    for (namespace, interface) in [(&lab.client, "c0"), (&lab.server, "s0")] {
        namespace.ip(&["link", "set", interface, "mtu", "9000"]).unwrap();
    }
    let _daemon = lab.limit(&["--limit", "3/1h", "--count", "connections", "--xdp-mode", "native"]);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let long = [v4(TCP, tcp(80, SYN)), vec![0; 8000]].concat();
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let before = packets(&lab.stats())[0];
    sender.send(&frame(IPV4, long)).unwrap();
    lab.stats_once(|stats| packets(stats)[0] > before);
}
