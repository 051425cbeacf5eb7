//! How all of a prefix stands: `ratelimitd check CIDR --json`. Pure.

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::list::{ListFilter, ListParts, ListReport, Listed, Omitted};
use super::sources::{Blocked, Census, TOP_DEFAULT, TopSource, Tracked, source_text};
use super::verdict::Background;
use super::{Outcome, SCHEMA, timestamp};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{Access, Mode, Policy, denies};

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
}

/// How much of a prefix is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl<'a> Within<'a> {
    /// None so far, at `now` by the datapath's clock.
    pub fn new(policy: &'a Policy, now: Nanos, prefix: IpNet) -> Self {
        Self { census: Census::new(policy, now, TOP_DEFAULT), blocked: Blocked::new(policy, now, prefix) }
    }

    /// Looks at one window.
    pub fn visit(&mut self, reading: &SourceReading) {
        if self.blocked.is_within(reading.prefix) {
            self.census.visit(reading);
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
}

impl PrefixReport {
    /// Puts the parts together; of the entries so many of each origin.
    pub fn build(parts: PrefixParts<'_>, most: Option<u64>) -> Self {
        let PrefixParts { prefix, background, list, sources, top } = parts;
        let filter = ListFilter { prefix: Some(prefix), most, ..ListFilter::default() };
        let ListReport { entries, omitted, .. } = ListReport::build(list, &filter);
        let (policy, now) = (list.policy, background.clocks.now);
        let around = policy.grant_around(prefix, now);
        let blocked = extent(policy, prefix, around, now, sources.blocked);
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
        }
    }
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
