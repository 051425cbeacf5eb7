//! Sums over all sources, in memory that does not grow with their number. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::layout::Source;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::Reason;
use serde::{Deserialize, Serialize};

use self::level::{Level, remaining};
use super::decision::{Decider, Decision, Known};
use super::groups::{GroupCensus, GroupWindow};
use super::{Unit, seconds};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{self, Grant, Limit, Per, Policy, Refuse, WindowForm};

mod level;

/// Default number of sources in `top`.
pub const TOP_DEFAULT: usize = 20;

/// Maximum number of sources in `top`, for `stats --all`. // 10 000 x 600 B of JSON = 6 MB
pub const TOP_MAX: usize = 10_000;

/// State of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The source is within its limits.
    #[default]
    Ok,
    /// The source is over a limit: one more unit is refused, or a refusal in this bucket shows that its packets are.
    OverLimit,
    /// A rule has banned the source.
    Banned,
    /// An entry denies the source.
    Denied,
    /// The source is allowed and never limited.
    Exempt,
}

impl State {
    /// Returns the state that a decision with this reason means.
    const fn of(reason: Reason) -> Self {
        match reason {
            Reason::Exempt => Self::Exempt,
            Reason::Denied => Self::Denied,
            Reason::Banned => Self::Banned,
            Reason::OverLimit | Reason::Contended | Reason::Guard | Reason::Reset | Reason::Page => Self::OverLimit,
            Reason::NotIp
            | Reason::NotProtected
            | Reason::NotCounted
            | Reason::WithinLimit
            | Reason::DryRun
            | Reason::Malformed
            | Reason::StateFull
            | Reason::InternalError
            | Reason::NewSourceBudget
            | Reason::TooManyTags
            | Reason::NotAdmitted
            | Reason::TooManyHeaders => Self::Ok,
        }
    }
}

/// Source near or over a limit, described by the limit closest to refusing it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopSource {
    /// Source: an address, or the prefix that counts as one client.
    pub source: String,
    /// Name of the limit's rule.
    pub rule: String,
    /// Unit of the limit, of `used` and of `limit`.
    pub unit: Unit,
    /// Amount used in the window.
    pub used: u64,
    /// Amount that a window admits.
    pub limit: u64,
    /// Length of the limit's window.
    pub window_seconds: f64,
    /// Packets that the source's windows refused since they are tracked; 0 under a dry-run rule.
    pub dropped: u64,
    /// Packets that the source's windows refused in dry run; 0 under an enforced rule.
    pub would_drop: u64,
    /// State of the source.
    pub state: State,
    /// Counter label of the reason, as if the rule were enforced. It distinguishes the guard from a limit.
    #[serde(default)]
    pub reason: String,
    /// Group that is over its limit, so that the source is refused although it is within its own limits: a prefix, or
    /// `list NAME`. `used` and `limit` are then those of the source's own limit. None if no group refuses the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Seconds until the source is within every limit, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// True if no wait is long enough, see [`super::CheckLimit::never`].
    #[serde(default)]
    pub never: bool,
}

/// Sums over the tracked sources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tracked {
    /// Number of tracked sources, see [`super::Sources::tracked`].
    pub sources: u64,
    /// Number of tracked sources by address family.
    pub by_family: ByFamily,
    /// Lower bound on the number of sources that have used a per-source limit in its window.
    pub in_use: u64,
    /// Amounts that all sources have used of each per-source limit, by rule and in the rule's order.
    pub used: Vec<Vec<LimitUse>>,
    /// Number of sources over a limit, by rule.
    pub over_limit: Vec<u64>,
    /// Would-be refusals of each shadow limit, by rule and in the rule's order.
    pub shadows: Vec<Vec<Shadowed>>,
    /// Sources nearest to or over a limit, worst first.
    pub leaders: Vec<IpNet>,
    /// Groups nearest to or over a limit, worst first.
    pub groups: Vec<GroupWindow>,
}

/// Amount that all sources have used of one per-source limit in its window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitUse {
    /// Unit of the limit and of `used`.
    pub unit: Unit,
    /// Length of the limit's window.
    pub window_seconds: f64,
    /// Amount admitted by this host, summed over the tracked sources.
    pub used: u64,
    /// Lower bound on the number of sources that have used the limit.
    pub sources: u64,
}

/// Number of sources by address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByFamily {
    /// Number of IPv4 sources.
    pub ipv4: u64,
    /// Number of IPv6 sources.
    pub ipv6: u64,
}

