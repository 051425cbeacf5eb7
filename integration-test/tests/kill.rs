//! Tests of closing open connections on real sockets: `deny --kill`, and bans by a rule with `block_kill`.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, HANGS_AFTER, Lab, SERVER, is_answered, number};
use netlab::needs_root;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, socket};
use serde_json::Value;

/// Time without data after which a connection counts as open.
const OPEN_AFTER: Duration = Duration::from_millis(200);

/// Both ends of a connection.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    /// Opens a connection to a server with an IPv6 socket, whichever family the client uses.
    fn open(lab: &Lab, listener: &TcpListener, from: &str) -> Self {
        let client = lab.open(from, listener.local_addr().unwrap().port());
        Self { client, server: listener.accept().unwrap().0 }
    }

    /// Waits for the client's next event, and returns whether it is a reset.
    fn is_reset(&mut self) -> bool {
        self.client.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        self.client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    }

    /// Returns whether the connection is open and the server's data arrives.
    fn lives(&mut self) -> bool {
        self.client.set_read_timeout(Some(OPEN_AFTER)).unwrap();
        let is_quiet = self.client.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        self.client.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        is_quiet && self.server.write_all(b"x").is_ok() && self.client.read_exact(&mut [0]).is_ok()
    }
}

fn listener(lab: &Lab, address: &str) -> TcpListener {
    lab.server.inside(|| Ok(TcpListener::bind(address)?)).unwrap()
}

