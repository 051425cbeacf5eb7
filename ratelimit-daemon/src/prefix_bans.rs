//! Bans that grow to a prefix. If a rule has banned enough sources of one /24 or /56, the whole prefix is denied for
//! the length of the rule's next ban.
//!
//! The bans to count are in the maps, where each stays until the rule forgets it. This module remembers only when
//! denials end. A starting daemon finds the denials in force in the ledger. It treats other bans found at its first
//! look as already handled, and counts only bans that start later. Only rules with bans that need verified traffic
//! deny prefixes. Otherwise anyone could get a prefix denied.

use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::time::{Nanos, SECOND_NS};

use super::engine::Engine;
use super::journal::Event;
use super::moment::Moment;
use ratelimit_datapath::{BanReading, BansPosition, Datapath, DatapathError, Reading};
use ratelimit_policy::access::{By, ENTRIES_MAX, Entry, Further};
use ratelimit_policy::desired::{Bans, DENIED_IPV4_PREFIX, DENIED_IPV6_PREFIX, Grant, Policy, Rule};
use ratelimit_policy::safety::CameFrom;
use ratelimit_report::snapshot::{Clocks, source_text};

/// Owner of the denials, before the name of the rule.
const OWNER: &str = "ratelimitd";
/// Maximum number of prefixes with a remembered denial. No further prefix is denied. // 16384 x ~100 B
const REMEMBERED_MAX: usize = ENTRIES_MAX;
/// Maximum number of prefixes denied in one pass. The next pass continues.
const DENIED_AT_ONCE: usize = 256;
/// Rounding of stored expiries, in nanoseconds.
const ROUNDING_NS: u64 = SECOND_NS;

/// Past denials and the progress of the counting.
#[derive(Debug, Default)]
pub(super) struct PrefixBans {
    /// Last denial by rule name and prefix.
    last: BTreeMap<(String, IpNet), Last>,
    /// Bans that the relevant rules had begun at the last look. None if the next look must count again.
    begun: Option<u64>,
    /// True after the first look of this daemon.
    has_looked: bool,
}

/// Last denial of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    until: Nanos,
    /// Number of consecutive denials, from 1. 0 for a denial that precedes this daemon.
    step: u32,
    /// Time from which the next denial is the first of its sequence again.
    starts_again: Nanos,
}

/// Banned sources of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Banned {
    sources: u32,
    /// Start of the newest of their bans.
    newest: Nanos,
}

/// Prefix to deny, with the rule that denies it and the end of the denial.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Due {
    rule: String,
    prefix: IpNet,
    sources: u32,
    until: Nanos,
    last: Last,
}

/// Returns the number of banned sources at which the rule denies their prefix, and the rule's bans. None if the rule
/// denies no prefixes.
fn grows(rule: &Rule) -> Option<(u32, &Bans)> {
    let bans = rule.bans.as_ref().filter(|bans| bans.needs_proof)?;
    Some((rule.block_prefix_after?, bans))
}

/// Returns the prefix that is denied with a source. None if the source is at least as large.
fn around(source: IpNet) -> Option<IpNet> {
    let length = if source.addr().is_ipv4() { DENIED_IPV4_PREFIX } else { DENIED_IPV6_PREFIX };
    (source.prefix_len() > length).then(|| IpNet::new(source.addr(), length).ok()).flatten().map(|net| net.trunc())
}

impl Due {
    fn reason(&self) -> String {
        format!("{} of its sources were banned by rule {}", self.sources, self.rule)
    }

    fn entry(&self, clocks: Clocks) -> Entry {
        Entry {
            prefix: self.prefix,
            grant: Grant::Denied,
            by: By::Command { user: OWNER.to_owned(), is_forced: false },
            owner: Some(format!("{OWNER}/{}", self.rule)),
            reason: Some(self.reason()),
            since: Some(clocks.wall),
            until: Some(self.until),
        }
    }
}

impl PrefixBans {
    /// Returns true if bans have begun since the last look.
    fn is_due(&mut self, policy: &Policy, reading: &Reading) -> bool {
        let begun = policy.rules.iter().zip(&reading.bans_begun).filter(|(rule, _)| grows(rule).is_some());
        let begun = begun.map(|(_, begun)| *begun).reduce(u64::wrapping_add);
        let before = std::mem::replace(&mut self.begun, begun);
        begun.is_some() && begun != before
    }

