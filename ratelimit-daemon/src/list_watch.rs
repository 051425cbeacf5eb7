//! The list files that the running configuration names: each is read again once it has changed and come to rest. What is wrong
//! with one leaves what it held before in force, and is said once. The configuration file itself is not watched.

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

/// Two looks closer together than this are one: what is written for a moment has to come to rest in between.
const LOOK_EVERY: Duration = Duration::from_millis(1_500);
/// A file that changed less long before it was read may have changed again after that, by a clock that is this coarse.
const SETTLED_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(2);
/// A file that changes at each look is said to be not followed after this time.
const RESTLESS_AFTER: Duration = Duration::from_secs(30);
/// Why that is so.
const RESTLESS: &str = "it changes all the time; it is read once it has rested for two seconds";
/// Why a list is not followed that a trial has come with.
const REFUSED: &str = "what it holds was tried and not confirmed; `ratelimitd reload` puts it in force";

/// What tells two states of a file apart; none where there is no file.
type Stamp = Option<FileStamp>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    /// Device and inode: another file that was renamed over it has another.
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    /// Nobody can set this one, and renaming sets it too.
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
        // A file of the far future is as settled as it can be: each of its changes is another stamp.
        rested.is_ok_and(|rested| rested < now)
    }
}

/// Why a list file cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong {
    why: String,
    /// The first line that is bad, if it is about one.
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

/// What is known of the list files.
#[derive(Debug, Default)]
pub(super) struct ListWatch {
    /// As each was before it was last read, whatever came of it.
    read: BTreeMap<PathBuf, Stamp>,
    /// As each was at the last look.
    seen: BTreeMap<PathBuf, Stamp>,
    looked_at: Duration,
    /// Those that were another at each look, since when.
    restless: BTreeMap<PathBuf, Duration>,
    /// Those that cannot be followed, and why.
    stale: BTreeMap<PathBuf, Wrong>,
    /// Those that the start could not take as they stood, until they can be followed.
    fallbacks: Fallbacks,
    /// What was tried in them and not confirmed: not followed until a file holds something else.
    refused: KnownLists,
    /// Entries that are passed over: said once each.
    passed_over: BTreeSet<IpNet>,
}

impl ListWatch {
    /// These have just been read, all of them.
    pub(super) fn taken(&mut self, files: &[ListFile], moment: Moment) {
        self.seen = stamps(files);
        // The stamps are younger than what was read: one that may be of a later change says nothing.
        let is_settled = |stamp: &Stamp| stamp.is_some_and(|stamp| stamp.is_settled(moment.wall));
        self.read = self.seen.clone().into_iter().filter(|(_, stamp)| is_settled(stamp)).collect();
        self.looked_at = moment.uptime;
        self.stale.clear();
        self.fallbacks.clear();
        self.refused.clear();
    }

    /// Takes in what the start could not take as it stood. Returns what there is to say of it.
    pub(super) fn begin(&mut self, fallbacks: Fallbacks, files: &[ListFile]) -> Vec<String> {
        let is_stale = |of: &Fallback| of.state != ListState::InForce;
        let wrong = |of: &Fallback| Wrong { why: of.why.clone(), line: of.line };
        let stale = fallbacks.iter().filter(|(_, of)| is_stale(of)).map(|(path, of)| (path.clone(), wrong(of)));
        self.stale.extend(stale);
        self.fallbacks = fallbacks;
        let reports = self.reports(files).into_iter();
        reports.filter_map(|of| Some(format!("{}: {}", of.words()?, of.why.unwrap_or_default()))).collect()
    }

    /// How each list file is in force.
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

    /// What of list files is not in force, a sentence each.
    pub(super) fn partly_words(&self, files: &[ListFile]) -> Vec<String> {
        self.reports(files).iter().filter_map(ListFileReport::words).collect()
    }

    /// The files whose version in force is good: all but those that a start left out, in part or whole.
    pub(super) fn good<'a>(&'a self, files: &'a [ListFile]) -> impl Iterator<Item = &'a ListFile> {
        let is_good = |file: &&ListFile| match self.fallbacks.get(&file.path).map(|of| of.state) {
            None | Some(ListState::LastGood) => true,
            Some(ListState::InForce | ListState::LeftOut) => false,
        };
        files.iter().filter(is_good)
    }

    /// Whether a file is as damaged as the start has taken it: it holds the same without its bad lines.
    fn is_as_taken(&self, file: &ListFile) -> bool {
        let is_damaged = self.fallbacks.get(&file.path).is_some_and(|of| of.state == ListState::InForce);
        let tolerated = || parse_tolerant(&file.path, &read_list(&file.path).ok()?);
        is_damaged && tolerated().is_some_and(|of| of.prefixes[..] == file.prefixes[..])
    }

