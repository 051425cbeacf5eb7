//! Verdict on one more unit of a source, and its reason: `ratelimitd check IP --json`. Pure.

use std::cmp::Reverse;
use std::net::IpAddr;

use jiff::Timestamp;
use ratelimit_common::layout::Source;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::verdict::{Action, Reason};
use ratelimit_common::verification::Side;
use ratelimit_common::window::{CELLS, Cell, index};
use serde::{Deserialize, Serialize};

use super::decision::{Decision, Known, worst};
use super::guard::GuardStanding;
use super::sources::{WindowState, source_text};
use super::verdict::{Background, RuleVerdict, verdicts};
use super::words::ConditionWords;
use super::{CheckGuard, Counting, Mode, SCHEMA, Unit, WindowForm, seconds, timestamp};
use ratelimit_datapath::{Ban, SourceReading};
use ratelimit_policy::desired::{self, Grant, Group, Limit, Per, Policy};
use ratelimit_policy::labels;

/// Action on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The packet passes.
    Pass,
    /// The packet is dropped.
    Drop,
}

/// State of one source under every rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Source: an address, or the prefix that counts as one client.
    pub source: String,
    /// Address that was asked for, which the verdict is about.
    #[serde(default)]
    pub address: String,
    /// Time of the reading, by the datapath's clock.
    pub time: Timestamp,
    /// `drop` if at least one rule drops some or all packets of this address now, else `pass`. `ratelimitd check` exits
    /// with 3 or 0. `verdicts` has the action of each rule.
    pub verdict: Outcome,
    /// Reason, as a counter label: the first of exempt, denied, banned, over_limit, guard, dry_run, within_limit that
    /// any rule reports.
    pub reason: String,
    /// Seconds until the source passes every limit, guard, ban and denial, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// True if no wait is long enough for at least one limit, or the denial is permanent.
    #[serde(default)]
    pub never: bool,
    /// True if a window or ban of the source is known.
    #[serde(default = "remembered")]
    pub remembered: bool,
    /// Verdict of each rule that judges the source's packets, in rule order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<RuleVerdict>,
    /// State of every limit of every rule that may judge the source's packets.
    pub limits: Vec<CheckLimit>,
    /// Meaning and accuracy of each unit that the limits count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counting: Vec<Counting>,
    /// State of the rules' shadow limits, which are counted and never enforced. Their `mode` is dry-run, whatever the
    /// rule's is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow_limits: Vec<CheckLimit>,
    /// Guards of the request limits that the source has used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guard: Vec<CheckGuard>,
}

/// State of one source under one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckLimit {
    /// Name of the limit's rule.
    pub rule: String,
    /// Mode of the rule: enforce or dry-run.
    pub mode: Mode,
    /// Unit that the limit counts.
    pub unit: Unit,
    /// Part of the source's traffic that this window counts; none unless its connections have a window of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Group of sources that the limit counts as one: a prefix, or `list NAME`. None for a limit per source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Condition of the logged requests that the limit counts. None if it counts packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionWords>,
    /// Lower bound on the number of the group's sources that have used the limit; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<u64>,
    /// Amount used in the window on this host, in the limit's unit.
    pub used: u64,
    /// Amount that other hosts of the fleet admitted in the window, as last reported to this host. It counts against
    /// the limit too. None if this window is not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_elsewhere: Option<u64>,
    /// Seconds since the last such report; none without a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_seconds_ago: Option<f64>,
    /// Number of requests in `used` that an access log added. None if no log corrects the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_from_log: Option<u64>,
    /// Amount that a window admits.
    pub limit: u64,
    /// Amount that passes now: the rest of the limit, or of its burst if that is smaller.
    pub remaining: u64,
    /// True if nothing is left, or if the window refused something in the current bucket and would again. In the second
    /// case the rest is too small for a packet of many bytes, or the rule refuses everything.
    #[serde(default)]
    pub over: bool,
    /// Seconds until one more unit passes, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// True if no wait is long enough, because the limit is below 1. `retry_after_seconds` is then the time until the
    /// window is empty.
    #[serde(default)]
    pub never: bool,
    /// Number of packets that this window refused since it is tracked.
    pub refused: u64,
    /// Length of the window.
    pub window_seconds: f64,
    /// Form of the window.
    pub window: WindowForm,
    /// Length of a bucket.
    pub bucket_seconds: f64,
    /// Buckets of the window, oldest first and the current one last. Their counts sum to `used`. Empty for `gcra`.
    pub buckets: Vec<Bucket>,
}

