//! Redis servers for tests: on loopback, with free ports and a directory of their own, killed by process id.
//!
//! `REDIS_SERVER` names the program, else it is looked up on PATH. `cargo xtask test` sets that variable, and
//! `REDIS_LIBRARIES` to the directories of its libraries.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratelimit_fleet::store::access::Access;
use tempfile::TempDir;

/// Returns the server program. None if there is none; the test is then skipped, which fails in CI.
pub(crate) fn program(test: &str) -> Option<PathBuf> {
    let on_path =
        || env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join("redis-server")).find(|path| path.is_file());
    let program = env::var_os("REDIS_SERVER").map(PathBuf::from).or_else(on_path);
    if program.is_none() {
        println!("skipped: {test}: there is no redis-server: `cargo xtask setup` unpacks one");
    }
    program
}

/// Access protection of the servers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    Open,
    /// TLS with client certificates, no plain port, and only the printed ACL line.
    Tls,
}

pub(crate) struct Server {
    child: Option<Child>,
    command: Vec<String>,
    program: PathBuf,
    pub(crate) port: u16,
    guard: Guard,
    dir: PathBuf,
}

/// Servers, and the directory with their files.
pub(crate) struct Store {
    pub(crate) servers: Vec<Server>,
    dir: TempDir,
    guard: Guard,
}

const ADMIN: &str = "admin-of-the-test";
pub(crate) const PASSWORD: &str = "hunter2-of-the-fleet";

/// Returns a free port below the ephemeral range, so that no connection takes the port before the server binds it.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = (std::process::id() * 97 + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let port = u16::try_from(10_000 + number).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Server {
    fn start(&mut self) {
        let mut command = Command::new(&self.program);
        if let Some(libraries) = env::var_os("REDIS_LIBRARIES") {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        command.args(&self.command).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn start_again(&mut self) {
        self.start();
        self.wait();
    }

    fn client(&self) -> redis::Client {
        let auth = if self.guard == Guard::Tls { format!("admin:{ADMIN}@") } else { String::new() };
        match self.guard {
            Guard::Open => redis::Client::open(format!("redis://{auth}127.0.0.1:{}", self.port)).unwrap(),
            Guard::Tls => {
                let dir = self.dir.parent().unwrap();
                let read = |name: &str| fs::read(dir.join(name)).unwrap();
                let client_tls = redis::ClientTlsConfig { client_cert: read("cert.pem"), client_key: read("key.pem") };
                let certificates =
                    redis::TlsCertificates { client_tls: Some(client_tls), root_cert: Some(read("ca.pem")) };
                redis::Client::build_with_tls(format!("rediss://{auth}127.0.0.1:{}", self.port), certificates).unwrap()
            }
        }
    }

    /// Runs a command as the administrator.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, words: &str) -> redis::RedisResult<T> {
        let mut connection = self.client().get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut connection)
    }

    fn wait(&self) {
        eventually(Duration::from_secs(10), "a server", || self.ask::<String>("PING").is_ok());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop((child.kill(), child.wait()));
        }
    }
}

