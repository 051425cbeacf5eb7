//! Tests of requests that the real daemon counts and refuses, compared with the log of a real web server. `cargo xtask
//! accuracy` makes the large table.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use integration_test::lab::{CLIENTS, Lab, SERVER};
use netlab::{Child, needs_root, nginx_with_tls, without_offloads};
use serde_json::Value;

/// Source address of the client, its first one.
const CLIENT: &str = CLIENTS[0];

fn web(lab: &Lab) -> Child {
    // Segments are as on a wire.
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    let at = |port: u16| SocketAddr::new(SERVER[0].parse().unwrap(), port);
    nginx_with_tls(&lab.server, lab.directory(), &[at(80)], &[at(443)]).unwrap()
}

/// Returns the number of the client's requests in the web server's log.
fn logged(lab: &Lab) -> u64 {
    let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
    log.lines().filter(|line| line.starts_with(&format!("{CLIENT} "))).count() as u64
}

/// Returns the number of the client's counted requests.
fn counted(lab: &Lab) -> u64 {
    let output = lab.ratelimitd(&["check", CLIENT, "--json"]);
    let check: Value = serde_json::from_str(&output.stdout).unwrap();
    check.pointer("/limits/0/used").and_then(Value::as_u64).unwrap()
}

/// Returns both numbers once they no longer change.
fn settled(lab: &Lab) -> [u64; 2] {
    netlab::settled(|| Ok([logged(lab), counted(lab)])).unwrap()
}

fn client(lab: &Lab, argv: &[&str]) {
    let output = lab.client.run(&[&["timeout", "20"], argv].concat()).unwrap();
    assert!(output.status.success(), "{argv:?}: {}", output.stderr);
}

#[test]
fn counted_requests_equal_those_in_the_web_servers_log() {
    needs_root!();
    let lab = Lab::new();
    let _web = web(&lab);
    let large = lab.directory().join("large");
    fs::write(&large, vec![7; 3_000_000]).unwrap();
    let large = large.to_str().unwrap();
    let _daemon = lab.limit(&["--limit", "1000000000/1h", "--count", "requests"]);
    let (clear, tls) = (format!("http://{}", SERVER[0]), format!("https://{}", SERVER[0]));
    let curl = ["curl", "-ksSf", "--http1.1"];
    let mut requests = 0;
    for (name, argv, at_least) in [
        ("curl, clear, kept alive", [&curl[..], &[&clear, &clear, &clear]].concat(), 3),
        ("curl, TLS 1.3, kept alive", [&curl[..], &[&tls, &tls, &tls]].concat(), 3),
        ("curl, TLS 1.2, kept alive", [&curl[..], &["--tls-max", "1.2", &tls, &tls, &tls]].concat(), 3),
        ("curl, HTTP/1.0", vec!["curl", "-ksSf", "-0", &clear], 1),
        ("curl, an upload", [&curl[..], &["-T", large, &format!("{clear}/put/large")]].concat(), 1),
        ("curl, an upload over TLS", [&curl[..], &["-T", large, &format!("{tls}/put/large")]].concat(), 1),
        ("wrk, clear", vec!["wrk", "-t1", "-c4", "-d1s", &clear], 100),
        ("wrk, TLS", vec!["wrk", "-t1", "-c4", "-d1s", &tls], 100),
    ] {
        client(&lab, &argv);
        let [logged, counted] = settled(&lab);
        assert!(logged - requests >= at_least, "{name}: {} requests came", logged - requests);
        assert_eq!(counted, logged, "{name}");
        requests = logged;
    }
}

#[test]
fn the_web_server_logs_as_many_requests_as_the_limit_allows() {
    needs_root!();
    for scheme in ["http", "https"] {
        let lab = Lab::new();
        let _web = web(&lab);
        let _daemon = lab.limit(&["--limit", "100/1h", "--count", "requests"]);
        client(&lab, &["wrk", "-t1", "-c64", "-d3s", &format!("{scheme}://{}", SERVER[0])]);
        assert_eq!(settled(&lab), [100, 100], "{scheme}");
    }
}

#[test]
fn a_request_of_several_segments_over_the_limit_is_not_answered() {
    /// Exit code of curl after a reset.
    const CURL_RESET: i32 = 56;
    needs_root!();
    let cookie = format!("Cookie: {}", "c".repeat(4_000));
    for scheme in ["http", "https"] {
        let lab = Lab::new();
        let _web = web(&lab);
        let _daemon = lab.limit(&["--limit", "2/1h", "--count", "requests"]);
        let url = format!("{scheme}://{}", SERVER[0]);
        let curl = ["curl", "-ksSf", "--http1.1", "--max-time", "20", "-H", &cookie, &url];
        for _ in 0..2 {
            client(&lab, &curl);
        }
        let output = lab.client.run(&curl).unwrap();
        assert_eq!(output.status.code(), Some(CURL_RESET), "{scheme}: {}", output.stderr);
        assert_eq!(settled(&lab), [2, 2], "{scheme}");
    }
}

#[test]
fn a_server_that_takes_mptcp_gets_no_more_requests_than_one_that_does_not() {
    const LIMIT: usize = 5;
    needs_root!();
    // Multipath TCP is protocol 262. A client without it connects by plain TCP.
    const SERVER_PROGRAM: &str = "\
import socket, sys
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind((sys.argv[1], 80))
listener.listen(64)
print('listens', file=sys.stderr, flush=True)
while True:
    stream, _ = listener.accept()
    if stream.recv(4096):
        stream.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\nConnection: close\\r\\n\\r\\nok\\n')
    stream.close()
";
    let lab = Lab::new();
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    let mut command = lab.command("python3");
    command.args(["-c", SERVER_PROGRAM, SERVER[0]]);
    let server = Child::start(command).unwrap();
    server.wait_for_line("listens", Duration::from_secs(10)).unwrap();
    let _daemon = lab.limit(&["--limit", &format!("{LIMIT}/1h")]);
    let is_answered = || {
        let url = format!("http://{}/", SERVER[0]);
        lab.client.run(&["curl", "-sS", "--max-time", "1", &url]).unwrap().status.success()
    };
    let answered = (0..3 * LIMIT).filter(|_| is_answered()).count();
    assert_eq!(answered, LIMIT);
}
