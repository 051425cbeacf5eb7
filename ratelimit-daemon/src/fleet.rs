//! This host's membership in a fleet. Follows `[fleet]` and the shared limits, tells the fleet's task what packets
//! and commands did, and carries out what the task asks.
//!
//! Nothing here waits for the store. Messages to the task are sent without waiting, and the task's requests are
//! handled in small batches between commands.

mod acts;
mod hosts;
mod kept;
mod limits;
mod recent;
mod seen;
mod way;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use ratelimit_common::layout::Fault;
use ratelimit_common::time::Nanos;
use ratelimit_crash::{Point, reach};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(super) use self::acts::Reach;
use self::kept::Kept;
use self::limits::SharedLimits;
use self::recent::Recent;
use self::seen::Told;
use self::way::Way;
pub(super) use self::way::{Ask, Asks};
use super::engine::Engine;
use super::moment::Moment;
use super::store::Store;
use ratelimit_datapath::{Datapath, DatapathError, Reading};
use ratelimit_fleet::core::Settings;
use ratelimit_fleet::names::{HostId, Names};
use ratelimit_fleet::run::{Begin, Fleet, Status};
use ratelimit_fleet::store::access;
use ratelimit_fleet::tracked::Subject;
use ratelimit_policy::config::fleet as config;
use ratelimit_policy::desired::Policy;
use ratelimit_policy::secret;

/// Interval at which the datapath is polled for counts that crossed a step. The kernel does not announce these, and
/// other hosts must learn of them within [`ratelimit_policy::fleet::DELAY`].
pub(super) const STEPS_EVERY: Duration = Duration::from_millis(20);
/// Maximum number of batches of steps taken in one poll. // 16 384, a fifth of a second at a million packets a second
const PARTS_MAX: usize = 2;
/// Delay before another attempt to join after a failure.
const BEGINS_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// This host's membership in fleets.
#[derive(Debug)]
pub(super) struct Ties {
    way: mpsc::Sender<Ask>,
    asks: Option<Asks>,
    joined: Option<Joined>,
    failed: Option<Failed>,
    /// Number of fleets that this daemon has joined so far. Requests of an earlier fleet are ignored.
    generation: u64,
    /// True if the file with the secret may have changed.
    must_read: bool,
    /// Steps lost for lack of room in the kernel, as of the last poll.
    steps_lost: Option<u64>,
    admitted: Recent,
    told: Told,
    /// Commands that users gave for all hosts and that the store does not have yet.
    kept: Kept,
    /// Totals of earlier fleets, so that counters never decrease.
    earlier: Status,
}

/// Fleet that this host has joined.
#[derive(Debug)]
struct Joined {
    by: config::Fleet,
    host: HostId,
    secret: Secret,
    fleet: Fleet,
    task: JoinHandle<()>,
    /// Shared limits of the policy in force.
    shared: SharedLimits,
    /// True if the task knows these limits. False while its queue was too full for them.
    is_told: bool,
}

/// Failed attempt to join a fleet.
#[derive(Debug)]
struct Failed {
    by: config::Fleet,
    why: String,
    /// True if the secret could be read.
    had_secret: bool,
    at: Duration,
}

