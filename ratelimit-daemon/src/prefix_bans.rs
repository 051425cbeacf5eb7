//! Bans that grow to the prefix: where a rule has banned so many sources of one /24 or /56, all of it is denied for as long
//! as the rule's next ban lasts.
//!
//! What counts is in the maps of bans: one is kept there until the rule forgets it. So nothing but the ends of denials is
//! remembered here, and a daemon that starts counts as the one before it did. Only bans that needed verified traffic
//! count: those that can be forged would let anyone deny a prefix.

use std::collections::BTreeMap;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::engine::Engine;
use super::journal::Event;
use super::moment::Moment;
use ratelimit_datapath::{BanReading, BansPosition, Datapath, DatapathError, Reading};
use ratelimit_policy::access::{By, Entry, Further};
use ratelimit_policy::desired::{Bans, Grant, Policy, Rule};
use ratelimit_policy::safety::CameFrom;
use ratelimit_report::snapshot::{Clocks, source_text};

/// Lengths of the prefixes that are denied: what a provider gives to one customer, as a rule.
const IPV4_PREFIX: u8 = 24;
const IPV6_PREFIX: u8 = 56;
/// Whose entries they are, before the name of the rule.
const OWNER: &str = "ratelimitd";
/// Prefixes whose last denial is remembered. // 4096 x ~100 B
const REMEMBERED_MAX: usize = 4_096;

/// What was denied, and how many bans were counted at the last look.
#[derive(Debug, Default)]
pub(super) struct PrefixBans {
    /// By the rule's name and the prefix.
    last: BTreeMap<(String, IpNet), Last>,
    /// Bans that these rules had begun at the last look; none before the first.
    begun: Option<u64>,
}

/// The last denial of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    until: Nanos,
    /// Its number in a row, from 1.
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
    let length = if source.addr().is_ipv4() { IPV4_PREFIX } else { IPV6_PREFIX };
    (source.prefix_len() > length).then(|| IpNet::new(source.addr(), length).ok()).flatten().map(|net| net.trunc())
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

    fn denied(&mut self, due: &Due, now: Nanos) {
        self.last.retain(|_, last| now < last.starts_again);
        if self.last.len() < REMEMBERED_MAX {
            self.last.insert((due.rule.clone(), due.prefix), due.last);
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
        for due in self.watched.prefix_bans.due(&self.enforced.desired.policy, &counts, now) {
            self.deny_prefix(&due, Clocks { now, wall: moment.wall }, moment);
        }
        Ok(())
    }

    fn deny_prefix(&mut self, due: &Due, clocks: Clocks, moment: Moment) {
        let name = source_text(due.prefix);
        if let Some(why) = self.spares(due.prefix, clocks) {
            tracing::info!("{name} has {} sources banned by rule {} and is not denied: {why}", due.sources, due.rule);
            self.watched.prefix_bans.denied(due, clocks.now);
            return;
        }
        let reason = format!("{} of its sources were banned by rule {}", due.sources, due.rule);
        let by = By::Command { user: OWNER.to_owned(), is_forced: false };
        let owner = Some(format!("{OWNER}/{}", due.rule));
        let until = Some(due.until);
        let (prefix, grant, since) = (due.prefix, Grant::Denied, Some(clocks.wall));
        let entry = Entry { prefix, grant, by, owner, reason: Some(reason.clone()), since, until };
        let mut after = self.overrides.grants.ledger.clone();
        if after.enter(entry, Further::Extend, clocks.now).is_none() {
            tracing::warn!("{name} is not denied: there are too many entries");
            return;
        }
        if let Err(problem) = self.change_grants(clocks, &mut Vec::new(), after) {
            tracing::warn!("{name} is not denied: {problem}");
            return;
        }
        self.watched.prefix_bans.denied(due, clocks.now);
        let (by, until) = (format!("{OWNER} for rule {}", due.rule), Some(clocks.wall_of(due.until)));
        self.journal.tell(Event::Grant { grant, prefix, by, reason: Some(reason), until, frees: 0 }, moment);
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
