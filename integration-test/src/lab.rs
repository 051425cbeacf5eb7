//! A laboratory of namespaces with a server behind the limiter, a client with several addresses, and the real binary.
//!
//! Knows the command line, the JSON of `stats` and raw sockets. Must not know how the binary works inside.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Bpffs, Child, End, HttpServer, Namespace, Output, PacketSocket, veth};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use ratelimit_policy::config::HookChoice;
use serde_json::Value;

/// The server's addresses.
pub const SERVER: [&str; 2] = ["10.9.0.1", "fd09::1"];
/// The client's IPv4 addresses.
pub const CLIENTS: [&str; 3] = ["10.9.0.2", "10.9.0.3", "10.9.0.4"];
/// The client's IPv6 addresses: two in one /64, one in another.
pub const CLIENTS_V6: [&str; 3] = ["fd09:0:0:a::2", "fd09:0:0:a::3", "fd09:0:0:b::2"];

/// Maximum time to wait for anything, however busy the machine is. Only a test that hangs waits longer.
pub const HANGS_AFTER: Duration = Duration::from_secs(60);
/// Time after which a missing connection counts as dropped: less than TCP's first retransmission, after a second.
const BLOCKED_AFTER: Duration = Duration::from_millis(400);
/// Interval between two looks at something that has no event to wait for.
const LOOK: Duration = Duration::from_millis(20);

/// Two namespaces joined by a veth pair, `c0` to `s0`, a BPF file system and a directory. Removed on drop.
pub struct Lab {
    /// Namespace of the clients.
    pub client: Namespace,
    /// Namespace of the limiter and the servers.
    pub server: Namespace,
    bpffs: Bpffs,
    directory: tempfile::TempDir,
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Lab {
    /// Creates a laboratory with both address families.
    pub fn new() -> Self {
        let lab = Self::without_ends();
        lab.connect_ends();
        lab
    }

    /// Creates a laboratory with IPv4 only, so that the wire carries nothing but the test's frames. IPv6 would announce
    /// its groups.
    pub fn quiet() -> Self {
        let lab = Self::without_ends();
        let clients = CLIENTS.map(|address| format!("{address}/24"));
        lab.veth(["c0", "s0"], &clients.each_ref().map(String::as_str), &["10.9.0.1/24"]);
        lab
    }

    fn without_ends() -> Self {
        netlab::sweep().expect("what killed runs left is removed");
        Self {
            client: Namespace::new().expect("a namespace"),
            server: Namespace::new().expect("a namespace"),
            bpffs: Bpffs::mount().expect("a BPF file system"),
            directory: tempfile::tempdir().expect("a directory"),
        }
    }

    /// Creates the veth pair, or creates it again after its end was deleted.
    pub fn connect_ends(&self) {
        let v4 = CLIENTS.map(|address| format!("{address}/24"));
        let v6 = CLIENTS_V6.map(|address| format!("{address}/48"));
        let clients: Vec<&str> = v4.iter().chain(&v6).map(String::as_str).collect();
        self.veth(["c0", "s0"], &clients, &["10.9.0.1/24", "fd09::1/48"]);
    }

    /// Creates another pair without addresses, `c1` to `s1`.
    pub fn connect_second_ends(&self) {
        self.veth(["c1", "s1"], &[], &[]);
    }

    /// Makes frames between the ends carry a VLAN tag, which the stacks at both ends do not see.
    pub fn behind_a_tag(&self) {
        for (namespace, interface) in [(&self.client, "c0"), (&self.server, "s0")] {
            netlab::behind_a_tag(namespace, &self.bpffs, interface, 7).expect("tags");
        }
    }

    fn veth(&self, [client, server]: [&str; 2], clients: &[&str], servers: &[&str]) {
        veth(
            End { namespace: &self.client, interface: client, addresses: clients },
            End { namespace: &self.server, interface: server, addresses: servers },
        )
        .expect("a veth pair");
    }

    /// Returns the laboratory's own directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the directory of the pins, as seen from outside.
    pub fn pins(&self) -> PathBuf {
        self.bpffs.path().join("ratelimitd")
    }

    /// Attaches a foreign program to an interface of the server, by netlink and without a link.
    pub fn attach_foreign(&self, interface: &str) {
        self.attach_foreign_of(&self.server, interface);
    }

    /// Attaches a foreign program to an interface of this namespace, by netlink and without a link.
    pub fn attach_foreign_of(&self, namespace: &Namespace, interface: &str) {
        let program = self.bpffs.pin_passing_program("foreign").expect("a program");
        let program = program.to_str().expect("a path of ASCII");
        namespace.ip(&["link", "set", "dev", interface, "xdp", "pinned", program]).expect("it is attached");
    }

    /// Returns the control socket of daemons that are not configured with another one.
    pub fn socket(&self) -> PathBuf {
        self.directory().join("control.sock")
    }

    /// Returns a command in the server's namespace that finds the BPF file system.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.server.command_with(&self.bpffs, program.as_ref());
        command.env("RATELIMITD_SOCKET", self.socket()).env("RATELIMITD_STATE_DIR", self.directory().join("state"));
        command
    }

