//! Tests of two CPUs at the edge of one source's limit. Exactly as many packets are admitted as the limit says.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, frame, tcp, v4};
use integration_test::lab::{Daemon, Lab, heard, number};
use netlab::{PacketSocket, needs_root};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Returns the reason why two CPUs cannot race here, or `None`.
fn why_one_cpu_is_too_few() -> Option<String> {
    thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2).then(|| "needs two CPUs".to_owned())
}

/// Starts one daemon on two interfaces that share the counts, with additional options.
fn two_wires(limit: &str, more: &[&str]) -> (Lab, Daemon) {
    let lab = Lab::quiet();
    lab.connect_second_ends();
    let options = ["--iface", "s0", "--iface", "s1", "--limit", limit, "--count", "connections"];
    let daemon = lab.start(&[&options[..], more].concat());
    (lab, daemon)
}

fn listeners(lab: &Lab) -> [PacketSocket; 2] {
    ["s0", "s1"].map(|interface| PacketSocket::listener(&lab.server, interface).unwrap())
}

/// Sends on two CPUs and two interfaces at once. A veth's receiving end runs on its sender's CPU.
fn on_both_cpus<T: Send>(lab: &Lab, send: impl Fn(&PacketSocket) -> T + Sync) -> [T; 2] {
    let on = |cpu, interface| {
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        send(&PacketSocket::sender(&lab.client, interface).unwrap())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| on(1, "c1"));
        let one = scope.spawn(|| on(0, "c0"));
        [one.join().unwrap(), other.join().unwrap()]
    })
}

fn syn() -> Vec<u8> {
    frame(IPV4, v4(TCP, tcp(80, SYN)))
}

fn sum(stats: &serde_json::Value, key: &str) -> u64 {
    [0, 1].iter().map(|interface| number(stats, &format!("/interfaces/{interface}/packets/{key}"))).sum()
}

#[test]
fn two_cpus_admit_exactly_the_limit_of_one_source() {
    needs_root!(why_one_cpu_is_too_few());
    const EACH: u64 = 30_000;
    for limit in [1_u64, 1000, 20_000] {
        let (lab, _daemon) = two_wires(&format!("{limit}/1h"), &[]);
        let listeners = listeners(&lab);
        on_both_cpus(&lab, |sender| (0..EACH).for_each(|_| sender.send(&syn()).unwrap()));
        let stats = lab.stats_once(|stats| sum(stats, "received") == 2 * EACH);
        assert_eq!([sum(&stats, "passed"), sum(&stats, "dropped")], [limit, 2 * EACH - limit], "{stats:#}");
        assert_eq!(number(&stats, "/top/0/used"), limit, "{stats:#}");
        let arrived: usize = listeners.iter().map(heard).sum();
        assert_eq!(u64::try_from(arrived).unwrap(), limit);
    }
}

#[test]
fn two_cpus_admit_exactly_the_limit_of_a_known_source_while_forged_ones_flood() {
    needs_root!(why_one_cpu_is_too_few());
    const EACH: u64 = 20_000;
    const LIMIT: u64 = 5_000;
    const FORGED_BESIDE_EACH: u64 = 4;
    let (lab, _daemon) = two_wires(&format!("{LIMIT}/1h"), &["--max-sources", "4096"]);
    // The source is known from its second packet on.
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    (0..2).for_each(|_| sender.send(&syn()).unwrap());
    lab.stats_once(|stats| sum(stats, "received") == 2);
    let forged = AtomicU32::new(0);
    on_both_cpus(&lab, |sender| {
        let mut other = syn();
        for _ in 0..EACH {
            sender.send(&syn()).unwrap();
            for _ in 0..FORGED_BESIDE_EACH {
                // Each source of 20.0.0.0/6 is used once, and belongs to nobody.
                let source = 20 << 24 | forged.fetch_add(1, Ordering::Relaxed);
                other[26..30].copy_from_slice(&source.to_be_bytes());
                sender.send(&other).unwrap();
            }
        }
    });
    let stats = lab.stats_once(|stats| sum(stats, "received") == 2 + 2 * EACH * (1 + FORGED_BESIDE_EACH));
    assert!(number(&stats, "/sources/not_admitted") > EACH, "there was no overload: {stats:#}");
    let [used, refused] = ["used", "dropped"].map(|key| number(&stats, &format!("/top/0/{key}")));
    assert_eq!([used, refused], [LIMIT, 2 + 2 * EACH - LIMIT], "{stats:#}");
}

