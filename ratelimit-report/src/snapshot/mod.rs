//! Read model: the one form in which statistics are shown, exported and sent over the socket. Pure.
//!
//! Field names are those of `ratelimitd stats --json`, schema 1: fields are added, never renamed. The module knows no
//! map, socket or clock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::EventKind;
use crate::fleet::Fleet;
use crate::history::Health;
use jiff::Timestamp;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::{Action, Reason};
use serde::{Deserialize, Serialize};

use self::interface::interface;
use ratelimit_datapath::{InterfaceReading, Reading, Tallies};
use ratelimit_policy::desired::Policy;

pub use ratelimit_datapath::{Hook, XdpMode};
pub use ratelimit_policy::desired::{Mode, WindowForm};

mod access_logs;
mod check;
mod closed;
mod decision;
mod events;
mod explain;
mod groups;
mod guard;
mod interface;
mod list;
mod list_files;
mod map_error;
mod mode_now;
mod new_sources;
mod prefix;
mod rate;
mod refused;
mod sources;
mod suggest;
mod summed;
mod top_talker;
mod used;
mod verdict;
mod words;

pub use crate::observe::{Distribution as BusiestWindow, Gap};
pub use access_logs::{AccessLogLines, AccessLogReport};
pub use check::{Bucket, Budget, CheckLimit, CheckReport, Outcome};
pub use closed::Closed;
pub use events::Events;
pub use explain::{ExplainReport, Step, StepOutcome};
pub use groups::{GroupWindow, Members, TopGroup, group_of};
pub use guard::{
    CheckGuard, GUARDED_CONNECTIONS, GUARDED_DATAGRAMS, GUARDED_SEGMENTS, Guarded, guard_limit_words,
    shown as guard_shown,
};
pub use list::{Author, Clocks, ListFilter, ListParts, ListReport, Listed, Omitted, Overriding};
pub use list_files::{ListFileReport, ListState, StaleList, passed_over_words};
pub use map_error::MapError;
pub use mode_now::{ModeNow, RuleMode};
pub use new_sources::{NewSources, Overload, overload};
pub use prefix::{Extent, PrefixParts, PrefixReport, PrefixSources, Within};
pub use rate::{Rates, Sample, Samples};
pub use refused::{RefusedBy, RefusedNow};
pub use sources::{
    Blocked, ByFamily, Census, LimitUse, Shadowed, State, TOP_DEFAULT, TOP_MAX, TopSource, Tracked, source_key,
    source_text,
};
pub use suggest::{
    Candidate, LimitSuggestion, ListOver, Observation, Paste, PrefixOver, Proposal, ProposalReason, RuleSuggestion,
    SuggestReport,
};
pub use top_talker::{TALKER_ADVICE, TALKER_PERCENT, TalkerWatch, TopTalker, Visit};
pub use used::used_most;
pub use verdict::{Background, RuleVerdict};
pub use words::{Counting, Limit, PerGroup, Unit};

use summed::{rule, sum_by_reason};

/// Version number of the JSON schema.
pub const SCHEMA: u32 = 1;

/// Statistics of the datapath and the daemon at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Version of the daemon.
    pub version: String,
    /// Time of the reading, by the datapath's clock.
    pub time: Timestamp,
    /// Overall mode: enforce as soon as one rule enforces, else dry-run.
    pub mode: Mode,
    /// Seconds since the daemon started. Counters of pinned maps are older.
    pub uptime_seconds: f64,
    /// Interfaces, sorted by name.
    pub interfaces: Vec<Interface>,
    /// Packets on interfaces that the configuration does not list, which occur while it changes.
    pub unlisted: Traffic,
    /// Rules, in the order of the configuration.
    pub rules: Vec<Rule>,
    /// Meaning and accuracy of each unit that the limits count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counting: Vec<Counting>,
    /// Number of tracked sources, and their insertions.
    pub sources: Sources,
    /// Events of the packet path, sent and lost.
    #[serde(default)]
    pub events: Events,
    /// Number of packets by reason, over all interfaces.
    pub reasons: BTreeMap<String, u64>,
    /// Map operations that failed in the packet path.
    pub map_errors: Vec<MapError>,
    /// Result of the last reload.
    pub config: ConfigState,
    /// Order of an administrator to drop nothing, which overrides the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Names of the rules that fell back to dry-run because they dropped too much.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallen_back: Vec<String>,
    /// Seconds until the configuration on trial is rolled back, unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_seconds: Option<f64>,
    /// List files that have changed and cannot be read. Their previous content stays in force until they change again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_lists: Vec<StaleList>,
    /// Reading state of each access log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_logs: Vec<AccessLogReport>,
    /// State of each list file, sorted by path.
    #[serde(default)]
    pub lists: Vec<ListFileReport>,
    /// Number of list-file entries ignored because they are too wide or cover an address that this host needs.
    #[serde(default)]
    pub list_entries_passed_over: u64,
    /// Sentence that says why a restart loses the changes made by commands; none if they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
    /// Number of connections closed since the daemon started, because their source was denied or banned.
    #[serde(default, skip_serializing_if = "Closed::is_none")]
    pub connections: Closed,
    /// State of the history; none if no history is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Health>,
    /// State of the fleet; off if the configuration has none.
    #[serde(default)]
    pub fleet: Fleet,
    /// Top talkers: sources that send most of a rule's counted traffic. Left out where sources may not be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top_talkers: Vec<TopTalker>,
    /// Sources nearest to or over their limit, worst first. Left out where sources may not be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<TopSource>>,
    /// Groups of sources nearest to or over their limit, worst first. Left out where sources may not be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TopGroup>,
    /// Problems that need attention, one sentence each. Left out where sources may not be named, as some name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<String>,
}

