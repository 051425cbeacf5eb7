//! A fleet's hosts, their store and their clients, each in its own namespace. Every host runs the real binary.
//!
//! The clients' namespace has a veth pair to each host (`c0` to the first host's `s0`). Each host has one to a bridge
//! in the store's namespace (`f0` to `b0`, `b1` …). While a host is cut off, its port of the bridge silently drops all
//! frames, as a network does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlab::{Bpffs, Child, End, Namespace, Output, veth};
use nix::sys::signal::Signal;
use ratelimit_crash::{Point, VARIABLE, reached};
use serde_json::Value;

use crate::lab::{HANGS_AFTER, binary, number, once, run};
use clients::{Client, Manner};
use site::{Log, Site};
use store::{Kind, Store};

pub mod clients;
pub mod proxy;
pub mod site;
pub mod store;

const WORKS: &str = "what a test needs works";
/// Ports of the servers on every host.
pub const PORTS: [u16; 4] = [80, 81, 82, 83];
/// Maximum time until all hosts know each other's admissions again after a trouble has ended.
pub const WHOLE_WITHIN: Duration = Duration::from_secs(5);
/// Number of requests that a probe sends to each host.
const PROBED: u64 = 32;
/// Maximum number of a host's admissions that may be unreported: less than two steps of a limit that is far above
/// [`PROBED`].
const UNSAID_MAX: u64 = 7;

/// Returns an address of a client. All of these addresses are on the clients' side.
pub fn client_of(number: u8) -> String {
    format!("198.51.100.{number}")
}

/// A host of the fleet.
pub struct Host {
    /// Index of the host, starting at 0.
    pub number: usize,
    /// The host's daemon, if it runs.
    pub daemon: Option<Child>,
    /// Interfaces that the daemon protects.
    pub interfaces: Vec<&'static str>,
    sites: Vec<Site>,
    directory: PathBuf,
    bpffs: Bpffs,
    /// Namespace of the host.
    pub namespace: Namespace,
}

/// A fleet with its store and clients, removed on drop.
pub struct Fleet {
    /// Hosts of the fleet, by number.
    pub hosts: Vec<Host>,
    /// Store of the fleet.
    pub store: Store,
    /// Requests that reached the servers.
    pub log: Log,
    /// Namespace of the clients.
    pub client: Arc<Namespace>,
    /// Window of the limit that is checked for its fleet-wide sum.
    pub window: Duration,
    directory: tempfile::TempDir,
}

impl Fleet {
    /// Creates a fleet with daemons that are not started yet.
    pub fn new(hosts: usize, kind: Kind) -> Self {
        netlab::sweep().expect("what killed runs left is removed");
        let directory = tempfile::tempdir().expect(WORKS);
        let (client, store) = (Namespace::new().expect(WORKS), Namespace::new().expect(WORKS));
        // The whole network belongs to the clients.
        client.ip(&["route", "add", "local", "198.51.100.0/24", "dev", "lo"]).expect(WORKS);
        store.ip(&["link", "add", "br0", "type", "bridge"]).expect(WORKS);
        store.add_address("br0", &format!("{}/24", store::ADDRESS)).expect(WORKS);
        store.ip(&["link", "set", "br0", "up"]).expect(WORKS);
        let log = Log::default();
        let hosts = (0..hosts).map(|number| Host::new(number, directory.path(), &client, &store, &log)).collect();
        let store = Store::start(store, directory.path(), kind);
        fs::write(directory.path().join("fleet.secret"), "of this fleet alone, ".repeat(2)).expect(WORKS);
        Self { hosts, store, log, client: Arc::new(client), window: Duration::from_secs(20), directory }
    }

    /// Returns the fleet's own directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Writes every host's configuration: the text above `[fleet]`, that of `[fleet]` itself, and the rules.
    pub fn configure(&self, top: &str, fleet: &str, rules: &str) {
        let secret = self.directory().join("fleet.secret");
        for host in &self.hosts {
            let text = format!(
                "interfaces = {:?}\nsocket = \"{}\"\n{top}\n[fleet]\n{fleet}\nname = \"web\"\nsecret_file = \"{}\"\n\
                 interval = \"1s\"\nhosts = {}\nbans = true\n{rules}\n",
                host.interfaces,
                host.directory.join("control.sock").display(),
                secret.display(),
                self.hosts.len(),
            );
            fs::write(host.file(), text).expect(WORKS);
        }
    }

