//! Tests of refusals that are reported: the state of the client, of its server's socket and of the connection tracking
//! table. Nobody is sent more than they have sent.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use integration_test::established::Established;
use integration_test::flood::rows::in_turn;
use integration_test::frames::flag::{ACK, PSH, SYN};
use integration_test::frames::proto::{TCP, UDP};
use integration_test::frames::{IPV4, Segment, V4, frame, padded, udp};
use integration_test::lab::{CLIENTS, CLIENTS_V6, HANGS_AFTER, Lab, SERVER, is_answered, number, once, packets};
use integration_test::program::{Program, limit, policy, tallies};
use integration_test::raw::RawWire;
use integration_test::refused::{Link, is_tracked, site, sockets_of, start, start_on, take_what_is_sent_back, track};
use netlab::{Namespace, PacketSocket, Tun, TunPair, needs_root, nginx};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use ratelimit_common::layout::Unit;
use ratelimit_datapath::Datapath as _;
use ratelimit_kernel::{Flood, Generator};
use ratelimit_policy::desired::{RefuseWith, WindowForm};

/// Time for one TCP retransmission on a busy machine. TCP retransmits after 200 ms and the round trip.
const ONE_REPETITION: Duration = Duration::from_millis(1_500);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// Sends one more request, and returns the time until the connection was reset.
fn is_reset_within(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    stream.write_all(REQUEST).unwrap();
    let kind = stream.read(&mut [0; 4096]).map(|_| ErrorKind::Other).unwrap_or_else(|error| error.kind());
    assert_eq!(kind, ErrorKind::ConnectionReset);
    begun.elapsed()
}

fn reset_count(lab: &Lab) -> u64 {
    number(&lab.stats(), "/reasons/reset")
}

/// Asserts that the counts are complete: each packet passed or was dropped, and each reset is a dropped packet.
fn assert_whole(lab: &Lab) {
    let [received, passed, dropped, _] = packets(&lab.stats());
    assert_eq!(received, passed + dropped);
    assert!(dropped >= reset_count(lab));
}

#[test]
fn a_refused_request_frees_both_ends_in_either_family_and_mode() {
    needs_root!();
    let modes = [
        ("xdp_mode = \"native\"", "reset"),
        // A page is sent in native mode only.
        ("xdp_mode = \"generic\"", "429"),
        ("hook = \"tcx\"", "429"),
        ("hook = \"tcx\"", "reset"),
    ];
    for (link, (mode, refuse_with)) in Link::ALL.iter().flat_map(|link| modes.map(|mode| (link, mode))) {
        let lab = link.lab();
        println!("{link:?} {mode} {refuse_with}");
        let _site = site(&lab);
        track(&lab);
        let _daemon = start(&lab, mode, refuse_with, "limits = [\"3/1h\"]");
        for from in [CLIENTS[0], CLIENTS_V6[0]] {
            let mut stream = lab.open(from, 80);
            let mut other = lab.open(from, 80);
            let ports = [&stream, &other].map(|of| of.local_addr().unwrap().port());
            assert!((0..3).all(|_| is_answered(&mut stream, HANGS_AFTER)), "{mode} {from}");
            let unverified = || lab.ratelimitd(&["check", from]).stdout.contains("requests of unverified traffic used");
            assert!(!unverified(), "{mode} {from}");
            for (stream, port) in [&mut stream, &mut other].into_iter().zip(ports) {
                let took = is_reset_within(stream);
                assert!(took < ONE_REPETITION, "{mode} {from}: {took:?}");
                assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some(), "{mode} {from}");
                let is_gone = once(|| (!is_tracked(&lab.server, port)).then_some(()));
                assert!(is_gone.is_some(), "{mode} {from}: a reset connection is not tracked for long");
            }
            assert!(!unverified(), "{mode} {from}: what the kernel answers is no request");
        }
        assert!(is_answered(&mut lab.open(CLIENTS[1], 80), HANGS_AFTER), "{mode}: of another source");
        assert!(reset_count(&lab) >= 4, "{mode}");
        assert!(lab.ratelimitd(&["stats"]).stdout.contains("answered by a reset"), "{mode}");
        assert_whole(&lab);
    }
}

