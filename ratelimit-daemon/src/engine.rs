//! What the daemon does with the datapath, one blocking step at a time. Times come in as a [`Moment`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use ratelimit_common::layout::{BANS_CAPACITY, Fault};
use ratelimit_common::time::Nanos;
use tokio::time::Instant;

use super::ban_watch::BanWatch;
use super::breaker::Breaker;
use super::grants::Grants;
use super::hold::Hold;
use super::journal::{Budget, Done, Event};
use super::links::Links;
use super::list_watch::ListWatch;
use super::source::ConfigSource;
use super::start::{Start, Unfinished};
use super::store::Store;
use super::trial::Pending;
use super::would_ban::WouldBans;
use ratelimit_control::proto::{DetachReport, Health, Problem, ProblemKind};
use ratelimit_datapath::{Absent, Datapath, DatapathError, InterfaceReading, Reading, Tallies};
use ratelimit_policy::config::lists::KnownLists;
use ratelimit_policy::config::{Config, OnExit};
use ratelimit_policy::desired::{DesiredState, Policy};
use ratelimit_policy::safety::Around;
use ratelimit_report::observe::Observer;
use ratelimit_report::snapshot::{
    Census, Clocks, ConfigState, Parts, SCHEMA, Sample, Samples, Snapshot, StaleList, Standing, TOP_DEFAULT,
    TalkerWatch, TopSource, TopTalker, Traffic, Volume,
};

/// Gateways and resolvers change without an announcement that is listened to.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(30);

/// So often it is said who dominates a rule; the statistics go on saying it.
const DOMINANT_SAID_MAX: usize = 64;

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

/// The host that the daemon runs on.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// What commands have changed.
    pub(super) store: Store,
    /// Who is around.
    pub(super) look: fn() -> Around,
}

/// The datapath, and what it is held to.
#[derive(Debug)]
pub(super) struct Engine<D> {
    pub(super) datapath: D,
    pub(super) host: Host,
    pub(super) config: Config,
    /// The configuration with what commands, safety, holds and the breaker make of it: what was applied last.
    pub(super) desired: DesiredState,
    /// The datapath may hold something else than `desired`.
    pub(super) must_apply: bool,
    pub(super) source: ConfigSource,
    pub(super) grants: Grants,
    pub(super) hold: Option<Hold>,
    pub(super) breaker: Breaker,
    pub(super) lists: ListWatch,
    talker_watch: TalkerWatch,
    /// What it came to last.
    dominant: Vec<TopTalker>,
    /// Rules and sources of which it was said.
    dominant_said: BTreeSet<(String, String)>,
    pub(super) observer: Observer,
    /// Bans that there was no room for, when it was looked last.
    bans_refused: u64,
    /// Of the log lines that nobody has asked for.
    pub(super) budget: Budget,
    /// From the first look on.
    pub(super) ban_watch: Option<BanWatch>,
    pub(super) would_bans: WouldBans,
    /// What earlier runs had dropped and would have dropped, where counters could be read.
    done_before: Option<Volume>,
    /// The trial that runs.
    pub(super) pending: Option<Pending>,
    /// The text that was tried last and not confirmed.
    pub(super) refused: Option<String>,
    pub(super) links: Links,
    /// Since the daemon started.
    looked_around_at: Duration,
    pub(super) last_reload: ConfigState,
    samples: Samples,
    /// The newest snapshot, and when its reading began.
    pub(super) newest: Option<(Instant, Arc<Snapshot>)>,
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
    pub(super) fn start(datapath: D, start: Start, host: Host, moment: Moment) -> Result<Self, DatapathError> {
        let Start { config, source, unfinished, refused, refused_lists, rolled_back } = start;
        let last_reload =
            ConfigState { last_reload_successful: true, last_reload_success_at: moment.wall, error: None, rolled_back };
        let mut engine = Self {
            datapath,
            host,
            desired: DesiredState::from(&config),
            must_apply: true,
            config,
            source,
            grants: Grants::default(),
            hold: None,
            breaker: Breaker::default(),
            lists: ListWatch::default(),
            talker_watch: TalkerWatch::default(),
            dominant: Vec::new(),
            dominant_said: BTreeSet::new(),
            observer: Observer::default(),
            bans_refused: 0,
            budget: Budget::full(moment.uptime),
            ban_watch: None,
            would_bans: WouldBans::default(),
            done_before: None,
            pending: None,
            refused,
            links: Links::default(),
            looked_around_at: moment.uptime,
            last_reload,
            samples: Samples::default(),
            newest: None,
            is_readable: true,
            is_shut_down: false,
        };
        let started = engine.recall(unfinished, refused_lists, moment).and_then(|is_on_trial| {
            // What an earlier run's windows have refused is known before the first packet that counts.
            engine.observe(moment);
            engine.attach_all(is_on_trial, moment)
        });
        if let Err(error) = started {
            if let Err(second) = engine.datapath.abandon() {
                tracing::error!("clean up after the failed start: {:#}", anyhow::Error::from(second));
            }
            return Err(error);
        }
        engine.done_before = engine.datapath.read().ok().map(|reading| volume(&reading));
        Ok(engine)
    }

