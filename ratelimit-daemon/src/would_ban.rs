//! Bans that rules in dry run would have begun. The kernel bans nobody by such a rule, but its windows count
//! refusals. A source that is refused there would be banned. Windows are read in rounds, so a ban is detected up to
//! one round late.
//!
//! Rules that ban only verified sources do not verify connections in dry run. Forged sources may therefore be among
//! the reported ones.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use ratelimit_common::layout::Unit;
use ratelimit_common::time::{BucketIndex, Nanos};

use super::journal::{Banned, Event, Unlogged, Usage};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{Bans, Mode, Per, Policy, Rule, ban_slot};
use ratelimit_report::snapshot::{Clocks, WouldBan, source_text, used_most};

/// Maximum number of tracked sources. Further ones are not reported. // 16384 x 80 B = 1.3 MB
const FOLLOWED_MAX: usize = 16_384;

/// Sources that would be banned.
#[derive(Debug, Default)]
pub(super) struct WouldBans {
    /// Tracked bans by source and by the slot of the rule's bans.
    followed: HashMap<(IpNet, u32), Followed>,
    /// Number of bans since the start, by rule name.
    begun: BTreeMap<String, u64>,
}

/// Newest ban that a source would have.
#[derive(Clone, Copy, Debug)]
struct Followed {
    until: Nanos,
    /// Time from which the next ban is the first of its sequence again.
    reset: Nanos,
    /// Time from which no refusal of this ban can be mistaken for another's, so that the entry can be removed.
    removable: Nanos,
    step: u32,
}

/// Round that visits every source.
pub(super) struct Round<'a> {
    bans: &'a mut WouldBans,
    /// Limits of dry-run rules that ban, by slot. Each value is the rule's index in the policy and the limit's index
    /// in the rule.
    watched: HashMap<u32, (usize, usize)>,
    policy: &'a Policy,
    now: Nanos,
    room: usize,
    found: Vec<(Ban, Option<Usage>)>,
    unlogged: Unlogged,
}

/// Result of a round.
pub(super) struct Found {
    found: Vec<(Ban, Option<Usage>)>,
    unlogged: Unlogged,
}

impl WouldBans {
    /// Begins a round. None if no rule in dry run bans. At most `room` bans are reported individually.
    pub(super) fn round<'a>(&'a mut self, policy: &'a Policy, now: Nanos, room: usize) -> Option<Round<'a>> {
        let rules = || policy.rules.iter().enumerate().filter(|(_, rule)| would(rule).is_some());
        self.begun.retain(|name, _| rules().any(|(_, rule)| rule.name == *name));
        if rules().next().is_none() {
            self.followed.clear();
            return None;
        }
        let slots: Vec<u32> = rules().map(|(_, rule)| ban_slot(&rule.name)).collect();
        self.followed.retain(|(_, slot), of| now < of.removable && slots.contains(slot));
        let limits = rules().flat_map(|(at, rule)| {
            let own = rule.limits.iter().enumerate().filter(|(_, limit)| limit.per == Per::Source);
            own.map(move |(position, limit)| (limit.slot, (at, position)))
        });
        let watched = limits.collect();
        Some(Round { bans: self, watched, policy, now, room, found: Vec::new(), unlogged: Unlogged::default() })
    }

    /// Returns the bans that would hold now, sorted, with rules of the policy.
    pub(super) fn holding(&self, policy: &Policy, now: Nanos) -> Vec<Ban> {
        let rules: HashMap<u32, usize> =
            policy.rules.iter().enumerate().map(|(at, rule)| (ban_slot(&rule.name), at)).collect();
        let of = |(&(client, slot), of): (&(IpNet, u32), &Followed)| {
            let rule = *rules.get(&slot).filter(|_| now < of.until)?;
            Some(Ban { client, rule, until: of.until, step: of.step })
        };
        let mut bans: Vec<Ban> = self.followed.iter().filter_map(of).collect();
        bans.sort_unstable();
        bans
    }

