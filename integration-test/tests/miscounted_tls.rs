//! Tests of TLS clients that want to be miscounted, and of clients that are. Their records are as long as something
//! that is no request, and the counts are compared with nginx's log.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::net::SocketAddr;

use integration_test::lab::{CLIENTS, Daemon, Lab, SERVER};
use netlab::{Child, needs_root, nginx_with_http2, nginx_with_tls, without_offloads};
use serde_json::Value;

const CLIENT: &str = CLIENTS[0];
const LIMIT: u64 = 10;
/// Number of free records on a connection with the length of HTTP/2 control frames: an acknowledgement of settings, and
/// three more.
const FREE: u64 = 4;
const PROGRAM: &str = include_str!("programs/small_records.py");

type Serve = fn(&netlab::Namespace, &std::path::Path, &[SocketAddr], &[SocketAddr]) -> anyhow::Result<Child>;

fn start(serve: Serve, limit: &str) -> (Lab, Child, Daemon) {
    let lab = Lab::new();
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    let at = |port: u16| SocketAddr::new(SERVER[0].parse().unwrap(), port);
    let web = serve(&lab.server, lab.directory(), &[at(80)], &[at(443)]).unwrap();
    fs::write(lab.directory().join("small_records.py"), PROGRAM).unwrap();
    let daemon = lab.limit(&["--limit", limit, "--count", "requests"]);
    (lab, web, daemon)
}

fn logged(lab: &Lab) -> u64 {
    let log = fs::read_to_string(lab.directory().join("access.log")).unwrap();
    log.lines().filter(|line| line.starts_with(&format!("{CLIENT} "))).count() as u64
}

fn counted(lab: &Lab) -> u64 {
    let check: Value = serde_json::from_str(&lab.ratelimitd(&["check", CLIENT, "--json"]).stdout).unwrap();
    check["limits"].as_array().unwrap().iter().filter_map(|limit| limit["used"].as_u64()).sum()
}

fn settled(lab: &Lab) -> [u64; 2] {
    netlab::settled(|| Ok([logged(lab), counted(lab)])).unwrap()
}

/// Returns the number of answered requests of the program with these arguments.
fn answered(lab: &Lab, args: &[&str]) -> u64 {
    let program = lab.directory().join("small_records.py").display().to_string();
    let output = lab.client.run(&[&["timeout", "30", "python3", "-B", &program, SERVER[0]], args].concat()).unwrap();
    output.stdout.trim().parse().unwrap_or_else(|_| panic!("{args:?}: {}{}", output.stdout, output.stderr))
}

#[test]
fn h2load_with_one_stream_is_counted_as_the_server_logs() {
    needs_root!();
    let (lab, _web, _daemon) = start(nginx_with_http2, "1000000/1h");
    let url = format!("https://{}/", SERVER[0]);
    let mut requests = 0;
    for [number, clients] in [["1", "1"], ["300", "1"], ["300", "10"]] {
        let output =
            lab.client.run(&["timeout", "30", "h2load", "-n", number, "-c", clients, "-m", "1", &url]).unwrap();
        assert!(output.status.success(), "{}", output.stderr);
        let [logged, counted] = settled(&lab);
        assert_eq!(logged - requests, number.parse::<u64>().unwrap());
        assert_eq!(counted, logged, "-n {number} -c {clients}");
        requests = logged;
    }
}

#[test]
fn h2load_with_one_stream_gets_as_many_answers_as_the_limit_allows() {
    needs_root!();
    let (lab, _web, _daemon) = start(nginx_with_http2, &format!("{LIMIT}/1h"));
    let url = format!("https://{}/", SERVER[0]);
    // h2load waits for refused requests until it is stopped.
    lab.client.run(&["timeout", "4", "h2load", "-n", "100", "-c", "1", "-m", "1", &url]).unwrap();
    assert_eq!(settled(&lab), [LIMIT, LIMIT]);
}

#[test]
fn records_as_long_as_frames_of_control_are_not_free() {
    needs_root!();
    for (serve, speaks) in [(nginx_with_tls as Serve, "http1"), (nginx_with_http2, "h2")] {
        for version in ["1.3", "1.2"] {
            let (lab, _web, _daemon) = start(serve, &format!("{LIMIT}/1h"));
            for sizes in ["9", "13", "14", "17", "13,14", "26,1", "2", "1"] {
                let reset = lab.ratelimitd(&["reset", CLIENT]);
                assert_eq!(reset.code(), 0, "{}", reset.stderr);
                let before = settled(&lab)[0];
                let answered = answered(&lab, &[version, speaks, sizes, "40"]);
                let logged = settled(&lab)[0] - before;
                let what = format!("{speaks}, TLS {version}, records of {sizes}: {logged} logged, {answered} answered");
                println!("{what}");
                assert!((1..=LIMIT + FREE).contains(&logged), "{what}");
            }
        }
    }
}