/// Shared secret of the fleet's hosts. None if no outsider can reach the store.
#[derive(PartialEq, Eq)]
struct Secret(Option<Vec<u8>>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Ties {
    /// Creates a state without a fleet. The task must not start before the daemon has dropped its privileges.
    pub(super) fn none() -> Self {
        let (way, asks) = way::channel();
        Self {
            way,
            asks: Some(asks),
            joined: None,
            failed: None,
            generation: 0,
            must_read: true,
            steps_lost: None,
            admitted: Recent::default(),
            told: Told::default(),
            kept: Kept::default(),
            earlier: Status::default(),
        }
    }

    /// Restores the commands that an earlier run had not delivered.
    pub(super) fn recall(&mut self, store: &Store) {
        self.kept.recall(store);
    }

    /// Returns the reason why a restart would lose commands for the fleet, if it would.
    pub(super) fn unkept(&self) -> Option<&str> {
        self.kept.unsaved()
    }

    /// Retries saving the undelivered commands.
    pub(super) fn keep_again(&mut self, store: &Store) {
        self.kept.save_again(store);
    }

    /// Takes the channel of the task's requests. Later calls return none.
    pub(super) const fn take_asks(&mut self) -> Option<Asks> {
        self.asks.take()
    }

    /// Returns true if the datapath must be polled for steps.
    pub(super) fn has_shared_limits(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| !joined.shared.is_empty())
    }

    /// Notes that a configuration was loaded, so the secret is read again.
    pub(super) const fn loaded(&mut self) {
        self.must_read = true;
    }

    /// Returns the fleet and the identities of its limits. None until the task knows these limits.
    pub(super) fn shared(&self) -> Option<(&Fleet, &SharedLimits)> {
        self.joined.as_ref().filter(|joined| joined.is_told).map(|joined| (&joined.fleet, &joined.shared))
    }

    /// Returns the shared limits in force, if the host has joined a fleet.
    fn enforced(&self) -> Option<&SharedLimits> {
        self.joined.as_ref().map(|joined| &joined.shared)
    }

    /// Checks the secret file when a configuration is loaded. Returns whether the secret changed, or why it cannot be
    /// read. None if the fleet has no secret file, or if its own configuration changes.
    pub(super) fn secret_news(&self, wanted: Option<&config::Fleet>) -> Option<Result<bool, String>> {
        let wanted = wanted.filter(|of| of.secret_file.is_some())?;
        let joined = self.joined.as_ref().filter(|joined| joined.by == *wanted);
        let failed = self.failed.as_ref().filter(|failed| failed.by == *wanted);
        let secret = self::secret(wanted).map_err(|error| format!("fleet: {error:#}"));
        match (joined, failed) {
            (Some(joined), _) => Some(match secret {
                Ok(secret) => Ok(secret != joined.secret),
                Err(why) => Err(format!("{why}; the previous secret stays in use until a restart")),
            }),
            (None, Some(failed)) => Some(secret.map(|_| !failed.had_secret)),
            (None, None) => None,
        }
    }

    /// Returns the status of the joined fleet, with the totals of earlier fleets.
    fn status(&self) -> Option<Status> {
        self.joined.as_ref().map(|joined| joined.fleet.status().since(&self.earlier))
    }

    /// Returns the status, or the totals of earlier fleets if the host is in none.
    fn counted(&self) -> Status {
        self.status().unwrap_or_else(|| Status::default().since(&self.earlier))
    }

    /// Leaves the fleet, which ends its task at once.
    fn leave(&mut self, store: &Store) {
        if let Some(joined) = &self.joined {
            self.kept.settle(&joined.fleet.status(), store);
        }
        self.earlier = self.counted();
        self.joined = None;
        self.generation += 1;
        self.admitted = Recent::default();
    }
}

impl Joined {
    /// Updates the task's list of limits to this policy. Retried at the next call if the task's queue is full.
    fn follow(&mut self, policy: &Policy) {
        if !self.shared.are_of(policy) {
            self.shared = SharedLimits::of(policy);
            self.is_told = false;
        }
        if !self.is_told {
            self.is_told = self.fleet.set_limits(self.shared.limits());
        }
    }
}

impl<D: Datapath> Engine<D> {
    /// Applies `[fleet]` and the shared limits: joins, leaves, or joins again after a change.
    pub(super) fn follow_fleet(&mut self, moment: Moment) {
        let Some(wanted) = &self.enforced.config.fleet else {
            if self.fleet.joined.is_some() || self.fleet.failed.is_some() {
                self.fleet.leave(&self.host.store);
                self.fleet.failed = None;
            }
            return;
        };
        let must_read = std::mem::take(&mut self.fleet.must_read);
        if must_read {
            secret::access_trouble(wanted).iter().for_each(|trouble| tracing::warn!("fleet: {trouble}"));
        }
        if let Some(joined) = &self.fleet.joined {
            let ended = joined.task.is_finished();
            if ended {
                tracing::error!("fleet: its task ended; it is restarted");
            }
            let is_same = joined.by == *wanted && !ended;
            if !is_same || (must_read && self::secret(wanted).is_ok_and(|secret| secret != joined.secret)) {
                self.fleet.leave(&self.host.store);
            }
        }
        if self.fleet.joined.is_none() {
            let wanted = wanted.clone();
            self.join(wanted, must_read, moment);
        }
        let Some(joined) = &mut self.fleet.joined else { return };
        joined.follow(&self.enforced.desired.policy);
    }

    fn join(&mut self, wanted: config::Fleet, is_asked: bool, moment: Moment) {
        let is_tried = |failed: &Failed| {
            failed.by == wanted && !is_asked && moment.uptime.saturating_sub(failed.at) < BEGINS_AGAIN_AFTER
        };
        if self.fleet.failed.as_ref().is_some_and(is_tried) {
            return;
        }
        let secret = self::secret(&wanted);
        let had_secret = secret.is_ok();
        match secret.and_then(|secret| self.begin(&wanted, secret)) {
            Ok(joined) => {
                self.fleet.kept.begin(&wanted.name, &self.host.store);
                self.fleet.kept.give(&joined.fleet);
                (self.fleet.joined, self.fleet.failed) = (Some(joined), None);
            }
            Err(error) => {
                let why = format!("{error:#}");
                if self.fleet.failed.as_ref().is_none_or(|failed| failed.why != why) {
                    tracing::warn!("fleet: {why}; this host holds its limits by itself");
                }
                self.fleet.failed = Some(Failed { by: wanted, why, had_secret, at: moment.uptime });
            }
        }
    }

