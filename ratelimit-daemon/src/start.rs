//! Configuration that a start begins with: the file's, unless it was tried and not confirmed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::DaemonError;
use super::list_start::Fallbacks;
use super::source::{ConfigFile, ConfigSource};
use super::store::Store;
use ratelimit_policy::config::Config;
use ratelimit_policy::config::lists::{KnownLists, ListFile};
use ratelimit_report::snapshot::RolledBack;

/// Name of the state file that records a trial.
pub(super) const FILE: &str = "trial.json";

/// List files by path, as saved in the state: sorted prefixes without duplicates.
type KeptLists = BTreeMap<PathBuf, Vec<IpNet>>;

/// Record of a trial that survives the daemon. It includes the list files of both configurations, which may be gone
/// or changed by the next start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    state: Outcome,
    /// Configuration file that was tried.
    pub(super) file: PathBuf,
    /// End of the trial.
    pub(super) until: Timestamp,
    /// Text that was tried.
    pub(super) tried: String,
    /// Text that was in force before the trial.
    pub(super) confirmed: String,
    /// Path of the text that was in force before. None means the daemon's own file.
    #[serde(default)]
    before_file: Option<PathBuf>,
    /// List files that `confirmed` names.
    #[serde(default)]
    confirmed_lists: KeptLists,
    /// List files that `tried` names and that differ from `confirmed_lists`.
    #[serde(default)]
    tried_lists: KeptLists,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Pending,
    Refused,
}

/// Configuration text and the list files that it named when parsed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) lists: &'a [ListFile],
}

impl Record {
    /// Creates the record of a trial that begins.
    pub(super) fn new(tried: Version<'_>, confirmed: Version<'_>, until: Timestamp) -> Self {
        let confirmed_lists = kept(confirmed.lists);
        let mut tried_lists = kept(tried.lists);
        tried_lists.retain(|path, prefixes| confirmed_lists.get(path) != Some(prefixes));
        Self {
            state: Outcome::Pending,
            file: tried.path.to_owned(),
            until,
            tried: tried.text.to_owned(),
            confirmed: confirmed.text.to_owned(),
            before_file: Some(confirmed.path.to_owned()),
            confirmed_lists,
            tried_lists,
        }
    }

    /// Returns the record marked as not confirmed.
    pub(super) fn not_confirmed(self) -> Self {
        Self { state: Outcome::Refused, ..self }
    }

    /// Returns the text that was tried and not confirmed. None if the trial differed only in its lists, because the
    /// text itself was already in force.
    pub(super) fn refused_text(&self) -> Option<String> {
        (self.tried != self.confirmed).then(|| self.tried.clone())
    }

    /// Returns the list contents that were tried and not confirmed, for files that the previous configuration names
    /// too.
    pub(super) fn refused_lists(&self) -> KnownLists {
        known(self.tried_lists.iter().filter(|(path, _)| self.confirmed_lists.contains_key(*path)))
    }

    /// Forgets the tried content of a list file that has changed since. Returns true if there was any.
    fn forgive(&mut self, list: &Path) -> bool {
        self.tried_lists.remove(list).is_some()
    }
}

fn kept(lists: &[ListFile]) -> KeptLists {
    lists.iter().map(|of| (of.path.clone(), of.prefixes.to_vec())).collect()
}

fn known<'a>(lists: impl IntoIterator<Item = (&'a PathBuf, &'a Vec<IpNet>)>) -> KnownLists {
    lists.into_iter().map(|(path, prefixes)| (path.clone(), Arc::from(prefixes.as_slice()))).collect()
}

/// Trial of an earlier run that has not expired by the wall clock.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Configuration before the trial.
    pub(super) before: Config,
    /// Path of that configuration's text.
    pub(super) before_path: PathBuf,
    pub(super) record: Record,
}

/// Configuration and trial state that a start begins with.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Config,
    pub(super) source: ConfigSource,
    pub(super) unfinished: Option<Unfinished>,
    /// Text that was tried and not confirmed.
    pub(super) refused: Option<String>,
    /// List contents that were tried and not confirmed. None if all list files have just been read.
    pub(super) refused_lists: Option<KnownLists>,
    /// Fallbacks for list files that could not be taken unchanged. Empty unless the configuration is the file's own.
    pub(super) fallbacks: Fallbacks,
    /// Report of a rollback, if the file holds a text that was tried and not confirmed.
    pub(super) rolled_back: Option<RolledBack>,
}

