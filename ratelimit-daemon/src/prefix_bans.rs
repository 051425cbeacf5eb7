//! Bans that grow to the prefix: where a rule has banned so many sources of one /24 or /56, all of it is denied for as long
//! as the rule's next ban lasts.
//!
//! What counts is in the maps of bans: one is kept there until the rule forgets it. Nothing but the ends of denials is
//! remembered here: those that run are found in the ledger by a daemon that starts. For the others it takes what it finds
//! at its first look to have been denied before, and what begins after that counts. Only rules whose bans need verified
//! traffic deny prefixes: others would let anyone deny one.

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

/// Whose entries they are, before the name of the rule.
const OWNER: &str = "ratelimitd";
/// Prefixes whose last denial is remembered; no other is denied. // 16384 x ~100 B
const REMEMBERED_MAX: usize = ENTRIES_MAX;
/// Prefixes that one look denies. The next goes on.
const DENIED_AT_ONCE: usize = 256;
/// Ends are kept to the second.
const ROUNDING_NS: u64 = SECOND_NS;

/// What was denied, and how many bans were counted at the last look.
#[derive(Debug, Default)]
pub(super) struct PrefixBans {
    /// By the rule's name and the prefix.
    last: BTreeMap<(String, IpNet), Last>,
    /// Bans that these rules had begun at the last look; none where there is more to look at.
    begun: Option<u64>,
    /// Whether this daemon has looked before.
    has_looked: bool,
}

/// The last denial of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    until: Nanos,
    /// Its number in a row, from 1; 0 of one that was before this daemon.
    step: u32,
    /// From then on the next is the first again.
    starts_again: Nanos,
}

/// The banned sources of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Banned {
    sources: u32,
    /// When the newest of their bans began.
    newest: Nanos,
}

/// A prefix to deny.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Due {
    rule: String,
    prefix: IpNet,
    sources: u32,
    until: Nanos,
    last: Last,
}

/// How many sources of a prefix the rule bans before it denies all of it, and how it bans; none where it does not.
fn grows(rule: &Rule) -> Option<(u32, &Bans)> {
    let bans = rule.bans.as_ref().filter(|bans| bans.needs_proof)?;
    Some((rule.block_prefix_after?, bans))
}

/// The prefix around a source that is denied with it; none of a source that is as large.
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
    /// Whether there may be something to deny.
    fn is_due(&mut self, policy: &Policy, reading: &Reading) -> bool {
        let begun = policy.rules.iter().zip(&reading.bans_begun).filter(|(rule, _)| grows(rule).is_some());
        let begun = begun.map(|(_, begun)| *begun).reduce(u64::wrapping_add);
        let before = std::mem::replace(&mut self.begun, begun);
        begun.is_some() && begun != before
    }

    /// The prefixes to deny, of these counts.
    fn due(&self, policy: &Policy, counts: &BTreeMap<(usize, IpNet), Banned>, now: Nanos) -> Vec<Due> {
        let of = |(&(rule, prefix), banned): (&(usize, IpNet), &Banned)| {
            let rule = policy.rules.get(rule)?;
            let (after, bans) = grows(rule)?;
            let last = self.last.get(&(rule.name.clone(), prefix)).filter(|last| now < last.starts_again);
            // What was banned before its last denial ended is what that was for.
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

    /// Whether there is room to remember a denial of this prefix.
    fn has_room(&self, due: &Due) -> bool {
        self.last.len() < REMEMBERED_MAX || self.last.contains_key(&(due.rule.clone(), due.prefix))
    }

    fn denied(&mut self, due: &Due) {
        self.last.insert((due.rule.clone(), due.prefix), due.last);
    }

    /// Forgets the denials within, or all: they were lifted, with the bans that they were for.
    pub(super) fn forget(&mut self, prefix: Option<IpNet>) {
        self.last.retain(|(_, of), _| prefix.is_some_and(|prefix| !prefix.contains(of)));
    }

    /// One that is not denied now is asked about again when a ban begins in it, and that is no time in a row.
    fn spared(&mut self, due: Due, now: Nanos) {
        let step = due.last.step.saturating_sub(1);
        self.denied(&Due { last: Last { until: now, step, ..due.last }, ..due });
    }

    /// Takes in the denials that an earlier daemon has left.
    fn resume<'a>(&mut self, policy: &Policy, entries: impl Iterator<Item = &'a Entry>, clocks: Clocks) {
        for entry in entries {
            let rule = entry.owner.as_ref().and_then(|owner| owner.strip_prefix(OWNER)?.strip_prefix('/'));
            let Some(rule) = policy.rules.iter().find(|of| rule == Some(&*of.name)) else { continue };
            let (Some((_, bans)), Some(until)) = (grows(rule), entry.until) else { continue };
            // Its length tells its number in a row, or one that is as long.
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

/// Counts a ban, unless its rule starts again after it or denies no prefix.
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
    /// Denies the prefixes of which a rule has banned as many sources as it says, where any ban has begun since the last
    /// look.
    pub(super) fn deny_prefixes(&mut self, reading: &Reading, moment: Moment) {
        if self.trials.pending.is_some() {
            // What a file on trial bans must not outlast it: after it is a first look again.
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
            // They are taken to have been denied before.
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

    /// Denies all that may be denied of these, as one change.
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

    /// Why a prefix is never denied: someone in it, or around it, is allowed or needed.
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
