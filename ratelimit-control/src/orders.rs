//! Commands that change something, and their reports: a POST, mostly with JSON in its body. Serde types only.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::call::{Access, Arguments, Call, Route, Verb};
use super::proto::{DetachReport, Problem, ProblemKind, ReloadReport, parse_target};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::safety::SshSession;
use ratelimit_report::snapshot::{Closed, Limit, Listed, RuleMode};

/// Request to allow or deny a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantRequest {
    /// An address or a prefix. An IPv6 address alone means its source.
    pub prefix: String,
    /// Duration in seconds; the default duration if `None`, unless `permanent` is set.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// True for an entry without an end.
    #[serde(default, rename = "forever")]
    pub permanent: bool,
    /// True if the new end replaces a later one, too.
    #[serde(default)]
    pub replace: bool,
    /// Reason for the entry, in words.
    #[serde(default)]
    pub reason: Option<String>,
    /// Proceeds even if that may lock out an administrator.
    #[serde(default)]
    pub force: bool,
    /// Address from which the requester is connected by SSH.
    #[serde(default)]
    pub ssh_peer: Option<IpAddr>,
    /// Applies to every host of the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
    /// For a denial: closes open connections from the prefix to protected ports, on this host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kill: bool,
    /// Program that owns the denial, for example `fail2ban/sshd`. Entries of other owners for the same prefix stay
    /// separate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl GrantRequest {
    /// Returns this request for another prefix.
    #[must_use]
    pub fn of(self, prefix: String) -> Self {
        Self { prefix, ..self }
    }

    /// Parses the prefix. Fails if the text is neither an address nor a prefix.
    pub fn target(&self) -> Result<Target, Problem> {
        parse_target(&self.prefix)
    }
}

/// Command that allows a prefix.
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

/// Command that denies a prefix.
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

/// Result of `allow` or `deny`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The new entry, as `list` shows it.
    pub entry: Listed,
    /// The earlier entry of the same prefix, which the new one extends or replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Listed>,
    /// The first few sources that were blocked and pass now.
    pub frees: Vec<String>,
    /// Number of all such sources.
    pub frees_count: u64,
    /// For a denial that closes connections: the result so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Closed>,
    /// Further notes, one sentence each.
    pub notes: Vec<String>,
}

/// Request to remove what commands allow in a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixRequest {
    /// An address or a prefix. An IPv6 address alone means its source.
    pub prefix: String,
    /// Applies to every host of the fleet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
}

impl PrefixRequest {
    /// Parses the prefix. Fails if the text is neither an address nor a prefix.
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

/// Request to unblock a prefix, or everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnblockRequest {
    /// An address or a prefix. An IPv6 address alone means its source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// All bans and all denials of commands, instead of a prefix.
    #[serde(default)]
    pub all: bool,
    /// Also lifts denials on every host of the fleet. Bans are lifted there anyway, unless the fleet shares none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
    /// Lifts only denials of this owner and of those below it. Bans and counters stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl UnblockRequest {
    /// Parses the prefix; `None` means everything. Fails unless exactly one of the two is set.
    pub fn target(&self) -> Result<Option<Target>, Problem> {
        match self {
            Self { prefix: Some(prefix), all: false, .. } => parse_target(prefix).map(Some),
            Self { prefix: None, all: true, .. } => Ok(None),
            Self { .. } => Err(Problem::new(ProblemKind::BadRequest, "name either a prefix or `all`")),
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

/// Result of `unblock` or `unallow`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnblockReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The requested prefix; empty for everything.
    #[serde(default)]
    pub prefix: String,
    /// The first thousand removed entries and bans.
    pub removed: Vec<Listed>,
    /// Number of all removed entries and bans.
    #[serde(default)]
    pub removed_count: u64,
    /// The first few sources that got their counters and bans reset.
    #[serde(default)]
    pub freed: Vec<String>,
    /// Number of all such sources.
    #[serde(default)]
    pub freed_count: u64,
    /// Entries that still block the prefix or a part. For `unallow`: entries that still allow it.
    #[serde(default)]
    pub still: Vec<Still>,
    /// Further notes, one sentence each.
    pub notes: Vec<String>,
}

/// An entry or ban that still holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Still {
    /// The entry, with its author, end, reason and place.
    #[serde(flatten)]
    pub entry: Listed,
    /// A command or clause that says how to lift it.
    pub lift: String,
}

/// Request to reset the counters and bans of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    /// Address of the source.
    pub source: IpAddr,
    /// Applies to every host of the fleet, even if the fleet shares no bans.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleet: bool,
}

impl Call for SourceRequest {
    type Report = ResetReport;
    const ROUTE: Route = Route::change("/v1/reset");
}