    /// Reads every file again, as the age of what is in force is unknown. Skips what was tried and not confirmed.
    pub(super) fn skip(&mut self, refused: KnownLists) {
        let passed_over = std::mem::take(&mut self.passed_over);
        *self = Self { looked_at: self.looked_at, refused, passed_over, ..Self::default() };
    }

    fn is_refused(&self, file: &ListFile, prefixes: &Arc<[IpNet]>) -> bool {
        self.refused.get(&file.path) == Some(prefixes)
    }

    /// Which entries are passed over now: those of them that were not before.
    fn pass_over(&mut self, mut now: Vec<PassedOver>) -> Vec<PassedOver> {
        let all = now.iter().map(|of| of.prefix).collect();
        let before = std::mem::replace(&mut self.passed_over, all);
        now.retain(|of| !before.contains(&of.prefix));
        now
    }

    /// How many entries are passed over.
    pub(super) fn passed_over(&self) -> u64 {
        self.passed_over.len() as u64
    }

    /// That entries are passed over, if any: how many, as no source may be named to all.
    pub(super) fn passed_over_words(&self) -> Option<String> {
        passed_over_words(self.passed_over())
    }

    /// Those that cannot be followed, and why, by path.
    pub(super) fn stale(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.stale.iter().map(|(path, of)| (path.as_path(), of.why.as_str()))
    }

    /// Files to be read now: those that have changed since they were read and are as at the look before; with one of them, those
    /// that could not be followed, which it may have mended.
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

    /// Those that have changed at each look for longer than anybody means it.
    fn never_resting(&self, files: &[ListFile], at: Duration) -> Vec<ListFile> {
        let is_so = |file: &&ListFile| self.restless.get(&file.path).is_some_and(|since| at - *since >= RESTLESS_AFTER);
        files.iter().filter(is_so).cloned().collect()
    }

    /// A file cannot be followed: said once for each thing that is wrong with it.
    fn keep(&mut self, file: &ListFile, wrong: Wrong) -> Option<Occurrence> {
        let why = wrong.why.clone();
        if self.stale.insert(file.path.clone(), wrong).is_some_and(|before| before.why == why) {
            return None;
        }
        let ListFile { path, named_by, prefixes } = file;
        let said = format!(
            "{named_by} ({}) is NOT FOLLOWED, its {} prefixes of before hold until it changes again: {why}",
            path.display(),
            prefixes.len()
        );
        tracing::warn!(file = %path.display(), "{said}");
        Some(Occurrence::new(EventKind::Reload, said))
    }

    /// True if what it held before was refused.
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

/// What is in a file now, or why that is not to be followed.
fn read(file: &ListFile) -> Result<Arc<[IpNet]>, Wrong> {
    let prefixes = load_list(&file.path)?;
    if prefixes.is_empty() && !file.prefixes.is_empty() {
        return Err(became_empty(&file.path).as_str().into());
    }
    Ok(prefixes.into())
}

/// How many of `of` are not in `from`; both sorted.
fn missing(from: &[IpNet], of: &[IpNet]) -> usize {
    of.iter().filter(|prefix| from.binary_search(prefix).is_err()).count()
}

impl<D: Datapath> Engine<D> {
    /// Says which entries of lists are passed over, each once.
    pub(super) fn tell_passed_over(&mut self) {
        let now = self.overrides.grants.around.passed_over(&self.enforced.config);
        let news = self.watched.lists.pass_over(now);
        for said in PassedOver::words_of(&news, &self.enforced.config) {
            tracing::warn!("{said}");
            self.journal.add(Occurrence::new(EventKind::Reload, said));
        }
    }

    /// Reads list files that have changed, and puts what they hold in force as a reload does. Not while a file is on trial, which
    /// whatever is applied would end.
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
        // What is wrong with all of them together may be one of them.
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

    /// Puts in force what the configuration means with these in its list files; on an error everything is as before.
    fn relist(&mut self, known: &KnownLists, now: Nanos) -> Result<(), String> {
        let Some(config) = self.enforced.source.with_lists(known) else { return Ok(()) };
        let config: Config = config.map_err(|error| format!("{error:#}").replace('\n', "; "))?;
        for file in config.list_files.iter().filter(|file| !file.prefixes.is_empty()) {
            let is_passed_over = |prefix: &IpNet| config.too_wide.binary_search(prefix).is_ok();
            if file.prefixes.iter().all(is_passed_over) && !self.enforced.config.list_files.contains(file) {
                return Err(format!(
                    "all that {} holds is more of the Internet than a list should",
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
