//! Tracker of sources that start to be refused or banned, from kernel events. Each start is reported once, in the
//! terms of `check` and the metrics. Its continuation is reported to the history only.
//!
//! The tracker itself knows no datapath. The engine passes in what it reads.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;

use super::engine::Engine;
use super::journal::{Banned, Event, Journal, Lost, Refused, Usage};
use super::moment::Moment;
use super::suggest::refused_bytes;
use ratelimit_datapath::{
    BanReading, Datapath, DatapathError, EventCounts, KernelEvent, KernelEventKind, Reading, SourceReading,
};
use ratelimit_history::Progress;
use ratelimit_policy::desired::{Limit, Policy, Rule, ban_slot};
use ratelimit_report::snapshot::{Clocks, group_of, guard_limit_words, guard_shown, source_text};

/// Maximum number of batches of events taken in one pass. // 16384 events, as many as the ring holds
const PARTS_MAX: usize = 4;
/// Maximum number of tracked refusals. Beyond that, each event counts as a start. // 16384 x 150 B = 2.5 MB
const OPEN_MAX: usize = 16_384;
/// Maximum number of sources looked up in one pass.
const LOOKED_UP_MAX: usize = 256;

/// Current refusals and bans.
#[derive(Debug, Default)]
pub(super) struct Begun {
    open: BTreeMap<Key, Open>,
    /// Last key with reported progress. The next pass continues after it.
    told: Option<Key>,
    /// Lost events as of the last check.
    lost: EventCounts,
    /// Wall-clock time of the last check.
    looked_at: Option<Timestamp>,
}

/// Identity of a refusal: source, ban slot of the rule, slot of the limit, and whether it is in dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) client: IpNet,
    rule: u32,
    limit: u32,
    would: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// Time at which the refusal is over without further events.
    until: Nanos,
    /// Packets refused by the source's windows, as last reported.
    refused: u64,
    /// Packets dropped by the source's bans, as last reported.
    banned: u64,
}

/// Event to report, and whether it is a start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Words {
    at: Timestamp,
    event: Event,
    is_first: bool,
}

impl Begun {
    /// Converts kernel events to events, in order.
    fn take(&mut self, events: &[KernelEvent], policy: &Policy, clocks: Clocks) -> Vec<Words> {
        // A ban implies the refusal.
        let banned: Vec<(IpNet, Option<usize>)> =
            events.iter().filter(|of| is_ban(of)).map(|of| (of.client, of.rule)).collect();
        let is_said = |of: &KernelEvent| of.kind == KernelEventKind::Refused && banned.contains(&(of.client, of.rule));
        let mut words = Vec::with_capacity(events.len());
        for of in events {
            let is_first = self.begins(of, policy, clocks.now) && !is_said(of);
            let Some(event) = event(of, policy, clocks) else { continue };
            words.push(Words { at: clocks.wall_of(of.time), event, is_first: is_first || is_ban(of) });
        }
        words
    }

    /// Returns true if the event is the start of a refusal. Tracks the refusal from then on.
    fn begins(&mut self, of: &KernelEvent, policy: &Policy, now: Nanos) -> bool {
        let Some((rule, limit)) = named(of, policy) else { return true };
        let would = of.kind == KernelEventKind::WouldRefuse;
        let key = Key { client: of.client, rule: ban_slot(&rule.name), limit: limit.slot, would };
        let until = match of.kind {
            KernelEventKind::Refused | KernelEventKind::WouldRefuse => {
                Nanos(of.time.0.saturating_add(limit.window_ns).saturating_add(limit.bucket_ns))
            }
            KernelEventKind::Ban { until, .. } => until,
        };
        let before = self.open.get(&key).copied();
        if before.is_none() && self.open.len() >= OPEN_MAX {
            self.open.retain(|_, open| open.until > now);
            if self.open.len() >= OPEN_MAX {
                return true;
            }
        }
        let was_open = before.is_some_and(|open| open.until >= of.time);
        let until = before.map_or(until, |open| open.until.max(until));
        let (refused, banned) = before.map_or((0, 0), |open| (open.refused, open.banned));
        self.open.insert(key, Open { until, refused, banned });
        !was_open
    }

    /// Returns the next tracked refusals in round-robin order.
    fn next(&mut self, now: Nanos) -> Vec<Key> {
        let after = self.told.map_or(Bound::Unbounded, Bound::Excluded);
        let is_open = |(key, open): (&Key, &Open)| (open.until > now).then_some(*key);
        let next: Vec<Key> =
            self.open.range((after, Bound::Unbounded)).filter_map(is_open).take(LOOKED_UP_MAX).collect();
        self.told = next.last().copied().filter(|_| next.len() == LOOKED_UP_MAX);
        next
    }