impl ByFamily {
    fn add_one_of(&mut self, source: &IpNet) {
        match source {
            IpNet::V4(_) => self.ipv4 += 1,
            IpNet::V6(_) => self.ipv6 += 1,
        }
    }

    const fn sum(self) -> u64 {
        self.ipv4.saturating_add(self.ipv6)
    }

    /// Returns the larger count of each family.
    fn most(self, other: Self) -> Self {
        Self { ipv4: self.ipv4.max(other.ipv4), ipv6: self.ipv6.max(other.ipv6) }
    }
}

/// Would-be refusals of tracked sources by one shadow limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shadowed {
    /// Number of packets.
    pub packets: u64,
    /// Number of sources of those packets.
    pub sources: u64,
}

/// Counts windows as they are visited, in any order, and keeps the worst.
///
/// The windows of one source arrive separately, so the worst `top_max * 2 * limits` windows are kept. Fewer than
/// `top_max` sources can precede a source of the worst `top_max`. Each has at most two windows per limit, so no source
/// is missed.
#[derive(Debug)]
pub struct Census {
    now: Nanos,
    limits: Vec<LimitCensus>,
    /// Group limits, each with the index and `refuse` of its rule.
    of_groups: Vec<(usize, Refuse, Limit)>,
    groups: GroupCensus,
    /// Rule index and shadow-limit index, by slot.
    shadow_slots: HashMap<u32, (usize, usize)>,
    shadows: Vec<Vec<Shadowed>>,
    rules: usize,
    top_max: usize,
    worst: BinaryHeap<Reverse<Rank>>,
}

#[derive(Debug)]
struct LimitCensus {
    rule: usize,
    refuse: Refuse,
    limit: Limit,
    /// Number of windows of unverified and of verified traffic. A source may have both.
    windows: [ByFamily; 2],
    /// Amount used, and number of sources that have used any, by window like `windows`.
    used: [(u64, u64); 2],
    /// True if log lines charge the limit. Each line charges both windows of a source.
    is_logged: bool,
    over: u64,
}

/// Sort key of `top`: over a limit first, then refused packets, then the fill of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    over: bool,
    refused: u64,
    fill: u128,
    source: Reverse<IpNet>,
}

/// State of one window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowState {
    /// Amount that counts, including admissions by other hosts of the fleet.
    pub(super) used: u64,
    /// Part of `used` that other hosts admitted.
    pub(super) elsewhere: u64,
    pub(super) remaining: u64,
    pub(super) over: bool,
    pub(super) refused: u64,
    /// True if the window is within its limit, or was evicted, while a drop-cache entry still drops.
    pub(super) is_cached_drop: bool,
    pub(super) retry: Retry,
}

/// Wait until one more unit passes, if nothing else is admitted meanwhile. The greatest of several applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Retry {
    /// True if no wait is long enough, because the limit is below 1.
    pub(super) never: bool,
    /// Wait in nanoseconds. If never, the time until all present use has left the window, the longest wait that can be
    /// given.
    pub(super) after_ns: u64,
}

impl Census {
    /// Creates an empty census at `now` by the datapath's clock.
    pub fn new(policy: &Policy, now: Nanos, top_max: usize) -> Self {
        let limits = policy.rules.iter().enumerate().flat_map(|(rule, of)| {
            let census = move |&limit| LimitCensus {
                rule,
                refuse: of.refuse,
                limit,
                windows: [ByFamily::default(); 2],
                used: [(0, 0); 2],
                is_logged: !of.access_logs.is_empty() && limit.is_logged(),
                over: 0,
            };
            of.limits.iter().filter(|limit| limit.per == Per::Source).map(census)
        });
        let of_groups = policy.rules.iter().enumerate().flat_map(|(rule, of)| {
            let limits = of.limits.iter().filter(|limit| limit.per != Per::Source);
            limits.map(move |&limit| (rule, of.refuse, limit))
        });
        let shadow_slots = policy.rules.iter().enumerate().flat_map(|(rule, of)| {
            of.shadow_limits.iter().enumerate().map(move |(at, limit)| (limit.slot, (rule, at)))
        });
        Self {
            now,
            limits: limits.collect(),
            of_groups: of_groups.collect(),
            groups: GroupCensus::default(),
            shadow_slots: shadow_slots.collect(),
            shadows: policy.rules.iter().map(|of| vec![Shadowed::default(); of.shadow_limits.len()]).collect(),
            rules: policy.rules.len(),
            top_max,
            worst: BinaryHeap::new(),
        }
    }

