//! The daemon. One task owns the datapath, and everything else sends it commands.
//!
//! The crate knows the configuration, the plan, the datapath's trait and the read model. It must not know the command
//! line, a parser or the kernel. All work on the datapath runs on a blocking thread, one step at a time.

#![forbid(unsafe_code)]

use std::future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, Interval, MissedTickBehavior, sleep_until};

use ratelimit_control::server::{Door, Surface, serve};
use ratelimit_control::socket::ControlSocket;
use ratelimit_control::{Command, Commands, Handle};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Absent, Datapath, DatapathError};
use ratelimit_policy::config::Config;
use ratelimit_policy::desired::Policy;
use ratelimit_policy::safety::Around;
use ratelimit_report::snapshot::Snapshot;
use ratelimit_web::{Login, Tls};

mod access_log;
mod ban_watch;
mod begun;
mod breaker;
mod carry;
mod carry_out;
mod certificate;
mod closer;
mod ending;
mod enforced;
mod engine;
mod error;
mod events;
mod fleet;
mod freed;
mod grants;
mod hold;
mod import;
mod in_force;
mod journal;
mod kept;
mod lapse;
mod lift;
mod links;
mod list_bounds;
mod list_copies;
mod list_start;
mod list_watch;
mod listen;
mod moment;
pub mod netlink;
mod notify;
mod orders;
mod overrides;
mod owned;
mod past;
mod paths;
mod prefix_bans;
mod reload;
mod source;
mod spells;
mod start;
mod statistics;
mod store;
mod suggest;
mod suspended;
mod taken_up;
mod talkers;
mod totals;
mod trial;
mod unkept;
mod verdicts;
mod watched;
mod web;
mod would_ban;

use access_log::LOGS_EVERY;
use engine::{Engine, Host};
use events::Event;
use fleet::{Ask, Asks, STEPS_EVERY};
use moment::Moment;
use notify::{Notifier, State};
use start::Start;
use store::Store;

pub use certificate::certificate_trouble;
pub use error::DaemonError;
pub use list_start::{Fallbacks, list_objections, with_lists};
pub use source::{ConfigSource, Loaded};
pub use store::state_directory;
pub use web::{WebLink, web_link};

/// Interval at which attachments and counters are checked if nothing announces a change.
const SUPERVISE_EVERY: Duration = Duration::from_secs(2);
/// Minimum interval between full checks that link changes trigger. It bounds the work that a flapping link causes.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// Interval at which kernel events are read. The kernel does not announce them.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Outcome of a successful start.
#[derive(Clone, Copy, Debug)]
pub struct Limited<'a> {
    /// Interfaces that are attached.
    pub interfaces: &'a [String],
    /// Policy in force there: the configuration and its overrides.
    pub policy: &'a Policy,
}

/// Functions of the host that the daemon calls. The binary hands them in, because the daemon knows neither the kernel
/// nor words for people.
#[derive(Clone, Copy, Debug)]
pub struct HostFunctions {
    /// Looks up who must not be locked out.
    pub look: fn() -> Around,
    /// Lists what needs attention, in words for people.
    pub attention: fn(&Snapshot) -> Vec<String>,
    /// Gives up the privileges that only a start needs. Called once everything is attached.
    pub give_up_privileges: fn(),
    /// Returns freed memory to the system.
    pub give_back_memory: fn(),
}

