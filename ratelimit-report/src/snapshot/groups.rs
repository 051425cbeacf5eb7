//! Groups of sources nearest to or over a limit, and how many sources have used what a group has. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;
use serde::{Deserialize, Serialize};

use super::sources::WindowState;
use super::{State, Unit, seconds};
use ratelimit_datapath::SourceReading;
use ratelimit_policy::desired::{self, Group, Limit, Mode, Per, Policy, Rule};

/// Groups that are shown.
const GROUPS_MAX: usize = 20;

/// One group of sources near or over a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopGroup {
    /// Its prefix, or `list NAME`.
    pub group: String,
    /// The limit's rule.
    pub rule: String,
    /// The limit, as files have it: `5000/1m requests per /24,/56`.
    pub text: String,
    /// The limit's unit, which `used` and `limit` are in.
    pub unit: Unit,
    /// Used of the limit, by all of its sources together.
    pub used: u64,
    /// The limit.
    pub limit: u64,
    /// The limit's window.
    pub window_seconds: f64,
    /// Sources of it that have used a limit of their own in that limit's window, at least so many; none where the rule
    /// has no limit of each source.
    pub sources: Option<u64>,
    /// Packets that the group's windows refused since they are remembered; 0 under a dry-run rule.
    pub dropped: u64,
    /// The same under a dry-run rule.
    pub would_drop: u64,
    /// How it stands: `ok` or `over_limit`.
    pub state: State,
    /// When it is within the limit again, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// No wait is long enough, see [`super::CheckLimit::never`].
    #[serde(default)]
    pub never: bool,
}

/// A window of a group: of the limit at this place of the rule at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupWindow {
    pub(super) rule: usize,
    pub(super) limit: Limit,
    pub(super) reading: SourceReading,
}

/// Windows of groups as they are visited, the worst of them kept.
#[derive(Debug, Default)]
pub(super) struct GroupCensus(Vec<(GroupRank, GroupWindow)>);

type GroupRank = (bool, u128, u64);

impl GroupCensus {
    /// Takes in one window.
    pub(super) fn visit(
        &mut self,
        policy_rule: (usize, desired::Refuse),
        limit: &Limit,
        reading: &SourceReading,
        now: Nanos,
    ) {
        let (rule, refuse) = policy_rule;
        let of = WindowState::by(refuse, limit, reading, now);
        if of.used == 0 && !of.over {
            return;
        }
        let fill = u128::from(of.used).saturating_mul(1_000_000) / u128::from(limit.amount.max(1));
        self.0.push(((of.over, fill, of.refused), GroupWindow { rule, limit: *limit, reading: *reading }));
        if self.0.len() >= 4 * GROUPS_MAX {
            self.cut();
        }
    }

    /// The worst, each group of a limit once.
    pub(super) fn finish(mut self) -> Vec<GroupWindow> {
        self.cut();
        self.0.into_iter().map(|(_, of)| of).collect()
    }

    fn cut(&mut self) {
        self.0.sort_by_key(|(rank, of)| Reverse((*rank, Reverse((of.limit.slot, of.reading.prefix)))));
        let mut kept: Vec<(u32, IpNet)> = Vec::new();
        self.0.retain(|(_, of)| {
            let key = (of.limit.slot, of.reading.prefix);
            let is_new = kept.len() < GROUPS_MAX && !kept.contains(&key);
            if is_new {
                kept.push(key);
            }
            is_new
        });
    }
}

/// How many sources have used something of what some groups have, gathered as windows are visited, in any order.
#[derive(Clone, Debug)]
pub struct Members {
    now: Nanos,
    groups: Vec<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    slot: u32,
    prefix: IpNet,
    /// The limits of each source beside it, and whether their windows of verified traffic are meant, to how many have used them.
    own: BTreeMap<(u32, bool), u64>,
    limits: Vec<Limit>,
    refuse: desired::Refuse,
}

impl Default for Members {
    fn default() -> Self {
        Self { now: Nanos(0), groups: Vec::new() }
    }
}

impl Members {
    /// None so far, of the groups of these windows.
    pub fn of_windows(policy: &Policy, now: Nanos, windows: &[GroupWindow]) -> Self {
        let groups = windows
            .iter()
            .filter_map(|of| Some(Counted::new(policy.rules.get(of.rule)?, &of.limit, of.reading.prefix)));
        Self { now, groups: groups.collect() }
    }

