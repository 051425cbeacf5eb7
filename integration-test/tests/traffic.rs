//! Tests of real traffic through the real binary: both sides of each limit in every unit and both families, and exact
//! counts.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::flag::{ACK, SYN};
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, IPV6, SERVICE_VLAN, V4, VLAN, frame, tagged, tcp, tcp_with, udp_from, v4, v6};
use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, HANGS_AFTER, Lab, SERVER, ask, heard, number, once, packets};
use netlab::{Child, HttpServer, PacketSocket, UdpCounter, needs_root, nginx};
use ratelimit_policy::config::HookChoice;

fn addresses(port: u16) -> Vec<SocketAddr> {
    SERVER.iter().map(|address| SocketAddr::new(address.parse().unwrap(), port)).collect()
}

fn web(lab: &Lab) -> Child {
    nginx(&lab.server, lab.directory(), &addresses(80)).unwrap()
}

fn http_on(lab: &Lab, port: u16) -> HttpServer {
    HttpServer::start(&lab.server, addresses(port)[0]).unwrap()
}

/// Starts a daemon on `s0`, and opens a socket that sends to it and one that receives what passes.
fn wire(lab: &Lab, args: &[&str]) -> (Daemon, PacketSocket, PacketSocket) {
    let daemon = lab.limit(args);
    let sender = PacketSocket::sender(&lab.client, "c0").unwrap();
    (daemon, sender, PacketSocket::listener(&lab.server, "s0").unwrap())
}

/// Sends frames, waits until all are in the statistics, and returns how many the server received. At TCX the packet
/// sockets also receive dropped frames, so there the statistics tell how many passed.
fn passed(lab: &Lab, sender: &PacketSocket, listener: &PacketSocket, frames: &[Vec<u8>]) -> usize {
    let before = packets(&lab.stats());
    for frame in frames {
        sender.send(frame).unwrap();
    }
    let all = before[0] + u64::try_from(frames.len()).unwrap();
    let after = lab.stats_once(|stats| packets(stats)[0] == all);
    match integration_test::hook() {
        HookChoice::Auto | HookChoice::Xdp => heard(listener),
        HookChoice::Tcx => usize::try_from(packets(&after)[1] - before[1]).unwrap(),
    }
}

fn syn() -> Vec<u8> {
    v4(TCP, tcp(80, SYN))
}

#[test]
fn nginx_gets_as_many_connections_of_each_source_as_the_limit_says() {
    needs_root!();
    let lab = Lab::new();
    let _nginx = web(&lab);
    let _daemon = lab.limit(&["--limit", "5/1h", "--count", "connections"]);
    for from in [CLIENTS[0], CLIENTS_V6[0]] {
        for _ in 0..5 {
            assert!(lab.http(from, 80).ends_with("ok\n"));
        }
        lab.assert_blocked(from, 80);
    }
    assert!(lab.http(CLIENTS[1], 80).ends_with("ok\n"));
    assert!(lab.http(CLIENTS_V6[2], 80).ends_with("ok\n"));
    let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
    for (from, requests) in [(CLIENTS[0], 5), (CLIENTS_V6[0], 5), (CLIENTS[1], 1), (CLIENTS_V6[2], 1)] {
        assert_eq!(log.lines().filter(|line| line.starts_with(&format!("{from} "))).count(), requests, "{log}");
    }
    let stats = lab.stats();
    assert_eq!(number(&stats, "/rules/0/sources_over_limit"), 2, "{stats:#}");
    let top = stats.pointer("/top/0").unwrap();
    assert_eq!((number(top, "/used"), number(top, "/limit")), (5, 5), "{stats:#}");
    assert_eq!(top["state"], "over_limit", "{stats:#}");
    assert_eq!(lab.ratelimitd(&["check", CLIENTS[0]]).code(), 3);
    assert_eq!(lab.ratelimitd(&["check", CLIENTS[1]]).code(), 0);
}

#[test]
fn two_addresses_of_one_ipv6_64_are_one_client() {
    needs_root!();
    let lab = Lab::new();
    let _nginx = web(&lab);
    let _daemon = lab.limit(&["--limit", "4/1h", "--count", "connections"]);
    lab.open(CLIENTS_V6[0], 80);
    lab.open(CLIENTS_V6[0], 80);
    lab.assert_admitted(CLIENTS_V6[1], 80, 2);
    lab.assert_blocked(CLIENTS_V6[0], 80);
    lab.open(CLIENTS_V6[2], 80);
}

