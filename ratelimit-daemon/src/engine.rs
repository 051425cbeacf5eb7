//! Engine of the daemon. Works on the datapath in blocking steps, one at a time. Times are passed in as a [`Moment`].

use ratelimit_common::time::Nanos;
use ratelimit_crash::{Point, reach};

use super::access_log::AccessLogs;
use super::certificate::Certificate;
use super::closer::Closer;
use super::enforced::Enforced;
use super::fleet::Ties;
use super::in_force::Announced;
use super::journal::{Event, Journal, Occurrence};
use super::list_copies::ListCopies;
use super::moment::Moment;
use super::overrides::Overrides;
use super::start::{Start, Unfinished};
use super::statistics::{Statistics, status_line};
use super::store::Store;
use super::trial::Trials;
use super::unkept::Unkept;
use super::watched::Watched;
use ratelimit_control::proto::{Health, Problem};
use ratelimit_datapath::path;
use ratelimit_datapath::{Absent, Datapath, DatapathError, Reading};
use ratelimit_history::{InForce, Judged};
use ratelimit_policy::config::lists::KnownLists;
use ratelimit_policy::safety::Around;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{Clocks, SCHEMA, Snapshot};

/// Environment of the daemon on this host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// State directory, which holds the changes that commands made.
    pub(super) store: Store,
    /// Looks up who must not be locked out.
    pub(super) look: fn() -> Around,
    /// Lists what needs attention, in words for people.
    pub(super) attention: fn(&Snapshot) -> Vec<String>,
    /// Returns freed memory to the system.
    pub(super) give_back_memory: fn(),
}

/// Datapath and everything that is enforced on it.
#[derive(Debug)]
pub(super) struct Engine<D> {
    pub(super) datapath: D,
    pub(super) host: Host,
    pub(super) enforced: Enforced,
    pub(super) overrides: Overrides,
    pub(super) trials: Trials,
    pub(super) watched: Watched,
    pub(super) journal: Journal,
    pub(super) statistics: Statistics,
    pub(super) certificate: Certificate,
    pub(super) fleet: Ties,
    pub(super) unkept: Unkept,
    pub(super) closer: Closer,
    pub(super) list_copies: ListCopies,
    pub(super) announced: Announced,
    pub(super) access_logs: AccessLogs,
}

/// Result of one supervision pass over the datapath.
#[derive(Clone, Debug)]
pub(super) struct Supervision {
    /// Failures: unattached interfaces or unreadable maps.
    pub(super) problems: Vec<String>,
    /// Lesser faults. Packets are limited despite them.
    pub(super) notes: Vec<String>,
    /// Status line for the service manager.
    pub(super) line: String,
    /// True if the maps can be read. If so, a restart would not help: attaching is retried anyway, and a start that
    /// meets another's program fails for good.
    pub(super) is_readable: bool,
}

impl Supervision {
    /// Converts the result to the API's health report.
    pub(super) fn health(self) -> Health {
        Health { schema: SCHEMA, healthy: self.problems.is_empty(), problems: self.problems, notes: self.notes }
    }
}

