//! Tests of clients that give up a refused request. The connection is ended towards both sides, and retransmissions by
//! the clients' kernels use up nothing of the window that frees.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use etherparse::{PacketHeaders, TransportHeader};
use integration_test::established::Established;
use integration_test::lab::{CLIENTS, CLIENTS_V6, HANGS_AFTER, Lab, is_answered, number, once};
use integration_test::program::{Program, limit, policy, tallies};
use integration_test::refused::{Link, site, sockets_of, start};
use netlab::{Namespace, needs_root};
use nix::libc;
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use ratelimit_common::layout::Unit;
use ratelimit_datapath::Datapath as _;
use ratelimit_policy::desired::WindowForm;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
/// Limit of a source's requests in a window of ten seconds. A strict window frees after twelve seconds at most.
const LIMIT: u64 = 10;
const WINDOW_MAX: Duration = Duration::from_secs(12);
const WINDOWS: u32 = 4;
/// Interval at which each client opens a connection, twice as often as its limit allows.
const PERIOD: Duration = Duration::from_millis(500);

/// Way in which a client writes its request.
#[derive(Clone, Copy, Debug)]
enum Writes {
    AtOnce,
    /// Two segments, the second 20 ms after the first.
    InTwo,
    /// Four segments, with a cookie of 5 KB.
    Long,
}

/// Sends a request over a new connection, and closes it if no answer arrives in time. Returns whether one arrived.
fn asks(lab: &Lab, from: &str, patience: Duration, writes: Writes) -> bool {
    let mut stream = lab.open(from, 80);
    stream.set_read_timeout(Some(patience)).unwrap();
    let is_written = match writes {
        Writes::AtOnce => stream.write_all(REQUEST).is_ok(),
        Writes::InTwo => {
            let (first, second) = REQUEST.split_at(20);
            stream.write_all(first).is_ok() && {
                thread::sleep(Duration::from_millis(20));
                stream.write_all(second).is_ok()
            }
        }
        Writes::Long => {
            let cookie = "x".repeat(5_000);
            let request = format!("GET / HTTP/1.1\r\nHost: test\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).is_ok()
        }
    };
    is_written && matches!(stream.read(&mut [0; 64]), Ok(bytes) if bytes > 0)
}

/// Returns the number of a source's requests that the server has answered, by its log.
fn served(lab: &Lab, from: &str) -> u64 {
    let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
    log.lines().filter(|line| line.starts_with(&format!("{from} ")) && line.contains("GET / ")).count() as u64
}

#[test]
fn a_freed_window_goes_to_clients_that_still_wait() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "", "drop", &format!("limits = [\"{LIMIT}/10s\"]"));
    let clients = [
        (CLIENTS[0], 300, Writes::AtOnce),
        (CLIENTS[1], 1_000, Writes::AtOnce),
        (CLIENTS[2], 5_000, Writes::AtOnce),
        (CLIENTS_V6[0], 1_000, Writes::InTwo),
        (CLIENTS_V6[2], 1_000, Writes::Long),
    ];
    let answered = clients.map(|_| AtomicU64::new(0));
    let end = Instant::now() + WINDOW_MAX * WINDOWS;
    thread::scope(|scope| {
        for ((from, patience_ms, writes), answered) in clients.iter().zip(&answered) {
            let (lab, patience) = (&lab, Duration::from_millis(*patience_ms));
            scope.spawn(move || {
                thread::scope(|attempts| {
                    while Instant::now() < end {
                        attempts.spawn(move || {
                            answered.fetch_add(u64::from(asks(lab, from, patience, *writes)), Ordering::Relaxed)
                        });
                        thread::sleep(PERIOD);
                    }
                });
            });
        }
    });
    // A retransmission of a client that has left would be admitted in one of the next windows.
    thread::sleep(WINDOW_MAX);
    let read = clients.iter().zip(&answered).map(|((from, patience_ms, writes), answered)| {
        (*from, *patience_ms, *writes, answered.load(Ordering::Relaxed), served(&lab, from))
    });
    let read: Vec<_> = read.collect();
    println!("source, patience in ms, writes, answered, admitted: {read:?}");
    for (from, patience_ms, writes, answered, served) in read {
        assert!(served >= LIMIT * u64::from(WINDOWS - 1), "{from} with {patience_ms} ms: {served} were admitted");
        assert!(
            answered * 100 >= served * 95,
            "{from} with {patience_ms} ms, {writes:?}: {answered} of {served} had the answer"
        );
    }
}

