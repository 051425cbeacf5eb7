//! Tests of limits that count many sources as one: those of a prefix, or those of a list.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, V4, frame, syn, tcp_with, udp};
use integration_test::lab::{CLIENTS, Daemon, HANGS_AFTER, Lab, SERVER, is_answered, number};
use integration_test::program::{Program, Room, TEN_O_CLOCK, limit, on_one_cpu, policy};
use ipnet::IpNet;
use netlab::{PacketSocket, needs_root, nginx, without_offloads};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use ratelimit_common::layout::Unit;
use ratelimit_common::verdict::Reason;
use ratelimit_common::window;
use ratelimit_datapath::{Datapath as _, KernelEventKind};
use ratelimit_policy::desired::{Limit, Per, Policy, WindowForm};

const PREFIX: Per = Per::Prefix { v4: 24, v6: 56 };

/// Returns a limit of connections in five minutes.
fn connections(amount: u64, per: Per) -> Limit {
    let own = limit(amount, Unit::Connections, WindowForm::Strict);
    let slot = match per {
        Per::Source => own.slot,
        Per::Prefix { v4, .. } => 1_000_000 + u32::from(v4),
        Per::List => 2_000_000,
    };
    Limit { per, slot, ..own }
}

/// Returns a policy in which each source may open `own` connections, and each group `group`.
fn grouped(own: u64, group: u64) -> Policy {
    policy(&[connections(own, Per::Source), connections(group, PREFIX)])
}

/// Returns the use in the window of this prefix in the limit's slot, as the daemon reads it.
fn used(program: &mut Program, of: &str, limit: &Limit) -> Option<u64> {
    let prefix: IpNet = of.parse().unwrap();
    let mut found = None;
    let visit = &mut |reading: ratelimit_datapath::SourceReading| {
        if reading.prefix == prefix && reading.slot == limit.slot && !reading.is_verified {
            let bucket = TEN_O_CLOCK.bucket(limit.bucket_ns);
            found = Some(window::used(&reading.window.cells, limit.arithmetic(), bucket));
        }
    };
    program.kernel().visit_sources(visit).unwrap();
    found
}

#[test]
fn each_of_16_prefixes_with_4096_sources_within_their_limits_admits_exactly_its_own() {
    needs_root!();
    const GROUP: u64 = 300;
    for ipv6_prefix in [64, 128] {
        let mut of = grouped(2, GROUP);
        of.ipv6_prefix = ipv6_prefix;
        let mut program = Program::new(&of);
        let v4 = |prefix: u32, host: u32| format!("198.51.{prefix}.{host}");
        // Each source is a separate /64 of a /56.
        let v6 = |prefix: u32, host: u32| format!("2001:db8:7:{:x}::1", prefix << 8 | host);
        for source in [&v4 as &dyn Fn(u32, u32) -> String, &v6] {
            for prefix in 0..16 {
                let mut admitted = 0;
                for _turn in 0..2 {
                    admitted += (0..256).filter(|&host| program.passes(&syn(&source(prefix, host), 80))).count();
                }
                assert_eq!(u64::try_from(admitted).unwrap(), GROUP, "{} by /{ipv6_prefix}", source(prefix, 0));
            }
            assert!(program.passes(&syn(&source(16, 7), 80)), "a neighbour is untouched");
            assert!(!program.passes(&syn(&source(3, 7), 80)));
        }
        let group = of.rules[0].limits[1];
        for (name, holds) in [("198.51.4.0/24", GROUP), ("2001:db8:7:400::/56", GROUP), ("198.51.16.0/24", 1)] {
            assert_eq!(used(&mut program, name, &group), Some(holds), "{name} by /{ipv6_prefix}");
        }
    }
}

