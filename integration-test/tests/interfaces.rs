//! Tests of interfaces that are joined to each other, appear late, or come back.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::time::{Duration, Instant};

use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, assert_refused, binary, once};
use netlab::{Child, needs_root};
use nix::sys::signal::Signal;

const STARTS_WITHIN: Duration = Duration::from_secs(120);
const LIMIT: [&str; 4] = ["--limit", "5/1h", "--count", "connections"];

/// Writes a configuration file that names these interfaces, and returns its path.
fn write_file(lab: &Lab, interfaces: &[&str]) -> String {
    let path = lab.directory().join("ratelimitd.toml");
    let text = format!(
        "interfaces = {interfaces:?}\nsocket = \"{}\"\n[rule]\nlimits = [\"5/1h connections\"]\n",
        lab.socket().display()
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Starts the daemon as a service on these interfaces.
fn service(lab: &Lab, interfaces: &[&str]) -> Child {
    let path = write_file(lab, interfaces);
    let mut command = lab.command(binary());
    command.args(["run", "--config", &path]);
    Child::start(command).unwrap()
}

fn end(mut daemon: Child) {
    daemon.signal(Signal::SIGTERM).unwrap();
    assert_eq!(daemon.wait(HANGS_AFTER).unwrap().code(), Some(0));
}

fn is_attached(lab: &Lab, interface: &str) -> bool {
    let stats = lab.stats();
    let all = stats["interfaces"].as_array().unwrap();
    all.iter().any(|of| of["name"] == interface && of["attached"] == true)
}

fn wait_until_attached(lab: &Lab, interface: &str) {
    once(|| is_attached(lab, interface).then_some(())).unwrap();
}

/// Puts s0 under a bridge, and moves its address there.
fn bridge(lab: &Lab) {
    let ip = |args: &[&str]| lab.server.ip(args).unwrap();
    ip(&["link", "add", "br0", "type", "bridge"]);
    ip(&["addr", "flush", "dev", "s0"]);
    ip(&["link", "set", "s0", "master", "br0"]);
    ip(&["link", "set", "br0", "up"]);
    lab.server.add_address("br0", "10.9.0.1/24").unwrap();
}

#[test]
fn a_port_with_its_bridge_is_refused_and_each_alone_admits_the_limit() {
    needs_root!();
    let lab = Lab::new();
    bridge(&lab);
    let _web = lab.web();
    for pair in [["s0", "br0"], ["br0", "s0"]] {
        let flags = ["--iface", pair[0], "--iface", pair[1]];
        let words = ["s0 and br0 are one path", "count twice", "write --iface s0:", "name br0 alone"];
        assert_refused(&lab.ratelimitd(&[&flags[..], &LIMIT].concat()), 2, &words);
        assert_refused(&lab.ratelimitd(&[&["check-config"], &flags[..], &LIMIT].concat()), 2, &words);
        let file = write_file(&lab, &pair);
        let words = ["s0 and br0 are one path", "ratelimitd.toml:1:1", "write interfaces = [\"s0\"]:"];
        assert_refused(&lab.ratelimitd(&["check-config", &file]), 78, &words);
        assert_refused(&lab.ratelimitd(&["run", "--config", &file]), 78, &words);
        let json = lab.ratelimitd(&["doctor", "--config", &file, "--json"]).stdout;
        assert!(json.contains("interface.path") && json.contains("s0 and br0 are one path"), "{json}");
        assert!(!lab.has_xdp("s0") && !lab.has_xdp("br0") && !lab.pins().exists());
    }
    for alone in ["s0", "br0"] {
        let daemon = lab.start(&[&["--iface", alone][..], &LIMIT].concat());
        lab.assert_admitted(CLIENTS[0], 80, 5);
        assert_eq!(daemon.end(Signal::SIGTERM), 0);
    }
    // A reload that names the other interface as well changes nothing.
    let daemon = service(&lab, &["s0"]);
    daemon.wait_for_line("ratelimitd: ready", STARTS_WITHIN).unwrap();
    write_file(&lab, &["s0", "br0"]);
    assert_refused(&lab.ratelimitd(&["reload"]), 78, &["s0 and br0 are one path", "nothing was changed"]);
    // A reload that names only the other interface moves the filter there.
    write_file(&lab, &["br0"]);
    assert_eq!(lab.ratelimitd(&["reload"]).code(), 0);
    assert!(lab.has_xdp("br0") && !lab.has_xdp("s0"));
    end(daemon);
}

#[test]
fn every_kind_of_interface_above_another_is_refused_over_any_number_of_levels() {
    needs_root!();
    let lab = Lab::new();
    let ip = |args: &[&str]| lab.server.ip(args);
    let made = |args: &[&str]| {
        let is_made = ip(args).is_ok();
        if !is_made {
            println!("not of this kernel, so by facts alone: ip {}", args.join(" "));
        }
        is_made
    };
    let refused = |named: [&str; 2], words: &[&str]| {
        let asked = ["check-config", "--iface", named[0], "--iface", named[1]];
        assert_refused(&lab.ratelimitd(&[&asked[..], &LIMIT].concat()), 2, words);
    };
    let mut kinds = 0;
    for (name, kind) in [("v5", &["vlan", "id", "5"][..]), ("m0", &["macvlan"]), ("t0", &["macvtap"])] {
        if made(&[&["link", "add", "link", "s0", "name", name, "type"], kind].concat()) {
            refused([name, "s0"], &["s0 and ", name, kind[0], "write --iface s0:"]);
            ip(&["link", "del", name]).unwrap();
            kinds += 1;
        }
    }
    lab.connect_second_ends();
    if made(&["link", "add", "link", "s1", "name", "i0", "type", "ipvlan"]) {
        refused(["s1", "i0"], &["i0 (ipvlan)"]);
        ip(&["link", "del", "i0"]).unwrap();
        kinds += 1;
    }
    for kind in ["bond", "team"] {
        if !made(&["link", "add", "all0", "type", kind]) {
            continue;
        }
        ip(&["link", "set", "s1", "down"]).unwrap();
        ip(&["link", "set", "s1", "master", "all0"]).unwrap();
        refused(["s1", "all0"], &["write --iface all0:", "each of its ports"]);
        kinds += 1;
        if made(&["link", "add", "link", "all0", "name", "all0.5", "type", "vlan", "id", "5"]) {
            refused(["s1", "all0.5"], &[&format!("all0 ({kind}) and all0.5 (vlan)"), "write --iface all0:"]);
        }
        ip(&["link", "del", "all0"]).unwrap();
    }
    // Both ends of a veth, and two ports of a bridge, share no packets.
    ip(&["link", "add", "e0", "type", "veth", "peer", "name", "e1"]).unwrap();
    for apart in [["e0", "e1"], ["s0", "s1"]] {
        let asked = ["check-config", "--iface", apart[0], "--iface", apart[1]];
        assert_eq!(lab.ratelimitd(&[&asked[..], &LIMIT].concat()).code(), 0, "{apart:?}");
    }
    // Frames that leave at a veth port arrive at its other end.
    bridge(&lab);
    ip(&["link", "set", "e0", "master", "br0"]).unwrap();
    refused(["e1", "s0"], &["br0 (bridge) and e1 (veth)"]);
    println!("kinds of interfaces made: {kinds}");
}

#[test]
fn joining_an_interface_to_a_limited_one_never_double_counts_silently() {
    needs_root!();
    let lab = Lab::new();
    let ip = |args: &[&str]| lab.server.ip(args).unwrap();
    ip(&["link", "add", "br0", "type", "bridge"]);
    let daemon = service(&lab, &["s0", "br0"]);
    daemon.wait_for_line("ratelimitd: ready", STARTS_WITHIN).unwrap();
    ip(&["link", "set", "s0", "master", "br0"]);
    daemon.wait_for_line("PACKETS COUNT TWICE: s0 and br0 are one path", HANGS_AFTER).unwrap();
    let stats = lab.ratelimitd(&["stats", "--all"]).stdout;
    assert!(stats.contains("PACKETS COUNT TWICE: s0 and br0 are one path"), "{stats}");
    ip(&["link", "set", "s0", "nomaster"]);
    daemon.wait_for_line("count once again", HANGS_AFTER).unwrap();
    assert!(!lab.ratelimitd(&["stats", "--all"]).stdout.contains("COUNT TWICE"));

    // An interface that is gone waits as long as it would count packets twice.
    ip(&["link", "del", "br0"]);
    once(|| (!is_attached(&lab, "br0")).then_some(())).unwrap();
    ip(&["link", "add", "link", "s0", "name", "br0", "type", "macvlan"]);
    daemon.wait_for_line("br0 is not attached: s0 and br0 are one path", HANGS_AFTER).unwrap();
    assert!(!lab.has_xdp("br0") && !is_attached(&lab, "br0"));
    let stats = lab.ratelimitd(&["stats", "--all"]).stdout.replace("\n", " ");
    assert!(stats.contains("br0 IS NOT ATTACHED: s0 and br0 are one path"), "{stats}");
    ip(&["link", "del", "br0"]);
    ip(&["link", "add", "br0", "type", "bridge"]);
    wait_until_attached(&lab, "br0");
    end(daemon);
}

/// Number of BPF objects that a process holds open, and its resident memory in KiB.
fn held(daemon: &Child) -> (usize, u64) {
    let files = fs::read_dir(format!("/proc/{}/fd", daemon.id())).unwrap();
    let names = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    let objects = names.filter(|name| name.to_string_lossy().contains("bpf")).count();
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (objects, resident.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn attempts_that_fail_or_wait_keep_no_programs_and_no_maps_open() {
    needs_root!();
    /// Number of TCX programs, one with and one without a link header.
    const FOR_LATER: usize = 2;
    const LINK: usize = 1;
    let lab = Lab::new();
    let daemon = service(&lab, &["s0"]);
    daemon.wait_for_line("ratelimitd: ready", STARTS_WITHIN).unwrap();
    let (plain, resident) = held(&daemon);
    end(daemon);

    let daemon = service(&lab, &["s0", "s1"]);
    daemon.wait_for_line("ratelimitd: up, but NOT PROTECTED: s1", STARTS_WITHIN).unwrap();
    let (waiting, more) = held(&daemon);
    println!("BPF objects and KiB: {plain}, {resident}; with an interface missing: {waiting}, {more}");
    assert!(waiting <= plain + FOR_LATER, "{waiting} objects, {plain} without a missing interface");
    for round in 0..3 {
        lab.connect_second_ends();
        wait_until_attached(&lab, "s1");
        assert_eq!(held(&daemon).0, waiting + LINK, "it came for time {round}");
        lab.client.ip(&["link", "del", "c1"]).unwrap();
        once(|| (!is_attached(&lab, "s1")).then_some(())).unwrap();
        assert!(held(&daemon).0 <= waiting + LINK);
    }
    // A foreign program is in the way, also at TCX if that is configured.
    for _ in 0..5 {
        write_file(&lab, &["s0", "s1", "s9"]);
        assert_ne!(lab.ratelimitd(&["reload"]).code(), 0);
        fs::write(lab.directory().join("ratelimitd.toml"), "interfaces = 7\n").unwrap();
        assert_ne!(lab.ratelimitd(&["reload"]).code(), 0);
    }
    assert!(held(&daemon).0 <= waiting + LINK, "{} after failed reloads, {waiting} before", held(&daemon).0);
    lab.server.ip(&["link", "add", "t1", "type", "veth", "peer", "name", "u1"]).unwrap();
    lab.attach_foreign("t1");
    lab.server.ip(&["link", "set", "t1", "name", "s1"]).unwrap();
    wait_until_attached(&lab, "s1");
    for _ in 0..20 {
        lab.server.ip(&["link", "set", "s1", "down"]).unwrap();
        lab.server.ip(&["link", "set", "s1", "up"]).unwrap();
    }
    assert!(held(&daemon).0 <= waiting + LINK);
    println!("KiB at the end: {}", held(&daemon).1);
    end(daemon);
}

#[test]
fn an_interface_that_comes_back_is_attached_at_once_also_while_the_daemon_starts() {
    needs_root!();
    let lab = Lab::new();
    let took_to_attach = |since: Instant| {
        once(|| lab.has_xdp("s1").then_some(())).unwrap();
        since.elapsed()
    };
    let began = Instant::now();
    let daemon = service(&lab, &["s0", "s1"]);
    once(|| lab.has_xdp("s0").then_some(())).unwrap();
    println!("start to the first interface attached, another missing: {:?}", began.elapsed());
    // During the start, which the attachment neither completes nor waits for.
    lab.connect_second_ends();
    println!("link made to attached, while starting: {:?}", took_to_attach(Instant::now()));
    println!("start to that: {:?}", began.elapsed());
    wait_until_attached(&lab, "s1");
    println!("start to that seen: {:?}", began.elapsed());
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        lab.client.ip(&["link", "del", "c1"]).unwrap();
        lab.connect_second_ends();
        longest = longest.max(took_to_attach(Instant::now()));
    }
    println!("link made to attached, while running, longest of 5: {longest:?}");
    // Far more than attaching takes, and far less than the look every two seconds would take on a busy machine.
    assert!(longest < Duration::from_millis(1500), "{longest:?}");
    end(daemon);
}