    /// Returns up to [`LOOKED_UP_MAX`] tracked refusals of the selected sources.
    pub(super) fn followed(&self, is_of: impl Fn(&IpNet) -> bool) -> Vec<Key> {
        self.open.keys().filter(|key| is_of(&key.client)).take(LOOKED_UP_MAX).copied().collect()
    }

    /// Stops tracking the selected sources. Their next refusal counts as a start.
    pub(super) fn part_with(&mut self, is_of: impl Fn(&IpNet) -> bool) {
        self.open.retain(|key, _| !is_of(&key.client));
    }

    /// Returns the number of packets refused since the last call for this key.
    fn progress(&mut self, key: Key, windows: &[SourceReading]) -> u64 {
        let Some(open) = self.open.get_mut(&key) else { return 0 };
        let of = windows.iter().filter(|of| of.slot == key.limit);
        let refused = of.fold(0, |sum: u64, of| sum.saturating_add(of.window.refused.count()));
        let before = std::mem::replace(&mut open.refused, refused);
        // A new window after an eviction counts from zero.
        refused.checked_sub(before).unwrap_or(refused)
    }

    /// Returns what a ban has dropped since the last report. None if the refusal is not tracked or nothing was
    /// dropped.
    pub(super) fn dropped(
        &mut self,
        of: BanReading,
        (policy, reading): (&Policy, &Reading),
        clocks: Clocks,
    ) -> Option<Progress> {
        let BanReading { ban, dropped } = of;
        let rule = policy.rules.get(ban.rule)?;
        let slot = ban_slot(&rule.name);
        let first = Key { client: ban.client, rule: slot, limit: 0, would: false };
        let (key, open) = self.open.range_mut(first..).find(|(key, _)| !key.would)?;
        if (key.client, key.rule) != (ban.client, slot) {
            return None;
        }
        let before = std::mem::replace(&mut open.banned, dropped);
        let packets = dropped.checked_sub(before).unwrap_or(dropped);
        let limit = rule.limits.iter().find(|limit| limit.slot == key.limit).filter(|_| packets > 0)?;
        Some(Progress {
            // A ban that is being lifted ends now.
            time: clocks.wall_of(ban.until.min(clocks.now)),
            source: ban.client,
            rule: rule.name.clone(),
            limit: limit.to_string(),
            would: false,
            packets,
            bytes: packets.saturating_mul(refused_bytes(reading, ban.rule)),
            used: 0,
        })
    }

    /// Returns the events lost since the last call.
    fn more_lost(&mut self, counts: EventCounts, now: Timestamp) -> Lost {
        let before = std::mem::replace(&mut self.lost, counts);
        Lost {
            since: self.looked_at.replace(now).unwrap_or(now),
            refused: counts.refused.lost.saturating_sub(before.refused.lost),
            would_refuse: counts.would_refuse.lost.saturating_sub(before.would_refuse.lost),
            bans: counts.ban.lost.saturating_sub(before.ban.lost),
        }
    }

    /// Ignores events that were lost before this run.
    pub(super) fn begin(&mut self, reading: &Reading, now: Timestamp) {
        (self.lost, self.looked_at) = (reading.events, Some(now));
    }

    /// Tracks a refusal or ban that is in force, even if no event reported it. Returns true if it was not tracked
    /// before.
    pub(super) fn take_up(&mut self, of: &KernelEvent, policy: &Policy, now: Nanos) -> bool {
        if let (KernelEventKind::Ban { until, .. }, Some(rule)) = (of.kind, of.rule.and_then(|at| policy.rules.get(at)))
        {
            let rule = ban_slot(&rule.name);
            let first = Key { client: of.client, rule, limit: 0, would: false };
            let last = Key { limit: u32::MAX, ..first };
            if self.open.range(first..=last).any(|(key, open)| !key.would && open.until >= until) {
                return false;
            }
            self.begins(of, policy, now);
            return true;
        }
        self.begins(of, policy, now)
    }

    /// Drops refusals that are over.
    pub(super) fn tidy(&mut self, now: Nanos) {
        self.open.retain(|_, open| open.until > now);
    }
}

const fn is_ban(of: &KernelEvent) -> bool {
    match of.kind {
        KernelEventKind::Ban { .. } => true,
        KernelEventKind::Refused | KernelEventKind::WouldRefuse => false,
    }
}