    /// Runs the binary with these arguments to its end.
    pub fn ratelimitd(&self, args: &[&str]) -> Output {
        let mut command = self.command(binary());
        command.args(args);
        run(command)
    }

    /// Starts the binary with these arguments, which must not end. Returns once it is ready.
    pub fn start(&self, args: &[&str]) -> Daemon {
        self.start_copy(&binary(), args)
    }

    /// Starts another build of the binary with these arguments. Returns once it is ready.
    pub fn start_copy(&self, binary: &Path, args: &[&str]) -> Daemon {
        let mut command = self.command(binary);
        command.args(args);
        // Applies if neither a file nor the test names a hook.
        if crate::hook() == HookChoice::Tcx && args.contains(&"--iface") && !args.contains(&"--hook") {
            command.args(["--hook", HookChoice::Tcx.label()]);
        }
        let child = Child::start(command).expect("the daemon starts");
        child.wait_for_line("ratelimitd: ready", HANGS_AFTER).expect("the daemon is ready");
        Daemon { child }
    }

    /// Starts the daemon on `s0` with these arguments.
    pub fn limit(&self, args: &[&str]) -> Daemon {
        self.start(&[&["--iface", "s0"], args].concat())
    }

    /// Returns the output of `stats --json`.
    pub fn stats(&self) -> Value {
        let output = self.ratelimitd(&["stats", "--json"]);
        assert_eq!(output.code(), 0, "{}", output.stderr);
        serde_json::from_str(&output.stdout).expect("stats are JSON")
    }

    /// Waits until the statistics satisfy a condition, and returns them. Packets that were sent may still be on their
    /// way.
    pub fn stats_once(&self, holds: impl Fn(&Value) -> bool) -> Value {
        let held = once(|| Some(self.stats()).filter(&holds));
        held.unwrap_or_else(|| panic!("it does not come to hold: {:#}", self.stats()))
    }

    /// Starts a web server on the server's first address.
    pub fn web(&self) -> HttpServer {
        let address = format!("{}:80", SERVER[0]).parse().expect("an address");
        HttpServer::start(&self.server, address).expect("a web server")
    }

    /// Renames one of the server's interfaces.
    pub fn rename(&self, from: &str, to: &str) {
        for args in
            [["link", "set", from, "down"].as_slice(), &["link", "set", from, "name", to], &["link", "set", to, "up"]]
        {
            self.server.ip(args).expect("an interface takes its new name");
        }
    }

    /// Returns whether `ip` shows an XDP program on an interface of the server.
    pub fn has_xdp(&self, interface: &str) -> bool {
        self.server.ip(&["link", "show", "dev", interface]).expect("the interface is there").contains("xdp")
    }

    /// Opens a connection, which must succeed.
    pub fn open(&self, from: &str, port: u16) -> TcpStream {
        self.try_open(from, port, HANGS_AFTER).unwrap_or_else(|| panic!("{from} does not reach port {port}"))
    }

    /// Asserts that a connection cannot be opened.
    pub fn assert_blocked(&self, from: &str, port: u16) {
        assert!(self.is_blocked(from, port), "{from} reaches port {port}");
    }

    /// Returns whether a connection attempt does not succeed in a short time.
    pub fn is_blocked(&self, from: &str, port: u16) -> bool {
        !self.reaches(from, port, BLOCKED_AFTER)
    }

