//! Sums over all sources, in memory that does not grow with them. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use ipnet::IpNet;
use ratelimit_common::layout::{Source, Unit as Counted};
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::Reason;
use ratelimit_common::window::{self, FULL_BUCKETS_MAX};
use serde::{Deserialize, Serialize};

use super::decision::{Decision, Known};
use super::groups::{GroupCensus, GroupWindow};
use super::{Unit, seconds};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{self, Grant, Limit, Per, Policy, Refuse, WindowForm};

/// Sources in `top` unless asked otherwise.
pub const TOP_DEFAULT: usize = 20;

/// How a source stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Within its limits.
    #[default]
    Ok,
    /// Over a limit: one more unit is refused now, or a refusal in this bucket says that its packets are.
    OverLimit,
    /// Banned.
    Banned,
    /// Denied.
    Denied,
    /// Never limited.
    Exempt,
}

impl State {
    /// The state of a source with this decision.
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

/// One source near or over a limit: by the limit that is closest to refusing it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopSource {
    /// Its address, or the prefix that is one client.
    pub source: String,
    /// The limit's rule.
    pub rule: String,
    /// The limit's unit, which `used` and `limit` are in.
    pub unit: Unit,
    /// Used of the limit.
    pub used: u64,
    /// The limit.
    pub limit: u64,
    /// The limit's window.
    pub window_seconds: f64,
    /// Packets that this source's windows refused since they are remembered; 0 under a dry-run rule.
    pub dropped: u64,
    /// The same under a dry-run rule.
    pub would_drop: u64,
    /// How it stands.
    pub state: State,
    /// The same in the words of the counters, as if the rule enforced: it tells the guard from a limit.
    #[serde(default)]
    pub reason: String,
    /// When the source is within every limit again, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// No wait is long enough, see [`super::CheckLimit::never`].
    #[serde(default)]
    pub never: bool,
}

/// Sums over the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// Sources remembered, see [`super::Sources::tracked`].
    pub sources: u64,
    /// The same of each family.
    pub by_family: ByFamily,
    /// Sources over a limit, by rule.
    pub over_limit: Vec<u64>,
    /// What each shadow limit would have refused, by rule and in the rule's order.
    pub shadows: Vec<Vec<Shadowed>>,
    /// The sources nearest to or over a limit, worst first.
    pub leaders: Vec<IpNet>,
    /// The groups nearest to or over a limit, worst first.
    pub groups: Vec<GroupWindow>,
}

/// A number of sources of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByFamily {
    /// IPv4.
    pub ipv4: u64,
    /// IPv6.
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

    /// The greater of each.
    fn most(self, other: Self) -> Self {
        Self { ipv4: self.ipv4.max(other.ipv4), ipv6: self.ipv6.max(other.ipv6) }
    }
}

/// What a shadow limit would have refused of the sources that are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shadowed {
    /// Packets.
    pub packets: u64,
    /// Sources that they came from.
    pub sources: u64,
}

/// Counts windows as they are visited, in any order, and keeps the worst.
///
/// The windows of one source come apart, so the worst `top_max * 2 * limits` windows are kept: fewer than `top_max` sources can
/// come before a source that belongs to the worst `top_max`, each with at most two windows a limit, so none is missed.
#[derive(Debug)]
pub struct Census {
    now: Nanos,
    limits: Vec<LimitCensus>,
    /// Limits of groups, each with its rule.
    of_groups: Vec<(usize, Refuse, Limit)>,
    groups: GroupCensus,
    /// By slot: which rule, and which of its shadow limits.
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
    /// Those of unverified traffic, and those of verified traffic: a source may have both.
    windows: [ByFamily; 2],
    over: u64,
}

/// The order of `top`: over a limit before within, then by packets refused, then by how full the window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    over: bool,
    refused: u64,
    fill: u128,
    source: Reverse<IpNet>,
}