/// Way in which a client leaves a connection while it waits for an answer.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Closes,
    HalfCloses,
    Resets,
}

/// Returns whether a client's kernel still has a connection from this port on which it may send.
fn is_repeating(client: &Namespace, port: u16) -> bool {
    let filter = format!("sport = :{port}");
    let states = ["established", "fin-wait-1", "fin-wait-2", "closing", "last-ack"];
    let states = states.iter().flat_map(|state| ["state", *state]);
    let argv: Vec<&str> = ["ss", "-Htn"].into_iter().chain(states).chain([filter.as_str()]).collect();
    !client.run(&argv).unwrap().stdout.trim().is_empty()
}

fn leave(stream: TcpStream, how: Leaves) -> Option<TcpStream> {
    match how {
        Leaves::Closes => {}
        Leaves::HalfCloses => {
            stream.shutdown(Shutdown::Write).unwrap();
            return Some(stream);
        }
        Leaves::Resets => {
            setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
        }
    }
    None
}

#[test]
fn a_connection_whose_client_leaves_a_refused_request_is_ended_at_both_ends() {
    needs_root!();
    let rules = [
        "limits = [\"2/1h\"]",
        "limits = [\"2/1h\"]\nto = [\"10.9.0.1\", \"fd09::1\"]",
        "limits = [\"100/1h\", \"2/1h per /24,/56\"]",
        "limits = [\"2/1h\", \"1000/1h packets\"]",
        "limits = [\"2/1h\"]\nguard = \"off\"",
    ];
    let places = [(Link::Plain, "xdp_mode = \"native\""), (Link::Tagged, ""), (Link::Plain, "hook = \"tcx\"")];
    let runs = places.map(|place| (place, rules[0])).into_iter().chain(rules[1..].iter().map(|of| (places[0], *of)));
    for ((link, mode), rule) in runs {
        println!("{link:?} {mode} {rule}");
        let lab = link.lab();
        let _site = site(&lab);
        let _daemon = start(&lab, mode, "drop", rule);
        for from in [CLIENTS[0], CLIENTS_V6[0]] {
            let mut kept = lab.open(from, 80);
            assert!((0..2).all(|_| is_answered(&mut kept, HANGS_AFTER)));
            for how in [Leaves::Closes, Leaves::HalfCloses, Leaves::Resets] {
                let mut stream = lab.open(from, 80);
                let port = stream.local_addr().unwrap().port();
                stream.write_all(REQUEST).unwrap();
                thread::sleep(Duration::from_millis(50));
                let left = leave(stream, how);
                let server = once(|| (sockets_of(&lab.server, port) == 0).then_some(()));
                assert!(server.is_some(), "{how:?} {from}: the server's socket");
                let client = once(|| (!is_repeating(&lab.client, port)).then_some(()));
                assert!(client.is_some(), "{how:?} {from}: the client's socket");
                drop(left);
            }
            // The answered connection stays open, and can be closed as usual.
            let port = kept.local_addr().unwrap().port();
            assert_eq!(sockets_of(&lab.server, port), 1);
            drop(kept);
            assert!(once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some());
        }
        assert_eq!(number(&lab.stats(), "/interfaces/0/packets/would_drop"), 0);
    }
}

