//! What a start begins with: what the file says, unless that was tried and not confirmed.

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

/// The file that remembers a trial.
pub(super) const FILE: &str = "trial.json";

/// List files by path, as they are kept: sorted prefixes, each once.
type KeptLists = BTreeMap<PathBuf, Vec<IpNet>>;

/// A trial, as it outlives the daemon. It has the lists of both texts, which may be gone or other by the next start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    state: Outcome,
    /// The file that was tried.
    pub(super) file: PathBuf,
    /// When its time is over.
    pub(super) until: Timestamp,
    /// What the file said.
    pub(super) tried: String,
    /// What held for good before.
    pub(super) confirmed: String,
    /// Where that stood; the daemon's own file without it.
    #[serde(default)]
    before_file: Option<PathBuf>,
    /// The list files that `confirmed` names.
    #[serde(default)]
    confirmed_lists: KeptLists,
    /// Those that `tried` names, where they are not as in `confirmed_lists`.
    #[serde(default)]
    tried_lists: KeptLists,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Pending,
    Refused,
}

/// A text with what it was parsed to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) lists: &'a [ListFile],
}

impl Record {
    /// Of a trial that begins.
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

    /// The same, once it was not confirmed.
    pub(super) fn not_confirmed(self) -> Self {
        Self { state: Outcome::Refused, ..self }
    }

    /// The text that nobody is to get without asking for it by name. Where only lists are other, what held is that very text.
    pub(super) fn refused_text(&self) -> Option<String> {
        (self.tried != self.confirmed).then(|| self.tried.clone())
    }

    /// The same of list files that what held before names too.
    pub(super) fn refused_lists(&self) -> KnownLists {
        known(self.tried_lists.iter().filter(|(path, _)| self.confirmed_lists.contains_key(*path)))
    }

    /// A list file has changed since: what it held in the trial is as good as anything else. True if that was known.
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

/// A trial of an earlier run whose time is not over by the wall clock.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// What was before it.
    pub(super) before: Config,
    /// Where the text of that stood.
    pub(super) before_path: PathBuf,
    pub(super) record: Record,
}

/// What a start begins with.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Config,
    pub(super) source: ConfigSource,
    pub(super) unfinished: Option<Unfinished>,
    /// What was tried and not confirmed.
    pub(super) refused: Option<String>,
    /// The same of list files; none where all of them have just been read.
    pub(super) refused_lists: Option<KnownLists>,
    /// List files that could not be taken as they stood, of a configuration that is the one of the file.
    pub(super) fallbacks: Fallbacks,
    /// That the file says something that was tried and not confirmed.
    pub(super) rolled_back: Option<RolledBack>,
}

impl Start {
    /// With what the file says, unless that was tried and not confirmed.
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
            tracing::info!("{path} was changed since a trial was not confirmed, and holds");
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
                Err(error) => tracing::error!("what was tried cannot be read any more: {error:#}"),
            }
        }
        if is_confirmed && record.state == Outcome::Refused && refused_lists.is_empty() {
            store.remove(FILE);
            return plain(config, source);
        }
        if is_confirmed {
            tracing::error!("A TRIAL WAS NOT CONFIRMED and is over: what {path} says holds");
        } else {
            tracing::error!(
                "{path} WAS TRIED AND NOT CONFIRMED: what it said before holds; change it, or put it in force with `ratelimitd apply`"
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

/// What held before, by its list files as they are now: by those of then where they cannot be had any more, or hold what was tried
/// and not confirmed. These are returned with it.
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

/// Has later starts know of a trial that was not confirmed.
pub(super) fn remember(store: &Store, record: Record) {
    if let Err(error) = store.save(FILE, record) {
        tracing::error!("{error}; a restart may put in force what was tried and not confirmed");
    }
}

/// A list file has changed since it was tried and not confirmed: a later start need not hold it back.
pub(super) fn forgive_list(store: &Store, path: &Path) {
    let Some(mut record) = store.load::<Record>(FILE) else { return };
    if record.forgive(path) {
        remember(store, record);
    }
}
