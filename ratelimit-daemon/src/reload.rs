//! Change from one configuration to the next, as a whole or not at all.

use ratelimit_common::time::Nanos;

use super::carry_out::carry_out;
use super::engine::Engine;
use super::journal::Occurrence;
use super::moment::Moment;
use super::source::{ConfigSource, Loaded};
use ratelimit_control::Requester;
use ratelimit_control::proto::{ApplyReport, ApplyRequest, Problem, ProblemKind, ReloadReport, ReloadRequest};
use ratelimit_crash::{Point, reach};
use ratelimit_datapath::Datapath;
use ratelimit_policy::config::lists::written_by_others;
use ratelimit_policy::config::{Config, beside};
use ratelimit_policy::desired::DesiredState;
use ratelimit_policy::plan::{changes, diff};
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::SCHEMA;

/// Returns the outcome of a reload as an event.
fn reloaded(outcome: Result<&[String], &Problem>, what: &str) -> Occurrence {
    let detail = match outcome {
        Ok([]) => format!("{what}: no change"),
        Ok(changes) => format!("{what}: {}", changes.join("; ")),
        Err(problem) => format!("{what} refused, nothing was changed: {}", problem.message),
    };
    Occurrence::new(EventKind::Reload, detail)
}

/// Outcome of a reload.
pub(super) type Reloaded = Result<ReloadReport, Problem>;

impl<D: Datapath> Engine<D> {
    /// Reloads on a signal. The outcome is in the log and in the statistics.
    pub(super) fn reload_unasked(&mut self, moment: Moment) {
        let outcome = self.reload(ReloadRequest::default(), moment);
        let note = reloaded(outcome.as_ref().map(|of| of.changes.as_slice()), "reload");
        self.journal.add(note);
    }

    /// Reloads by a user's command.
    pub(super) fn reload_by(&mut self, request: ReloadRequest, by: &Requester, moment: Moment) -> Reloaded {
        let outcome = self.reload(request, moment);
        let note = reloaded(outcome.as_ref().map(|of| of.changes.as_slice()), "reload");
        self.journal.add(note.by(by));
        outcome
    }

    /// Applies a file by a user's command.
    pub(super) fn apply_by(
        &mut self,
        request: &ApplyRequest,
        by: &Requester,
        moment: Moment,
    ) -> Result<ApplyReport, Problem> {
        let outcome = self.apply(request, by, moment);
        let own = match &self.enforced.source {
            ConfigSource::File(own) => Some(&own.path),
            ConfigSource::Flags | ConfigSource::FlagsWithLists(_) => None,
        };
        let file = request.file.as_ref().or(own);
        let file = file.map_or_else(|| "the file".to_owned(), |file| file.display().to_string());
        let trial = outcome.as_ref().ok().and_then(|report| report.confirm_within_seconds);
        let note = match trial {
            Some(seconds) => Occurrence::new(EventKind::Trial, format!("{file} is on trial for {seconds} s")),
            None => reloaded(outcome.as_ref().map(|of| of.changes.as_slice()), &format!("apply {file}")),
        };
        self.journal.add(note.by(by));
        outcome
    }

    /// Reads the file again and applies it as a whole or not at all.
    pub(super) fn reload(&mut self, request: ReloadRequest, moment: Moment) -> Reloaded {
        self.notice_trial();
        self.beat_ahead();
        let now = self.clocks(moment)?.now;
        let (mut changes, mut notes) = (Vec::new(), Vec::new());
        // The certificate comes first, because a faulty policy must not keep an old certificate.
        self.renew_certificate(&mut changes, &mut notes);
        let ConfigSource::File(file) = &self.enforced.source else {
            if self.certificate.tls().is_some() {
                return Ok(ReloadReport { schema: SCHEMA, changes, notes });
            }
            let why =
                "there is nothing to reload: this daemon was started from flags; use `ratelimitd run --config FILE`";
            tracing::warn!("{why}");
            return Err(Problem::new(ProblemKind::Config, why));
        };
        let path = file.path.display().to_string();
        let loaded = (file.load)(&file.path).map_err(|error| Problem::new(ProblemKind::Config, format!("{error:#}")));
        let loaded = loaded.and_then(|loaded| {
            if self.trials.is_refused(&loaded.text) {
                let why = format!(
                    "{path} was tried and not confirmed; change it, or put it in force with `ratelimitd apply`"
                );
                return Err(Problem::new(ProblemKind::Conflict, why));
            }
            self.trials.settled(now)?;
            self.object_to_lists(&loaded.config)?;
            if !request.force {
                self.object_to_lockout(&loaded.config, request.ssh, now)?;
            }
            Ok(loaded)
        });
        reach(Point::ReloadRead);
        match loaded {
            Ok(loaded) => {
                changes.extend(self.take_on(loaded, &path, &mut notes, moment)?);
            }
            Err(problem) => return Err(self.trials.failed(problem)),
        }
        notes.extend(self.overrides.warn_of_lockouts(&self.enforced.config, request.ssh, now));
        notes.extend(written_by_others(&self.enforced.config.list_files));
        Ok(ReloadReport { schema: SCHEMA, changes, notes })
    }

