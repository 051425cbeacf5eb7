//! What the daemon does with the datapath, one blocking step at a time. Times come in as a [`Moment`].

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::ConfigSource;
use super::carry_out::carry_out;
use super::links::Links;
use crate::config::{Config, OnExit};
use crate::control::proto::{DetachReport, Health, Problem, ProblemKind, ReloadReport};
use crate::datapath::{Datapath, DatapathError, InterfaceReading, Reading};
use crate::desired::DesiredState;
use crate::plan::{changes, diff, restart_needed};
use crate::snapshot::{
    Census, CheckReport, ConfigState, Parts, SCHEMA, Sample, Samples, Snapshot, TOP_DEFAULT, TopSource, Traffic, Volume,
};

/// What became of a reload.
pub(super) type Reloaded = Result<ReloadReport, Problem>;

/// When a step is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// By the runtime's clock.
    pub(super) at: Instant,
    /// Since the daemon started.
    pub(super) uptime: Duration,
    /// By the wall clock.
    pub(super) wall: Timestamp,
}

/// The datapath, and what it is held to.
#[derive(Debug)]
pub(super) struct Engine<D> {
    datapath: D,
    config: Config,
    desired: DesiredState,
    source: ConfigSource,
    links: Links,
    last_reload: ConfigState,
    samples: Samples,
    /// The newest snapshot, and when its reading began.
    newest: Option<(Instant, Arc<Snapshot>)>,
    is_readable: bool,
    is_shut_down: bool,
}

/// What one look at the datapath has found.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// What is not as it should be.
    pub(super) problems: Vec<String>,
    /// How things are.
    pub(super) line: String,
    /// The maps can be read. Where they can, a restart would mend nothing: what is not attached is tried again all the time, and a
    /// start that meets another's program ends for good.
    pub(super) is_readable: bool,
}

impl Seen {
    /// The same for the API.
    pub(super) fn health(self) -> Health {
        Health { schema: SCHEMA, healthy: self.problems.is_empty(), problems: self.problems }
    }
}

impl<D: Datapath> Engine<D> {
    /// Attaches to every interface and puts the policy in force, or leaves everything as it was.
    pub(super) fn start(
        datapath: D,
        config: Config,
        source: ConfigSource,
        moment: Moment,
    ) -> Result<Self, DatapathError> {
        let last_reload =
            ConfigState { last_reload_successful: true, last_reload_success_at: moment.wall, error: None };
        let mut engine = Self {
            datapath,
            desired: DesiredState::from(&config),
            config,
            source,
            links: Links::default(),
            last_reload,
            samples: Samples::default(),
            newest: None,
            is_readable: true,
            is_shut_down: false,
        };
        if let Err(error) = engine.attach_all() {
            if let Err(second) = engine.datapath.abandon() {
                tracing::error!("after a failed start: {:#}", anyhow::Error::from(second));
            }
            return Err(error);
        }
        Ok(engine)
    }

    /// No packet meets a program without a policy: either ours is applied first, or an earlier run's is in force. That one
    /// is replaced last, and the interfaces under it are taken over after the others, so that what fails changes neither.
    fn attach_all(&mut self) -> Result<(), DatapathError> {
        let kept = self.datapath.kept();
        if kept.is_empty() {
            self.datapath.apply(&self.desired.policy)?;
        }
        let (taken_over, anew): (Vec<_>, Vec<_>) =
            self.desired.interfaces.iter().partition(|interface| kept.contains(interface));
        for interface in anew.into_iter().chain(taken_over) {
            let mode = self.datapath.attach(interface)?;
            self.links.attached(interface, mode);
        }
        if !kept.is_empty() {
            self.datapath.apply(&self.desired.policy)?;
        }
        self.let_go_of_others();
        Ok(())
    }

