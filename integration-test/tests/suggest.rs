//! Test of `suggest` with a mixed load through the real binary. The proposal is tested with the same load.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, tcp};
use integration_test::lab::{Daemon, Lab, assert_refused, number, packets};
use netlab::{PacketSocket, needs_root};
use nix::sys::signal::Signal;
use serde_json::Value;

const TICK: Duration = Duration::from_millis(100);
/// Number of ticks, which last longer than the window of ten seconds.
const TICKS: u64 = 140;
const ORDINARY: u32 = 150;
/// Rates of the heavy sources, in connections per second.
const HEAVY: [u64; 4] = [12, 20, 45, 200];
const FIRST_HEAVY: Ipv4Addr = Ipv4Addr::new(20, 9, 0, 1);
const FIRST_ORDINARY: Ipv4Addr = Ipv4Addr::new(20, 1, 0, 1);

fn nth(first: Ipv4Addr, at: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first) + u32::try_from(at).unwrap())
}

/// Returns the sources that open a connection in each tick, which depend on the seed alone.
fn recorded(seed: u64) -> Vec<Vec<Ipv4Addr>> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut ticks = vec![Vec::new(); usize::try_from(TICKS).unwrap()];
    for source in 0..usize::try_from(ORDINARY).unwrap() {
        for _ in 0..=below(12) {
            ticks[usize::try_from(below(TICKS)).unwrap()].push(nth(FIRST_ORDINARY, source));
        }
    }
    for (source, rate) in HEAVY.into_iter().enumerate() {
        for (tick, opened) in (0..).zip(&mut ticks) {
            let due = |tick: u64| tick * rate / 10;
            opened.extend((due(tick)..due(tick + 1)).map(|_| nth(FIRST_HEAVY, source)));
        }
    }
    ticks
}

fn send(lab: &Lab, load: &[Vec<Ipv4Addr>]) {
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let mut syn = frame(IPV4, V4::of(TCP).around(tcp(80, SYN)));
    let start = Instant::now();
    for (tick, opened) in (0..).zip(load) {
        thread::sleep((start + TICK * tick).saturating_duration_since(Instant::now()));
        for source in opened {
            // Nobody checks the checksum.
            syn[26..30].copy_from_slice(&source.octets());
            sender.send(&syn).unwrap();
        }
    }
    lab.stats_once(|stats| packets(stats)[0] == total(load));
}

fn total(load: &[Vec<Ipv4Addr>]) -> u64 {
    load.iter().map(|tick| u64::try_from(tick.len()).unwrap()).sum()
}

