//! Limits suggested from observations, for `ratelimitd suggest`. Names prefixes with several sources, but no single
//! source. Pure.

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::layout::Unit as Counted;
use ratelimit_common::time::Nanos;
use ratelimit_common::window::amount_max;
use serde::{Deserialize, Serialize};

use super::{Limit, Mode, SCHEMA, seconds, timestamp};
use crate::busy::{BusyPrefix, GroupProposal};
use crate::observe::{self, Distribution as BusiestWindow, Gap, Observed, Observer, SOURCES_MIN};
use crate::origins::{self, Sum};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::{self, Policy, Refuse};

/// Number of sources from which a proposal is not provisional, if at least one window was observed.
const SOURCES_ENOUGH: usize = 100;

/// Suggested limits of all rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuggestReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Time of the observation, by the datapath's clock.
    pub time: Timestamp,
    /// Suggestions by rule, in the order of the configuration.
    pub rules: Vec<RuleSuggestion>,
}

/// Suggested limits of one rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleSuggestion {
    /// Rule name.
    pub name: String,
    /// Mode of the rule: enforce or dry-run.
    pub mode: Mode,
    /// Suggestion for each limit.
    pub limits: Vec<LimitSuggestion>,
    /// All limits of the rule as proposed, ready to paste; none if nothing is proposed.
    pub paste: Option<Paste>,
}

/// Limits in the syntax of the file and of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paste {
    /// Line of the configuration file.
    pub file: String,
    /// Flags of the command line.
    pub flags: String,
}

/// Suggestion for one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitSuggestion {
    /// Limit in force now.
    #[serde(flatten)]
    pub limit: Limit,
    /// True if no user has set the limit. Its window and unit are observed; its amount has no meaning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_assumed: bool,
    /// Observations of the limit; none if the limit cannot be observed.
    pub observed: Option<Observation>,
    /// Proposed amount; none if too little is known.
    pub proposal: Option<Proposal>,
    /// Prefixes, IPv4 /24 and IPv6 /56, with several sources over the proposal, or over the limit if there is no
    /// proposal. Sorted by demand, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixOver>,
    /// List files that contain sources over the proposal, or over the limit if there is no proposal. Sorted by demand,
    /// largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListOver>,
    /// Prefixes, IPv4 /24 and IPv6 /48, with several sources, whether or not one is over a limit. Sorted by their
    /// busiest windows, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busiest_prefixes: Vec<BusyPrefix>,
    /// Proposed limit for each such prefix; none if too little is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_proposal: Option<GroupProposal>,
    /// List files that contain any observed sources. Sorted by demand, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busiest_lists: Vec<ListOver>,
    /// Caveats about these numbers, one clause each.
    pub notes: Vec<String>,
}

/// Prefix with several sources over a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixOver {
    /// Prefix in CIDR notation.
    pub prefix: String,
    /// Number of sources over the limit.
    pub sources: u64,
    /// Sum of these sources' busiest windows, in the limit's unit.
    pub wanted: u64,
}

/// List file that contains sources over a limit, or any observed sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOver {
    /// Path of the file.
    pub file: String,
    /// Number of these sources.
    pub sources: u64,
    /// Sum of these sources' busiest windows, in the limit's unit.
    pub wanted: u64,
}

/// Observations of one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Start of the observation.
    pub since: Timestamp,
    /// Length of the observation in seconds.
    pub seconds: f64,
    /// Number of sources with any demand.
    pub sources: u64,
    /// Lower bound on the number of sources that were not observed because the table was full.
    pub sources_not_observed: u64,
    /// Number of buckets that ended before they were read.
    pub missed_buckets: u64,
    /// Distribution of the sources' busiest windows, in the limit's unit; none without a source.
    pub busiest_window: Option<BusiestWindow>,
    /// Widest range without a source's busiest window; none if every range is too narrow.
    pub widest_gap: Option<Gap>,
    /// Time at which counting of the candidates began.
    pub candidates_since: Timestamp,
    /// Total demand since `candidates_since`, admitted or not, in the limit's unit.
    pub wanted: u64,
    /// Effect of other amounts, ascending.
    pub candidates: Vec<Candidate>,
}

