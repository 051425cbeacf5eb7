//! The read model: the one shape in which statistics are shown, exported and sent over the socket. Pure.
//!
//! Field names are `ratelimitd stats --json`, schema 1: fields are added, never renamed. Knows no map, socket or clock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::EventKind;
use crate::fleet::Fleet;
use crate::history::Health;
use jiff::Timestamp;
use ratelimit_common::layout::Tally;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::{Action, Reason};
use serde::{Deserialize, Serialize};

use ratelimit_datapath::{Attachment, InterfaceReading, Reading, Tallies};
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
pub use sources::{Blocked, ByFamily, Census, Shadowed, State, TOP_DEFAULT, TopSource, Tracked, source_text};
pub use suggest::{
    Candidate, LimitSuggestion, ListOver, Observation, Paste, PrefixOver, Proposal, ProposalReason, RuleSuggestion,
    SuggestReport,
};
pub use top_talker::{TALKER_ADVICE, TALKER_PERCENT, TalkerWatch, TopTalker, Visit};
pub use used::used_most;
pub use verdict::{Background, RuleVerdict};
pub use words::{Counting, Limit, PerGroup, Unit};

use summed::{rule, sum_by_reason};

/// The schema's number.
pub const SCHEMA: u32 = 1;

/// Statistics at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The daemon's version.
    pub version: String,
    /// When this was read, by the datapath's clock.
    pub time: Timestamp,
    /// Whether anything is dropped: enforce as soon as one rule enforces.
    pub mode: Mode,
    /// Seconds since the daemon started. Counters of pinned maps are older.
    pub uptime_seconds: f64,
    /// By name.
    pub interfaces: Vec<Interface>,
    /// Packets on interfaces that the configuration does not list, while it changes.
    pub unlisted: Traffic,
    /// In the configuration's order.
    pub rules: Vec<Rule>,
    /// What the limits count, and how well: each unit once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counting: Vec<Counting>,
    /// How many sources are remembered.
    pub sources: Sources,
    /// Events of the packet path: told and lost.
    #[serde(default)]
    pub events: Events,
    /// Packets by reason, all interfaces together.
    pub reasons: BTreeMap<String, u64>,
    /// Map operations that failed in the packet path.
    pub map_errors: Vec<MapError>,
    /// How the last reload went.
    pub config: ConfigState,
    /// An administrator has ordered that nothing is dropped, whatever the rules say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Rules that fell back to dry-run because they dropped too much, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallen_back: Vec<String>,
    /// Seconds until the configuration on trial is rolled back, unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_seconds: Option<f64>,
    /// List files that have changed and cannot be read: what they held before stays in force, until they change again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_lists: Vec<StaleList>,
    /// How each access log is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_logs: Vec<AccessLogReport>,
    /// How each list file is in force, by path.
    #[serde(default)]
    pub lists: Vec<ListFileReport>,
    /// How many entries of list files are passed over: they are too wide, or hold what this host needs.
    #[serde(default)]
    pub list_entries_passed_over: u64,
    /// That a restart forgets what commands have changed, and why; a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
    /// Connections that were ended since the daemon started, of who was denied or banned.
    #[serde(default, skip_serializing_if = "Closed::is_none")]
    pub connections: Closed,
    /// The state of the history; none where none is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Health>,
    /// How the fleet does; off where the configuration has none.
    #[serde(default)]
    pub fleet: Fleet,
    /// Top talkers: sources that send most of what a rule counts. Left out where sources may not be named.
    #[serde(rename = "dominant", default, skip_serializing_if = "Vec::is_empty")]
    pub top_talkers: Vec<TopTalker>,
    /// Sources nearest to or over their limit, worst first. Left out where sources may not be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<TopSource>>,
    /// Groups of sources nearest to or over their limit, worst first. Left out where sources may not be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TopGroup>,
    /// What wants attention, a sentence each. Left out where sources may not be named: it may name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<String>,
}

/// The order to drop nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// By `panic`; else by `mode dry-run`.
    pub panic: bool,
    /// The user who gave it.
    pub by: String,
    /// Since when.
    pub since: Timestamp,
}

