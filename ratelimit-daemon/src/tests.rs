//! Tests of the whole daemon over a fake datapath and a real control socket. The clock is paused: seconds pass at once.

use anyhow::anyhow;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::{ProblemKind, ReloadRequest, Stats};
use ratelimit_control::server::HEADER_TIME_MAX;
use ratelimit_control::socket::SocketError;
use ratelimit_datapath::fake::{FakeDatapath, FakeKernel};
use ratelimit_datapath::{Left, Orphans, PinnedLayout, XdpMode};
use ratelimit_policy::config::{OnExit, XdpModeChoice};
use ratelimit_report::fixture::{address, config, opening};
use ratelimit_report::snapshot;

mod asks;
mod awaited;
mod bans;
mod ended;
mod fleet;
mod fleet_alone;
mod fuzz;
mod grants;
mod imports;
mod kinds;
mod lapse;
mod lifts;
mod lists;
mod past;
mod prefix_bans;
mod signal;
mod site;
mod sources;
mod suggest;
mod told;
mod trials;
mod unkept;
mod verdicts;
mod web;

use asks::Asks as _;

struct Running {
    directory: TempDir,
    kernel: FakeKernel,
    client: Client,
    events: mpsc::Sender<Event>,
    told: mpsc::UnboundedReceiver<String>,
    task: JoinHandle<Result<(), DaemonError>>,
}

struct Recorder(mpsc::UnboundedSender<String>);

impl Notifier for Recorder {
    fn tell(&mut self, state: State<'_>) {
        let _ = self.0.send(format!("{state:?}"));
    }
}

/// Contents of the configuration file at each reload, in order.
type File = Arc<Mutex<VecDeque<anyhow::Result<Config>>>>;

fn file(contents: impl IntoIterator<Item = anyhow::Result<Config>>) -> ConfigSource {
    let file: File = Arc::new(Mutex::new(contents.into_iter().collect()));
    let load = move |_: &Path| {
        let config = file.lock().unwrap().pop_front().expect("one more reload than the test foresaw")?;
        Ok(Loaded { text: format!("{config:?}"), config })
    };
    ConfigSource::file("/etc/ratelimitd/ratelimitd.toml".into(), String::new(), Fallbacks::new(), load, |_, _, _| {
        unreachable!("no trial")
    })
}

/// Returns a request for statistics from a reading that begins at this moment.
fn stats_at(moment: Moment) -> Stats {
    Stats { since: moment.at, sources: None }
}

fn surroundings(watchdog: Option<Duration>) -> (Surroundings, mpsc::UnboundedReceiver<String>) {
    let (sender, told) = mpsc::unbounded_channel();
    // No directory can be created there, not even by root, so tests share no state.
    let store = Store::at("/dev/null/ratelimitd".into());
    let host = Host { look: Around::default, attention: ratelimit_view::attention, give_back_memory: || {}, store };
    (Surroundings { notifier: Box::new(Recorder(sender)), watchdog, attached: || {}, own_uid: 0, host }, told)
}

/// Starts a daemon on eth0 with 3 connections in five minutes, unless `adjust` changes that. eth1 exists too.
async fn start(
    watchdog: Option<Duration>,
    adjust: impl FnOnce(&mut Config),
    source: impl FnOnce(&Config) -> ConfigSource,
) -> Running {
    start_later(0, watchdog, adjust, source).await
}

/// Starts a daemon when the fake's clock has run for `after_ns`.
async fn start_later(
    after_ns: u64,
    watchdog: Option<Duration>,
    adjust: impl FnOnce(&mut Config),
    source: impl FnOnce(&Config) -> ConfigSource,
) -> Running {
    start_on(None, after_ns, watchdog, adjust, source).await
}