/// Order of an administrator to drop nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// True if `panic` gave the order, false if `mode dry-run` did.
    pub panic: bool,
    /// User who gave the order.
    pub by: String,
    /// Time of the order.
    pub since: Timestamp,
}

/// State and counters of one interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Hook of the program; none while the program is not attached.
    #[serde(default)]
    pub hook: Option<Hook>,
    /// Mode of an XDP attachment; none at another hook.
    pub xdp_mode: Option<XdpMode>,
    /// Holder of the interface's XDP hook, if the program is attached elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp_holder: Option<String>,
    /// True if the program is attached and judges the interface's packets.
    pub attached: bool,
    /// Reason why the program is not attached, or a problem despite the attachment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Received packets, by outcome.
    pub packets: Volume,
    /// Received bytes of frames, by outcome.
    pub bytes: Volume,
    /// Packets per second over the last few seconds; none shortly after the daemon's start.
    #[serde(default)]
    pub per_second: Option<Rates>,
    /// Packets and bytes by rule and reason. The rule is empty for packets that no rule judged.
    #[serde(default)]
    pub counters: Vec<Counter>,
}

/// Received amount, which equals `passed` plus `dropped`. `passed` includes `would_drop`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Total, passed and dropped together.
    pub received: u64,
    /// Amount that passed, including `would_drop`.
    pub passed: u64,
    /// Amount that was dropped.
    pub dropped: u64,
    /// Amount that passed only because of dry-run.
    pub would_drop: u64,
}

/// Packets and bytes of the same traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Traffic counted in packets.
    pub packets: Volume,
    /// Traffic counted in bytes of frames.
    pub bytes: Volume,
}

/// Counter of one rule and reason on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name of the rule that judged; empty if none did.
    pub rule: String,
    /// Action on the packets.
    pub verdict: Outcome,
    /// Label of the reason for the action.
    pub reason: String,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes of frames.
    pub bytes: u64,
}

/// State and counters of one rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Rule name.
    pub name: String,
    /// Mode of the rule: enforce or dry-run.
    pub mode: Mode,
    /// Ports of the rule, as in `80,443,53/udp`.
    pub ports: String,
    /// Limits of the rule, all of which apply.
    pub limits: Vec<Limit>,
    /// Amounts that all sources have used of each per-source limit in its window, in the limits' order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<LimitUse>,
    /// Packets that were counted and were within every limit.
    pub admitted: u64,
    /// Packets dropped, for any reason.
    pub dropped: u64,
    /// Packets passed only because of dry-run.
    pub would_drop: u64,
    /// Packets to the rule's ports that none of its limits counts.
    pub not_counted: u64,
    /// Number of bans that the rule has begun.
    #[serde(default)]
    pub bans: u64,
    /// Number of sources that the rule bans now.
    #[serde(default)]
    pub banned: u64,
    /// Bans that the rule would have begun; none unless it is in dry run with `block_for`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_ban: Option<WouldBan>,
    /// Lower bound on the number of sources over a limit now: several limits may refuse different sources.
    pub sources_over_limit: u64,
    /// Shadow limits, which are counted and never enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow_limits: Vec<ShadowLimit>,
    /// Admission of new sources, if the rule bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_sources: Option<NewSources>,
}

