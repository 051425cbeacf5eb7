//! What goes over the control API besides statistics. Serde twins only: no type of the kernel's layout.

use serde::{Deserialize, Serialize};

use crate::datapath::DatapathError;
use crate::snapshot::SCHEMA;

/// Metrics in the Prometheus text format.
pub const METRICS: &str = "/metrics";
/// [`Health`]: status 200 if healthy, else 503.
pub const HEALTHZ: &str = "/healthz";
/// [`crate::snapshot::Snapshot`].
pub const STATS: &str = "/api/v1/stats";
/// [`crate::snapshot::CheckReport`] of the address that follows.
pub const CHECK: &str = "/api/v1/check";
/// POST, socket only: [`ReloadReport`].
pub const RELOAD: &str = "/v1/reload";
/// POST, socket only, `?interface=NAME` for one: [`DetachReport`].
pub const DETACH: &str = "/v1/detach";

/// What a reload changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// One line a change; none if the file says what was enforced already.
    pub changes: Vec<String>,
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
            DatapathError::Occupied { .. }
            | DatapathError::Unsupported { .. }
            | DatapathError::NotPrivileged { .. }
            | DatapathError::InUse { .. }
            | DatapathError::Pins { .. }
            | DatapathError::Other(_) => ProblemKind::Datapath,
        };
        Self::new(kind, format!("{:#}", anyhow::Error::from(error)))
    }
}
