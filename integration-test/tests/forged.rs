//! Tests of forged packets in a source's name, without its sequence numbers. They ban no source, use up nothing of the
//! source's own limit, and cause no drops on its open connections.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::{ACK, PSH, SYN};
use integration_test::frames::{Segment, padded};
use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, SERVER, ask, is_answered, number, packets};
use integration_test::program::on_one_cpu;
use integration_test::random::Random;
use integration_test::raw::RawWire;
use netlab::{Child, needs_root, nginx, without_offloads};
use ratelimit_kernel::{Flood, Generator, Order, Sources};
use serde_json::Value;

/// Address that is forged.
const OWNER: &str = CLIENTS[0];
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn web(lab: &Lab) -> Child {
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    nginx(&lab.server, lab.directory(), &[SocketAddr::new(SERVER[0].parse().unwrap(), 80)]).unwrap()
}

/// Makes the owner's own connections use ports that are forged too.
fn connect_from_ports(lab: &Lab, range: &str) {
    let range = format!("net.ipv4.ip_local_port_range={range}");
    assert_eq!(lab.client.run(&["sysctl", "-w", &range]).unwrap().code(), 0);
}

/// Returns the number of the owner's requests in the server's log.
fn logged(lab: &Lab) -> usize {
    let log = lab.directory().join("access.log");
    netlab::settled(|| {
        Ok(fs::read_to_string(&log)?.lines().filter(|line| line.starts_with(&format!("{OWNER} "))).count())
    })
    .unwrap()
}

/// Returns how much of the owner's limit its verified traffic has used.
fn verified(lab: &Lab) -> u64 {
    let check: Value = serde_json::from_str(&lab.ratelimitd(&["check", OWNER, "--json"]).stdout).unwrap();
    let limits = check["limits"].as_array().unwrap();
    limits.iter().find(|limit| limit["budget"] == "verified").map_or(0, |limit| number(limit, "/used"))
}

fn banned(lab: &Lab) -> u64 {
    number(&lab.stats(), "/sources/banned")
}

#[test]
fn forged_requests_from_every_port_neither_ban_nor_limit_their_owner() {
    const LIMIT: u64 = 40;
    const OWN: u64 = 32;
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let wire = RawWire::new(&lab);
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h"), "--count", "requests", "--block-for", "10m"]);
    let mut open = lab.open(OWNER, 80);
    assert!(is_answered(&mut open, HANGS_AFTER));
    let before = packets(&lab.stats())[0];
    let ports = 32_768..61_000_u16;
    for source_port in ports.clone() {
        let owner = OWNER.parse().unwrap();
        let segment = |flags, sequence, acknowledged, data| Segment {
            source_port,
            sequence,
            acknowledged,
            data,
            ..Segment::to(80, flags)
        };
        wire.send(&wire.frame(owner, segment(SYN, 1_000, 0, &[])));
        wire.send(&wire.frame(owner, segment(ACK | PSH, 1_001, 1, GET)));
    }
    let forged = 2 * ports.len() as u64;
    let stats = lab.stats_once(|stats| packets(stats)[0] >= before + forged);
    assert!(number(&stats, "/reasons/over_limit") > forged / 4, "{stats:#}");
    assert_eq!((banned(&lab), verified(&lab)), (0, 1), "{stats:#}");
    for own in 2..=OWN / 2 {
        assert!(is_answered(&mut open, HANGS_AFTER), "request {own}");
    }
    for own in OWN / 2 + 1..=OWN {
        assert!(lab.http(OWNER, 80).ends_with("ok\n"), "request {own}");
    }
    assert_eq!((logged(&lab) as u64, verified(&lab), banned(&lab)), (OWN, OWN, 0));
}

#[test]
fn ten_million_forged_segments_from_all_ports_take_nothing_from_an_open_connection() {
    const EACH: u32 = 2_000_000;
    const LIMIT: u64 = 1_000;
    const FILE_BYTES: usize = 4 << 20;
    needs_root!();
    let lab = Lab::quiet();
    // The forged packets use another interface than the owner, as if by another queue, so that an overload does not
    // lose the owner's packets.
    lab.connect_second_ends();
    assert_eq!(lab.server.run(&["sysctl", "-w", "net.ipv4.conf.s1.rp_filter=0"]).unwrap().code(), 0);
    // The generator's frames use these ports, and some more.
    connect_from_ports(&lab, "20000 20999");
    fs::create_dir(lab.directory().join("files")).unwrap();
    fs::write(lab.directory().join("files/large"), vec![b'x'; FILE_BYTES]).unwrap();
    let _web = web(&lab);
    let limit = format!("{LIMIT}/1h");
    let _daemon =
        lab.start(&["--iface", "s0", "--iface", "s1", "--limit", &limit, "--count", "requests", "--block-for", "10m"]);
    let mut open = lab.open(OWNER, 80);
    assert!(is_answered(&mut open, HANGS_AFTER));
    assert_eq!(verified(&lab), 1);
    let wire = RawWire::to(&lab, "s1");
    let mut random = Random(13);
    let [requests, record, byte] = [GET.repeat(45), [b"\x17\x03\x03\x40\x00", &[b'x'; 600][..]].concat(), vec![b'G']];
    let mut generators: Vec<_> = [GET, &requests, &record, &byte, GET]
        .map(|data| {
            let [a, b, c, d, rest @ ..] = random.word().to_ne_bytes();
            let (sequence, acknowledged) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes(rest));
            let segment = Segment { sequence, acknowledged, data, ..Segment::to(80, ACK | PSH) };
            let frame = padded(wire.frame(OWNER.parse().unwrap(), segment), 60);
            let sources = Sources { first: OWNER.parse().unwrap(), bits: 0, order: Order::InTurn, host_bits: 0 };
            let flood = Flood { frame, sources, others: None, connections: None };
            lab.client.inside(|| Ok(Generator::load(&flood, "c1")?)).unwrap()
        })
        .into();
    let began = Instant::now();
    let mut answered = 1;
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            on_one_cpu();
            for generator in &mut generators {
                lab.client.inside(|| Ok(generator.send(EACH)?)).unwrap();
            }
        });
        while !flood.is_finished() || answered == 1 {
            assert!(is_answered(&mut open, HANGS_AFTER), "request {answered} over the open connection");
            answered += 1;
            thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(ask(&mut open, "/files/large").len() >= FILE_BYTES);
    answered += 1;
    let took = began.elapsed();
    let forged = |stats: &Value| number(stats, "/interfaces/1/packets/received");
    // If something else uses the CPU for long, the interface loses some.
    let stats = lab.stats_once(|stats| forged(stats) >= u64::from(EACH) * 5 * 9 / 10);
    println!("{answered} requests answered in {took:?}; {} forged segments: {}", forged(&stats), stats["reasons"]);
    assert_eq!((banned(&lab), verified(&lab)), (0, answered), "{stats:#}");
    assert_eq!(logged(&lab) as u64, answered);
    // Passed are those within the limit of unverified traffic and their repetitions, and those to the owner's own port,
    // which its socket does not accept.
    let passed = number(&stats, "/interfaces/1/packets/passed");
    assert!(passed < forged(&stats) / 50, "{passed} of them passed");
}