/// What the daemon knows beside a reading and its configuration.
#[derive(Clone, Debug, Default)]
pub struct DaemonState {
    /// Bans in force, by rule.
    pub banned: Vec<u64>,
    /// See [`Interface::problem`]: by the interface's name.
    pub away: Vec<(String, String)>,
    /// See [`Snapshot::hold`].
    pub hold: Option<Hold>,
    /// See [`Snapshot::fallen_back`].
    pub fallen_back: Vec<String>,
    /// See [`Snapshot::confirm_within_seconds`].
    pub confirm_within_ns: Option<u64>,
    /// See [`Snapshot::access_logs`].
    pub access_logs: Vec<AccessLogReport>,
    /// See [`Snapshot::stale_lists`].
    pub stale_lists: Vec<StaleList>,
    /// See [`Snapshot::lists`].
    pub lists: Vec<ListFileReport>,
    /// See [`Snapshot::list_entries_passed_over`].
    pub list_entries_passed_over: u64,
    /// See [`Snapshot::unkept`].
    pub unkept: Option<String>,
    /// See [`Snapshot::connections`].
    pub connections: Closed,
    /// See [`Snapshot::history`].
    pub history: Option<Health>,
    /// See [`Snapshot::fleet`].
    pub fleet: Fleet,
    /// See [`Snapshot::top_talkers`].
    pub top_talkers: Vec<TopTalker>,
    /// See [`Rule::would_ban`]: by the rule's name.
    pub would_ban: Vec<(String, WouldBan)>,
    /// See [`Snapshot::groups`].
    pub groups: Vec<TopGroup>,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Where its program is; none while it is not attached.
    #[serde(default)]
    pub hook: Option<Hook>,
    /// How, of XDP.
    pub xdp_mode: Option<XdpMode>,
    /// Who has XDP there, where its program is elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp_holder: Option<String>,
    /// Whether its packets are judged.
    pub attached: bool,
    /// Why it is not attached; or what is wrong although it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What came in, in packets.
    pub packets: Volume,
    /// What came in, in bytes of frames.
    pub bytes: Volume,
    /// Packets per second over the last few seconds; none until the daemon has run for a moment.
    #[serde(default)]
    pub per_second: Option<Rates>,
    /// The same by rule and reason; the rule is empty where none judged.
    #[serde(default)]
    pub counters: Vec<Counter>,
}

/// Received is passed plus dropped, always; what would be dropped has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// All.
    pub received: u64,
    /// Passed.
    pub passed: u64,
    /// Dropped.
    pub dropped: u64,
    /// Passed only because of dry-run.
    pub would_drop: u64,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// In packets.
    pub packets: Volume,
    /// In bytes of frames.
    pub bytes: Volume,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// The rule that judged; empty where none did.
    pub rule: String,
    /// What was done.
    pub verdict: Outcome,
    /// Why.
    pub reason: String,
    /// In packets.
    pub packets: u64,
    /// In bytes of frames.
    pub bytes: u64,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Whether it drops.
    pub mode: Mode,
    /// Its ports, as in `80,443,53/udp`.
    pub ports: String,
    /// All of them hold.
    pub limits: Vec<Limit>,
    /// Packets that were counted and were within every limit.
    pub admitted: u64,
    /// Packets dropped, for whatever reason.
    pub dropped: u64,
    /// Packets passed only because of dry-run.
    pub would_drop: u64,
    /// Packets to its ports that none of its limits counts.
    pub not_counted: u64,
    /// Bans that it has begun.
    #[serde(default)]
    pub bans: u64,
    /// Sources that it bans now.
    #[serde(default)]
    pub banned: u64,
    /// Where it is in dry run and would ban.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_ban: Option<WouldBan>,
    /// Sources over a limit now. Several limits may refuse different sources: at least so many.
    pub sources_over_limit: u64,
    /// Shadow limits: counted and never enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadow_limits: Vec<ShadowLimit>,
    /// How many new sources it admits, where that is bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_sources: Option<NewSources>,
}

/// The bans that a rule in dry run would have begun, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WouldBan {
    /// Since the daemon started.
    pub bans: u64,
    /// Sources that would be banned now.
    pub sources: u64,
}

/// A limit that is counted and never enforced, and what it would have refused of the sources that are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShadowLimit {
    /// The limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Packets that it alone would have refused.
    pub would_drop: u64,
    /// Sources that they came from.
    pub sources: u64,
}

/// Sources remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// How many. With several limits: the most that any one of them remembers, so at least so many.
    pub tracked: u64,
    /// The same of each family.
    #[serde(default)]
    pub tracked_by_family: ByFamily,
    /// How many at most, of each family.
    pub capacity: u64,
    /// Banned now.
    pub banned: u64,
    /// Packets of sources that were not remembered: sampled out, over a rule's budget of new sources, or without room in the map.
    pub not_admitted: u64,
    /// Insertions of sources, in each limit on its own.
    #[serde(default)]
    pub insertions: u64,
    /// Whether more new ones come now than can be remembered.
    #[serde(rename = "pressure", default)]
    pub overload: Overload,
    /// 1 in so many packets of new sources is sampled; 1 without overload.
    #[serde(default = "new_sources::every_one")]
    pub sampled_one_in: u64,
    /// Times of 134 ms that began under overload, summed over the CPUs.
    #[serde(rename = "pressed_periods", default)]
    pub overloaded_periods: u64,
    /// Packets of sources over a limit that the drop cache had no place for: each was refused by its window. It costs time, and is no fault.
    #[serde(default)]
    pub not_cached: u64,
}

/// How the last reload went; the start counts as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigState {
    /// Whether the last one was carried out.
    pub last_reload_successful: bool,
    /// When one last was.
    pub last_reload_success_at: Timestamp,
    /// Why the last one was not. Left out where sources may not be named: it may quote the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The file that was on trial and rolled back, until one is reloaded, applied or confirmed. This is no failed reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

/// A file that was on trial and rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledBack {
    /// Its path.
    pub file: String,
    /// Why, in a clause: `it was not confirmed in time`. Empty where sources may not be named: it may name a user.
    pub why: String,
}