    /// Starts every daemon, and waits until each has heard of all others.
    pub fn start(&mut self) {
        self.hosts.iter_mut().for_each(Host::start);
        self.wait_until_connected();
    }

    /// Waits until each host reports that the fleet is complete and connected.
    pub fn wait_until_connected(&self) {
        for host in &self.hosts {
            host.stats_once(|stats| {
                stats["fleet"]["state"] == "connected" && stats["fleet"]["hosts"] == self.hosts.len()
            });
        }
    }

    /// Waits until each of these hosts reports this state of its fleet.
    pub fn wait_for_state(&self, hosts: &[usize], state: &str) {
        for host in hosts {
            self.hosts[*host].stats_once(|stats| stats["fleet"]["state"] == state);
        }
    }

    /// Starts a client that sends requests to all hosts by turns.
    pub fn client(&self, from: &str, port: u16, manner: Manner) -> Client {
        let to = self.hosts.iter().map(|host| host.address(port)).collect();
        Client::start(&self.client, from, to, manner)
    }

    /// Starts a client that sends requests to one host.
    pub fn client_of_host(&self, host: usize, from: &str, port: u16, manner: Manner) -> Client {
        Client::start(&self.client, from, vec![self.hosts[host].address(port)], manner)
    }

    /// Sends at least `count` requests to one host, and asserts that all of them are answered.
    pub fn ask(&self, host: usize, from: &str, port: u16, count: u64) {
        let before = self.log.at_host(from, host);
        let client = self.client_of_host(host, from, port, clients::innocent(500));
        once(|| (client.answered() >= count).then_some(())).expect("requests are answered");
        let tally = client.stop();
        assert_eq!((tally.lost, self.log.at_host(from, host) - before), (0, tally.sent), "{from} at {host}: {tally:?}");
    }

    /// Returns how many requests of a client the other hosts' servers received within the window. This host must learn
    /// of them in time; it no longer counts older ones, however long a busy machine took.
    fn heard_by_others(&self, host: usize, from: &str) -> u64 {
        self.log.at_others(from, host, Instant::now().checked_sub(self.window))
    }

    /// Returns the number of a client's connections that a host reports as admitted by others. Asserts that none is
    /// invented.
    pub fn elsewhere(&self, host: usize, from: &str, rule: &str) -> u64 {
        let elsewhere = self.hosts[host].elsewhere(from, rule);
        let heard = self.log.at_others(from, host, None);
        assert!(elsewhere <= heard, "host {host}: {elsewhere} of {from} elsewhere, who was {heard} times there");
        elsewhere
    }

    /// Returns whether each host knows what the others admitted of a client in the window.
    pub fn is_whole(&self, from: &str, rule: &str) -> bool {
        let unsaid = UNSAID_MAX * (self.hosts.len() as u64 - 1);
        let knows = |host: &Host| {
            // The known number is read first, so that what leaves the window meanwhile is not missed.
            let known = self.elsewhere(host.number, from, rule);
            known + unsaid >= self.heard_by_others(host.number, from)
        };
        self.hosts.iter().all(knows)
    }

    /// Has new clients send requests to each host by turns.
    fn probe(&self, probes: &[String], port: u16) {
        let most = PROBED * self.hosts.len() as u64;
        let start = |probe: &String| self.client(probe, port, clients::innocent(400));
        let clients: Vec<Client> = probes.iter().map(start).collect();
        once(|| clients.iter().all(|client| client.answered() >= most).then_some(())).expect("probes are answered");
        clients.into_iter().for_each(|client| assert_eq!(client.stop().lost, 0));
    }

    /// Returns how long it takes from now until each host has summed the requests of the `new` clients and of the `old`
    /// ones. Fails if it takes longer than [`WHOLE_WITHIN`].
    pub fn whole_after(&self, cure: &str, rule: (&str, u16), new: &[String], old: &[&str]) -> Duration {
        let cured = Instant::now();
        self.probe(new, rule.1);
        let all: Vec<&str> = new.iter().map(String::as_str).chain(old.iter().copied()).collect();
        let is_known = || all.iter().all(|client| self.is_whole(client, rule.0));
        once(|| (is_known() || cured.elapsed() > WHOLE_WITHIN * 2).then_some(())).expect("it is asked in time");
        let took = cured.elapsed();
        println!("{cure}: whole again after {:.1} s", took.as_secs_f64());
        if took > WHOLE_WITHIN {
            let parts = |client: &&str| {
                let of = |host: &Host| (host.elsewhere(client, rule.0), self.heard_by_others(host.number, client));
                (client.to_string(), self.hosts.iter().map(of).collect::<Vec<_>>())
            };
            let stats: Vec<_> = self.hosts.iter().map(|host| host.stats()["fleet"].to_string()).collect();
            let parts: Vec<_> = all.iter().map(parts).collect();
            panic!("{cure}: after {took:?} hosts know, of what others heard: {parts:?} {stats:#?}");
        }
        took
    }