#[test]
fn no_window_in_real_time_has_more_than_the_limit_while_buckets_turn() {
    needs_root!(why_one_cpu_is_too_few());
    const LIMIT: usize = 200;
    const WINDOW: Duration = Duration::from_secs(1);
    /// Tolerance for the packet path's coarse clock, a tick of at most 10 ms late, and for stamps after the verdict.
    const SLACK: Duration = Duration::from_millis(15);
    let (lab, _daemon) = two_wires(&format!("{LIMIT}/1s"), &[]);
    let listeners = listeners(&lab);
    let start = Instant::now();
    let sent = on_both_cpus(&lab, |sender| {
        let mut sent = 0;
        // At first the rate of the limit, so that admissions fall into every bucket; then as fast as possible.
        while start.elapsed() < Duration::from_millis(4500) {
            sender.send(&syn()).unwrap();
            sent += 1;
            if start.elapsed() < Duration::from_millis(1500) {
                thread::sleep(Duration::from_millis(8));
            }
        }
        sent
    });
    let mut admitted: Vec<Duration> = listeners
        .iter()
        .flat_map(|listener| std::iter::from_fn(|| listener.receive_at().unwrap()))
        .map(|(at, _)| at)
        .collect();
    admitted.sort_unstable();
    let shortest = admitted.windows(LIMIT + 1).map(|run| run[LIMIT] - run[0]).min().unwrap();
    assert!(shortest + SLACK >= WINDOW, "{} were admitted within {shortest:?}", LIMIT + 1);
    let stats = lab.stats_once(|stats| sum(stats, "received") == sent.iter().sum::<u64>());
    assert_eq!(sum(&stats, "passed"), u64::try_from(admitted.len()).unwrap(), "{stats:#}");
    // Delayed by at most one bucket in five. Nothing due is withheld for good.
    assert!(admitted.len() >= LIMIT * 3, "only {} of some 800 were admitted", admitted.len());
    println!("{} of {sent:?} admitted; {} within {shortest:?} at the least", admitted.len(), LIMIT + 1);
}

#[test]
fn two_cpus_on_one_source_admit_exactly_the_limit_with_the_drop_cache() {
    needs_root!(why_one_cpu_is_too_few());
    const EACH: u64 = 40_000;
    const LIMIT: u64 = 500;
    let (lab, _daemon) = two_wires(&format!("{LIMIT}/1h"), &[]);
    let listeners = listeners(&lab);
    // One entry for each port, and both CPUs at both entries.
    let syns: Vec<_> = [80, 443].map(|port| frame(IPV4, v4(TCP, tcp(port, SYN)))).into();
    on_both_cpus(&lab, |sender| {
        syns.iter().cycle().take(usize::try_from(EACH).unwrap()).for_each(|syn| sender.send(syn).unwrap());
    });
    let stats = lab.stats_once(|stats| sum(stats, "received") == 2 * EACH);
    assert_eq!([sum(&stats, "passed"), sum(&stats, "dropped")], [LIMIT, 2 * EACH - LIMIT], "{stats:#}");
    let arrived: usize = listeners.iter().map(heard).sum();
    assert_eq!(u64::try_from(arrived).unwrap(), LIMIT);
    let [used, refused] = ["used", "dropped"].map(|key| number(&stats, &format!("/top/0/{key}")));
    assert_eq!(used, LIMIT, "{stats:#}");
    assert_eq!(refused, 2 * EACH - LIMIT, "all that was refused is the source's");
}
