//! A fleet with a store that is slow or comes and goes, and with a host that loses its state. Checks the bound, the log
//! and the list of hosts.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use integration_test::fleet::clients::greedy;
use integration_test::fleet::proxy::Proxy;
use integration_test::fleet::site::most_within;
use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, client_of};
use integration_test::lab::once;
use netlab::needs_root;
use nix::sys::signal::Signal;
use serde_json::Value;

const HOSTS: u64 = 4;
const LIMIT: u64 = 400;
const WINDOW: Duration = Duration::from_secs(60);
const RULES: &str = "[[rule]]\nname = \"web\"\nports = \"80/tcp\"\nlimits = [\"400/1m requests\"]";
const PER_SECOND: u32 = 800;
const BURSTS: usize = 4;

/// Creates a fleet, and a proxy between its hosts and the store.
fn behind_a_proxy() -> (Fleet, Proxy) {
    let mut fleet = Fleet::new(usize::try_from(HOSTS).unwrap(), Kind::Single);
    let proxied = format!("{}:7000", store::ADDRESS);
    let proxy = Proxy::start(&fleet.store.namespace, proxied.parse().unwrap(), fleet.store.servers[0].socket());
    fleet.configure("", &fleet.store.settings(), RULES);
    for host in &fleet.hosts {
        let direct = fs::read_to_string(host.file()).unwrap();
        fs::write(host.file(), direct.replace(&format!("{}:6379", store::ADDRESS), &proxied)).unwrap();
    }
    fleet.start();
    (fleet, proxy)
}

fn report(fleet: &Fleet, host: usize) -> Value {
    serde_json::from_str(&fleet.hosts[host].tell(&["fleet", "--json"])).unwrap()
}

#[test]
fn admissions_behind_a_slow_store_stay_within_the_bound_printed_then() {
    needs_root!(store::obstacle());
    let (fleet, proxy) = behind_a_proxy();
    let mut next = 10;
    for (round_trip_ms, state, words) in [
        (20, "connected", "Store: answered within "),
        (100, "degraded", "the store is slow: it answers within 1"),
        (400, "away", "the store is too slow: it answers within 4"),
    ] {
        proxy.delay(Duration::from_millis(round_trip_ms));
        fleet.wait_for_state(&fleet.all(), state);
        let said = fleet.hosts[0].tell(&["fleet"]);
        let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(line.contains(words), "{said}");
        let metrics = fleet.hosts[0].tell(&["stats", "--json"]);
        assert!(metrics.contains("\"round_trip_seconds\""), "{metrics}");
        for _ in 0..BURSTS {
            let name = client_of(next);
            next += 1;
            let client = fleet.client(&name, 80, greedy(PER_SECOND));
            once(|| (client.answered() >= LIMIT).then_some(())).unwrap();
            netlab::settled(|| Ok(client.answered())).unwrap();
            client.stop();
            let admitted = most_within(&fleet.log.times(&name), WINDOW);
            let report = report(&fleet, 0);
            let (limit, delay) = (&report["fleet"]["limits"][0], report["fleet"]["delay_seconds"].as_f64().unwrap());
            let bound = limit["bound"].as_u64().unwrap();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hundred requests")]
            let during = (f64::from(PER_SECOND) * delay).ceil() as u64;
            let most = (bound + during).min(HOSTS * LIMIT);
            println!("measured: {round_trip_ms} ms: {admitted} admitted, {bound} and {during} within {delay:.2} s");
            assert!((LIMIT..=most).contains(&admitted), "{round_trip_ms} ms: {admitted}, at most {most}");
            let seconds = format!("within {} s", (delay * 100.0).ceil() / 100.0);
            let summed = limit["summed"].as_bool().unwrap();
            let printed = limit["bound_words"].as_str().unwrap();
            assert!(summed == (state != "away") && printed.contains(&seconds), "{printed}: {seconds}");
        }
    }
    proxy.delay(Duration::ZERO);
    fleet.wait_until_connected();
    for host in &fleet.hosts {
        let log = host.daemon.as_ref().unwrap().stderr();
        for words in ["fleet: the store is slow", "fleet: the store is too slow"] {
            let lines = log.lines().filter(|line| line.contains(words)).count();
            assert!((1..=2).contains(&lines), "{words}: {lines}: {log}");
        }
    }
}

#[test]
fn a_host_that_loses_its_state_replaces_its_earlier_self() {
    needs_root!(store::obstacle());
    let mut fleet = Fleet::new(usize::try_from(HOSTS).unwrap(), Kind::Single);
    fleet.configure("", &fleet.store.settings(), RULES);
    fleet.start();
    let id = |fleet: &Fleet| {
        let own = || {
            let report = report(fleet, 0);
            let own = report["hosts"].as_array()?.iter().find(|host| host["this"] == true)?;
            Some(own["id"].as_str()?.to_owned())
        };
        once(own).unwrap()
    };
    let before = id(&fleet);
    fleet.hosts[0].end(Signal::SIGTERM);
    fleet.hosts[0].start();
    assert_ne!(id(&fleet), before, "its state is another");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(12) {
        for host in &fleet.hosts {
            let heard = host.stats()["fleet"]["hosts"].as_u64().unwrap();
            assert!(heard <= HOSTS, "host {}: {heard} hosts are heard", host.number);
        }
        sleep(Duration::from_millis(100));
    }
    fleet.wait_until_connected();
    assert_eq!(report(&fleet, 1)["hosts"].as_array().unwrap().len(), 4);
    for host in &fleet.hosts {
        let log = host.daemon.as_ref().unwrap().stderr();
        assert!(!log.contains("hosts are heard"), "{log}");
    }
}

#[test]
fn a_store_that_comes_and_goes_writes_a_few_lines_and_none_of_the_client() {
    needs_root!(store::obstacle());
    for kind in [Kind::Single, Kind::Cluster] {
        let mut fleet = Fleet::new(2, kind);
        fleet.configure("", &fleet.store.settings(), RULES);
        fleet.start();
        let lines = |fleet: &Fleet| {
            let log = fleet.hosts[0].daemon.as_ref().unwrap().stderr();
            log.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let before = lines(&fleet).len();
        let cycles = if kind == Kind::Single { 8 } else { 2 };
        for _ in 0..cycles {
            fleet.store.servers.iter_mut().for_each(store::Server::kill);
            fleet.wait_for_state(&[0, 1], "away");
            sleep(Duration::from_secs(2));
            fleet.store.start_again();
            fleet.wait_for_state(&[0, 1], "connected");
        }
        let lines = &lines(&fleet)[before..];
        println!("measured: {kind:?}: {} lines in {cycles} cycles", lines.len());
        assert!((2..=6).contains(&lines.len()), "{kind:?}: {lines:#?}");
        assert!(lines.iter().all(|line| line.contains("fleet")), "{lines:#?}");
    }
}