#[test]
fn a_client_that_waits_is_answered_once_its_source_is_allowed_or_enforcement_ends() {
    needs_root!();
    for link in [Link::Plain, Link::Tagged] {
        for ends in [&["allow", CLIENTS[0]][..], &["mode", "dry-run"], &["panic"]] {
            let lab = link.lab();
            let _site = site(&lab);
            let _daemon = start(&lab, "", "drop", "limits = [\"1/1h\"]");
            let mut kept = lab.open(CLIENTS[0], 80);
            assert!(is_answered(&mut kept, HANGS_AFTER), "the limit");
            let mut waits = lab.open(CLIENTS[0], 80);
            waits.write_all(REQUEST).unwrap();
            let output = lab.ratelimitd(ends);
            assert!(output.status.success(), "{output:?}");
            waits.set_read_timeout(Some(HANGS_AFTER)).unwrap();
            let read = waits.read(&mut [0; 64]);
            assert!(matches!(read, Ok(bytes) if bytes > 0), "{ends:?}: {read:?}");
        }
    }
}

#[test]
fn a_client_that_waits_while_its_window_is_full_is_reset_within_seconds() {
    needs_root!();
    for (link, rule) in [
        (Link::Plain, "limits = [\"2/1h\"]"),
        (Link::Tagged, "limits = [\"2/1h\"]"),
        (Link::Plain, "limits = [\"100/1h\", \"2/1h per /24,/56\"]"),
    ] {
        let lab = link.lab();
        let _site = site(&lab);
        let _daemon = start(&lab, "", "drop", rule);
        for (from, is_kept) in [(CLIENTS[0], false), (CLIENTS[1], true), (CLIENTS_V6[0], false)] {
            let mut kept = lab.open(from, 80);
            assert!((0..2).all(|_| is_answered(&mut kept, HANGS_AFTER)), "its limit");
            let mut waits = if is_kept { kept } else { lab.open(from, 80) };
            let port = waits.local_addr().unwrap().port();
            waits.write_all(REQUEST).unwrap();
            let begun = Instant::now();
            waits.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
            let read = waits.read(&mut [0; 64]);
            println!("{from} {rule}: {read:?} after {:?}", begun.elapsed());
            assert!(
                matches!(&read, Err(error) if error.kind() == ErrorKind::ConnectionReset),
                "{from} {rule}: {read:?}"
            );
            assert!(
                once(|| (sockets_of(&lab.server, port) == 0).then_some(())).is_some(),
                "{from}: the server's socket"
            );
            if rule.contains("per") {
                break;
            }
        }
    }
}

#[test]
fn a_client_that_half_closes_behind_a_request_within_its_limit_is_answered() {
    needs_root!();
    let lab = Lab::new();
    let _site = site(&lab);
    let _daemon = start(&lab, "", "drop", "limits = [\"3/1h\"]");
    for is_joined in [false, true, false] {
        let mut stream = lab.open(CLIENTS[0], 80);
        // MSG_MORE announces more data, and the end follows: both are one segment.
        let joined = if is_joined { libc::MSG_MORE } else { 0 };
        let sent = send(stream.as_raw_fd(), REQUEST, MsgFlags::from_bits_retain(joined)).unwrap();
        assert_eq!(sent, REQUEST.len());
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("ok\n"), "{answer}");
        assert!(stream.as_raw_fd() >= 0);
    }
}

/// Offset of the TCP flags in a frame over IPv4, and two of the flags.
const FLAGS_AT: usize = 14 + 20 + 13;
const FIN: u8 = 1;
const RST: u8 = 4;
const PASS: u32 = 2;
const DROP: u32 = 1;

fn with_flag(mut frame: Vec<u8>, flag: u8) -> Vec<u8> {
    frame[FLAGS_AT] |= flag;
    frame
}

/// Returns the frame that closes the connection behind its current request.
fn closing(of: &mut Established, flag: u8) -> Vec<u8> {
    let before = of.sequence;
    of.sequence = before.wrapping_add(u32::try_from(REQUEST.len()).unwrap());
    let frame = with_flag(of.frame(&[]), flag);
    of.sequence = before;
    frame
}

/// Returns the sequence number of a frame that is a reset, otherwise `None`.
fn reset_of(frame: &[u8]) -> Option<u32> {
    match PacketHeaders::from_ethernet_slice(frame).unwrap().transport {
        Some(TransportHeader::Tcp(tcp)) if tcp.rst && !tcp.fin => Some(tcp.sequence_number),
        _ => None,
    }
}