/// Denies sources with `--kill`, and returns the report.
fn deny(lab: &Lab, args: &[&str]) -> Value {
    let output = lab.ratelimitd(&[&["deny", "--kill", "--json"], args].concat());
    assert_eq!(output.code(), 0, "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

fn start(lab: &Lab, rule: &str) -> Daemon {
    let file = lab.directory().join("ratelimitd.toml");
    let top = format!("interfaces = [\"s0\"]\nsocket = \"{}\"", lab.socket().display());
    fs::write(&file, format!("{top}\n[rule]\n{rule}\n")).unwrap();
    lab.start(&["run", "--config", file.to_str().unwrap()])
}

#[test]
fn a_denial_ends_the_connections_of_its_prefix_to_what_is_protected_and_no_others() {
    needs_root!();
    let lab = Lab::new();
    // The first has an IPv4 socket, the second an IPv6 socket for both families.
    let plain = listener(&lab, "10.9.0.1:443");
    let dual = listener(&lab, "[::]:80");
    let unprotected = listener(&lab, "[::]:8080");
    let _daemon = lab.limit(&["--limit", "1000/1h"]);
    let mut denied = [Pair::open(&lab, &plain, CLIENTS[0]), Pair::open(&lab, &dual, CLIENTS[0])];
    let mut denied_v6 = [CLIENTS_V6[0], CLIENTS_V6[1]].map(|from| Pair::open(&lab, &dual, from));
    let mut others =
        [CLIENTS[1], CLIENTS_V6[2]].map(|from| Pair::open(&lab, &dual, from)).into_iter().collect::<Vec<_>>();
    others.push(Pair::open(&lab, &plain, CLIENTS[1]));
    others.push(Pair::open(&lab, &unprotected, CLIENTS[0]));
    assert!(denied.iter_mut().chain(&mut denied_v6).chain(&mut others).all(Pair::lives));

    let report = deny(&lab, &[CLIENTS[0]]);
    assert_eq!(number(&report, "/connections/ended"), 2, "{report:#}");
    assert!(report["notes"].to_string().contains("ended 2 of its connections"), "{report:#}");
    assert!(denied.iter_mut().all(Pair::is_reset));
    assert!(denied_v6.iter_mut().all(Pair::lives), "of IPv6");
    // An address without a length stands for its source.
    let report = deny(&lab, &[CLIENTS_V6[0]]);
    assert_eq!(number(&report, "/connections/ended"), 2, "{report:#}");
    assert!(denied_v6.iter_mut().all(Pair::is_reset));
    assert!(others.iter_mut().all(Pair::lives), "of others, and to what no rule protects");
    for mut ended in denied.into_iter().chain(denied_v6) {
        let told = ended.server.read(&mut [0]).unwrap_err().kind();
        assert_eq!(told, ErrorKind::ConnectionAborted, "the server learns it too");
    }
    let report = deny(&lab, &[CLIENTS[0]]);
    assert!(
        report["notes"].to_string().contains("it has no open connections to ports that a rule enforces"),
        "{report:#}"
    );
    assert_eq!(number(&lab.stats(), "/connections/ended"), 4);
    assert!(lab.ratelimitd(&["stats"]).stdout.contains("closed 4 connections"));
}

#[test]
fn an_allowed_part_of_a_denied_prefix_keeps_its_connections() {
    needs_root!();
    let lab = Lab::new();
    let web = listener(&lab, "[::]:80");
    let _daemon = lab.limit(&["--limit", "1000/1h", "--allow", CLIENTS[1]]);
    let mut pairs = [CLIENTS[0], CLIENTS[1], CLIENTS[2]].map(|from| Pair::open(&lab, &web, from));
    let report = deny(&lab, &["10.9.0.0/29", "--force"]);
    assert_eq!(number(&report, "/connections/ended"), 2, "{report:#}");
    let [first, second, third] = &mut pairs;
    assert!(first.is_reset() && second.lives() && third.is_reset());
}

#[test]
fn a_ban_ends_all_connections_of_its_source_to_the_rules_ports() {
    needs_root!();
    let lab = Lab::new();
    let (web, other) = (lab.web(), listener(&lab, "[::]:22"));
    let _daemon = start(&lab, "limits = [\"3/1h\"]\nports = \"80\"\nblock_for = \"1h\"\nblock_kill = true");
    let mut idle = lab.open(CLIENTS[0], 80);
    let mut ssh = Pair::open(&lab, &other, CLIENTS[0]);
    let mut neighbour = lab.open(CLIENTS[1], 80);
    let bans = (0..4).map(|_| lab.open(CLIENTS[0], 80)).filter_map(|mut stream| {
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
        stream.read(&mut [0; 64]).err()
    });
    // The request that causes the ban is dropped. Then its connection is closed.
    assert_eq!(bans.map(|error| error.kind()).collect::<Vec<_>>(), [ErrorKind::ConnectionReset]);
    idle.set_read_timeout(Some(HANGS_AFTER)).unwrap();
    assert_eq!(idle.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(ssh.lives(), "it is to another port");
    assert!(is_answered(&mut neighbour, HANGS_AFTER));
    assert!(number(&lab.stats(), "/connections/ended") >= 2);
    drop(web);
}

#[test]
fn connections_closed_per_second_are_bounded_and_the_others_follow() {
    needs_root!();
    const ALL: usize = 1_300;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let lab = Lab::new();
    lab.server
        .inside(|| Ok(fs::write("/proc/sys/net/core/somaxconn", "4096")?))
        .expect("connections that nobody has accepted yet");
    let _listener = lab
        .server
        .inside(|| {
            let listener = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            bind(listener.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(SERVER[0].parse()?, 80)))?;
            listen(&listener, Backlog::new(4096)?)?;
            Ok(listener)
        })
        .unwrap();
    let _daemon = lab.limit(&["--limit", "100000/1h"]);
    let mut streams: Vec<TcpStream> = lab
        .client
        .inside(|| {
            let from = SocketAddr::new(CLIENTS[0].parse::<IpAddr>()?, 0);
            let open = |_| {
                let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
                bind(client.as_raw_fd(), &SockaddrStorage::from(from))?;
                connect(client.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(SERVER[0].parse()?, 80)))?;
                Ok(TcpStream::from(client))
            };
            (0..ALL).map(open).collect()
        })
        .unwrap();
    let mut other = lab.open(CLIENTS[1], 80);

    let report = deny(&lab, &[CLIENTS[0]]);
    assert_eq!(number(&report, "/connections/ended"), 1_000, "{report:#}");
    assert!(report["notes"].to_string().contains("300 more follow, 1000 a second"), "{report:#}");
    for stream in &mut streams {
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    let stats = lab.stats_once(|stats| number(stats, "/connections/ended") >= ALL as u64);
    assert_eq!(number(&stats, "/connections/ended"), ALL as u64);
    assert_eq!(number(&stats, "/connections/left_open"), 0);
    other.set_read_timeout(Some(OPEN_AFTER)).unwrap();
    assert_eq!(other.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
