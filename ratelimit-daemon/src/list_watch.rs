//! Watcher of the list files that the running configuration names. A file is read again once it has changed and come
//! to rest. An invalid file leaves its previous content in force, and is reported once. The configuration file itself
//! is not watched.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::journal::Occurrence;
use super::list_start::{Fallback, Fallbacks, became_empty};
use super::moment::Moment;
use super::start::forgive_list;
use ratelimit_control::proto::Problem;
use ratelimit_datapath::Datapath;
use ratelimit_policy::config::Config;
use ratelimit_policy::config::file::{load_list, read_list};
use ratelimit_policy::config::lists::{KnownLists, ListFile, parse_tolerant};
use ratelimit_policy::diagnostic::Diagnostics;
use ratelimit_policy::safety::PassedOver;
use ratelimit_report::event::EventKind;
use ratelimit_report::snapshot::{ListFileReport, ListState, passed_over_words};

/// Minimum interval between two looks. A file must be unchanged across it before it is read.
const LOOK_EVERY: Duration = Duration::from_millis(1_500);
/// Minimum age of a timestamp to trust. A younger file may change again within the granularity of the file system's
/// clock.
const SETTLED_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(2);
/// Time after which a file that changes at every look is reported as not followed.
const RESTLESS_AFTER: Duration = Duration::from_secs(30);
/// Report for a file that never comes to rest.
const RESTLESS: &str = "it changes all the time; it is read once it has rested for two seconds";
/// Report for list content that was tried and not confirmed.
const REFUSED: &str = "its content was tried and not confirmed; `ratelimitd reload` puts it in force";

/// Identity of a file's state. None if there is no file.
type Stamp = Option<FileStamp>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    /// Device and inode numbers. They change when another file is renamed over this one.
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    /// Change time. It cannot be set by hand, and a rename updates it.
    changed: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Stamp {
        let of = path.metadata().ok()?;
        Some(Self {
            file: (of.dev(), of.ino()),
            size: of.size(),
            modified: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        })
    }

    fn is_settled(&self, now: Timestamp) -> bool {
        let newest = self.modified.max(self.changed).0;
        let rested = Timestamp::from_second(newest).and_then(|at| at.checked_add(SETTLED_AFTER));
        // A timestamp far in the future never settles. That is safe, because each change yields another stamp.
        rested.is_ok_and(|rested| rested < now)
    }
}

/// Reason why a list file cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong {
    why: String,
    /// Number of the first bad line, if the reason concerns a line.
    line: Option<usize>,
}

impl From<&str> for Wrong {
    fn from(why: &str) -> Self {
        Self { why: why.to_owned(), line: None }
    }
}

impl From<Diagnostics> for Wrong {
    fn from(wrong: Diagnostics) -> Self {
        Self { why: wrong.to_string().replace('\n', "; "), line: wrong.first().line() }
    }
}

/// State of the watched list files.
#[derive(Debug, Default)]
pub(super) struct ListWatch {
    /// Stamp of each file just before its last read, whether or not the read succeeded.
    read: BTreeMap<PathBuf, Stamp>,
    /// Stamp of each file at the last look.
    seen: BTreeMap<PathBuf, Stamp>,
    looked_at: Duration,
    /// Files that changed at every look, with the uptime of the first change.
    restless: BTreeMap<PathBuf, Duration>,
    /// Files that cannot be followed, and the reason.
    stale: BTreeMap<PathBuf, Wrong>,
    /// Fallbacks of the start for files that it could not take unchanged. Kept until the file can be followed.
    fallbacks: Fallbacks,
    /// Contents that were tried and not confirmed. Not followed until the file changes again.
    refused: KnownLists,
    /// List entries that are currently passed over. Each is reported once.
    passed_over: BTreeSet<IpNet>,
}

impl ListWatch {
    /// Resets the state after all files were read.
    pub(super) fn taken(&mut self, files: &[ListFile], moment: Moment) {
        self.seen = stamps(files);
        // The stamps are taken after the read. An unsettled one may belong to a later change, so it is discarded.
        let is_settled = |stamp: &Stamp| stamp.is_some_and(|stamp| stamp.is_settled(moment.wall));
        self.read = self.seen.clone().into_iter().filter(|(_, stamp)| is_settled(stamp)).collect();
        self.looked_at = moment.uptime;
        self.stale.clear();
        self.fallbacks.clear();
        self.refused.clear();
    }