#[test]
fn a_group_admits_no_more_of_new_sources_while_forged_ones_flood() {
    needs_root!();
    on_one_cpu();
    const GROUP: usize = 100;
    let room = Room { max_sources: 32_768, insertions_max: 4, ..Room::default() };
    let mut program = Program::with_room(&grouped(20, GROUP as u64), room);
    let word = |program: &mut Program, source: &str| program.judged(&syn(source, 80)).0;
    assert_eq!(word(&mut program, "203.0.113.1"), "within_limit");
    for forged in 0..256_u32 {
        let source = Ipv4Addr::from_bits(0x1000_0000 | forged << 12).to_string();
        program.passes(&syn(&source, 80));
    }
    assert!(program.shift() > 0, "there is an overload");
    let words: Vec<&str> = (2..=254).map(|host| word(&mut program, &format!("203.0.113.{host}"))).collect();
    let count = |of: &str| words.iter().filter(|word| **word == of).count();
    assert!(count("not_admitted") > GROUP / 2, "{words:?}");
    assert_eq!(count("not_admitted") + count("within_limit"), GROUP - 1, "{words:?}");
    assert_eq!(count("over_limit"), words.len() - (GROUP - 1), "{words:?}");
    assert_eq!(used(&mut program, "203.0.113.0/24", &connections(1, PREFIX)), Some(GROUP as u64));
    // New groups are remembered within the budget.
    for at in 0..200 {
        word(&mut program, &format!("20.0.{at}.1"));
    }
    let groups =
        (0..200_u32).filter(|at| used(&mut program, &format!("20.0.{at}.0/24"), &connections(1, PREFIX)).is_some());
    assert!(groups.count() < 100, "sampled");
}

#[test]
fn a_sources_own_refusals_are_not_charged_to_its_group_nor_vice_versa() {
    needs_root!();
    let of = grouped(3, 5);
    let [own, group] = [of.rules[0].limits[0], of.rules[0].limits[1]];
    let mut program = Program::new(&of);
    assert_eq!(program.passed(&syn("198.51.100.1", 80), 50), 3);
    assert_eq!(used(&mut program, "198.51.100.0/24", &group), Some(3));
    assert_eq!(program.passed(&syn("198.51.100.2", 80), 50), 2, "what is left of its group");
    assert_eq!(used(&mut program, "198.51.100.2/32", &own), Some(2));
    assert_eq!(program.passed(&syn("198.51.100.3", 80), 50), 0);
    assert_eq!(used(&mut program, "198.51.100.3/32", &own), None);
    assert_eq!(used(&mut program, "198.51.100.0/24", &group), Some(5));
    // The windows whose refusals the drop cache repeated: the source's, and the group's.
    let mut refused = Vec::new();
    let visit = &mut |of: ratelimit_datapath::SourceReading| refused.push((of.prefix, of.window.refused.count()));
    program.kernel().visit_sources(visit).unwrap();
    refused.sort_unstable();
    let expected = [("198.51.100.0/24", 98), ("198.51.100.1/32", 47), ("198.51.100.2/32", 0)];
    assert_eq!(refused, expected.map(|(prefix, count)| (prefix.parse().unwrap(), count)));
    assert_eq!(program.counts()["over_limit"], 47 + 98);
}

#[test]
fn a_refused_group_is_told_once_by_its_prefix_and_frees_with_its_window() {
    needs_root!();
    let of = grouped(10, 4);
    let mut program = Program::new(&of);
    let judged: Vec<_> = (0..20).map(|host| program.verdict(&syn(&format!("198.51.100.{host}"), 80))).collect();
    assert_eq!((&judged[..4], &judged[4..]), (&["within_limit"; 4][..], &["over_limit"; 16][..]));
    let told: Vec<_> =
        program.events().into_iter().map(|event| (event.client, event.kind, event.reason, event.used)).collect();
    assert_eq!(told, [("198.51.100.0/24".parse().unwrap(), KernelEventKind::Refused, Reason::OverLimit, 4)]);
    // A source in the drop cache passes when the group's window frees, not before.
    program.advance(of.rules[0].limits[1].window_ns + of.rules[0].limits[1].bucket_ns);
    assert_eq!(program.verdict(&syn("198.51.100.19", 80)), "within_limit");
}

