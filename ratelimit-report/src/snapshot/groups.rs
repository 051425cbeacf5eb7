//! Groups of sources nearest to or over a limit, and the number of sources that have used a group's limit. Pure.

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

/// Maximum number of groups shown.
const GROUPS_MAX: usize = 20;

/// Group of sources near or over a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopGroup {
    /// Prefix of the group, or `list NAME`.
    pub group: String,
    /// Name of the limit's rule.
    pub rule: String,
    /// Limit in configuration syntax: `5000/1m requests per /24,/56`.
    pub text: String,
    /// Unit of the limit, of `used` and of `limit`.
    pub unit: Unit,
    /// Amount that all sources of the group have used together.
    pub used: u64,
    /// Amount that a window admits.
    pub limit: u64,
    /// Length of the limit's window.
    pub window_seconds: f64,
    /// Lower bound on the number of the group's sources that have used a per-source limit of the rule within that
    /// limit's window. None if the rule has no per-source limit.
    pub sources: Option<u64>,
    /// Packets that the group's windows refused since they are tracked; 0 under a dry-run rule.
    pub dropped: u64,
    /// Packets that the group's windows refused in dry run; 0 under an enforced rule.
    pub would_drop: u64,
    /// State of the group: `ok` or `over_limit`.
    pub state: State,
    /// Seconds until the group is within the limit, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// True if no wait is long enough, see [`super::CheckLimit::never`].
    #[serde(default)]
    pub never: bool,
}

/// Window of a group, with its limit and the index of its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupWindow {
    pub(super) rule: usize,
    pub(super) limit: Limit,
    pub(super) reading: SourceReading,
}

/// Collector of group windows as they are visited, which keeps the worst.
#[derive(Debug, Default)]
pub(super) struct GroupCensus(Vec<(GroupRank, GroupWindow)>);

type GroupRank = (bool, u128, u64);

impl GroupCensus {
    /// Adds one window, unless the limit is unused.
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

    /// Returns the worst windows, one per group and limit.
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

/// Number of sources that have used the limits of some groups, gathered as windows are visited, in any order.
#[derive(Clone, Debug)]
pub struct Members {
    now: Nanos,
    groups: Vec<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    slot: u32,
    prefix: IpNet,
    /// Number of sources by slot of a per-source limit, and by whether the window counts verified traffic.
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
    /// Creates empty counts for the groups of these windows.
    pub fn of_windows(policy: &Policy, now: Nanos, windows: &[GroupWindow]) -> Self {
        let groups = windows
            .iter()
            .filter_map(|of| Some(Counted::new(policy.rules.get(of.rule)?, &of.limit, of.reading.prefix)));
        Self { now, groups: groups.collect() }
    }

    /// Creates empty counts for the groups that contain an address.
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

    /// Returns true if there is no group to count for.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Counts the source of one window in every group that contains it.
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

    /// Returns the number of sources that have used the limit of this group.
    pub(super) fn of(&self, limit: &Limit, group: &Group) -> Option<u64> {
        self.count(limit.slot, prefix_of(group))
    }

    /// Returns the number of sources that have used a group's limit, by slot and prefix. Returns none if that is not
    /// counted.
    pub fn count(&self, slot: u32, prefix: IpNet) -> Option<u64> {
        let of = self.groups.iter().find(|of| (of.slot, of.prefix) == (slot, prefix))?;
        (!of.limits.is_empty()).then(|| of.own.values().copied().max().unwrap_or(0))
    }
}

/// Prefix of the windows that count all sources of a rule, for `per list` limits.
const LIST: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::UNSPECIFIED, 0));

impl Counted {
    fn new(rule: &Rule, limit: &Limit, prefix: IpNet) -> Self {
        let limits = rule.limits.iter().filter(|limit| limit.per == Per::Source).copied().collect();
        Self { slot: limit.slot, prefix, own: BTreeMap::new(), limits, refuse: rule.refuse }
    }
}

/// Returns the prefix under which the windows of a group are stored.
fn prefix_of(group: &Group) -> IpNet {
    match group {
        Group::Prefix(prefix) => *prefix,
        Group::List(_) => LIST,
    }
}

/// Returns the group that a window of this prefix counts under the limit; none for a source's own window.
pub fn group_of(rule: &Rule, limit: &Limit, prefix: IpNet) -> Option<Group> {
    match limit.per {
        Per::Source => None,
        Per::Prefix { .. } => Some(Group::Prefix(prefix)),
        Per::List => rule.group_of(limit, prefix.addr()),
    }
}

impl TopGroup {
    /// Builds the rows from these windows, which come worst first, and from the counts of their sources.
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