/// Part of a source's traffic that is counted separately. Each part is held to the limit on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Unverified traffic: connection attempts, datagrams, segments of no connection.
    Unverified,
    /// Segments of connections that are established with this host.
    Verified,
}

/// One bucket of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Start of the bucket.
    pub start: Timestamp,
    /// Amount admitted in the bucket.
    pub count: u64,
}

impl CheckReport {
    /// Builds the report on `address` from its windows, at `now` by the datapath's clock.
    pub fn build(policy: &Policy, now: Nanos, address: IpAddr, windows: &[SourceReading]) -> Self {
        Self::with_bans(policy, now, address, windows, &[])
    }

    /// Builds the report from windows and bans. Bans of other clients are ignored. The authors of allow and deny
    /// entries are unknown.
    pub fn with_bans(policy: &Policy, now: Nanos, address: IpAddr, windows: &[SourceReading], bans: &[Ban]) -> Self {
        Self::told(policy, address, windows, bans, &Background::unknown(now))
    }

    /// Builds the report with the author and time of each entry, from `background`.
    pub fn told(
        policy: &Policy,
        address: IpAddr,
        windows: &[SourceReading],
        bans: &[Ban],
        background: &Background<'_>,
    ) -> Self {
        let now = background.clocks.now;
        let known = Known { policy, now, windows, bans };
        let rules = policy.rules_from(address, now);
        let decisions = rules.iter().map(|(at, rule)| known.decision(*at, rule, address.into()));
        let decisions: Vec<Decision<'_>> = decisions.collect();
        let is_exempt = policy.grant(address, now).is_some_and(|access| access.grant == Grant::Exempt);
        let unjudged = if is_exempt { Reason::Exempt } else { Reason::NotProtected };
        let reason = worst(decisions.iter().map(Decision::reason)).unwrap_or(unjudged);
        let retry = decisions.iter().map(Decision::retry).max().unwrap_or_default();
        let all_windows =
            decisions.iter().flat_map(|of| of.limits.iter().map(move |(limit, windows)| (of.rule, *limit, windows)));
        let is_known = |of: &Decision<'_>| {
            let own = of.limits.iter().filter(|(limit, _)| limit.per == Per::Source);
            let windows = own.flat_map(|(_, windows)| windows);
            of.ban.is_some() || !of.guards.is_empty() || windows.into_iter().any(|window| window.is_known)
        };
        Self {
            schema: SCHEMA,
            source: source_text(policy.client(address)),
            address: address.to_string(),
            time: timestamp(now),
            verdict: reason.action().into(),
            reason: reason.label().to_owned(),
            retry_after_seconds: seconds(retry.after_ns),
            never: retry.never,
            remembered: decisions.iter().any(is_known),
            verdicts: verdicts(policy, address, &decisions, background),
            limits: all_windows
                .flat_map(|(rule, limit, windows)| {
                    windows.iter().map(move |of| CheckLimit {
                        sources: of.group.as_ref().and_then(|group| background.members.of(limit, group)),
                        ..check_limit(rule, limit, of, now)
                    })
                })
                .collect(),
            counting: Counting::of(rules.iter().flat_map(|(_, rule)| &rule.limits)),
            shadow_limits: rules.iter().flat_map(|(_, rule)| shadow_limits(rule, windows, now)).collect(),
            guard: decisions.iter().flat_map(|of| &of.guards).map(GuardStanding::report).collect(),
        }
    }
}

/// Default of [`CheckReport::remembered`] for a daemon that does not report it.
const fn remembered() -> bool {
    true
}

impl From<Action> for Outcome {
    fn from(action: Action) -> Self {
        match action {
            Action::Pass => Self::Pass,
            Action::Drop => Self::Drop,
        }
    }
}

labels!(pub Outcome { Pass => "pass", Drop => "drop" });

/// Returns the state of a source under the rule's shadow limits.
pub(super) fn shadow_limits(rule: &desired::Rule, windows: &[SourceReading], now: Nanos) -> Vec<CheckLimit> {
    let of = |limit: &Limit| {
        let window = windows.iter().find(|reading| reading.slot == limit.slot);
        let words = window.map_or(Source::default(), |reading| reading.window);
        let standing = WindowState::of_shadow(limit, &words, now);
        let window = Window { budget: None, group: None, words, standing, is_known: window.is_some() };
        CheckLimit { mode: Mode::DryRun, ..check_limit(rule, limit, &window, now) }
    };
    rule.shadow_limits.iter().map(of).collect()
}

