//! Redis servers in their own namespace. The test queries them over Unix sockets, which still work while the network is
//! cut.
//!
//! The program is `REDIS_SERVER`, with the directories of its libraries in `REDIS_LIBRARIES`, as `cargo xtask test`
//! sets them. Without it, the program is found on PATH.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netlab::{Child, Namespace};
use nix::sys::signal::Signal;

use super::WORKS;
use crate::lab::{HANGS_AFTER, once};

/// Address of the servers for the hosts. Each server has its own port.
pub const ADDRESS: &str = "10.8.0.254";
const FIRST_PORT: u16 = 6379;
const ADMIN: &str = "admin-of-the-test";
/// Password of the fleet, if the store has users.
pub const PASSWORD: &str = "hunter2-of-the-fleet";

/// Kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server without users.
    Single,
    /// Three masters with a replica each. The replica of server n is server n + 3.
    Cluster,
    /// One server that only speaks TLS, and only knows the users of an ACL file.
    Guarded,
}

/// A server of the store.
pub struct Server {
    child: Option<Child>,
    options: Vec<String>,
    directory: PathBuf,
    asked: String,
    /// Port of the server.
    pub port: u16,
}

/// All servers of a store.
pub struct Store {
    /// Servers by number.
    pub servers: Vec<Server>,
    kind: Kind,
    directory: PathBuf,
    /// Namespace of the servers. Declared after them because it must be dropped after them.
    pub namespace: Namespace,
}

/// Returns the reason why there can be no store here, or `None`.
pub fn obstacle() -> Option<String> {
    program().is_none().then(|| "there is no redis-server: `cargo xtask setup` unpacks one".to_owned())
}

/// Returns the path of the servers' program, if there is one.
pub fn program() -> Option<PathBuf> {
    let on_path =
        || env::split_paths(&env::var_os("PATH")?).map(|at| at.join("redis-server")).find(|path| path.is_file());
    env::var_os("REDIS_SERVER").map(PathBuf::from).or_else(on_path)
}

impl Server {
    /// Starts the server, empty, or starts it again.
    fn start(&mut self, namespace: &Namespace) {
        let mut command = namespace.command("env");
        if let Some(libraries) = env::var_os("REDIS_LIBRARIES") {
            let mut told = OsString::from("LD_LIBRARY_PATH=");
            told.push(libraries);
            command.arg(told);
        }
        command.arg(program().expect(WORKS)).args(&self.options).current_dir(&self.directory);
        self.child = Some(Child::start(command).expect(WORKS));
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: Signal) {
        self.child.as_ref().expect("it runs").signal(signal).expect(WORKS);
    }