impl Start {
    /// Chooses the configuration: the file's, unless it was tried and not confirmed. A trial that has not expired is
    /// resumed.
    pub(super) fn new(
        config: Config,
        mut source: ConfigSource,
        store: &Store,
        now: Timestamp,
    ) -> Result<Self, DaemonError> {
        let fallbacks = source.take_fallbacks();
        let plain = |config, source| {
            let (unfinished, refused, refused_lists, rolled_back) = (None, None, None, None);
            Ok(Self { config, source, unfinished, refused, refused_lists, fallbacks, rolled_back })
        };
        let ConfigSource::File(file) = &mut source else { return plain(config, source) };
        let Some(record) = store.load::<Record>(FILE) else { return plain(config, source) };
        let path = file.path.display().to_string();
        let is_confirmed = file.text == record.confirmed;
        if !is_confirmed && file.text != record.tried {
            tracing::info!("{path} was changed after its unconfirmed trial, and is in force");
            store.remove(FILE);
            return plain(config, source);
        }
        let own_path = file.path.clone();
        let before_path = record.before_file.clone().filter(|_| !is_confirmed).unwrap_or(own_path);
        let (before, refused_lists) = before(file, &before_path, &record).map_err(|why| DaemonError::Refused {
            path: path.clone(),
            why: format!("{why:#}"),
            record: store.path(FILE),
        })?;
        if record.state == Outcome::Pending && now < record.until {
            let lists = known(record.confirmed_lists.iter().chain(&record.tried_lists));
            match (file.parse)(&record.file, &record.tried, &lists) {
                Ok(tried) => {
                    (file.text, file.text_path) = (record.tried.clone(), record.file.clone());
                    let unfinished = Some(Unfinished { before, before_path, record });
                    let refused_lists = Some(KnownLists::new());
                    return Ok(Self {
                        config: tried,
                        source,
                        unfinished,
                        refused: None,
                        refused_lists,
                        fallbacks: Fallbacks::new(),
                        rolled_back: None,
                    });
                }
                Err(error) => tracing::error!("the file on trial cannot be read: {error:#}"),
            }
        }
        if is_confirmed && record.state == Outcome::Refused && refused_lists.is_empty() {
            store.remove(FILE);
            return plain(config, source);
        }
        if is_confirmed {
            tracing::error!("A TRIAL WAS NOT CONFIRMED and is over: {path} is in force");
        } else {
            tracing::error!(
                "{path} WAS TRIED AND NOT CONFIRMED: its content before the trial is in force; change it, or put it \
                 in force with `ratelimitd apply`"
            );
        }
        (file.text, file.text_path) = (record.confirmed.clone(), before_path);
        let refused = record.refused_text();
        let why = "it was not confirmed before the daemon started again".to_owned();
        let rolled_back = Some(RolledBack { file: record.file.display().to_string(), why });
        remember(store, record.not_confirmed());
        let refused_lists = Some(refused_lists);
        let fallbacks = Fallbacks::new();
        Ok(Self { config: before, source, unfinished: None, refused, refused_lists, fallbacks, rolled_back })
    }
}

/// Parses the configuration from before the trial with its current list files. Falls back to the recorded list
/// contents for files that are missing or hold what was tried and not confirmed. Returns also the list contents to
/// refuse.
fn before(file: &ConfigFile, path: &Path, record: &Record) -> anyhow::Result<(Config, KnownLists)> {
    let parse = |lists: &KnownLists| (file.parse)(path, &record.confirmed, lists);
    let (kept, refused) = (known(&record.confirmed_lists), record.refused_lists());
    let Ok(config) = parse(&KnownLists::new()) else { return Ok((parse(&kept)?, refused)) };
    let is_held = |of: &&ListFile| refused.get(&of.path) == Some(&of.prefixes);
    let held = config.list_files.iter().filter(is_held).filter_map(|of| kept.get_key_value(&of.path));
    let held: KnownLists = held.map(|(path, prefixes)| (path.clone(), Arc::clone(prefixes))).collect();
    if held.is_empty() {
        return Ok((config, held));
    }
    Ok((parse(&held)?, refused))
}

/// Saves the record of an unconfirmed trial for later starts.
pub(super) fn remember(store: &Store, record: Record) {
    if let Err(error) = store.save(FILE, record) {
        tracing::error!("{error}; a restart may put the unconfirmed file in force");
    }
}

/// Removes a changed list file from the record, so that later starts no longer refuse it.
pub(super) fn forgive_list(store: &Store, path: &Path) {
    let Some(mut record) = store.load::<Record>(FILE) else { return };
    if record.forgive(path) {
        remember(store, record);
    }
}