impl<D: Datapath> Engine<D> {
    /// Attaches to every interface and applies the policy. On an error, leaves everything as it was.
    pub(super) fn start(datapath: D, start: Start, host: Host, moment: Moment) -> Result<Self, DatapathError> {
        let Start { config, source, unfinished, refused, refused_lists, fallbacks, rolled_back } = start;
        let over = rolled_back.as_ref().map(|of| format!("{} is rolled back: {}", of.file, of.why));
        let mut engine = Self {
            certificate: Certificate::open(config.tls.as_ref()),
            datapath,
            list_copies: ListCopies::of(&host.store),
            host,
            enforced: Enforced::new(config, source),
            overrides: Overrides::default(),
            trials: Trials::new(refused, rolled_back, moment),
            watched: Watched::new(moment.uptime),
            journal: Journal::new(moment.uptime),
            statistics: Statistics::default(),
            fleet: Ties::none(),
            unkept: Unkept::default(),
            closer: Closer::default(),
            announced: Announced::default(),
            access_logs: AccessLogs::default(),
        };
        over.into_iter().for_each(|over| engine.journal.add(Occurrence::new(EventKind::Trial, over)));
        let started = engine.recall(unfinished, refused_lists, moment).and_then(|is_on_trial| {
            reach(Point::Recalled);
            // Refusals in an earlier run's windows must be known before the first packet counts.
            engine.observe(moment);
            engine.refuse_shared_paths(&engine.enforced.desired.interfaces.clone())?;
            engine.notice_new_maps(moment);
            engine.attach_all(is_on_trial, moment)
        });
        if let Err(error) = started {
            if let Err(second) = engine.datapath.abandon() {
                tracing::error!("clean up after the failed start: {:#}", anyhow::Error::from(second));
            }
            return Err(error);
        }
        engine.prepare_for_later();
        for said in engine.watched.lists.begin(fallbacks, &engine.enforced.config.list_files) {
            tracing::error!("{said}");
            engine.journal.add(Occurrence::new(EventKind::Reload, said));
        }
        engine.beat_and_tell(moment);
        let reading = engine.datapath.read().ok();
        engine.statistics.begin(reading.as_ref());
        if let Some(reading) = &reading {
            engine.watched.begun.begin(reading, moment.wall);
        }
        Ok(engine)
    }

    /// Restores the state of earlier runs. Returns true if packets are under a trial, which applying anything would
    /// end.
    fn recall(
        &mut self,
        unfinished: Option<Unfinished>,
        refused_lists: Option<KnownLists>,
        moment: Moment,
    ) -> Result<bool, DatapathError> {
        let clocks = Clocks { now: self.datapath.now()?, wall: moment.wall };
        self.look_around();
        self.overrides.grants.recall(&self.host.store, clocks);
        self.fleet.recall(&self.host.store);
        self.recall_hold();
        match refused_lists {
            Some(refused) => self.watched.lists.skip(refused),
            None => self.watched.lists.taken(&self.enforced.config.list_files, moment),
        }
        let is_on_trial = match unfinished {
            Some(unfinished) => self.resume(unfinished, moment)?,
            None => false,
        };
        self.enforced.desired.policy = self.overrides.policy_of(&self.enforced.config, clocks.now);
        Ok(is_on_trial)
    }

    /// Records that all bans are gone if no filter of an earlier run is left. The machine was rebooted, or the filter
    /// was removed.
    fn notice_new_maps(&mut self, moment: Moment) {
        let had_bans = self.datapath.read().is_ok_and(|reading| reading.bans_begun.iter().any(|begun| *begun != 0));
        if had_bans || !self.datapath.kept().is_empty() {
            return;
        }
        let Ok(now) = self.datapath.now() else { return };
        let boot = Clocks { now, wall: moment.wall }.wall_of(Nanos(0));
        self.announced.precede(InForce { time: moment.wall, judged: Judged::Anew { boot } });
    }

    /// Attaches to all interfaces. No packet meets a program without a policy: either this run's policy is applied
    /// first, or an earlier run's is in force. In that case the policy is replaced last, and interfaces of the
    /// earlier run are taken over after the others. A failure then changes neither. A missing interface is not an
    /// error for a service, because a later look attaches it.
    fn attach_all(&mut self, is_on_trial: bool, moment: Moment) -> Result<(), DatapathError> {
        let absent = self.enforced.source.absent();
        let (kept, alone) = (self.datapath.kept(), self.datapath.alone_for());
        let is_unread = self.datapath.is_unread();
        if is_unread {
            self.apply_unread()?;
        } else if kept.is_empty() && !is_on_trial {
            self.datapath.apply(&self.enforced.desired.policy)?;
            reach(Point::StartApplied);
        }
        let (taken_over, anew): (Vec<_>, Vec<_>) =
            self.enforced.desired.interfaces.iter().partition(|interface| kept.contains(interface));
        for interface in anew.into_iter().chain(taken_over) {
            match (self.datapath.attach(interface), absent) {
                (Ok(mode), Absent::Awaited | Absent::Refused) => {
                    self.watched.links.attached(interface, mode);
                }
                (Err(error @ DatapathError::NoSuchInterface { .. }), Absent::Awaited) => {
                    self.watched.links.awaited(interface, moment.uptime, error.to_string());
                }
                (Err(error), Absent::Awaited | Absent::Refused) => return Err(error),
            }
        }
        self.datapath.take_over_earlier()?;
        reach(Point::Adopted);
        if !kept.is_empty() && !is_on_trial && !is_unread {
            self.datapath.apply(&self.enforced.desired.policy)?;
            reach(Point::AdoptApplied);
        }
        self.enforced.must_apply = false;
        let left = self.datapath.kept();
        let taken_over: Vec<String> = kept.into_iter().filter(|name| !left.contains(name)).collect();
        if !taken_over.is_empty() {
            self.journal.tell(Event::TakeOver { interfaces: taken_over, alone }, moment);
        }
        self.let_go_of_others();
        Ok(())
    }

