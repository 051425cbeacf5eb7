//! Tests of pages with code 429 in place of refused requests: what the client reads, and what remains of the server's
//! socket and in the connection tracking table.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use integration_test::established::Established;
use integration_test::lab::{CLIENTS, CLIENTS_V6, HANGS_AFTER, Lab, SERVER, is_answered, number, once, packets};
use integration_test::program::{Program, limit, policy, tallies};
use integration_test::refused::{Link, is_tracked, site, sockets_of, start, take_what_is_sent_back, track};
use netlab::{Namespace, needs_root, nginx};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use ratelimit_common::layout::Unit;
use ratelimit_datapath::Datapath as _;
use ratelimit_policy::desired::{RefuseWith, WindowForm};

/// Less time than a busy machine needs for two retransmissions (0.2 s and 0.4 s).
const SOON: Duration = Duration::from_millis(2_500);

/// Returns a request as browsers send it, longer than the page.
fn request(host: &str) -> Vec<u8> {
    let agent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nAccept: text/html\r\n\r\n").into_bytes()
}

/// Returns everything received until the server has ended its side, or the error, and the time that took.
fn answer(stream: &mut TcpStream, request: &[u8]) -> (Result<String, ErrorKind>, Duration) {
    let begun = Instant::now();
    stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    stream.write_all(request).unwrap();
    let mut text = String::new();
    let read = stream.read_to_string(&mut text);
    (read.map(|_| text).map_err(|error| error.kind()), begun.elapsed())
}

/// Returns the seconds in a page after which a client may try again.
fn retry_after(page: &str) -> u64 {
    let value = page.lines().find_map(|line| line.strip_prefix("Retry-After:")).expect(page);
    value.trim().parse().expect(page)
}

#[test]
fn a_refused_request_in_the_clear_is_answered_by_a_page_and_frees_both_ends() {
    needs_root!();
    for link in Link::ALL {
        let lab = link.lab();
        let _site = site(&lab);
        take_what_is_sent_back(&lab);
        track(&lab);
        let _daemon = start(&lab, "xdp_mode = \"native\"", "429", "limits = [\"3/1h\"]");
        for from in [CLIENTS[0], CLIENTS_V6[0]] {
            let mut kept = lab.open(from, 80);
            let mut fresh = lab.open(from, 80);
            let mut left_open = lab.open(from, 80);
            assert!((0..3).all(|_| is_answered(&mut kept, HANGS_AFTER)), "{from}");
            for (which, stream) in [("kept", &mut kept), ("fresh", &mut fresh), ("left open", &mut left_open)] {
                let (page, took) = answer(stream, &request("test"));
                let page = page.unwrap_or_else(|error| panic!("{from}, {which}: {error} after {took:?}"));
                assert!(page.starts_with("HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n"), "{page}");
                assert!(page.ends_with("\r\n\r\nToo many requests.\r\n"), "{page}");
                assert!((3000..=4260).contains(&retry_after(&page)), "{page}");
                assert!(took < SOON, "{from}, {which}: {took:?}");
                // The page's acknowledgement alone ends the server's side. The client may keep its own open.
                let port = stream.local_addr().unwrap().port();
                assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some(), "{from}, {which}");
                let is_gone = once(|| (!is_tracked(&lab.server, port)).then_some(()));
                assert!(is_gone.is_some(), "{from}, {which}: it is not tracked for long");
            }
            drop((kept, fresh));
        }
        assert!(is_answered(&mut lab.open(CLIENTS[1], 80), HANGS_AFTER), "of another source");
        let stats = lab.stats();
        assert_eq!((number(&stats, "/reasons/page"), number(&stats, "/reasons/reset")), (6, 0), "{stats:#}");
        let [received, passed, dropped, _] = packets(&stats);
        assert_eq!((received, dropped), (passed + 6, 6));
        assert!(lab.ratelimitd(&["stats"]).stdout.contains("answered by a page"));
    }
}