/// What a snapshot is made of.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The counters.
    pub reading: &'a Reading,
    /// The sources, from [`Census::finish`].
    pub tracked: Tracked,
    /// From [`TopSource::rank`].
    pub top: Vec<TopSource>,
    /// What packets are judged by.
    pub policy: &'a Policy,
    /// Earlier readings, for rates.
    pub samples: &'a Samples,
    /// Since the daemon started.
    pub uptime: Duration,
    /// The daemon's version.
    pub version: &'a str,
    /// How the last reload went.
    pub config: ConfigState,
}

impl Snapshot {
    /// Puts the parts together.
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

    /// What pins tell without a daemon: no sources, and of the last run only its counters.
    pub fn of_pins(policy: &Policy, reading: &Reading) -> Self {
        let time = timestamp(reading.now);
        let config =
            ConfigState { last_reload_successful: true, last_reload_success_at: time, error: None, rolled_back: None };
        let (tracked, samples) = (Tracked::default(), &Samples::default());
        let (top, uptime, version) = (Vec::new(), Duration::ZERO, "");
        Self::build(Parts { reading, tracked, top, policy, samples, uptime, version, config }).without_sources()
    }

    /// The same with what the daemon knows beside.
    pub fn with_daemon_state(mut self, state: DaemonState) -> Self {
        let DaemonState {
            banned,
            away,
            hold,
            fallen_back,
            confirm_within_ns,
            access_logs,
            stale_lists,
            lists,
            list_entries_passed_over,
            unkept,
            connections,
            history,
            fleet,
            top_talkers,
            would_ban,
            groups,
        } = state;
        self.sources.banned = banned.iter().copied().fold(0, u64::saturating_add);
        for interface in &mut self.interfaces {
            interface.problem = away.iter().find(|(name, _)| *name == interface.name).map(|(_, why)| why.clone());
        }
        for (at, rule) in self.rules.iter_mut().enumerate() {
            rule.banned = banned.get(at).copied().unwrap_or(0);
            rule.would_ban = would_ban.iter().find(|(name, _)| *name == rule.name).map(|(_, of)| *of);
        }
        self.confirm_within_seconds = confirm_within_ns.map(seconds);
        Self {
            hold,
            fallen_back,
            access_logs,
            stale_lists,
            lists,
            list_entries_passed_over,
            unkept,
            connections,
            history,
            fleet,
            top_talkers,
            groups,
            ..self
        }
    }

    /// The same without anything that names a source.
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
    /// The sum of some counters. Received is summed on its own from every reason, so that it cannot miss one.
    pub fn of<'a>(tallies: impl IntoIterator<Item = &'a Tallies>) -> Self {
        let mut traffic = Self::default();
        for (reason, tally) in tallies.into_iter().flat_map(|tallies| &tallies.0) {
            traffic.packets.add(*reason, tally.packets);
            traffic.bytes.add(*reason, tally.bytes);
        }
        traffic
    }

    /// Everything that an interface received.
    pub fn on(interface: &InterfaceReading) -> Self {
        Self::of(interface.rules.iter().chain([&interface.unruled]))
    }
}

impl Volume {
    fn add(&mut self, reason: Reason, amount: u64) {
        // Saturating: torn or hostile map contents must not stop the reader.
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

fn interface(read: &InterfaceReading, policy: &Policy, samples: &Samples, uptime: Duration) -> Interface {
    let Traffic { packets, bytes } = Traffic::on(read);
    let ruled = policy.rules.iter().map(|rule| rule.name.as_str()).zip(&read.rules);
    let rows = ruled.chain([("", &read.unruled)]);
    Interface {
        name: read.name.clone(),
        hook: read.attached.map(Attachment::hook),
        xdp_mode: read.attached.and_then(Attachment::xdp_mode),
        xdp_holder: read.xdp_holder.clone(),
        attached: read.attached.is_some(),
        problem: None,
        packets,
        bytes,
        per_second: samples.rates(&read.name, packets, uptime),
        counters: rows.flat_map(|(rule, tallies)| counters(rule, tallies)).collect(),
    }
}

fn counters(rule: &str, tallies: &Tallies) -> Vec<Counter> {
    let of = |reason: &Reason| {
        let Tally { packets, bytes } = tallies.of(*reason);
        let verdict = Outcome::from(reason.action());
        Counter { rule: rule.to_owned(), verdict, reason: reason.label().to_owned(), packets, bytes }
    };
    Reason::ALL.iter().map(of).collect()
}

fn mode_of(policy: &Policy) -> Mode {
    if policy.rules.iter().any(|rule| rule.mode == Mode::Enforce) { Mode::Enforce } else { Mode::DryRun }
}

/// Returns an instant of the datapath's clock, at most the calendar's end.
pub(crate) fn timestamp(at: Nanos) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or(Timestamp::MAX)
}
#[expect(clippy::cast_precision_loss, reason = "exact to the microsecond for 285 years")]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / SECOND_NS as f64
}

#[cfg(test)]
mod tests;
