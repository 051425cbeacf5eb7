//! Configuration on trial: in force for a while, and permanently only once it is confirmed. The kernel rolls back by
//! itself. This module notices that, reports it, and remembers it over restarts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use super::source::{ConfigSource, Loaded};
use super::start::{FILE, Record, Unfinished, Version, remember};
use ratelimit_control::Requester;
use ratelimit_control::proto::{ApplyReport, ApplyRequest, ConfirmReport, Problem, ProblemKind, RollbackReport};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::{Datapath, DatapathError, Trial};
use ratelimit_policy::config::lists::written_by_others;
use ratelimit_policy::config::{Config, beside};
use ratelimit_policy::desired::DesiredState;
use ratelimit_policy::plan::changes;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{Clocks, ConfigState, RolledBack, SCHEMA};

/// Minimum length of a trial in seconds. A shorter one would end before anyone could confirm.
const SECONDS_MIN: u64 = 5;
/// Maximum length of a trial in seconds.
const SECONDS_MAX: u64 = 86_400;

/// Trial in progress, with what a rollback restores.
#[derive(Clone, Debug)]
pub(super) struct Running {
    /// Configuration that a rollback restores.
    pub(super) before: Config,
    /// Path of the previous configuration's text.
    before_path: PathBuf,
    record: Record,
    /// End of the trial by the datapath's clock.
    pub(super) until: Nanos,
}

/// Trial in progress, and the outcomes of the last trial and the last reload.
#[derive(Debug)]
pub(super) struct Trials {
    /// Trial in progress, if any.
    pub(super) pending: Option<Running>,
    /// Text that was tried last and not confirmed.
    pub(super) refused: Option<String>,
    pub(super) last_reload: ConfigState,
}

impl Trials {
    /// Creates the state after a start that loaded a configuration.
    pub(super) fn new(refused: Option<String>, rolled_back: Option<RolledBack>, moment: Moment) -> Self {
        Self { pending: None, refused, last_reload: ConfigState { rolled_back, ..loaded(moment) } }
    }

    /// Fails during a trial, when no other configuration may be applied.
    pub(super) fn settled(&self, now: Nanos) -> Result<(), Problem> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let left_s = pending.until.0.saturating_sub(now.0).div_ceil(1_000_000_000);
        let file = pending.record.file.display();
        let why = format!(
            "{file} is on trial for {left_s} s more: end that first, with `ratelimitd confirm` or `ratelimitd rollback`"
        );
        Err(Problem::new(ProblemKind::Conflict, why))
    }

    /// Records that a configuration is in force.
    pub(super) fn succeeded(&mut self, moment: Moment) {
        self.last_reload = loaded(moment);
    }

    /// Records that a configuration was not put in force. The problem names the file itself.
    pub(super) fn failed(&mut self, problem: Problem) -> Problem {
        // The requester gets several lines, but a log entry and a report have one.
        let why = problem.message.replace('\n', "; ");
        tracing::error!("reload: {why}; nothing was changed");
        // A refused reload during a trial says nothing about the file on trial.
        if self.pending.is_none() {
            self.last_reload.last_reload_successful = false;
            self.last_reload.error = Some(why);
        }
        problem
    }

    /// Returns the error for a confirmation without a trial.
    fn too_late(&self) -> Problem {
        let Some(RolledBack { file, why }) = &self.last_reload.rolled_back else {
            return Problem::new(ProblemKind::BadRequest, "there is nothing to confirm: no file is on trial");
        };
        let again = "`ratelimitd apply --confirm` tries it again";
        let why =
            format!("too late: {file} is rolled back ({why}), and the configuration before it is in force; {again}");
        Problem::new(ProblemKind::Conflict, why)
    }

    /// Returns true if this text was tried and not confirmed. Then only `apply` may put it in force.
    pub(super) fn is_refused(&self, text: &str) -> bool {
        self.refused.as_deref() == Some(text)
    }
}

fn loaded(moment: Moment) -> ConfigState {
    ConfigState { last_reload_successful: true, last_reload_success_at: moment.wall, error: None, rolled_back: None }
}

/// Returns true if both paths name one file.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    one == other || matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

impl<D: Datapath> Engine<D> {
    /// Resumes the trial of an earlier run. Returns true if packets are judged by it.
    pub(super) fn resume(&mut self, unfinished: Unfinished, moment: Moment) -> Result<bool, DatapathError> {
        let Unfinished { before, before_path, record } = unfinished;
        if let Trial::Running(until) = self.datapath.trial()? {
            let left_s = until.0.saturating_sub(self.datapath.now()?.0) / 1_000_000_000;
            let said = format!("{} is still on trial: `ratelimitd confirm` within {left_s} s", record.file.display());
            tracing::warn!("{said}");
            self.journal.add(Occurrence::new(EventKind::Trial, said));
            self.trials.pending = Some(Running { before, before_path, record, until });
            return Ok(true);
        }
        let clocks = Clocks { now: self.datapath.now()?, wall: moment.wall };
        let until = clocks.datapath_of(record.until);
        self.trials.pending = Some(Running { before, before_path, record, until });
        self.forget_trial("the trial of an earlier run is over");
        Ok(false)
    }

