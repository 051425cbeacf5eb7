//! Cost of a fleet: 4 hosts with 10 000 active sources each, an interval of one second, one server.
//!
//! Prints commands and bytes per second and host, and the CPU time of the server and of each host's task. An ordinary
//! build does not optimise the client. For usable figures run `cargo test --release -p ratelimit-fleet --test cost --
//! --nocapture`.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

#[path = "support/hosts.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod hosts;
#[path = "support/servers.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod servers;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use hosts::Host;
use ipnet::IpNet;
use servers::{Guard, Server, Store, program};

const HOSTS: u8 = 4;
const SOURCES: u32 = 10_000;
const SECONDS: u64 = 20; // two buckets
const PARTS: u32 = 50;

struct Usage {
    calls: f64,
    commands: f64,
    bytes_in: f64,
    bytes_out: f64,
    server_cpu: f64,
    own_cpu: f64,
    at: Instant,
}

fn info(server: &Server, section: &str, field: &str) -> f64 {
    let text: String = server.ask(&format!("INFO {section}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().parse().unwrap()
}

fn own_cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn usage(server: &Server) -> Usage {
    Usage {
        calls: calls(server),
        commands: info(server, "stats", "total_commands_processed"),
        bytes_in: info(server, "stats", "total_net_input_bytes"),
        bytes_out: info(server, "stats", "total_net_output_bytes"),
        server_cpu: info(server, "cpu", "used_cpu_sys") + info(server, "cpu", "used_cpu_user"),
        own_cpu: own_cpu(),
        at: Instant::now(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_hosts_with_ten_thousand_sources_each_stay_within_the_stated_cost() {
    let Some(program) = program("four_hosts_with_ten_thousand_sources") else { return };
    let store = Store::single(&program, Guard::Open);
    let server = &store.servers[0];
    let hosts: Vec<Host> =
        (1..=HOSTS).map(|number| Host::begin(number, HOSTS.into(), "web", 7, &store.access())).collect();
    let source = |number: u32| IpNet::from(IpAddr::from(Ipv4Addr::from(0x0a00_0000 + number)));
    for number in 0..SOURCES {
        hosts.iter().for_each(|host| assert_eq!(host.send(source(number), 16), 16));
        if number % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = usage(server);
    let mut sending = 0.0;
    for _ in 0..SECONDS {
        // Each source sends once per second to each host, spread over the second.
        let began = Instant::now();
        for part in 0..PARTS {
            let cpu = own_cpu();
            let numbers = part * (SOURCES / PARTS)..(part + 1) * (SOURCES / PARTS);
            numbers.for_each(|number| {
                hosts.iter().for_each(|host| {
                    host.send(source(number), 1);
                })
            });
            sending += own_cpu() - cpu;
            let due = Duration::from_secs(1) / PARTS * (part + 1);
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
    }
    let after = usage(server);
    let seconds = (after.at - before.at).as_secs_f64();
    let per_host = |total: f64| total / seconds / f64::from(HOSTS);
    // The server also counts commands inside scripts: one EVALSHA runs HMGET, HSET and PEXPIRE for each key.
    let status = hosts[0].fleet.status();
    let rounds: u64 = hosts.iter().map(|host| host.fleet.status().rounds).sum();
    let calls = per_host(after.calls - before.calls);
    println!("hosts {HOSTS}, sources {SOURCES} each, {seconds:.1} s, rounds in all {rounds}");
    println!(
        "calls a second and host: {calls:.1}; with those of scripts: {:.0}",
        per_host(after.commands - before.commands)
    );
    let (up, down) = (per_host(after.bytes_in - before.bytes_in), per_host(after.bytes_out - before.bytes_out));
    println!("kB a second and host: {:.0} up, {:.0} down", up / 1000.0, down / 1000.0);
    println!("server: {:.1} % of a CPU", (after.server_cpu - before.server_cpu) / seconds * 100.0);
    let own = (after.own_cpu - before.own_cpu - sending) / seconds * 100.0;
    println!("each host: {:.1} % of a CPU, kernel in memory and locks among it", own / f64::from(HOSTS));
    println!("memory of the server: {:.1} MB", info(server, "memory", "used_memory") / 1e6);
    println!("tracked {}, reports lost {}, failed {:?}", status.tracked, status.counters.reports_lost, status.failed);
    assert_eq!(status.tracked, SOURCES as usize);
    assert_eq!(status.counters.reports_lost, 0);
    assert!(calls <= 40.0, "{calls}");
    assert!(up + down <= 650e3, "{up} {down}");
}

/// Returns the number of EVALSHA and EVAL calls that clients made.
fn calls(server: &Server) -> f64 {
    let text: String = server.ask("INFO commandstats").unwrap();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":calls="));
        line.map_or(0.0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    of("cmdstat_evalsha") + of("cmdstat_eval")
}
