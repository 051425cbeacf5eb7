//! Tests of state from an earlier run: enforcement without a daemon, and the next daemon's use of the state.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, frame, tcp, v4};
use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, assert_refused, binary, heard, number, packets};
use netlab::{PacketSocket, needs_root};
use nix::sys::signal::Signal;
use ratelimit_policy::config::HookChoice;

const KEEP: [&str; 6] = ["--limit", "3/1h", "--count", "connections", "--on-exit", "keep"];

fn syn() -> Vec<u8> {
    frame(IPV4, v4(TCP, tcp(80, SYN)))
}

/// Returns the interfaces in the statistics, each with its number of received packets.
fn received(stats: &serde_json::Value) -> Vec<(String, u64)> {
    let interfaces = stats.pointer("/interfaces").unwrap().as_array().unwrap();
    let row = |of: &serde_json::Value| (of["name"].as_str().unwrap().to_owned(), number(of, "/packets/received"));
    interfaces.iter().map(row).collect()
}

#[test]
fn a_killed_daemon_leaves_its_filter_enforcing_and_the_next_one_its_counts() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    lab.open(CLIENTS[1], 80);
    let before = lab.stats();
    daemon.kill();
    assert!(lab.has_xdp("s0"));
    lab.assert_blocked(CLIENTS[0], 80);
    assert_refused(&lab.ratelimitd(&["stats"]), 69, &["no daemon answers", "STILL ENFORCING", "ratelimitd detach"]);

    let daemon = lab.limit(&KEEP);
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 2);
    let after = lab.stats();
    let dropped = |stats| number(stats, "/rules/0/dropped");
    assert!(dropped(&after) > dropped(&before), "the counters go on: {before:#} {after:#}");
    // An orderly end keeps the filter too.
    assert_eq!(daemon.end(Signal::SIGTERM), 0);
    assert!(lab.has_xdp("s0"));
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn no_packet_slips_through_while_the_daemon_is_killed_and_another_build_takes_over() {
    needs_root!();
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
            daemon.child.wait(HANGS_AFTER).unwrap();
            daemon = lab.start_copy(build, &arguments);
        }
        is_over.store(true, Ordering::Relaxed);
        sent = flow.join().unwrap();
    });
    let stats = lab.stats_once(|stats| packets(stats)[0] == sent + 10);
    assert_eq!(packets(&stats), [sent + 10, 3, sent + 7, 0], "{stats:#}");
    // At TCX a packet socket also receives dropped frames. There the counters show it.
    if integration_test::hook() != HookChoice::Tcx {
        assert_eq!(heard(&listener), 0, "of {sent}");
    }
    assert!(sent > 1000, "only {sent} were sent");
}

#[test]
fn a_start_that_fails_leaves_what_an_earlier_run_keeps_as_it_was() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    lab.connect_second_ends();
    // One that is tried before s0, and one after it.
    for bridge in ["a0", "z0"] {
        lab.server.ip(&["link", "add", bridge, "type", "bridge"]).unwrap();
    }
    let daemon = lab.limit(&KEEP);
    lab.open(CLIENTS[0], 80);
    lab.open(CLIENTS[0], 80);
    let before = packets(&lab.stats())[0];
    daemon.kill();
    let shown = lab.server.ip(&["link", "show", "dev", "s0"]).unwrap();

    let other = [
        "--iface",
        "s0",
        "--limit",
        "9/1h",
        "--count",
        "connections",
        "--port",
        "81",
        "--allow",
        CLIENTS[2],
        "--on-exit",
        "keep",
    ];
    for refusing in ["a0", "z0"] {
        let refused = lab.ratelimitd(&[&other[..], &["--iface", refusing, "--xdp-mode", "native"]].concat());
        assert_refused(&refused, 69, &[refusing, "no native XDP"]);
    }
    let refused = lab.ratelimitd(&[&other[..], &["--iface", "s1", "--iface", "z0", "--xdp-mode", "native"]].concat());
    assert_refused(&refused, 69, &["z0"]);
    assert!(!lab.has_xdp("s1"), "what had been attached anew is taken off again");
    lab.attach_foreign("s1");
    let refused = lab.ratelimitd(&[&other[..], &["--iface", "s1", "--hook", "xdp"]].concat());
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