    /// Fails if one of the interfaces receives packets of another one. Checks only interfaces that exist now.
    pub(super) fn refuse_shared_paths(&mut self, interfaces: &[String]) -> Result<(), DatapathError> {
        path::refuse(interfaces, &self.datapath.links()?, self.enforced.source.writes_interfaces())
    }

    /// Prepares programs for interfaces that appear later. Attaches interfaces that appear meanwhile, because the
    /// verifier takes a while.
    fn prepare_for_later(&mut self) {
        self.look_at_paths();
        let Self { datapath, enforced, watched, .. } = self;
        let interfaces = &enforced.desired.interfaces;
        datapath.prepare_for_later(interfaces, &mut |datapath| watched.attach_at_once(datapath, interfaces));
    }

    /// Updates the knowledge of which interfaces see the same packets.
    fn look_at_paths(&mut self) {
        let interfaces = &self.enforced.desired.interfaces;
        if interfaces.len() < 2 {
            return;
        }
        match self.datapath.links() {
            Ok(links) => self.watched.paths.look(interfaces, &links, self.enforced.source.writes_interfaces()),
            Err(error) => tracing::warn!("find interfaces that share a path: {:#}", anyhow::Error::from(error)),
        }
    }

    /// Attaches to existing interfaces that are not attached.
    pub(super) fn attach_at_once(&mut self) {
        self.look_at_paths();
        self.watched.attach_at_once(&mut self.datapath, &self.enforced.desired.interfaces);
    }

    /// Applies the policy while an earlier layout's program still judges every packet. During a resumed trial, writes
    /// both policies.
    fn apply_unread(&mut self) -> Result<(), DatapathError> {
        let (policy, now) = (&self.enforced.desired.policy, self.datapath.now()?);
        let Some(pending) = &self.trials.pending else { return self.datapath.apply(policy) };
        self.datapath.apply(&self.overrides.policy_of(&pending.before, now))?;
        self.datapath.apply_until(policy, pending.until)
    }

    /// Detaches interfaces that an earlier run left attached and that are not wanted any more. A failure only warns,
    /// because the new policy applies there too. A wanted interface that is missing stays: it may be in another
    /// network namespace.
    fn let_go_of_others(&mut self) {
        let is_other = |name: &String| !self.enforced.desired.interfaces.contains(name);
        for interface in self.datapath.kept().into_iter().filter(is_other) {
            match self.datapath.detach(&interface) {
                Ok(()) => {
                    let said = format!("removed the filter of an earlier run from {interface}");
                    tracing::info!(interface, "{said}");
                    self.journal.add(Occurrence::new(EventKind::Detach, said));
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(interface, "the filter of an earlier run stays on {interface}: {error:#}");
                }
            }
        }
    }