/// Observed bans that a rule in dry run would have begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldBan {
    /// Number of bans since the daemon started.
    pub bans: u64,
    /// Number of sources that would be banned now.
    pub sources: u64,
}

/// Limit that is counted and never enforced, and its would-be refusals of tracked sources.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowLimit {
    /// Amount, window and unit of the limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Number of packets that this limit alone would have refused.
    pub would_drop: u64,
    /// Number of sources of those packets.
    pub sources: u64,
}

/// Number of tracked sources, and their insertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// Number of tracked sources. With several limits it is the largest number of any one, so a lower bound.
    pub tracked: u64,
    /// Number of tracked sources by address family.
    #[serde(default)]
    pub tracked_by_family: ByFamily,
    /// Maximum number of tracked sources of each family.
    pub capacity: u64,
    /// Lower bound on the number of sources that have used a per-source limit in its window. `top` lists some of them.
    #[serde(default)]
    pub in_use: u64,
    /// Number of sources that are banned now.
    pub banned: u64,
    /// Packets of untracked sources: sampled out, over a rule's budget of new sources, or without room in the map.
    pub not_admitted: u64,
    /// Number of insertions of sources, counted for each limit separately.
    #[serde(default)]
    pub insertions: u64,
    /// Overload state: whether more new sources arrive than can be tracked.
    #[serde(default)]
    pub overload: Overload,
    /// Sampling rate of new sources' packets, 1 in this number; 1 without overload.
    #[serde(default = "new_sources::every_one")]
    pub sampled_one_in: u64,
    /// Number of periods of 134 ms that began under overload, summed over the CPUs.
    #[serde(default)]
    pub overloaded_periods: u64,
    /// Packets refused by their source's window because the drop cache was full. This costs time and is not a fault.
    #[serde(default)]
    pub not_cached: u64,
}

/// Result of the last reload. The daemon's start counts as a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    /// True if the last reload succeeded.
    pub last_reload_successful: bool,
    /// Time of the last successful reload.
    pub last_reload_success_at: Timestamp,
    /// Reason why the last reload failed. Left out where sources may not be named, because it may quote the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// File that was rolled back after a trial, until a file is reloaded, applied or confirmed. Not a failed reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

/// Configuration file that was on trial and rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledBack {
    /// Path of the file.
    pub file: String,
    /// Reason as a clause: `it was not confirmed in time`. Empty where sources may not be named, as it may name a user.
    pub why: String,
}

/// Inputs of [`Snapshot::build`].
#[derive(Debug)]
pub struct Parts<'a> {
    /// Counters read from the datapath.
    pub reading: &'a Reading,
    /// Sums over the sources, from [`Census::finish`].
    pub tracked: Tracked,
    /// Ranked sources, from [`TopSource::rank`].
    pub top: Vec<TopSource>,
    /// Policy in force.
    pub policy: &'a Policy,
    /// Earlier readings, from which rates are computed.
    pub samples: &'a Samples,
    /// Time since the daemon started.
    pub uptime: Duration,
    /// Version of the daemon.
    pub version: &'a str,
    /// Result of the last reload.
    pub config: ConfigState,
}

impl Snapshot {
    /// Builds a snapshot without the daemon's own state, which the daemon adds.
    pub fn build(parts: Parts<'_>) -> Self {
        let Parts { reading, tracked, top, policy, samples, uptime, version, config } = parts;
        let reasons = sum_by_reason(reading);
        let packets_of = |reason: Reason| reasons.get(reason.label()).copied().unwrap_or(0);
        Self {
            schema: SCHEMA,
            version: version.to_owned(),
            time: timestamp(reading.now),
            mode: mode_of(policy),
            uptime_seconds: uptime.as_secs_f64(),
            interfaces: reading.interfaces.iter().map(|read| interface(read, policy, samples, uptime)).collect(),
            unlisted: Traffic::of([&reading.unlisted]),
            rules: policy.rules.iter().enumerate().map(|(at, of)| rule(at, of, reading, &tracked)).collect(),
            counting: Counting::of(policy.rules.iter().flat_map(|rule| &rule.limits)),
            sources: new_sources::sources(reading, &tracked, packets_of),
            events: Events {
                sent: reading.events.sent(),
                lost: reading.events.lost(),
                kinds: EventKind::ALL.iter().map(|kind| kind.label().to_owned()).collect(),
            },
            map_errors: reading.faults.iter().map(|&(fault, count)| MapError::of(fault.labels(), count)).collect(),
            reasons,
            config,
            hold: None,
            fallen_back: Vec::new(),
            confirm_within_seconds: None,
            access_logs: Vec::new(),
            stale_lists: Vec::new(),
            lists: Vec::new(),
            list_entries_passed_over: 0,
            unkept: None,
            connections: Closed::default(),
            history: None,
            fleet: Fleet::default(),
            top_talkers: Vec::new(),
            attention: Vec::new(),
            groups: Vec::new(),
            top: Some(top),
        }
    }