    /// None so far, of the groups that an address is in.
    pub fn around(policy: &Policy, now: Nanos, address: IpAddr) -> Self {
        let rules = policy.rules_from(address, now);
        let limits = rules.iter().flat_map(|(_, rule)| rule.limits.iter().map(|limit| (*rule, limit)));
        let groups = limits.filter_map(|(rule, limit)| {
            let prefix = match limit.per {
                Per::Source => return None,
                Per::Prefix { .. } => limit.per.prefix_of(address)?,
                Per::List => LIST,
            };
            Some(Counted::new(rule, limit, prefix))
        });
        Self { now, groups: groups.collect() }
    }

    /// Whether there is nothing to count.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Takes in one window.
    pub fn visit(&mut self, reading: &SourceReading) {
        for of in &mut self.groups {
            let Some(limit) = of.limits.iter().find(|limit| limit.slot == reading.slot) else { continue };
            let is_within = of.prefix == LIST || of.prefix.contains(&reading.prefix);
            let standing = || WindowState::by(of.refuse, limit, reading, self.now);
            if is_within && {
                let of = standing();
                of.used > 0 || of.over
            } {
                *of.own.entry((reading.slot, reading.is_verified)).or_default() += 1;
            }
        }
    }

    /// The same of a limit's group.
    pub(super) fn of(&self, limit: &Limit, group: &Group) -> Option<u64> {
        self.count(limit.slot, prefix_of(group))
    }

    /// How many have used something of what this group has; none where that is not counted.
    pub fn count(&self, slot: u32, prefix: IpNet) -> Option<u64> {
        let of = self.groups.iter().find(|of| (of.slot, of.prefix) == (slot, prefix))?;
        (!of.limits.is_empty()).then(|| of.own.values().copied().max().unwrap_or(0))
    }
}

/// Where the windows of all sources of a rule are.
const LIST: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::UNSPECIFIED, 0));

impl Counted {
    fn new(rule: &Rule, limit: &Limit, prefix: IpNet) -> Self {
        let limits = rule.limits.iter().filter(|limit| limit.per == Per::Source).copied().collect();
        Self { slot: limit.slot, prefix, own: BTreeMap::new(), limits, refuse: rule.refuse }
    }
}

/// The prefix that has the windows of this group.
fn prefix_of(group: &Group) -> IpNet {
    match group {
        Group::Prefix(prefix) => *prefix,
        Group::List(_) => LIST,
    }
}

/// What the windows of this prefix are of, under this limit of the rule: none where they are a source's.
pub fn group_of(rule: &Rule, limit: &Limit, prefix: IpNet) -> Option<Group> {
    match limit.per {
        Per::Source => None,
        Per::Prefix { .. } => Some(Group::Prefix(prefix)),
        Per::List => rule.group_of(limit, prefix.addr()),
    }
}

impl TopGroup {
    /// From these windows, and from how many sources have used them, the worst first.
    pub fn all(policy: &Policy, now: Nanos, windows: &[GroupWindow], members: &Members) -> Vec<Self> {
        let of = |of: &GroupWindow| {
            let (rule, limit) = (policy.rules.get(of.rule)?, &of.limit);
            let standing = WindowState::by(rule.refuse, limit, &of.reading, now);
            let (dropped, would_drop) = match rule.mode {
                Mode::Enforce => (standing.refused, 0),
                Mode::DryRun => (0, standing.refused),
            };
            Some(Self {
                group: group_of(rule, limit, of.reading.prefix)?.to_string(),
                rule: rule.name.clone(),
                text: limit.to_string(),
                unit: limit.unit.into(),
                used: standing.used,
                limit: limit.amount,
                window_seconds: seconds(limit.window_ns),
                sources: members.count(limit.slot, of.reading.prefix),
                dropped,
                would_drop,
                state: if standing.over { State::OverLimit } else { State::Ok },
                retry_after_seconds: seconds(standing.retry.after_ns),
                never: standing.retry.never,
            })
        };
        windows.iter().filter_map(of).collect()
    }
}
