//! A configuration that is tried: in force for a while, and for good only once it is confirmed. The kernel goes back by itself; here it
//! is noticed, said, and remembered over restarts.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::engine::{Engine, Moment};
use super::source::{ConfigFile, ConfigSource, Loaded};
use super::store::Store;
use crate::config::Config;
use crate::config::lists::KnownLists;
use crate::control::proto::{ApplyReport, ApplyRequest, ConfirmReport, Problem, ProblemKind};
use crate::datapath::{Datapath, DatapathError, Trial};
use crate::desired::DesiredState;
use crate::plan::changes;
use crate::snapshot::{Clocks, SCHEMA};

/// The file that remembers it.
const FILE: &str = "trial.json";
/// A shorter time is over before anyone can confirm.
const SECONDS_MIN: u64 = 5;
/// A longer one is no trial.
const SECONDS_MAX: u64 = 86_400;

/// A trial, as it outlives the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    state: Outcome,
    /// The file that was tried.
    file: PathBuf,
    /// When its time is over.
    until: Timestamp,
    /// What the file said.
    tried: String,
    /// What the daemon's own file said when it was last in force for good.
    confirmed: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Pending,
    Refused,
}

/// A trial that runs.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// What packets go back to.
    before: Config,
    /// Where the text of that stood.
    before_path: PathBuf,
    record: Record,
    /// Until when, by the datapath's clock.
    pub(super) until: Nanos,
}

/// What a start begins with.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Config,
    pub(super) source: ConfigSource,
    /// A trial of an earlier run whose time is not over by the wall clock: what was before it, and what is known of it.
    pub(super) pending: Option<(Config, Record)>,
    /// What was tried and not confirmed.
    pub(super) refused: Option<String>,
}

impl Start {
    /// With what the file says, unless that was tried and not confirmed.
    pub(super) fn new(config: Config, mut source: ConfigSource, store: &Store, now: Timestamp) -> Self {
        let plain = |config, source| Self { config, source, pending: None, refused: None };
        let ConfigSource::File(file) = &mut source else { return plain(config, source) };
        let Some(record) = store.load::<Record>(FILE) else { return plain(config, source) };
        let path = file.path.display().to_string();
        let is_tried = file.text == record.tried;
        if !is_tried && (record.state == Outcome::Refused || file.text != record.confirmed) {
            tracing::info!("{path} was changed since a trial was not confirmed, and holds");
            store.remove(FILE);
            return plain(config, source);
        }
        let before = match parse(file, &record.confirmed) {
            Ok(before) => before,
            Err(error) => {
                tracing::error!(
                    "what {path} said before a trial cannot be read any more, so what it says now holds: {error:#}"
                );
                store.remove(FILE);
                return plain(config, source);
            }
        };
        if record.state == Outcome::Pending && now < record.until {
            match parse(file, &record.tried) {
                Ok(tried) => {
                    file.text.clone_from(&record.tried);
                    return Self { config: tried, source, pending: Some((before, record)), refused: None };
                }
                Err(error) => tracing::error!("what was tried cannot be read any more: {error:#}"),
            }
        }
        warn_of_refused(&path, is_tried);
        file.text.clone_from(&record.confirmed);
        let refused = Some(record.tried.clone());
        remember(store, Record { state: Outcome::Refused, ..record });
        Self { config: before, source, pending: None, refused }
    }
}

fn parse(file: &ConfigFile, text: &str) -> anyhow::Result<Config> {
    (file.parse)(&file.path, text, &KnownLists::new())
}

fn warn_of_refused(path: &str, is_tried: bool) {
    if is_tried {
        tracing::error!(
            "{path} WAS TRIED AND NOT CONFIRMED: what it said before holds; change it, or put it in force with `ratelimitd apply`"
        );
    } else {
        tracing::error!("A TRIAL WAS NOT CONFIRMED and is over: what {path} says holds");
    }
}

fn remember(store: &Store, record: Record) {
    if let Err(error) = store.save(FILE, record) {
        tracing::error!("{error}; a restart may put in force what was tried and not confirmed");
    }
}

