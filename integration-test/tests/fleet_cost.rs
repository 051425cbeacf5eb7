//! Cost of a fleet with real maps: four hosts with the maximum number of active sources, and the daemon as built.
//! Prints commands and bytes per second, and the CPU time of each daemon and of the store.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, Host};
use integration_test::frames::proto::UDP;
use integration_test::frames::{IPV4, V4, frame, padded, udp};
use netlab::{Namespace, needs_root};
use ratelimit_kernel::{Flood, Generator, Order, Sources};

/// Sources of each host, as a power of two. With its neighbour's sources a host has more than [`ACTIVE_MIN`].
const BITS: u8 = 13;
const SOURCES: u32 = 1 << BITS;
const ACTIVE_MIN: u64 = 10_000;
/// Maximum CPU use of the daemon in percent, for [`ACTIVE_MIN`] sources.
const CPU_MAX: f64 = 5.0;
/// Number of parts of a second. Each source sends once in one of them.
const PARTS: u32 = 4;
const BEFORE: u64 = 15; // more than a bucket: all are reported, and the window has several
const SECONDS: u64 = 20; // two buckets
/// Rule with a step of 8 packets, which a source sends in each bucket. No source is refused in so few seconds.
const RULES: &str = "[[rule]]\nname = \"web\"\nports = \"9/udp\"\nlimits = [\"64/1m packets\"]\nfleet_sum = \"all\"";
/// Ratio of a source's packets to its own host and to the next one. Both hosts then have sums of others to write.
const ELSEWHERE: u32 = 8;

/// Sources of one host, which also send to the next host.
struct Crowd {
    here: Generator,
    there: Generator,
}

impl Crowd {
    fn of(fleet: &Fleet, host: &Host) -> Self {
        let next = &fleet.hosts[(host.number + 1) % fleet.hosts.len()];
        let first = 20 + u8::try_from(host.number).unwrap();
        Self { here: generator(fleet, host, first), there: generator(fleet, next, first) }
    }

    /// Sends each source's packets once per second. A call waits for the kernel's readers, so crowds send in parallel.
    fn send(&mut self, client: &Namespace, seconds: u64) {
        let began = Instant::now();
        for part in 0..u32::try_from(seconds).unwrap() * PARTS {
            for (generator, packets) in
                [(&mut self.here, SOURCES / PARTS), (&mut self.there, SOURCES / PARTS / ELSEWHERE)]
            {
                client.inside(|| Ok(generator.send(packets)?)).unwrap();
            }
            let due = Duration::from_secs(1) / PARTS * (part + 1);
            let late = began.elapsed().saturating_sub(due);
            assert!(late < Duration::from_secs(1), "this machine sends too slowly: {late:?} late");
            sleep(due.saturating_sub(began.elapsed()));
        }
    }
}

/// Returns a generator of packets to a host from [`SOURCES`] sources with this first byte.
fn generator(fleet: &Fleet, to: &Host, first: u8) -> Generator {
    let shown = to.namespace.ip(&["-br", "link", "show", "dev", "s0"]).unwrap();
    let link = shown.split_whitespace().nth(2).unwrap();
    let link = link.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let mut packet = frame(IPV4, V4 { source: [0; 4], ..V4::of(UDP) }.around(udp(9, [])));
    packet.splice(..6, link);
    packet[30..34].copy_from_slice(&[10, 9, u8::try_from(to.number).unwrap(), 1]);
    let sources = Sources { first: [first, 0, 0, 0].into(), bits: BITS, order: Order::InTurn, host_bits: 0 };
    let flood = Flood { frame: padded(packet, 60), sources, others: None, connections: None };
    let interface = format!("c{}", to.number);
    fleet.client.inside(|| Ok(Generator::load(&flood, &interface)?)).unwrap()
}

/// Sends from the crowds of all hosts, for this many seconds.
fn send(fleet: &Fleet, crowds: &mut [Crowd], seconds: u64) {
    let client = &fleet.client;
    thread::scope(|scope| {
        for crowd in crowds {
            scope.spawn(move || crowd.send(client, seconds));
        }
    });
}

/// Returns the seconds of CPU time that a process has used.
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
    sleep(Duration::from_secs(5));
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
    let stats: Vec<_> = fleet.hosts.iter().map(Host::stats).collect();
    let sources = stats.iter().map(|stats| stats["fleet"]["sources"].as_u64().unwrap()).min().unwrap();
    let cpu_of_min = cpu * ACTIVE_MIN as f64 / sources as f64;
    println!("measured: cost: active sources of a host | {sources}");
    println!("measured: cost: commands a second | {calls:.0}");
    println!("measured: cost: kB a second, up and down | {up:.0} and {down:.0}");
    println!("measured: cost: the whole daemon, of a CPU | {cpu:.1} %");
    println!("measured: cost: the same, of {ACTIVE_MIN} sources | {cpu_of_min:.1} %");
    println!("measured: cost: the same without traffic | {idle:.1} %");
    println!("measured: cost: the store, for all hosts, of a CPU | {server:.1} %");
    assert!(sources >= ACTIVE_MIN, "{sources} active sources");
    for (host, stats) in stats.iter().enumerate() {
        let of = &stats["fleet"];
        println!("host {host}: {} sources, {} reports, {} lost", of["sources"], of["reports"], of["reports_lost"]);
        assert_eq!(of["reports_lost"], 0);
        assert_eq!(of["rounds_failed"], 0);
        assert_eq!(stats["rules"][0]["dropped"], 0);
    }
    assert!(cpu_of_min < CPU_MAX, "{cpu_of_min} % of a CPU");
    assert!(calls <= 64.0, "{calls} commands a second");
    assert!(up + down <= 1000.0, "{up} and {down} kB a second");
}
