//! `ratelimitd suggest`: limits from what was observed. Names no source, but where several of them are. Pure.

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::layout::Unit as Counted;
use ratelimit_common::time::Nanos;
use ratelimit_common::window::amount_max;
use serde::{Deserialize, Serialize};

use super::{Limit, Mode, SCHEMA, seconds, timestamp};
use crate::observe::{self, Distribution as BusiestWindow, Gap, Observed, Observer, SOURCES_MIN};
use crate::origins::{self, Sum};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired::{self, Policy, Refuse};

/// With so many sources, and a window's length of observation, a proposal is not provisional.
const SOURCES_ENOUGH: usize = 100;

/// What every limit could be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuggestReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was read, by the datapath's clock.
    pub time: Timestamp,
    /// In the configuration's order.
    pub rules: Vec<RuleSuggestion>,
}

/// What the limits of one rule could be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleSuggestion {
    /// Its name.
    pub name: String,
    /// Whether it drops.
    pub mode: Mode,
    /// Limit by limit.
    pub limits: Vec<LimitSuggestion>,
    /// All its limits as proposed, ready to paste; none where nothing is proposed.
    pub paste: Option<Paste>,
}

/// Limits as they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paste {
    /// The line of the file.
    pub file: String,
    /// The flags of the command line.
    pub flags: String,
}

/// What one limit could be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitSuggestion {
    /// The limit that holds now.
    #[serde(flatten)]
    pub limit: Limit,
    /// Whether nobody has set it: its window and unit are observed, its amount means nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_assumed: bool,
    /// What was observed; none where nothing can be.
    pub observed: Option<Observation>,
    /// What the limit could be; none where too little is known.
    pub proposal: Option<Proposal>,
    /// The prefixes, IPv4 /24 and IPv6 /56, with several sources that want more than what is proposed, or than the limit
    /// where nothing is, those first that want most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixOver>,
    /// The list files that have any such source, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListOver>,
    /// Caveats about these numbers, a clause each.
    pub notes: Vec<String>,
}

/// A prefix with several sources over a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixOver {
    /// The prefix.
    pub prefix: String,
    /// Those sources.
    pub sources: u64,
    /// What they wanted, each in its busiest window, in the limit's unit.
    pub wanted: u64,
}

/// A list file with sources over a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListOver {
    /// The file.
    pub file: String,
    /// Those sources.
    pub sources: u64,
    /// What they wanted, each in its busiest window, in the limit's unit.
    pub wanted: u64,
}

/// What was observed of one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Since when.
    pub since: Timestamp,
    /// How long it was observed.
    pub seconds: f64,
    /// Sources that wanted anything.
    pub sources: u64,
    /// Sources that were not observed, as the table was full: at least so many.
    pub sources_not_observed: u64,
    /// Buckets that ended before they were read.
    pub missed_buckets: u64,
    /// How the busiest windows of the sources are distributed, in the limit's unit; none without a source.
    pub busiest_window: Option<BusiestWindow>,
    /// The widest range without a source's busiest window; none where it is too narrow.
    pub widest_gap: Option<Gap>,
    /// Since when the candidates are counted.
    pub candidates_since: Timestamp,
    /// Everything that was wanted since then, admitted or not, in the limit's unit.
    pub wanted: u64,
    /// What other amounts would have done, ascending.
    pub candidates: Vec<Candidate>,
}

/// Another amount, and what it would have done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The amount.
    pub amount: u64,
    /// The limit as it is written.
    pub limit: String,
    /// Sources that it would have blocked at least once.
    pub sources_blocked: u64,
    /// Of all that were observed, 0 to 1.
    pub sources_share: f64,
    /// What it would have blocked, in the limit's unit.
    pub blocked: u64,
    /// Of all that was wanted, 0 to 1.
    pub blocked_share: f64,
}

/// What a limit could be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// The amount.
    pub amount: u64,
    /// The limit as it is written.
    pub limit: String,
    /// Sources that it would have blocked at least once.
    pub sources_blocked: u64,
    /// Observed too briefly, or of too few sources, to rely on.
    pub provisional: bool,
    /// What the proposal is from.
    pub reason: ProposalReason,
    /// The gap that it lies in, where that is the reason.
    pub gap: Option<Gap>,
}

/// What a proposal is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProposalReason {
    /// A gap between the ordinary sources and the others.
    Gap,
    /// No gap: twice what 99.9 % of the sources stay within.
    TwiceP999,
    /// No gap, and few sources: twice what the busiest wanted.
    TwiceMax,
}