    /// Checks that everything is attached and readable, and reattaches interfaces that came back.
    pub(super) fn supervise(&mut self, moment: Moment) -> Supervision {
        let notes = self.journal.past.trouble().into_iter().chain(self.certificate.trouble());
        let mut notes: Vec<String> = notes
            .chain(self.fleet_trouble())
            .chain(self.watched.lists.partly_words(&self.enforced.config.list_files))
            .chain(self.watched.lists.passed_over_words())
            .chain(self.unkept_words())
            .chain(self.access_logs.trouble(moment.uptime))
            .collect();
        let reading = match self.watched.read(&mut self.datapath) {
            Ok(reading) => reading,
            Err(problem) => {
                return Supervision { line: problem.clone(), problems: vec![problem], notes, is_readable: false };
            }
        };
        self.look_at_paths();
        self.watched.attach_again(&mut self.datapath, &self.enforced.desired.interfaces, &reading, moment.uptime);
        let attached = self.watched.links.attached_names();
        self.watched.paths.tell(&attached);
        notes.extend(self.watched.paths.counted_twice(&attached).map(|(_, why)| format!("packets count twice: {why}")));
        // Beginnings must be reported before their ends.
        self.tell_begun(moment);
        self.statistics.sample(&reading, moment.uptime);
        self.tidy(&reading, moment);
        let problems = self.watched.links.problems(moment.uptime);
        let line = format!("{}{}", self.standing_words(), status_line(&reading, &problems));
        self.tell_state(&reading, moment);
        self.tell_fleet(&reading, moment);
        Supervision { problems, notes, line, is_readable: true }
    }

    /// Does the periodic work.
    fn tidy(&mut self, reading: &Reading, moment: Moment) {
        self.notice_trial();
        self.notice_suspension();
        let Self { datapath, enforced, watched, journal, .. } = self;
        watched.follow_bans(datapath, &enforced.desired.policy, journal, reading, moment);
        if self.watched.is_time_to_look_around(moment.uptime) {
            self.look_around();
            self.watched.tidy_bans(&mut self.datapath, reading);
            self.give_back_memory(reading);
        }
        let clocks = Clocks { now: reading.now, wall: moment.wall };
        self.expire_grants(clocks, moment);
        self.keep_again(clocks, moment);
        self.deny_prefixes(reading, moment);
        self.watch_breaker(reading, moment);
        self.watch_lists(reading.now, moment);
        self.keep_copies();
        self.tell_passed_over();
        let Self { datapath, enforced, watched, .. } = self;
        watched.talkers.look(datapath, &enforced.desired.policy, reading, moment.uptime);
        let applied = if self.enforced.must_apply { self.put_in_force(reading.now) } else { Ok(()) };
        if let Err(error) = applied {
            tracing::error!("apply the policy: {:#}", anyhow::Error::from(error));
        }
    }

    /// Returns the exceptional conditions, to precede the status line.
    fn standing_words(&self) -> String {
        let mut words = self.overrides.words();
        if self.trials.pending.is_some() {
            words += "a file is on trial; ";
        }
        for partly in self.watched.lists.partly_words(&self.enforced.config.list_files) {
            words += &format!("{partly}; ");
        }
        for (path, _) in self.watched.lists.stale() {
            words += &format!("list file {} IS NOT FOLLOWED; ", path.display());
        }
        if let Some(passed_over) = self.watched.lists.passed_over_words() {
            words += &format!("{passed_over}; ");
        }
        if let Some(unkept) = self.unkept_words() {
            words += &format!("{unkept}; ");
        }
        if self.watched.paths.counted_twice(&self.watched.links.attached_names()).next().is_some() {
            words += "PACKETS COUNT TWICE; ";
        }
        words
    }

    /// Returns the current time of both clocks.
    pub(super) fn clocks(&mut self, moment: Moment) -> Result<Clocks, Problem> {
        let now = self.datapath.now().map_err(Problem::datapath)?;
        Ok(Clocks { now, wall: moment.wall })
    }

    /// Applies changes that do not come from a configuration. During a trial, these are allowances and denials. They
    /// go into the file on trial and into the policy that the kernel falls back to without this process.
    pub(super) fn put_in_force(&mut self, now: Nanos) -> Result<(), DatapathError> {
        let policy = self.overrides.policy_of(&self.enforced.config, now);
        if self.enforced.must_apply || self.trials.pending.is_some() || policy != self.enforced.desired.policy {
            match &self.trials.pending {
                None => self.datapath.apply(&policy)?,
                Some(pending) => {
                    self.datapath.apply_access(&policy, &self.overrides.policy_of(&pending.before, now))?
                }
            }
            self.enforced.desired.policy = policy;
            self.enforced.must_apply = false;
            self.statistics.outdate();
        }
        Ok(())
    }

    /// Makes the next look retry attaching immediately.
    pub(super) fn hurry(&mut self) {
        self.watched.links.hurry();
    }
}
