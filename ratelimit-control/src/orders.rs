//! Commands that change something, and their reports: a POST, mostly with JSON in its body. Serde types only.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::call::{Access, Arguments, Call, Route, Verb};
use super::proto::{DetachReport, Problem, ProblemKind, ReloadReport, parse_target};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::safety::SshSession;
use ratelimit_report::snapshot::{Closed, Limit, Listed, RuleMode};

/// To allow or to deny a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// An address or a prefix; an IPv6 address alone is its source.
    pub prefix: String,
    /// For how long; without it as long as is usual, unless `permanent`.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Permanent.
    #[serde(default, rename = "forever")]
    pub permanent: bool,
    /// The new end replaces the old one, also where the old one is later.
    #[serde(default)]
    pub replace: bool,
    /// Why, in words.
    #[serde(default)]
    pub reason: Option<String>,
    /// Also where that may lock out an administrator.
    #[serde(default)]
    pub force: bool,
    /// Where the one who asks came from by SSH.
    #[serde(default)]
    pub ssh_peer: Option<IpAddr>,
    /// On every host of the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
    /// Of a denial: ends open connections from there to what is protected, on this host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kill: bool,
    /// The program whose denial it is, as in `fail2ban/sshd`: entries of others for the same prefix stay apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl GrantRequest {
    /// The same for another prefix.
    #[must_use]
    pub fn of(self, prefix: String) -> Self {
        Self { prefix, ..self }
    }

    /// Whom it names.
    pub fn target(&self) -> Result<Target, Problem> {
        parse_target(&self.prefix)
    }
}

/// Allows a prefix.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Allow(pub GrantRequest);

impl Call for Allow {
    type Report = GrantReport;
    const ROUTE: Route = Route::change("/v1/allow");

    fn check(&self) -> Result<(), Problem> {
        self.0.target().map(drop)
    }
}

/// Denies a prefix.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Deny(pub GrantRequest);

impl Call for Deny {
    type Report = GrantReport;
    const ROUTE: Route = Route::change("/v1/deny");

    fn check(&self) -> Result<(), Problem> {
        self.0.target().map(drop)
    }
}

/// What `allow` or `deny` did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// What is entered.
    pub entry: Listed,
    /// The entry of the same prefix before it, which it extends or replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Listed>,
    /// Sources that were blocked, and pass now: the first few.
    pub frees: Vec<String>,
    /// How many they are.
    pub frees_count: u64,
    /// Of a denial that ends connections: what came of them so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Closed>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
}

/// To remove what commands allow in a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixRequest {
    /// An address or a prefix; an IPv6 address alone is its source.
    pub prefix: String,
    /// On every host of the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
}

impl PrefixRequest {
    /// Whom it names.
    pub fn target(&self) -> Result<Target, Problem> {
        parse_target(&self.prefix)
    }
}

impl Call for PrefixRequest {
    type Report = UnblockReport;
    const ROUTE: Route = Route::change("/v1/unallow");

    fn check(&self) -> Result<(), Problem> {
        self.target().map(drop)
    }
}

/// To free a prefix, or everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnblockRequest {
    /// An address or a prefix; an IPv6 address alone is its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// All bans and all denials of commands, in place of a prefix.
    #[serde(default)]
    pub all: bool,
    /// Denials too on every host of the fleet; bans are lifted there anyway, unless the fleet spreads none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
    /// Denials of this owner alone, and of those below it; bans and counters stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl UnblockRequest {
    /// Whom it names; none is everybody.
    pub fn target(&self) -> Result<Option<Target>, Problem> {
        match self {
            Self { prefix: Some(prefix), all: false, .. } => parse_target(prefix).map(Some),
            Self { prefix: None, all: true, .. } => Ok(None),
            Self { .. } => Err(Problem::new(ProblemKind::BadRequest, "name a prefix, or `all`: one of the two")),
        }
    }
}

impl Call for UnblockRequest {
    type Report = UnblockReport;
    const ROUTE: Route = Route::change("/v1/unblock");

    fn check(&self) -> Result<(), Problem> {
        self.target().map(drop)
    }
}

/// What `unblock` or `unallow` removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnblockReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The prefix that was meant; empty where everything was.
    #[serde(default)]
    pub prefix: String,
    /// The entries and bans that were removed: the first thousand.
    pub removed: Vec<Listed>,
    /// How many they are.
    #[serde(default)]
    pub removed_count: u64,
    /// Sources whose counters and bans were reset: the first few.
    #[serde(default)]
    pub freed: Vec<String>,
    /// How many they are.
    #[serde(default)]
    pub freed_count: u64,
    /// What still blocks the prefix or a part of it; of `unallow`, what still allows it.
    #[serde(default)]
    pub still: Vec<Still>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
}

