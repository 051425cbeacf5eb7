//! This host in its fleet: follows `[fleet]` and the limits that are shared, tells the fleet's task what packets and
//! commands did, and carries out what that one asks.
//!
//! Nothing here waits for the store: what is told to the task is sent without waiting, and what the task asks comes in
//! pieces between commands.

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

/// How often packets are asked whether a count crossed a step: nothing announces that, and other hosts are to know of it
/// within [`ratelimit_policy::fleet::DELAY`].
pub(super) const STEPS_EVERY: Duration = Duration::from_millis(20);
/// Parts of the steps that are taken at one time. // 16 384, a fifth of a second at a million packets a second
const PARTS_MAX: usize = 2;
/// What could not begin is tried again so often.
const BEGINS_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// This host's part in a fleet.
#[derive(Debug)]
pub(super) struct Ties {
    way: mpsc::Sender<Ask>,
    asks: Option<Asks>,
    joined: Option<Joined>,
    failed: Option<Failed>,
    /// The fleets that this daemon has been in: what an earlier one still asks is not done.
    generation: u64,
    /// The file with the secret may have changed.
    must_read: bool,
    /// Steps that packets had no room to tell, at the last look.
    steps_lost: Option<u64>,
    admitted: Recent,
    told: Told,
    /// What users said to all hosts.
    kept: Kept,
    /// What was counted in the fleets before this one: counters only grow.
    earlier: Status,
}

/// A fleet that this host is in.
#[derive(Debug)]
struct Joined {
    by: config::Fleet,
    host: HostId,
    secret: Secret,
    fleet: Fleet,
    task: JoinHandle<()>,
    /// Those of the policy that packets are held to.
    shared: SharedLimits,
    /// Whether the task calls them so: it had no room to hear it.
    is_told: bool,
}

/// A fleet that could not begin.
#[derive(Debug)]
struct Failed {
    by: config::Fleet,
    why: String,
    /// Whether the secret could be read.
    had_secret: bool,
    at: Duration,
}

/// What the hosts of a fleet alone know; none where nobody else reaches the store.
#[derive(PartialEq, Eq)]
struct Secret(Option<Vec<u8>>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Ties {
    /// To no fleet yet: its task must not be there before the daemon has given up what it may do.
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

    /// What an earlier run was told.
    pub(super) fn recall(&mut self, store: &Store) {
        self.kept.recall(store);
    }

    /// Why a restart would forget some of what users said to all hosts, where it would.
    pub(super) fn unkept(&self) -> Option<&str> {
        self.kept.unsaved()
    }

    /// Tries again to write down what could not be.
    pub(super) fn keep_again(&mut self, store: &Store) {
        self.kept.save_again(store);
    }

    /// What the fleet's task asks for; once.
    pub(super) const fn take_asks(&mut self) -> Option<Asks> {
        self.asks.take()
    }

    /// Whether packets are to be asked for steps.
    pub(super) fn has_shared_limits(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| !joined.shared.is_empty())
    }

    /// A configuration was loaded: the secret is read anew.
    pub(super) const fn loaded(&mut self) {
        self.must_read = true;
    }

    /// The fleet, and what its limits are called there; none while its task has not heard how they are called.
    pub(super) fn shared(&self) -> Option<(&Fleet, &SharedLimits)> {
        self.joined.as_ref().filter(|joined| joined.is_told).map(|joined| (&joined.fleet, &joined.shared))
    }

    /// The shared limits that packets are held to, where they are.
    fn enforced(&self) -> Option<&SharedLimits> {
        self.joined.as_ref().map(|joined| &joined.shared)
    }

    /// What becomes of the secret when a configuration is loaded: whether it is another, or why it cannot be read. None
    /// where it is not that which changes.
    pub(super) fn secret_news(&self, wanted: Option<&config::Fleet>) -> Option<Result<bool, String>> {
        let wanted = wanted.filter(|of| of.secret_file.is_some())?;
        let joined = self.joined.as_ref().filter(|joined| joined.by == *wanted);
        let failed = self.failed.as_ref().filter(|failed| failed.by == *wanted);
        let secret = self::secret(wanted).map_err(|error| format!("fleet: {error:#}"));
        match (joined, failed) {
            (Some(joined), _) => Some(match secret {
                Ok(secret) => Ok(secret != joined.secret),
                Err(why) => Err(format!("{why}; it goes on with the one before until a restart")),
            }),
            (None, Some(failed)) => Some(secret.map(|_| !failed.had_secret)),
            (None, None) => None,
        }
    }

    /// How the fleet does, where this host is in one.
    fn status(&self) -> Option<Status> {
        self.joined.as_ref().map(|joined| joined.fleet.status().since(&self.earlier))
    }

    /// The same, with what was counted before where it is in none.
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
    /// Has the task call the limits as this policy does. Where it has no room to hear that, it is asked again.
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
    /// Follows `[fleet]`: joins, leaves, begins again where it changed; and the limits that are shared.
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
                tracing::error!("fleet: its task ended; it begins again");
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
            tracing::warn!("fleet: without `secret_file` every user of this host may read and write what it tells");
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

    /// What the store has by now is not said again by the next run.
    pub(super) fn settle_fleet(&mut self) {
        if let Some(joined) = &self.fleet.joined {
            self.fleet.kept.settle(&joined.fleet.status(), &self.host.store);
        }
    }

    /// Tells the fleet which counts crossed a step.
    pub(super) fn tell_steps(&mut self, moment: Moment) {
        self.follow_fleet(moment);
        if let Err(error) = self.try_tell_steps() {
            // Where this goes on, the maps cannot be read, which supervision says.
            tracing::debug!("take the steps of packets: {:#}", anyhow::Error::from(error));
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

    /// Tells the fleet what else there is, and everybody how the fleet does.
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