    /// What earlier runs were told; true if packets are under a trial, which applying anything would end.
    fn recall(
        &mut self,
        unfinished: Option<Unfinished>,
        refused_lists: Option<KnownLists>,
        moment: Moment,
    ) -> Result<bool, DatapathError> {
        let clocks = Clocks { now: self.datapath.now()?, wall: moment.wall };
        self.look_around();
        self.recall_grants(clocks);
        self.recall_hold();
        match refused_lists {
            Some(refused) => self.lists.hold_back(refused),
            None => self.lists.taken(&self.config.list_files, moment),
        }
        let is_on_trial = match unfinished {
            Some(unfinished) => self.resume(unfinished, moment)?,
            None => false,
        };
        self.desired.policy = self.policy_of(&self.config, clocks.now);
        Ok(is_on_trial)
    }

    /// No packet meets a program without a policy: either ours is applied first, or an earlier run's is in force. That one
    /// is replaced last, and the interfaces under it are taken over after the others, so that what fails changes neither.
    /// A service does not fail for an interface that is not there: the next looks attach it.
    fn attach_all(&mut self, is_on_trial: bool, moment: Moment) -> Result<(), DatapathError> {
        let absent = self.source.absent();
        let (kept, alone) = (self.datapath.kept(), self.datapath.alone_for());
        if kept.is_empty() && !is_on_trial {
            self.datapath.apply(&self.desired.policy)?;
        }
        let (taken_over, anew): (Vec<_>, Vec<_>) =
            self.desired.interfaces.iter().partition(|interface| kept.contains(interface));
        for interface in anew.into_iter().chain(taken_over) {
            match (self.datapath.attach(interface), absent) {
                (Ok(mode), Absent::Awaited | Absent::Refused) => {
                    self.links.attached(interface, mode);
                }
                (Err(error @ DatapathError::NoSuchInterface { .. }), Absent::Awaited) => {
                    self.links.awaited(interface, moment.uptime, error.to_string());
                }
                (Err(error), Absent::Awaited | Absent::Refused) => return Err(error),
            }
        }
        if !kept.is_empty() && !is_on_trial {
            self.datapath.apply(&self.desired.policy)?;
        }
        self.must_apply = false;
        let left = self.datapath.kept();
        let taken_over: Vec<String> = kept.into_iter().filter(|name| !left.contains(name)).collect();
        if !taken_over.is_empty() {
            Event::TakeOver { interfaces: taken_over, alone }.log();
        }
        self.let_go_of_others();
        Ok(())
    }

