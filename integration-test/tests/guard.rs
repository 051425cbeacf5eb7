//! Tests of the guard of request limits, which bounds traffic without requests: connections without a request, and
//! segments that begin none.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_test::frames::Segment;
use integration_test::frames::flag::SYN;
use integration_test::lab::{CLIENTS, HANGS_AFTER, Lab, SERVER, is_answered, number, once, packets};
use integration_test::logged::Site;
use integration_test::raw::RawWire;
use netlab::{needs_root, without_offloads};

const CLIENT: &str = CLIENTS[0];
const OTHER: &str = CLIENTS[1];
const LIMIT: u64 = 5;
/// Value of `GUARDED_SEGMENTS_MIN`, as stated in docs/COUNTING.md.
const SEGMENTS: u64 = 16_384;
/// Time after which data that the server does not have is assumed lost, and checked to be dropped.
const LOST_AFTER: Duration = Duration::from_millis(200);
const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";

/// A server that accepts and reads, and sends nothing.
struct Sink {
    accepted: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
}

impl Sink {
    fn start(lab: &Lab) -> Self {
        without_offloads(&lab.client, "c0").unwrap();
        without_offloads(&lab.server, "s0").unwrap();
        let listener = lab.server.inside(|| Ok(TcpListener::bind((SERVER[0], 80))?)).unwrap();
        let (accepted, read) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let sink = Self { accepted: Arc::clone(&accepted), read: Arc::clone(&read) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, read) = (stream.unwrap(), Arc::clone(&read));
                accepted.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    let mut part = vec![0; 1 << 16];
                    while let Ok(bytes @ 1..) = stream.read(&mut part) {
                        read.fetch_add(bytes as u64, Ordering::Relaxed);
                    }
                });
            }
        });
        sink
    }

    fn accepted(&self) -> u64 {
        netlab::settled(|| Ok(self.accepted.load(Ordering::Relaxed))).unwrap()
    }

    fn read(&self) -> u64 {
        netlab::settled(|| Ok(self.read.load(Ordering::Relaxed))).unwrap()
    }
}