    /// Adopts the fallbacks of the start. Returns a message for each.
    pub(super) fn begin(&mut self, fallbacks: Fallbacks, files: &[ListFile]) -> Vec<String> {
        let is_stale = |of: &Fallback| of.state != ListState::InForce;
        let wrong = |of: &Fallback| Wrong { why: of.why.clone(), line: of.line };
        let stale = fallbacks.iter().filter(|(_, of)| is_stale(of)).map(|(path, of)| (path.clone(), wrong(of)));
        self.stale.extend(stale);
        self.fallbacks = fallbacks;
        let reports = self.reports(files).into_iter();
        reports.filter_map(|of| Some(format!("{}: {}", of.words()?, of.why.unwrap_or_default()))).collect()
    }

    /// Reports the state of each list file.
    pub(super) fn reports(&self, files: &[ListFile]) -> Vec<ListFileReport> {
        let report = |file: &ListFile| {
            let fallback = self.fallbacks.get(&file.path);
            let stale = self.stale.get(&file.path);
            let state = match (stale, fallback.map(|of| of.state)) {
                (None, _) => ListState::InForce,
                (Some(_), Some(ListState::LeftOut)) => ListState::LeftOut,
                (Some(_), Some(ListState::InForce | ListState::LastGood) | None) => ListState::LastGood,
            };
            let why = stale.map(|of| &of.why).or(fallback.map(|of| &of.why)).cloned();
            let line = stale.map_or_else(|| fallback.and_then(|of| of.line), |of| of.line);
            ListFileReport {
                file: file.path.display().to_string(),
                state,
                lines_left_out: fallback.map_or(0, |of| of.lines_left_out as u64),
                line: line.map(|line| line as u64),
                why,
            }
        };
        files.iter().map(report).collect()
    }

    /// Describes the list files that are not fully in force, one sentence each.
    pub(super) fn partly_words(&self, files: &[ListFile]) -> Vec<String> {
        self.reports(files).iter().filter_map(ListFileReport::words).collect()
    }

    /// Returns the files with a good version in force. Excludes files that the start left out, wholly or partly.
    pub(super) fn good<'a>(&'a self, files: &'a [ListFile]) -> impl Iterator<Item = &'a ListFile> {
        let is_good = |file: &&ListFile| match self.fallbacks.get(&file.path).map(|of| of.state) {
            None | Some(ListState::LastGood) => true,
            Some(ListState::InForce | ListState::LeftOut) => false,
        };
        files.iter().filter(is_good)
    }

    /// Returns true if a damaged file still has the valid lines that the start adopted.
    fn is_as_taken(&self, file: &ListFile) -> bool {
        let is_damaged = self.fallbacks.get(&file.path).is_some_and(|of| of.state == ListState::InForce);
        let tolerated = || parse_tolerant(&file.path, &read_list(&file.path).ok()?);
        is_damaged && tolerated().is_some_and(|of| of.prefixes[..] == file.prefixes[..])
    }

    /// Forgets all stamps, so that every file is read again, because the age of the content in force is unknown.
    /// Contents that were tried and not confirmed are skipped.
    pub(super) fn skip(&mut self, refused: KnownLists) {
        let passed_over = std::mem::take(&mut self.passed_over);
        *self = Self { looked_at: self.looked_at, refused, passed_over, ..Self::default() };
    }

    fn is_refused(&self, file: &ListFile, prefixes: &Arc<[IpNet]>) -> bool {
        self.refused.get(&file.path) == Some(prefixes)
    }

    /// Replaces the set of entries that are passed over. Returns the new ones.
    fn pass_over(&mut self, mut now: Vec<PassedOver>) -> Vec<PassedOver> {
        let all = now.iter().map(|of| of.prefix).collect();
        let before = std::mem::replace(&mut self.passed_over, all);
        now.retain(|of| !before.contains(&of.prefix));
        now
    }

    /// Returns the number of entries that are passed over.
    pub(super) fn passed_over(&self) -> u64 {
        self.passed_over.len() as u64
    }

    /// Describes how many entries are passed over, if any. Names no entry, because everyone may read the text.
    pub(super) fn passed_over_words(&self) -> Option<String> {
        passed_over_words(self.passed_over())
    }

