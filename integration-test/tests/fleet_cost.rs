//! What a fleet costs with real maps: four hosts, each with as many active sources as it is to bear, the daemon as it is
//! built. Prints commands and bytes a second, and the CPU of each daemon and of the store.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, Host};
use integration_test::frames::proto::UDP;
use integration_test::frames::{IPV4, V4, frame, padded, udp};
use netlab::{Namespace, needs_root};
use ratelimit_datapath::kernel::{Flood, Generator, Order, Sources};

/// Sources of each host, a power of two. With those of its neighbour that ask it too it has more than [`ACTIVE_MIN`].
const BITS: u8 = 13;
const SOURCES: u32 = 1 << BITS;
const ACTIVE_MIN: u64 = 10_000;
/// What the daemon may need of a CPU, in percent, for [`ACTIVE_MIN`] sources.
const CPU_MAX: f64 = 5.0;
/// Parts of a second in which each sends once.
const PARTS: u32 = 4;
const BEFORE: u64 = 15; // more than a bucket: all are reported, and the window has several
const SECONDS: u64 = 20; // two buckets
/// A step is 8 packets, which a source sends in each bucket. Nobody is refused in so few seconds.
const RULES: &str = "[[rule]]\nname = \"web\"\nports = \"9/udp\"\nlimits = [\"64/1m packets\"]\nfleet_sum = \"all\"";
/// Of what a source sends to its host so much less goes to the next one, which so has others' sums to write.
const ELSEWHERE: u32 = 8;

/// The sources of one host, which ask the next one too.
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

    /// Each source sends once a second. A call takes as long as the kernel waits for its readers: crowds send beside each other.
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

/// Packets to a host from [`SOURCES`] sources, of which this is the first byte.
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

/// The crowds of all hosts for so long.
fn send(fleet: &Fleet, crowds: &mut [Crowd], seconds: u64) {
    let client = &fleet.client;
    thread::scope(|scope| {
        for crowd in crowds {
            scope.spawn(move || crowd.send(client, seconds));
        }
    });
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
    let sources = |host: &Host| host.stats()["fleet"]["sources"].as_u64().unwrap();
    let sources = fleet.hosts.iter().map(sources).min().unwrap();
    let cpu_of_min = cpu * ACTIVE_MIN as f64 / sources as f64;
    println!("measured: cost: active sources of a host | {sources}");
    println!("measured: cost: commands a second | {calls:.0}");
    println!("measured: cost: kB a second, up and down | {up:.0} and {down:.0}");
    println!("measured: cost: the whole daemon, of a CPU | {cpu:.1} %");
    println!("measured: cost: the same, of {ACTIVE_MIN} sources | {cpu_of_min:.1} %");
    println!("measured: cost: the same without traffic | {idle:.1} %");
    println!("measured: cost: the store, for all hosts, of a CPU | {server:.1} %");
    for host in &fleet.hosts {
        let stats = host.stats();
        let of = &stats["fleet"];
        println!(
            "host {}: {} sources, {} reports, {} lost",
            host.number, of["sources"], of["reports"], of["reports_lost"]
        );
        assert!(of["sources"].as_u64().unwrap() >= ACTIVE_MIN);
        assert_eq!(of["reports_lost"], 0);
        assert_eq!(of["rounds_failed"], 0);
        assert_eq!(stats["rules"][0]["dropped"], 0);
    }
    assert!(cpu_of_min < CPU_MAX, "{cpu_of_min} % of a CPU");
    assert!(calls <= 64.0, "{calls} commands a second");
    assert!(up + down <= 1000.0, "{up} and {down} kB a second");
}
