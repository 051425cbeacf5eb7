//! Episodes: their beginning, the events that belong to them, and their end. Pure; the time is an argument.
//!
//! An episode belongs to a source, a rule, a limit and a mode: dropped, or only counted. The first refusal or ban
//! opens it, and later ones belong to it. It ends with its ban, with a command that frees its source, or after a time
//! without news that is longer than the limit's window.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ipnet::IpNet;
use ratelimit_policy::config::duration;
use ratelimit_report::event::{Event, EventKind};

use crate::in_force::{EndCause, InForce, Told};

/// Milliseconds since 1970, by the wall clock.
pub(crate) type Millis = i64;

/// Assumed window in milliseconds, for a limit with a text that cannot be parsed.
const WINDOW_DEFAULT: Millis = 300_000;
/// Time after a ban's end within which dropped packets may still be reported, in milliseconds.
const BAN_IS_TOLD_WITHIN: Millis = 10_000;
/// Maximum number of shared names of rules, limits and reasons.
const NAMES_MAX: usize = 4096;
/// Reason of an episode in which nothing was dropped.
const DRY_RUN: &str = "dry_run";

/// Identity of an episode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) source: IpNet,
    pub(crate) rule: Arc<str>,
    pub(crate) limit: Arc<str>,
    /// Set if nothing was dropped: dry run, or a shadow limit.
    pub(crate) would: bool,
}

/// State of one episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    /// Id of the episode's row in the database.
    pub(crate) id: i64,
    pub(crate) reason: Arc<str>,
    pub(crate) began: Millis,
    /// Time of the last event or refusal.
    pub(crate) seen: Millis,
    pub(crate) ended: Option<Millis>,
    /// Cause of the end.
    pub(crate) cause: Option<EndCause>,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) peak: u64,
    /// Length of the limit's window in milliseconds.
    pub(crate) window: Millis,
    /// End of the episode's ban.
    pub(crate) until: Option<Millis>,
    /// Set if the database lacks the episode's current state.
    pub(crate) is_new: bool,
}

/// Refused packets of an episode since the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) at: Millis,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) used: u64,
}

/// Open episodes, and ended ones that are not in the database yet.
#[derive(Debug)]
pub(crate) struct Book {
    open: HashMap<Key, Episode>,
    ended: Vec<(Key, Episode)>,
    names: HashSet<Arc<str>>,
    next_id: i64,
    open_max: usize,
    told: Told,
    /// Set once the episodes that an earlier daemon left open are known.
    is_resumed: bool,
}

impl Book {
    /// Returns an empty book. Above `open_max` open episodes, each further event becomes an episode that ends at once.
    pub(crate) fn new(open_max: usize) -> Self {
        let (open, names) = (HashMap::new(), HashSet::new());
        Self { open, ended: Vec::new(), names, next_id: 1, open_max, told: Told::default(), is_resumed: false }
    }

    /// Processes an event. A source of None stands for all sources.
    pub(crate) fn event(&mut self, event: &Event, source: Option<IpNet>) {
        match (event.kind, source) {
            (EventKind::Unblock, None) => self.closes_banned(event.time.as_millisecond()),
            (EventKind::Reset, None) => self.closes_all(event.time.as_millisecond(), EndCause::Reset, |_| true),
            (EventKind::BanEnd | EventKind::Unblock | EventKind::Reset | EventKind::Allow, Some(source)) => {
                self.closes(event, source);
            }
            (kind, Some(source)) if !kind.is_act() => {
                let would = matches!(kind, EventKind::WouldRefuse | EventKind::WouldBan);
                self.opens(event, source, would);
            }
            (_, Some(_) | None) => {}
        }
    }

    /// Adds refused packets to the open episode. Without one they are ignored.
    pub(crate) fn progress(&mut self, source: IpNet, rule: &str, limit: &str, would: bool, refused: Refused) {
        let key = Key { source, rule: self.name(rule), limit: self.name(limit), would };
        let Some(episode) = self.open.get_mut(&key) else { return };
        if refused.packets > 0 {
            episode.seen = refused.at;
        }
        episode.packets = episode.packets.saturating_add(refused.packets);
        episode.bytes = episode.bytes.saturating_add(refused.bytes);
        episode.peak = episode.peak.max(refused.used);
        episode.is_new = true;
    }