    /// Counts one window. Windows of no current limit are ignored, because no rule judges by them.
    pub fn visit(&mut self, reading: &SourceReading) {
        if let Some(&(rule, at)) = self.shadow_slots.get(&reading.slot) {
            let (of, refused) = (&mut self.shadows[rule][at], reading.window.refused.count());
            of.packets = of.packets.saturating_add(refused);
            of.sources += u64::from(refused != 0);
            return;
        }
        if let Some((rule, refuse, limit)) = self.of_groups.iter().find(|(_, _, limit)| limit.slot == reading.slot) {
            self.groups.visit((*rule, *refuse), limit, reading, self.now);
            return;
        }
        let worst_max = self.top_max.saturating_mul(2 * self.limits.len());
        for of in self.limits.iter_mut().filter(|of| of.limit.slot == reading.slot) {
            of.windows[usize::from(reading.is_verified)].add_one_of(&reading.prefix);
            let Level { used, elsewhere, over, .. } = Level::of(&of.limit, of.refuse, &reading.window, self.now);
            of.over += u64::from(over);
            let (amount, sources) = &mut of.used[usize::from(reading.is_verified)];
            *amount = amount.saturating_add(used.saturating_sub(elsewhere));
            *sources += u64::from(used > 0 || over);
            let refused = if over { reading.window.refused.count() } else { 0 };
            let rank = Rank { over, refused, fill: fill(used, of.limit.amount), source: Reverse(reading.prefix) };
            if used == 0 && !over {
                continue;
            }
            if self.worst.len() < worst_max {
                self.worst.push(Reverse(rank));
            } else if let Some(mut least) = self.worst.peek_mut()
                && least.0 < rank
            {
                *least = Reverse(rank);
            }
        }
    }

    /// Returns the sums over all visited windows.
    pub fn finish(self) -> Tracked {
        let mut over_limit = vec![0; self.rules];
        for of in &self.limits {
            over_limit[of.rule] = over_limit[of.rule].max(of.over);
        }
        let mut used = vec![Vec::new(); self.rules];
        for of in &self.limits {
            used[of.rule].push(of.in_window());
        }
        let mut leaders: Vec<IpNet> = Vec::new();
        let mut is_leader: HashSet<IpNet> = HashSet::new();
        for Reverse(rank) in self.worst.into_sorted_vec() {
            if leaders.len() < self.top_max && is_leader.insert(rank.source.0) {
                leaders.push(rank.source.0);
            }
        }
        let windows = || self.limits.iter().flat_map(|of| of.windows);
        Tracked {
            sources: windows().map(ByFamily::sum).max().unwrap_or(0),
            by_family: windows().fold(ByFamily::default(), ByFamily::most),
            in_use: used.iter().flatten().map(|of: &LimitUse| of.sources).max().unwrap_or(0),
            used,
            over_limit,
            shadows: self.shadows,
            leaders,
            groups: self.groups.finish(),
        }
    }
}

impl LimitCensus {
    /// Returns the amount that all sources have used.
    fn in_window(&self) -> LimitUse {
        let [(unverified, some), (verified, others)] = self.used;
        let used = if self.is_logged { unverified.max(verified) } else { unverified.saturating_add(verified) };
        LimitUse {
            unit: self.limit.unit.into(),
            window_seconds: seconds(self.limit.window_ns),
            used,
            sources: some.max(others),
        }
    }
}

/// Sources of a prefix that a rule refuses now, gathered as windows are visited, in any order.
#[derive(Debug)]
pub struct Blocked<'a> {
    policy: &'a Policy,
    now: Nanos,
    within: IpNet,
    sources: BTreeSet<IpNet>,
}

impl<'a> Blocked<'a> {
    /// Creates an empty set for the prefix `within`.
    pub const fn new(policy: &'a Policy, now: Nanos, within: IpNet) -> Self {
        Self { policy, now, within, sources: BTreeSet::new() }
    }

    /// Adds a banned client, if it touches the prefix and is not exempt.
    pub fn banned(&mut self, client: IpNet) {
        if self.is_within(client) && !self.is_exempt(client) {
            self.sources.insert(client);
        }
    }

    /// Adds the client of a ban that drops packets now.
    pub(super) fn banned_by(&mut self, ban: &Ban) {
        let rule = self.policy.rules.get(ban.rule);
        if self.now < ban.until && rule.is_some_and(|rule| rule.mode == desired::Mode::Enforce) {
            self.banned(ban.client);
        }
    }

