//! Tests of daemons in a fleet, each over a fake datapath, with a real redis-server. `cargo xtask test` passes the
//! server in `REDIS_SERVER`. Otherwise the one on PATH is used.

mod followed;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant as Clock;

use ratelimit_common::layout::Fault;
use ratelimit_common::time::SECOND_NS;

use super::*;
use crate::store::Store as StateStore;
use ratelimit_control::Call;
use ratelimit_control::proto::{
    Allow, Check, Deny, EventsOf, FleetStatus, GrantRequest, PrefixRequest, SourceRequest, UnblockRequest,
};
use ratelimit_datapath::fake::{FakePacket, START};
use ratelimit_policy::config::fleet::Fleet;
use ratelimit_policy::desired::{Bans, Mode, Shared};
use ratelimit_policy::fleet::Sum;
use ratelimit_report::event::EventKind;
use ratelimit_report::fleet::FleetState;
use ratelimit_report::snapshot::{ListFilter, Outcome, State as Standing};

const SOURCE: &str = "198.51.100.7";
/// Limit of the shared rule. A fake kernel's clock stands still, and it takes nothing written for a later bucket.
const LIMIT: u64 = 10;

/// Redis server on a socket of its own.
struct Store {
    directory: TempDir,
    program: PathBuf,
    child: Child,
}