    /// Opens an episode for each beginning that is not known yet. A refusal is known if its source, rule and limit
    /// have an open episode. A ban is known if its source and rule have an open episode with a ban.
    pub(crate) fn take_up(&mut self, events: &[(Event, IpNet)]) {
        let banned = |(key, of): (&Key, &Episode)| of.until.map(|_| (key.source, key.rule.clone(), key.would));
        let banned: HashSet<(IpNet, Arc<str>, bool)> = self.open.iter().filter_map(banned).collect();
        for (event, source) in events {
            let would = matches!(event.kind, EventKind::WouldRefuse | EventKind::WouldBan);
            let (rule, limit) = (event.rule.as_deref().unwrap_or_default(), event.limit.as_deref().unwrap_or_default());
            let key = Key { source: *source, rule: self.name(rule), limit: self.name(limit), would };
            let is_ban = matches!(event.kind, EventKind::Ban | EventKind::WouldBan);
            let is_known = self.open.contains_key(&key) && !is_ban
                || is_ban && banned.contains(&(*source, key.rule.clone(), would));
            if !is_known {
                self.opens(event, *source, would);
            }
        }
    }

    /// Releases memory that is not needed any more.
    pub(crate) fn shrink(&mut self) {
        self.open.shrink_to_fit();
        self.ended.shrink_to_fit();
        self.names.retain(|name| Arc::strong_count(name) > 1);
        self.names.shrink_to_fit();
    }

    /// Ends each episode without news for longer than its window. Its end is its last news or its ban's end.
    pub(crate) fn tick(&mut self, now: Millis) {
        for episode in self.open.values_mut() {
            // The clock went back. The last news is moved to the present.
            episode.seen = episode.seen.min(now);
        }
        let ban_is_told = |until: Millis| until.saturating_add(BAN_IS_TOLD_WITHIN);
        let is_over =
            |of: &Episode| now > of.seen.saturating_add(of.window).max(of.until.map_or(Millis::MIN, ban_is_told));
        for (key, mut episode) in self.open.extract_if(|_, episode| is_over(episode)) {
            let (at, cause) = episode.natural_end();
            episode.end(at, cause);
            self.ended.push((key, episode));
        }
    }

    /// Ends the episodes that are not enforced any more.
    pub(crate) fn in_force(&mut self, of: &Arc<InForce>) {
        self.told.push(of, self.is_resumed);
        let is_over = |key: &Key, episode: &mut Episode| episode.ends_by(key, of);
        self.ended.extend(self.open.extract_if(is_over));
    }

    /// Continues the episodes that an earlier daemon left open. Its next free row is `next_id`; episodes without a
    /// row get later ones.
    pub(crate) fn resume(&mut self, left: Vec<(Key, Episode)>, next_id: i64) {
        let moved = next_id - 1;
        self.open.values_mut().chain(self.ended.iter_mut().map(|(_, of)| of)).for_each(|of| of.id += moved);
        self.next_id += moved;
        self.is_resumed = true;
        let told = self.told.take_before();
        for (key, mut episode) in left {
            if told.iter().any(|of| episode.ends_by(&key, of)) {
                self.ended.push((key, episode));
            } else if self.open.len() >= self.open_max || self.open.contains_key(&key) {
                episode.end(episode.seen, EndCause::Quiet);
                self.ended.push((key, episode));
            } else {
                self.open.insert(key, episode);
            }
        }
    }

    /// Returns the episodes with a state that is not in the database yet.
    pub(crate) fn unwritten(&mut self) -> impl Iterator<Item = (&Key, &mut Episode)> {
        let ended = self.ended.iter_mut().map(|(key, episode)| (&*key, episode));
        self.open.iter_mut().filter(|(_, episode)| episode.is_new).chain(ended)
    }

    /// Marks all episodes as written.
    pub(crate) fn written(&mut self) {
        self.ended.clear();
        self.open.values_mut().for_each(|episode| episode.is_new = false);
    }

    /// Marks all open episodes as not written, for a new database.
    pub(crate) fn unwrite(&mut self) {
        self.open.values_mut().for_each(|episode| episode.is_new = true);
    }

    /// Erases the episodes of the sources for which `is_of` is true.
    pub(crate) fn forget(&mut self, is_of: impl Fn(IpNet) -> bool) {
        self.open.retain(|key, _| !is_of(key.source));
        self.ended.retain(|(key, _)| !is_of(key.source));
    }

    /// Returns the number of ended episodes that are not written yet.
    pub(crate) fn ended_len(&self) -> usize {
        self.ended.len()
    }