    /// An earlier run may have left more interfaces attached than are wanted now. One that cannot be let go is no reason to fail:
    /// our policy is in force there too.
    fn let_go_of_others(&mut self) {
        for interface in self.datapath.kept() {
            match self.datapath.detach(&interface) {
                Ok(()) => tracing::info!(interface, "detached from {interface}, which an earlier run protected"),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(interface, "{interface}, which an earlier run protected, stays attached: {error:#}");
                }
            }
        }
    }

    /// Looks whether everything is attached and readable, and attaches again what is back.
    pub(super) fn supervise(&mut self, moment: Moment) -> Seen {
        let reading = match self.read() {
            Ok(reading) => reading,
            Err(problem) => return Seen { line: problem.clone(), problems: vec![problem], is_readable: false },
        };
        self.samples.push(Sample::of(&reading, moment.uptime));
        for interface in &self.desired.interfaces {
            let read = reading.interfaces.iter().find(|read| read.name == *interface);
            if let Some(mode) = read.and_then(|read| read.attached) {
                self.links.attached(interface, mode);
            } else if self.links.away(interface, moment.uptime) {
                match self.datapath.attach(interface) {
                    Ok(mode) => {
                        self.links.attached(interface, mode);
                        tracing::info!(interface, "{interface} is back and protected again");
                    }
                    Err(error) => {
                        let is_absent = matches!(error, DatapathError::NoSuchInterface { .. });
                        let reason = format!("{:#}", anyhow::Error::from(error));
                        self.links.failed(interface, moment.uptime, reason, is_absent);
                    }
                }
            }
        }
        let problems = self.links.problems(moment.uptime);
        let line = line(&reading, &problems);
        Seen { problems, line, is_readable: true }
    }

    /// The next look tries at once to attach what is away.
    pub(super) fn hurry(&mut self) {
        self.links.hurry();
    }

    /// Statistics from a reading that began after `since`, so that however many wait, one reading answers them.
    pub(super) fn stats(&mut self, since: Instant, moment: Moment) -> Result<Arc<Snapshot>, Problem> {
        if let Some((began, snapshot)) = &self.newest
            && *began > since
        {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = Arc::new(self.snapshot(moment).map_err(Problem::datapath)?);
        self.newest = Some((moment.at, Arc::clone(&snapshot)));
        Ok(snapshot)
    }

    fn snapshot(&mut self, moment: Moment) -> Result<Snapshot, DatapathError> {
        let reading = self.datapath.read()?;
        let policy = &self.desired.policy;
        let mut census = Census::new(policy, reading.now, TOP_DEFAULT);
        self.datapath.visit_sources(&mut |source| census.visit(&source))?;
        let mut tracked = census.finish();
        let mut top = Vec::new();
        for source in std::mem::take(&mut tracked.leaders) {
            let windows = self.datapath.source(source.addr())?;
            top.extend(TopSource::of(policy, reading.now, source, &windows));
        }
        Ok(Snapshot::build(Parts {
            reading: &reading,
            tracked,
            top: TopSource::rank(top),
            policy,
            samples: &self.samples,
            uptime: moment.uptime,
            version: env!("CARGO_PKG_VERSION"),
            config: self.last_reload.clone(),
        }))
    }

    /// How one source stands. An IPv4 address may come in its IPv6 form, which no packet has.
    pub(super) fn check(&mut self, address: IpAddr) -> Result<CheckReport, Problem> {
        let address = address.to_canonical();
        let now = self.datapath.read().map_err(Problem::datapath)?.now;
        let windows = self.datapath.source(address).map_err(Problem::datapath)?;
        Ok(CheckReport::build(&self.desired.policy, now, address, &windows))
    }

    /// Reads the file anew and carries it out, whole or not at all.
    pub(super) fn reload(&mut self, moment: Moment) -> Reloaded {
        let ConfigSource::File { path, load } = &self.source else {
            let why =
                "there is nothing to reload: this daemon was started from flags; use `ratelimitd run --config FILE`";
            tracing::warn!("{why}");
            return Err(Problem::new(ProblemKind::Config, why));
        };
        let path = path.display().to_string();
        let loaded = load().map_err(|error| Problem::new(ProblemKind::Config, format!("{error:#}")));
        let outcome = loaded.and_then(|config| self.change_to(config, &path));
        match &outcome {
            Ok(changes) => {
                tracing::info!("reloaded {path}: {}", if changes.is_empty() { "no change" } else { "carried out" });
                self.last_reload =
                    ConfigState { last_reload_successful: true, last_reload_success_at: moment.wall, error: None };
            }
            Err(problem) => {
                // It names the file itself.
                tracing::error!("reload: {problem}; everything goes on as it was");
                self.last_reload.last_reload_successful = false;
                self.last_reload.error = Some(problem.message.clone());
            }
        }
        outcome.map(|changes| ReloadReport { schema: SCHEMA, changes })
    }

    fn change_to(&mut self, config: Config, path: &str) -> Result<Vec<String>, Problem> {
        let fixed = restart_needed(&self.config, &config);
        if !fixed.is_empty() {
            let why = format!("{path} changes {}, which needs a restart; nothing was changed", fixed.join(" and "));
            return Err(Problem::new(ProblemKind::Config, why));
        }
        let desired = DesiredState::from(&config);
        let plan = diff(&self.desired, &desired);
        let changes = changes(&self.desired, &desired);
        let attached = carry_out(&mut self.datapath, &self.desired.policy, &plan).map_err(|error| {
            let problem = Problem::datapath(error);
            Problem { message: format!("{path}: {}", problem.message), ..problem }
        })?;
        for change in &changes {
            tracing::info!("reload: {change}");
        }
        for interface in &plan.detach {
            self.links.forget(interface);
        }
        for (interface, mode) in attached {
            self.links.attached(&interface, mode);
        }
        self.desired = desired;
        self.config = config;
        self.newest = None;
        Ok(changes)
    }

    /// Takes the filter off one interface, or off all. With the last one gone the daemon has nothing left to do.
    pub(super) fn detach(&mut self, interface: Option<&str>) -> Result<DetachReport, Problem> {
        let Some(interface) = interface else { return self.detach_all() };
        if !self.desired.interfaces.iter().any(|known| known == interface) {
            let ours = self.desired.interfaces.join(", ");
            let why = format!("this daemon does not protect {interface}; it protects {ours}");
            return Err(Problem::new(ProblemKind::NotFound, why));
        }
        if self.desired.interfaces.len() == 1 {
            return self.detach_all();
        }
        self.datapath.detach(interface).map_err(Problem::datapath)?;
        self.desired.interfaces.retain(|known| known != interface);
        self.links.forget(interface);
        self.newest = None;
        tracing::info!(interface, "detached from {interface}, as told; a reload attaches it again");
        Ok(DetachReport { schema: SCHEMA, detached: vec![interface.to_owned()], stopping: false })
    }

    fn detach_all(&mut self) -> Result<DetachReport, Problem> {
        self.end(OnExit::Detach).map_err(Problem::datapath)?;
        let detached = std::mem::take(&mut self.desired.interfaces);
        tracing::info!("detached from {} and stopping, as told", detached.join(", "));
        Ok(DetachReport { schema: SCHEMA, detached, stopping: true })
    }

    /// Ends as the configuration says, unless everything is detached already.
    pub(super) fn shutdown(&mut self) -> Result<(), DatapathError> {
        if self.is_shut_down {
            return Ok(());
        }
        self.end(self.config.on_exit)
    }

    fn end(&mut self, on_exit: OnExit) -> Result<(), DatapathError> {
        self.datapath.shutdown(on_exit)?;
        self.is_shut_down = true;
        match on_exit {
            OnExit::Detach => {}
            OnExit::Keep => tracing::info!(
                "{} stays limited without the daemon; `ratelimitd detach` takes the filter off",
                self.desired.interfaces.join(", ")
            ),
        }
        Ok(())
    }

    /// Reads, and says loudly when that begins or ceases to fail.
    fn read(&mut self) -> Result<Reading, String> {
        let was_readable = self.is_readable;
        let reading = self.datapath.read();
        self.is_readable = reading.is_ok();
        match (reading, was_readable) {
            (Ok(reading), true) => Ok(reading),
            (Ok(reading), false) => {
                tracing::info!("the maps can be read again");
                Ok(reading)
            }
            (Err(error), _) => {
                let problem = format!("the maps cannot be read: {:#}", anyhow::Error::from(error));
                if was_readable {
                    tracing::error!("{problem}");
                }
                Err(problem)
            }
        }
    }
}

/// How things are, as `systemctl status` shows it.
fn line(reading: &Reading, problems: &[String]) -> String {
    if !problems.is_empty() {
        return format!("NOT PROTECTED: {}", problems.join("; "));
    }
    let all = reading.interfaces.iter().map(|read| Traffic::on(read).packets);
    let sum = all.fold(Volume::default(), |sum, of| Volume {
        received: sum.received.saturating_add(of.received),
        passed: sum.passed.saturating_add(of.passed),
        dropped: sum.dropped.saturating_add(of.dropped),
        would_drop: sum.would_drop.saturating_add(of.would_drop),
    });
    let attached = |read: &InterfaceReading| read.attached.map(|mode| format!("{} ({})", read.name, mode.label()));
    let attached: Vec<_> = reading.interfaces.iter().filter_map(attached).collect();
    format!(
        "attached to {}; packets passed {}, dropped {}, would drop {}",
        attached.join(", "),
        sum.passed,
        sum.dropped,
        sum.would_drop
    )
}