    /// Reads the certificate again. Its failure never delays the policy.
    fn renew_certificate(&mut self, changes: &mut Vec<String>, notes: &mut Vec<String>) {
        match self.certificate.read() {
            Some(Ok(true)) => {
                tracing::info!("TLS: a new certificate is served from now on");
                changes.push("certificate: replaced".to_owned());
            }
            Some(Err(why)) => notes.push(why),
            Some(Ok(false)) | None => {}
        }
    }

    /// Applies a configuration as a whole or not at all, and records the outcome. Also reports whether the fleet's
    /// secret changed.
    pub(super) fn take_on(
        &mut self,
        loaded: Loaded,
        path: &str,
        notes: &mut Vec<String>,
        moment: Moment,
    ) -> Result<Vec<String>, Problem> {
        let now = self.clocks(moment)?.now;
        let secret = self.fleet.secret_news(loaded.config.fleet.as_ref());
        let outcome = self.trials.settled(now).and_then(|()| {
            self.look_around();
            let tripped = std::mem::take(&mut self.overrides.breaker);
            let outcome = self.change_to(loaded.config, path, now);
            if outcome.is_err() {
                self.overrides.breaker = tripped;
            } else {
                for rule in tripped.tripped() {
                    let said = format!("rule {rule} follows the configuration again: {path} was loaded");
                    self.journal.add(Occurrence::new(EventKind::Breaker, said).of(rule));
                }
                // The new configuration may have another [safety] section.
                self.look_around();
            }
            outcome
        });
        reach(Point::ReloadCarried);
        match outcome {
            Ok(mut changes) => {
                match secret {
                    Some(Ok(true)) => changes.push("the fleet's secret was read again".to_owned()),
                    Some(Err(why)) => notes.push(why),
                    Some(Ok(false)) | None => {}
                }
                tracing::info!("reloaded {path}: {}", if changes.is_empty() { "no change" } else { "carried out" });
                self.enforced.source.set_text(loaded.text, path.into());
                self.watched.lists.taken(&self.enforced.config.list_files, moment);
                self.list_copies.retain(&self.enforced.config.list_files);
                self.keep_copies();
                self.fleet.loaded();
                self.follow_fleet(moment);
                self.settle();
                reach(Point::ReloadSettled);
                self.trials.succeeded(moment);
                Ok(changes)
            }
            Err(problem) => Err(self.trials.failed(problem)),
        }
    }

    fn change_to(&mut self, config: Config, path: &str, now: Nanos) -> Result<Vec<String>, Problem> {
        self.enforced.can_follow(&config, path)?;
        self.refuse_shared_paths(&config.interfaces).map_err(|error| {
            let problem = Problem::datapath(error);
            Problem { message: format!("{path}: {}; nothing was changed", problem.message), ..problem }
        })?;
        let desired =
            DesiredState { interfaces: config.interfaces.clone(), policy: self.overrides.policy_of(&config, now) };
        let plan = diff(&self.enforced.desired, &desired);
        let mut changes = changes(&self.enforced.desired, &desired);
        let capacity = self.datapath.read().map_err(Problem::datapath)?.sources_capacity;
        changes.extend(beside::changes(&self.enforced.config, &config));
        let attached = carry_out(&mut self.datapath, &self.enforced.desired.policy, &plan).map_err(|error| {
            let problem = Problem::datapath(error);
            Problem { message: format!("{path}: {}", problem.message), ..problem }
        })?;
        changes.extend(self.capacity_change(capacity));
        for change in &changes {
            tracing::info!("reload: {change}");
        }
        for interface in &plan.detach {
            self.watched.links.forget(interface);
        }
        for (interface, mode) in attached {
            self.watched.links.attached(&interface, mode);
        }
        self.enforced.desired = desired;
        self.hold_to(config);
        self.statistics.outdate();
        Ok(changes)
    }

    /// Describes a change of the maps' capacity. The maps were created for the limits of the start, so with more
    /// limits they hold fewer sources.
    fn capacity_change(&mut self, before: u64) -> Option<String> {
        let after = self.datapath.read().ok()?.sources_capacity;
        let remedy = "; the maps were made for fewer limits: `ratelimitd detach` and a restart make room";
        let remedy = if after < before { remedy } else { "" };
        (before != after).then(|| format!("sources remembered of each family: {before} -> {after}{remedy}"))
    }
}