/// Runs until a signal or `detach` ends the daemon. `open` creates the datapath once no other daemon can have the
/// socket. `attached` receives the policy and interfaces in force.
///
/// Call it on a current-thread runtime in a process without other threads. Only then do the capabilities that it
/// gives up after attaching disappear for the whole process.
pub async fn run<D: Datapath>(
    config: Config,
    source: ConfigSource,
    open: impl FnOnce(&Config) -> Result<D, DatapathError>,
    attached: impl FnOnce(Limited<'_>),
    host: HostFunctions,
) -> Result<(), DaemonError> {
    let (events, _tasks) = events::watch().map_err(|source| DaemonError::System { what: "watch signals", source })?;
    drive(config, source, open, attached, events, Surroundings::system(host)).await
}

/// Environment of the daemon.
struct Surroundings {
    notifier: Box<dyn Notifier>,
    /// Period of the service manager's watchdog, if it has one.
    watchdog: Option<Duration>,
    /// Called once everything is attached.
    attached: fn(),
    own_uid: u32,
    host: Host,
}

impl Surroundings {
    fn system(HostFunctions { look, attention, give_up_privileges, give_back_memory }: HostFunctions) -> Self {
        Self {
            notifier: Box::new(notify::Systemd),
            watchdog: sd_notify::watchdog_enabled(),
            attached: give_up_privileges,
            own_uid: nix::unistd::geteuid().as_raw(),
            host: Host { store: Store::of_host(), look, attention, give_back_memory },
        }
    }
}

async fn drive<D: Datapath>(
    config: Config,
    source: ConfigSource,
    open: impl FnOnce(&Config) -> Result<D, DatapathError>,
    attached: impl FnOnce(Limited<'_>),
    events: mpsc::Receiver<Event>,
    mut surroundings: Surroundings,
) -> Result<(), DaemonError> {
    let started = Instant::now();
    let socket = ControlSocket::bind(&config.socket)?;
    let listeners = Listeners::open(&config, &socket, source.absent()).await?;
    let host = surroundings.host.clone();
    let (store, is_insecure_meant) = (host.store.clone(), config.insecure_web);
    let start = Start::new(config, source, &host.store, Timestamp::now())?;
    let datapath = open(&start.config)?;
    // This must not run on a blocking thread. Nothing is served yet, and later threads inherit the reduced
    // privileges.
    let mut engine = Engine::start(datapath, start, host, Moment::now(started))?;
    reach(Point::Started);
    (surroundings.attached)();
    reach(Point::Confined);
    engine.open_logs(Moment::now(started));
    let policy = &engine.enforced.desired.policy;
    attached(Limited { interfaces: &engine.watched.links.attached_names(), policy });
    let tls = engine.certificate.tls();
    let login = web::login(&store, listeners.tell(tls.is_some()), &engine.certificate, is_insecure_meant);
    let feed = engine.journal.feed().clone();
    let (handle, commands) = Handle::channel(feed.clone());
    let (stop, stopped) = watch::channel(());
    let mut servers = listeners.serve(&handle, surroundings.own_uid, Web { login, tls }, &stopped);
    drop(handle);
    reach(Point::Serving);
    let ready = match engine.watched.links.problems(started.elapsed()).as_slice() {
        [] => "ratelimitd: ready\n".to_owned(),
        away => format!("ratelimitd: up, but NOT PROTECTED: {}\n", away.join("; ")),
    };
    // If the terminal is gone, nobody reads this, and the daemon goes on.
    let _gone = std::io::stderr().write_all(ready.as_bytes());
    reach(Point::Ready);
    let (asks, log_lines) = (engine.fleet.take_asks(), engine.access_logs.arrived());
    let mut owner = Owner { engine: Some(Box::new(engine)), asks, log_lines, started };
    // Ready even while an interface is awaited: a service that depends on this daemon must not wait for the
    // interface.
    surroundings.notifier.tell(State::Ready);
    let outcome = owner.serve(commands, events, &mut surroundings).await;
    surroundings.notifier.tell(State::Stopping);
    let ended = match outcome {
        Ok(()) => owner.on_datapath(Engine::shutdown).await.and_then(|ended| Ok(ended?)),
        Err(error) => Err(error),
    };
    feed.close();
    drop(stop);
    while servers.join_next().await.is_some() {}
    reach(Point::EndServed);
    drop(socket);
    ended
}

/// Web access over TCP.
struct Web {
    login: Option<Login>,
    tls: Option<Tls>,
}

struct Listeners {
    socket: UnixListener,
    tcp: Option<TcpListener>,
}

impl Listeners {
    async fn open(config: &Config, socket: &ControlSocket, absent: Absent) -> Result<Self, DaemonError> {
        let system = |source| DaemonError::System { what: "listen on the control socket", source };
        let socket = UnixListener::from_std(socket.listener().map_err(system)?).map_err(system)?;
        let tcp = match config.listen {
            Some(address) => Some(listen::listen(address, absent).await?),
            None => None,
        };
        Ok(Self { socket, tcp })
    }

    /// Logs where the metrics are, and returns the TCP address.
    fn tell(&self, is_encrypted: bool) -> Option<SocketAddr> {
        let address = self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())?;
        let scheme = web::scheme(is_encrypted);
        tracing::info!(%address, "metrics at {scheme}://{address}/metrics, health at {scheme}://{address}/healthz");
        Some(address)
    }

    fn serve(self, handle: &Handle, own_uid: u32, web: Web, stopped: &watch::Receiver<()>) -> JoinSet<()> {
        let mut servers = JoinSet::new();
        let door = |surface| Door::new(handle, surface, own_uid);
        servers.spawn(serve(self.socket, door(Surface::Socket), stopped.clone()));
        if let Some(tcp) = self.tcp {
            let door = match web.login {
                Some(login) => Door::with_login(handle, login, own_uid),
                None => door(Surface::Tcp),
            };
            servers.spawn(serve(tcp, door.encrypted(web.tls), stopped.clone()));
        }
        servers
    }
}

/// Task that owns the datapath. The engine is lent to one blocking thread at a time. If that thread panics, the
/// engine is lost.
struct Owner<D> {
    engine: Option<Box<Engine<D>>>,
    asks: Option<Asks>,
    /// Notified when lines of access logs are to be charged.
    log_lines: Arc<Notify>,
    started: Instant,
}

impl<D: Datapath> Owner<D> {
    async fn serve(
        &mut self,
        mut commands: Commands,
        mut events: mpsc::Receiver<Event>,
        surroundings: &mut Surroundings,
    ) -> Result<(), DaemonError> {
        let mut supervise = every(SUPERVISE_EVERY);
        let mut tell = every(TELL_EVERY);
        let mut steps: Option<Interval> = None;
        let mut logs: Option<Interval> = None;
        let mut asks = self.asks.take();
        let mut watchdog = surroundings.watchdog.map(|period| every(period / 2));
        let mut observe_at = Instant::now();
        let mut looked_at = observe_at;
        let log_lines = self.log_lines.clone();
        let mut logs_are_next = true;
        loop {
            // Signals have priority. Timers fire rarely, and steps only a while after the last ones were reported. So
            // commands always get a turn, and a flood of them delays nothing. Log lines and commands take turns.
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    None | Some(Event::Stop) => return Ok(()),
                    Some(Event::Reload) => self.reload(surroundings).await?,
                    Some(Event::LinksChanged) => {
                        let is_time = looked_at.elapsed() >= LOOK_PAUSE;
                        self.on_datapath(move |engine, moment| {
                            engine.hurry();
                            // This comes first, because an interface passes everything until it is attached.
                            engine.attach_at_once();
                            if is_time {
                                engine.look_around();
                                engine.supervise(moment);
                            }
                        })
                        .await?;
                        if is_time {
                            looked_at = Instant::now();
                        } else {
                            supervise.reset_after(LOOK_PAUSE);
                        }
                    }
                },
                _ = supervise.tick() => {
                    let seen = self.on_datapath(Engine::supervise).await?;
                    surroundings.notifier.tell(State::Line(&seen.line));
                }
                _ = tell.tick() => {
                    let (is_shared, has_logs) = self
                        .on_datapath(|engine, moment| {
                            engine.beat_and_tell(moment);
                            engine.tell_begun(moment);
                            engine.follow_logs(moment);
                            (engine.fleet.has_shared_limits(), engine.access_logs.are_followed())
                        })
                        .await?;
                    if is_shared != steps.is_some() {
                        steps = is_shared.then(|| every(STEPS_EVERY));
                    }
                    if has_logs != logs.is_some() {
                        logs = has_logs.then(|| every(LOGS_EVERY));
                    }
                }
                () = tick(&mut logs) => self.on_datapath(Engine::reconcile_logs).await?,
                () = tick(&mut steps) => {
                    self.on_datapath(Engine::tell_steps).await?;
                    if let Some(interval) = &mut steps {
                        interval.reset();
                    }
                }
                () = sleep_until(observe_at) => observe_at = self.observe().await?,
                () = tick(&mut watchdog) => {
                    let seen = self.on_datapath(Engine::supervise).await?;
                    if seen.is_readable {
                        surroundings.notifier.tell(State::Alive);
                    }
                }
                () = log_lines.notified(), if logs_are_next => {
                    self.on_datapath(Engine::reconcile_logs).await?;
                    logs_are_next = false;
                }
                Some(work) = next(&mut commands, &mut asks) => {
                    logs_are_next = true;
                    if self.carry_out(work, surroundings).await? {
                        return Ok(());
                    }
                }
                () = log_lines.notified(), if !logs_are_next => self.on_datapath(Engine::reconcile_logs).await?,
            }
        }
    }

    /// Carries out work for a client or for the fleet. Returns true if the daemon has nothing left to do.
    async fn carry_out(&mut self, work: Work, surroundings: &mut Surroundings) -> Result<bool, DaemonError> {
        match work {
            Work::Command(command) => match command.awaited().await {
                Some(command) => self.answer(command, surroundings).await,
                None => Ok(false),
            },
            Work::OfFleet(ask) => {
                self.on_datapath(|engine, moment| engine.carry_out_of_fleet(ask, moment)).await?;
                Ok(false)
            }
        }
    }

    /// Runs one round of observation. Returns when the next is due.
    async fn observe(&mut self) -> Result<Instant, DaemonError> {
        let began = Instant::now();
        let interval = self
            .on_datapath(move |engine, moment| {
                engine.observe(moment);
                engine.watched.observer.interval(began.elapsed())
            })
            .await?;
        Ok(Instant::now() + interval)
    }

    /// Carries out one command. Returns true if the daemon has nothing left to do.
    async fn answer(&mut self, command: Command, surroundings: &mut Surroundings) -> Result<bool, DaemonError> {
        let is_reload = matches!(command, Command::Reload(_));
        if is_reload {
            surroundings.notifier.tell(State::Reloading);
        }
        let carry = |engine: &mut Engine<D>, moment| {
            let answer = command.carry_out(engine, moment);
            // This uses the command's time, and precedes reports of packets on what the command changed.
            engine.tell_in_force(moment);
            (answer, engine.is_shut_down())
        };
        let (answer, is_over) = self.on_datapath(carry).await?;
        if is_reload {
            surroundings.notifier.tell(State::Ready);
        }
        answer.send();
        Ok(is_over)
    }

    async fn reload(&mut self, surroundings: &mut Surroundings) -> Result<(), DaemonError> {
        surroundings.notifier.tell(State::Reloading);
        self.on_datapath(Engine::reload_unasked).await?;
        surroundings.notifier.tell(State::Ready);
        Ok(())
    }

    async fn on_datapath<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Engine<D>, Moment) -> T + Send + 'static,
    ) -> Result<T, DaemonError> {
        let moment = Moment::now(self.started);
        let mut engine = self.engine.take().ok_or(DaemonError::Panicked)?;
        let lent = spawn_blocking(move || {
            let outcome = work(&mut engine, moment);
            (engine, outcome)
        });
        let (engine, outcome) = lent.await.map_err(|_| DaemonError::Panicked)?;
        self.engine = Some(engine);
        Ok(outcome)
    }
}

/// Work for a client or for the fleet.
enum Work {
    Command(Command),
    OfFleet(Ask),
}

/// Returns the next command or fleet request. Neither kind starves the other. None once both channels are closed.
async fn next(commands: &mut Commands, asks: &mut Option<Asks>) -> Option<Work> {
    let ask = async {
        match asks {
            Some(asks) => asks.recv().await,
            None => None,
        }
    };
    tokio::select! {
        Some(command) = commands.recv() => Some(Work::Command(command)),
        Some(ask) = ask => Some(Work::OfFleet(ask)),
        else => None,
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period.max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => future::pending().await,
    }
}

#[cfg(test)]
mod tests;