impl Store {
    fn new(program: &Path, guard: Guard, count: usize, cluster: bool) -> Self {
        if guard == Guard::Tls {
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        if guard == Guard::Tls {
            let make = |arguments: &[&str]| {
                let key =
                    ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2", "-nodes"];
                let made = Command::new("openssl").args(key).args(arguments).output().unwrap();
                assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            };
            let (ca, ca_key) = (at("ca.pem"), at("ca.key"));
            make(&["-subj", "/CN=authority", "-keyout", &ca_key, "-out", &ca]);
            let own = [
                "-subj",
                "/CN=fleet",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
            ];
            make(
                &[&own[..], &["-CA", &ca, "-CAkey", &ca_key, "-keyout", &at("key.pem"), "-out", &at("cert.pem")]]
                    .concat(),
            );
        }
        let line = ratelimit_policy::fleet::acl_line("rl", "web").replace("PASSWORD", PASSWORD);
        fs::write(at("acl"), format!("user default off\nuser admin on >{ADMIN} ~* &* +@all\n{line}\n")).unwrap();
        fs::write(at("password"), format!("{PASSWORD}\n")).unwrap();
        let mut servers = Vec::new();
        for number in 0..count {
            let (port, own) = (free_port(), at(&number.to_string()));
            fs::create_dir(&own).unwrap();
            let mut options = format!(
                "--save  --appendonly no --bind 127.0.0.1 --dir {own} --daemonize no --repl-diskless-sync-delay 0"
            );
            if guard == Guard::Tls {
                let (ca, cert, key) = (at("ca.pem"), at("cert.pem"), at("key.pem"));
                options += &format!(
                    " --port 0 --tls-port {port} --tls-cert-file {cert} --tls-key-file {key} --tls-ca-cert-file {ca}"
                );
                options +=
                    &format!(" --tls-replication yes --aclfile {} --masteruser admin --masterauth {ADMIN}", at("acl"));
            } else {
                options += &format!(" --port {port}");
            }
            if cluster {
                let bus = free_port();
                options += &format!(" --cluster-enabled yes --cluster-port {bus} --cluster-node-timeout 1000");
                options += " --cluster-require-full-coverage no --cluster-replica-validity-factor 0";
                if guard == Guard::Tls {
                    options += " --tls-cluster yes";
                }
            }
            let command = options.split(' ').map(str::to_owned).collect();
            let dir = PathBuf::from(own);
            let mut server = Server { child: None, command, program: program.to_owned(), port, guard, dir };
            server.start();
            servers.push(server);
        }
        servers.iter().for_each(Server::wait);
        Self { servers, dir, guard }
    }

    pub(crate) fn single(program: &Path, guard: Guard) -> Self {
        Self::new(program, guard, 1, false)
    }

    /// Starts a master and its replica.
    pub(crate) fn pair(program: &Path) -> Self {
        let store = Self::new(program, Guard::Open, 2, false);
        let port = store.servers[0].port;
        store.servers[1].ask::<String>(&format!("REPLICAOF 127.0.0.1 {port}")).unwrap();
        store
    }

    /// Starts three masters with one replica each. The replica of server n is server n + 3.
    pub(crate) fn cluster(program: &Path, guard: Guard) -> Self {
        let store = Self::new(program, guard, 6, true);
        let bus = |server: &Server| {
            let at = server.command.iter().position(|word| word == "--cluster-port").unwrap();
            server.command[at + 1].clone()
        };
        let slots = ["0 5460", "5461 10922", "10923 16383"];
        for (server, slots) in store.servers.iter().zip(slots) {
            server.ask::<String>(&format!("CLUSTER ADDSLOTSRANGE {slots}")).unwrap();
        }
        for server in &store.servers[1..] {
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", server.port, bus(server));
            store.servers[0].ask::<String>(&meet).unwrap();
        }
        for number in 0..3 {
            let master: String = store.servers[number].ask("CLUSTER MYID").unwrap();
            let replicate = format!("CLUSTER REPLICATE {master}");
            let replica = &store.servers[number + 3];
            eventually(Duration::from_secs(20), "a replica", || replica.ask::<String>(&replicate).is_ok());
        }
        let is_whole = |server: &Server| {
            let info: String = server.ask("CLUSTER INFO").unwrap_or_default();
            let nodes: String = server.ask("CLUSTER NODES").unwrap_or_default();
            let replicas = nodes.lines().filter(|line| line.contains("slave") && !line.contains("fail")).count();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6") && replicas == 3
        };
        eventually(Duration::from_secs(30), "the cluster", || store.servers.iter().all(is_whole));
        let is_linked = |server: &Server| {
            server.ask::<String>("INFO replication").is_ok_and(|info| info.contains("master_link_status:up"))
        };
        eventually(Duration::from_secs(30), "replication", || store.servers[3..].iter().all(is_linked));
        store
    }

    pub(crate) fn access(&self) -> Access {
        let scheme = if self.guard == Guard::Tls { "rediss" } else { "redis" };
        // Nodes that the client asks for the cluster map. For a pair, only the master.
        let known = if self.servers.len() == 6 { 6 } else { 1 };
        let urls =
            self.servers.iter().take(known).map(|server| format!("{scheme}://127.0.0.1:{}", server.port)).collect();
        if self.guard == Guard::Open {
            return Access { urls, ..Access::default() };
        }
        let at = |name: &str| Some(self.file(name));
        let username = Some("rl".to_owned());
        Access {
            urls,
            username,
            password_file: at("password"),
            ca_file: at("ca.pem"),
            cert_file: at("cert.pem"),
            key_file: at("key.pem"),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Waits until `is_so` returns true, and returns the time that took. Fails after `limit`.
pub(crate) fn eventually(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(5));
    }
    began.elapsed()
}