/// Starts a daemon on the given host, or on a default one.
async fn start_on(
    host: Option<Host>,
    after_ns: u64,
    watchdog: Option<Duration>,
    adjust: impl FnOnce(&mut Config),
    source: impl FnOnce(&Config) -> ConfigSource,
) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 3);
    adjust(&mut config);
    let client = Client::new(&config.socket);
    let (datapath, kernel) = FakeDatapath::new(&["eth0", "eth1"]);
    kernel.advance(after_ns);
    let (events, queue) = mpsc::channel(8);
    let (surroundings, mut told) = surroundings(watchdog);
    let host = host.unwrap_or_else(|| surroundings.host.clone());
    let surroundings = Surroundings { host, ..surroundings };
    let source = source(&config);
    let task = tokio::spawn(drive(config, source, |_| Ok(datapath), |_| {}, queue, surroundings));
    assert_eq!(told.recv().await.as_deref(), Some("Ready"));
    Running { directory, kernel, client, events, told, task }
}

async fn start_from_flags() -> Running {
    start(None, |_| {}, |_| ConfigSource::Flags).await
}

impl Running {
    async fn stop(self) -> Vec<String> {
        self.events.send(Event::Stop).await.unwrap();
        self.task.await.unwrap().unwrap();
        assert_eq!(std::fs::read_dir(self.directory.path()).unwrap().count(), 0, "nothing is left behind");
        self.kernel.calls()
    }