/// The state of one window.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowState {
    /// All that counts: what other hosts of the fleet admitted too.
    pub(super) used: u64,
    /// Of that, others' part.
    pub(super) elsewhere: u64,
    pub(super) remaining: u64,
    pub(super) over: bool,
    pub(super) refused: u64,
    /// The window is within its limit, or was evicted, and a drop-cache entry still drops.
    pub(super) is_cached_drop: bool,
    pub(super) retry: Retry,
}

/// When one more passes, if nothing else is admitted meanwhile. Of several, the greatest holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Retry {
    /// No wait is long enough: the limit is below 1.
    pub(super) never: bool,
    /// Until then; if never, until all that is counted now has left the window, the longest wait that can be named.
    pub(super) after_ns: u64,
}

impl Census {
    /// An empty one, at `now` by the datapath's clock.
    pub fn new(policy: &Policy, now: Nanos, top_max: usize) -> Self {
        let limits = policy.rules.iter().enumerate().flat_map(|(rule, of)| {
            let census = move |&limit| LimitCensus {
                rule,
                refuse: of.refuse,
                limit,
                windows: [ByFamily::default(); 2],
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

    /// Counts one window. Windows of no current limit are passed over: nothing judges by them.
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
            let Level { used, over, .. } = Level::of(&of.limit, of.refuse, &reading.window, self.now);
            of.over += u64::from(over);
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

    /// The sums.
    pub fn finish(self) -> Tracked {
        let mut over_limit = vec![0; self.rules];
        for of in &self.limits {
            over_limit[of.rule] = over_limit[of.rule].max(of.over);
        }
        let mut leaders: Vec<IpNet> = Vec::new();
        for Reverse(rank) in self.worst.into_sorted_vec() {
            if leaders.len() < self.top_max && !leaders.contains(&rank.source.0) {
                leaders.push(rank.source.0);
            }
        }
        let windows = || self.limits.iter().flat_map(|of| of.windows);
        Tracked {
            sources: windows().map(ByFamily::sum).max().unwrap_or(0),
            by_family: windows().fold(ByFamily::default(), ByFamily::most),
            over_limit,
            shadows: self.shadows,
            leaders,
            groups: self.groups.finish(),
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
    /// None so far.
    pub const fn new(policy: &'a Policy, now: Nanos, within: IpNet) -> Self {
        Self { policy, now, within, sources: BTreeSet::new() }
    }

    /// Adds a client that is banned.
    pub fn banned(&mut self, client: IpNet) {
        if self.is_within(client) && !self.is_exempt(client) {
            self.sources.insert(client);
        }
    }

    /// Adds one that this ban drops packets of now.
    pub(super) fn banned_by(&mut self, ban: &Ban) {
        let rule = self.policy.rules.get(ban.rule);
        if self.now < ban.until && rule.is_some_and(|rule| rule.mode == desired::Mode::Enforce) {
            self.banned(ban.client);
        }
    }

    /// How many.
    pub(super) fn count(&self) -> u64 {
        self.sources.len() as u64
    }

    fn is_exempt(&self, client: IpNet) -> bool {
        self.policy.grant_around(client, self.now).is_some_and(|access| access.grant == Grant::Exempt)
    }

    /// Looks at one window: a source over the limit is refused, where the rule drops.
    pub fn visit(&mut self, reading: &SourceReading) {
        if !self.is_within(reading.prefix) {
            return;
        }
        let enforcing = self.policy.rules.iter().filter(|rule| rule.mode == desired::Mode::Enforce);
        let mut limits = enforcing.flat_map(|rule| rule.limits.iter().map(move |limit| (rule, limit)));
        // A list is of no prefix.
        let found = limits.find(|(_, limit)| limit.slot == reading.slot && limit.per != Per::List);
        let is_over = found.is_some_and(|(rule, limit)| WindowState::of(rule, limit, &reading.window, self.now).over);
        if is_over && !self.is_exempt(reading.prefix) {
            self.sources.insert(reading.prefix);
        }
    }

    /// Their names, in order.
    pub fn names(&self) -> Vec<String> {
        self.sources.iter().copied().map(source_text).collect()
    }

    /// A client may be longer than the prefix, or hold it: `2001:db8::7` lies in the client 2001:db8::/64.
    pub(super) fn is_within(&self, client: IpNet) -> bool {
        self.within.contains(&client) || client.contains(&self.within)
    }
}

impl TopSource {
    /// One source, from all of its windows and its bans; none if nothing of it counts (any more).
    pub fn of(policy: &Policy, now: Nanos, source: IpNet, windows: &[SourceReading], bans: &[Ban]) -> Option<Self> {
        let known = Known { policy, now, windows, bans };
        let decisions = policy.rules.iter().enumerate().map(|(at, rule)| known.decision(at, rule, source));
        // Of a rule that remembers nothing of it there is nothing to tell, unless it bans.
        let counts = |of: &Decision<'_>| {
            of.ban.is_some() || of.limits.iter().flat_map(|(_, windows)| windows).any(|window| window.is_known)
        };
        // A group that refuses it stands for itself.
        let decisions: Vec<Decision<'_>> = decisions.map(Decision::of_source).filter(counts).collect();
        let all = decisions.iter().flat_map(|of| of.limits.iter().map(move |(limit, windows)| (of, *limit, windows)));
        let all: Vec<_> = all.flat_map(|(of, limit, windows)| windows.iter().map(move |at| (of, limit, at))).collect();
        let seen = || all.iter().filter(|(_, _, window)| window.is_known);
        seen().next()?;
        let (nearest, limit, window) = all.iter().max_by_key(|(of, limit, window)| {
            let standing = &window.standing;
            (of.found() == Reason::Banned, standing.over, standing.retry, fill(standing.used, limit.amount))
        })?;
        let reason = nearest.found();
        let retry = decisions.iter().map(Decision::retry).max().unwrap_or_default();
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
            retry_after_seconds: seconds(retry.after_ns),
            never: retry.never,
        })
    }

    /// Puts sources in the order of `top`: over a limit first, by packets refused, then by how full their window is.
    pub fn rank(mut sources: Vec<Self>) -> Vec<Self> {
        sources.sort_by_cached_key(|of| {
            let over = matches!(of.state, State::OverLimit | State::Banned | State::Denied);
            let refused = if over { of.dropped.saturating_add(of.would_drop) } else { 0 };
            Reverse((over, refused, fill(of.used, of.limit), Reverse(of.source.clone())))
        });
        sources
    }
}

impl WindowState {
    /// From a reading, whatever else is known of the rule.
    pub(super) fn by(refuse: Refuse, limit: &Limit, reading: &SourceReading, now: Nanos) -> Self {
        Self::with(refuse, limit, &reading.window, now).cached(Some(reading), now)
    }

    pub(super) fn of(rule: &desired::Rule, limit: &Limit, source: &Source, now: Nanos) -> Self {
        Self::with(rule.refuse, limit, source, now)
    }

    /// From what is read of it; nothing is known of a source that was not found.
    pub(super) fn of_reading(rule: &desired::Rule, limit: &Limit, found: Option<&SourceReading>, now: Nanos) -> Self {
        Self::of(rule, limit, &found.map_or(Source::default(), |reading| reading.window), now).cached(found, now)
    }

    /// The same where the drop cache refuses.
    fn cached(self, found: Option<&SourceReading>, now: Nanos) -> Self {
        let standing = self;
        let Some(until) = found.and_then(|reading| reading.refused_until).filter(|until| now < *until) else {
            return standing;
        };
        // Whatever its window says now, or would if it were not evicted.
        let cached = Retry { never: false, after_ns: until.0.saturating_sub(now.0) };
        Self { over: true, remaining: 0, is_cached_drop: !standing.over, retry: standing.retry.max(cached), ..standing }
    }

    /// With a shadow limit, which refuses what does not fit and nothing else, whatever its rule does.
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

/// How full one window is.
struct Level {
    used: u64,
    elsewhere: u64,
    over: bool,
    is_shut: bool,
}

impl Level {
    fn of(limit: &Limit, refuse: Refuse, source: &Source, now: Nanos) -> Self {
        if limit.form == WindowForm::Gcra {
            let over = limit.leak().next(leak_word(source), now, 1).is_none();
            return Self { used: leak_used(limit, source, now), elsewhere: 0, over, is_shut: false };
        }
        let (arithmetic, bucket) = (limit.arithmetic(), now.bucket(limit.bucket_ns));
        let is_shut = is_shut(limit, refuse, source, bucket);
        let over = is_shut || !window::is_within_limit(&source.cells, arithmetic, bucket, 1);
        let (own, elsewhere) = window::used_apart(&source.cells, arithmetic, bucket);
        Self { used: own.saturating_add(elsewhere), elsewhere, over, is_shut }
    }
}

/// How much passes now, one unit after the other.
fn remaining(limit: &Limit, used: u64, source: &Source, now: Nanos) -> u64 {
    let left = limit.amount.saturating_sub(used);
    let Some(burst) = limit.burst else { return left };
    match limit.form {
        WindowForm::Gcra => burst.saturating_sub(used),
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
            let current = window::Limit { full_buckets: 0, ..limit.arithmetic() };
            left.min(burst.saturating_sub(window::used(&source.cells, current, now.bucket(limit.bucket_ns))))
        }
    }
}

/// The word of a leaky bucket.
const fn leak_word(source: &Source) -> u64 {
    source.cells[0]
}

/// How much is in a leaky bucket.
fn leak_used(limit: &Limit, source: &Source, now: Nanos) -> u64 {
    limit.leak_used(leak_word(source).saturating_sub(now.0))
}

/// Whether a refusal in this bucket means that the window refuses until the next bucket, though one more unit may pass.
/// It then refuses everything, where the rule says so, or packets of many units like the refused one.
fn is_shut(limit: &Limit, refuse: Refuse, source: &Source, bucket: BucketIndex) -> bool {
    // The clock was read before the window, whose newest bucket may be a later one.
    let newest = BucketIndex(bucket.0.saturating_add(u64::from(FULL_BUCKETS_MAX)));
    let tells = match (limit.unit, refuse) {
        (Counted::Requests | Counted::Connections | Counted::Packets, Refuse::Excess) => false,
        (Counted::Bytes, Refuse::Excess | Refuse::All)
        | (Counted::Requests | Counted::Connections | Counted::Packets, Refuse::All) => true,
    };
    tells && source.refused.is_within(newest, FULL_BUCKETS_MAX)
}

impl Retry {
    /// The wait until bucket `first`, which is the first that can admit.
    fn from(first: BucketIndex, limit: &Limit, source: &Source, now: Nanos) -> Self {
        let room = window::free_from(&source.cells, limit.arithmetic(), first, 1);
        let bucket = now.bucket(limit.bucket_ns);
        let empty = BucketIndex(bucket.0.saturating_add(u64::from(limit.full_buckets()) + 1));
        Self { never: room.is_none(), after_ns: until(room.unwrap_or(empty), limit.bucket_ns, now) }
    }

    /// The same of a leaky bucket, which frees at any time.
    fn of_leak(limit: &Limit, source: &Source, now: Nanos) -> Self {
        let word = leak_word(source);
        let room = limit.leak().free_from(word, now, 1);
        Self { never: room.is_none(), after_ns: room.map_or(word, |room| room.0).saturating_sub(now.0) }
    }
}

/// The source as JSON names it.
pub fn source_text(source: IpNet) -> String {
    if source.prefix_len() == source.max_prefix_len() { source.addr().to_string() } else { source.to_string() }
}

fn until(bucket: BucketIndex, bucket_ns: u64, now: Nanos) -> u64 {
    bucket.start(bucket_ns).0.saturating_sub(now.0)
}

/// Used of the limit, in 2^-32: counts have at most 47 bits, so nothing overflows.
fn fill(used: u64, limit: u64) -> u128 {
    (u128::from(used) << 32) / u128::from(limit.max(1))
}