#[test]
fn only_the_client_ends_its_connection_and_no_retransmission_is_admitted() {
    needs_root!();
    const TENTH_NS: u64 = 100_000_000;
    // The window has five minutes, and the request that fills it arrives in the first bucket.
    const FREES_NS: u64 = 360 * 10 * TENTH_NS;
    let runs = || {
        let mut program = Program::new(&policy(&[limit(1, Unit::Requests, WindowForm::Strict)]));
        let run = |program: &mut Program, frame: &[u8]| program.kernel().test_run_of(frame);
        let open = || Established::on_loopback(80);
        let first = open()?;
        assert_eq!(run(&mut program, &first.frame(REQUEST))?.0, PASS);
        for flag in [FIN, RST] {
            let mut refused = open()?;
            let request = refused.frame(REQUEST);
            let before = closing(&mut refused, flag);
            assert_eq!(run(&mut program, &before)?, (PASS, before.clone()), "nothing is refused yet");
            assert_eq!(run(&mut program, &request)?.0, DROP);
            assert_eq!(run(&mut program, &request)?.0, DROP, "it is sent again");
            for (sequence, acknowledged) in [(0, 1), (0, u32::MAX), (1 << 30, 0), (0_u32.wrapping_sub(60), 0)] {
                let mut forged = closing(&mut refused, flag);
                let add = |at: usize, more: u32, frame: &mut Vec<u8>| {
                    let number = u32::from_be_bytes(frame[at..at + 4].try_into().unwrap()).wrapping_add(more);
                    frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
                };
                add(38, sequence, &mut forged);
                add(42, acknowledged, &mut forged);
                assert_eq!(run(&mut program, &forged)?, (PASS, forged.clone()), "{sequence} {acknowledged}");
            }
            let (action, ended) = run(&mut program, &before)?;
            assert_eq!((action, reset_of(&ended)), (PASS, Some(refused.sequence)));
            drop(refused);
            // The server's socket is gone. A retransmission goes to the kernel, and is no request.
            for _ in 0..8 {
                assert_eq!(run(&mut program, &request)?, (PASS, request.clone()));
            }
        }
        // All in one segment: sent at once, and retransmitted when the window has freed.
        let joined = open()?;
        let frame = with_flag(joined.frame(REQUEST), FIN);
        let (action, ended) = run(&mut program, &frame)?;
        assert_eq!((action, reset_of(&ended)), (PASS, Some(joined.sequence)));
        let mut waits = open()?;
        let (later, old) = (open()?, open()?);
        assert_eq!(run(&mut program, &old.frame(REQUEST))?.0, DROP);
        program.advance(FREES_NS - 2 * TENTH_NS);
        for of in [&waits, &later] {
            assert_eq!(run(&mut program, &of.frame(REQUEST))?.0, DROP);
        }
        program.advance(4 * TENTH_NS);
        let (action, ended) = run(&mut program, &with_flag(later.frame(REQUEST), FIN))?;
        assert_eq!((action, reset_of(&ended)), (PASS, Some(later.sequence)), "its client has given up");
        let (action, ended) = run(&mut program, &old.frame(REQUEST))?;
        assert_eq!((action, reset_of(&ended)), (PASS, Some(old.sequence)), "its client may have given up");
        let request = waits.frame(REQUEST);
        assert_eq!(run(&mut program, &request)?, (PASS, request), "the freed window is for whom still waits");
        let close = closing(&mut waits, FIN);
        assert_eq!(run(&mut program, &close)?, (PASS, close.clone()), "what was admitted is no longer refused");
        let reading = program.kernel().read()?;
        Ok(tallies(&reading))
    };
    let counts = Namespace::new().unwrap().inside(runs).unwrap();
    assert_eq!((counts[&("within_limit", Some(0))], counts[&("reset", Some(0))]), (2, 3), "{counts:?}");
}