#[test]
fn an_interface_renamed_without_a_daemon_is_taken_over_by_its_new_name() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    lab.connect_second_ends();
    let daemon = lab.start(&[&["--iface", "s0", "--iface", "s1"], &KEEP[..]].concat());
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let before = received(&lab.stats());
    daemon.kill();
    // The interfaces exchange their names, so that each one's pin has the other's name.
    for (from, to) in [("s0", "aside"), ("s1", "s0"), ("aside", "s1")] {
        lab.rename(from, to);
    }
    let daemon = lab.start(&[&["--iface", "s0", "--iface", "s1"], &KEEP[..]].concat());
    lab.assert_blocked(CLIENTS[0], 80);
    let after = received(&lab.stats());
    assert!(after[0].0 == "s0" && after[0].1 < before[0].1, "s1 was not counted much: {before:?} {after:?}");
    assert!(after[1].0 == "s1" && after[1].1 > before[0].1, "the counts go with the interface: {before:?} {after:?}");
    daemon.kill();
    lab.assert_blocked(CLIENTS[0], 80);

    lab.rename("s1", "s9.100");
    let refused = lab.ratelimitd(&["--iface", "s9.100", "--limit", "9/1h"]);
    assert_refused(&refused, 75, &["s9.100 already has an XDP program", "ratelimitd's own"]);
    let daemon = lab.start(&[&["--iface", "s9.100"], &KEEP[..]].concat());
    lab.assert_blocked(CLIENTS[0], 80);
    lab.assert_admitted(CLIENTS[1], 80, 3);
    assert_eq!(received(&lab.stats()).len(), 1);
    assert!(!lab.has_xdp("s0"), "what is not wanted any more is let go");
    daemon.kill();
    let detached = lab.ratelimitd(&["detach", "s9.100"]);
    assert_eq!(detached.code(), 0, "{}", detached.stderr);
    assert!(!lab.has_xdp("s9.100") && !lab.pins().exists());
}

#[test]
fn an_interface_that_has_the_index_of_one_that_is_gone_begins_to_count_anew() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    daemon.kill();
    let shown = lab.server.ip(&["-o", "link", "show", "dev", "s0"]).unwrap();
    let index = shown.split(':').next().unwrap().to_owned();
    lab.client.ip(&["link", "del", "c0"]).unwrap();
    lab.server.ip(&["link", "add", "s9.100", "index", &index, "type", "veth", "peer", "name", "s8"]).unwrap();
    let _daemon = lab.start(&[&["--iface", "s9.100"], &KEEP[..]].concat());
    assert_eq!(received(&lab.stats()), [("s9.100".to_owned(), 0)]);
}

#[test]
fn pins_of_another_layout_are_refused_and_go_on_enforcing() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    daemon.kill();
    let directory = fs::read_dir(lab.pins()).unwrap().next().unwrap().unwrap().path();
    let arguments = [&["--iface", "s0"][..], &KEEP].concat();

    // A map under another map's name.
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

    // A matching directory is taken over.
    assert!(!directory.exists(), "a start that is refused leaves no pins");
    fs::rename(&other, &directory).unwrap();
    let _daemon = lab.start(&arguments);
    lab.assert_blocked(CLIENTS[0], 80);
}

#[test]
fn detach_takes_the_filter_off_with_a_daemon_and_without() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let mut daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let detached = lab.ratelimitd(&["detach"]);
    assert_eq!((detached.code(), detached.stdout.contains("s0")), (0, true), "{}", detached.stderr);
    assert_eq!(daemon.child.wait(HANGS_AFTER).unwrap().code(), Some(0));
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
    lab.open(CLIENTS[0], 80);

    lab.limit(&KEEP).kill();
    assert!(lab.has_xdp("s0"));
    let detached = lab.ratelimitd(&["detach", "s0"]);
    assert_eq!((detached.code(), detached.stdout.contains("s0")), (0, true), "{}", detached.stderr);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
    assert_refused(&lab.ratelimitd(&["detach", "s0"]), 69, &["no daemon answers"]);
    for nothing in [&["detach"][..], &["detach", "s0", "--if-attached"]] {
        let nothing = lab.ratelimitd(nothing);
        assert_eq!((nothing.code(), &*nothing.stdout), (0, "nothing was attached\n"), "{}", nothing.stderr);
    }

    // The removal that needs no program of ours.
    lab.limit(&KEEP).kill();
    fs::remove_dir_all(lab.pins()).unwrap();
    assert!(!lab.has_xdp("s0"));
}

#[test]
fn empty_directories_of_other_layouts_are_in_nobodys_way() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let leave = || ["v7", "v999"].into_iter().for_each(|of| fs::create_dir_all(lab.pins().join(of)).unwrap());
    leave();
    let detached = lab.ratelimitd(&["detach"]);
    assert_eq!((detached.code(), &*detached.stdout), (0, "nothing was attached\n"), "{}", detached.stderr);
    assert!(!lab.pins().exists());
    leave();
    let _daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    assert_eq!(fs::read_dir(lab.pins()).unwrap().count(), 1);
}