fn named<'a>(of: &KernelEvent, policy: &'a Policy) -> Option<(&'a Rule, &'a Limit)> {
    let rule = policy.rules.get(of.rule?)?;
    Some((rule, of.limit?.of(rule)?))
}

/// Converts a kernel event to an event. None for a ban by a rule that the policy no longer has.
pub(super) fn event(of: &KernelEvent, policy: &Policy, clocks: Clocks) -> Option<Event> {
    let rule = of.rule.and_then(|at| policy.rules.get(at));
    let usage = named(of, policy).map(|(_, limit)| {
        let limit = of.guard.map_or_else(|| limit.to_string(), |side| guard_limit_words(limit, side));
        Usage { limit, used: of.guard.map_or(of.used, |side| guard_shown(of.used, side)) }
    });
    let group = named(of, policy).and_then(|(rule, limit)| group_of(rule, limit, of.client));
    let source = group.map_or_else(|| source_text(of.client), |group| group.to_string());
    let refused = |reason| {
        Event::Refused(Refused {
            source: source.clone(),
            rule: rule.map(|of| of.name.clone()),
            usage: usage.clone(),
            reason,
        })
    };
    Some(match of.kind {
        KernelEventKind::Refused => refused(of.reason),
        KernelEventKind::WouldRefuse => refused(Reason::DryRun),
        KernelEventKind::Ban { until, step } => {
            let until = clocks.wall_of(until);
            let until = until.round(jiff::Unit::Second).unwrap_or(until);
            Event::Ban(Banned { source, rule: rule?.name.clone(), usage, until, step, by: None })
        }
    })
}

impl<D: Datapath> Engine<D> {
    /// Reports new kernel events, and does other frequent work. The work of one call is bounded.
    pub(super) fn tell_begun(&mut self, moment: Moment) {
        self.follow_fleet(moment);
        if self.journal.past.follow(&self.enforced.config.history, &self.host.store) {
            self.announced.outdate();
        }
        self.tell_in_force(moment);
        self.journal.pass(moment);
        if let Err(error) = self.try_tell_begun(moment) {
            // A persistent failure means that the maps are unreadable, which supervision reports.
            tracing::debug!("read the events of packets: {:#}", anyhow::Error::from(error));
        }
        self.close_due(moment);
    }

