//! State of a whole prefix: `ratelimitd check CIDR --json`. Pure.

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

/// State of a whole prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefixReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Prefix in CIDR notation.
    pub prefix: String,
    /// Time of the reading, by the datapath's clock.
    pub time: Timestamp,
    /// `drop` if a rule drops packets of any address in the prefix now, else `pass`. `ratelimitd check` exits with 3 or
    /// 0.
    pub verdict: Outcome,
    /// Extent of the blocking.
    pub blocked: Extent,
    /// Deciding entry for the whole prefix: the longest entry that contains all addresses; none without such an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// Sources that lie in the prefix or contain it.
    pub sources: PrefixSources,
    /// Allowed, denied and banned prefixes within it or around it.
    pub entries: Vec<Listed>,
    /// Number of entries left out of `entries`, by origin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<Omitted>,
    /// Sources nearest to or over their limit, worst first.
    pub top: Vec<TopSource>,
    /// Groups in the prefix or around it, nearest to or over their limit, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TopGroup>,
}

/// Extent of the blocking of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// No address is blocked.
    None,
    /// Some addresses or some sources are blocked.
    Some,
    /// Every address is blocked.
    All,
}

/// Counts of the sources of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixSources {
    /// Lower bound on the tracked sources, see [`super::Sources::tracked`].
    pub tracked: u64,
    /// Lower bound on the sources over a limit now, whether or not its rule enforces.
    pub over_limit: u64,
    /// Number of sources that are banned now.
    pub banned: u64,
    /// Number of sources, not allowed, that are banned or over a limit of an enforced rule.
    pub blocked: u64,
}

/// Gathers the sources of a prefix as their windows are visited, in any order.
#[derive(Debug)]
pub struct Within<'a> {
    census: Census,
    blocked: Blocked<'a>,
    /// Group limits by slot. For a list, the value tells whether the list overlaps the prefix.
    of_groups: BTreeMap<u32, Option<bool>>,
}

impl<'a> Within<'a> {
    /// Creates an empty collection at `now` by the datapath's clock.
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

    /// Counts one window, if it belongs to the prefix.
    pub fn visit(&mut self, reading: &SourceReading) {
        let group = self.of_groups.get(&reading.slot);
        // The window of a list has no prefix.
        let is_within = group.copied().flatten().unwrap_or_else(|| self.blocked.is_within(reading.prefix));
        if is_within {
            self.census.visit(reading);
        }
        if is_within && group.is_none() {
            self.blocked.visit(reading);
        }
    }

    /// Adds the bans and returns the sums. Only an enforced rule blocks a source.
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

/// Inputs of [`PrefixReport::build`].
pub struct PrefixParts<'a> {
    /// Prefix to report on.
    pub prefix: IpNet,
    /// Entries and orders with their authors.
    pub background: &'a Background<'a>,
    /// Allowed, denied and banned prefixes.
    pub list: &'a ListParts<'a>,
    /// Counts of the sources, from [`Within::finish`].
    pub sources: PrefixSources,
    /// Worst sources, in any order.
    pub top: Vec<TopSource>,
    /// Worst groups, worst first.
    pub groups: Vec<TopGroup>,
}

impl PrefixReport {
    /// Builds the report, with at most `most` entries of each origin.
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

/// Returns the extent to which groups over an enforced limit contain the prefix.
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