/// Result of a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The source: its address, or the prefix that counts as one client.
    pub source: String,
    /// Number of reset windows.
    pub windows: u64,
    /// Number of limits that these windows belong to.
    #[serde(default)]
    pub limits: u64,
    /// Number of lifted bans.
    pub bans: u64,
    /// Further notes, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Request to set the mode of every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// Mode that every rule gets.
    pub mode: ModeWord,
}

impl Call for ModeRequest {
    type Report = ModeReport;
    const ROUTE: Route = Route::change("/v1/mode");
}

/// Mode of every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeWord {
    /// Enforce as the configuration says.
    Enforce,
    /// Count, and drop nothing.
    DryRun,
    /// Count and drop nothing, in an emergency.
    Panic,
}

/// Result of a change of mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Mode that was requested.
    pub mode: ModeWord,
    /// True if anything has changed.
    pub changed: bool,
    /// Present behaviour of each rule, in the order in which the rules judge.
    #[serde(default)]
    pub rules: Vec<RuleMode>,
    /// Further notes, one sentence each.
    pub notes: Vec<String>,
}

/// Request to put a configuration file in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Absolute path of the file; the daemon's own file if `None`.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// Time in seconds after which the file is rolled back unless it is confirmed.
    #[serde(default)]
    pub confirm_seconds: Option<u64>,
    /// SSH session of the requester.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshSession>,
    /// Proceeds even if the file newly denies or limits that session.
    #[serde(default)]
    pub force: bool,
}

impl Call for ApplyRequest {
    type Report = ApplyReport;
    const ROUTE: Route = Route::change("/v1/apply");
}

/// Request to read the daemon's own file again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// SSH session of the requester.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<SshSession>,
    /// Proceeds even if the file newly denies or limits that session.
    #[serde(default)]
    pub force: bool,
}

impl Call for ReloadRequest {
    type Report = ReloadReport;
    const ROUTE: Route = Route { arguments: Arguments::BodyOrNothing, ..Route::change("/v1/reload") };
}

/// Result of putting a file in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Changes, one line each; empty if the file changes nothing.
    pub changes: Vec<String>,
    /// Seconds until the file is rolled back unless it is confirmed; `None` without a trial.
    pub confirm_within_seconds: Option<u64>,
    /// Further notes, one sentence each.
    pub notes: Vec<String>,
}

/// Request to keep the file that is on trial.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Confirm {}

impl Call for Confirm {
    type Report = ConfirmReport;
    const ROUTE: Route = Route { arguments: Arguments::Query, ..Route::change("/v1/confirm") };
}

/// Result of a confirmation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The file that is permanent from now on.
    pub file: PathBuf,
}

/// Request to end the trial and restore the configuration before it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Rollback {}

impl Call for Rollback {
    type Report = RollbackReport;
    const ROUTE: Route = Route { arguments: Arguments::Query, ..Route::change("/v1/rollback") };
}

/// Result of a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The file that was on trial.
    pub file: String,
    /// True if the trial's time was over already.
    pub was_over: bool,
}

/// Request to detach the filter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// Interface to detach from; `None` for all, which ends the daemon.
    pub interface: Option<String>,
}

impl Call for Detach {
    type Report = DetachReport;
    const ROUTE: Route = Route { arguments: Arguments::Query, ..Route::change("/v1/detach") };
}

/// Request to add to the usage of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChargeRequest {
    /// Address of the source.
    pub source: IpAddr,
    /// Name of the rule.
    pub rule: String,
    /// Amount to add, in each limit's own unit.
    pub amount: u64,
}

impl Call for ChargeRequest {
    type Report = StandingReport;
    const ROUTE: Route = Route {
        verb: Verb::Post,
        path: "/v1/charge",
        arguments: Arguments::Body,
        // An application can only add to the usage of its clients.
        access: Access::Connect,
    };
}

/// State of a source under one rule, with the values that applications need for `RateLimit-*` and `Retry-After`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The source: its address, or the prefix that counts as one client.
    pub source: String,
    /// Name of the rule.
    pub rule: String,
    /// Verdict in the words of `check`: `pass` or `drop`.
    pub verdict: ratelimit_report::snapshot::Outcome,
    /// Reason, in the words of the counters.
    pub reason: String,
    /// Used amount of the limit that is nearest to refusing.
    pub used: u64,
    /// Remaining amount of that limit.
    pub remaining: u64,
    /// The limit that is nearest to refusing.
    pub limit: Limit,
    /// Seconds until the source passes again; 0 if it passes now.
    pub retry_after_seconds: f64,
    /// True if no wait is long enough.
    pub never: bool,
}