    /// Returns the number of refused sources.
    pub(super) fn count(&self) -> u64 {
        self.sources.len() as u64
    }

    fn is_exempt(&self, client: IpNet) -> bool {
        self.policy.grant_around(client, self.now).is_some_and(|access| access.grant == Grant::Exempt)
    }

    /// Visits one window. A source over a limit is refused if the rule enforces.
    pub fn visit(&mut self, reading: &SourceReading) {
        if !self.is_within(reading.prefix) {
            return;
        }
        let enforcing = self.policy.rules.iter().filter(|rule| rule.mode == desired::Mode::Enforce);
        let mut limits = enforcing.flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
        // The window of a list has no prefix.
        let found = limits.find(|(_, limit)| limit.slot == reading.slot && limit.per != Per::List);
        let is_over = found.is_some_and(|(rule, limit)| WindowState::of(rule, limit, &reading.window, self.now).over);
        if is_over && !self.is_exempt(reading.prefix) {
            self.sources.insert(reading.prefix);
        }
    }

    /// Returns the names of the sources, in order.
    pub fn names(&self) -> Vec<String> {
        self.sources.iter().copied().map(source_text).collect()
    }

    /// Returns true if the client and the prefix overlap. A client may contain the prefix: the client 2001:db8::/64
    /// contains `2001:db8::7`.
    pub(super) fn is_within(&self, client: IpNet) -> bool {
        self.within.contains(&client) || client.contains(&self.within)
    }
}

impl TopSource {
    /// Builds the row of one source from its windows and bans. Returns none if nothing about it is known.
    pub fn of(policy: &Policy, now: Nanos, source: IpNet, windows: &[SourceReading], bans: &[Ban]) -> Option<Self> {
        let known = Known { policy, now, windows, bans };
        let decisions = policy.rules.iter().enumerate().map(|(at, rule)| known.decision(at, rule, source));
        // A rule without a window or ban of the source has nothing to report.
        let counts = |of: &Decision<'_>| {
            of.ban.is_some() || of.limits.iter().flat_map(|(_, windows)| windows).any(|window| window.is_known)
        };
        let decisions: Vec<Decision<'_>> = decisions.map(Decision::of_source).filter(counts).collect();
        let all = decisions.iter().flat_map(|of| of.limits.iter().map(move |(limit, windows)| (of, *limit, windows)));
        let all: Vec<_> = all.flat_map(|(of, limit, windows)| windows.iter().map(move |at| (of, limit, at))).collect();
        let seen = || all.iter().filter(|(_, _, window)| window.is_known);
        seen().next()?;
        let (nearest, limit, window) = all.iter().max_by_key(|(of, limit, window)| {
            let standing = &window.standing;
            (of.found() == Reason::Banned, standing.over, standing.retry, fill(standing.used, limit.amount))
        })?;
        let own = nearest.found();
        // A group may refuse a source that is within its own limits.
        let refusing = if own == Reason::WithinLimit { GroupRefusal::of(&known, source) } else { None };
        let reason = refusing.as_ref().map_or(own, |of| of.reason);
        let retry = decisions.iter().map(Decision::retry).max().unwrap_or_default();
        let retry = refusing.as_ref().map_or(retry, |of| of.retry.max(retry));
        let refused: u64 = seen().fold(0, |sum, (_, _, window)| window.standing.refused.saturating_add(sum));
        let rule = nearest.rule;
        let (dropped, would_drop) = match rule.mode {
            desired::Mode::Enforce => (refused, 0),
            desired::Mode::DryRun => (0, refused),
        };
        Some(Self {
            source: source_text(source),
            rule: rule.name.clone(),
            unit: limit.unit.into(),
            used: window.standing.used,
            limit: limit.amount,
            window_seconds: seconds(limit.window_ns),
            dropped,
            would_drop,
            state: State::of(reason),
            reason: reason.label().to_owned(),
            group: refusing.map(|of| of.group),
            retry_after_seconds: seconds(retry.after_ns),
            never: retry.never,
        })
    }

    /// Sorts sources in the order of `top`: over a limit first, then by refused packets, then by fill of the window.
    /// Equal sources are sorted by address.
    pub fn rank(mut sources: Vec<Self>) -> Vec<Self> {
        sources.sort_by_cached_key(|of| {
            let over = matches!(of.state, State::OverLimit | State::Banned | State::Denied);
            let refused = if over { of.dropped.saturating_add(of.would_drop) } else { 0 };
            Reverse((over, refused, fill(of.used, of.limit), Reverse(source_key(&of.source))))
        });
        sources
    }
}

