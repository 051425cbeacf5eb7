//! Whether one more unit of a source passes, and why: `ratelimitd check IP --json`. Pure.

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

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It passes.
    Pass,
    /// It is dropped.
    Drop,
}

/// How one source stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Its address, or the prefix that is one client.
    pub source: String,
    /// The address that was asked for: the verdict is about it.
    #[serde(default)]
    pub address: String,
    /// When this was read, by the datapath's clock.
    pub time: Timestamp,
    /// `drop` if at least one rule drops packets of this address now, all of them or some; else `pass`. `ratelimitd check` exits
    /// with 3 or 0. What each rule does is in `verdicts`.
    pub verdict: Outcome,
    /// Why, in the words of the counters: the first of exempt, denied, banned, over_limit, guard, dry_run, within_limit that a rule
    /// says.
    pub reason: String,
    /// When the source passes again, by every limit, guard, ban and denial, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// No wait is long enough, for one of the limits at least, or the denial is permanent.
    #[serde(default)]
    pub never: bool,
    /// Whether any of its windows or bans is remembered.
    #[serde(default = "remembered")]
    pub remembered: bool,
    /// What each rule that judges its packets does with them, in the rules' order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<RuleVerdict>,
    /// Every limit of every rule that may judge its packets.
    pub limits: Vec<CheckLimit>,
    /// What the limits count, and how exactly: each unit once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counting: Vec<Counting>,
    /// The same of their shadow limits, which are counted and never enforced: `mode` is dry-run, whatever the rule's is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow_limits: Vec<CheckLimit>,
    /// The guards of its limits of requests of which it has used something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guard: Vec<CheckGuard>,
}

/// How one source stands with one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckLimit {
    /// The limit's rule.
    pub rule: String,
    /// Whether that rule drops.
    pub mode: Mode,
    /// What is counted.
    pub unit: Unit,
    /// Which of the source's packets this window is of, where its connections have one of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// The group of sources that the limit counts as one: its prefix, or `list NAME`. None where it is of each source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<String>,
    /// Condition of the logged requests that the limit counts. None if it counts packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionWords>,
    /// Sources of the group that have used something, at least so many; none where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<u64>,
    /// Used in the window on this host.
    pub used: u64,
    /// What other hosts of the fleet admitted in the window, as far as this one was told: it counts too. None where
    /// the limit, or this window of it, is not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_elsewhere: Option<u64>,
    /// How long ago that was told; none where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_seconds_ago: Option<f64>,
    /// Number of requests in `used` that an access log added. None if no log corrects the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_from_log: Option<u64>,
    /// Admitted in a window.
    pub limit: u64,
    /// What passes now: the rest of the limit, or of its burst where that is less.
    pub remaining: u64,
    /// Nothing is left, or it refused something in the current bucket and would again. Then the rest is too little for a
    /// packet of many bytes, or everything is refused.
    #[serde(default)]
    pub over: bool,
    /// When one more passes, if nothing else is admitted meanwhile.
    pub retry_after_seconds: f64,
    /// No wait is long enough: the limit is below 1. Then `retry_after_seconds` is how long what is counted now takes to leave
    /// the window.
    #[serde(default)]
    pub never: bool,
    /// Packets that this window refused since it is remembered.
    pub refused: u64,
    /// Length of the window.
    pub window_seconds: f64,
    /// Which of the two windows.
    pub window: WindowForm,
    /// Length of a bucket.
    pub bucket_seconds: f64,
    /// The window's buckets, oldest first, the current one last; their counts sum to `used`. None by `gcra`.
    pub buckets: Vec<Bucket>,
}

/// What is counted apart of one source, each part held to the limit for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Unverified traffic: connection attempts, datagrams, segments of no connection.
    #[serde(rename = "unproven")]
    Unverified,
    /// Segments of connections that are established with this host.
    #[serde(rename = "proven")]
    Verified,
}

/// One bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// When it began.
    pub start: Timestamp,
    /// Admitted in it.
    pub count: u64,
}

impl CheckReport {
    /// The report on `address` from its windows, at `now` by the datapath's clock.
    pub fn build(policy: &Policy, now: Nanos, address: IpAddr, windows: &[SourceReading]) -> Self {
        Self::with_bans(policy, now, address, windows, &[])
    }

    /// The same, from the bans too; those of other clients are passed over. By whom it is allowed or denied is not known.
    pub fn with_bans(policy: &Policy, now: Nanos, address: IpAddr, windows: &[SourceReading], bans: &[Ban]) -> Self {
        Self::told(policy, address, windows, bans, &Background::unknown(now))
    }

    /// The same, with who entered what, and when.
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

/// Of a daemon that does not say it.
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

/// How a source stands with a rule's shadow limits.
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

/// One window of a limit, and how it stands.
pub(super) struct Window {
    pub(super) budget: Option<Budget>,
    /// Whose it is, where that is no source.
    pub(super) group: Option<Group>,
    words: Source,
    pub(super) standing: WindowState,
    /// Something is known of it.
    pub(super) is_known: bool,
}

impl Window {
    /// Those that are known of a source, the worst first; one that nothing is known of where there is none.
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

/// Whether what other hosts admitted is written to this window.
fn is_shared(limit: &Limit, budget: Option<Budget>) -> bool {
    let budget_of = |side: &Side| if *side == Side::Verified { Budget::Verified } else { Budget::Unverified };
    limit.told_sides().iter().any(|side| budget.is_none_or(|of| of == budget_of(side)))
}

/// The buckets that the sum takes in, none of a leaky bucket, seen from the later of `now` and the newest cell, as the packet path looks.
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