#[test]
fn a_ban_is_told_with_its_end_and_a_page_that_is_lost_by_a_reset() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "429", "limits = [\"2/1m\"]\nblock_for = \"2h\"");
    let mut streams = [lab.open(CLIENTS[0], 80), lab.open(CLIENTS[0], 80), lab.open(CLIENTS[0], 80)];
    let mut lost = lab.open(CLIENTS[1], 80);
    for first in [&mut streams[0], &mut lost] {
        assert!((0..2).all(|_| is_answered(first, HANGS_AFTER)));
    }
    // The connection that caused the ban, and one that the ban drops.
    for stream in &mut streams[..2] {
        let (page, _) = answer(stream, &request("test"));
        let seconds = retry_after(&page.unwrap());
        assert!((7000..=7201).contains(&seconds), "{seconds}");
    }
    lab.ratelimitd(&["unblock", CLIENTS[0]]);
    lab.ratelimitd(&["deny", CLIENTS[0]]);
    let (reset, _) = answer(&mut streams[2], &request("test"));
    assert_eq!(reset, Err(ErrorKind::ConnectionReset), "a denied source is not asked to try again");

    // Nothing accepts what the driver sends back.
    lab.client.ip(&["link", "set", "dev", "c0", "xdp", "off"]).unwrap();
    let (reset, took) = answer(&mut lost, &request("test"));
    assert_eq!(reset, Err(ErrorKind::ConnectionReset), "after {took:?}");
    assert!(took < SOON, "one repetition resets the server, and the next one the client: {took:?}");
    let port = lost.local_addr().unwrap().port();
    assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some());
}

#[test]
fn a_long_request_and_a_short_one_end_both_sides_too() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "429", "limits = [\"1/1h\"]\nguard = \"off\"");
    let [mut first, mut long, mut short] =
        [lab.open(CLIENTS[0], 80), lab.open(CLIENTS[0], 80), lab.open(CLIENTS[0], 80)];
    assert!(is_answered(&mut first, HANGS_AFTER));
    let cookie = "x".repeat(6000);
    let (page, _) = answer(&mut long, &request(&format!("test\r\nCookie: {cookie}")));
    assert!(page.as_deref().is_ok_and(|page| page.starts_with("HTTP/1.1 429 ")), "{page:?}");
    // A driver may have no room to enlarge the frame, which is then answered by a reset.
    let (told, took) = answer(&mut short, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    println!("shorter than the page: {told:?} after {took:?}");
    match told {
        Ok(page) => assert!(page.starts_with("HTTP/1.1 429 "), "{page}"),
        Err(error) => assert_eq!(error, ErrorKind::ConnectionReset, "after {took:?}"),
    }
    for stream in [&long, &short] {
        let port = stream.local_addr().unwrap().port();
        assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some());
    }
}