fn guarded(lab: &Lab) -> u64 {
    lab.stats().pointer("/reasons/guard").and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// Returns the client's use of these units. Asserts that `check` and `stats` report drops by the guard.
fn blocked(lab: &Lab, used: &str) -> u64 {
    let (check, said) = (lab.ratelimitd(&["check", CLIENT, "--json"]), lab.ratelimitd(&["check", CLIENT]));
    assert_eq!((check.code(), said.code()), (3, 3), "{}", said.stdout);
    assert!(said.stdout.contains("; its requests pass\n"), "{}", said.stdout);
    let stats = lab.ratelimitd(&["stats"]).stdout;
    assert!(stats.contains(" by the guard\n"), "{stats}");
    // Every output has the same words for what the guard has counted.
    let words = if used == "connections" { "connections without a request" } else { "segments that begin no request" };
    assert!(said.stdout.contains(words), "{}", said.stdout);
    let told = lab.ratelimitd(&["events"]).stdout;
    assert!(told.contains(&format!("{words} (guard)")), "{told}");
    assert!(!told.contains("requests (guard)"), "{told}");
    let check: serde_json::Value = serde_json::from_str(&check.stdout).unwrap();
    assert_eq!((&check["reason"], &check["guard"][0]["over"]), (&"guard".into(), &true.into()), "{check:#}");
    number(&check, &format!("/guard/0/{used}/used"))
}

/// Opens connections without a request, each of which the client considers open.
fn open_many(lab: &Lab, connections: u64) -> Vec<TcpStream> {
    (0..connections).map(|_| lab.open(CLIENT, 80)).collect()
}

#[test]
fn connections_that_ask_nothing_are_refused_beyond_twice_the_limit() {
    needs_root!();
    let lab = Lab::new();
    let sink = Sink::start(&lab);
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h")]);
    let _open = open_many(&lab, 4 * LIMIT);
    let accepted = sink.accepted();
    assert!((LIMIT..=2 * LIMIT).contains(&accepted), "{accepted}");
    assert!(guarded(&lab) > 0, "{:#}", lab.stats());
    assert_eq!(blocked(&lab, "connections"), LIMIT);
    // Another source has its own limit.
    let before = sink.accepted();
    let _other = lab.open(OTHER, 80);
    assert_eq!(sink.accepted(), before + 1);
    // A source without a request has only the guard's windows. Refused connections are retried meanwhile.
    let before = sink.accepted();
    let unblocked = lab.ratelimitd(&["unblock", "10.9.0.0/24"]);
    assert_eq!((unblocked.code(), unblocked.stdout), (0, format!("{CLIENT}: counters reset\n")));
    let _open = open_many(&lab, 4 * LIMIT);
    assert!(sink.accepted() >= before + LIMIT);
}

#[test]
fn a_source_that_is_freed_is_not_suspect_any_more() {
    needs_root!();
    let lab = Lab::new();
    let _web = lab.web();
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h")]);
    let ask = || is_answered(&mut lab.open(CLIENT, 80), HANGS_AFTER);
    let opened = || {
        let check = lab.ratelimitd(&["check", CLIENT, "--json"]).stdout;
        let check: serde_json::Value = serde_json::from_str(&check).unwrap();
        check.pointer("/guard/0/connections/used").and_then(serde_json::Value::as_u64).unwrap_or(0)
    };
    for command in ["unblock", "reset"] {
        assert!((0..LIMIT).all(|_| ask()));
        let _beyond = lab.open(CLIENT, 80);
        assert!(once(|| (opened() == 1).then_some(())).is_some(), "it is suspect before {command}");
        assert_eq!(lab.ratelimitd(&[command, CLIENT]).code(), 0);
        assert!((0..LIMIT).all(|_| ask()));
        assert_eq!(opened(), 0, "after {command}");
        assert_eq!(lab.ratelimitd(&["reset", CLIENT]).code(), 0);
    }
}

#[test]
fn handshakes_of_tls_that_ask_nothing_are_refused_beyond_twice_the_limit() {
    needs_root!();
    let lab = Lab::new();
    let sink = Sink::start(&lab);
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h")]);
    let hello = [b"\x16\x03\x01\x00\x80\x01".as_slice(), &[0; 127]].concat();
    let mut open = open_many(&lab, 4 * LIMIT);
    for stream in &mut open {
        // The server receives the end of the TCP handshake again, which was refused.
        stream.write_all(&hello).unwrap();
    }
    let accepted = sink.accepted();
    assert!((LIMIT..=2 * LIMIT).contains(&accepted), "{accepted}");
    assert!(guarded(&lab) > 0, "{:#}", lab.stats());
}

#[test]
fn connections_are_free_where_the_rule_turns_the_guard_off() {
    needs_root!();
    let lab = Lab::new();
    let sink = Sink::start(&lab);
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = [\"s0\"]\nsocket = \"{}\"", lab.socket().display());
    let rule = format!("[rule]\nlimits = [\"{LIMIT}/1h requests\"]\nguard = \"off\"\n");
    std::fs::write(&file, format!("{top}\n{rule}")).unwrap();
    let _daemon = lab.start(&["run", "--config", file.to_str().unwrap()]);
    let _open = open_many(&lab, 4 * LIMIT);
    assert_eq!((sink.accepted(), guarded(&lab)), (4 * LIMIT, 0));
}

#[test]
fn forged_attempts_to_connect_keep_no_client_from_connecting() {
    needs_root!();
    const FORGED: u16 = 50;
    let lab = Lab::new();
    let sink = Sink::start(&lab);
    let wire = RawWire::new(&lab);
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h")]);
    let before = packets(&lab.stats())[0];
    for source_port in 0..FORGED {
        // These ports are outside the range of the client's own stack.
        let segment = Segment { source_port: 1_000 + source_port, sequence: 1, ..Segment::to(80, SYN) };
        wire.send(&wire.frame(CLIENT.parse().unwrap(), segment));
    }
    lab.stats_once(|stats| packets(stats)[0] >= before + u64::from(FORGED));
    let mut open = open_many(&lab, LIMIT);
    assert_eq!((sink.accepted(), guarded(&lab)), (LIMIT, 0));
    for stream in &mut open {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    assert_eq!(sink.read(), LIMIT * 27);
    assert_eq!(number(&lab.stats(), "/reasons/over_limit"), 0);
}

#[test]
fn segments_that_begin_no_request_are_bounded_and_an_upload_is_not() {
    needs_root!();
    const UPLOAD_BYTES: usize = 100_000_000;
    let lab = Lab::new();
    let sink = Sink::start(&lab);
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h")]);
    let mut upload = lab.open(OTHER, 80);
    upload.write_all(POST).unwrap();
    let part = vec![b'x'; 1 << 16];
    for _ in 0..UPLOAD_BYTES / part.len() {
        upload.write_all(&part).unwrap();
    }
    let uploaded = (POST.len() + UPLOAD_BYTES / part.len() * part.len()) as u64;
    assert_eq!((sink.read(), guarded(&lab)), (uploaded, 0));
    // One byte at a time, as a client that wants to be miscounted would send requests.
    let mut bytes = lab.open(CLIENT, 80);
    bytes.set_nodelay(true).unwrap();
    bytes.write_all(POST).unwrap();
    let before = sink.read();
    let passed = (1..2 * SEGMENTS).find(|sent| {
        bytes.write_all(b"x").unwrap();
        let mut began = Instant::now();
        while sink.read.load(Ordering::Relaxed) < before + sent {
            if began.elapsed() > LOST_AFTER {
                if guarded(&lab) > 0 {
                    return true;
                }
                began = Instant::now();
            }
            std::hint::spin_loop();
        }
        false
    });
    assert_eq!(passed, Some(SEGMENTS + 1));
    assert!(guarded(&lab) > 0);
    assert_eq!(blocked(&lab, "segments"), SEGMENTS);
}

/// Uploads 1 GB by curl, and returns how many segments the guard has counted.
fn uploads_a_gigabyte(scheme: &str, version: &str) -> u64 {
    let site = Site::new();
    let _daemon = site.limit_by("limits = [\"10/1h\"]");
    let body = site.lab.directory().join("body");
    std::fs::File::create(&body).unwrap().set_len(1 << 30).unwrap();
    let url = format!("{scheme}://{}/put/body", SERVER[0]);
    let curl = ["curl", "-sSk", version, "-m", "120", "--interface", CLIENT, "-o", "/dev/null", "-w", "%{http_code}"];
    let sent = site.lab.client.run(&[&curl[..], &["-T", body.to_str().unwrap(), &url]].concat());
    let said = site.lab.ratelimitd(&["check", CLIENT, "--json"]).stdout;
    assert!(sent.as_ref().is_ok_and(|sent| sent.stdout == "201"), "{scheme} {version}: {sent:?}\n{said}");
    assert_eq!(guarded(&site.lab), 0, "{scheme} {version}: {said}");
    let check: serde_json::Value = serde_json::from_str(&said).unwrap();
    number(&check, "/guard/0/segments/used")
}

#[test]
fn an_upload_of_a_gigabyte_within_a_small_limit_is_not_cut() {
    needs_root!();
    for (scheme, version) in [("http", "--http1.1"), ("https", "--http1.1"), ("https", "--http2")] {
        let segments = uploads_a_gigabyte(scheme, version);
        assert!(segments < SEGMENTS * 3 / 4, "{scheme} {version}: {segments}");
    }
}