    /// Returns the prefixes to deny, given the counts of banned sources.
    fn due(&self, policy: &Policy, counts: &BTreeMap<(usize, IpNet), Banned>, now: Nanos) -> Vec<Due> {
        let of = |(&(rule, prefix), banned): (&(usize, IpNet), &Banned)| {
            let rule = policy.rules.get(rule)?;
            let (after, bans) = grows(rule)?;
            let last = self.last.get(&(rule.name.clone(), prefix)).filter(|last| now < last.starts_again);
            // Bans that started before the last denial ended were covered by that denial.
            if banned.sources < after || last.is_some_and(|last| banned.newest <= last.until) {
                return None;
            }
            let step = last.map_or(1, |last| last.step.saturating_add(1));
            let until = Nanos(now.0.saturating_add(bans.length_ns(step)?));
            let last = Last { until, step, starts_again: Nanos(until.0.saturating_add(bans.forget_ns)) };
            Some(Due { rule: rule.name.clone(), prefix, sources: banned.sources, until, last })
        };
        counts.iter().filter_map(of).collect()
    }

    /// Returns true if a denial of this prefix can be remembered.
    fn has_room(&self, due: &Due) -> bool {
        self.last.len() < REMEMBERED_MAX || self.last.contains_key(&(due.rule.clone(), due.prefix))
    }

    fn denied(&mut self, due: &Due) {
        self.last.insert((due.rule.clone(), due.prefix), due.last);
    }

    /// Forgets the denials within the prefix, or all of them. They were lifted together with their bans.
    pub(super) fn forget(&mut self, prefix: Option<IpNet>) {
        self.last.retain(|(_, of), _| prefix.is_some_and(|prefix| !prefix.contains(of)));
    }

    /// Marks a prefix as handled without a denial. The next ban within it triggers another check. The number of
    /// consecutive denials stays.
    fn spared(&mut self, due: Due, now: Nanos) {
        let step = due.last.step.saturating_sub(1);
        self.denied(&Due { last: Last { until: now, step, ..due.last }, ..due });
    }

    /// Restores the denials that an earlier daemon left.
    fn resume<'a>(&mut self, policy: &Policy, entries: impl Iterator<Item = &'a Entry>, clocks: Clocks) {
        for entry in entries {
            let rule = entry.owner.as_ref().and_then(|owner| owner.strip_prefix(OWNER)?.strip_prefix('/'));
            let Some(rule) = policy.rules.iter().find(|of| rule == Some(&*of.name)) else { continue };
            let (Some((_, bans)), Some(until)) = (grows(rule), entry.until) else { continue };
            // The length of the denial reveals its number in the sequence, or one of equal length.
            let left_ns = until.0.saturating_sub(clocks.now.0);
            let past_ns = entry.since.map_or(0, |since| clocks.wall.duration_since(since).as_nanos());
            let length_ns = left_ns.saturating_add(u64::try_from(past_ns).unwrap_or(0));
            let steps = u32::try_from(bans.steps_ns.len()).unwrap_or(u32::MAX).max(1);
            let is_as_long =
                |step: &u32| bans.length_ns(*step).is_none_or(|of| of.saturating_add(ROUNDING_NS) >= length_ns);
            let step = (1..=steps).find(is_as_long).unwrap_or(steps);
            let last = Last { until, step, starts_again: Nanos(until.0.saturating_add(bans.forget_ns)) };
            self.last.insert((rule.name.clone(), entry.prefix), last);
        }
    }
}

/// Counts a ban. Skips a ban that its rule has forgotten, and rules that deny no prefixes.
fn count(counts: &mut BTreeMap<(usize, IpNet), Banned>, policy: &Policy, of: BanReading, now: Nanos) {
    let ban = of.ban;
    let Some((_, bans)) = policy.rules.get(ban.rule).and_then(grows) else { return };
    let Some(prefix) = around(ban.client) else { return };
    if now.0 >= ban.until.0.saturating_add(bans.forget_ns) {
        return;
    }
    let began = Nanos(ban.until.0.saturating_sub(bans.length_ns(ban.step).unwrap_or(0)));
    let banned = counts.entry((ban.rule, prefix)).or_insert(Banned { sources: 0, newest: Nanos(0) });
    banned.sources += 1;
    banned.newest = banned.newest.max(began);
}