/// Refusal of a source by a group that contains it.
struct GroupRefusal {
    /// Prefix of the group, or `list NAME`.
    group: String,
    reason: Reason,
    retry: Retry,
}

impl GroupRefusal {
    /// Returns the first rule's refusal by a group limit or a group's guard.
    fn of(known: &Known<'_>, source: IpNet) -> Option<Self> {
        let has_groups = |rule: &desired::Rule| rule.limits.iter().any(|limit| limit.per != Per::Source);
        let rules = known.policy.rules.iter().enumerate().filter(|(_, rule)| has_groups(rule));
        rules.map(|(at, rule)| known.decision(at, rule, source)).find_map(|of| {
            let group = match of.cause() {
                Decider::OverLimit(_, window) => window.group.as_ref()?,
                Decider::Guard(guard) => guard.group.as_ref()?,
                Decider::Exempt(_) | Decider::Denied(_) | Decider::Banned(_) | Decider::Within => return None,
            };
            Some(Self { group: group.to_string(), reason: of.found(), retry: of.retry() })
        })
    }
}

impl WindowState {
    /// Computes the state from a reading, for a rule with this `refuse`.
    pub(super) fn by(refuse: Refuse, limit: &Limit, reading: &SourceReading, now: Nanos) -> Self {
        Self::with(refuse, limit, &reading.window, now).cached(Some(reading), now)
    }

    pub(super) fn of(rule: &desired::Rule, limit: &Limit, source: &Source, now: Nanos) -> Self {
        Self::with(rule.refuse, limit, source, now)
    }

    /// Computes the state from a reading. Without one, the source is unknown and its window empty.
    pub(super) fn of_reading(rule: &desired::Rule, limit: &Limit, found: Option<&SourceReading>, now: Nanos) -> Self {
        Self::of(rule, limit, &found.map_or(Source::default(), |reading| reading.window), now).cached(found, now)
    }

    /// Adjusts the state if the drop cache refuses the source.
    fn cached(self, found: Option<&SourceReading>, now: Nanos) -> Self {
        let standing = self;
        let Some(until) = found.and_then(|reading| reading.refused_until).filter(|until| now < *until) else {
            return standing;
        };
        // The drop cache refuses whatever the window says now, or would say if it were not evicted.
        let cached = Retry { never: false, after_ns: until.0.saturating_sub(now.0) };
        Self { over: true, remaining: 0, is_cached_drop: !standing.over, retry: standing.retry.max(cached), ..standing }
    }

    /// Computes the state for a shadow limit, which refuses only the excess, whatever its rule does.
    pub(super) fn of_shadow(limit: &Limit, source: &Source, now: Nanos) -> Self {
        Self::with(Refuse::Excess, limit, source, now)
    }

    fn with(refuse: Refuse, limit: &Limit, source: &Source, now: Nanos) -> Self {
        let Level { used, elsewhere, over, is_shut } = Level::of(limit, refuse, source, now);
        let bucket = now.bucket(limit.bucket_ns);
        let first = if is_shut { BucketIndex(bucket.0.saturating_add(1)) } else { bucket };
        let retry = match (over, limit.form) {
            (false, _) => Retry::default(),
            (true, WindowForm::Gcra) => Retry::of_leak(limit, source, now),
            (true, WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed) => {
                Retry::from(first, limit, source, now)
            }
        };
        let remaining = remaining(limit, used, source, now);
        Self { used, elsewhere, remaining, over, refused: source.refused.count(), is_cached_drop: false, retry }
    }
}

/// Returns the source in JSON notation: an address, or a prefix if it is shorter.
pub fn source_text(source: IpNet) -> String {
    if source.prefix_len() == source.max_prefix_len() { source.addr().to_string() } else { source.to_string() }
}

/// Returns the sort key of a source in JSON notation: its address, then its text if that is no address.
pub fn source_key(source: &str) -> (Option<IpNet>, String) {
    let prefix = source.parse::<IpNet>().or_else(|_| source.parse::<IpAddr>().map(IpNet::from));
    (prefix.ok(), source.to_owned())
}

/// Returns the used share of the limit in units of 2^-32. Counts have at most 47 bits, so nothing overflows.
fn fill(used: u64, limit: u64) -> u128 {
    (u128::from(used) << 32) / u128::from(limit.max(1))
}