    fn begin(&mut self, wanted: &config::Fleet, secret: Secret) -> anyhow::Result<Joined> {
        let runtime = tokio::runtime::Handle::try_current().context("find the runtime")?;
        let names = match &secret.0 {
            Some(secret) => Names::new(&wanted.name, secret),
            None => Names::without_secret(&wanted.name),
        };
        let names = names.with_context(|| match &wanted.secret_file {
            Some(file) => file.display().to_string(),
            None => format!("fleet {}", wanted.name),
        })?;
        if secret.0.is_none() {
            tracing::warn!("fleet: without `secret_file` every user of this host can read and forge its messages");
        }
        access::check(&wanted.store)?;
        let (began, at) = (self.datapath.now()?, Instant::now());
        let now = move || Nanos(began.0.saturating_add(u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)));
        let shared = SharedLimits::of(&self.enforced.desired.policy);
        let host = HostId::of_state(self.datapath.secret());
        let begin = Begin {
            host,
            process: RandomState::new().hash_one(std::process::id()),
            name: hosts::own_name(),
            machine: hosts::own_machine(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            names,
            settings: Settings {
                hosts: wanted.hosts,
                interval: wanted.interval,
                floor_percent: wanted.floor_percent,
                ..Settings::default()
            },
            limits: shared.limits(),
            access: wanted.store.clone(),
        };
        self.fleet.generation += 1;
        let way = Way::new(self.fleet.way.clone(), self.fleet.generation, shared.limits());
        let hear = way.hear();
        let (fleet, acts, task) = Fleet::begin(begin, way, now);
        let task = runtime.spawn(task);
        runtime.spawn(hear.all(acts));
        reach(Point::FleetJoined);
        Ok(Joined { by: wanted.clone(), host, secret, fleet, task, shared, is_told: true })
    }

    /// Removes commands that the store has taken, so that the next run does not repeat them.
    pub(super) fn settle_fleet(&mut self) {
        if let Some(joined) = &self.fleet.joined {
            self.fleet.kept.settle(&joined.fleet.status(), &self.host.store);
        }
    }

    /// Tells the fleet which counts crossed a step.
    pub(super) fn tell_steps(&mut self, moment: Moment) {
        self.follow_fleet(moment);
        if let Err(error) = self.try_tell_steps() {
            // A persistent failure means that the maps are unreadable, which supervision reports.
            tracing::debug!("read the steps of counts: {:#}", anyhow::Error::from(error));
        }
    }

    fn try_tell_steps(&mut self) -> Result<(), DatapathError> {
        let Some(joined) = &self.fleet.joined else { return Ok(()) };
        let mut crossed = BTreeSet::new();
        let mut unnamed = 0;
        for _ in 0..PARTS_MAX {
            let more = self.datapath.steps(&mut |step| {
                if !joined.is_told {
                    unnamed += 1;
                } else if let Some(limit) = joined.shared.id(step.at) {
                    crossed.insert((Subject { limit, source: step.client }, step.bucket));
                }
            })?;
            if !more {
                break;
            }
        }
        crossed.into_iter().for_each(|(subject, bucket)| joined.fleet.crossed(subject, bucket));
        if unnamed > 0 {
            joined.fleet.crossings_lost(unnamed);
        }
        Ok(())
    }

    /// Tells the fleet about lost steps, recent admissions and undelivered commands. Reports changes of the fleet's
    /// state.
    pub(super) fn tell_fleet(&mut self, reading: &Reading, moment: Moment) {
        let lost =
            reading.faults.iter().find(|(fault, _)| *fault == Fault::StepsReserve).map_or(0, |(_, count)| *count);
        let before = self.fleet.steps_lost.replace(lost);
        if let Some(joined) = &self.fleet.joined {
            match before.map(|before| lost.saturating_sub(before)) {
                Some(0) | None => {}
                Some(more) => joined.fleet.crossings_lost(more),
            }
            let admitted = joined.shared.admitted(reading, &self.enforced.desired.policy);
            joined.fleet.admitted_last_minute(self.fleet.admitted.last_minute(admitted, moment.uptime));
            self.fleet.kept.give(&joined.fleet);
            self.fleet.kept.settle(&joined.fleet.status(), &self.host.store);
        }
        if let Some(news) = self.tell_fleet_state(moment) {
            self.journal.add(news);
        }
    }
}

fn secret(wanted: &config::Fleet) -> anyhow::Result<Secret> {
    let read = |path: &Path| secret::read(path).with_context(|| format!("read {}", path.display()));
    wanted.secret_file.as_deref().map(read).transpose().map(Secret)
}

#[cfg(test)]
mod tests;