    /// An earlier run may have left more interfaces attached than are wanted now. One that cannot be let go is no reason to fail:
    /// our policy is in force there too. One that is wanted and not there is, it may be, in another network namespace: it stays.
    fn let_go_of_others(&mut self) {
        let is_other = |name: &String| !self.desired.interfaces.contains(name);
        for interface in self.datapath.kept().into_iter().filter(is_other) {
            match self.datapath.detach(&interface) {
                Ok(()) => tracing::info!(interface, "removed the filter of an earlier run from {interface}"),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(interface, "the filter of an earlier run stays on {interface}: {error:#}");
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
        self.tidy(&reading, moment);
        for interface in &self.desired.interfaces {
            let read = reading.interfaces.iter().find(|read| read.name == *interface);
            if let Some(mode) = read.and_then(|read| read.attached) {
                self.links.attached(interface, mode);
            } else if self.links.away(interface, moment.uptime) {
                match self.datapath.attach(interface) {
                    Ok(mode) => {
                        self.links.attached(interface, mode);
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
        let line = format!("{}{}", self.standing_words(), line(&reading, &problems));
        Seen { problems, line, is_readable: true }
    }

    /// What has to be done as time passes.
    fn tidy(&mut self, reading: &Reading, moment: Moment) {
        self.notice_trial();
        self.watch_bans(reading, moment);
        if moment.uptime.saturating_sub(self.looked_around_at) >= LOOK_AROUND_EVERY {
            self.looked_around_at = moment.uptime;
            self.look_around();
            self.tidy_bans(reading);
        }
        let clocks = Clocks { now: reading.now, wall: moment.wall };
        self.expire_grants(clocks);
        self.watch_breaker(reading, moment);
        self.watch_lists(reading.now, moment);
        self.watch_talkers(reading, moment);
        let applied = if self.must_apply { self.put_in_force(reading.now) } else { Ok(()) };
        if let Err(error) = applied {
            tracing::error!("apply the policy: {:#}", anyhow::Error::from(error));
        }
    }

    /// Notices, once a minute, a source that most of what a rule counts comes from.
    fn watch_talkers(&mut self, reading: &Reading, moment: Moment) {
        let policy = &self.desired.policy;
        let Some(mut look) = self.talker_watch.look(policy, reading, moment.uptime) else { return };
        if look.is_busy()
            && let Err(error) = self.datapath.visit_sources(&mut |window| look.visit(policy, &window))
        {
            tracing::warn!("find the top sources: {:#}", anyhow::Error::from(error));
            return;
        }
        self.dominant = self.talker_watch.conclude(policy, &look);
        for of in &self.dominant {
            let key = (of.rule.clone(), of.source.clone());
            if self.dominant_said.len() < DOMINANT_SAID_MAX && self.dominant_said.insert(key) {
                tracing::warn!(rule = of.rule, "RULE {}: {}", of.rule, of.words());
            }
        }
    }

    /// Makes room for new bans, and says so where there was none.
    fn tidy_bans(&mut self, reading: &Reading) {
        let inserts = [Fault::BansV4Insert, Fault::BansV6Insert, Fault::BansV6WideInsert];
        let refused = reading.faults.iter().filter(|(fault, _)| inserts.contains(fault)).map(|(_, count)| count).sum();
        let more = u64::saturating_sub(refused, std::mem::replace(&mut self.bans_refused, refused));
        if more != 0 {
            tracing::warn!(
                "NO ROOM FOR MORE BANS: {more} times a source was refused and not banned; there is room for {BANS_CAPACITY} of \
                 each family; `ratelimitd list` shows them, and shorter times in `block_for` and `forget_after` make room"
            );
        }
        match self.datapath.tidy_bans() {
            Ok(0) => {}
            Ok(removed) => tracing::debug!("{removed} bans are forgotten"),
            Err(error) => tracing::error!("make room for bans: {:#}", anyhow::Error::from(error)),
        }
    }

    /// What is out of the ordinary, before the status line.
    fn standing_words(&self) -> String {
        let mut words = String::new();
        if let Some(hold) = &self.hold {
            words = format!("{}; ", hold.words());
        }
        let tripped: Vec<&str> = self.breaker.tripped().collect();
        if !tripped.is_empty() {
            words += &format!("RULE {} FELL BACK TO DRY RUN; ", tripped.join(", "));
        }
        if self.pending.is_some() {
            words += "a file is on trial; ";
        }
        for (path, _) in self.lists.stale() {
            words += &format!("list file {} IS NOT FOLLOWED; ", path.display());
        }
        words
    }

    /// Both clocks now.
    pub(super) fn clocks(&mut self, moment: Moment) -> Result<Clocks, Problem> {
        let now = self.datapath.now().map_err(Problem::datapath)?;
        Ok(Clocks { now, wall: moment.wall })
    }

    /// What packets are to be judged by under a configuration.
    pub(super) fn policy_of(&self, config: &Config, now: Nanos) -> Policy {
        let mut policy = config.policy.clone();
        policy.access = self.access_of(config, now);
        self.hold_back(&mut policy);
        policy
    }

    /// Applies what has changed other than by a configuration. While a file is on trial, that is who is allowed and
    /// denied: in the file, and in what packets go back to without this process.
    pub(super) fn put_in_force(&mut self, now: Nanos) -> Result<(), DatapathError> {
        let policy = self.policy_of(&self.config, now);
        if self.must_apply || self.pending.is_some() || policy != self.desired.policy {
            match &self.pending {
                None => self.datapath.apply(&policy)?,
                Some(pending) => self.datapath.apply_access(&policy, &self.policy_of(&pending.before, now))?,
            }
            self.desired.policy = policy;
            self.must_apply = false;
            self.newest = None;
        }
        Ok(())
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
        let mut reading = self.datapath.read()?;
        let policy = &self.desired.policy;
        add_awaited(&mut reading, &self.links, policy.rules.len());
        let mut census = Census::new(policy, reading.now, TOP_DEFAULT);
        self.datapath.visit_sources(&mut |source| census.visit(&source))?;
        let mut tracked = census.finish();
        let bans = self.datapath.bans()?;
        let mut top = Vec::new();
        let leaders = std::mem::take(&mut tracked.leaders);
        let windows = self.datapath.sources(&leaders.iter().map(|source| source.addr()).collect::<Vec<_>>())?;
        for (source, windows) in leaders.into_iter().zip(windows) {
            top.extend(TopSource::of(policy, reading.now, source, &windows, &bans));
        }
        let snapshot = Snapshot::build(Parts {
            reading: &reading,
            tracked,
            top: TopSource::rank(top),
            policy,
            samples: &self.samples,
            uptime: moment.uptime,
            version: env!("CARGO_PKG_VERSION"),
            config: self.last_reload.clone(),
        });
        let left = |pending: &Pending| pending.until.0.saturating_sub(reading.now.0);
        Ok(snapshot.with_standing(Standing {
            banned: bans.len() as u64,
            away: self.links.away_names().map(|(name, why)| (name.clone(), why.clone())).collect(),
            hold: self.hold.as_ref().map(Hold::report),
            fallen_back: self.breaker.tripped().map(str::to_owned).collect(),
            confirm_within_ns: self.pending.as_ref().map(left),
            dominant: self.dominant.clone(),
            would_ban: self.would_bans.counts(&self.desired.policy, reading.now),
            stale_lists: self.lists.stale().map(|(path, why)| StaleList::new(path, why)).collect(),
        }))
    }

    /// Takes the filter off one interface, or off all. With the last one gone the daemon has nothing left to do.
    pub(super) fn detach(&mut self, interface: Option<&str>, moment: Moment) -> Result<DetachReport, Problem> {
        let Some(interface) = interface else { return self.detach_all(moment) };
        if !self.desired.interfaces.iter().any(|known| known == interface) {
            let ours = self.desired.interfaces.join(", ");
            let why = format!("this daemon does not protect {interface}; it protects {ours}");
            return Err(Problem::new(ProblemKind::NotFound, why));
        }
        if self.desired.interfaces.len() == 1 {
            return self.detach_all(moment);
        }
        self.datapath.detach(interface).map_err(Problem::datapath)?;
        self.desired.interfaces.retain(|known| known != interface);
        self.links.forget(interface);
        self.newest = None;
        tracing::info!(interface, "detached from {interface} by command; a reload attaches it again");
        Ok(DetachReport { schema: SCHEMA, detached: vec![interface.to_owned()], stopping: false })
    }

    fn detach_all(&mut self, moment: Moment) -> Result<DetachReport, Problem> {
        self.end(OnExit::Detach, moment).map_err(Problem::datapath)?;
        let detached = std::mem::take(&mut self.desired.interfaces);
        Ok(DetachReport { schema: SCHEMA, detached, stopping: true })
    }

    /// Ends as the configuration says, unless everything is detached already.
    pub(super) fn shutdown(&mut self, moment: Moment) -> Result<(), DatapathError> {
        if self.is_shut_down {
            return Ok(());
        }
        self.end(self.config.on_exit, moment)
    }

    fn end(&mut self, left: OnExit, moment: Moment) -> Result<(), DatapathError> {
        let now = self.datapath.read().ok().map(|reading| volume(&reading));
        let done = now.zip(self.done_before).map(|(now, before)| Done {
            dropped: now.dropped.saturating_sub(before.dropped),
            would_drop: now.would_drop.saturating_sub(before.would_drop),
            within: moment.uptime,
        });
        self.datapath.shutdown(left)?;
        self.is_shut_down = true;
        let interfaces = self.links.attached_names();
        if !interfaces.is_empty() {
            Event::Detach { interfaces, left, done }.log();
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

/// The interfaces that were never there since the start: the datapath does not know of them.
fn add_awaited(reading: &mut Reading, links: &Links, rules: usize) {
    for (name, _) in links.away_names() {
        if !reading.interfaces.iter().any(|read| read.name == *name) {
            let rules = vec![Tallies::default(); rules];
            let unruled = Tallies::default();
            reading.interfaces.push(InterfaceReading { name: name.clone(), attached: None, unruled, rules });
        }
    }
    reading.interfaces.sort_by(|a, b| a.name.cmp(&b.name));
}

/// How things are, as `systemctl status` shows it.
fn line(reading: &Reading, problems: &[String]) -> String {
    let attached = |read: &InterfaceReading| read.attached.map(|mode| format!("{} ({})", read.name, mode.label()));
    let attached: Vec<_> = reading.interfaces.iter().filter_map(attached).collect();
    let mut parts = Vec::new();
    if !problems.is_empty() {
        parts.push(format!("NOT PROTECTED: {}", problems.join("; ")));
    }
    if !attached.is_empty() {
        let sum = volume(reading);
        parts.push(format!(
            "attached to {}; packets passed {}, dropped {}, would drop {}",
            attached.join(", "),
            sum.passed,
            sum.dropped,
            sum.would_drop
        ));
    }
    parts.join("; ")
}

/// Packets of all interfaces, since their counters began.
fn volume(reading: &Reading) -> Volume {
    let all = reading.interfaces.iter().map(|read| Traffic::on(read).packets);
    all.fold(Volume::default(), |sum, of| Volume {
        received: sum.received.saturating_add(of.received),
        passed: sum.passed.saturating_add(of.passed),
        dropped: sum.dropped.saturating_add(of.dropped),
        would_drop: sum.would_drop.saturating_add(of.would_drop),
    })
}
