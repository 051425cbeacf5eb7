//! Tests of hosts with the real binary and a real store: the admissions of one source over all hosts, and actions of
//! all hosts together. Kills and forged packets invent nothing.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use integration_test::fleet::clients::{greedy, innocent};
use integration_test::fleet::proxy::Proxy;
use integration_test::fleet::site::most_within;
use integration_test::fleet::store::{self, Kind};
use integration_test::fleet::{Fleet, client_of};
use integration_test::frames::flag::SYN;
use integration_test::frames::proto::TCP;
use integration_test::frames::{IPV4, V4, frame, padded, tcp};
use integration_test::lab::{binary, once, run};
use netlab::needs_root;
use nix::sys::signal::Signal;
use ratelimit_kernel::{Flood, Generator, Order, Sources};
use serde_json::Value;

/// Delay of a busy machine.
const LATE: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(20);

/// Returns the number of requests while a report is on its way, for which `check-config` states 0.1 s.
fn on_the_way(per_second: u32) -> u64 {
    u64::from(per_second / 10)
}

const RULES: &str = r#"
[[rule]]
name = "minute"
ports = "80/tcp"
limits = ["1000/1m requests"]
[[rule]]
name = "short"
ports = "81/tcp"
limits = ["200/20s requests"]
[[rule]]
name = "good"
ports = "82/tcp"
limits = ["200/20s requests"]
[[rule]]
name = "open"
ports = "83/tcp"
limits = ["1000/1m connections"]
fleet_sum = "all"
"#;

/// Sends a SYN of each of 2^24 sources to the first host, or of as many as a busy machine can send in 25 s.
fn flood(fleet: &Fleet, generator: &mut Generator) {
    const PARTS: u32 = 16;
    const LONG_ENOUGH: Duration = Duration::from_secs(25);
    let start = Instant::now();
    for _ in (0..PARTS).take_while(|_| start.elapsed() < LONG_ENOUGH) {
        fleet.client.inside(|| Ok(generator.send((1 << 24) / PARTS)?)).unwrap();
    }
}

fn forged(fleet: &Fleet) -> Generator {
    let shown = fleet.hosts[0].namespace.ip(&["-br", "link", "show", "dev", "s1"]).unwrap();
    let link = shown.split_whitespace().nth(2).unwrap().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let mut syn = frame(IPV4, V4 { source: [0; 4], ..V4::of(TCP) }.around(tcp(83, SYN)));
    syn.splice(..6, link);
    syn[30..34].copy_from_slice(&[10, 9, 0, 1]);
    let sources = Sources { first: [20, 0, 0, 0].into(), bits: 24, order: Order::InTurn, host_bits: 0 };
    let flood = Flood { frame: padded(syn, 60), sources, others: None, connections: None };
    fleet.client.inside(|| Ok(Generator::load(&flood, "c9")?)).unwrap()
}

#[test]
fn one_source_over_four_hosts_stays_within_the_printed_fleet_bound() {
    needs_root!(store::obstacle());
    const GOOD_PER_SECOND: u32 = 7;
    const GREEDY_PER_SECOND: u32 = 400;
    let mut fleet = Fleet::new(4, Kind::Single);
    fleet.connect_flood();
    fleet.configure("", &fleet.store.settings(), RULES);
    let (in_a_minute, in_short) = (fleet.hosts[0].printed_bound(1000).0, fleet.hosts[0].printed_bound(200).0);
    fleet.start();
    // Each client wants 140 of 200, spread over four hosts.
    let good = [1, 2, 3].map(|client| fleet.client(&client_of(client), 82, innocent(GOOD_PER_SECOND)));
    let (minute, short) = (client_of(11), client_of(12));
    let for_a_minute = fleet.client(&minute, 80, greedy(GREEDY_PER_SECOND));
    let for_a_while = fleet.client(&short, 81, greedy(GREEDY_PER_SECOND));

    // The source is refused, and admitted again when its window has passed.
    let renewed = |from: &str, window: Duration, count: u64| {
        let times = fleet.log.times(from);
        times.iter().filter(|at| **at > times[0] + window).count() as u64 >= count
    };
    once(|| renewed(&short, SHORT, 150).then_some(())).unwrap();
    for_a_while.stop();
    let judge = |from: &str, window: Duration, limit: u64, bound: u64| {
        let times = fleet.log.times(from);
        let first = times.iter().filter(|at| **at < times[0] + window).count() as u64;
        let most = most_within(&times, window);
        println!("{limit} within {window:?}: {first} at first, at most {most}; the bound is {bound}");
        assert!(first >= limit, "{first} of {limit}");
        let most_ever = bound + on_the_way(GREEDY_PER_SECOND);
        assert!(most <= most_ever, "{most}, and {most_ever} is the most of {limit}");
    };
    judge(&short, SHORT, 200, in_short);

    // Load of the store for the good clients, without and with the flood.
    let per_second = |(start, before): (Instant, (u64, u64))| {
        let (after, took) = (fleet.store.traffic(), start.elapsed().as_secs_f64());
        ((after.0 - before.0) as f64 / took, (after.1 - before.1) as f64 / took)
    };
    let begin = || (Instant::now(), fleet.store.traffic());
    let answers = || good.iter().map(|client| client.answered()).sum::<u64>();
    let (normal, enough) = (begin(), answers() + 120);
    once(|| (answers() >= enough).then_some(())).unwrap();
    let normal = per_second(normal);
    let mut generator = forged(&fleet);
    let (flooded, answered) = (begin(), answers());
    flood(&fleet, &mut generator);
    let took = flooded.0.elapsed();
    let flooded = per_second(flooded);
    let received = fleet.hosts[0].stats()["interfaces"][1]["packets"]["received"].as_u64().unwrap();
    println!(
        "{received} forged in {took:?}: the store has {:.0} commands and {:.0} bytes a second, {:.0} and {:.0} before",
        flooded.0, flooded.1, normal.0, normal.1
    );
    assert!(received > 2_000_000, "{received}");
    assert!(answers() > answered, "nobody else is answered during the flood");
    assert!(flooded.0 < normal.0 * 1.5 + 8.0 && flooded.1 < normal.1 * 1.5 + 4096.0);

    once(|| renewed(&minute, MINUTE, 800).then_some(())).unwrap();
    for_a_minute.stop();
    judge(&minute, MINUTE, 1000, in_a_minute);
    for client in good {
        let tally = client.stop();
        println!("a good client: {tally:?}");
        assert_eq!((tally.answered, tally.lost), (tally.sent, 0));
    }
    assert_eq!(fleet.dropped_of("good"), 0);
}