/// Other amount of a limit and its effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Amount, in the limit's unit.
    pub amount: u64,
    /// Limit in configuration syntax.
    pub limit: String,
    /// Number of sources that the amount would have blocked at least once.
    pub sources_blocked: u64,
    /// Share of the blocked sources in all observed ones, 0 to 1.
    pub sources_share: f64,
    /// Demand that the amount would have blocked, in the limit's unit.
    pub blocked: u64,
    /// Share of the blocked demand in the total, 0 to 1.
    pub blocked_share: f64,
}

/// Proposed amount of a limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Amount, in the limit's unit.
    pub amount: u64,
    /// Limit in configuration syntax.
    pub limit: String,
    /// Number of sources that the proposal would have blocked at least once.
    pub sources_blocked: u64,
    /// True if the observation was too short, or saw too few sources, to rely on.
    pub provisional: bool,
    /// Basis of the proposal.
    pub reason: ProposalReason,
    /// Gap that the amount lies in, if the basis is a gap.
    pub gap: Option<Gap>,
}

/// Basis of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalReason {
    /// Gap between the ordinary sources and the others.
    Gap,
    /// No gap: twice the demand that 99.9 % of the sources never exceed.
    TwiceP999,
    /// No gap, and few sources: twice the demand of the busiest.
    TwiceMax,
}

impl SuggestReport {
    /// Builds the suggestions for every rule of the policy, or for the rule named `only`, at `now` by the datapath's
    /// clock. Names those of `lists` that contain sources over a proposed limit.
    pub fn build(policy: &Policy, observer: &Observer, now: Nanos, only: Option<&str>, lists: &[ListFile]) -> Self {
        let rules = policy.rules.iter().filter(|rule| only.is_none_or(|name| rule.name == name));
        let rules = rules.map(|rule| RuleSuggestion::build(rule, observer, Basis::Live, lists)).collect();
        Self { schema: SCHEMA, time: timestamp(now), rules }
    }

    /// Builds suggestions from past traffic up to `now`, on which no limit was in force. If `is_present` is false, the
    /// policy's limits only say what to observe.
    pub fn of_past(policy: &Policy, observer: &Observer, now: Nanos, is_present: bool, lists: &[ListFile]) -> Self {
        let basis = Basis::Past { is_present };
        let rules = policy.rules.iter().map(|rule| RuleSuggestion::build(rule, observer, basis, lists)).collect();
        Self { schema: SCHEMA, time: timestamp(now), rules }
    }
}

/// Traffic that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Live traffic under the policy's limits.
    Live,
    /// Past traffic under no limit. `is_present` is true if the policy's limits are in force elsewhere.
    Past { is_present: bool },
}

impl RuleSuggestion {
    fn build(rule: &desired::Rule, observer: &Observer, basis: Basis, lists: &[ListFile]) -> Self {
        let of_limit = |limit| {
            let mut of = LimitSuggestion::build(rule, limit, observer.observed(limit), basis);
            let most = of.proposal.as_ref().map_or(limit.amount, |proposal| proposal.amount);
            if of.proposal.is_some() || !of.is_assumed {
                of.say_where(&observer.over(limit, most), lists);
            }
            // No amount is in force if the limit is assumed.
            let least = of.proposal.as_ref().map_or(if of.is_assumed { 1 } else { limit.amount }, |of| of.amount);
            let (busy, note) = observer.busy(limit, least);
            (of.busiest_prefixes, of.group_proposal) = (busy.prefixes, busy.proposal);
            of.notes.extend(note.filter(|_| of.proposal.is_some()));
            of.busiest_lists = listed(lists, &observer.over(limit, 0));
            of
        };
        let limits: Vec<LimitSuggestion> = rule.limits.iter().map(of_limit).collect();
        let is_any = limits.iter().any(|of| of.proposal.is_some());
        let written = rule.limits.iter().zip(&limits).map(|(limit, of)| {
            let amount = of.proposal.as_ref().map_or(limit.amount, |proposal| proposal.amount);
            desired::Limit { amount, ..*limit }
        });
        let paste = is_any.then(|| Paste::of(&written.collect::<Vec<_>>()));
        Self { name: rule.name.clone(), mode: rule.mode, limits, paste }
    }
}