    fn try_tell_begun(&mut self, moment: Moment) -> Result<(), DatapathError> {
        for _ in 0..PARTS_MAX {
            let mut events = Vec::new();
            let more = self.datapath.events(&mut |event| events.push(event))?;
            self.spread_bans(&events);
            self.kill_banned(&events, moment.uptime);
            self.tell_events(&events, moment)?;
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Reports events of the packet path, or of log lines that stand for packets.
    pub(super) fn tell_events(&mut self, events: &[KernelEvent], moment: Moment) -> Result<(), DatapathError> {
        if events.is_empty() {
            return Ok(());
        }
        let Self { datapath, enforced, watched, journal, .. } = self;
        let clocks = Clocks { now: datapath.now()?, wall: moment.wall };
        for Words { at, event, is_first } in watched.begun.take(events, &enforced.desired.policy, clocks) {
            if is_first { journal.take(&event, at, moment) } else { journal.goes_on(&event, at) }
        }
        Ok(())
    }

    /// Reports further refusals of tracked sources to the history, and lost events to the log.
    pub(super) fn tell_progress(&mut self, reading: &Reading, moment: Moment) {
        let Self { datapath, enforced, watched, journal, .. } = self;
        let lost = watched.begun.more_lost(reading.events, moment.wall);
        journal.lose(lost, moment);
        watched.taken_up.look(lost.sum() > 0, journal.past.health().is_some());
        if journal.past.health().is_none() {
            return;
        }
        let keys = watched.begun.next(reading.now);
        if keys.is_empty() {
            return;
        }
        let addresses: Vec<IpAddr> = keys.iter().map(|key| key.client.addr()).collect();
        let windows = match datapath.sources(&addresses) {
            Ok(windows) => windows,
            Err(error) => return tracing::debug!("read refused sources: {:#}", anyhow::Error::from(error)),
        };
        let policy = &enforced.desired.policy;
        for (key, windows) in keys.into_iter().zip(windows) {
            tell_progress_of(&mut watched.begun, key, &windows, (policy, reading), journal, moment);
        }
    }
}

pub(super) fn tell_progress_of(
    begun: &mut Begun,
    key: Key,
    windows: &[SourceReading],
    (policy, reading): (&Policy, &Reading),
    journal: &Journal,
    moment: Moment,
) {
    let packets = begun.progress(key, windows);
    let Some((at, rule)) = policy.rules.iter().enumerate().find(|(_, rule)| ban_slot(&rule.name) == key.rule) else {
        return;
    };
    let mut limits = rule.limits.iter().chain(&rule.shadow_limits);
    let Some(limit) = limits.find(|limit| limit.slot == key.limit).filter(|_| packets > 0) else { return };
    // A window counts only packets. Their bytes are estimated with the rule's average refused packet.
    let bytes = packets.saturating_mul(refused_bytes(reading, at));
    let progress = Progress {
        time: moment.wall,
        source: key.client,
        rule: rule.name.clone(),
        limit: limit.to_string(),
        would: key.would,
        packets,
        bytes,
        used: 0,
    };
    let _is_kept = journal.past.progress(progress);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_common::layout::Unit;
    use ratelimit_common::time::SECOND_NS;
    use ratelimit_datapath::{Ban, EventLimit};
    use ratelimit_report::fixture::{limit, policy};

    const MINUTE_NS: u64 = 60 * SECOND_NS;

    fn event(kind: KernelEventKind, minute: u64) -> KernelEvent {
        KernelEvent {
            time: Nanos(minute * MINUTE_NS),
            kind,
            client: "198.51.100.7/32".parse().unwrap(),
            rule: Some(0),
            limit: Some(EventLimit::Held(0)),
            reason: Reason::OverLimit,
            guard: None,
            is_verified: false,
            used: 3,
        }
    }

    fn take(begun: &mut Begun, events: &[KernelEvent]) -> Vec<bool> {
        let clocks = Clocks { now: Nanos(0), wall: Timestamp::UNIX_EPOCH };
        let policy = policy(vec![limit(3, Unit::Connections)]);
        begun.take(events, &policy, clocks).into_iter().map(|of| of.is_first).collect()
    }

    #[test]
    fn a_refusal_goes_on_until_its_window_has_passed_and_the_newest_bucket_with_it() {
        let mut begun = Begun::default();
        let refused = |minute| event(KernelEventKind::Refused, minute);
        // A refusal lasts five minutes and one bucket.
        assert_eq!(take(&mut begun, &[refused(1), refused(2), refused(8)]), [true, false, false]);
        assert_eq!(take(&mut begun, &[refused(15)]), [true]);
        let dry = event(KernelEventKind::WouldRefuse, 15);
        assert_eq!(take(&mut begun, &[dry, dry]), [true, false], "what dry run passes is another matter");
    }

    #[test]
    fn a_ban_is_always_told_and_says_that_its_source_is_refused() {
        let mut begun = Begun::default();
        let ban = event(KernelEventKind::Ban { until: Nanos(60 * MINUTE_NS), step: 1 }, 1);
        assert_eq!(take(&mut begun, &[event(KernelEventKind::Refused, 1), ban]), [false, true]);
        assert_eq!(take(&mut begun, &[ban]), [true]);
        let gone = KernelEvent { rule: None, limit: None, ..event(KernelEventKind::Refused, 1) };
        assert_eq!(take(&mut begun, &[gone, gone]), [true, true], "where it is unknown whether it went on");
    }

    #[test]
    fn packets_dropped_by_a_ban_are_reported_once() {
        let mut begun = Begun::default();
        let until = Nanos(60 * MINUTE_NS);
        take(&mut begun, &[event(KernelEventKind::Ban { until, step: 1 }, 1)]);
        let policy = policy(vec![limit(3, Unit::Connections)]);
        let reading = Reading { now: until, ..Reading::fixture() };
        let clocks = Clocks { now: until, wall: Timestamp::UNIX_EPOCH };
        let ban = Ban { client: "198.51.100.7/32".parse().unwrap(), rule: 0, until, step: 1 };
        let mut dropped = |ban, dropped| {
            begun.dropped(BanReading { ban, dropped }, (&policy, &reading), clocks).map(|of| (of.limit, of.packets))
        };
        assert_eq!(dropped(ban, 7), Some(("3/5m connections".to_owned(), 7)));
        assert_eq!(dropped(ban, 7), None);
        assert_eq!(dropped(ban, 9).map(|of| of.1), Some(2), "of the ban after it");
        assert_eq!(dropped(ban, 4).map(|of| of.1), Some(4), "of one that counts from zero");
        assert_eq!(dropped(Ban { client: "198.51.100.8/32".parse().unwrap(), ..ban }, 7), None);
    }
}