    /// Kills the server by SIGKILL, and waits for its end.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.signal(Signal::SIGKILL).expect(WORKS);
        child.wait(HANGS_AFTER).expect(WORKS);
    }

    /// Runs a command as the administrator.
    ///
    /// # Errors
    /// If the server does not answer within a second, or answers with an error.
    pub fn ask<T: redis::FromRedisValue>(&self, words: &str) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.asked.as_str())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut connection)
    }

    /// Runs a command as the administrator, which must succeed.
    pub fn tell(&self, words: &str) -> String {
        let value: redis::Value = self.ask(words).unwrap_or_else(|error| panic!("{words}: {error}"));
        redis::from_redis_value(value).unwrap_or_default()
    }

    /// Returns the path of the Unix socket for queries.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Waits until the server is a master.
    pub fn wait_until_promoted(&self) {
        self.wait_until("INFO replication", |info| info.contains("role:master"));
    }

    /// Waits until the server's answer to a command satisfies a condition.
    fn wait_until(&self, words: &str, holds: impl Fn(&str) -> bool) {
        let held = once(|| self.ask::<String>(words).is_ok_and(|answer| holds(&answer)).then_some(()));
        held.unwrap_or_else(|| panic!("{words} does not come to hold: {:?}", self.ask::<String>(words)));
    }

    /// Returns a number of INFO, or 0 if it is not there.
    pub fn info(&self, section: &str, name: &str) -> u64 {
        let info = self.tell(&format!("INFO {section}"));
        let value = info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

impl Store {
    /// Starts a store with its files in `directory`. The namespace must have `br0` with [`ADDRESS`].
    pub fn start(namespace: Namespace, directory: &Path, kind: Kind) -> Self {
        let directory = directory.to_owned();
        let mut store = Self { servers: Vec::new(), kind, directory, namespace };
        if kind == Kind::Guarded {
            store.make_certificates();
        }
        let count = match kind {
            Kind::Single | Kind::Guarded => 1,
            Kind::Cluster => 6,
        };
        for number in 0..count {
            let server = store.server(number);
            store.servers.push(server);
        }
        if kind != Kind::Guarded {
            store.begin();
        }
        store
    }

    /// Starts the servers. A guarded store has no users yet at that time.
    fn begin(&mut self) {
        self.servers.iter_mut().for_each(|server| server.start(&self.namespace));
        self.servers.iter().for_each(|server| server.wait_until("PING", |answer| answer == "PONG"));
        if self.kind == Kind::Cluster {
            self.join();
        }
    }

    /// Writes an ACL file with the administrator and the user of this line of `check-config`, and starts the servers.
    pub fn admit(&mut self, line: &str) {
        let users = format!("user default off\nuser admin on >{ADMIN} ~* &* +@all\n{line}\n");
        fs::write(self.directory.join("acl"), users).expect(WORKS);
        self.begin();
    }

    fn server(&self, number: u16) -> Server {
        let port = FIRST_PORT + number;
        let directory = self.directory.join(format!("redis-{number}"));
        fs::create_dir_all(&directory).expect(WORKS);
        let socket = directory.join("s");
        let (at, own) = (socket.display(), directory.display());
        let mut options = format!(
            "--appendonly no --bind {ADDRESS} --protected-mode no --unixsocket {at} --dir {own} --logfile {own}/log \
             --daemonize no --repl-diskless-sync-delay 0"
        );
        let mut asked = format!("redis+unix://{at}");
        match self.kind {
            Kind::Single => options += &format!(" --port {port}"),
            Kind::Cluster => {
                options += &format!(" --port {port} --cluster-enabled yes --cluster-node-timeout 1000");
                options += &format!(" --cluster-announce-ip {ADDRESS} --cluster-require-full-coverage no");
                options += " --cluster-replica-validity-factor 0";
            }
            Kind::Guarded => {
                let [ca, cert, key, acl] = ["ca.pem", "cert.pem", "key.pem", "acl"]
                    .map(|name| self.directory.join(name).display().to_string());
                options += &format!(" --port 0 --tls-port {port} --tls-cert-file {cert} --tls-key-file {key}");
                options += &format!(" --tls-ca-cert-file {ca} --aclfile {acl}");
                asked += &format!("?user=admin&pass={ADMIN}");
            }
        }
        let mut options: Vec<String> = options.split(' ').map(str::to_owned).collect();
        options.extend(["--save".to_owned(), String::new()]);
        Server { child: None, options, directory, asked, port }
    }

    fn make_certificates(&self) {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let make = |args: &[&str]| {
            let key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2", "-nodes"];
            let made = self.namespace.run(&[&["openssl"], &key[..], args].concat()).expect(WORKS);
            assert_eq!(made.code(), 0, "{}", made.stderr);
        };
        let (ca, ca_key) = (at("ca.pem"), at("ca.key"));
        make(&["-subj", "/CN=authority", "-keyout", &ca_key, "-out", &ca]);
        let name = format!("subjectAltName=IP:{ADDRESS}");
        let own = ["-subj", "/CN=fleet", "-addext", &name, "-addext", "basicConstraints=critical,CA:FALSE"];
        let by = ["-CA", &ca, "-CAkey", &ca_key, "-keyout", &at("key.pem"), "-out", &at("cert.pem")];
        make(&[&own[..], &by].concat());
    }

    fn join(&self) {
        let slots = ["0 5460", "5461 10922", "10923 16383"];
        for (server, slots) in self.servers.iter().zip(slots) {
            server.tell(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        }
        for server in &self.servers[1..] {
            self.servers[0].tell(&format!("CLUSTER MEET {ADDRESS} {}", server.port));
        }
        for (master, replica) in self.servers[..3].iter().zip(&self.servers[3..]) {
            let id = master.tell("CLUSTER MYID");
            replica.wait_until(&format!("CLUSTER REPLICATE {id}"), |answer| answer == "OK");
        }
        for server in &self.servers {
            server.wait_until("CLUSTER INFO", |info| {
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6")
            });
            server.wait_until("CLUSTER NODES", |nodes| {
                nodes.lines().filter(|line| line.contains("slave") && !line.contains("fail")).count() == 3
            });
        }
        for replica in &self.servers[3..] {
            replica.wait_until("INFO replication", |info| info.contains("master_link_status:up"));
        }
    }

    /// Starts the killed servers again. All of them are empty.
    pub fn start_again(&mut self) {
        let killed: Vec<_> = self.servers.iter_mut().filter(|server| server.child.is_none()).collect();
        killed.into_iter().for_each(|server| server.start(&self.namespace));
        self.servers.iter().for_each(|server| server.wait_until("PING", |answer| answer == "PONG"));
        if self.kind == Kind::Cluster {
            let is_ok = |info: &str| info.contains("cluster_state:ok");
            self.servers.iter().for_each(|server| server.wait_until("CLUSTER INFO", is_ok));
        }
    }

    /// Moves a slot with all its keys from the first master to the second, which redirects hosts that report meanwhile.
    pub fn move_slot(&self, slot: u64, meanwhile: impl FnOnce()) {
        let [from, to] = [&self.servers[0], &self.servers[1]];
        let [from_id, to_id] = [from, to].map(|server| server.tell("CLUSTER MYID"));
        to.tell(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
        from.tell(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
        meanwhile();
        let keys: Vec<String> = from.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 100")).expect("it lists keys");
        for key in keys {
            from.tell(&format!("MIGRATE {ADDRESS} {} {key} 0 2000", to.port));
        }
        for server in [to, from] {
            server.tell(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        }
    }

    /// Returns the settings of `[fleet]` that name this store.
    pub fn settings(&self) -> String {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let urls = |scheme: &str, count| {
            let urls =
                self.servers.iter().take(count).map(|server| format!("\"{scheme}://{ADDRESS}:{}\"", server.port));
            urls.collect::<Vec<_>>().join(", ")
        };
        match self.kind {
            Kind::Single => format!("url = {}", urls("redis", 1)),
            Kind::Cluster => format!("url = [{}]", urls("redis", 6)),
            Kind::Guarded => {
                fs::write(at("password"), format!("{PASSWORD}\n")).expect(WORKS);
                let [password, ca, cert, key] = ["password", "ca.pem", "cert.pem", "key.pem"].map(at);
                let url = urls("rediss", 1);
                format!(
                    "url = {url}\nusername = \"rl\"\npassword_file = \"{password}\"\nca_file = \"{ca}\"\n\
                     cert_file = \"{cert}\"\nkey_file = \"{key}\""
                )
            }
        }
    }

    /// Returns the number of commands that the servers executed, and of bytes that they read and wrote.
    pub fn traffic(&self) -> (u64, u64) {
        let of = |server: &Server| {
            let bytes = ["total_net_input_bytes", "total_net_output_bytes"].map(|name| server.info("stats", name));
            (server.info("stats", "total_commands_processed"), bytes.iter().sum::<u64>())
        };
        self.servers.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