#[test]
fn a_port_like_that_of_ssh_stays_open_while_its_neighbour_is_blocked() {
    needs_root!();
    let lab = Lab::new();
    let (_web, _ssh) = (http_on(&lab, 80), http_on(&lab, 22));
    let _daemon = lab.limit(&["--limit", "2/1h", "--count", "connections", "--refuse", "all"]);
    let mut shell = lab.open(CLIENTS[0], 22);
    lab.assert_admitted(CLIENTS[0], 80, 2);
    assert!(ask(&mut shell, "/").ends_with("ok\n"));
    for _ in 0..10 {
        assert!(lab.http(CLIENTS[0], 22).ends_with("ok\n"));
    }
    lab.assert_blocked(CLIENTS[0], 80);
    let stats = lab.stats();
    assert!(number(&stats, "/reasons/not_protected") > 0, "{stats:#}");
}

#[test]
fn the_host_reaches_others_while_they_are_blocked() {
    needs_root!();
    let lab = Lab::new();
    let _web = http_on(&lab, 80);
    let listener = lab.client.inside(|| Ok(TcpListener::bind((CLIENTS[0], 80))?)).unwrap();
    let _daemon = lab.limit(&["--limit", "1/1h", "--count", "connections", "--refuse", "all"]);
    lab.assert_admitted(CLIENTS[0], 80, 1);
    let answering = thread::spawn(move || {
        for stream in listener.incoming().take(3) {
            drop(stream.unwrap());
        }
    });
    for _ in 0..3 {
        let address = format!("{}:80", CLIENTS[0]).parse().unwrap();
        lab.server
            .inside(|| Ok(std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5))?))
            .expect("what the host opens itself is answered");
    }
    answering.join().unwrap();
}

#[test]
fn packets_are_counted_one_by_one() {
    needs_root!();
    let lab = Lab::quiet();
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "7/1h", "--count", "packets"]);
    let data = frame(IPV4, v4(TCP, tcp_with(80, ACK, &[], &[7; 400])));
    assert_eq!(passed(&lab, &sender, &listener, &vec![data; 10]), 7);
    let other = frame(IPV4, V4 { source: [198, 51, 100, 8], ..V4::of(TCP) }.around(tcp(80, ACK)));
    assert_eq!(passed(&lab, &sender, &listener, &[other]), 1);
}

#[test]
fn bytes_are_those_of_the_ip_packet() {
    needs_root!();
    let lab = Lab::quiet();
    // Ten packets of 20 + 20 + 60 bytes.
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "1000/1h", "--count", "bytes"]);
    let hundred = frame(IPV4, v4(TCP, tcp_with(80, ACK, &[], &[7; 60])));
    assert_eq!(passed(&lab, &sender, &listener, &vec![hundred; 9]), 9);
    let too_long = frame(IPV4, v4(TCP, tcp_with(80, ACK, &[], &[7; 61])));
    assert_eq!(passed(&lab, &sender, &listener, &[too_long]), 0);
    let fits = frame(IPV4, v4(TCP, tcp_with(80, ACK, &[], &[7; 60])));
    assert_eq!(passed(&lab, &sender, &listener, &[fits.clone(), fits]), 1);
}

#[test]
fn a_source_that_a_limit_of_bytes_refuses_is_said_to_be_blocked() {
    needs_root!();
    for refuse in ["excess", "all"] {
        let lab = Lab::quiet();
        // A window of a day, so that no bucket ends meanwhile. Seven packets of 20 + 20 + 1360 bytes leave 200 bytes.
        let (_daemon, sender, listener) = wire(&lab, &["--limit", "10000/24h", "--count", "bytes", "--refuse", refuse]);
        let source = "10.9.0.9";
        let data = frame(IPV4, V4 { source: [10, 9, 0, 9], ..V4::of(TCP) }.around(tcp_with(80, ACK, &[], &[7; 1360])));
        assert_eq!(passed(&lab, &sender, &listener, &vec![data.clone(); 7]), 7);
        assert_eq!(lab.ratelimitd(&["check", source]).code(), 0, "--refuse {refuse}");
        assert_eq!(passed(&lab, &sender, &listener, &vec![data; 193]), 0);
        let check = lab.ratelimitd(&["check", source]);
        assert_eq!(check.code(), 3, "--refuse {refuse}: {}", check.stdout);
        let stats = lab.stats();
        assert_eq!(number(&stats, "/rules/0/sources_over_limit"), 1, "{stats:#}");
        let top = stats.pointer("/top/0").unwrap();
        assert_eq!((number(top, "/used"), number(top, "/dropped")), (9800, 193), "{stats:#}");
        assert_eq!(top["state"], "over_limit", "{stats:#}");
        assert!(top["retry_after_seconds"].as_f64().unwrap() > 0.0, "{stats:#}");
    }
}