impl Paste {
    fn of(limits: &[desired::Limit]) -> Self {
        let quoted: Vec<String> = limits.iter().map(|limit| format!("\"{}\"", written(limit))).collect();
        let flag = |limit: &desired::Limit| match limit.unit {
            Counted::Requests | Counted::Bytes if limit.per == desired::Per::Source && limit.condition.is_none() => {
                format!("--limit {}", limit.rate())
            }
            Counted::Bytes => format!("--limit \"{}\"", written(limit)),
            Counted::Requests | Counted::Connections | Counted::Packets => format!("--limit \"{limit}\""),
        };
        let flags: Vec<String> = limits.iter().map(flag).collect();
        Self { file: format!("limits = [{}]", quoted.join(", ")), flags: flags.join(" ") }
    }
}

/// Formats a limit for places where another unit may be the default. A size names its unit already, so bytes need no
/// word.
fn written(limit: &desired::Limit) -> String {
    match limit.unit {
        Counted::Requests | Counted::Connections | Counted::Packets => limit.to_string(),
        Counted::Bytes => format!("{}{}", limit.rate(), limit.per),
    }
}

impl LimitSuggestion {
    fn build(rule: &desired::Rule, limit: &desired::Limit, observed: Option<Observed>, basis: Basis) -> Self {
        let (mut proposal, mut notes) = (None, Vec::new());
        if let Some(of) = &observed {
            let observed_ns = of.until.0.saturating_sub(of.since.0);
            let is_brief = observed_ns < limit.window_ns;
            let is_provisional = is_brief || of.busiest.len() < SOURCES_ENOUGH;
            let found = observe::propose(&of.busiest, limit.unit, amount_max(limit.bucket_ns));
            proposal = found.map(|found| Proposal::build(limit, found, is_provisional));
            if is_brief {
                let what = match basis {
                    Basis::Live => "wait longer before you rely on it",
                    Basis::Past { .. } => "take a longer one before you rely on it",
                };
                notes.push(format!("this is less than one window: {what}"));
            }
            if of.busiest.len() < SOURCES_MIN {
                notes.push(format!("fewer than {SOURCES_MIN} sources are too few to propose a limit"));
            } else if of.busiest.len() < SOURCES_ENOUGH {
                notes.push(format!("fewer than {SOURCES_ENOUGH} sources may not show what is ordinary"));
            }
            if basis == Basis::Live {
                notes.extend(caveats(rule, limit, of));
            }
        } else if limit.form == desired::WindowForm::Gcra {
            notes.push(
                "a leaky bucket does not record demand over time: observe with algorithm = \"buckets\", and choose by \
                 that"
                    .to_owned(),
            );
        } else if limit.per != desired::Per::Source {
            let why = "demand of groups is not observed: `ratelimitd stats` has groups, and `ratelimitd replay` \
                judges them";
            notes.push(why.to_owned());
        } else {
            notes.push("nothing is observed yet: ask again in a moment".to_owned());
        }
        let is_assumed = basis == Basis::Past { is_present: false };
        Self {
            limit: limit.into(),
            is_assumed,
            observed: observed.map(|of| Observation::build(limit, &of)),
            proposal,
            prefixes: Vec::new(),
            lists: Vec::new(),
            busiest_prefixes: Vec::new(),
            group_proposal: None,
            busiest_lists: Vec::new(),
            notes,
        }
    }

    /// Fills in the prefixes and list files that contain these sources.
    fn say_where(&mut self, over: &[(IpNet, u64)], lists: &[ListFile]) {
        let prefixes = origins::prefixes(desired::Per::Source, over).into_iter();
        let prefix = |(prefix, Sum { sources, amount }): (IpNet, _)| PrefixOver {
            prefix: prefix.to_string(),
            sources,
            wanted: amount,
        };
        self.prefixes = prefixes.map(prefix).collect();
        self.lists = listed(lists, over);
    }
}