#[test]
fn detach_by_a_wrong_socket_is_refused_while_a_daemon_runs() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    let elsewhere = lab.directory().join("other.sock");
    for interface in [&["s0"][..], &[]] {
        let refused = lab.ratelimitd(&[&["detach", "--socket", elsewhere.to_str().unwrap()], interface].concat());
        assert_refused(&refused, 75, &["belongs to another running ratelimitd", "--socket PATH"]);
    }
    let second = ["--iface", "s0", "--limit", "3/1h", "--socket", elsewhere.to_str().unwrap()];
    let refused = lab.ratelimitd(&second);
    assert_refused(&refused, 75, &[&format!("ratelimitd, process {}", daemon.child.id()), "--socket PATH"]);
    assert!(!refused.stderr.contains("earlier run"), "{}", refused.stderr);
    daemon.kill();
    lab.assert_blocked(CLIENTS[0], 80);
    assert_eq!(lab.ratelimitd(&["detach", "--socket", elsewhere.to_str().unwrap()]).code(), 0);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
}

#[test]
fn a_kept_filter_in_another_mode_than_asked_for_is_refused_and_goes_on() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    for (kept, asked, client) in [("generic", "native", CLIENTS[0]), ("native", "generic", CLIENTS[1])] {
        lab.limit(&[&KEEP[..], &["--xdp-mode", kept]].concat()).kill();
        lab.assert_admitted(client, 80, 3);
        let start = ["--iface", "s0", "--limit", "9/1h", "--count", "connections", "--on-exit", "keep", "--xdp-mode"];
        let refused = lab.ratelimitd(&[&start[..], &[asked]].concat());
        assert_refused(&refused, 69, &["s0", kept, asked, "ratelimitd detach s0"]);
        lab.assert_blocked(client, 80);
        for agreeing in [kept, "auto"] {
            let daemon = lab.limit(&[&KEEP[..], &["--xdp-mode", agreeing]].concat());
            assert_eq!(lab.stats().pointer("/interfaces/0/xdp_mode").unwrap(), kept);
            lab.assert_blocked(client, 80);
            daemon.kill();
        }
        assert_eq!(lab.ratelimitd(&["detach"]).code(), 0);
    }
}