    /// Builds a snapshot from pinned maps without a daemon. It names no source and has counters of the last run only.
    pub fn of_pins(policy: &Policy, reading: &Reading) -> Self {
        let time = timestamp(reading.now);
        let config =
            ConfigState { last_reload_successful: true, last_reload_success_at: time, error: None, rolled_back: None };
        let (tracked, samples) = (Tracked::default(), &Samples::default());
        let (top, uptime, version) = (Vec::new(), Duration::ZERO, "");
        Self::build(Parts { reading, tracked, top, policy, samples, uptime, version, config }).without_sources()
    }

    /// Adds the problem of each interface, by name, the number of bans in force, by rule index, and the bans that rules
    /// in dry run would have begun, by rule name.
    #[must_use]
    pub fn with_problems_and_bans(
        mut self,
        problems: &[(String, String)],
        banned: &[u64],
        would_ban: &[(String, WouldBan)],
    ) -> Self {
        let of = |name: &str| problems.iter().find(|(other, _)| other == name).map(|(_, why)| why.clone());
        self.interfaces.iter_mut().for_each(|interface| interface.problem = of(&interface.name));
        self.sources.banned = banned.iter().copied().fold(0, u64::saturating_add);
        for (at, rule) in self.rules.iter_mut().enumerate() {
            rule.banned = banned.get(at).copied().unwrap_or(0);
            rule.would_ban = would_ban.iter().find(|(name, _)| *name == rule.name).map(|(_, of)| *of);
        }
        self
    }

    /// Removes everything that may name a source, a user or an address.
    pub fn without_sources(mut self) -> Self {
        self.top = None;
        self.top_talkers.clear();
        self.attention.clear();
        self.groups.clear();
        self.config.error = None;
        self.config.rolled_back.iter_mut().for_each(|of| of.why.clear());
        self.stale_lists.iter_mut().for_each(|of| of.error = None);
        self.lists.iter_mut().for_each(|of| of.why = None);
        self.history.iter_mut().for_each(|of| of.detail = None);
        self.fleet = self.fleet.without_addresses();
        self
    }
}

impl Traffic {
    /// Sums counters. `received` is summed over all reasons on its own, so that no reason can be missed.
    pub fn of<'a>(tallies: impl IntoIterator<Item = &'a Tallies>) -> Self {
        let mut traffic = Self::default();
        for (reason, tally) in tallies.into_iter().flat_map(|tallies| &tallies.0) {
            traffic.packets.add(*reason, tally.packets);
            traffic.bytes.add(*reason, tally.bytes);
        }
        traffic
    }

    /// Sums all packets that an interface received.
    pub fn on(interface: &InterfaceReading) -> Self {
        Self::of(interface.rules.iter().chain([&interface.unruled]))
    }
}

impl Volume {
    fn add(&mut self, reason: Reason, amount: u64) {
        // Saturating, because torn or hostile map contents must not stop the reader.
        self.received = self.received.saturating_add(amount);
        match reason.action() {
            Action::Pass => self.passed = self.passed.saturating_add(amount),
            Action::Drop => self.dropped = self.dropped.saturating_add(amount),
        }
        if reason == Reason::DryRun {
            self.would_drop = self.would_drop.saturating_add(amount);
        }
    }
}

fn mode_of(policy: &Policy) -> Mode {
    if policy.rules.iter().any(|rule| rule.mode == Mode::Enforce) { Mode::Enforce } else { Mode::DryRun }
}

/// Converts an instant of the datapath's clock, bounded by the calendar's end.
pub(crate) fn timestamp(at: Nanos) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or(Timestamp::MAX)
}
#[expect(clippy::cast_precision_loss, reason = "exact to the microsecond for 285 years")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / SECOND_NS as f64
}

#[cfg(test)]
mod tests;