#[test]
fn all_sources_of_a_list_are_one_client_of_both_families() {
    needs_root!();
    let mut of = policy(&[connections(100, Per::Source), connections(10, Per::List)]);
    of.rules[0].from = vec!["198.51.100.0/24".parse().unwrap(), "2001:db8:5::/48".parse().unwrap()];
    let mut other = of.rules[0].clone();
    (other.name, other.from) = ("other".into(), vec!["203.0.113.0/24".parse().unwrap()]);
    other.limits[1].slot += 1;
    of.rules.push(other);
    let mut program = Program::new(&of);
    let v4 = (0..9).map(|host| format!("198.51.100.{host}"));
    let v6 = (0..9).map(|host| format!("2001:db8:5:{host}::1"));
    let admitted: Vec<_> = v4.chain(v6).map(|source| program.passes(&syn(&source, 80))).collect();
    assert_eq!(admitted.iter().position(|passes| !passes), Some(10));
    assert!(admitted[10..].iter().all(|passes| !passes));
    assert_eq!(program.passed(&syn("203.0.113.7", 80), 20), 10, "another list");
    assert_eq!(used(&mut program, "0.0.0.0/0", &of.rules[0].limits[1]), Some(10));
}

#[test]
fn a_reload_keeps_what_groups_have_used_and_a_rule_of_groups_alone_holds_them() {
    needs_root!();
    let alone = |amount| policy(&[connections(amount, PREFIX)]);
    let mut program = Program::new(&alone(5));
    let mut sources = (0..200).map(|host| syn(&format!("198.51.100.{host}"), 80));
    let mut admitted =
        |program: &mut Program, of: usize| sources.by_ref().take(of).filter(|frame| program.passes(frame)).count();
    assert_eq!(admitted(&mut program, 20), 5);
    program.apply(&alone(8));
    assert_eq!(admitted(&mut program, 20), 3, "eight in all");
    program.apply(&policy(&[connections(100, Per::Source), connections(8, PREFIX)]));
    assert_eq!(admitted(&mut program, 20), 0, "beside a limit of each source too");
    program.apply(&policy(&[connections(100, Per::Source)]));
    assert_eq!(admitted(&mut program, 20), 20);
}

#[test]
fn a_source_and_its_group_are_reset_apart() {
    needs_root!();
    let mut program = Program::new(&grouped(3, 5));
    let (source, other) = (syn("198.51.100.0", 80), syn("198.51.100.9", 80));
    assert_eq!(program.passed(&source, 10) + program.passed(&other, 10), 5);
    let clients = |program: &mut Program, within: &str| -> Vec<String> {
        let clients = program.kernel().clients(within.parse().unwrap()).unwrap();
        clients.iter().map(ToString::to_string).collect()
    };
    assert_eq!(clients(&mut program, "198.51.100.0/32"), ["198.51.100.0/32"]);
    let all = ["198.51.100.0/24", "198.51.100.0/32", "198.51.100.9/32"];
    assert_eq!(clients(&mut program, "198.51.100.0/24"), all);
    // The first address of a group has the group's bytes as its key.
    let removed = program.kernel().forget_all(&["198.51.100.0/32".parse().unwrap()]).unwrap();
    assert_eq!((removed.windows, removed.limits), (1, 1));
    assert_eq!(program.passed(&source, 10), 0, "its group has used all");
    program.kernel().forget_all(&["198.51.100.0/24".parse().unwrap()]).unwrap();
    assert_eq!(program.passed(&source, 10), 3);
}

#[test]
fn windows_of_an_address_include_those_of_its_groups() {
    needs_root!();
    let mut program = Program::new(&grouped(3, 5));
    for host in 0..4 {
        program.passes(&syn(&format!("198.51.100.{host}"), 80));
    }
    let address: IpAddr = "198.51.100.2".parse().unwrap();
    let mut prefixes: Vec<_> =
        program.kernel().sources(&[address]).unwrap()[0].iter().map(|of| of.prefix.to_string()).collect();
    prefixes.sort_unstable();
    assert_eq!(prefixes, ["198.51.100.0/24", "198.51.100.2/32"]);
}

/// Starts a daemon on these interfaces with the text of a `[rule]` table.
fn start(lab: &Lab, interfaces: &str, rule: &str) -> Daemon {
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = {interfaces}\nsocket = \"{}\"", lab.socket().display());
    fs::write(&file, format!("{top}\n[rule]\n{rule}\n")).unwrap();
    lab.start(&["run", "--config", file.to_str().unwrap()])
}