    /// Returns whether a connection attempt succeeds within this time.
    pub fn reaches(&self, from: &str, port: u16, within: Duration) -> bool {
        self.try_open(from, port, within).is_some()
    }

    /// Asserts that exactly this many connections can be opened.
    pub fn assert_admitted(&self, from: &str, port: u16, connections: usize) {
        for _ in 0..connections {
            self.open(from, port);
        }
        self.assert_blocked(from, port);
    }

    /// Returns the answer of an HTTP server on this port, requested over a new connection.
    pub fn http(&self, from: &str, port: u16) -> String {
        ask(&mut self.open(from, port), "/")
    }

    fn try_open(&self, from: &str, port: u16, within: Duration) -> Option<TcpStream> {
        let from: IpAddr = from.parse().expect("an address");
        let to = SocketAddr::new(SERVER[usize::from(from.is_ipv6())].parse().expect("an address"), port);
        let family = if from.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let opened = self.client.inside(|| {
            let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            let millis = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
            setsockopt(&socket, sockopt::SendTimeout, &TimeVal::milliseconds(millis))?;
            bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0)))?;
            match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
                Ok(()) => Ok(Some(TcpStream::from(socket))),
                // The time has passed.
                Err(Errno::EINPROGRESS | Errno::ETIMEDOUT) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        });
        opened.expect("connect or time out")
    }
}

/// A running daemon, killed on drop.
pub struct Daemon {
    /// Process of the daemon.
    pub child: Child,
}

impl Daemon {
    /// Kills the daemon with SIGKILL, so that it can do nothing more.
    pub fn kill(self) {
        assert_eq!(self.end(nix::sys::signal::Signal::SIGKILL), -1);
    }

    /// Sends a signal and returns the exit code, or -1 if the signal ended the daemon.
    pub fn end(mut self, signal: nix::sys::signal::Signal) -> i32 {
        self.child.signal(signal).expect("the daemon can be signalled");
        self.child.wait(HANGS_AFTER).expect("the daemon ends").code().unwrap_or(-1)
    }
}

/// Calls `look` until it returns something. Returns `None` after [`HANGS_AFTER`].
pub fn once<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + HANGS_AFTER;
    loop {
        let seen = look();
        if seen.is_some() || Instant::now() > deadline {
            return seen;
        }
        thread::sleep(LOOK);
    }
}

/// Asserts that a command failed with this code, and that its standard error contains all of these words.
pub fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    assert_eq!(output.code(), code, "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "no {word:?} in: {}", output.stderr);
    }
}

/// Returns whether a program is in a directory of `PATH`.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// Returns the path of the binary under test: `RATELIMITD_BIN`, or the one that `cargo build` makes.
pub fn binary() -> PathBuf {
    std::env::var_os("RATELIMITD_BIN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("debug").join("ratelimitd"),
        PathBuf::from,
    )
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("run {command:?}: {error}"));
    Output {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Requests a path over an open connection, and returns the whole answer.
pub fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.set_read_timeout(Some(HANGS_AFTER)).expect("a time limit");
    // Sent in one piece, because a server that answers the first half and closes resets the connection at the second.
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the answer comes");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends a request over a connection that stays open. Returns whether a server with the page `ok` answers in time.
pub fn is_answered(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).expect("a time limit");
    stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").expect("the request is sent");
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while !answer.ends_with(b"ok\n") {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return false,
            Ok(bytes) => answer.extend(&part[..bytes]),
        }
    }
    true
}

/// Returns a number in the statistics, such as `/interfaces/0/packets/received`.
pub fn number(stats: &Value, pointer: &str) -> u64 {
    let number = stats.pointer(pointer).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("no number at {pointer} in {stats:#}"))
}

/// Returns the packets of the first interface: received, passed, dropped, would drop.
pub fn packets(stats: &Value) -> [u64; 4] {
    ["received", "passed", "dropped", "would_drop"].map(|key| number(stats, &format!("/interfaces/0/packets/{key}")))
}

/// Returns how many frames a listener has received since the last call.
pub fn heard(listener: &PacketSocket) -> usize {
    std::iter::from_fn(|| listener.receive_at().expect("the listener hears")).count()
}
