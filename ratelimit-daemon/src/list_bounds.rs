//! Bounds on `deny` list files that would deny too much of the Internet. The previous version stays in force until an
//! administrator accepts the new one.

use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;

use super::engine::Engine;
use super::journal::Occurrence;
use super::list_copies::version;
use super::list_start::objection;
use super::moment::Moment;
use super::trial::is_same;
use ratelimit_control::Requester;
use ratelimit_control::proto::{AcceptList, AcceptReport, Problem, ProblemKind};
use ratelimit_datapath::Datapath;
use ratelimit_policy::config::Config;
use ratelimit_policy::config::file::load_list;
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::config::lists::bounds::{self, Covered};
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::SCHEMA;

impl<D: Datapath> Engine<D> {
    /// Returns the reason why a new version of a list file may not apply: it exceeds the bounds and was not accepted.
    pub(super) fn object_to_version(&self, file: &ListFile, prefixes: &Arc<[IpNet]>) -> Option<String> {
        let config = &self.enforced.config;
        bounds::bounded(config).find(|of| of.path == file.path)?;
        let new = ListFile { prefixes: Arc::clone(prefixes), ..file.clone() };
        objection(config, &new, Some(Arc::clone(&file.prefixes)), &self.list_copies)
    }

    /// Fails if a configuration has a list file that exceeds the bounds and was not accepted.
    pub(super) fn object_to_lists(&self, config: &Config) -> Result<(), Problem> {
        let in_force = |path: &Path| {
            let file = self.enforced.config.list_files.iter().find(|file| file.path == path);
            file.map(|file| Arc::clone(&file.prefixes)).filter(|prefixes| !prefixes.is_empty())
        };
        let objection = |file: &ListFile| {
            let before = in_force(&file.path).or_else(|| self.list_copies.last_good(&file.path));
            let why = objection(config, file, before, &self.list_copies)?;
            Some(format!("{} ({}): {why}", file.named_by, file.path.display()))
        };
        let objections: Vec<String> = bounds::bounded(config).filter_map(objection).collect();
        if objections.is_empty() { Ok(()) } else { Err(Problem::new(ProblemKind::Config, objections.join("\n"))) }
    }

    /// Applies a version of a list file that exceeds the bounds, and remembers the acceptance. Fails during a trial,
    /// or if the file changed since the given version.
    pub(super) fn accept_list(
        &mut self,
        request: &AcceptList,
        by: &Requester,
        moment: Moment,
    ) -> Result<AcceptReport, Problem> {
        if self.trials.pending.is_some() {
            let why = "a file is on trial, and lists wait: `ratelimitd confirm`, or `ratelimitd rollback`, first";
            return Err(Problem::new(ProblemKind::Conflict, why));
        }
        let now = self.clocks(moment)?.now;
        let read = load_list(&request.file).map_err(|wrong| Problem::new(ProblemKind::Config, wrong.to_string()));
        let prefixes: Arc<[IpNet]> = read?.into();
        let (version, covers) = (version(&prefixes), Covered::of(&prefixes).to_string());
        if request.version.as_ref().is_some_and(|asked| *asked != version) {
            let path = request.file.display();
            let why = format!(
                "{path} is another version now, of {} prefixes, which cover {covers}; if that is meant: ratelimitd lists accept {path} {version}",
                prefixes.len()
            );
            return Err(Problem::new(ProblemKind::Conflict, why));
        }
        let is_meant = |file: &&ListFile| file.path == request.file || is_same(&file.path, &request.file);
        let file = self.enforced.config.list_files.iter().find(is_meant).cloned();
        let path = file.as_ref().map_or(&request.file, |file| &file.path);
        let unkept = |error| Problem::new(ProblemKind::Internal, format!("{error}; nothing was changed"));
        self.list_copies.accept(path, &prefixes).map_err(unkept)?;
        let said = format!(
            "{}: version {version}, of {} prefixes that cover {covers}, is accepted by {by}",
            path.display(),
            prefixes.len()
        );
        tracing::warn!(user = %by, file = %path.display(), "{said}");
        self.journal.add(Occurrence::new(EventKind::Reload, said).by(by));
        if let Some(file) = &file {
            if prefixes == file.prefixes {
                self.follow_list(file);
            } else {
                let changed = [(file.clone(), Arc::clone(&prefixes))];
                self.follow_all(&changed, now).map_err(|why| Problem::new(ProblemKind::Config, why))?;
            }
            self.keep_copies();
            self.statistics.outdate();
        }
        let (is_in_force, prefixes) = (file.is_some(), prefixes.len() as u64);
        Ok(AcceptReport { schema: SCHEMA, file: path.clone(), version, prefixes, covers, in_force: is_in_force })
    }

    /// Saves copies of the versions in force, for a start that cannot read the files.
    pub(super) fn keep_copies(&mut self) {
        if self.trials.pending.is_none() {
            self.list_copies.keep(self.watched.lists.good(&self.enforced.config.list_files));
        }
    }
}