#[test]
fn a_request_over_tls_is_refused_alike() {
    needs_root!();
    for link in Link::ALL {
        let lab = link.lab();
        let _site = site(&lab);
        let _daemon = start(&lab, "", "reset", "limits = [\"3/1h\"]");
        for (from, to) in [(CLIENTS[0], "10.9.0.1:443"), (CLIENTS_V6[0], "[fd09::1]:443")] {
            let mut command = lab.client.command("openssl");
            let bind = if from.contains(':') { format!("[{from}]:0") } else { format!("{from}:0") };
            command.args(["s_client", "-quiet", "-bind", &bind, "-connect", to]);
            let mut client =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let (mut ask, mut answers) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
            for _ in 0..3 {
                ask.write_all(REQUEST).unwrap();
                let mut answer = Vec::new();
                while !answer.ends_with(b"ok\n") {
                    let mut byte = [0];
                    answers.read_exact(&mut byte).unwrap();
                    answer.extend(byte);
                }
            }
            let begun = Instant::now();
            ask.write_all(REQUEST).unwrap();
            let mut said = String::new();
            client.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(begun.elapsed() < ONE_REPETITION, "{from}: {:?}", begun.elapsed());
            assert!(said.contains("errno=104"), "{from}: {said}");
            assert!(!client.wait().unwrap().success());
        }
        assert!(reset_count(&lab) >= 2);
        let left = || lab.server.run(&["ss", "-Htn", "state", "established"]).unwrap().stdout;
        assert!(once(|| left().trim().is_empty().then_some(())).is_some(), "{}", left());
    }
}

#[test]
fn a_client_that_tries_again_and_again_is_told_each_time() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "", "reset", "limits = [\"2/1h\"]");
    let mut admitted = lab.open(CLIENTS[0], 80);
    assert!((0..2).all(|_| is_answered(&mut admitted, HANGS_AFTER)));
    // The guard passes twice as many connections as requests. Its refusals are reported too.
    for attempt in 0..10 {
        let mut stream = lab.open(CLIENTS[0], 80);
        let port = stream.local_addr().unwrap().port();
        let took = is_reset_within(&mut stream);
        assert!(took < ONE_REPETITION, "attempt {attempt}: {took:?}");
        assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some(), "attempt {attempt}");
    }
    assert_eq!(number(&lab.stats(), "/reasons/guard"), 0);
}

#[test]
fn a_ban_resets_each_connection_of_its_source_as_it_goes_on() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "", "reset", "limits = [\"3/1h\"]\nblock_for = \"1h\"");
    let mut streams = [lab.open(CLIENTS[0], 80), lab.open(CLIENTS[0], 80), lab.open(CLIENTS[0], 80)];
    assert!((0..3).all(|_| is_answered(&mut streams[0], HANGS_AFTER)));
    for stream in &mut streams {
        assert!(is_reset_within(stream) < ONE_REPETITION);
    }
    assert!(lab.is_blocked(CLIENTS[0], 80), "a banned source is not told that its SYN is dropped");
    assert!(is_answered(&mut lab.open(CLIENTS[1], 80), HANGS_AFTER));
}

/// Tries to connect, and returns the result and the time that took.
fn connects(lab: &Lab, from: &str, port: u16, within: Duration) -> (Result<(), Errno>, Duration) {
    let from: IpAddr = from.parse().unwrap();
    let to = SocketAddr::new(SERVER[usize::from(from.is_ipv6())].parse().unwrap(), port);
    let family = if from.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let begun = Instant::now();
    let connected = lab.client.inside(|| {
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::SendTimeout, &TimeVal::milliseconds(i64::try_from(within.as_millis())?))?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
        Ok(connect(socket.as_raw_fd(), &SockaddrStorage::from(to)))
    });
    (connected.unwrap(), begun.elapsed())
}

#[test]
fn a_syn_over_a_limit_of_connections_is_refused_at_once_where_the_driver_can_answer() {
    needs_root!();
    let limits = "limits = [\"2/1h connections\"]";
    for link in Link::ALL {
        let lab = link.lab();
        let _site = site(&lab);
        take_what_is_sent_back(&lab);
        let _daemon = start(&lab, "xdp_mode = \"native\"", "reset", limits);
        for from in [CLIENTS[0], CLIENTS_V6[0]] {
            let _open = [lab.open(from, 80), lab.open(from, 80)];
            let (connected, took) = connects(&lab, from, 80, HANGS_AFTER);
            assert_eq!(connected, Err(Errno::ECONNREFUSED), "{from}");
            assert!(took < Duration::from_millis(800), "{from}: before it could try again, {took:?}");
        }
        assert_eq!(reset_count(&lab), 2);
        assert_whole(&lab);
    }
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "xdp_mode = \"generic\"", "reset", limits);
    lab.assert_admitted(CLIENTS[0], 80, 2);
    assert_eq!(reset_count(&lab), 0, "an answer could lose its tag there");
}

