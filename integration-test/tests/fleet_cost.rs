//! What a fleet costs with real maps: four hosts, each with as many active sources as it is to bear, the daemon as it is
//! built. Prints commands and bytes a second, and the CPU of each daemon and of the store.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, Host};
use integration_test::frames::proto::UDP;
use integration_test::frames::{IPV4, V4, frame, padded, udp};
use netlab::needs_root;
use ratelimit_datapath::kernel::{Flood, Generator, Order, Sources};

/// Sources of each host, a power of two each: together a little more than 10 000.
const BITS: [u8; 2] = [13, 11];
const SOURCES: u64 = (1 << BITS[0]) + (1 << BITS[1]);
/// Parts of a second in which each sends once.
const PARTS: u32 = 32;
const BEFORE: u64 = 15; // more than a bucket: all are reported, and the window has several
const SECONDS: u64 = 20; // two buckets
/// Nobody is refused, and a step is few packets.
const RULES: &str = "[[rule]]\nname = \"web\"\nports = \"9/udp\"\nlimits = [\"400/1m packets\"]\nfleet_sum = \"all\"";

/// The sources of one host; the same on all.
struct Crowd([(Generator, u64); 2]);

impl Crowd {
    fn of(fleet: &Fleet, host: &Host) -> Self {
        let shown = host.namespace.ip(&["-br", "link", "show", "dev", "s0"]).unwrap();
        let link = shown.split_whitespace().nth(2).unwrap();
        let link = link.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
        let mut packet = frame(IPV4, V4 { source: [0; 4], ..V4::of(UDP) }.around(udp(9, [])));
        packet.splice(..6, link);
        packet[30..34].copy_from_slice(&[10, 9, u8::try_from(host.number).unwrap(), 1]);
        let packet = padded(packet, 60);
        let interface = format!("c{}", host.number);
        Self([(20, BITS[0]), (21, BITS[1])].map(|(first, bits)| {
            let sources = Sources { first: [first, 0, 0, 0].into(), bits, order: Order::InTurn, host_bits: 0 };
            let flood = Flood { frame: packet.clone(), sources, others: None, connections: None };
            let generator = fleet.client.inside(|| Ok(Generator::load(&flood, &interface)?)).unwrap();
            (generator, 1 << bits)
        }))
    }

    fn send_part(&mut self, fleet: &Fleet) {
        for (generator, sources) in &mut self.0 {
            fleet.client.inside(|| Ok(generator.send(u32::try_from(*sources).unwrap() / PARTS)?)).unwrap();
        }
    }
}

/// Each source of each host sends once a second.
fn send(fleet: &Fleet, crowds: &mut [Crowd], seconds: u64) {
    let began = Instant::now();
    for part in 0..u32::try_from(seconds).unwrap() * PARTS {
        crowds.iter_mut().for_each(|crowd| crowd.send_part(fleet));
        let due = Duration::from_secs(1) / PARTS * (part + 1);
        sleep(due.saturating_sub(began.elapsed()));
    }
}

/// Seconds of CPU that a process has had.
fn cpu_of(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

struct Usage {
    daemons: f64,
    calls: f64,
    bytes: (f64, f64),
    server: f64,
    at: Instant,
}

fn usage(fleet: &Fleet) -> Usage {
    let server = &fleet.store.servers[0];
    let pid = |host: &Host| host.daemon.as_ref().unwrap().id();
    let calls: String = server.ask("INFO commandstats").unwrap();
    let of = |name: &str| {
        let line = calls.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":calls="));
        line.map_or(0.0, |line| line.split(',').next().unwrap().parse::<f64>().unwrap())
    };
    let number = |section: &str, name: &str| {
        let text: String = server.ask(&format!("INFO {section}")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().parse::<f64>().unwrap()
    };
    Usage {
        daemons: fleet.hosts.iter().map(|host| cpu_of(pid(host))).sum(),
        calls: of("cmdstat_evalsha") + of("cmdstat_eval"),
        bytes: (number("stats", "total_net_input_bytes"), number("stats", "total_net_output_bytes")),
        server: number("cpu", "used_cpu_sys") + number("cpu", "used_cpu_user"),
        at: Instant::now(),
    }
}

#[test]
#[ignore = "opt-in: cargo xtask test --tier fleet"]
fn four_hosts_with_ten_thousand_active_sources_each_cost_what_is_stated() {
    needs_root!(store::obstacle());
    let mut fleet = Fleet::new(4, Kind::Single);
    fleet.configure("", &fleet.store.settings(), RULES);
    fleet.start();
    let idle = usage(&fleet);
    sleep(Duration::from_secs(5));
    let still = usage(&fleet);
    let mut crowds: Vec<Crowd> = fleet.hosts.iter().map(|host| Crowd::of(&fleet, host)).collect();
    send(&fleet, &mut crowds, BEFORE);
    let before = usage(&fleet);
    send(&fleet, &mut crowds, SECONDS);
    let after = usage(&fleet);
    let hosts = fleet.hosts.len() as f64;
    let per_second = |from: f64, to: f64| (to - from) / (after.at - before.at).as_secs_f64();
    let cpu = per_second(before.daemons, after.daemons) / hosts * 100.0;
    let idle = (still.daemons - idle.daemons) / (still.at - idle.at).as_secs_f64() / hosts * 100.0;
    let (calls, server) =
        (per_second(before.calls, after.calls) / hosts, per_second(before.server, after.server) * 100.0);
    let up = per_second(before.bytes.0, after.bytes.0) / hosts / 1000.0;
    let down = per_second(before.bytes.1, after.bytes.1) / hosts / 1000.0;
    println!("measured: cost: active sources | {SOURCES}");
    println!("measured: cost: commands a second | {calls:.0}");
    println!("measured: cost: kB a second, up and down | {up:.0} and {down:.0}");
    println!("measured: cost: the whole daemon, of a CPU | {cpu:.1} %");
    println!("measured: cost: the same without traffic | {idle:.1} %");
    println!("measured: cost: the store, for all hosts, of a CPU | {server:.1} %");
    for host in &fleet.hosts {
        let stats = host.stats();
        let of = &stats["fleet"];
        println!(
            "host {}: {} sources, {} reports, {} lost",
            host.number, of["sources"], of["reports"], of["reports_lost"]
        );
        assert_eq!(of["sources"], SOURCES);
        assert_eq!(of["reports_lost"], 0);
        assert_eq!(of["rounds_failed"], 0);
        assert_eq!(stats["rules"][0]["dropped"], 0);
    }
    assert!(calls <= 64.0, "{calls} commands a second");
    assert!(up + down <= 1000.0, "{up} and {down} kB a second");
}