    /// Returns the numbers of past and current bans of each rule that would ban.
    pub(super) fn counts(&self, policy: &Policy, now: Nanos) -> Vec<(String, WouldBan)> {
        let holding = self.holding(policy, now);
        let of = |(at, rule): (usize, &Rule)| {
            would(rule)?;
            let sources = holding.iter().filter(|ban| ban.rule == at).count() as u64;
            let begun = self.begun.get(&rule.name).copied().unwrap_or(0);
            Some((rule.name.clone(), WouldBan { bans: begun, sources }))
        };
        policy.rules.iter().enumerate().filter_map(of).collect()
    }
}

impl Round<'_> {
    /// Processes one window of one source.
    pub(super) fn visit(&mut self, reading: &SourceReading) {
        let Some(&(at, position)) = self.watched.get(&reading.slot) else { return };
        let Some(rule) = self.policy.rules.get(at) else { return };
        let (Some(bans), Some(limit)) = (would(rule), rule.limits.get(position)) else { return };
        if bans.needs_proof && limit.unit != Unit::Connections && !reading.is_verified {
            return;
        }
        let bucket = self.now.bucket(limit.bucket_ns);
        // Checks the current bucket, and the previous one in case it ended between two rounds.
        let newest = [bucket, BucketIndex(bucket.0.saturating_sub(1))];
        let refused = reading.window.refused;
        let Some(newest) = newest.into_iter().find(|at| refused.count() > 0 && refused.is_within(*at, 0)) else {
            return;
        };
        let refused_since = Nanos(newest.0.saturating_mul(limit.bucket_ns));
        let key = (reading.prefix, ban_slot(&rule.name));
        let before = self.bans.followed.get(&key).copied();
        // A source that is still refused when its ban expires is not banned again for the same refusal.
        if before.is_some_and(|before| self.now < before.until || refused_since < before.until)
            || before.is_none() && self.bans.followed.len() >= FOLLOWED_MAX
        {
            return;
        }
        let step = before.filter(|before| self.now < before.reset).map_or(1, |of| of.step.saturating_add(1));
        let Some(length_ns) = bans.length_ns(step) else { return };
        let until = Nanos(self.now.0.saturating_add(length_ns));
        let reset = Nanos(until.0.saturating_add(bans.forget_ns));
        let longest_ns = rule.limits.iter().map(|limit| limit.bucket_ns).max().unwrap_or(0);
        let removable = reset.max(Nanos(until.0.saturating_add(longest_ns.saturating_mul(2))));
        self.bans.followed.insert(key, Followed { until, reset, removable, step });
        *self.bans.begun.entry(rule.name.clone()).or_default() += 1;
        if self.found.len() == self.room {
            self.unlogged.would += 1;
            return;
        }
        let usage = used_most(rule, std::slice::from_ref(reading), self.now);
        let usage = usage.map(|(limit, used)| Usage { limit: limit.to_string(), used });
        self.found.push((Ban { client: reading.prefix, rule: at, until, step }, usage));
    }

    pub(super) fn finish(self) -> Found {
        Found { found: self.found, unlogged: self.unlogged }
    }
}

impl Found {
    /// Returns events for the bans, in order, and the number of further bans.
    pub(super) fn events(self, policy: &Policy, clocks: Clocks) -> (Vec<Event>, Unlogged) {
        let Self { mut found, unlogged } = self;
        found.sort_by_key(|(ban, _)| *ban);
        let event = |(ban, usage): (Ban, Option<Usage>)| {
            let rule = policy.rules.get(ban.rule)?.name.clone();
            let until = clocks.wall_of(ban.until);
            let until = until.round(jiff::Unit::Second).unwrap_or(until);
            let (source, step) = (source_text(ban.client), ban.step);
            Some(Event::WouldBan(Banned { source, rule, usage, until, step, by: None }))
        };
        (found.into_iter().filter_map(event).collect(), unlogged)
    }
}

/// Returns the bans that a rule in dry run would impose. None for an enforced rule.
fn would(rule: &Rule) -> Option<&Bans> {
    match rule.mode {
        Mode::Enforce => None,
        Mode::DryRun => rule.bans.as_ref(),
    }
}