/// Returns those of the list files that contain any of these sources.
fn listed(lists: &[ListFile], of: &[(IpNet, u64)]) -> Vec<ListOver> {
    let list = |(list, Sum { sources, amount }): (&ListFile, _)| ListOver {
        file: list.path.display().to_string(),
        sources,
        wanted: amount,
    };
    origins::lists(lists, of).into_iter().map(list).collect()
}

/// Returns true if the unit counts only some packets. `refuse = "all"` then drops packets that do not count.
const fn is_of_some_packets(unit: Counted) -> bool {
    match unit {
        Counted::Requests | Counted::Connections => true,
        Counted::Packets | Counted::Bytes => false,
    }
}

/// Returns the reasons why the numbers are inexact, one clause each.
fn caveats(rule: &desired::Rule, limit: &desired::Limit, of: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    let exceeds = of.busiest.last().is_some_and(|busiest| *busiest > limit.amount);
    if of.missed_buckets > 0 {
        notes.push(format!(
            "{} buckets of {} ended before they were read, and their counts may be missing",
            of.missed_buckets,
            ratelimit_policy::config::duration::words(limit.bucket_ns)
        ));
    }
    if of.sources_not_observed > 0 {
        notes.push(format!(
            "at least {} more sources were not observed: `max_sources` has no room for them",
            of.sources_not_observed
        ));
    }
    if exceeds && limit.unit == Counted::Bytes {
        notes.push(
            "refused packets are counted, not their bytes: each is assumed to have the average length of the \
            rule's refused packets"
                .to_owned(),
        );
    }
    if exceeds && limit.unit == Counted::Requests && rule.refuse == Refuse::Excess {
        notes.push(
            "refused packets are counted, and each is assumed to be one request, however many it held".to_owned(),
        );
    }
    if exceeds && is_of_some_packets(limit.unit) && rule.refuse == Refuse::All {
        let unit = desired::unit_label(limit.unit);
        notes.push(format!(
            "with refuse = \"all\" the number of refused {unit} is unknown, so sources over the limit wanted at least \
             this much: observe with a limit that nobody exceeds"
        ));
    }
    if exceeds && rule.mode == desired::Mode::Enforce {
        notes.push(
            "this rule drops, and refused clients try again, which counts once more: a dry run shows undisturbed demand"
                .to_owned(),
        );
    }
    if rule.bans.is_some() {
        notes.push("traffic of banned sources is not observed".to_owned());
    }
    if let Some(burst) = limit.burst {
        notes.push(format!(
            "every candidate has the limit's burst too, {burst} in a bucket; the proposal uses only the sum"
        ));
    }
    notes
}

impl Observation {
    fn build(limit: &desired::Limit, of: &Observed) -> Self {
        let sources = of.busiest.len() as u64;
        let candidate = |candidate: &observe::Candidate| Candidate {
            amount: candidate.amount,
            limit: written(&desired::Limit { amount: candidate.amount, ..*limit }),
            sources_blocked: candidate.sources_blocked,
            sources_share: share(candidate.sources_blocked, sources),
            blocked: candidate.blocked,
            blocked_share: share(candidate.blocked, of.demand),
        };
        Self {
            since: timestamp(of.since),
            seconds: seconds(of.until.0.saturating_sub(of.since.0)),
            sources,
            sources_not_observed: of.sources_not_observed,
            missed_buckets: of.missed_buckets,
            busiest_window: BusiestWindow::of(&of.busiest),
            widest_gap: observe::widest(&observe::gaps(&of.busiest, limit.unit)),
            candidates_since: timestamp(of.candidates_since),
            wanted: of.demand,
            candidates: of.candidates.iter().map(candidate).collect(),
        }
    }
}

impl Proposal {
    fn build(limit: &desired::Limit, found: observe::Proposal, provisional: bool) -> Self {
        let (reason, gap) = match found.reason {
            observe::Reason::Gap(gap) => (ProposalReason::Gap, Some(gap)),
            observe::Reason::TwiceMost => (ProposalReason::TwiceP999, None),
            observe::Reason::TwiceAll => (ProposalReason::TwiceMax, None),
        };
        let (amount, sources_blocked) = (found.amount, found.sources_blocked);
        Self { amount, limit: written(&desired::Limit { amount, ..*limit }), sources_blocked, provisional, reason, gap }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share is shown to three digits")]
fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}