fn suggested(lab: &Lab) -> Value {
    let output = lab.ratelimitd(&["suggest", "--json"]);
    assert_eq!(output.code(), 0, "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

/// Returns the number of refused packets of each of these sources.
fn refused(lab: &Lab, sources: impl Iterator<Item = Ipv4Addr>) -> BTreeMap<Ipv4Addr, u64> {
    let of = |source: Ipv4Addr| {
        let output = lab.ratelimitd(&["check", &source.to_string(), "--json"]);
        let report: Value = serde_json::from_str(&output.stdout).unwrap();
        (source, number(&report, "/limits/0/refused"))
    };
    sources.map(of).collect()
}

#[test]
fn the_limit_that_is_proposed_blocks_the_heavy_clients_and_none_of_the_ordinary() {
    needs_root!();
    let load = recorded(20_261_121);
    let heavy = HEAVY.len() as u64;
    let lab = Lab::quiet();
    let path = lab.directory().join("ratelimitd.toml");
    let write = |mode: &str, limit: &str, candidates: &str| {
        let socket = lab.socket().display().to_string();
        let rule = format!("limits = [\"{limit}\"]\ncount = \"connections\"\nmode = \"{mode}\"\n{candidates}");
        fs::write(&path, format!("interfaces = [\"s0\"]\nsocket = \"{socket}\"\n[rule]\n{rule}\n")).unwrap();
    };
    // The initial guess is far too low, which does not matter, because refused packets count as demand.
    write("dry-run", "3/10s", "");
    let daemon = lab.start(&["run", "--config", path.to_str().unwrap()]);
    send(&lab, &load);
    let report = suggested(&lab);
    let observed = report.pointer("/rules/0/limits/0/observed").unwrap();
    assert_eq!(number(observed, "/wanted"), total(&load), "{report:#}");
    assert_eq!(number(observed, "/sources"), u64::from(ORDINARY) + heavy, "{report:#}");
    assert_eq!(number(observed, "/missed_buckets"), 0, "{report:#}");
    let proposal = report.pointer("/rules/0/limits/0/proposal").unwrap();
    assert_eq!((&proposal["reason"], &proposal["provisional"]), (&"gap".into(), &false.into()), "{report:#}");
    assert_eq!(number(proposal, "/sources_blocked"), heavy, "{report:#}");
    let said = lab.ratelimitd(&["suggest", "--rule", "default"]);
    let line = report.pointer("/rules/0/paste/file").unwrap().as_str().unwrap();
    assert!(said.code() == 0 && said.stdout.contains(line), "{}", said.stdout);
    assert_refused(
        &lab.ratelimitd(&["suggest", "--rule", "nosuch"]),
        2,
        &["there is no rule nosuch; the only rule is default; type: --rule default"],
    );

    // The proposed amount, as a candidate, counts what it would have blocked from now on, beside the known demand.
    let limit = proposal["limit"].as_str().unwrap();
    write("dry-run", "3/10s", &format!("candidates = [\"{limit}\"]"));
    assert_eq!(lab.ratelimitd(&["reload"]).code(), 0);
    let again = suggested(&lab);
    let now = again.pointer("/rules/0/limits/0/observed").unwrap();
    assert_eq!((&now["since"], &now["busiest_window"]), (&observed["since"], &observed["busiest_window"]));
    assert_eq!((&now["candidates"][0]["limit"], now["candidates"].as_array().unwrap().len()), (&limit.into(), 1));
    assert_eq!(daemon.end(Signal::SIGTERM), 0);

    write("enforce", limit, "");
    let _daemon = lab.start(&["run", "--config", path.to_str().unwrap()]);
    send(&lab, &load);
    let ordinary = refused(&lab, (0..usize::try_from(ORDINARY).unwrap()).map(|at| nth(FIRST_ORDINARY, at)));
    assert!(ordinary.values().all(|refused| *refused == 0), "{limit} blocks ordinary clients: {ordinary:?}");
    let heavy = refused(&lab, (0..HEAVY.len()).map(|at| nth(FIRST_HEAVY, at)));
    assert!(heavy.values().all(|refused| *refused > 0), "{limit} lets heavy clients through: {heavy:?}");
}

/// Returns a process's resident memory, in bytes.
fn resident(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_quarter_of_a_million_sources_are_observed_in_little_time_and_memory() {
    needs_root!();
    const SOURCES: u32 = 262_144;
    /// Interval between two rounds of observation for a limit of minutes.
    const ROUND: Duration = Duration::from_secs(30);
    // Leaves spare room, because the kernel evicts entries before its table is full.
    let lab = Lab::quiet();
    let daemon = lab.limit(&["--limit", "1000/5m", "--count", "connections", "--max-sources", "1048576", "--dry-run"]);
    let before = resident(&daemon);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    let mut syn = frame(IPV4, V4::of(TCP).around(tcp(80, SYN)));
    for source in 0..SOURCES {
        syn[26..30].copy_from_slice(&(0x1400_0000 + source).to_be_bytes());
        sender.send(&syn).unwrap();
    }
    lab.stats_once(|stats| packets(stats)[0] == u64::from(SOURCES));
    let cpu = || daemon.child.cpu_time().unwrap();
    let cpu_before = cpu();
    for _ in 0..3 {
        let report = suggested(&lab);
        assert_eq!(number(&report, "/rules/0/limits/0/observed/sources"), u64::from(SOURCES), "{report:#}");
    }
    let (each, grown) = ((cpu() - cpu_before) / 3, resident(&daemon).saturating_sub(before));
    let bytes = grown / u64::from(SOURCES);
    println!("{SOURCES} sources: suggest took {each:?} of CPU; {bytes} B a source");
    assert!(bytes < 320, "{bytes} B a source");
    // Measured by the daemon's own CPU time, whatever else runs on the machine. An answer costs a round and more.
    assert!(each < ROUND / 20, "{each:?} of CPU");
}
