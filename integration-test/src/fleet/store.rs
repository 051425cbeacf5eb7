//! Redis servers in a namespace of their own. The test asks them over Unix sockets, which no cut wire stops.
//!
//! The program is `REDIS_SERVER`, which `cargo xtask test` hands over with the directories of its libraries in
//! `REDIS_LIBRARIES`; else the one on PATH.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netlab::{Child, Namespace};
use nix::sys::signal::Signal;

use super::WORKS;
use crate::lab::{HANGS_AFTER, once};

/// Where the servers are for the hosts, each on a port of its own.
pub const ADDRESS: &str = "10.8.0.254";
const FIRST_PORT: u16 = 6379;
const ADMIN: &str = "admin-of-the-test";
/// The fleet's, where there are users.
pub const PASSWORD: &str = "hunter2-of-the-fleet";

/// What kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Single,
    /// Three masters with a replica each; the replica of server n is server n + 3.
    Cluster,
    /// One server that speaks TLS alone, and knows the users of an ACL file alone.
    Guarded,
}

/// One server.
pub struct Server {
    child: Option<Child>,
    options: Vec<String>,
    directory: PathBuf,
    asked: String,
    /// Its port.
    pub port: u16,
}

/// All of them.
pub struct Store {
    /// The servers.
    pub servers: Vec<Server>,
    kind: Kind,
    directory: PathBuf,
    /// Where they are. After them, as it goes after them.
    pub namespace: Namespace,
}

/// Why there can be no store here; nothing where there can.
pub fn obstacle() -> Option<String> {
    program().is_none().then(|| "there is no redis-server: `cargo xtask setup` unpacks one".to_owned())
}

/// The servers' program.
pub fn program() -> Option<PathBuf> {
    let on_path =
        || env::split_paths(&env::var_os("PATH")?).map(|at| at.join("redis-server")).find(|path| path.is_file());
    env::var_os("REDIS_SERVER").map(PathBuf::from).or_else(on_path)
}

impl Server {
    /// Starts it, also anew: it is empty then.
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

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.child.as_ref().expect("it runs").signal(signal).expect(WORKS);
    }

    /// kill -9, and waits for its end.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.signal(Signal::SIGKILL).expect(WORKS);
        child.wait(HANGS_AFTER).expect(WORKS);
    }

    /// Asks it as the administrator.
    ///
    /// # Errors
    /// If it does not answer within a second, or by an error.
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

    /// Asks it, who must answer well.
    pub fn tell(&self, words: &str) -> String {
        let value: redis::Value = self.ask(words).unwrap_or_else(|error| panic!("{words}: {error}"));
        redis::from_redis_value(value).unwrap_or_default()
    }

    /// Where it is asked.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Waits until it is a master.
    pub fn wait_until_promoted(&self) {
        self.wait_until("INFO replication", |info| info.contains("role:master"));
    }

    /// Waits until it answers this.
    fn wait_until(&self, words: &str, holds: impl Fn(&str) -> bool) {
        let held = once(|| self.ask::<String>(words).is_ok_and(|answer| holds(&answer)).then_some(()));
        held.unwrap_or_else(|| panic!("{words} does not come to hold: {:?}", self.ask::<String>(words)));
    }

    /// A number of INFO, 0 where it is not there.
    pub fn info(&self, section: &str, name: &str) -> u64 {
        let info = self.tell(&format!("INFO {section}"));
        let value = info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

impl Store {
    /// Starts one whose namespace has `br0` with [`ADDRESS`], and files in this directory.
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

    /// Starts the servers; a guarded store waits for its users.
    fn begin(&mut self) {
        self.servers.iter_mut().for_each(|server| server.start(&self.namespace));
        self.servers.iter().for_each(|server| server.wait_until("PING", |answer| answer == "PONG"));
        if self.kind == Kind::Cluster {
            self.join();
        }
    }

    /// Has the administrator as a user, and whom this line of `check-config` names.
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

    /// Starts what was killed: all of it is empty.
    pub fn start_again(&mut self) {
        let killed: Vec<_> = self.servers.iter_mut().filter(|server| server.child.is_none()).collect();
        killed.into_iter().for_each(|server| server.start(&self.namespace));
        self.servers.iter().for_each(|server| server.wait_until("PING", |answer| answer == "PONG"));
        if self.kind == Kind::Cluster {
            let is_ok = |info: &str| info.contains("cluster_state:ok");
            self.servers.iter().for_each(|server| server.wait_until("CLUSTER INFO", is_ok));
        }
    }

    /// Moves a slot with all its keys from the first master to the second; hosts that report meanwhile are told so.
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

    /// What `[fleet]` says of it.
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

    /// Commands that the servers have carried out, and bytes that they have read and written.
    pub fn traffic(&self) -> (u64, u64) {
        let of = |server: &Server| {
            let bytes = ["total_net_input_bytes", "total_net_output_bytes"].map(|name| server.info("stats", name));
            (server.info("stats", "total_commands_processed"), bytes.iter().sum::<u64>())
        };
        self.servers.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