    /// Cuts hosts off from the store, or reconnects them. Frames are lost without an error.
    pub fn cut(&self, hosts: &[usize], is_cut: bool) {
        // include/uapi/linux/if_bridge.h: BR_STATE_DISABLED, BR_STATE_FORWARDING.
        let state = if is_cut { "0" } else { "3" };
        for host in hosts {
            let port = format!("b{host}");
            let set = self.store.namespace.run(&["bridge", "link", "set", "dev", &port, "state", state]).expect(WORKS);
            assert_eq!(set.code(), 0, "{}", set.stderr);
        }
    }

    /// Joins the first host to the clients by another pair, `c9` to `s1`, for a flood. Frames that overload one
    /// interface are not lost to the other.
    pub fn connect_flood(&mut self) {
        let host = &mut self.hosts[0];
        veth(
            End { namespace: &self.client, interface: "c9", addresses: &["10.7.0.2/24"] },
            End { namespace: &host.namespace, interface: "s1", addresses: &["10.7.0.1/24"] },
        )
        .expect(WORKS);
        host.interfaces.push("s1");
    }

    /// Returns how many requests of a new client pass, which sends until every host refuses it.
    pub fn admitted(&self, from: &str, port: u16, per_second: u32) -> u64 {
        let client = self.client(from, port, clients::greedy(per_second));
        once(|| (client.answered() > 0).then_some(())).expect("it is answered");
        netlab::settled(|| Ok(client.answered())).expect(WORKS);
        client.stop();
        self.log.times(from).len() as u64
    }

    /// Returns the number of every host.
    pub fn all(&self) -> Vec<usize> {
        (0..self.hosts.len()).collect()
    }

    /// Returns how many packets a rule has dropped on all hosts.
    pub fn dropped_of(&self, rule: &str) -> u64 {
        self.hosts.iter().map(|host| host.dropped_of(rule)).sum()
    }
}

impl Host {
    fn new(number: usize, directory: &Path, client: &Namespace, store: &Namespace, log: &Log) -> Self {
        let namespace = Namespace::new().expect(WORKS);
        let [client_link, port] = [format!("c{number}"), format!("b{number}")];
        let gateway = format!("10.9.{number}.254");
        veth(
            End { namespace: client, interface: &client_link, addresses: &[&format!("{gateway}/24")] },
            End { namespace: &namespace, interface: "s0", addresses: &[&format!("10.9.{number}.1/24")] },
        )
        .expect(WORKS);
        namespace.ip(&["route", "add", "198.51.100.0/24", "via", &gateway]).expect(WORKS);
        veth(
            End { namespace: store, interface: &port, addresses: &[] },
            End { namespace: &namespace, interface: "f0", addresses: &[&format!("10.8.0.{}/24", number + 1)] },
        )
        .expect(WORKS);
        store.ip(&["link", "set", &port, "master", "br0"]).expect(WORKS);
        let directory = directory.join(format!("host-{number}"));
        fs::create_dir(&directory).expect(WORKS);
        let mut host = Self {
            number,
            daemon: None,
            interfaces: vec!["s0"],
            sites: Vec::new(),
            directory,
            bpffs: Bpffs::mount().expect(WORKS),
            namespace,
        };
        host.sites = PORTS.iter().map(|port| Site::start(&host.namespace, host.address(*port), number, log)).collect();
        host
    }

    /// Returns the address at which clients reach the host.
    pub fn address(&self, port: u16) -> SocketAddr {
        format!("10.9.{}.1:{port}", self.number).parse().expect("an address")
    }

    /// Returns the path of the host's configuration.
    pub fn file(&self) -> PathBuf {
        self.directory.join("ratelimitd.toml")
    }

    fn command(&self) -> Command {
        let mut command = self.namespace.command_with(&self.bpffs, binary());
        command.env("RATELIMITD_SOCKET", self.directory.join("control.sock"));
        command.env("RATELIMITD_STATE_DIR", self.directory.join("state"));
        command.env(VARIABLE, self.crash_file());
        command
    }