impl Store {
    /// Starts a server. Returns none if the program is missing. The test then reports that it is skipped, which fails
    /// in CI.
    fn start(test: &str) -> Option<Self> {
        let on_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).map(|dir| dir.join("redis-server")).find(|path| path.is_file())
        };
        let Some(program) = std::env::var_os("REDIS_SERVER").map(PathBuf::from).or_else(on_path) else {
            println!("skipped: {test}: there is no redis-server: `cargo xtask setup` unpacks one");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let child = Self::spawn(&program, directory.path());
        let store = Self { directory, program, child };
        store.wait();
        Some(store)
    }

    fn spawn(program: &Path, directory: &Path) -> Child {
        let mut command = Command::new(program);
        if let Some(libraries) = std::env::var_os("REDIS_LIBRARIES") {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket", "redis.sock"]);
        command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    fn wait(&self) {
        let began = Clock::now();
        while std::os::unix::net::UnixStream::connect(self.socket()).is_err() {
            assert!(began.elapsed() < Duration::from_secs(10), "no server");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = Self::spawn(&self.program, self.directory.path());
        self.wait();
    }

    fn fleet(&self) -> Fleet {
        Fleet {
            name: "web".to_owned(),
            interval: Duration::from_millis(200),
            hosts: 2,
            ..Fleet::at(&format!("unix://{}", self.socket().display()))
        }
    }

    /// Starts a host that shares a limit of ten connections in five minutes with the others, and bans for ten
    /// minutes.
    async fn host(&self) -> Running {
        self.host_with(|_| {}).await
    }

    async fn host_with(&self, adjust: impl Fn(&mut Config)) -> Running {
        self.host_at("none", Around::default, adjust).await
    }

    /// Starts a host with its state directory under this name, or without state for `none`, and with the given
    /// surroundings.
    async fn host_at(&self, name: &str, look: fn() -> Around, adjust: impl Fn(&mut Config)) -> Running {
        let change = |config: &mut Config| {
            config.policy = shared();
            config.fleet = Some(self.fleet());
            adjust(config);
        };
        let directory = if name == "none" { "/dev/null/none".into() } else { self.directory.path().join(name) };
        let host = Host { store: StateStore::at(directory), look, ..surroundings(None).0.host };
        let again = |config: &Config| file(std::iter::repeat_n(config.clone(), 2).map(Ok));
        start_on(Some(host), until_now(), None, change, again).await
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

/// Returns the nanoseconds from the fake clock's start to the store's time.
fn until_now() -> u64 {
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap() - START.0
}

/// Returns a policy with one limit that counts all traffic. A fake's packets are never verified.
fn shared() -> ratelimit_policy::desired::Policy {
    let mut limit = ratelimit_report::fixture::limit(LIMIT, ratelimit_common::layout::Unit::Connections);
    limit.shared = Some(Shared { sum: Sum::All, step_bits: 1 });
    let mut policy = ratelimit_report::fixture::policy(vec![limit]);
    let steps_ns = vec![600 * SECOND_NS];
    policy.rules[0].bans = Some(Bans { steps_ns, forget_ns: 3_600 * SECOND_NS, needs_proof: true });
    policy
}

/// Waits until a condition holds. Panics after `within`.
async fn eventually(what: &str, within: Duration, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let began = Clock::now();
    while !is_so().await {
        assert!(began.elapsed() < within, "{what}: not within {within:?}");
        sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

const SOON: Duration = Duration::from_secs(5);

impl Running {
    /// Opens the given number of connections. Returns the number of admitted ones.
    fn send(&self, source: &str, connections: u64) -> u64 {
        let packet = |_: &u64| self.kernel.packet("eth0", FakePacket { ..opening(source) }).unwrap();
        (0..connections).filter(|at| packet(at).action() == ratelimit_common::verdict::Action::Pass).count() as u64
    }

    async fn ask<C: Call>(&self, call: C) -> C::Report {
        self.client.call(&call).await.unwrap()
    }

    async fn elsewhere(&self, source: &str) -> u64 {
        self.ask(Check { ip: address(source) }).await.limits[0].used_elsewhere.unwrap()
    }

    async fn is_connected(&self) {
        let state = async || self.ask(FleetStatus {}).await.fleet.state == FleetState::Connected;
        eventually("connected", SOON, state).await;
    }

    async fn told(&self, kind: EventKind) -> Vec<String> {
        let events = self.client.events(&EventsOf { kind: Some(kind), ..EventsOf::default() }).await.unwrap().events;
        events.into_iter().map(|event| event.detail).collect()
    }

    async fn state_of(&self, source: &str) -> Vec<(Standing, Option<String>)> {
        let listed = self.ask(ListFilter::default()).await;
        let of_source = listed.entries.into_iter().filter(|entry| entry.prefix == source);
        of_source.map(|entry| (entry.state, entry.user)).collect()
    }

    async fn end(self) {
        self.events.send(Event::Stop).await.unwrap();
        self.task.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn admissions_of_one_host_count_on_the_other_and_check_shows_both() {
    let Some(store) = Store::start("admissions_of_one_host") else { return };
    let (one, other) = (store.host().await, store.host().await);
    one.is_connected().await;
    other.is_connected().await;
    assert_eq!(one.send(SOURCE, 6), 6);
    assert_eq!(other.send(SOURCE, 2), 2, "its window is here");
    let took = eventually("told", SOON, async || other.elsewhere(SOURCE).await == 6).await;
    println!("told after {took:?}");
    assert_eq!(other.send(SOURCE, 10), 2, "six there, four here");
    let report = other.ask(Check { ip: address(SOURCE) }).await;
    let row = &report.limits[0];
    assert_eq!((row.used, row.used_elsewhere, row.remaining, row.limit), (4, Some(6), 0, LIMIT));
    assert!(row.told_seconds_ago.is_some_and(|ago| ago < 60.0), "{row:?}");
    eventually("the first host too", SOON, async || one.elsewhere(SOURCE).await == 4).await;
    assert_eq!(one.send(SOURCE, 1), 0);
    assert_eq!(one.send("198.51.100.8", 1), 1, "another source has its own");
    let report = one.ask(FleetStatus {}).await;
    assert_eq!((report.hosts.len(), report.fleet.hosts), (2, 2));
    assert_eq!(report.hosts.iter().filter(|host| host.this).count(), 1);
    assert_ne!(report.hosts[0].id, report.hosts[1].id);
    one.end().await;
    other.end().await;
}

#[tokio::test]
async fn a_ban_holds_on_all_hosts_is_told_with_its_host_and_lifted_on_all() {
    let Some(store) = Store::start("a_ban_holds_on_all_hosts") else { return };
    let (one, other) = (store.host().await, store.host().await);
    one.is_connected().await;
    other.is_connected().await;
    one.send(SOURCE, LIMIT + 1);
    let banned = async || other.state_of(SOURCE).await == [(Standing::Banned, None)];
    let took = eventually("banned there", Duration::from_secs(2), banned).await;
    println!("banned after {took:?}");
    assert_eq!(other.send(SOURCE, 1), 0);
    let told = other.told(EventKind::Ban).await;
    assert!(told.len() == 1 && told[0].contains(", by fleet ("), "{told:?}");
    // There is no echo: the host where the ban began hears of no ban by another.
    sleep(Duration::from_millis(600)).await;
    assert_eq!(one.told(EventKind::Ban).await.len(), 1);

    other.ask(UnblockRequest { prefix: Some(SOURCE.to_owned()), ..UnblockRequest::default() }).await;
    eventually("lifted there", SOON, async || one.state_of(SOURCE).await.is_empty()).await;
    assert_eq!(one.ask(Check { ip: address(SOURCE) }).await.verdict, Outcome::Pass);
    let told = one.told(EventKind::Unblock).await;
    assert!(told.len() == 1 && told[0].contains("unblocked by fleet (") && told[0].contains(": root)"), "{told:?}");
    assert_eq!(other.told(EventKind::Unblock).await.len(), 1, "no echo");
    one.end().await;
    other.end().await;
}

#[tokio::test]
async fn an_unblock_that_is_heard_late_lifts_the_bans_before_it_alone() {
    let Some(store) = Store::start("an_unblock_that_is_heard_late") else { return };
    let (one, other) = (store.host().await, store.host().await);
    one.is_connected().await;
    other.is_connected().await;
    one.send(SOURCE, LIMIT + 1);
    let is_banned = async |source| !other.state_of(source).await.is_empty();
    eventually("banned there", SOON, async || is_banned(SOURCE).await).await;
    other.kernel.advance(90 * SECOND_NS);
    other.send("198.51.100.9", LIMIT + 1);
    eventually("banned by itself", SOON, async || is_banned("198.51.100.9").await).await;
    one.ask(UnblockRequest { prefix: Some("198.51.100.0/24".to_owned()), ..UnblockRequest::default() }).await;
    eventually("lifted there", SOON, async || !is_banned(SOURCE).await).await;
    assert!(is_banned("198.51.100.9").await, "began after it, by this host's clock");
    one.end().await;
    other.end().await;
}

#[tokio::test]
async fn grants_reach_every_host_with_fleet_alone_and_resets_always() {
    let Some(store) = Store::start("grants_reach_every_host") else { return };
    let (one, other) = (store.host().await, store.host().await);
    one.is_connected().await;
    other.is_connected().await;
    let grant = |prefix: &str, fleet| GrantRequest {
        prefix: prefix.to_owned(),
        permanent: true,
        reason: Some("scraper".to_owned()),
        fleet,
        ..GrantRequest::default()
    };
    one.ask(Deny(grant("203.0.113.1", false))).await;
    one.ask(Deny(grant("203.0.113.2", true))).await;
    one.ask(Allow(grant("203.0.113.3", true))).await;
    let denied = async || other.state_of("203.0.113.2").await.first().is_some_and(|of| of.0 == Standing::Denied);
    eventually("denied there", SOON, denied).await;
    let user = other.state_of("203.0.113.2").await[0].1.clone().unwrap();
    assert!(user.starts_with("fleet (") && user.ends_with(": root)"), "{user}");
    eventually("allowed there", SOON, async || !other.state_of("203.0.113.3").await.is_empty()).await;
    assert!(other.state_of("203.0.113.1").await.is_empty(), "said for one host");

    one.ask(PrefixRequest { prefix: "203.0.113.3".to_owned(), fleet: true }).await;
    one.ask(UnblockRequest { prefix: Some("203.0.113.0/24".to_owned()), all: false, fleet: true, owner: None }).await;
    let ended =
        async || other.state_of("203.0.113.2").await.is_empty() && other.state_of("203.0.113.3").await.is_empty();
    eventually("ended there", SOON, ended).await;

    other.send(SOURCE, 3);
    one.ask(SourceRequest { source: address(SOURCE), fleet: false }).await;
    eventually("reset there", SOON, async || other.ask(Check { ip: address(SOURCE) }).await.limits[0].used == 0).await;
    assert_eq!(other.told(EventKind::Reset).await.len(), 1);
    one.end().await;
    other.end().await;
}

#[tokio::test]
async fn a_fleet_grant_lifted_on_one_host_is_said_to_hold_on_the_others() {
    let Some(store) = Store::start("a_fleet_grant_lifted_on_one_host") else { return };
    let (one, other) = (store.host().await, store.host().await);
    one.is_connected().await;
    other.is_connected().await;
    let grant = |prefix: &str, fleet| GrantRequest { prefix: prefix.to_owned(), fleet, ..GrantRequest::default() };
    one.ask(Deny(grant("203.0.113.1", false))).await;
    one.ask(Deny(grant("203.0.113.2", true))).await;
    one.ask(Allow(grant("203.0.113.3", true))).await;
    let both =
        async || !(other.state_of("203.0.113.2").await.is_empty() || other.state_of("203.0.113.3").await.is_empty());
    eventually("entered there", SOON, both).await;
    let unblock = |prefix: &str| UnblockRequest { prefix: Some(prefix.to_owned()), ..UnblockRequest::default() };
    let unallow = |prefix: &str| PrefixRequest { prefix: prefix.to_owned(), fleet: false };
    let is_said = |report: &ratelimit_control::proto::UnblockReport| {
        assert_eq!(report.removed_count, 1, "{report:?}");
        report.notes.iter().any(|note| note == "other hosts of the fleet keep it: add --fleet")
    };
    assert!(is_said(&other.ask(unblock("203.0.113.2")).await));
    assert!(is_said(&other.ask(unallow("203.0.113.3")).await));
    assert!(!is_said(&one.ask(unblock("203.0.113.1")).await), "no other host has it");
    one.end().await;
    other.end().await;
}

#[tokio::test]
async fn a_store_that_is_away_is_said_once_stops_nothing_and_is_found_again() {
    let Some(mut store) = Store::start("a_store_that_is_away") else { return };
    let host = store.host_at("state", Around::default, |_| {}).await;
    host.is_connected().await;
    let at_least = async |count: usize| host.told(EventKind::Fleet).await.len() >= count;
    eventually("told", SOON, async || at_least(1).await).await;
    store.kill();
    eventually("away", SOON, async || at_least(2).await).await;
    let began = Clock::now();
    let health = host.client.health().await.unwrap();
    assert!(health.healthy && health.notes.iter().any(|note| note.contains("fleet: ")), "{health:?}");
    let stats = host.client.stats().await.unwrap();
    assert_eq!(stats.fleet.state, FleetState::Away);
    assert_eq!(host.send(SOURCE, LIMIT + 1), LIMIT, "each host holds its limits by itself");
    host.ask(Check { ip: address(SOURCE) }).await;
    let deny = GrantRequest { prefix: "203.0.113.2".to_owned(), fleet: true, ..GrantRequest::default() };
    let denied = host.ask(Deny(deny)).await;
    assert!(
        denied.notes.contains(&"the fleet is away: other hosts hear of this when it is back".to_owned()),
        "{denied:?}"
    );
    let reset = |fleet| SourceRequest { source: address(SOURCE), fleet };
    assert_eq!(
        host.ask(reset(true)).await.notes,
        ["the fleet is away: other hosts reset it only if it is back within 60 s"]
    );
    assert_eq!(host.ask(reset(false)).await.notes, [""; 0]);
    host.client.reload().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "nothing waits for the store: {:?}", began.elapsed());
    store.start_again();
    eventually("back", SOON, async || at_least(3).await).await;
    let told = host.told(EventKind::Fleet).await;
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!((told[0].as_str(), told[2].as_str()), ("fleet web is connected", "fleet web is connected"));
    assert!(told[1].starts_with("fleet web is away: ") && told[1].contains("by itself"), "{}", told[1]);
    assert!(host.client.health().await.unwrap().notes.is_empty());
    let began = Clock::now();
    store.kill();
    host.end().await;
    assert!(began.elapsed() < Duration::from_secs(1), "nor does the end");
}

#[tokio::test]
async fn a_reload_joins_and_leaves_and_a_secret_that_is_missing_is_said_and_tried_again() {
    let Some(store) = Store::start("a_reload_joins_and_leaves") else { return };
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    let fleet = Fleet { secret_file: Some(secret.clone()), ..store.fleet() };
    let with = |fleet: Option<Fleet>| {
        move |config: &Config| {
            let joined = Config { fleet, ..config.clone() };
            file([Ok(joined), Ok(config.clone())])
        }
    };
    let host = start_later(until_now(), None, |config| config.policy = shared(), with(Some(fleet))).await;
    assert_eq!(host.ask(FleetStatus {}).await.fleet.state, FleetState::Off);
    let deny = Deny(GrantRequest { prefix: "203.0.113.2".to_owned(), fleet: true, ..GrantRequest::default() });
    let refused = host.client.call(&deny).await.unwrap_err();
    assert!(refused.to_string().contains("in no fleet"), "{refused}");
    host.client.reload().await.unwrap();
    eventually("said", SOON, async || {
        let fleet = host.ask(FleetStatus {}).await.fleet;
        fleet.state == FleetState::Away && fleet.error.is_some_and(|error| error.contains("/secret"))
    })
    .await;
    let refused = host.client.call(&deny).await.unwrap_err().to_string();
    assert!(refused.contains("has not joined its fleet") && refused.contains("/secret"), "{refused}");
    assert!(host.state_of("203.0.113.2").await.is_empty(), "nothing was changed");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let state = async || host.ask(FleetStatus {}).await.fleet.state == FleetState::Connected;
    eventually("connected", Duration::from_secs(10), state).await;
    host.client.reload().await.unwrap();
    eventually("off", SOON, async || host.ask(FleetStatus {}).await.fleet.state == FleetState::Off).await;
    assert!(!format!("{:?}", host.ask(FleetStatus {}).await).contains("0123456789abcdef"));
    host.end().await;
}

#[tokio::test]
async fn hosts_of_another_secret_and_more_than_the_bound_is_for_are_said_once() {
    let Some(store) = Store::start("hosts_of_another_secret") else { return };
    let one = store.host_with(|config| config.fleet.as_mut().unwrap().hosts = 1).await;
    one.is_connected().await;
    let says = async |words: &str| {
        let said = async || one.ask(FleetStatus {}).await.fleet.trouble.is_some_and(|trouble| trouble == words);
        eventually(words, SOON, said).await;
        let told = async || one.told(EventKind::Fleet).await.iter().any(|told| *told == format!("fleet web: {words}"));
        eventually("told", SOON, told).await;
        assert!(one.client.health().await.unwrap().notes.iter().any(|note| note.contains(words)));
    };
    let other = store.host().await;
    says("2 hosts are heard, but `hosts` is 1: the bound holds for 1").await;
    let secret = store.directory.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let third = store.host_with(|config| config.fleet.as_mut().unwrap().secret_file = Some(secret.clone())).await;
    says("the store has 1 host of fleet web that this host's secret cannot read: is the secret the same on all?").await;
    sleep(SUPERVISE_EVERY + Duration::from_millis(100)).await;
    assert_eq!(one.told(EventKind::Fleet).await.len(), 3, "connected, and each once");
    for host in [one, other, third] {
        host.end().await;
    }
}

#[tokio::test]
async fn steps_that_packets_had_no_room_to_tell_are_counted_as_lost() {
    let Some(store) = Store::start("steps_that_packets_had_no_room") else { return };
    let host = store.host().await;
    host.is_connected().await;
    // Steps lost before this run do not belong to this run.
    sleep(SUPERVISE_EVERY + Duration::from_millis(100)).await;
    for _ in 0..3 {
        host.kernel.fault(Fault::StepsReserve);
    }
    let lost = async || host.ask(FleetStatus {}).await.fleet.reports_lost == 3;
    eventually("counted", SOON, lost).await;
    host.end().await;
}

#[tokio::test]
async fn fleet_commands_given_while_the_store_is_away_survive_a_restart() {
    let Some(mut store) = Store::start("fleet_commands_given_while_the_store_is_away") else { return };
    let (one, other) = (store.host_at("one", Around::default, |_| {}).await, store.host().await);
    one.is_connected().await;
    other.is_connected().await;
    let deny = |prefix: &str| Deny(GrantRequest { prefix: prefix.to_owned(), fleet: true, ..GrantRequest::default() });
    let is_denied = async |prefix| other.state_of(prefix).await.first().is_some_and(|of| of.0 == Standing::Denied);
    one.ask(deny("203.0.113.1")).await;
    eventually("heard", SOON, async || is_denied("203.0.113.1").await).await;
    store.kill();
    let state = async || one.ask(FleetStatus {}).await.fleet.state == FleetState::Away;
    eventually("away", SOON, state).await;
    one.ask(deny("203.0.113.2")).await;
    // A fake kernel's clock stands still, and an act of the same instant does not count as newer.
    one.kernel.advance(SECOND_NS);
    let unblock = UnblockRequest { prefix: Some("203.0.113.1".to_owned()), fleet: true, ..UnblockRequest::default() };
    one.ask(unblock).await;
    one.end().await;
    let kept = store.directory.path().join("one/fleet-acts.json");
    assert!(kept.exists(), "the store has not heard it");
    store.start_again();
    let one = store.host_at("one", Around::default, |_| {}).await;
    eventually("heard after the restart", SOON, async || is_denied("203.0.113.2").await).await;
    eventually("and this", SOON, async || !is_denied("203.0.113.1").await).await;
    eventually("kept no more", SOON, async || !kept.exists()).await;
    assert!(other.state_of("203.0.113.2").await[0].1.as_ref().is_some_and(|user| user.ends_with(": root)")));

    let lost = other.ask(deny("203.0.113.3")).await;
    assert!(
        lost.notes.iter().any(|note| note.contains("a restart before other hosts hear of this loses it")),
        "{lost:?}"
    );
    one.end().await;
    other.end().await;
}