fn sum(stats: &serde_json::Value, key: &str) -> u64 {
    [0, 1].iter().map(|interface| number(stats, &format!("/interfaces/{interface}/packets/{key}"))).sum()
}

#[test]
fn two_cpus_admit_exactly_the_limit_of_a_group_of_256_sources() {
    needs_root!(thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2).then(|| "needs two CPUs".to_owned()));
    const EACH: u64 = 20_000;
    const LIMIT: u64 = 5_000;
    let lab = Lab::quiet();
    lab.connect_second_ends();
    let limits = format!("limits = [\"10000/1h connections\", \"{LIMIT}/1h connections per /24,/56\"]");
    let _daemon = start(&lab, "[\"s0\", \"s1\"]", &limits);
    thread::scope(|scope| {
        for (cpu, interface) in [(0, "c0"), (1, "c1")] {
            let lab = &lab;
            scope.spawn(move || {
                let mut only = CpuSet::new();
                only.set(cpu).unwrap();
                sched_setaffinity(Pid::from_raw(0), &only).unwrap();
                let sender = PacketSocket::sender(&lab.client, interface).unwrap();
                let frames: Vec<_> = (0..256).map(|host| syn(&format!("198.51.100.{host}"), 80)).collect();
                for frame in frames.iter().cycle().take(usize::try_from(EACH).unwrap()) {
                    sender.send(frame).unwrap();
                }
            });
        }
    });
    let stats = lab.stats_once(|stats| sum(stats, "received") == 2 * EACH);
    assert_eq!([sum(&stats, "passed"), sum(&stats, "dropped")], [LIMIT, 2 * EACH - LIMIT], "{stats:#}");
}

/// Returns a frame to the server's port 80 in the name of another address of the owner's prefix.
fn forged(host: u8, protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut frame = frame(IPV4, V4 { source: [10, 9, 0, host], ..V4::of(protocol) }.around(payload));
    frame[14 + 16..14 + 20].copy_from_slice(&[10, 9, 0, 1]);
    frame
}

#[test]
fn forged_sources_of_a_prefix_take_nothing_from_its_open_connections_and_ban_nobody() {
    needs_root!();
    const OWNER: &str = CLIENTS[0];
    const DROPPED_AFTER: Duration = Duration::from_millis(800);
    let lab = Lab::new();
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    let web = SocketAddr::new(SERVER[0].parse().unwrap(), 80);
    let _web = nginx(&lab.server, lab.directory(), &[web]).unwrap();
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let rule = "limits = [\"1000/1h packets\", \"400/1h packets per /24,/56\", \"20/1h requests per /24,/56\"]\n\
                block_for = \"1h\"";
    let _daemon = start(&lab, "[\"s0\"]", rule);
    let mut stream = lab.open(OWNER, 80);
    assert!(is_answered(&mut stream, HANGS_AFTER));
    for host in (100..250).cycle().take(1_000) {
        for (protocol, payload) in [
            (TCP, tcp_with(80, SYN, &[], &[])),
            (TCP, tcp_with(80, ACK, &[], b"GET / HTTP/1.1\r\n\r\n")),
            (UDP, udp(80, [7; 100])),
        ] {
            sender.send(&forged(host, protocol, payload)).unwrap();
        }
    }
    let stats = lab.stats_once(|stats| number(stats, "/interfaces/0/packets/received") >= 3_000);
    let [refused, banned] = ["/reasons/over_limit", "/sources/banned"].map(|place| number(&stats, place));
    assert!(refused > 2_500, "{stats:#}");
    assert_eq!(banned, 0, "{stats:#}");
    for _ in 0..19 {
        assert!(is_answered(&mut stream, HANGS_AFTER), "verified traffic has the group's limit for itself");
    }
    assert!(!is_answered(&mut stream, DROPPED_AFTER), "the twenty-first request of the group");
    assert_eq!(number(&lab.stats(), "/sources/banned"), 0, "what a group is refused is no proof of one of its sources");
}