#[test]
fn a_refused_request_is_reset_over_an_interface_without_an_ethernet_header_too() {
    needs_root!();
    let lab = Lab::new();
    let tun = |namespace, name, address| Tun::new(namespace, name, address).unwrap();
    let _way =
        TunPair::new([tun(&lab.client, "tun0", "10.77.0.2/24"), tun(&lab.server, "tun1", "10.77.0.1/24")]).unwrap();
    let server: SocketAddr = "10.77.0.1:80".parse().unwrap();
    let _site = nginx(&lab.server, lab.directory(), &[server]).unwrap();
    let _daemon = start_on(&lab, "tun1", "", "reset", "limits = [\"1/1h\"]");
    let mut stream = lab.client.inside(|| Ok(TcpStream::connect_timeout(&server, HANGS_AFTER)?)).unwrap();
    let port = stream.local_addr().unwrap().port();
    assert!(is_answered(&mut stream, HANGS_AFTER));
    let took = is_reset_within(&mut stream);
    assert!(took < ONE_REPETITION, "{took:?}");
    assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some());
    assert!(reset_count(&lab) >= 1);
    assert_whole(&lab);
}

/// Returns the frames and bytes that a listener receives from senders other than this client, once nothing more
/// arrives.
fn heard(listener: &PacketSocket, client: &[u8]) -> (usize, usize) {
    let (mut frames, mut bytes, mut quiet_since) = (0, 0, Instant::now());
    while quiet_since.elapsed() < Duration::from_millis(300) {
        match listener.receive().unwrap() {
            Some(frame) if frame[6..12] == *client => {}
            Some(frame) => {
                (frames, bytes) = (frames + 1, bytes + frame.len());
                quiet_since = Instant::now();
            }
            None => std::thread::yield_now(),
        }
    }
    (frames, bytes)
}

#[test]
fn nothing_answers_datagrams_and_segments_that_can_be_forged() {
    needs_root!();
    let lab = Lab::quiet();
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "reset", "limits = [\"2/1h packets\"]");
    let wire = RawWire::new(&lab);
    let datagram = frame_of_the_client(&wire, UDP);
    let client = datagram[6..12].to_vec();
    (0..2).for_each(|_| wire.send(&datagram));
    lab.stats_once(|stats| packets(stats)[0] >= 2);
    let listener = PacketSocket::listener(&lab.client, "c0").unwrap();
    heard(&listener, &client);
    for _ in 0..50 {
        wire.send(&datagram);
        wire.send(&frame_of_the_client(&wire, TCP));
    }
    let stats = lab.stats_once(|stats| packets(stats)[0] >= 102);
    assert_eq!((packets(&stats)[2], number(&stats, "/reasons/reset")), (100, 0));
    assert_eq!(heard(&listener, &client), (0, 0));
}

/// Returns a frame from the first client to the server's port 80: a datagram, or a segment without a connection.
fn frame_of_the_client(wire: &RawWire, protocol: u8) -> Vec<u8> {
    let from = CLIENTS[0].parse().unwrap();
    if protocol == TCP {
        return wire.frame(from, Segment { data: REQUEST, ..Segment::to(80, ACK | PSH) });
    }
    let mut frame = frame(IPV4, V4 { source: [10, 9, 0, 2], ..V4::of(UDP) }.around(udp(80, [7; 100])));
    frame[..12].copy_from_slice(&wire.frame(from, Segment::to(80, ACK))[..12]);
    frame[14 + 16..14 + 20].copy_from_slice(&[10, 9, 0, 1]);
    frame
}

#[test]
fn a_flood_of_refused_syns_is_answered_by_no_more_than_it_sends() {
    needs_root!();
    const SYNS: usize = 20_000;
    let lab = Lab::quiet();
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "reset", "limits = [\"10/1h connections\"]");
    let wire = RawWire::new(&lab);
    let source = "10.9.0.200".parse().unwrap();
    wire.host(&lab, source);
    let syn = |port| wire.frame(source, Segment { source_port: port, acknowledged: 0, ..Segment::to(80, SYN) });
    (1..=10).for_each(|port| wire.send(&syn(port)));
    lab.stats_once(|stats| packets(stats)[0] >= 10);
    let listener = PacketSocket::listener(&lab.client, "c0").unwrap();
    let client = syn(1)[6..12].to_vec();
    heard(&listener, &client);
    let mut sent = 0;
    for port in (10_000_u16..60_000).take(SYNS) {
        let frame = syn(port);
        sent += frame.len();
        wire.send(&frame);
    }
    let stats = lab.stats_once(|stats| packets(stats)[0] >= SYNS as u64 + 10);
    assert_eq!(number(&stats, "/reasons/reset"), SYNS as u64);
    assert_eq!(number(&stats, "/interfaces/0/packets/dropped"), SYNS as u64);
    let (frames, bytes) = heard(&listener, &client);
    assert!((1..=SYNS).contains(&frames), "{frames}");
    assert!(bytes <= sent, "{bytes} bytes for {sent}");
}