impl<D: Datapath> Engine<D> {
    /// Goes on with the trial of an earlier run; true if packets are judged by it.
    pub(super) fn resume(&mut self, before: Config, record: Record, moment: Moment) -> Result<bool, DatapathError> {
        if let Trial::Running(until) = self.datapath.trial()? {
            let left_s = until.0.saturating_sub(self.datapath.read()?.now.0) / 1_000_000_000;
            tracing::warn!("{} is still on trial: `ratelimitd confirm` within {left_s} s", record.file.display());
            self.pending = Some(Pending { before, before_path: self.text_path(), record, until });
            return Ok(true);
        }
        let clocks = Clocks { now: self.datapath.read()?.now, wall: moment.wall };
        let (before_path, until) = (self.text_path(), clocks.datapath_of(record.until));
        self.pending = Some(Pending { before, before_path, record, until });
        self.forget_trial("the trial of an earlier run is over");
        Ok(false)
    }

    /// Why nothing else may change now.
    pub(super) fn settled(&self, now: Nanos) -> Result<(), Problem> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let left_s = pending.until.0.saturating_sub(now.0).div_ceil(1_000_000_000);
        let file = pending.record.file.display();
        let why = format!(
            "{file} is on trial for {left_s} s more: `ratelimitd confirm` it first, or wait until it is rolled back"
        );
        Err(Problem::new(ProblemKind::Conflict, why))
    }

    /// Puts a file in force: for good, or on trial.
    pub(super) fn apply(&mut self, request: &ApplyRequest, uid: u32, moment: Moment) -> Result<ApplyReport, Problem> {
        self.notice_trial();
        let clocks = self.clocks(moment)?;
        self.settled(clocks.now)?;
        let ConfigSource::File(own) = &self.source else {
            let why =
                "this daemon was started from flags, and has no file to apply; use `ratelimitd run --config FILE`";
            return Err(Problem::new(ProblemKind::Config, why));
        };
        let file = request.file.clone().unwrap_or_else(|| own.path.clone());
        let is_own = file == own.path;
        let loaded = (own.load)(&file).map_err(|error| Problem::new(ProblemKind::Config, format!("{error:#}")))?;
        let user = super::orders::user_name(uid);
        tracing::info!(user, file = %file.display(), "apply {}, as {user} said", file.display());
        let mut notes = Vec::new();
        if !is_own {
            let own = own.path.display();
            notes.push(format!("a restart and a reload read {own}: copy {} there to keep it", file.display()));
        }
        let changes = match request.confirm_seconds {
            None => self.take_on(loaded, &file.display().to_string(), moment)?,
            Some(seconds) => {
                let changes = self.try_out(loaded, file, seconds, clocks, &mut notes)?;
                if self.pending.is_some() {
                    self.lists.taken(&self.config.list_files, moment);
                }
                changes
            }
        };
        notes.extend(self.warn_of_lockouts(&self.config, request.ssh, clocks.now));
        let confirm_within_seconds = request.confirm_seconds.filter(|_| self.pending.is_some());
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
        self.can_follow(&loaded.config, &path)?;
        if loaded.config.interfaces != self.config.interfaces {
            let why =
                format!("{path} changes the interfaces, which cannot be rolled back: apply that without --confirm");
            return Err(Problem::new(ProblemKind::Config, why));
        }
        let interfaces = self.desired.interfaces.clone();
        let desired = DesiredState { interfaces, policy: self.policy_of(&loaded.config, clocks.now) };
        let changes = changes(&self.desired, &desired);
        if changes.is_empty() {
            notes.push("it says what is enforced already: there is nothing to confirm".to_owned());
            return Ok(changes);
        }
        let until = clocks.after(Duration::from_secs(seconds).as_nanos().try_into().unwrap_or(u64::MAX));
        let record = Record {
            state: Outcome::Pending,
            file,
            until: clocks.wall_of(until),
            tried: loaded.text.clone(),
            confirmed: self.text().to_owned(),
        };
        // First what a restart needs to know: a trial that it does not know of would be taken for confirmed.
        self.host.store.save(FILE, &record).map_err(|error| {
            Problem::new(
                ProblemKind::Internal,
                format!("{error}; without it a restart could not roll back, so nothing was changed"),
            )
        })?;
        if let Err(error) = self.datapath.apply_until(&desired.policy, until) {
            self.host.store.remove(FILE);
            return Err(Problem::datapath(error));
        }
        for change in &changes {
            tracing::warn!("on trial for {seconds} s: {change}");
        }
        let before_path = self.text_path();
        self.set_text(loaded.text, record.file.clone());
        let before = std::mem::replace(&mut self.config, loaded.config);
        self.desired = desired;
        self.pending = Some(Pending { before, before_path, record, until });
        self.newest = None;
        Ok(changes)
    }

    /// Keeps what is on trial.
    pub(super) fn confirm(&mut self, uid: u32, moment: Moment) -> Result<ConfirmReport, Problem> {
        if self.pending.is_none() {
            return Err(Problem::new(ProblemKind::BadRequest, "there is nothing to confirm: no file is on trial"));
        }
        if !self.datapath.confirm().map_err(Problem::datapath)? {
            self.watch_trial().map_err(Problem::datapath)?;
            let why = "too late: the time was over, and what held before holds again; `ratelimitd apply --confirm` tries anew";
            return Err(Problem::new(ProblemKind::Conflict, why));
        }
        let user = super::orders::user_name(uid);
        let file = self.pending.take().map(|pending| pending.record.file).unwrap_or_default();
        self.host.store.remove(FILE);
        self.refused = None;
        self.newest = None;
        self.note_success(moment);
        tracing::info!(user, file = %file.display(), "{} is confirmed by {user}", file.display());
        let now = self.clocks(moment)?.now;
        // What has ended or tripped meanwhile.
        self.put_in_force(now).map_err(Problem::datapath)?;
        Ok(ConfirmReport { schema: SCHEMA, file })
    }

    /// Notices that packets have gone back.
    pub(super) fn watch_trial(&mut self) -> Result<(), DatapathError> {
        if self.pending.is_none() {
            return Ok(());
        }
        match self.datapath.trial()? {
            Trial::Running(_) => Ok(()),
            Trial::Over | Trial::None => {
                self.forget_trial("nobody confirmed it in time");
                let now = self.datapath.read()?.now;
                self.put_in_force(now)
            }
        }
    }

    /// Has what is answered now follow the packets, which go back by themselves: before anything that shows or charges by rules.
    pub(super) fn notice_trial(&mut self) {
        if let Err(error) = self.watch_trial() {
            tracing::error!("put in force what was before a trial: {:#}", anyhow::Error::from(error));
        }
    }

    /// What was before the trial holds again, once it is applied, which is left to the caller; `why` is said loudly.
    pub(super) fn forget_trial(&mut self, why: &str) {
        let Some(Pending { before, before_path, record, .. }) = self.pending.take() else { return };
        let file = record.file.display().to_string();
        let message = format!("{file} is ROLLED BACK, and what held before holds again: {why}");
        tracing::error!("{message}");
        self.last_reload.last_reload_successful = false;
        self.last_reload.error = Some(message);
        self.config = before;
        self.set_text(record.confirmed.clone(), before_path);
        self.lists.forget();
        self.refused = Some(record.tried.clone());
        remember(&self.host.store, Record { state: Outcome::Refused, ..record });
        self.must_apply = true;
        self.newest = None;
    }

    /// Why a text must not be put in force without being asked for by name.
    pub(super) fn is_refused(&self, text: &str) -> bool {
        self.refused.as_deref() == Some(text)
    }

    /// Something else holds for good: what was refused is of no interest any more.
    pub(super) fn settle(&mut self) {
        if self.refused.take().is_some() {
            self.host.store.remove(FILE);
        }
    }

    fn text(&self) -> &str {
        match &self.source {
            ConfigSource::Flags | ConfigSource::FlagsWithLists(_) => "",
            ConfigSource::File(file) => &file.text,
        }
    }

    fn text_path(&self) -> PathBuf {
        match &self.source {
            ConfigSource::Flags | ConfigSource::FlagsWithLists(_) => PathBuf::new(),
            ConfigSource::File(file) => file.text_path.clone(),
        }
    }

    pub(super) fn set_text(&mut self, text: String, path: PathBuf) {
        match &mut self.source {
            ConfigSource::Flags | ConfigSource::FlagsWithLists(_) => {}
            ConfigSource::File(file) => (file.text, file.text_path) = (text, path),
        }
    }
}
