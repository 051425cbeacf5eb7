//! How the binary starts, ends, is killed and is started again: what goes on being enforced, and what is refused.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, frame, tcp, v4};
use integration_test::is_skipped;
use integration_test::lab::{CLIENTS, Daemon, Lab, SERVER, ask, binary, heard, number, packets};
use netlab::{HttpServer, Output, PacketSocket};
use nix::sys::signal::Signal;

const KEEP: [&str; 4] = ["--limit", "3/1h", "--on-exit", "keep"];

fn web(lab: &Lab) -> HttpServer {
    HttpServer::start(&lab.server, format!("{}:80", SERVER[0]).parse().unwrap()).unwrap()
}

fn syn() -> Vec<u8> {
    frame(IPV4, v4(TCP, tcp(80, SYN)))
}

fn kill(daemon: Daemon) {
    assert_eq!(daemon.end(Signal::SIGKILL), -1);
}

/// A command failed with this code, and said all of this.
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    assert_eq!(output.code(), code, "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "no {word:?} in: {}", output.stderr);
    }
}

#[test]
fn a_signal_ends_it_orderly_and_takes_the_filter_off() {
    if is_skipped("a_signal_ends_it_orderly_and_takes_the_filter_off") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let daemon = lab.limit(&["--limit", "1/1h"]);
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
    if is_skipped("a_killed_daemon_that_keeps_nothing_leaves_nothing") {
        return;
    }
    let lab = Lab::new();
    kill(lab.limit(&["--limit", "1/1h"]));
    assert!(!lab.has_xdp("s0"));
    assert_refused(&lab.ratelimitd(&["stats"]), 69, &["no daemon answers"]);
    drop(lab.limit(&["--limit", "1/1h"]));
}

#[test]
fn a_killed_daemon_leaves_its_filter_enforcing_and_the_next_one_its_counts() {
    if is_skipped("a_killed_daemon_leaves_its_filter_enforcing_and_the_next_one_its_counts") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    lab.open(CLIENTS[1], 80);
    let before = lab.stats();
    kill(daemon);
    assert!(lab.has_xdp("s0"));
    lab.assert_blocked(CLIENTS[0], 80);
    assert_refused(&lab.ratelimitd(&["stats"]), 69, &["no daemon answers", "goes on enforcing", "ratelimitd detach"]);

    let daemon = lab.limit(&KEEP);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 2);
    let after = lab.stats();
    let dropped = |stats| number(stats, "/rules/0/dropped");
    assert!(dropped(&after) > dropped(&before), "the counters go on: {before:#} {after:#}");
    // Orderly too it is kept.
    assert_eq!(daemon.end(Signal::SIGTERM), 0);
    assert!(lab.has_xdp("s0"));
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn no_packet_slips_through_while_the_daemon_is_killed_and_another_build_takes_over() {
    if is_skipped("no_packet_slips_through_while_the_daemon_is_killed_and_another_build_takes_over") {
        return;
    }
    let lab = Lab::quiet();
    let copy = lab.directory().join("ratelimitd-new");
    fs::copy(binary(), &copy).unwrap();
    let arguments = [&["--iface", "s0"][..], &KEEP].concat();
    let mut daemon = lab.start(&arguments);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    (0..10).for_each(|_| sender.send(&syn()).unwrap());
    lab.stats_once(|stats| packets(stats) == [10, 3, 7, 0]);
    let listener = PacketSocket::listener(&lab.server, "s0").unwrap();
    let (is_over, mut sent) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let mut sent: u64 = 0;
            while !is_over.load(Ordering::Relaxed) {
                sender.send(&syn()).unwrap();
                sent += 1;
                if sent.is_multiple_of(16) {
                    thread::sleep(Duration::from_micros(200));
                }
            }
            sent
        });
        for build in [&copy, &binary(), &copy] {
            daemon.child.signal(Signal::SIGKILL).unwrap();
            daemon.child.wait(Duration::from_secs(5)).unwrap();
            daemon = lab.start_copy(build, &arguments);
        }
        is_over.store(true, Ordering::Relaxed);
        sent = flow.join().unwrap();
    });
    let stats = lab.stats_once(|stats| packets(stats)[0] == sent + 10);
    assert_eq!(packets(&stats), [sent + 10, 3, sent + 7, 0], "{stats:#}");
    assert_eq!(heard(&listener), 0, "of {sent}");
    assert!(sent > 1000, "only {sent} were sent");
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    if is_skipped("a_second_daemon_is_refused_and_the_first_goes_on") {
        return;
    }
    let lab = Lab::new();
    lab.connect_second_ends();
    let _web = web(&lab);
    let _daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let elsewhere = lab.directory().join("other.sock");
    let elsewhere = elsewhere.to_str().unwrap();
    let same_socket = lab.ratelimitd(&["--iface", "s1", "--limit", "9/1h"]);
    assert_refused(&same_socket, 75, &["control.sock"]);
    let same_pins = lab.ratelimitd(&["--iface", "s1", "--limit", "9/1h", "--on-exit", "keep", "--socket", elsewhere]);
    assert_refused(&same_pins, 75, &["belongs to another ratelimitd"]);
    let same_interface = lab.ratelimitd(&["--iface", "s0", "--limit", "9/1h", "--socket", elsewhere]);
    assert_refused(&same_interface, 75, &["s0 already has an XDP program"]);
    assert!(!lab.has_xdp("s1"));
    lab.assert_blocked(CLIENTS[0], 80);
    assert_eq!(lab.stats().pointer("/rules/0/limits/0/amount").unwrap(), 3);
}