#[test]
fn a_million_refused_syns_are_all_refused_with_at_most_one_answer_each() {
    needs_root!();
    const SYNS: u64 = 1_000_000;
    const ADMITTED: u64 = 10;
    let lab = Lab::quiet();
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "reset", "limits = [\"10/1h connections\"]");
    let wire = RawWire::new(&lab);
    let frame = wire.frame(CLIENTS[0].parse().unwrap(), Segment { acknowledged: 0, ..Segment::to(80, SYN) });
    let flood = Flood { frame: padded(frame, 60), sources: in_turn("10.9.0.200", 0), others: None, connections: None };
    let mut generator = lab.client.inside(|| Ok(Generator::load_answered(&flood, "c0")?)).unwrap();
    let before = taken_by_the_client(&lab);
    // Frames that exceed the pair's capacity never reach the program.
    let (mut received, begun) = (0, Instant::now());
    while received < SYNS && begun.elapsed() < HANGS_AFTER {
        lab.client.inside(|| Ok(generator.send(100_000)?)).unwrap();
        received = packets(&lab.stats())[0];
    }
    let took = begun.elapsed();
    println!("{received} SYNs in {took:?}: {:.0} a second", received as f64 / took.as_secs_f64());
    let stats = lab.stats_once(|stats| packets(stats)[0] >= SYNS);
    let refused = packets(&stats)[0] - ADMITTED;
    assert_eq!(number(&stats, "/interfaces/0/packets/dropped"), refused, "{stats:#}");
    assert_eq!(number(&stats, "/reasons/reset"), refused, "every one");
    let answers = taken_by_the_client(&lab) - before;
    // The server answers those that were admitted, and sends requests to resolve their senders' addresses.
    assert!((refused / 2..=refused + 10 * ADMITTED).contains(&answers), "{answers} of {refused}");
    assert_whole(&lab);
}

/// Returns the number of frames that the client's end has taken so far.
fn taken_by_the_client(lab: &Lab) -> u64 {
    let output = lab.client.run(&["ethtool", "-S", "c0"]).unwrap();
    let count = |line: &str| {
        let (name, count) = line.trim().split_once(": ")?;
        name.ends_with("_xdp_packets").then(|| count.parse::<u64>().unwrap())
    };
    output.stdout.lines().filter_map(count).sum()
}

#[test]
fn a_refused_segment_becomes_a_reset_and_retransmissions_pass_unchanged() {
    needs_root!();
    let runs = || {
        let mut policy = policy(&[limit(1, Unit::Requests, WindowForm::Strict)]);
        policy.rules[0].refuse_with = RefuseWith::Reset;
        let mut program = Program::new(&policy);
        let [first, second, third] =
            [Established::on_loopback(80)?, Established::on_loopback(443)?, Established::on_loopback(443)?];
        let admitted = first.frame(REQUEST);
        assert_eq!(program.kernel().test_run_of(&admitted)?, (2, admitted));
        let refused = second.frame(REQUEST);
        let (action, reset) = program.kernel().test_run_of(&refused)?;
        assert_eq!((action, reset.len()), (2, 14 + 40));
        let headers = PacketHeaders::from_ethernet_slice(&reset)?;
        let (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Tcp(tcp))) = (headers.net, headers.transport) else {
            panic!("no segment")
        };
        assert!(tcp.rst && tcp.ack && !tcp.psh);
        assert_eq!((tcp.sequence_number, tcp.acknowledgment_number), (second.sequence, second.acknowledged));
        assert_eq!((tcp.source_port, tcp.destination_port, tcp.window_size), (second.source_port, 443, 0));
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, &[])?);
        let sent = third.frame(REQUEST);
        let tagged = [&sent[..12], &[0x81, 0, 0, 7], &sent[12..]].concat();
        let (action, reset) = program.kernel().test_run_of(&tagged)?;
        assert_eq!((action, reset.len(), &reset[..18]), (2, 18 + 40, &tagged[..18]), "the tag stays");
        // The server's socket is gone. A retransmission goes to the kernel, a few times.
        drop(second);
        drop(first);
        for _ in 0..8 {
            assert_eq!(program.kernel().test_run_of(&refused)?, (2, refused.clone()));
        }
        let reading = program.kernel().read()?;
        Ok(tallies(&reading))
    };
    let counts = Namespace::new().unwrap().inside(runs).unwrap();
    assert_eq!(counts[&("reset", Some(0))], 2, "{counts:?}");
    assert!(!counts.contains_key(&("over_limit", Some(0))), "{counts:?}");
}