#[test]
fn a_connection_must_fit_every_limit() {
    needs_root!();
    let lab = Lab::quiet();
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "3/2s,5/1h", "--count", "connections"]);
    let syns = |count| vec![frame(IPV4, syn()); count];
    let began = Instant::now();
    let first = passed(&lab, &sender, &listener, &syns(10));
    assert!(first == 3 || began.elapsed() >= Duration::from_secs(2), "{first} within {:?}", began.elapsed());
    let used = || {
        let check = lab.ratelimitd(&["check", "198.51.100.7", "--json"]).stdout;
        let limits = serde_json::from_str::<serde_json::Value>(&check).unwrap()["limits"].clone();
        limits.as_array().unwrap().iter().map(|of| (number(of, "/limit"), number(of, "/used"))).collect::<Vec<_>>()
    };
    once(|| used().contains(&(3, 0)).then_some(())).unwrap_or_else(|| panic!("{:?}", used()));
    // The two seconds have passed. Two of the hour's five are left.
    let second = passed(&lab, &sender, &listener, &syns(10));
    assert_eq!(first + second, 5);
}

#[test]
fn a_download_under_way_goes_on_over_the_limit_unless_all_is_refused() {
    needs_root!();
    // Size of a file that exceeds the sockets' buffers, so that the transfer lasts until it is read.
    const FILE_BYTES: usize = 24 << 20;
    /// Time without data after which the rest was dropped.
    const STALLS_AFTER: Duration = Duration::from_millis(800);
    for (refuse, goes_on) in [("excess", true), ("all", false)] {
        let lab = Lab::new();
        fs::create_dir(lab.directory().join("files")).unwrap();
        fs::write(lab.directory().join("files/large"), vec![b'x'; FILE_BYTES]).unwrap();
        let _nginx = web(&lab);
        let _daemon = lab.limit(&["--limit", "2/1h", "--count", "connections", "--refuse", refuse]);
        let mut download = lab.open(CLIENTS[0], 80);
        download.set_read_timeout(Some(if goes_on { HANGS_AFTER } else { STALLS_AFTER })).unwrap();
        download.write_all(b"GET /files/large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
        let mut got = vec![0; 1 << 16];
        download.read_exact(&mut got).unwrap();
        lab.assert_admitted(CLIENTS[0], 80, 1);
        let is_done = download.read_to_end(&mut got).is_ok();
        assert_eq!(is_done, goes_on, "--refuse {refuse}: {} bytes", got.len());
        assert_eq!(got.len() > FILE_BYTES, goes_on, "--refuse {refuse}: {} bytes", got.len());
    }
}

#[test]
fn allowed_sources_are_not_limited() {
    needs_root!();
    let lab = Lab::new();
    let _nginx = web(&lab);
    let _daemon =
        lab.limit(&["--limit", "1/1h", "--count", "connections", "--allow", "10.9.0.3", "--allow", "fd09:0:0:b::/64"]);
    for from in [CLIENTS[1], CLIENTS_V6[2]] {
        for _ in 0..4 {
            lab.open(from, 80);
        }
    }
    lab.assert_admitted(CLIENTS[0], 80, 1);
    lab.assert_admitted(CLIENTS_V6[0], 80, 1);
    let stats = lab.stats();
    assert!(number(&stats, "/reasons/exempt") >= 8, "{stats:#}");
}

#[test]
fn a_dry_run_drops_nothing_and_says_what_it_would_drop() {
    needs_root!();
    let lab = Lab::quiet();
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "4/1h", "--count", "connections", "--dry-run"]);
    assert_eq!(passed(&lab, &sender, &listener, &vec![frame(IPV4, syn()); 10]), 10);
    let stats = lab.stats();
    assert_eq!(packets(&stats), [10, 10, 0, 6], "{stats:#}");
    assert_eq!(stats["mode"], "dry-run", "{stats:#}");
}