#[test]
fn ports_are_reusable_after_a_page_and_servers_separate_with_syn_cookies() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let second = SocketAddr::new(SERVER[0].parse().unwrap(), 8080);
    let directory = lab.directory().join("second");
    fs::create_dir(&directory).unwrap();
    let _second = nginx(&lab.server, &directory, &[second]).unwrap();
    take_what_is_sent_back(&lab);
    lab.server.inside(|| Ok(fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2")?)).unwrap();
    let rule = "ports = \"80,8080/tcp\"\nlimits = [\"1/1h\"]\nguard = \"off\"";
    let _daemon = start(&lab, "xdp_mode = \"native\"", "429", rule);
    assert!(is_answered(&mut lab.open(CLIENTS[0], 80), HANGS_AFTER));
    let (to_first, to_second) = (from_port(&lab, 80), from_port(&lab, 8080));
    let mut both = [to_first.unwrap(), to_second.unwrap()];
    for stream in &mut both {
        let (page, _) = answer(stream, &request("test"));
        assert!(page.as_deref().is_ok_and(|page| page.starts_with("HTTP/1.1 429 ")), "{page:?}");
    }
    let is_free = || (sockets_of(&lab.server, PORT) == 0).then_some(());
    assert!(once(is_free).is_some(), "each server's end is freed by what its client sends next");
    drop(both);
    lab.ratelimitd(&["reset", CLIENTS[0]]);
    let again = once(|| from_port(&lab, 80)).expect("its port is free again");
    assert!(is_answered(&mut { again }, HANGS_AFTER), "a new connection from there is another one");
}

const PORT: u16 = 40_404;

/// Connects from [`PORT`] of the first client, and returns the connection if that succeeds.
fn from_port(lab: &Lab, port: u16) -> Option<TcpStream> {
    let [from, to] =
        [(CLIENTS[0], PORT), (SERVER[0], port)].map(|(of, port)| SocketAddr::new(of.parse().unwrap(), port));
    let connected = lab.client.inside(|| {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
        Ok(TcpStream::from(socket))
    });
    connected.ok()
}

#[test]
fn no_page_is_sent_where_something_was_asked_ahead() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "429", "limits = [\"2/1h\"]");
    let mut stream = lab.open(CLIENTS[0], 80);
    stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    stream.write_all(&request("test").repeat(2)).unwrap();
    let mut answers: Vec<u8> = Vec::new();
    while answers.windows(3).filter(|bytes| bytes == b"ok\n").count() < 2 {
        let mut part = [0; 4096];
        let bytes = stream.read(&mut part).unwrap();
        answers.extend(&part[..bytes]);
    }
    let (refused, _) = answer(&mut stream, &request("test"));
    assert_eq!(refused, Err(ErrorKind::ConnectionReset), "the page would be taken for another answer");
    let (page, _) = answer(&mut lab.open(CLIENTS[0], 80), &request("test"));
    assert!(page.is_ok(), "{page:?}");
    assert_eq!(number(&lab.stats(), "/reasons/page"), 1);
}

/// Opens a connection over the loopback interface from an address that a host may have.
fn between_hosts() -> anyhow::Result<Established> {
    let listener = TcpListener::bind(("192.0.2.1", 80))?;
    let client = TcpStream::connect(("192.0.2.1", 80))?;
    Established::between(client, listener.accept()?.0)
}

#[test]
fn only_the_next_answer_of_a_server_that_owes_nothing_is_a_page() {
    needs_root!();
    let runs = || {
        let mut policy = policy(&[limit(1, Unit::Requests, WindowForm::Strict)]);
        policy.rules[0].refuse_with = RefuseWith::Page;
        let mut program = Program::new(&policy);
        let connections = (0..5).map(|_| between_hosts()).collect::<anyhow::Result<Vec<_>>>()?;
        let [first, mut page, ahead, mut owes, head] = <[_; 5]>::try_from(connections).ok().unwrap();
        let request = request("test");
        assert_eq!(program.kernel().test_run_of(&first.frame(&request))?.0, 2);
        // A connection with an unanswered request, whose next request is refused.
        owes.says(&request)?;
        assert_eq!(program.kernel().test_run_of(&owes.frame(&request))?.1.len(), 14 + 40, "a reset");
        let mut gap = ahead.frame(&request);
        gap[14 + 20 + 7] = gap[14 + 20 + 7].wrapping_add(1);
        assert_eq!(program.kernel().test_run_of(&gap)?.1.len(), 14 + 40, "what is missing comes first: a reset");
        let head = head.frame(b"HEAD / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert_eq!(program.kernel().test_run_of(&head)?.1.len(), 14 + 40, "it has no text: a reset");
        let sent = page.frame(&request);
        let tagged = [&sent[..12], &[0x81, 0, 0, 7], &sent[12..]].concat();
        let (action, became) = program.kernel().test_run_of(&tagged)?;
        assert_eq!((action, became.len()), (3, 18 + 40 + 96), "sent back");
        assert_eq!(became[..18], [&tagged[6..12], &tagged[..6], &tagged[12..18]].concat(), "with its tag");
        let headers = PacketHeaders::from_ethernet_slice(&became)?;
        let (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Tcp(tcp))) = (headers.net, headers.transport) else {
            panic!("no segment")
        };
        assert_eq!((tcp.source_port, tcp.destination_port), (80, page.source_port));
        assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(&ip, headers.payload.slice())?);
        // The client's next segment, whatever it is, triggers a reset.
        let (at, page_bytes) = (page.acknowledged, 97);
        page.sequence = page.sequence.wrapping_add(u32::try_from(request.len())?);
        page.acknowledged = at.wrapping_add(page_bytes);
        let (action, reset) = program.kernel().test_run_of(&page.frame(b""))?;
        assert_eq!((action, reset.len()), (2, 14 + 40));
        let headers = PacketHeaders::from_ethernet_slice(&reset)?;
        let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no segment") };
        assert!(tcp.rst && tcp.ack);
        let expected = tcp.acknowledgment_number;
        assert_eq!(expected, at, "the server has said nothing of the page");
        assert_eq!(tcp.sequence_number.wrapping_add(u32::try_from(request.len())?), page.sequence);
        Ok(tallies(&program.kernel().read()?))
    };
    let namespace = Namespace::new().unwrap();
    namespace.ip(&["address", "add", "192.0.2.1/32", "dev", "lo"]).unwrap();
    let counts = namespace.inside(runs).unwrap();
    assert_eq!((counts[&("page", Some(0))], counts[&("reset", Some(0))]), (1, 3), "{counts:?}");
}