#[test]
fn pins_that_another_user_has_made_are_refused_and_nothing_is_attached() {
    needs_root!();
    const NOBODY: u32 = 65_534;
    let lab = Lab::new();
    let bpffs = lab.pins().parent().unwrap().to_owned();
    let version = format!("v{}", ratelimit_common::layout::VERSION);
    let arguments = [&["--iface", "s0"][..], &KEEP].concat();
    // A BPF file system mounted without a mode lets everybody create a directory, and the first one owns it.
    fs::set_permissions(&bpffs, fs::Permissions::from_mode(0o1777)).unwrap();
    for made in [lab.pins(), lab.pins().join(&version), lab.pins().join("x")] {
        fs::create_dir_all(&made).unwrap();
        chown(&made, Some(NOBODY), Some(NOBODY)).unwrap();
        let seen = format!("/sys/fs/bpf/{}", made.strip_prefix(&bpffs).unwrap().display());
        let words = [seen.as_str(), "belongs to user 65534", "sudo rm -r", "sudo chmod 0700"];
        assert_refused(&lab.ratelimitd(&arguments), 69, &words);
        assert!(!lab.has_xdp("s0"));
        fs::remove_dir_all(lab.pins()).unwrap();
    }
    symlink("/tmp", lab.pins()).unwrap();
    assert_refused(&lab.ratelimitd(&arguments), 69, &["is a symbolic link", "sudo rm -r"]);
    fs::remove_file(lab.pins()).unwrap();

    let daemon = lab.start(&arguments);
    daemon.kill();
    let link = lab.pins().join(&version).join("link-s0");
    assert_eq!(fs::metadata(link.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    chown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    assert_refused(&lab.ratelimitd(&arguments), 69, &["link-s0", "belongs to user 65534"]);
    assert!(lab.has_xdp("s0"), "what is enforced goes on");
    chown(&link, Some(0), Some(0)).unwrap();
    fs::set_permissions(lab.pins(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_refused(&lab.ratelimitd(&arguments), 69, &["may be written to by others, its mode is 0777"]);
    fs::set_permissions(lab.pins(), fs::Permissions::from_mode(0o700)).unwrap();
    drop(lab.start(&arguments));
}

/// Starts a daemon, waits until it has written signs of life, and kills it. Its filter is kept.
fn dead(lab: &Lab) {
    let daemon = lab.limit(&KEEP);
    lab.assert_admitted(CLIENTS[0], 80, 3);
    // A sign of life is written every two seconds. One as young as its pins proves nothing.
    lab.stats_once(|stats| stats["uptime_seconds"].as_f64().unwrap() > 3.5);
    daemon.kill();
}

#[test]
fn every_command_reports_a_dead_daemons_filter_and_what_to_type() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    dead(&lab);
    let link = format!("/sys/fs/bpf/ratelimitd/v{}/link-s0", ratelimit_common::layout::VERSION);
    let since = "STILL ENFORCING on s0 without a daemon since 2";
    let said =
        [since, "UTC (", &link, "systemctl start ratelimitd", "sudo ratelimitd detach", "sudo rm -r /sys/fs/bpf"];
    for command in [
        &["stats"][..],
        &["check", CLIENTS[0]],
        &["list"],
        &["mode"],
        &["panic"],
        &["deny", CLIENTS[0]],
        &["unblock", CLIENTS[0]],
        &["reload"],
        &["suggest"],
        &["detach", "s9"],
    ] {
        assert_refused(&lab.ratelimitd(command), 69, &said);
    }
    lab.assert_blocked(CLIENTS[0], 80);
    // A running daemon with another socket is not dead.
    let elsewhere = lab.directory().join("other.sock");
    let daemon = lab.limit(&[&KEEP[..], &["--socket", elsewhere.to_str().unwrap()]].concat());
    assert!(daemon.child.stderr().contains("which ran without a daemon for "), "{}", daemon.child.stderr());
    let refused = lab.ratelimitd(&["stats"]);
    assert_refused(&refused, 69, &[&format!("a daemon runs as process {}", daemon.child.id()), "--socket PATH"]);
    assert!(!refused.stderr.contains("STILL") && refused.stdout.is_empty(), "{}{}", refused.stderr, refused.stdout);
}

#[test]
fn stats_reads_the_pins_of_a_dead_daemon_and_names_missing_privileges() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    dead(&lab);
    lab.assert_blocked(CLIENTS[0], 80);
    let json = lab.ratelimitd(&["stats", "--json"]);
    assert_eq!(json.code(), 69, "{}", json.stderr);
    let stats: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let dropped = number(&stats, "/rules/0/dropped");
    assert!(dropped >= 2, "what it dropped before and since: {stats:#}");
    let [received, passed, of_interface, _] = packets(&stats);
    assert_eq!((received, of_interface), (passed + dropped, dropped), "{stats:#}");
    assert_eq!((number(&stats, "/reasons/over_limit"), number(&stats, "/schema")), (dropped, 1));
    for (pointer, expected) in [
        ("/mode", "enforce"),
        ("/interfaces/0/name", "s0"),
        ("/interfaces/0/xdp_mode", "native"),
        ("/rules/0/name", "default"),
        ("/rules/0/ports", "80,443"),
        ("/without_daemon/interfaces/0", "s0"),
    ] {
        assert_eq!(stats.pointer(pointer).unwrap(), expected, "{pointer}: {stats:#}");
    }
    assert!(stats["without_daemon"]["seconds"].as_f64().unwrap() < 60.0, "{stats:#}");
    assert_eq!(stats.get("sources"), None, "nothing is said of what is not read");

    let human = lab.ratelimitd(&["stats"]);
    assert_eq!(human.code(), 69);
    assert!(human.stdout.starts_with("STILL ENFORCING on s0 without a daemon since 2"), "{}", human.stdout);
    for words in ["s0         native, in the driver", "default  enforced  80,443", " over the limit\n"] {
        assert!(human.stdout.contains(words), "no {words:?} in: {}", human.stdout);
    }

    // Nobody cannot enter the binary's directory, so the binary is copied.
    let copy = std::env::temp_dir().join(format!("{}ratelimitd", lab.server.name()));
    fs::copy(binary(), &copy).unwrap();
    let mut command = lab.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
    command.args(["stats", "--socket", &format!("{}.sock", copy.display())]);
    let unprivileged = integration_test::lab::run(command);
    fs::remove_file(&copy).unwrap();
    assert_refused(&unprivileged, 69, &["only root can see whether a filter is still pinned in ", "use sudo"]);
    assert_eq!(unprivileged.stdout, "");
}

#[test]
fn pins_of_another_versions_daemon_are_reported_and_removed_by_detach() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    dead(&lab);
    let directory = fs::read_dir(lab.pins()).unwrap().next().unwrap().unwrap().path();
    fs::rename(&directory, lab.pins().join("v999")).unwrap();
    let words =
        ["STILL ENFORCING on s0", "another version", "its statistics cannot be read: ", "sudo ratelimitd detach"];
    let refused = lab.ratelimitd(&["stats"]);
    assert_refused(&refused, 69, &words);
    assert_eq!(refused.stdout, "");
    lab.assert_blocked(CLIENTS[0], 80);
    let detached = lab.ratelimitd(&["detach"]);
    assert_eq!((detached.code(), detached.stdout.contains("s0")), (0, true), "{}", detached.stderr);
    assert!(!lab.has_xdp("s0") && !lab.pins().exists());
    lab.open(CLIENTS[0], 80);
}