#[test]
fn hosts_sum_and_follow_commands_over_tls_with_only_the_printed_acl_line() {
    needs_root!(store::obstacle());
    const RULES: &str = "[[rule]]\nname = \"web\"\nports = \"80/tcp\"\nlimits = [\"200/20s requests\"]\n\
                         [[rule]]\nname = \"login\"\nports = \"81/tcp\"\nlimits = [\"20/1m requests\"]\nblock_for = \"1h\"";
    let mut fleet = Fleet::new(4, Kind::Guarded);
    fleet.configure("", &fleet.store.settings(), RULES);
    let file = fleet.hosts[0].file();
    let printed = fleet.hosts[0].tell(&["check-config", file.to_str().unwrap()]);
    let line = printed.lines().find_map(|line| line.find("user rl ").map(|at| &line[at..])).expect(&printed);
    fleet.store.admit(&line.replace("PASSWORD", store::PASSWORD));
    fleet.start();
    fleet.whole_after("the start", ("web", 80), &[client_of(1), client_of(2)], &[]);
    let bound = fleet.hosts[0].printed_bound(200).0;
    let admitted = fleet.admitted(&client_of(3), 80, 400);
    assert!((200..=bound + on_the_way(400)).contains(&admitted), "{admitted}, and the bound is {bound}");

    // One host has the proof and bans, and all others ban too.
    let within_two = Duration::from_secs(2) + LATE;
    let bad = client_of(4);
    let everywhere = |what: &str, client: &str, holds: &dyn Fn(&Value) -> bool| {
        let since = Instant::now();
        let held = once(|| fleet.hosts.iter().all(|host| holds(&host.check(client))).then_some(()));
        held.unwrap_or_else(|| {
            panic!("{what}: {:#?}", fleet.hosts.iter().map(|host| host.check(client)).collect::<Vec<_>>())
        });
        println!("{what}: on all hosts after {:.1} s", since.elapsed().as_secs_f64());
        assert!(since.elapsed() < within_two, "{what}: {:?}", since.elapsed());
    };
    let reason = |reason: &'static str| move |check: &Value| check["reason"] == reason;
    let attacker = fleet.client_of_host(0, &bad, 81, greedy(100));
    once(|| reason("banned")(&fleet.hosts[0].check(&bad)).then_some(())).unwrap();
    everywhere("a ban", &bad, &reason("banned"));
    attacker.stop();
    let (before, dropped) = (fleet.log.times(&bad).len(), fleet.hosts.iter().map(|host| host.dropped_of("login")));
    let dropped: Vec<u64> = dropped.collect();
    let attacker = fleet.client(&bad, 81, greedy(100));
    let is_refused = || fleet.hosts.iter().zip(&dropped).all(|(host, before)| host.dropped_of("login") > *before);
    once(|| is_refused().then_some(())).expect("each host drops what it sends");
    attacker.stop();
    assert_eq!(fleet.log.times(&bad).len(), before);
    let is_free = |check: &Value| check["verdict"] == "pass" && check["reason"] != "exempt";
    fleet.hosts[2].tell(&["unblock", &bad]);
    everywhere("unblock", &bad, &is_free);

    let summed = client_of(5);
    fleet.hosts.iter().for_each(|host| fleet.ask(host.number, &summed, 80, 32));
    once(|| fleet.is_whole(&summed, "web").then_some(())).expect("it is summed");
    fleet.hosts[3].tell(&["reset", &summed]);
    everywhere("reset", &summed, &|check| {
        let is_zero = |number: &Value| number.as_u64().unwrap_or(0) == 0;
        let limits = check["limits"].as_array().unwrap();
        limits.iter().all(|limit| is_zero(&limit["used"]) && is_zero(&limit["used_elsewhere"]))
    });

    let other = client_of(6);
    fleet.hosts[1].tell(&["deny", "--fleet", &other]);
    everywhere("deny --fleet", &other, &reason("denied"));
    fleet.hosts[0].tell(&["unblock", "--fleet", &other]);
    everywhere("unblock --fleet", &other, &is_free);
    fleet.hosts[1].tell(&["allow", "--fleet", &other]);
    everywhere("allow --fleet", &other, &reason("exempt"));
    fleet.hosts[2].tell(&["unallow", "--fleet", &other]);
    everywhere("unallow --fleet", &other, &is_free);
    for host in &fleet.hosts {
        assert_eq!(host.stats()["fleet"]["rounds_failed"], 0, "nothing more was needed than the printed line");
    }
}