    fn crash_file(&self) -> PathBuf {
        self.directory.join("crash-point")
    }

    /// Has the host's daemon killed when it reaches this point.
    pub fn arm(&self, point: Point) {
        fs::write(self.crash_file(), format!("{} 0", point.name())).expect(WORKS);
    }

    /// Waits until the host's daemon was killed at the point.
    pub fn await_death(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        let status = daemon.wait(HANGS_AFTER).expect("it comes to the point");
        fs::remove_file(reached(&self.crash_file())).unwrap_or_else(|_| panic!("{status}: {}", daemon.stderr()));
    }

    /// Runs the binary with these arguments to its end.
    pub fn ratelimitd(&self, args: &[&str]) -> Output {
        let mut command = self.command();
        command.args(args);
        run(command)
    }

    /// Runs the binary with these arguments, asserts that it succeeds, and returns its output.
    pub fn tell(&self, args: &[&str]) -> String {
        let output = self.ratelimitd(args);
        assert_eq!(output.code(), 0, "{args:?}: {}{}", output.stderr, output.stdout);
        output.stdout
    }

    /// Starts the host's daemon, and returns once it is ready.
    pub fn start(&mut self) {
        let mut command = self.command();
        command.args(["run", "--config"]).arg(self.file());
        let child = Child::start(command).expect("the daemon starts");
        child.wait_for_line("ratelimitd: ready", HANGS_AFTER).expect("the daemon is ready");
        self.daemon = Some(child);
    }

    /// Starts a daemon that will be killed at a point that it reaches sooner or later.
    pub fn start_to_die(&mut self) {
        let mut command = self.command();
        command.args(["run", "--config"]).arg(self.file());
        self.daemon = Some(Child::start(command).expect("the daemon starts"));
    }

    /// Ends the host's daemon by this signal.
    pub fn end(&mut self, signal: Signal) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.signal(signal).expect(WORKS);
        daemon.wait(HANGS_AFTER).expect("it ends");
    }

    /// Returns the daemon's answer to a request over its socket. Starting a command would take longer than what is
    /// measured.
    fn get(&self, path: &str) -> Value {
        let mut socket = UnixStream::connect(self.directory.join("control.sock")).expect("the daemon is there");
        socket.set_read_timeout(Some(HANGS_AFTER)).expect(WORKS);
        write!(socket, "GET /api/v1/{path} HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it is asked");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
    }

    /// Returns the statistics of the host.
    pub fn stats(&self) -> Value {
        self.get("stats")
    }

    /// Waits until the statistics satisfy a condition, and returns them.
    pub fn stats_once(&self, holds: impl Fn(&Value) -> bool) -> Value {
        let held = once(|| Some(self.stats()).filter(&holds));
        held.unwrap_or_else(|| panic!("host {}: it does not come to hold: {:#}", self.number, self.stats()))
    }

    /// Returns how many packets a rule has dropped on this host.
    pub fn dropped_of(&self, rule: &str) -> u64 {
        let stats = self.stats();
        let found = stats["rules"].as_array().and_then(|rules| rules.iter().find(|of| of["name"] == rule));
        number(found.expect("the rule"), "/dropped")
    }

    /// Returns the answer to `check` for an address.
    pub fn check(&self, address: &str) -> Value {
        self.get(&format!("check/{address}"))
    }

    fn elsewhere(&self, address: &str, rule: &str) -> u64 {
        let check = self.check(address);
        let of = |limit: &Value| limit["rule"] == rule && limit["budget"] == "verified";
        let limit = check["limits"].as_array().and_then(|limits| limits.iter().find(|limit| of(limit)));
        limit.and_then(|limit| limit["used_elsewhere"].as_u64()).unwrap_or(0)
    }

    /// Returns the bounds for a rule's limit that `check-config` prints: with a working store, and without a store.
    pub fn printed_bound(&self, amount: u64) -> (u64, u64) {
        let file = self.file();
        let printed = self.tell(&["check-config", &file.to_string_lossy()]);
        let begins = format!("at most {amount} + ");
        let bound = printed.split(&begins).nth(1).unwrap_or_else(|| panic!("no {begins:?} in: {printed}"));
        let mut numbers = bound.split(|byte: char| !byte.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().expect("a number");
        let (others, unheard) = (next(), next());
        (amount + others * unheard, amount * (others + 1))
    }
}