#[test]
fn requests_are_reset_and_counted_so_where_the_peer_loses_xdp_replies() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "429", "limits = [\"1/1h\"]");
    let file = lab.directory().join("ratelimitd.toml");
    let checked = lab.ratelimitd(&["check-config", file.to_str().unwrap()]);
    assert!(checked.stderr.contains("s0 loses packets that XDP sends back"), "{}{}", checked.stdout, checked.stderr);
    // Only GRO makes the page wait for the next packet.
    lab.client.run(&["ethtool", "-K", "c0", "gro", "on"]).unwrap();
    assert!(is_answered(&mut lab.open(CLIENTS[0], 80), HANGS_AFTER), "within the limit");
    let mut read = Vec::new();
    for _ in 0..3 {
        let (answer, took) = answer(&mut lab.open(CLIENTS[0], 80), &request("test"));
        assert!(took < SOON, "{took:?}");
        read.push(answer.map(|text| text.contains(" 429 ")).unwrap_or_default());
    }
    assert_eq!(read, [false; 3], "no client has read a page");
    let stats = lab.stats_once(|stats| number(stats, "/reasons/reset") >= 2);
    assert_eq!(stats.pointer("/reasons/page").and_then(serde_json::Value::as_u64).unwrap_or(0), 0, "{stats:#}");
    let said = lab.ratelimitd(&["stats"]).stdout;
    assert!(said.contains("answered by a reset") && !said.contains("answered by a page"), "{said}");
}

#[test]
fn a_page_that_is_lost_later_is_noticed_within_seconds() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    take_what_is_sent_back(&lab);
    let _daemon = start(&lab, "xdp_mode = \"native\"", "429", "limits = [\"1/1h\"]");
    assert!(is_answered(&mut lab.open(CLIENTS[0], 80), HANGS_AFTER));
    let asks = || answer(&mut lab.open(CLIENTS[0], 80), &request("test")).0;
    assert!(asks().is_ok_and(|page| page.contains(" 429 ")));
    lab.client.ip(&["link", "set", "dev", "c0", "xdp", "off"]).unwrap();
    // Answers sent before the daemon noticed are counted as pages.
    let pages = |lab: &Lab| number(&lab.stats(), "/reasons/page");
    let is_noticed = once(|| {
        let before = pages(&lab);
        assert_eq!(asks(), Err(ErrorKind::ConnectionReset));
        (pages(&lab) == before).then_some(())
    });
    assert!(is_noticed.is_some(), "{:#}", lab.stats());
}