    fn opens(&mut self, event: &Event, source: IpNet, would: bool) {
        let at = event.time.as_millisecond();
        let limit = event.limit.as_deref().unwrap_or_default();
        let is_ban = matches!(event.kind, EventKind::Ban | EventKind::WouldBan);
        let until = event.until.filter(|_| is_ban).map(|until| until.as_millisecond());
        let reason = match (would, event.reason.as_deref(), is_ban) {
            (true, ..) => DRY_RUN,
            (false, _, true) => "banned",
            (false, Some(reason), false) => reason,
            (false, None, false) => "over_limit",
        };
        let reason = self.name(reason);
        let key =
            Key { source, rule: self.name(event.rule.as_deref().unwrap_or_default()), limit: self.name(limit), would };
        let used = event.used.unwrap_or(0);
        if let Some(episode) = self.open.get_mut(&key) {
            if is_ban {
                episode.reason = reason;
            }
            episode.seen = at;
            episode.until = until.or(episode.until);
            episode.peak = episode.peak.max(used);
            episode.is_new = true;
            return;
        }
        let window = window_of(limit);
        let mut episode = Episode {
            id: self.next_id,
            reason,
            began: at,
            seen: at,
            ended: None,
            cause: None,
            packets: 0,
            bytes: 0,
            peak: used,
            window,
            until,
            is_new: true,
        };
        self.next_id += 1;
        if self.open.len() >= self.open_max {
            episode.ended = Some(at);
            self.ended.push((key, episode));
        } else if self.told.latest().is_some_and(|latest| episode.ends_by(&key, latest)) {
            // The event was queued before its rule ended.
            self.ended.push((key, episode));
        } else {
            self.open.insert(key, episode);
        }
    }

    /// Ends episodes after a ban's end or a command. A ban's end concerns only its rule and limit, if named, and only
    /// dropped traffic. A command concerns all episodes in its prefix.
    fn closes(&mut self, event: &Event, prefix: IpNet) {
        let is_ban_end = event.kind == EventKind::BanEnd;
        let is_named = |name: &Option<String>, of: &str| name.as_deref().is_none_or(|name| name == of);
        let is_meant = |key: &Key| {
            prefix.contains(&key.source)
                && (!is_ban_end || !key.would && is_named(&event.rule, &key.rule) && is_named(&event.limit, &key.limit))
        };
        let cause = if event.kind == EventKind::BanEnd && event.by.is_none() {
            EndCause::Expired
        } else if event.kind == EventKind::Reset {
            EndCause::Reset
        } else if event.kind == EventKind::Allow {
            EndCause::Allowed
        } else {
            EndCause::Lifted
        };
        self.closes_all(event.time.as_millisecond(), cause, is_meant);
    }

    /// Ends all episodes of the banned sources, for any limit. Other sources are unaffected.
    fn closes_banned(&mut self, at: Millis) {
        let is_banned = |(key, of): &(&Key, &Episode)| !key.would && of.until.is_some();
        let banned: HashSet<IpNet> = self.open.iter().filter(is_banned).map(|(key, _)| key.source).collect();
        self.closes_all(at, EndCause::Lifted, |key| banned.contains(&key.source));
    }

    fn closes_all(&mut self, at: Millis, cause: EndCause, is_meant: impl Fn(&Key) -> bool) {
        for (key, mut episode) in self.open.extract_if(|key, _| is_meant(key)) {
            episode.end(at, cause);
            self.ended.push((key, episode));
        }
    }

    /// Returns a shared copy of a name.
    pub(crate) fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        name
    }
}

impl Episode {
    fn end(&mut self, at: Millis, cause: EndCause) {
        (self.ended, self.cause) = (Some(at.max(self.began)), Some(cause));
        self.is_new = true;
    }

    /// Returns the time and cause of an episode's end by itself.
    fn natural_end(&self) -> (Millis, EndCause) {
        match self.until {
            Some(until) if until >= self.seen => (until, EndCause::Expired),
            Some(_) | None => (self.seen, EndCause::Quiet),
        }
    }

    /// Ends the episode if it does not match what is enforced. Returns whether it was ended.
    fn ends_by(&mut self, key: &Key, of: &InForce) -> bool {
        let since = of.time.as_millisecond();
        let is_banned = self.until.is_some_and(|until| until > since);
        let Some((at, cause)) = of.end_of(key, self.seen, is_banned) else { return false };
        // An episode that was over before that time has its natural end.
        let was_over = match self.until {
            Some(until) if until >= self.seen => until <= at,
            Some(_) | None => self.seen.saturating_add(self.window) <= at,
        };
        let (at, cause) = if was_over { self.natural_end() } else { (at.max(self.seen), cause) };
        self.end(at, cause);
        true
    }
}

/// Returns the window of a limit like `1000/5m requests`, in milliseconds.
fn window_of(limit: &str) -> Millis {
    let time = limit.split_once('/').and_then(|(_, rest)| rest.split_whitespace().next());
    let window_ns = time.and_then(|time| duration::parse(time).ok());
    window_ns.and_then(|ns| Millis::try_from(ns / 1_000_000).ok()).unwrap_or(WINDOW_DEFAULT)
}

#[cfg(test)]
mod tests;
