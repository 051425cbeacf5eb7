//! What goes over the control API. Serde twins only: no type of the kernel's layout.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use ratelimit_datapath::DatapathError;
use ratelimit_policy::config::network::Target;
use ratelimit_report::snapshot::SCHEMA;

/// Metrics in the Prometheus text format.
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

/// What a reload changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// One line a change; none if the file says what was enforced already.
    pub changes: Vec<String>,
    /// What else there is to know, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What was detached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The interfaces.
    pub detached: Vec<String>,
    /// Whether nothing is left to do, so that the daemon ends.
    pub stopping: bool,
}

/// Whether the daemon does what it is there for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Every interface is attached and the maps can be read.
    pub healthy: bool,
    /// What is not as it should be.
    pub problems: Vec<String>,
    /// What else is not, and leaves the daemon healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What sort of problem.
    pub kind: ProblemKind,
    /// What happened, why, and what to do.
    pub message: String,
}

/// What sort of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The request makes no sense.
    BadRequest,
    /// Not for this user, or not over TCP.
    NotPermitted,
    /// No such path or interface.
    NotFound,
    /// The configuration is bad, or needs a restart.
    Config,
    /// The kernel could not.
    Datapath,
    /// Something else has to be settled first.
    Conflict,
    /// The daemon is stopping.
    Stopping,
    /// A fault of the daemon's own.
    Internal,
}

impl Problem {
    /// A problem in words.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { schema: SCHEMA, kind, message: message.into() }
    }

    /// What the kernel side answered, with the whole chain of causes.
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

/// An address, in the form that packets have it.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, Problem> {
    let address: Result<IpAddr, _> = text.parse();
    address
        .map(|address| address.to_canonical())
        .map_err(|_| Problem::new(ProblemKind::BadRequest, format!("`{text}` is no IP address")))
}

/// An address or a prefix.
pub fn parse_target(text: &str) -> Result<Target, Problem> {
    Target::parse(text).map_err(|error| {
        let help = error.help.map_or(String::new(), |help| format!("; {help}"));
        Problem::new(ProblemKind::BadRequest, format!("{}{help}", error.problem))
    })
}
