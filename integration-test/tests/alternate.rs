//! Two configurations of maximum size, applied in turn under load. No packet meets parts of both, and no count is lost.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use integration_test::frames::syn;
use integration_test::lab::{CLIENTS, Lab, packets};
use netlab::{PacketSocket, needs_root};

const ENTRIES: u32 = 100_000;
const RULES: usize = 64;
const RELOADS: u32 = 10;
/// Number of a list's entries that differ between two versions of the same side. In every third round all differ.
const CHANGED: u32 = 1_000;
const ALL_CHANGE_EVERY: u32 = 3;
/// Maximum CPU time of the daemon for a reload, by the median of each kind. The machine has other load.
const RELOAD_CPU_MAX: Duration = Duration::from_secs(1);

/// A configuration. It differs from the other in everything that concerns a packet from the client to port 80.
struct Side {
    /// Rule for port 80, and the key of the list with the client.
    judge: &'static str,
    list: &'static str,
    /// Rule that the other side has for port 80, with another port here.
    bystander: &'static str,
}

const SIDES: [Side; 2] = [
    Side { judge: "left", list: "deny", bystander: "right" },
    Side { judge: "right", list: "allow", bystander: "left" },
];

/// The only valid verdicts on a packet to port 80: rule and reason.
const WHOLE: [(&str, &str); 2] = [("left", "denied"), ("right", "exempt")];

/// Writes one side's file and its list, with the round's number in most or all of the list's entries.
fn write(lab: &Lab, side: usize, round: u32) {
    let Side { judge, list, bystander } = &SIDES[side];
    let mut entries = format!("{}\n", CLIENTS[0]);
    // The other entries stay as they were when this side last changed all of them.
    let since = (0..=round).rev().step_by(2).find(|round| round.is_multiple_of(ALL_CHANGE_EVERY)).unwrap_or(0);
    for entry in 1..ENTRIES {
        let round = if entry < CHANGED { round } else { since };
        let address = 0x1400_0000 + round * 2 * ENTRIES + entry * 2;
        let _infallible = writeln!(entries, "{}", Ipv4Addr::from(address));
    }
    fs::write(lab.directory().join(format!("{list}.txt")), entries).unwrap();

    let judge = format!(
        "[[rule]]\nname = \"{judge}\"\nfrom = [\"10.9.0.0/24\"]\nports = \"80/tcp\"\nlimits = [\"9/1h connections\"]\n"
    );
    let bystander = format!(
        "[[rule]]\nname = \"{bystander}\"\nfrom = [\"10.9.0.0/25\"]\nports = \"82/tcp\"\nlimits = [\"9/1h connections\"]\n"
    );
    let kept = "[[rule]]\nname = \"kept\"\nports = \"81/tcp\"\nlimits = [\"5/1h connections\"]\n".to_owned();
    let others = (0..RULES - 3).map(|at| {
        format!(
            "[[rule]]\nname = \"r{at}\"\nports = \"{}/tcp\"\nlimits = [\"9/1h connections\"]\n",
            1000 + side * 100 + at
        )
    });
    let mut rules: Vec<String> = others.collect();
    // The rules' positions differ too, so that no bit of one configuration means the same in the other.
    let places = if side == 0 { [0, 40, 20] } else { [60, 0, 30] };
    for (place, rule) in places.into_iter().zip([judge, bystander, kept]) {
        rules.insert(place, rule);
    }
    let text = format!(
        "interfaces = [\"s0\"]\nsocket = \"{}\"\nmax_sources = 4096\n{list} = [\"file:{list}.txt\"]\n{}",
        lab.socket().display(),
        rules.concat()
    );
    fs::write(lab.directory().join("ratelimitd.toml"), text).unwrap();
}

/// Returns the number of judged packets, by rule and reason. Packets without a rule are under "".
fn judged(lab: &Lab) -> BTreeMap<(String, String), u64> {
    // Read over the socket, because TCP may serve values that are a second old.
    let mut stream = UnixStream::connect(lab.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    let label = |line: &str, name: &str| {
        let from = line.split_once(&format!("{name}=\"")).unwrap().1;
        from.split_once('"').unwrap().0.to_owned()
    };
    let lines = metrics.lines().filter(|line| line.starts_with("ratelimitd_packets_total{"));
    let counted = lines.map(|line| {
        let count: u64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        ((label(line, "rule"), label(line, "reason")), count)
    });
    counted.filter(|(_, count)| *count != 0).collect()
}

#[test]
fn no_packet_is_judged_by_half_a_configuration_and_no_count_is_lost() {
    needs_root!();
    let lab = Lab::quiet();
    write(&lab, 0, 0);
    let daemon = lab.start(&["run", "--config", lab.directory().join("ratelimitd.toml").to_str().unwrap()]);
    let is_over = AtomicBool::new(false);
    let (mut sent, mut took) = (0, [Vec::new(), Vec::new()]);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
            let probe = syn(CLIENTS[0], 80);
            let mut sent = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                sender.send(&probe).unwrap();
                sent += 1;
            }
            sent
        });
        let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
        let kept = syn(CLIENTS[1], 81);
        for round in 1..=RELOADS {
            write(&lab, round as usize % 2, round);
            let before = daemon.child.cpu_time().unwrap();
            let reloaded = lab.ratelimitd(&["reload"]);
            let spent = daemon.child.cpu_time().unwrap() - before;
            took[usize::from(round.is_multiple_of(ALL_CHANGE_EVERY))].push(spent);
            if reloaded.code() != 0 {
                is_over.store(true, Ordering::Relaxed);
                panic!("{}", reloaded.stderr);
            }
            sender.send(&kept).unwrap();
            sent += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        sent += load.join().unwrap();
    });
    took.iter_mut().for_each(|took| took.sort_unstable());
    let [some_change, all_change] = &took;
    println!(
        "{sent} packets; reloads with {CHANGED} new entries took {some_change:?} of CPU, with {ENTRIES} {all_change:?}"
    );
    lab.stats_once(|stats| packets(stats)[0] == sent);
    let mut judged = judged(&lab);
    for (reason, count) in [("within_limit", 5), ("over_limit", u64::from(RELOADS) - 5)] {
        assert_eq!(judged.remove(&("kept".to_owned(), reason.to_owned())), Some(count), "{judged:?}");
    }
    let wholes = WHOLE.map(|(rule, reason)| judged.remove(&(rule.to_owned(), reason.to_owned())).unwrap_or(0));
    assert!(judged.is_empty(), "judged by half a configuration: {judged:?}");
    assert!(wholes.iter().all(|count| *count > u64::from(RELOADS)), "both were met: {wholes:?}");
    assert_eq!(wholes.iter().sum::<u64>() + u64::from(RELOADS), sent);
    assert!(took.iter().all(|took| took[took.len() / 2] < RELOAD_CPU_MAX), "{took:?}");
}
