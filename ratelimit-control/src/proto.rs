//! Messages of the control API. Serde types only, none of the kernel's layout.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use ratelimit_datapath::DatapathError;
use ratelimit_policy::config::network::Target;
use ratelimit_report::snapshot::SCHEMA;

/// Path of the metrics in the Prometheus text format.
pub const METRICS: &str = "/metrics";

pub use super::import::{Import, ImportReport, ImportRow, ROWS_MAX, RefusedRow};
pub use super::lists::{AcceptList, AcceptReport};
pub use super::orders::{
    Allow, ApplyReport, ApplyRequest, ChargeRequest, Confirm, ConfirmReport, Deny, Detach, GrantReport, GrantRequest,
    ModeReport, ModeRequest, ModeWord, PrefixRequest, ReloadRequest, ResetReport, Rollback, RollbackReport,
    SourceRequest, StandingReport, Still, UnblockReport, UnblockRequest,
};
pub use super::past::{EventsOf, EventsReport, Forget, ForgetReport, HistoryOf, Series, Span, Worst};
pub use super::questions::{Check, CheckPrefix, Explain, FleetStatus, Healthz, StandingOf, Stats, Suggest};

/// Result of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Changes, one line each; empty if the file changes nothing.
    pub changes: Vec<String>,
    /// Further notes, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Result of a request to detach the filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Names of the detached interfaces.
    pub detached: Vec<String>,
    /// True if no interface is left, so that the daemon ends.
    pub stopping: bool,
}

/// Health of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// True if every interface is attached and the maps can be read.
    pub healthy: bool,
    /// Faults that make the daemon unhealthy.
    pub problems: Vec<String>,
    /// Faults that leave the daemon healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Refusal or failure of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Kind of the problem.
    pub kind: ProblemKind,
    /// Message: what happened, why, and what to do.
    pub message: String,
}

/// Kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The request is invalid.
    BadRequest,
    /// The user may not do it, or TCP does not permit it.
    NotPermitted,
    /// The path or interface does not exist.
    NotFound,
    /// The configuration is invalid, or needs a restart.
    Config,
    /// The kernel failed to do it.
    Datapath,
    /// Another matter must be settled first.
    Conflict,
    /// The daemon is stopping.
    Stopping,
    /// The daemon has an internal fault.
    Internal,
}

impl Problem {
    /// Returns a problem with this message.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { schema: SCHEMA, kind, message: message.into() }
    }

    /// Returns the problem for an error of the datapath, with all its causes.
    pub fn datapath(error: DatapathError) -> Self {
        let kind = match &error {
            DatapathError::NoSuchInterface { .. } => ProblemKind::NotFound,
            DatapathError::SharedPath { .. } => ProblemKind::Config,
            DatapathError::Occupied { .. }
            | DatapathError::Unsupported { .. }
            | DatapathError::NotPrivileged { .. }
            | DatapathError::Forbidden { .. }
            | DatapathError::InUse { .. }
            | DatapathError::Pins { .. }
            | DatapathError::Other(_) => ProblemKind::Datapath,
        };
        Self::new(kind, format!("{:#}", anyhow::Error::from(error)))
    }
}

/// Parses an address. An IPv4-mapped IPv6 address becomes IPv4, as in packets.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, Problem> {
    let address: Result<IpAddr, _> = text.parse();
    address
        .map(|address| address.to_canonical())
        .map_err(|_| Problem::new(ProblemKind::BadRequest, format!("`{text}` is no IP address")))
}

/// Parses an address or a prefix.
pub fn parse_target(text: &str) -> Result<Target, Problem> {
    Target::parse(text).map_err(|error| {
        let help = error.help.map_or(String::new(), |help| format!("; {help}"));
        Problem::new(ProblemKind::BadRequest, format!("{}{help}", error.problem))
    })
}
