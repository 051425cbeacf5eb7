//! How all of a prefix stands: `ratelimitd check CIDR --json`. Pure.

use std::collections::BTreeMap;

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::list::{ListFilter, ListParts, ListReport, Listed, Omitted};
use super::sources::{Blocked, Census, TOP_DEFAULT, TopSource, Tracked, source_text};
use super::verdict::Background;
use super::{Outcome, SCHEMA, State, TopGroup, timestamp};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{Access, Grant, Mode, Per, Policy, denies};

/// How all of a prefix stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefixReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The prefix.
    pub prefix: String,
    /// When this was read, by the datapath's clock.
    pub time: Timestamp,
    /// `drop` if a rule drops packets of any address within it now; else `pass`. `ratelimitd check` exits with 3 or 0.
    pub verdict: Outcome,
    /// How much of it is blocked.
    pub blocked: Extent,
    /// What decides for the whole prefix: the longest entry that holds all of it; none where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// The sources within it, or that it is part of.
    pub sources: PrefixSources,
    /// What is allowed, denied and banned within it, or around it.
    pub entries: Vec<Listed>,
    /// How many entries were left out of `entries`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<Omitted>,
    /// Sources nearest to or over their limit, worst first.
    pub top: Vec<TopSource>,
    /// Groups within it, or that it is part of, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TopGroup>,
}

/// How much of a prefix is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Nothing.
    None,
    /// Some of its addresses, or some of its sources.
    Some,
    /// Every address.
    All,
}

/// The sources of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixSources {
    /// Remembered: at least so many, see [`super::Sources::tracked`].
    pub tracked: u64,
    /// Over a limit now, of enforcing rules or not: at least so many.
    pub over_limit: u64,
    /// Banned now.
    pub banned: u64,
    /// Banned or over a limit of a rule that enforces, and not allowed.
    pub blocked: u64,
}

/// Gathers the sources of a prefix as their windows are visited, in any order.
#[derive(Debug)]
pub struct Within<'a> {
    census: Census,
    blocked: Blocked<'a>,
    /// By their slots, limits that are of groups; of a list also whether it has any of the prefix.
    of_groups: BTreeMap<u32, Option<bool>>,
}

impl<'a> Within<'a> {
    /// None so far, at `now` by the datapath's clock.
    pub fn new(policy: &'a Policy, now: Nanos, prefix: IpNet) -> Self {
        let limits = policy.rules.iter().flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
        let of_groups = limits.filter_map(|(rule, limit)| {
            let is_in_list = || rule.from.iter().any(|from| from.contains(&prefix) || prefix.contains(from));
            match limit.per {
                Per::Source => None,
                Per::Prefix { .. } => Some((limit.slot, None)),
                Per::List => Some((limit.slot, Some(is_in_list()))),
            }
        });
        Self {
            census: Census::new(policy, now, TOP_DEFAULT),
            blocked: Blocked::new(policy, now, prefix),
            of_groups: of_groups.collect(),
        }
    }

    /// Looks at one window.
    pub fn visit(&mut self, reading: &SourceReading) {
        let group = self.of_groups.get(&reading.slot);
        // A list's window is of no prefix.
        let is_within = group.copied().flatten().unwrap_or_else(|| self.blocked.is_within(reading.prefix));
        if is_within {
            self.census.visit(reading);
        }
        if is_within && group.is_none() {
            self.blocked.visit(reading);
        }
    }

    /// Adds the bans and returns the sums. Only an enforcing rule blocks a source.
    pub fn finish(mut self, bans: &[Ban]) -> (Tracked, PrefixSources) {
        let within: Vec<&Ban> = bans.iter().filter(|ban| self.blocked.is_within(ban.client)).collect();
        within.iter().for_each(|ban| self.blocked.banned_by(ban));
        let mut banned: Vec<IpNet> = within.iter().map(|ban| ban.client).collect();
        banned.sort_unstable();
        banned.dedup();
        let tracked = self.census.finish();
        let sources = PrefixSources {
            tracked: tracked.sources,
            over_limit: tracked.over_limit.iter().copied().max().unwrap_or(0),
            banned: banned.len() as u64,
            blocked: self.blocked.count(),
        };
        (tracked, sources)
    }
}

/// What the report is made of.
pub struct PrefixParts<'a> {
    /// The prefix.
    pub prefix: IpNet,
    /// Who said what.
    pub background: &'a Background<'a>,
    /// What is allowed, denied and banned.
    pub list: &'a ListParts<'a>,
    /// From [`Within::finish`].
    pub sources: PrefixSources,
    /// The worst sources, in any order.
    pub top: Vec<TopSource>,
    /// The worst groups, the worst first.
    pub groups: Vec<TopGroup>,
}

impl PrefixReport {
    /// Puts the parts together; of the entries so many of each origin.
    pub fn build(parts: PrefixParts<'_>, most: Option<u64>) -> Self {
        let PrefixParts { prefix, background, list, sources, top, groups } = parts;
        let filter = ListFilter { prefix: Some(prefix), most, ..ListFilter::default() };
        let ListReport { entries, omitted, .. } = ListReport::build(list, &filter);
        let (policy, now) = (list.policy, background.clocks.now);
        let around = policy.grant_around(prefix, now);
        let is_exempt = around.is_some_and(|access| access.grant == Grant::Exempt);
        let refused = if is_exempt { Extent::None } else { refused_by_groups(policy, prefix, &groups) };
        let blocked = extent(policy, prefix, around, now, sources.blocked).max(refused);
        Self {
            schema: SCHEMA,
            prefix: source_text(prefix),
            time: timestamp(now),
            verdict: if blocked == Extent::None { Outcome::Pass } else { Outcome::Drop },
            blocked,
            decided_by: around.map(|access| background.author(&access)),
            sources,
            entries,
            omitted,
            top: TopSource::rank(top),
            groups,
        }
    }
}

/// How much of a prefix is in groups that are over a limit that is enforced.
fn refused_by_groups(policy: &Policy, prefix: IpNet, groups: &[TopGroup]) -> Extent {
    let refuses = |of: &TopGroup| {
        let rule = policy.rules.iter().find(|rule| rule.name == of.rule && rule.mode == Mode::Enforce)?;
        let holds_all = match of.group.parse::<IpNet>() {
            Ok(group) => group.contains(&prefix),
            Err(_) => rule.from.iter().any(|from| from.contains(&prefix)),
        };
        (of.state == State::OverLimit).then_some(if holds_all { Extent::All } else { Extent::Some })
    };
    groups.iter().filter_map(refuses).max().unwrap_or(Extent::None)
}

fn extent(policy: &Policy, prefix: IpNet, around: Option<Access>, now: Nanos, blocked: u64) -> Extent {
    let judges = |whom: IpNet| {
        let may = |from: &IpNet| from.contains(&whom) || whom.contains(from);
        policy.rules.iter().any(|rule| {
            rule.mode == Mode::Enforce && !rule.has_ended(now) && (rule.from.is_empty() || rule.from.iter().any(may))
        })
    };
    let inside: Vec<&Access> = policy.access_within(prefix).filter(|of| of.holds(now)).collect();
    let is_denied = around.is_some_and(|access| denies(&access)) && judges(prefix);
    if is_denied && inside.iter().all(|of| denies(of)) {
        return Extent::All;
    }
    if is_denied || blocked != 0 || inside.iter().any(|of| denies(of) && judges(of.prefix)) {
        Extent::Some
    } else {
        Extent::None
    }
}