#[test]
fn a_daemon_that_is_killed_at_any_point_of_a_round_makes_nobody_count_twice() {
    needs_root!(store::obstacle());
    const RULES: &str = "[[rule]]\nname = \"web\"\nlimits = [\"1000/1m requests\"]";
    let mut fleet = Fleet::new(2, Kind::Single);
    let proxied = format!("{}:7000", store::ADDRESS);
    let server = fleet.store.servers[0].socket();
    let proxy = Proxy::start(&fleet.store.namespace, proxied.parse().unwrap(), server);
    fleet.configure("on_exit = \"keep\"", &fleet.store.settings(), RULES);
    let file = fleet.hosts[0].file();
    let direct = fs::read_to_string(&file).unwrap();
    fs::write(&file, direct.replace(&format!("{}:6379", store::ADDRESS), &proxied)).unwrap();
    fleet.start();
    let source = client_of(1);
    // The host's answer arrives or not, and its state is kept or lost.
    for (is_released, is_kept) in [(false, true), (true, true), (false, false), (true, false)] {
        proxy.hold();
        // Holds the answer of an exchange that began before. The next exchange reports what is admitted meanwhile.
        proxy.wait_for_answers(1);
        fleet.ask(0, &source, 80, 40);
        proxy.release();
        proxy.hold();
        // The exchange was executed, and its answer is on the way.
        proxy.wait_for_answers(1);
        // The other host receives the report along with its own exchange.
        fleet.ask(1, &source, 80, 40);
        once(|| (fleet.elsewhere(1, &source, "web") > 0).then_some(())).unwrap();
        if is_released {
            // The answer arrives, and the host is killed before or during its write.
            proxy.release();
        }
        fleet.hosts[0].end(Signal::SIGKILL);
        proxy.release();
        if !is_kept {
            fleet.hosts[0].tell(&["detach"]);
        }
        fleet.hosts[0].start();
        fleet.wait_for_state(&[0, 1], "connected");
        fleet.ask(0, &source, 80, 8);
        // Neither host is told more than the other admitted, whatever is reported again.
        let said = fleet.store.servers[0].info("stats", "total_commands_processed");
        let rounds = || fleet.store.servers[0].info("stats", "total_commands_processed") > said + 10;
        once(|| {
            fleet.elsewhere(1, &source, "web");
            fleet.elsewhere(0, &source, "web");
            rounds().then_some(())
        })
        .unwrap();
    }
    let before = fleet.elsewhere(1, &source, "web");
    fleet.ask(0, &source, 80, 64);
    fleet.ask(1, &source, 80, 40);
    once(|| (fleet.elsewhere(1, &source, "web") >= before + 32).then_some(())).expect("the last of them says its own");
}

#[test]
fn the_example_prints_what_each_host_has_of_both_and_leaves_nothing() {
    needs_root!(store::obstacle());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples").join("fleet/run.sh");
    let mut command = Command::new(script);
    command.env("RATELIMITD_BIN", binary()).env("REDIS_SERVER", store::program().unwrap());
    let ran = run(command);
    assert_eq!(ran.code(), 0, "{}{}", ran.stderr, ran.stdout);
    let of = |word: &str| {
        let number = |line: &str| line.split(word).next()?.rsplit([' ', '(']).next()?.parse::<u64>().ok();
        ran.stdout.lines().filter(|line| line.contains(word)).filter_map(number).collect::<Vec<_>>()
    };
    let (here, elsewhere) = (of(" here"), of(" elsewhere"));
    assert!(here.len() >= 2 && here.len() == elsewhere.len(), "{}", ran.stdout);
    assert_eq!((here[0], here[1]), (elsewhere[1], elsewhere[0]), "{}", ran.stdout);
    let left = run({
        let mut command = Command::new("ip");
        command.args(["netns", "list"]);
        command
    });
    assert!(!left.stdout.contains("rl-fleet-"), "{}", left.stdout);
}