/// An entry or ban that still holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Still {
    /// What, by whom, until when, why and where it is written.
    #[serde(flatten)]
    pub entry: Listed,
    /// How to lift it: a command, or a clause.
    pub lift: String,
}

/// To reset what a source has used, and its bans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    /// Its address.
    pub source: IpAddr,
    /// On every host of the fleet, also where that spreads no bans.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
}

impl Call for SourceRequest {
    type Report = ResetReport;
    const ROUTE: Route = Route::change("/v1/reset");
}

/// What was reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The source: its address, or the prefix that is one client.
    pub source: String,
    /// Windows that were reset.
    pub windows: u64,
    /// Limits whose windows they were.
    #[serde(default)]
    pub limits: u64,
    /// Bans that were lifted.
    pub bans: u64,
    /// What else there is to know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// To set the mode of every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// In a word.
    pub mode: ModeWord,
}

impl Call for ModeRequest {
    type Report = ModeReport;
    const ROUTE: Route = Route::change("/v1/mode");
}

/// The mode of every rule, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeWord {
    /// As the configuration says.
    Enforce,
    /// Count, and drop nothing.
    DryRun,
    /// The same, in an emergency.
    Panic,
}

/// The mode that holds now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// What was asked for.
    pub mode: ModeWord,
    /// Whether anything has changed.
    pub changed: bool,
    /// What each rule does now, in the order in which they judge.
    #[serde(default)]
    pub rules: Vec<RuleMode>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
}

/// To put a configuration file in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Its absolute path; the daemon's own without it.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// Rolled back after this time, unless it is confirmed.
    #[serde(default)]
    pub confirm_seconds: Option<u64>,
    /// The session of the one who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshSession>,
    /// Also where it denies or limits that session, which it did not before.
    #[serde(default)]
    pub force: bool,
}

impl Call for ApplyRequest {
    type Report = ApplyReport;
    const ROUTE: Route = Route::change("/v1/apply");
}

/// To read the daemon's own file again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// The session of the one who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshSession>,
    /// Also where it denies or limits that session, which it did not before.
    #[serde(default)]
    pub force: bool,
}

impl Call for ReloadRequest {
    type Report = ReloadReport;
    const ROUTE: Route = Route { arguments: Arguments::BodyOrNothing, ..Route::change("/v1/reload") };
}

/// What a reload changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// One line a change; none if the file says what was enforced already.
    pub changes: Vec<String>,
    /// Seconds until it is rolled back, unless it is confirmed.
    pub confirm_within_seconds: Option<u64>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
}

/// To keep the file on trial permanently.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Confirm {}

impl Call for Confirm {
    type Report = ConfirmReport;
    const ROUTE: Route = Route { arguments: Arguments::Query, ..Route::change("/v1/confirm") };
}

/// What was confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The file that holds from now on.
    pub file: PathBuf,
}

/// To end the trial: the configuration before it is in force again.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Rollback {}

impl Call for Rollback {
    type Report = RollbackReport;
    const ROUTE: Route = Route { arguments: Arguments::Query, ..Route::change("/v1/rollback") };
}

/// What was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The file that was on trial.
    pub file: String,
    /// Its time was over already.
    pub was_over: bool,
}

/// To take the filter off.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// From one interface, or from all, which ends the daemon.
    pub interface: Option<String>,
}

impl Call for Detach {
    type Report = DetachReport;
    const ROUTE: Route = Route { arguments: Arguments::Query, ..Route::change("/v1/detach") };
}

/// To add to what a source has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChargeRequest {
    /// The source's address.
    pub source: IpAddr,
    /// The rule's name.
    pub rule: String,
    /// How much, in each limit's own unit.
    pub amount: u64,
}

impl Call for ChargeRequest {
    type Report = StandingReport;
    const ROUTE: Route = Route {
        verb: Verb::Post,
        path: "/v1/charge",
        arguments: Arguments::Body,
        // An application can only add to what its clients have used.
        access: Access::Connect,
    };
}

/// How a source stands with one rule, as applications need it for `RateLimit-*` and `Retry-After`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The source: its address, or the prefix that is one client.
    pub source: String,
    /// The rule's name.
    pub rule: String,
    /// `pass` or `drop`, as `check` says it.
    pub verdict: ratelimit_report::snapshot::Outcome,
    /// Why, in the words of the counters.
    pub reason: String,
    /// Used of the limit that is nearest to refusing.
    pub used: u64,
    /// What is left of it.
    pub remaining: u64,
    /// That limit.
    pub limit: Limit,
    /// Until the source passes again; 0 if it does.
    pub retry_after_seconds: f64,
    /// No wait is long enough.
    pub never: bool,
}