impl SuggestReport {
    /// Of every rule of the policy, or of the one with this name, at `now` by the datapath's clock.
    /// Says which of these list files the sources over a proposed limit are in.
    pub fn build(policy: &Policy, observer: &Observer, now: Nanos, only: Option<&str>, lists: &[ListFile]) -> Self {
        let rules = policy.rules.iter().filter(|rule| only.is_none_or(|name| rule.name == name));
        let rules = rules.map(|rule| RuleSuggestion::build(rule, observer, Basis::Live, lists)).collect();
        Self { schema: SCHEMA, time: timestamp(now), rules }
    }

    /// Of what is past, up to `now`: no limit held there. Those of the policy are in force elsewhere, or only say what to observe.
    pub fn of_past(policy: &Policy, observer: &Observer, now: Nanos, is_present: bool, lists: &[ListFile]) -> Self {
        let basis = Basis::Past { is_present };
        let rules = policy.rules.iter().map(|rule| RuleSuggestion::build(rule, observer, basis, lists)).collect();
        Self { schema: SCHEMA, time: timestamp(now), rules }
    }
}

/// What was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// Traffic under the policy's limits.
    Live,
    /// What is past, under none.
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

/// As it is written where another unit may be the default. A size says by itself what it counts.
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
                notes.push(format!("fewer than {SOURCES_ENOUGH} sources are few to tell the ordinary from the others"));
            }
            if basis == Basis::Live {
                notes.extend(caveats(rule, limit, of));
            }
        } else if limit.form == desired::WindowForm::Gcra {
            notes.push(
                "a leaky bucket does not tell what was wanted when: observe with algorithm = \"buckets\", and choose by that"
                    .to_owned(),
            );
        } else if limit.per != desired::Per::Source {
            let why = "what a group wants is not observed: `ratelimitd stats` has groups, and `ratelimitd replay` judges them";
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
            notes,
        }
    }

    /// Says where these sources are.
    fn say_where(&mut self, over: &[(IpNet, u64)], lists: &[ListFile]) {
        let prefixes = origins::prefixes(desired::Per::Source, over).into_iter();
        let prefix = |(prefix, Sum { sources, amount }): (IpNet, _)| PrefixOver {
            prefix: prefix.to_string(),
            sources,
            wanted: amount,
        };
        self.prefixes = prefixes.map(prefix).collect();
        let lists = origins::lists(lists, over).into_iter();
        let list = |(list, Sum { sources, amount }): (&ListFile, _)| ListOver {
            file: list.path.display().to_string(),
            sources,
            wanted: amount,
        };
        self.lists = lists.map(list).collect();
    }
}

/// Whether only some packets count, so that what `refuse = "all"` drops is not all of what is counted.
const fn is_of_some_packets(unit: Counted) -> bool {
    match unit {
        Counted::Requests | Counted::Connections => true,
        Counted::Packets | Counted::Bytes => false,
    }
}

/// In what respect the numbers are not exact.
fn caveats(rule: &desired::Rule, limit: &desired::Limit, of: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    let exceeds = of.busiest.last().is_some_and(|busiest| *busiest > limit.amount);
    if of.missed_buckets > 0 {
        notes.push(format!(
            "{} buckets of {} ended before they were read, and what came in them may be missing",
            of.missed_buckets,
            ratelimit_policy::config::duration::words(limit.bucket_ns)
        ));
    }
    if of.sources_not_observed > 0 {
        notes.push(format!(
            "at least {} more sources were not observed: `max_sources` has room for so many",
            of.sources_not_observed
        ));
    }
    if exceeds && limit.unit == Counted::Bytes {
        notes.push("refused packets are counted, not their bytes: each is taken to be as long as the rule's refused packets are on average".to_owned());
    }
    if exceeds && limit.unit == Counted::Requests && rule.refuse == Refuse::Excess {
        notes.push("refused packets are counted, and each is taken to be one request, however many it held".to_owned());
    }
    if exceeds && is_of_some_packets(limit.unit) && rule.refuse == Refuse::All {
        let unit = desired::unit_label(limit.unit);
        notes.push(format!(
            "with refuse = \"all\" it cannot be told how many {unit} were refused, so sources over the limit wanted at least \
             this much: observe with a limit that nobody exceeds"
        ));
    }
    if exceeds && rule.mode == desired::Mode::Enforce {
        notes.push(
            "this rule drops, and who is refused tries again, which counts once more: a dry run tells what is wanted undisturbed"
                .to_owned(),
        );
    }
    if rule.bans.is_some() {
        notes.push("what banned sources send is not observed".to_owned());
    }
    if let Some(burst) = limit.burst {
        notes.push(format!(
            "every candidate has the limit's burst too, {burst} in a bucket; the proposal is by the sum alone"
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