    /// Applies a file, permanently or on trial.
    pub(super) fn apply(
        &mut self,
        request: &ApplyRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<ApplyReport, Problem> {
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        self.trials.settled(clocks.now)?;
        let ConfigSource::File(own) = &self.enforced.source else {
            let why =
                "this daemon was started from flags, and has no file to apply; use `ratelimitd run --config FILE`";
            return Err(Problem::new(ProblemKind::Config, why));
        };
        let file = request.file.clone().unwrap_or_else(|| own.path.clone());
        let is_own = is_same(&file, &own.path);
        // A list file must have one path however it is named.
        let file = if is_own { own.path.clone() } else { file };
        let loaded = (own.load)(&file).map_err(|error| Problem::new(ProblemKind::Config, format!("{error:#}")))?;
        self.object_to_lists(&loaded.config)?;
        if request.confirm_seconds.is_none() && !request.force {
            self.object_to_lockout(&loaded.config, request.ssh, clocks.now)?;
        }
        tracing::info!(user = %by, file = %file.display(), "apply {}, by command of {by}", file.display());
        let mut notes = Vec::new();
        if !is_own {
            let own = own.path.display();
            notes.push(format!("a restart and a reload read {own}: copy {} there to keep it", file.display()));
        }
        let changes = match request.confirm_seconds {
            None => self.take_on(loaded, &file.display().to_string(), &mut notes, moment)?,
            Some(seconds) => {
                let changes = self.try_out(loaded, file, seconds, clocks, &mut notes)?;
                if self.trials.pending.is_some() {
                    self.watched.lists.taken(&self.enforced.config.list_files, moment);
                }
                changes
            }
        };
        notes.extend(self.overrides.warn_of_lockouts(&self.enforced.config, request.ssh, clocks.now));
        notes.extend(written_by_others(&self.enforced.config.list_files));
        let confirm_within_seconds = request.confirm_seconds.filter(|_| self.trials.pending.is_some());
        Ok(ApplyReport { schema: SCHEMA, changes, confirm_within_seconds, notes })
    }

    fn try_out(
        &mut self,
        loaded: Loaded,
        file: PathBuf,
        seconds: u64,
        clocks: Clocks,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>, Problem> {
        let path = file.display().to_string();
        if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
            let why = format!("a trial lasts from {SECONDS_MIN} s to {} h", SECONDS_MAX / 3_600);
            return Err(Problem::new(ProblemKind::BadRequest, why));
        }
        self.enforced.can_follow(&loaded.config, &path)?;
        if loaded.config.interfaces != self.enforced.config.interfaces {
            let why =
                format!("{path} changes the interfaces, which cannot be rolled back: apply that without --confirm");
            return Err(Problem::new(ProblemKind::Config, why));
        }
        let interfaces = self.enforced.desired.interfaces.clone();
        let desired = DesiredState { interfaces, policy: self.overrides.policy_of(&loaded.config, clocks.now) };
        let mut changes = changes(&self.enforced.desired, &desired);
        changes.extend(beside::changes(&self.enforced.config, &loaded.config));
        if changes.is_empty() {
            notes.push("the file is what is enforced already: there is nothing to confirm".to_owned());
            return Ok(changes);
        }
        let until = clocks.after(Duration::from_secs(seconds).as_nanos().try_into().unwrap_or(u64::MAX));
        let (before_path, text) = (self.enforced.source.text_path(), self.enforced.source.text());
        let record = Record::new(
            Version { path: &file, text: &loaded.text, lists: &loaded.config.list_files },
            Version { path: &before_path, text, lists: &self.enforced.config.list_files },
            clocks.wall_of(until),
        );
        let earlier = self.host.store.load::<Record>(FILE);
        // The record is saved first. Without it, a restart would take the trial for confirmed.
        self.host.store.save(FILE, &record).map_err(|error| {
            Problem::new(
                ProblemKind::Internal,
                format!("{error}; without it a restart could not roll back, so nothing was changed"),
            )
        })?;
        reach(Point::TrialRecorded);
        if let Err(error) = self.datapath.apply_until(&desired.policy, until) {
            match earlier {
                Some(earlier) => remember(&self.host.store, earlier),
                None => self.host.store.remove(FILE),
            }
            return Err(Problem::datapath(error));
        }
        reach(Point::TrialApplied);
        for change in &changes {
            tracing::warn!("on trial for {seconds} s: {change}");
        }
        self.enforced.source.set_text(loaded.text, record.file.clone());
        let before = self.hold_to(loaded.config);
        self.enforced.desired = desired;
        self.trials.pending = Some(Running { before, before_path, record, until });
        self.overrides.breaker.reset_counts();
        self.statistics.outdate();
        Ok(changes)
    }

    /// Confirms the configuration on trial.
    pub(super) fn confirm(&mut self, by: &Requester, moment: Moment) -> Result<ConfirmReport, Problem> {
        if self.trials.pending.is_none() {
            return Err(self.trials.too_late());
        }
        if !self.datapath.confirm().map_err(Problem::datapath)? {
            self.watch_trial().map_err(Problem::datapath)?;
            return Err(self.trials.too_late());
        }
        reach(Point::ConfirmKept);
        let file = self.trials.pending.take().map(|pending| pending.record.file).unwrap_or_default();
        self.host.store.remove(FILE);
        reach(Point::ConfirmSettled);
        self.trials.refused = None;
        self.statistics.outdate();
        self.trials.succeeded(moment);
        tracing::info!(user = %by, file = %file.display(), "{} is confirmed by {by}", file.display());
        self.journal.add(Occurrence::new(EventKind::Trial, format!("{} is confirmed by {by}", file.display())).by(by));
        let now = self.clocks(moment)?.now;
        // This drops the grants that expired meanwhile.
        self.put_in_force(now).map_err(Problem::datapath)?;
        reach(Point::ConfirmDone);
        Ok(ConfirmReport { schema: SCHEMA, file })
    }

    /// Ends the trial now. The previous configuration is in force again.
    pub(super) fn roll_back(&mut self, by: &Requester) -> Result<RollbackReport, Problem> {
        self.notice_trial();
        if self.trials.pending.is_some() {
            self.forget_trial(&format!("{by} said so"));
            reach(Point::RollBackRecorded);
            let now = self.datapath.now().map_err(Problem::datapath)?;
            self.put_in_force(now).map_err(Problem::datapath)?;
            reach(Point::RollBackDone);
            let file = self.trials.last_reload.rolled_back.as_ref().map_or_else(String::new, |of| of.file.clone());
            return Ok(RollbackReport { schema: SCHEMA, file, was_over: false });
        }
        let nothing = || Problem::new(ProblemKind::BadRequest, "there is nothing to roll back: no file is on trial");
        let over = self.trials.last_reload.rolled_back.as_ref().ok_or_else(nothing)?;
        Ok(RollbackReport { schema: SCHEMA, file: over.file.clone(), was_over: true })
    }

    /// Detects that the kernel has rolled back.
    pub(super) fn watch_trial(&mut self) -> Result<(), DatapathError> {
        if self.trials.pending.is_none() {
            return Ok(());
        }
        match self.datapath.trial()? {
            Trial::Running(_) => Ok(()),
            Trial::Over | Trial::None => {
                let now = self.datapath.now()?;
                if let Some(pending) = self.trials.pending.as_ref().filter(|pending| pending.until < now) {
                    let ago = Duration::from_nanos(now.0 - pending.until.0);
                    self.announced.happened_ago(ago);
                }
                self.forget_trial("it was not confirmed in time");
                self.put_in_force(now)
            }
        }
    }

    /// Follows a rollback by the kernel. Called before anything that reports or charges by rules.
    pub(super) fn notice_trial(&mut self) {
        if let Err(error) = self.watch_trial() {
            tracing::error!("restore the configuration before a trial: {:#}", anyhow::Error::from(error));
        }
    }

    /// Restores the configuration before the trial, which the caller then applies. `why` is logged.
    pub(super) fn forget_trial(&mut self, why: &str) {
        let Some(Running { before, before_path, record, .. }) = self.trials.pending.take() else { return };
        let file = record.file.display().to_string();
        tracing::warn!("{file} is ROLLED BACK, and the configuration before it is in force again: {why}");
        self.journal.add(Occurrence::new(EventKind::Trial, format!("{file} is rolled back: {why}")));
        // No reload has failed, because the last loaded configuration is in force.
        self.trials.last_reload.rolled_back = Some(RolledBack { file, why: why.to_owned() });
        self.hold_to(before);
        self.enforced.source.set_text(record.confirmed.clone(), before_path);
        self.watched.lists.skip(record.refused_lists());
        self.overrides.breaker.reset_counts();
        self.trials.refused = record.refused_text();
        remember(&self.host.store, record.not_confirmed());
        self.enforced.must_apply = true;
        self.statistics.outdate();
    }

    /// Forgets the refused text, because another configuration is in force permanently.
    pub(super) fn settle(&mut self) {
        self.trials.refused = None;
        self.host.store.remove(FILE);
    }
}