#[test]
fn a_program_that_is_not_ours_is_left_where_it_is() {
    if is_skipped("a_program_that_is_not_ours_is_left_where_it_is") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    lab.attach_foreign("s0");
    let shown = lab.server.ip(&["link", "show", "dev", "s0"]).unwrap();
    for mode in ["auto", "native", "generic"] {
        let refused = lab.ratelimitd(&["--iface", "s0", "--limit", "9/1h", "--xdp-mode", mode]);
        assert_refused(&refused, 75, &["s0 already has an XDP program", "id "]);
        let kept = lab.ratelimitd(&["--iface", "s0", "--limit", "9/1h", "--xdp-mode", mode, "--on-exit", "keep"]);
        assert_refused(&kept, 75, &["s0 already has an XDP program"]);
    }
    assert_eq!(lab.server.ip(&["link", "show", "dev", "s0"]).unwrap(), shown);
    assert!(!lab.pins().exists(), "a start that is refused leaves no pins");
    lab.open(CLIENTS[0], 80);
}

#[test]
fn an_interface_that_was_deleted_is_said_so_and_protected_again_when_it_is_back() {
    if is_skipped("an_interface_that_was_deleted_is_said_so_and_protected_again_when_it_is_back") {
        return;
    }
    let lab = Lab::new();
    let web = web(&lab);
    for keep in ["detach", "keep"] {
        let daemon = lab.limit(&["--limit", "2/1h", "--listen", "127.0.0.1:9464", "--on-exit", keep]);
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
fn a_start_that_fails_leaves_what_an_earlier_run_keeps_as_it_was() {
    if is_skipped("a_start_that_fails_leaves_what_an_earlier_run_keeps_as_it_was") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    lab.connect_second_ends();
    // One that is tried before s0, one after it.
    for bridge in ["a0", "z0"] {
        lab.server.ip(&["link", "add", bridge, "type", "bridge"]).unwrap();
    }
    let daemon = lab.limit(&KEEP);
    lab.open(CLIENTS[0], 80);
    lab.open(CLIENTS[0], 80);
    let before = packets(&lab.stats())[0];
    kill(daemon);
    let shown = lab.server.ip(&["link", "show", "dev", "s0"]).unwrap();

    let other = ["--iface", "s0", "--limit", "9/1h", "--port", "81", "--allow", CLIENTS[2], "--on-exit", "keep"];
    for refusing in ["a0", "z0"] {
        let refused = lab.ratelimitd(&[&other[..], &["--iface", refusing, "--xdp-mode", "native"]].concat());
        assert_refused(&refused, 69, &[refusing, "no native XDP"]);
    }
    let refused = lab.ratelimitd(&[&other[..], &["--iface", "s1", "--iface", "z0", "--xdp-mode", "native"]].concat());
    assert_refused(&refused, 69, &["z0"]);
    assert!(!lab.has_xdp("s1"), "what had been attached anew is taken off again");
    lab.attach_foreign("s1");
    let refused = lab.ratelimitd(&[&other[..], &["--iface", "s1"]].concat());
    assert_refused(&refused, 75, &["s1 already has an XDP program"]);

    assert_eq!(lab.server.ip(&["link", "show", "dev", "s0"]).unwrap(), shown, "the program is the one it was");
    lab.assert_admitted(CLIENTS[0], 80, 1);
    lab.assert_admitted(CLIENTS[1], 80, 3);
    lab.assert_admitted(CLIENTS[2], 80, 3);
    let _daemon = lab.limit(&KEEP);
    lab.assert_blocked(CLIENTS[0], 80);
    let after = packets(&lab.stats())[0];
    // Seven handshakes, and four refusals.
    assert!(after >= before + 7 * 2 + 4, "packets while no daemon ran are counted: {before}, {after}");
}

fn rename(lab: &Lab, from: &str, to: &str) {
    lab.server.ip(&["link", "set", from, "down"]).unwrap();
    lab.server.ip(&["link", "set", from, "name", to]).unwrap();
    lab.server.ip(&["link", "set", to, "up"]).unwrap();
}

/// Interfaces in the statistics, with what each has received.
fn received(stats: &serde_json::Value) -> Vec<(String, u64)> {
    let interfaces = stats.pointer("/interfaces").unwrap().as_array().unwrap();
    let row = |of: &serde_json::Value| (of["name"].as_str().unwrap().to_owned(), number(of, "/packets/received"));
    interfaces.iter().map(row).collect()
}

#[test]
fn an_interface_that_is_renamed_while_no_daemon_runs_is_taken_over_under_its_new_name() {
    if is_skipped("an_interface_that_is_renamed_while_no_daemon_runs_is_taken_over_under_its_new_name") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    lab.connect_second_ends();
    let daemon = lab.start(&[&["--iface", "s0", "--iface", "s1"], &KEEP[..]].concat());
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let before = received(&lab.stats());
    kill(daemon);
    // They change names, so that the pin of each has the name of the other.
    for (from, to) in [("s0", "aside"), ("s1", "s0"), ("aside", "s1")] {
        rename(&lab, from, to);
    }
    let daemon = lab.start(&[&["--iface", "s0", "--iface", "s1"], &KEEP[..]].concat());
    lab.assert_blocked(CLIENTS[0], 80);
    let after = received(&lab.stats());
    assert!(after[0].0 == "s0" && after[0].1 < before[0].1, "s1 was not counted much: {before:?} {after:?}");
    assert!(after[1].0 == "s1" && after[1].1 > before[0].1, "the counts go with the interface: {before:?} {after:?}");
    kill(daemon);
    lab.assert_blocked(CLIENTS[0], 80);

    rename(&lab, "s1", "s9");
    let refused = lab.ratelimitd(&["--iface", "s9", "--limit", "9/1h"]);
    assert_refused(&refused, 75, &["s9 already has an XDP program", "ratelimitd's own"]);
    let daemon = lab.start(&[&["--iface", "s9"], &KEEP[..]].concat());
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 3);
    assert_eq!(received(&lab.stats()).len(), 1);
    assert!(!lab.has_xdp("s0"), "what is not wanted any more is let go");
    kill(daemon);
    let detached = lab.ratelimitd(&["detach", "s9"]);
    assert_eq!(detached.code(), 0, "{}", detached.stderr);
    assert!(!lab.has_xdp("s9") && !lab.pins().exists());
}

#[test]
fn an_interface_that_has_the_index_of_one_that_is_gone_begins_to_count_anew() {
    if is_skipped("an_interface_that_has_the_index_of_one_that_is_gone_begins_to_count_anew") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    kill(daemon);
    let shown = lab.server.ip(&["-o", "link", "show", "dev", "s0"]).unwrap();
    let index = shown.split(':').next().unwrap().to_owned();
    lab.client.ip(&["link", "del", "c0"]).unwrap();
    lab.server.ip(&["link", "add", "s9", "index", &index, "type", "veth", "peer", "name", "s8"]).unwrap();
    let _daemon = lab.start(&[&["--iface", "s9"], &KEEP[..]].concat());
    assert_eq!(received(&lab.stats()), [("s9".to_owned(), 0)]);
}

#[test]
fn an_interface_that_is_renamed_is_said_to_be_gone_and_protected_again_when_it_has_its_name_back() {
    if is_skipped("an_interface_that_is_renamed_is_said_to_be_gone_and_protected_again_when_it_has_its_name_back") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    for keep in ["detach", "keep"] {
        let daemon = lab.limit(&["--limit", "2/1h", "--on-exit", keep]);
        let is_attached = |stats: &serde_json::Value| stats.pointer("/interfaces/0/attached").unwrap() == true;
        rename(&lab, "s0", "s9");
        lab.stats_once(|stats| !is_attached(stats));
        daemon.child.wait_for_line("NOT PROTECTED: s0", Duration::from_secs(5)).unwrap();
        rename(&lab, "s9", "s0");
        lab.stats_once(is_attached);
        lab.assert_admitted(CLIENTS[0], 80, 2);
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
        assert_eq!(lab.has_xdp("s0"), keep == "keep");
    }
}

#[test]
fn pins_of_another_layout_are_refused_and_go_on_enforcing() {
    if is_skipped("pins_of_another_layout_are_refused_and_go_on_enforcing") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    kill(daemon);
    let directory = fs::read_dir(lab.pins()).unwrap().next().unwrap().unwrap().path();
    let arguments = [&["--iface", "s0"][..], &KEEP].concat();

    // A map that has another's name.
    let (sources, aside) = (directory.join("SOURCES_V4"), directory.join("SOURCES_V4_REAL"));
    fs::rename(&sources, &aside).unwrap();
    fs::rename(directory.join("FAULTS"), &sources).unwrap();
    assert_refused(&lab.ratelimitd(&arguments), 69, &["SOURCES_V4"]);
    lab.assert_blocked(CLIENTS[0], 80);
    fs::rename(&sources, directory.join("FAULTS")).unwrap();
    fs::rename(&aside, &sources).unwrap();

    // A directory of another version.
    let other = lab.pins().join("v999");
    fs::rename(&directory, &other).unwrap();
    assert_refused(&lab.ratelimitd(&arguments), 69, &["v999"]);
    assert!(lab.has_xdp("s0"));
    lab.assert_blocked(CLIENTS[0], 80);
    assert_refused(&lab.ratelimitd(&["--iface", "s0", "--limit", "3/1h"]), 75, &["s0", "another version", "v999"]);

    // What fits is taken over.
    assert!(!directory.exists(), "a start that is refused leaves no pins");
    fs::rename(&other, &directory).unwrap();
    let _daemon = lab.start(&arguments);
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn detach_takes_the_filter_off_with_a_daemon_and_without() {
    if is_skipped("detach_takes_the_filter_off_with_a_daemon_and_without") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let mut daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let detached = lab.ratelimitd(&["detach"]);
    assert_eq!((detached.code(), detached.stdout.contains("s0")), (0, true), "{}", detached.stderr);
    assert_eq!(daemon.child.wait(Duration::from_secs(5)).unwrap().code(), Some(0));
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
    lab.open(CLIENTS[0], 80);

    kill(lab.limit(&KEEP));
    assert!(lab.has_xdp("s0"));
    let detached = lab.ratelimitd(&["detach", "s0"]);
    assert_eq!((detached.code(), detached.stdout.contains("s0")), (0, true), "{}", detached.stderr);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
    assert_refused(&lab.ratelimitd(&["detach"]), 69, &["no daemon answers"]);

    // The way that needs no program of ours.
    kill(lab.limit(&KEEP));
    fs::remove_dir_all(lab.pins()).unwrap();
    assert!(!lab.has_xdp("s0"));
}

#[test]
fn detach_by_a_wrong_socket_is_refused_while_a_daemon_runs() {
    if is_skipped("detach_by_a_wrong_socket_is_refused_while_a_daemon_runs") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let elsewhere = lab.directory().join("other.sock");
    for interface in [&["s0"][..], &[]] {
        let refused = lab.ratelimitd(&[&["detach", "--socket", elsewhere.to_str().unwrap()], interface].concat());
        assert_refused(&refused, 75, &["belongs to another ratelimitd", "--socket PATH"]);
    }
    kill(daemon);
    lab.assert_blocked(CLIENTS[0], 80);
    assert_eq!(lab.ratelimitd(&["detach", "--socket", elsewhere.to_str().unwrap()]).code(), 0);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
}

#[test]
fn an_interface_that_is_not_there_is_answered_with_those_that_are() {
    if is_skipped("an_interface_that_is_not_there_is_answered_with_those_that_are") {
        return;
    }
    let lab = Lab::new();
    for keep in ["detach", "keep"] {
        let refused = lab.ratelimitd(&["--iface", "s7", "--limit", "3/1h", "--on-exit", keep]);
        assert_refused(&refused, 2, &["no interface s7", "lo", "s0"]);
    }
    // One of two that cannot be had: nothing is left on the other.
    let refused = lab.ratelimitd(&["--iface", "s0", "--iface", "s7", "--limit", "3/1h", "--on-exit", "keep"]);
    assert_refused(&refused, 2, &["no interface s7"]);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
}

#[test]
fn without_privileges_it_says_what_it_needs() {
    if is_skipped("without_privileges_it_says_what_it_needs") {
        return;
    }
    let lab = Lab::new();
    // As nobody, who may go where the binary lies only if it is copied there.
    let copy = std::env::temp_dir().join(format!("{}ratelimitd", lab.server.name()));
    fs::copy(binary(), &copy).unwrap();
    let socket = format!("{}.sock", copy.display());
    let mut command = lab.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
    command.args(["--iface", "s0", "--limit", "3/1h", "--socket", &socket]);
    let output = integration_test::lab::run(command);
    fs::remove_file(&copy).unwrap();
    assert_refused(&output, 77, &["root"]);
}

#[test]
fn a_device_without_native_xdp_is_said_to_be_slow_or_refused() {
    if is_skipped("a_device_without_native_xdp_is_said_to_be_slow_or_refused") {
        return;
    }
    let lab = Lab::new();
    lab.server.ip(&["link", "add", "br0", "type", "bridge"]).unwrap();
    lab.server.ip(&["link", "set", "br0", "up"]).unwrap();
    let refused = lab.ratelimitd(&["--iface", "br0", "--limit", "3/1h", "--xdp-mode", "native"]);
    assert_refused(&refused, 69, &["br0", "no native XDP"]);
    let daemon = lab.start(&["--iface", "br0", "--limit", "3/1h"]);
    let said = daemon.child.stderr();
    assert_eq!(said.matches("GENERIC").count(), 1, "{said}");
    assert!(said.contains("no native XDP"), "why it is generic: {said}");
    assert_eq!(lab.stats().pointer("/interfaces/0/xdp_mode").unwrap(), "generic");
}

#[test]
fn generic_mode_limits_as_native_does() {
    if is_skipped("generic_mode_limits_as_native_does") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    let _daemon = lab.limit(&["--limit", "3/1h", "--xdp-mode", "generic"]);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    lab.open(CLIENTS[1], 80);
}

#[test]
fn a_kept_filter_in_another_mode_than_asked_for_is_refused_and_goes_on() {
    if is_skipped("a_kept_filter_in_another_mode_than_asked_for_is_refused_and_goes_on") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    for (kept, asked, client) in [("generic", "native", CLIENTS[0]), ("native", "generic", CLIENTS[1])] {
        kill(lab.limit(&[&KEEP[..], &["--xdp-mode", kept]].concat()));
        lab.assert_admitted(client, 80, 3);
        let start = ["--iface", "s0", "--limit", "9/1h", "--on-exit", "keep", "--xdp-mode"];
        let refused = lab.ratelimitd(&[&start[..], &[asked]].concat());
        assert_refused(&refused, 69, &["s0", kept, asked, "ratelimitd detach s0"]);
        lab.assert_blocked(client, 80);
        for agreeing in [kept, "auto"] {
            let daemon = lab.limit(&[&KEEP[..], &["--xdp-mode", agreeing]].concat());
            assert_eq!(lab.stats().pointer("/interfaces/0/xdp_mode").unwrap(), kept);
            lab.assert_blocked(client, 80);
            kill(daemon);
        }
        assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    }
}

#[test]
fn jumbo_frames_are_no_reason_to_give_up_native_mode() {
    if is_skipped("jumbo_frames_are_no_reason_to_give_up_native_mode") {
        return;
    }
    let lab = Lab::new();
    let _web = web(&lab);
    for (namespace, interface) in [(&lab.client, "c0"), (&lab.server, "s0")] {
        namespace.ip(&["link", "set", interface, "mtu", "9000"]).unwrap();
    }
    let _daemon = lab.limit(&["--limit", "3/1h", "--xdp-mode", "native"]);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let long = [v4(TCP, tcp(80, SYN)), vec![0; 8000]].concat();
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let before = packets(&lab.stats())[0];
    sender.send(&frame(IPV4, long)).unwrap();
    lab.stats_once(|stats| packets(stats)[0] > before);
}