impl<D: Datapath> Engine<D> {
    /// Denies the prefixes in which a rule has banned enough sources, if any ban began since the last look.
    pub(super) fn deny_prefixes(&mut self, reading: &Reading, moment: Moment) {
        if self.trials.pending.is_some() {
            // Bans of a file on trial must not outlast it. After the trial, the next look counts as the first.
            (self.watched.prefix_bans.begun, self.watched.prefix_bans.has_looked) = (None, false);
            return;
        }
        if !self.watched.prefix_bans.is_due(&self.enforced.desired.policy, reading) {
            return;
        }
        if let Err(error) = self.try_deny_prefixes(reading.now, moment) {
            // The next look tries again.
            self.watched.prefix_bans.begun = None;
            tracing::warn!("deny prefixes with many banned sources: {:#}", anyhow::Error::from(error));
        }
    }

    fn try_deny_prefixes(&mut self, now: Nanos, moment: Moment) -> Result<(), DatapathError> {
        let mut counts = BTreeMap::new();
        let mut position = Some(BansPosition::default());
        while let Some(from) = position {
            let policy = &self.enforced.desired.policy;
            position = self.datapath.visit_bans(from, &mut |of| count(&mut counts, policy, of, now))?;
        }
        let clocks = Clocks { now, wall: moment.wall };
        let Self { watched, enforced, overrides, .. } = self;
        let (bans, policy) = (&mut watched.prefix_bans, &enforced.desired.policy);
        bans.last.retain(|_, last| now < last.starts_again);
        if !std::mem::replace(&mut bans.has_looked, true) {
            bans.resume(policy, overrides.grants.ledger.entries(), clocks);
            let dues = bans.due(policy, &counts, now);
            // These are treated as already handled.
            dues.into_iter().for_each(|due| bans.spared(due, now));
            return Ok(());
        }
        let mut dues = bans.due(policy, &counts, now);
        if dues.len() > DENIED_AT_ONCE {
            dues.truncate(DENIED_AT_ONCE);
            bans.begun = None;
        }
        self.deny_all(dues, clocks, moment);
        Ok(())
    }

    /// Denies those of the prefixes that may be denied, in one change.
    fn deny_all(&mut self, dues: Vec<Due>, clocks: Clocks, moment: Moment) {
        let mut after = self.overrides.grants.ledger.clone();
        let (mut entered, mut without_room) = (Vec::new(), 0_usize);
        for due in dues {
            if let Some(why) = self.spares(due.prefix, clocks) {
                let Due { sources, rule, .. } = &due;
                let name = source_text(due.prefix);
                tracing::info!("{name} has {sources} sources banned by rule {rule} and is not denied: {why}");
                self.watched.prefix_bans.spared(due, clocks.now);
                continue;
            }
            let has_room = self.watched.prefix_bans.has_room(&due);
            match has_room.then(|| after.enter(due.entry(clocks), Further::Extend, clocks.now)).flatten() {
                Some(_) => entered.push(due),
                None => without_room += 1,
            }
        }
        if without_room > 0 {
            tracing::warn!("{without_room} prefixes with banned sources are not denied: there are too many entries");
        }
        if entered.is_empty() {
            return;
        }
        if let Err(problem) = self.change_grants(clocks, &mut Vec::new(), after) {
            tracing::warn!("{} prefixes with banned sources are not denied: {problem}", entered.len());
            self.watched.prefix_bans.begun = None;
            return;
        }
        for due in entered {
            self.watched.prefix_bans.denied(&due);
            self.kill_prefix(due.prefix, &due.rule, moment.uptime);
            let (by, until) = (format!("{OWNER} for rule {}", due.rule), Some(clocks.wall_of(due.until)));
            let (grant, prefix, reason) = (Grant::Denied, due.prefix, Some(due.reason()));
            self.journal.tell(Event::Grant { grant, prefix, by, reason, until, frees: 0 }, moment);
        }
    }

    /// Returns the reason why a prefix must not be denied: someone within or around it is allowed or needed.
    fn spares(&self, prefix: IpNet, clocks: Clocks) -> Option<String> {
        let policy = &self.enforced.desired.policy;
        let touches = |of: &IpNet| of.contains(&prefix) || prefix.contains(of);
        let allowed = policy.access.iter().find(|of| {
            of.grant == Grant::Exempt && of.until.is_none_or(|until| clocks.now < until) && touches(&of.prefix)
        });
        let allowed = allowed.map(|of| format!("{} is allowed", source_text(of.prefix)));
        allowed.or_else(|| self.overrides.grants.around.objection(prefix, CameFrom { ssh: None, web: None }))
    }
}