    fn heard(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_applied_before_anything_is_attached_and_a_stop_is_orderly() {
    let running = start(None, |config| config.interfaces.push("eth1".into()), |_| ConfigSource::Flags).await;
    assert_eq!(running.kernel.attached(), ["eth0", "eth1"]);
    assert_eq!(running.stop().await, ["apply", "attach eth0", "attach eth1", "shutdown detach"]);
}

#[tokio::test(start_paused = true)]
async fn on_exit_keep_leaves_the_filter_and_detach_takes_it_off_all_the_same() {
    let keep = |config: &mut Config| config.on_exit = OnExit::Keep;
    let running = start(None, keep, |_| ConfigSource::Flags).await;
    assert_eq!(running.stop().await.last().map(String::as_str), Some("shutdown keep"));

    let running = start(None, keep, |_| ConfigSource::Flags).await;
    let report = running.client.detach(None).await.unwrap();
    assert!(report.stopping);
    assert_eq!(report.detached, ["eth0"]);
    running.task.await.unwrap().unwrap();
    assert_eq!(running.kernel.calls().last().map(String::as_str), Some("shutdown detach"));
}

#[tokio::test(start_paused = true)]
async fn one_interface_of_two_can_be_detached_and_a_reload_brings_it_back() {
    let two = |config: &mut Config| config.interfaces.push("eth1".into());
    let running = start(None, two, |config| file([Ok(config.clone())])).await;
    let report = running.client.detach(Some("eth1")).await.unwrap();
    assert!(!report.stopping);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(running.kernel.attached(), ["eth0"], "what was detached by hand is not attached again");
    assert!(running.client.health().await.unwrap().healthy);
    let unknown = running.client.detach(Some("eth9")).await.unwrap_err();
    assert!(unknown.to_string().contains("it protects eth0"), "{unknown}");

    assert_eq!(running.client.reload().await.unwrap().changes, ["interface eth1: attach"]);
    assert_eq!(running.kernel.attached(), ["eth0", "eth1"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path(), 3);
    config.interfaces.push("eth9".into());
    let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
    let (_events, queue) = mpsc::channel(1);
    let outcome = drive(config, ConfigSource::Flags, |_| Ok(datapath), |_| {}, queue, surroundings(None).0).await;
    let error = outcome.unwrap_err();
    assert_eq!(error.to_string(), "no interface eth9; there are eth0");
    assert!(kernel.attached().is_empty());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_leaves_what_an_earlier_run_keeps_under_its_old_policy() {
    for refusing in ["eth0", "eth2"] {
        let directory = tempfile::tempdir().unwrap();
        let earlier = config(directory.path(), 3).policy;
        let mut config = config(directory.path(), 9);
        config.interfaces = vec!["eth0".into(), "eth1".into(), "eth2".into()];
        let (datapath, kernel) = FakeDatapath::new(&["eth0", "eth1", "eth2"]);
        kernel.keep(&["eth1"], &earlier);
        kernel.refuse_attach(refusing);
        let (_events, queue) = mpsc::channel(1);
        let outcome = drive(config, ConfigSource::Flags, |_| Ok(datapath), |_| {}, queue, surroundings(None).0).await;
        assert!(matches!(outcome, Err(DaemonError::Datapath(DatapathError::Occupied { .. }))), "{outcome:?}");
        assert_eq!((kernel.policy(), kernel.attached()), (Some(earlier), vec!["eth1".to_owned()]));
        let calls = kernel.calls();
        assert!(!calls.iter().any(|call| call == "apply" || call == "attach eth1"), "{calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn kept_interfaces_are_taken_over_last_and_unwanted_ones_are_released() {
    let directory = tempfile::tempdir().unwrap();
    let (datapath, kernel) = FakeDatapath::new(&["eth0", "eth1", "eth2"]);
    kernel.keep(&["eth0", "eth2"], &config(directory.path(), 3).policy);
    let mut config = config(directory.path(), 9);
    config.interfaces = vec!["eth0".into(), "eth1".into()];
    let policy = config.policy.clone();
    let (events, queue) = mpsc::channel(1);
    events.send(Event::Stop).await.unwrap();
    drive(config, ConfigSource::Flags, |_| Ok(datapath), |_| {}, queue, surroundings(None).0).await.unwrap();
    assert_eq!(kernel.policy(), Some(policy));
    assert_eq!(kernel.calls(), ["attach eth1", "attach eth0", "apply", "detach eth2", "shutdown detach"]);
}

#[tokio::test(start_paused = true)]
async fn a_second_daemon_is_refused_before_it_touches_the_kernel() {
    let running = start_from_flags().await;
    let config = config(running.directory.path(), 9);
    let (_events, queue) = mpsc::channel(1);
    let open = |_: &Config| -> Result<FakeDatapath, DatapathError> { panic!("the datapath must not be opened") };
    let error = drive(config, ConfigSource::Flags, open, |_| {}, queue, surroundings(None).0).await.unwrap_err();
    assert!(matches!(error, DaemonError::Socket(SocketError::Busy { .. })), "{error:?}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(running.client.health().await.unwrap().healthy);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stats_and_check_tell_what_the_datapath_did() {
    let running = start_from_flags().await;
    for _ in 0..5 {
        running.kernel.packet("eth0", opening("198.51.100.7"));
    }
    let stats = running.client.stats().await.unwrap();
    assert_eq!((stats.rules[0].admitted, stats.rules[0].dropped), (3, 2));
    assert_eq!(stats.top.unwrap()[0].source, "198.51.100.7");
    let report = running.client.check(address("198.51.100.7")).await.unwrap();
    assert_eq!((report.verdict, report.limits[0].used), (snapshot::Outcome::Drop, 3));
    assert!(running.client.metrics().await.unwrap().contains("ratelimitd_sources_over_limit{rule=\"default\"} 1"));

    sleep(Duration::from_secs(10)).await;
    let rates = running.client.stats().await.unwrap().interfaces[0].per_second.unwrap();
    assert_eq!((rates.received, rates.dropped), (0.0, 0.0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_good_reload_is_carried_out_and_keeps_the_counts() {
    let mut running = start(
        None,
        |_| {},
        |config| {
            let mut next = config.clone();
            next.policy.rules[0].limits[0].amount = 4;
            next.interfaces.push("eth1".into());
            file([Ok(next)])
        },
    )
    .await;
    for _ in 0..5 {
        running.kernel.packet("eth0", opening("198.51.100.7"));
    }
    running.heard();
    running.events.send(Event::Reload).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    let heard: Vec<_> = running.heard().into_iter().filter(|told| !told.starts_with("Line")).collect();
    assert_eq!(heard, ["Reloading", "Ready"]);
    assert_eq!(running.kernel.attached(), ["eth0", "eth1"]);
    let report = running.client.check(address("198.51.100.7")).await.unwrap();
    assert_eq!((report.limits[0].limit, report.limits[0].remaining), (4, 1));
    assert!(running.client.stats().await.unwrap().config.last_reload_successful);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_brings_rules_and_limits_without_a_restart_and_says_what_they_cost() {
    let running = start(
        None,
        |_| {},
        |config| {
            let mut next = config.clone();
            let mut second = next.policy.rules[0].clone();
            second.name = "second".into();
            second.limits[0].slot = 7;
            next.policy.rules.push(second);
            file([Ok(next), Ok(config.clone())])
        },
    )
    .await;
    running.kernel.packet("eth0", opening("198.51.100.7"));
    let changes = running.client.reload().await.unwrap().changes;
    let remedy = "the maps were made for fewer limits: `ratelimitd detach` and a restart make room";
    let capacity = format!("sources remembered of each family: 262144 -> 131072; {remedy}");
    assert_eq!(changes, ["rule second: added".to_owned(), capacity]);
    let stats = running.client.stats().await.unwrap();
    assert_eq!((stats.rules.len(), stats.sources.tracked, stats.sources.capacity), (2, 1, 131_072));
    let changes = running.client.reload().await.unwrap().changes;
    assert_eq!(changes, ["rule second: removed", "sources remembered of each family: 131072 -> 262144"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_reload_of_any_kind_changes_nothing_and_is_told() {
    let change = |config: &Config, change: fn(&mut Config)| {
        let mut next = config.clone();
        change(&mut next);
        Ok(next)
    };
    let running = start(
        None,
        |_| {},
        |config| {
            file([
                Err(anyhow!("line 3: unknown key `limt`")),
                change(config, |next| next.xdp_mode = XdpModeChoice::Generic),
                change(config, |next| {
                    next.policy.rules[0].limits[0].amount = 9;
                    next.interfaces = vec!["eth1".into(), "eth9".into()];
                }),
                change(config, |_| {}),
            ])
        },
    )
    .await;
    let policy = running.kernel.policy();
    for (words, kind) in [
        ("line 3: unknown key `limt`", ProblemKind::Config),
        ("changes xdp_mode, which needs a restart; nothing was changed", ProblemKind::Config),
        ("no interface eth9", ProblemKind::NotFound),
    ] {
        let ClientError::Refused(problem) = running.client.reload().await.unwrap_err() else { panic!("{words}") };
        assert!(problem.message.contains(words) && problem.kind == kind, "{problem:?}");
        assert_eq!((running.kernel.policy(), running.kernel.attached()), (policy.clone(), vec!["eth0".to_owned()]));
        let state = running.client.stats().await.unwrap().config;
        assert!(!state.last_reload_successful && state.error.unwrap().contains(words));
    }
    assert_eq!(running.client.reload().await.unwrap().changes, Vec::<String>::new());
    assert!(running.client.stats().await.unwrap().config.last_reload_successful);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_the_kernel_refuses_takes_the_new_interface_off_again() {
    let next = |config: &Config| {
        let mut next = config.clone();
        next.policy.rules[0].limits[0].amount = 9;
        next.interfaces = vec!["eth1".into()];
        file([Ok(next)])
    };
    let running = start(None, |_| {}, next).await;
    running.kernel.refuse_apply();
    let error = running.client.reload().await.unwrap_err();
    assert!(error.to_string().contains("write map CONFIG"), "{error}");
    assert_eq!(running.kernel.attached(), ["eth0"]);
    running.stop().await;
}

/// Collected log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_logs_what_it_changed_and_only_once_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), 3);
    let next = |amount| {
        let mut next = config.clone();
        next.policy.rules[0].limits[0].amount = amount;
        Ok(next)
    };
    let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
    let moment = || Moment::now(Instant::now());
    let start = Start {
        config: config.clone(),
        source: file([next(4), next(5)]),
        unfinished: None,
        refused: None,
        refused_lists: None,
        fallbacks: Fallbacks::new(),
        rolled_back: None,
    };
    let mut engine = Engine::start(datapath, start, surroundings(None).0.host, moment()).unwrap();
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let said = tracing::subscriber::with_default(subscriber, || {
        engine.reload(ReloadRequest::default(), moment()).unwrap();
        let good = String::from_utf8(std::mem::take(&mut *lines.0.lock().unwrap())).unwrap();
        kernel.refuse_apply();
        engine.reload(ReloadRequest::default(), moment()).unwrap_err();
        [good, String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()]
    });
    assert!(said[0].contains("reload: ") && said[0].contains("-> 4"), "{}", said[0]);
    assert!(said[1].contains("nothing was changed") && !said[1].contains("->"), "{}", said[1]);
}

#[tokio::test(start_paused = true)]
async fn an_ipv4_address_in_its_ipv6_form_is_checked_as_the_source_that_the_wire_has() {
    let running = start_from_flags().await;
    for _ in 0..4 {
        running.kernel.packet("eth0", opening("198.51.100.7"));
    }
    let report = running.client.check(address("::ffff:198.51.100.7")).await.unwrap();
    assert_eq!((report.source.as_str(), report.verdict), ("198.51.100.7", snapshot::Outcome::Drop));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn flags_have_nothing_to_reload() {
    let running = start_from_flags().await;
    let error = running.client.reload().await.unwrap_err();
    assert!(error.to_string().starts_with("there is nothing to reload"), "{error}");
    assert!(running.client.stats().await.unwrap().config.last_reload_successful);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_goes_is_told_and_attached_again_when_it_is_back() {
    let running = start_from_flags().await;
    running.kernel.packet("eth0", opening("198.51.100.7"));
    running.kernel.remove("eth0");
    sleep(SUPERVISE_EVERY + Duration::from_millis(1)).await;
    let stats = running.client.stats().await.unwrap();
    assert_eq!((stats.interfaces[0].attached, stats.interfaces[0].xdp_mode), (false, None));
    let health = running.client.health().await.unwrap();
    assert!(!health.healthy && health.problems[0].starts_with("eth0 is not attached"), "{health:?}");
    assert!(running.client.metrics().await.unwrap().contains("ratelimitd_attached{iface=\"eth0\",mode=\"none\"} 0"));

    sleep(Duration::from_secs(60)).await;
    running.kernel.add("eth0", XdpMode::Generic);
    sleep(SUPERVISE_EVERY + Duration::from_millis(1)).await;
    assert_eq!(running.kernel.attached(), ["eth0"]);
    assert!(running.client.health().await.unwrap().healthy);
    let stats = running.client.stats().await.unwrap();
    assert_eq!(stats.interfaces[0].xdp_mode, Some(snapshot::XdpMode::Generic));
    assert_eq!(stats.rules[0].admitted, 1, "what was counted before is still there");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_announced_change_is_looked_at_at_once_even_while_retries_wait() {
    let running = start_from_flags().await;
    running.kernel.remove("eth0");
    running.kernel.refuse_attach("eth0");
    running.kernel.add("eth0", XdpMode::Native);
    sleep(Duration::from_secs(100)).await;
    let health = running.client.health().await.unwrap();
    assert!(health.problems[0].contains("already has an XDP program: other (id 7)"), "{health:?}");
    running.kernel.permit_attach("eth0");
    running.events.send(Event::LinksChanged).await.unwrap();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(running.kernel.attached(), ["eth0"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_is_fed_while_the_maps_are_readable_whatever_is_attached() {
    let two = |config: &mut Config| config.interfaces.push("eth1".into());
    let mut running = start(Some(Duration::from_secs(10)), two, |_| ConfigSource::Flags).await;
    let fed = async |running: &mut Running| {
        running.heard();
        sleep(Duration::from_secs(30)).await;
        running.heard().iter().filter(|told| *told == "Alive").count()
    };
    sleep(Duration::from_millis(1)).await;
    assert_eq!(fed(&mut running).await, 6, "every half of its ten seconds");
    running.kernel.refuse_read();
    assert_eq!(fed(&mut running).await, 0);
    running.kernel.permit_read();
    assert_eq!(fed(&mut running).await, 6);
    running.kernel.remove("eth0");
    assert_eq!(fed(&mut running).await, 6, "a restart brings no interface back");
    sleep(SUPERVISE_EVERY).await;
    assert!(running.heard().iter().any(|told| told.contains("NOT PROTECTED: eth0")));
    running.kernel.refuse_attach("eth0");
    running.kernel.add("eth0", XdpMode::Native);
    assert_eq!(fed(&mut running).await, 6, "a restart would end with the other's program still there, and no daemon");
    let health = running.client.health().await.unwrap();
    assert!(!health.healthy && health.problems[0].contains("other (id 7)"), "{health:?}");
    assert_eq!(running.kernel.attached(), ["eth1"]);
    let attached: Vec<_> = running.client.stats().await.unwrap().interfaces.iter().map(|of| of.attached).collect();
    assert_eq!(attached, [false, true]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_say_nothing_hold_neither_the_daemon_nor_the_next_client() {
    let running = start_from_flags().await;
    let path = running.directory.path().join("control.sock");
    let mut silent = Vec::new();
    // Exceeds the connection limit of the daemon's own user.
    for _ in 0..400 {
        silent.push(UnixStream::connect(&path).await.unwrap());
    }
    let asked = Instant::now();
    let answer = running.client.stats().await;
    let waited = asked.elapsed();
    assert!(answer.is_ok(), "{answer:?}");
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    let mut rest = Vec::new();
    let closed = timeout(HEADER_TIME_MAX, silent[0].read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "a silent connection is closed");
    let _still_there = UnixStream::connect(&path).await.unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn however_many_ask_at_once_all_are_answered() {
    let running = start_from_flags().await;
    let asking: Vec<_> = (0..200)
        .map(|_| {
            let client = running.client.clone();
            tokio::spawn(async move { client.stats().await })
        })
        .collect();
    for answer in asking {
        assert!(answer.await.unwrap().is_ok());
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_daemon_the_client_says_so_and_how_to_turn_off_what_is_still_enforcing() {
    let running = start_from_flags().await;
    let client = running.client.clone();
    running.events.send(Event::Stop).await.unwrap();
    running.task.await.unwrap().unwrap();
    let error = client.stats().await.unwrap_err();
    assert!(error.to_string().starts_with("no daemon answers at"), "{error}");
    let left = || {
        let (root, dir) = (PathBuf::from("/sys/fs/bpf/ratelimitd"), PathBuf::from("/sys/fs/bpf/ratelimitd/v1"));
        let links = vec![("eth0".to_owned(), dir.join("link-eth0"))];
        Orphans::Enforcing(Left { root, dir, layout: PinnedLayout::Own, links, alone: None, lapse: None })
    };
    let error = client.with_orphan_search(left).stats().await.unwrap_err();
    assert!(error.to_string().starts_with("STILL ENFORCING on eth0 without a daemon: no daemon answers at"), "{error}");
    let help = error.help().join("\n");
    let (pin, off) = ("/sys/fs/bpf/ratelimitd/v1/link-eth0", "sudo rm -r /sys/fs/bpf/ratelimitd");
    for words in [pin, "detach it: sudo ratelimitd detach", off] {
        assert!(help.contains(words), "no {words:?} in: {help}");
    }
}