/// One window of a limit, and its state.
pub(super) struct Window {
    pub(super) budget: Option<Budget>,
    /// Group that the window counts; none for a source's own window.
    pub(super) group: Option<Group>,
    words: Source,
    pub(super) standing: WindowState,
    /// True if the datapath has the window.
    pub(super) is_known: bool,
}

impl Window {
    /// Returns the known windows of a source under a limit, the worst first. Returns one empty window if none is known.
    pub(super) fn all(
        rule: &desired::Rule,
        limit: &Limit,
        whom: IpAddr,
        windows: &[SourceReading],
        now: Nanos,
    ) -> Vec<Self> {
        let group = rule.group_of(limit, whom);
        let found: Vec<_> = windows.iter().filter(|reading| reading.slot == limit.slot).collect();
        let is_apart = found.iter().any(|reading| reading.is_verified);
        let budget = |is_verified| if is_verified { Budget::Verified } else { Budget::Unverified };
        let window = |reading: &&SourceReading| Self {
            budget: is_apart.then(|| budget(reading.is_verified)),
            group: group.clone(),
            words: reading.window,
            standing: WindowState::of_reading(rule, limit, Some(reading), now),
            is_known: true,
        };
        let mut all: Vec<Self> = found.iter().map(window).collect();
        if all.is_empty() {
            let standing = WindowState::of_reading(rule, limit, None, now);
            all.push(Self { budget: None, group, words: Source::default(), standing, is_known: false });
        }
        all.sort_by_key(|of| Reverse((of.standing.over, of.standing.retry, of.standing.used)));
        all
    }
}

pub(super) fn check_limit(rule: &desired::Rule, limit: &Limit, window: &Window, now: Nanos) -> CheckLimit {
    let Window { budget, group, words, standing: of, is_known: _ } = window;
    CheckLimit {
        rule: rule.name.clone(),
        mode: rule.mode,
        unit: limit.unit.into(),
        budget: *budget,
        per: group.as_ref().map(ToString::to_string),
        condition: limit.condition.map(Into::into),
        sources: None,
        used: of.used.saturating_sub(of.elsewhere),
        used_elsewhere: is_shared(limit, *budget).then_some(of.elsewhere),
        told_seconds_ago: None,
        added_from_log: None,
        limit: limit.amount,
        remaining: of.remaining,
        over: of.over,
        retry_after_seconds: seconds(of.retry.after_ns),
        never: of.retry.never,
        refused: of.refused,
        window_seconds: seconds(limit.window_ns),
        window: limit.form,
        bucket_seconds: seconds(limit.bucket_ns),
        buckets: buckets(limit, words, now),
    }
}

/// Returns true if the admissions of other hosts are written to this window.
fn is_shared(limit: &Limit, budget: Option<Budget>) -> bool {
    let budget_of = |side: &Side| if *side == Side::Verified { Budget::Verified } else { Budget::Unverified };
    limit.told_sides().iter().any(|side| budget.is_none_or(|of| of == budget_of(side)))
}

/// Returns the buckets that the sum includes, none for a leaky bucket. Like the packet path, the view starts at the
/// later of `now` and the newest cell.
fn buckets(limit: &Limit, window: &Source, now: Nanos) -> Vec<Bucket> {
    if limit.form == desired::WindowForm::Gcra {
        return Vec::new();
    }
    let parts = limit.parts();
    let cells: [Cell; CELLS] = std::array::from_fn(|at| Cell::decode(window.cells[at], at, parts));
    let newest = cells.iter().fold(now.bucket(limit.bucket_ns), |newest, cell| newest.max(cell.bucket));
    let bucket = |back: u8| {
        let bucket = BucketIndex(newest.0.saturating_sub(u64::from(back)));
        let cell = cells[index(bucket)];
        let count = if cell.bucket == bucket { cell.count } else { 0 };
        Bucket { start: timestamp(bucket.start(limit.bucket_ns)), count }
    };
    (0..=limit.full_buckets()).rev().map(bucket).collect()
}