#[test]
fn only_the_listed_ports_are_protected() {
    needs_root!();
    let lab = Lab::quiet();
    let datagrams = UdpCounter::start(&lab.server, addresses(53)[0]).unwrap();
    let (_daemon, sender, listener) =
        wire(&lab, &["--limit", "2/1h", "--count", "packets", "--port", "8000-8100,53/udp"]);
    let to = |port| vec![frame(IPV4, v4(TCP, tcp(port, SYN))); 5];
    for (port, passes) in [(80, 5), (7999, 5), (8101, 5), (53, 5), (8000, 2), (8100, 0)] {
        assert_eq!(passed(&lab, &sender, &listener, &to(port)), passes, "port {port}");
    }
    let socket = lab.client.inside(|| Ok(std::net::UdpSocket::bind((CLIENTS[0], 0))?)).unwrap();
    let before = packets(&lab.stats())[0];
    for _ in 0..5 {
        socket.send_to(b"x", addresses(53)[0]).unwrap();
    }
    lab.stats_once(|stats| packets(stats)[0] == before + 5);
    let got = || Ok(datagrams.datagrams().get(&CLIENTS[0].parse()?).copied());
    assert_eq!(netlab::settled(got).unwrap(), Some(2));
}

#[test]
fn tags_change_no_verdict() {
    needs_root!();
    let lab = Lab::quiet();
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "4/1h", "--count", "connections"]);
    let forms: [&[(u16, u16)]; 4] = [&[], &[(VLAN, 100)], &[(SERVICE_VLAN, 7), (VLAN, 100)], &[(VLAN, 0xe000)]];
    for (kind, packet) in [(IPV4, syn()), (IPV6, v6(TCP, tcp(80, SYN)))] {
        let all = forms.map(|tags| tagged(tags, kind, &packet));
        assert_eq!(passed(&lab, &sender, &listener, &all), 4, "one of each form: they share one count");
        assert_eq!(passed(&lab, &sender, &listener, &all), 0, "one more of each form");
    }
}

#[test]
fn later_fragments_are_charged_as_packets() {
    needs_root!();
    let lab = Lab::quiet();
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "3/1h", "--count", "packets"]);
    let fragment = frame(IPV4, V4::fragment(UDP, 100, true).around([7; 64]));
    assert_eq!(passed(&lab, &sender, &listener, &vec![fragment; 5]), 3);
    assert_eq!(passed(&lab, &sender, &listener, &[frame(IPV4, syn())]), 0, "they used up the source's limit");
}

#[test]
fn every_frame_that_was_sent_is_counted_once() {
    needs_root!();
    let lab = Lab::quiet();
    let (_daemon, sender, listener) = wire(&lab, &["--limit", "100/1h", "--count", "packets"]);
    let mix = [
        frame(IPV4, syn()),
        frame(IPV4, v4(UDP, udp_from(5000, 443, [0; 30]))),
        frame(IPV4, v4(TCP, tcp(22, SYN))),
        frame(IPV6, v6(TCP, tcp(443, ACK))),
        frame(0x88b5, [0; 46]),
        frame(IPV4, V4::claiming_ihl(TCP, 3).around(tcp(80, SYN))),
        frame(IPV4, V4::fragment(UDP, 8, false).around([0; 32])),
    ];
    let frames: Vec<_> = mix.iter().cycle().take(7 * 1000).cloned().collect();
    let heard = u64::try_from(passed(&lab, &sender, &listener, &frames)).unwrap();
    let stats = lab.stats();
    // One source of each family sends 100 within the limit. Three of the seven are never limited.
    assert_eq!(packets(&stats), [7000, 3200, 3800, 0], "{stats:#}");
    assert_eq!(heard, 3200, "what is said to have passed is what the server hears");
    let reasons = stats["reasons"].as_object().unwrap();
    assert_eq!(reasons.values().filter_map(serde_json::Value::as_u64).sum::<u64>(), 7000, "{stats:#}");
    let bytes = ["received", "passed", "dropped"].map(|key| number(&stats, &format!("/interfaces/0/bytes/{key}")));
    assert_eq!(bytes[0], bytes[1] + bytes[2], "{stats:#}");
}

#[test]
fn wrk_over_kept_connections_stays_below_a_limit_of_connections() {
    needs_root!();
    let lab = Lab::new();
    let _nginx = web(&lab);
    let _daemon = lab.limit(&["--limit", "16/1m", "--count", "connections"]);
    let url = format!("http://{}/", SERVER[0]);
    let output = lab.client.run(&["wrk", "-t", "1", "-c", "8", "-d", "1s", &url]).unwrap();
    assert!(output.status.success() && !output.stdout.contains("Socket errors"), "{}", output.stdout);
    let stats = lab.stats();
    assert_eq!(number(&stats, "/interfaces/0/packets/dropped"), 0, "{stats:#}");
    let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
    assert!(log.lines().count() > 100, "wrk asked only {} times", log.lines().count());
}