    /// Returns the paths of files that cannot be followed, and the reasons.
    pub(super) fn stale(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.stale.iter().map(|(path, of)| (path.as_path(), of.why.as_str()))
    }

    /// Returns the files to read now: those that changed since their last read and are unchanged since the previous
    /// look. If there is one, also returns the files that could not be followed, because the change may have fixed
    /// them.
    fn changed(&mut self, files: &[ListFile], at: Duration) -> Vec<PathBuf> {
        if at.saturating_sub(self.looked_at) < LOOK_EVERY {
            return Vec::new();
        }
        self.looked_at = at;
        let now = stamps(files);
        let before = std::mem::replace(&mut self.seen, now.clone());
        let has_changed = |path: &&PathBuf| {
            let stamp = now.get(*path);
            stamp == before.get(*path) && stamp != self.read.get(*path)
        };
        let mut changed: Vec<PathBuf> = now.keys().filter(has_changed).cloned().collect();
        self.restless.retain(|path, _| now.contains_key(path) && now.get(path) != before.get(path));
        for (path, _) in now.iter().filter(|(path, stamp)| before.get(*path).is_some_and(|before| before != *stamp)) {
            self.restless.entry(path.clone()).or_insert(at);
        }
        for path in &changed {
            self.read.extend(now.get(path).map(|stamp| (path.clone(), *stamp)));
        }
        if !changed.is_empty() {
            let rests = |path: &&PathBuf| now.contains_key(*path) && !self.restless.contains_key(*path);
            changed.extend(self.stale.keys().filter(rests).cloned());
            changed.sort_unstable();
            changed.dedup();
        }
        changed
    }

    /// Returns the files that have changed at every look for at least [`RESTLESS_AFTER`].
    fn never_resting(&self, files: &[ListFile], at: Duration) -> Vec<ListFile> {
        let is_so = |file: &&ListFile| self.restless.get(&file.path).is_some_and(|since| at - *since >= RESTLESS_AFTER);
        files.iter().filter(is_so).cloned().collect()
    }

    /// Marks a file as not followed. Returns a message for each new reason.
    fn keep(&mut self, file: &ListFile, wrong: Wrong) -> Option<Occurrence> {
        let why = wrong.why.clone();
        if self.stale.insert(file.path.clone(), wrong).is_some_and(|before| before.why == why) {
            return None;
        }
        let ListFile { path, named_by, prefixes } = file;
        let said = format!(
            "{named_by} ({}) is NOT FOLLOWED; its previous {} prefixes stay in force until it changes again: {why}",
            path.display(),
            prefixes.len()
        );
        tracing::warn!(file = %path.display(), "{said}");
        Some(Occurrence::new(EventKind::Reload, said))
    }

    /// Marks a file as followed. Returns true if its previous content was refused in a trial.
    fn follow(&mut self, file: &ListFile) -> bool {
        let was_damaged = self.fallbacks.remove(&file.path).is_some();
        if self.stale.remove(&file.path).is_some() || was_damaged {
            tracing::info!(file = %file.path.display(), "{} ({}) is followed again", file.named_by, file.path.display());
        }
        self.refused.remove(&file.path).is_some()
    }
}

fn stamps(files: &[ListFile]) -> BTreeMap<PathBuf, Stamp> {
    files.iter().map(|file| (file.path.clone(), FileStamp::of(&file.path))).collect()
}

/// Reads a list file. Fails if the file is invalid or became empty.
fn read(file: &ListFile) -> Result<Arc<[IpNet]>, Wrong> {
    let prefixes = load_list(&file.path)?;
    if prefixes.is_empty() && !file.prefixes.is_empty() {
        return Err(became_empty(&file.path).as_str().into());
    }
    Ok(prefixes.into())
}

/// Returns the number of prefixes in `of` that are missing in `from`. Both must be sorted.
fn missing(from: &[IpNet], of: &[IpNet]) -> usize {
    of.iter().filter(|prefix| from.binary_search(prefix).is_err()).count()
}

impl<D: Datapath> Engine<D> {
    /// Reports each list entry that is newly passed over.
    pub(super) fn tell_passed_over(&mut self) {
        let now = self.overrides.grants.around.passed_over(&self.enforced.config);
        let news = self.watched.lists.pass_over(now);
        for said in PassedOver::words_of(&news, &self.enforced.config) {
            tracing::warn!("{said}");
            self.journal.add(Occurrence::new(EventKind::Reload, said));
        }
    }

    /// Reads changed list files and applies them as a reload does. Does nothing during a trial, because applying
    /// anything would end it.
    pub(super) fn watch_lists(&mut self, now: Nanos, moment: Moment) {
        if self.trials.pending.is_some() {
            return;
        }
        let paths = self.watched.lists.changed(&self.enforced.config.list_files, moment.uptime);
        for file in self.watched.lists.never_resting(&self.enforced.config.list_files, moment.uptime) {
            self.keep_list(&file, RESTLESS.into());
        }
        if paths.is_empty() {
            return;
        }
        self.beat_ahead();
        let files = self.enforced.config.list_files.clone();
        let mut changed: Vec<(ListFile, Arc<[IpNet]>)> = Vec::new();
        for file in files.into_iter().filter(|file| paths.contains(&file.path)) {
            match read(&file) {
                Ok(prefixes) if prefixes == file.prefixes => self.follow_list(&file),
                Ok(prefixes) if self.watched.lists.is_refused(&file, &prefixes) => {
                    self.keep_list(&file, REFUSED.into());
                }
                Ok(prefixes) => match self.object_to_version(&file, &prefixes) {
                    Some(why) => self.keep_list(&file, why.as_str().into()),
                    None => changed.push((file, prefixes)),
                },
                Err(_) if self.watched.lists.is_as_taken(&file) => {}
                Err(wrong) => self.keep_list(&file, wrong),
            }
        }
        self.statistics.outdate();
        if changed.is_empty() || self.follow_all(&changed, now).is_ok() {
            return;
        }
        // A failure of all changes together may be due to one of them, so each is tried alone.
        for one in changed.chunks(1) {
            if let (Err(why), Some((file, _))) = (self.follow_all(one, now), one.first()) {
                self.keep_list(file, why.as_str().into());
            }
        }
    }

    pub(super) fn follow_all(&mut self, changed: &[(ListFile, Arc<[IpNet]>)], now: Nanos) -> Result<(), String> {
        let known = self.enforced.config.list_files.iter().map(|file| (file.path.clone(), Arc::clone(&file.prefixes)));
        let mut known: KnownLists = known.collect();
        known.extend(changed.iter().map(|(file, prefixes)| (file.path.clone(), Arc::clone(prefixes))));
        self.relist(&known, now)?;
        for (file, prefixes) in changed {
            self.follow_list(file);
            let (added, removed) = (missing(&file.prefixes, prefixes), missing(prefixes, &file.prefixes));
            let path = file.path.display();
            let said = format!("{} ({path}): {added} added, {removed} removed", file.named_by);
            tracing::info!(file = %path, "{said}");
            self.journal.add(Occurrence::new(EventKind::Reload, said));
        }
        Ok(())
    }

    fn keep_list(&mut self, file: &ListFile, wrong: Wrong) {
        if let Some(note) = self.watched.lists.keep(file, wrong) {
            self.journal.add(note);
        }
    }

    pub(super) fn follow_list(&mut self, file: &ListFile) {
        if self.watched.lists.follow(file) {
            forgive_list(&self.host.store, &file.path);
        }
    }

    /// Applies the configuration with these list contents. On an error, everything stays as before.
    fn relist(&mut self, known: &KnownLists, now: Nanos) -> Result<(), String> {
        let Some(config) = self.enforced.source.with_lists(known) else { return Ok(()) };
        let config: Config = config.map_err(|error| format!("{error:#}").replace('\n', "; "))?;
        for file in config.list_files.iter().filter(|file| !file.prefixes.is_empty()) {
            let is_passed_over = |prefix: &IpNet| config.too_wide.binary_search(prefix).is_ok();
            if file.prefixes.iter().all(is_passed_over) && !self.enforced.config.list_files.contains(file) {
                return Err(format!(
                    "every prefix in {} covers more of the Internet than a list should",
                    file.path.display()
                ));
            }
        }
        let before = std::mem::replace(&mut self.enforced.config, config);
        self.put_in_force(now).map_err(|error| {
            self.enforced.config = before;
            Problem::datapath(error).message
        })
    }
}
