//! What goes over the control API besides statistics. Serde twins only: no type of the kernel's layout.

use serde::{Deserialize, Serialize};

use ratelimit_datapath::DatapathError;
use ratelimit_report::snapshot::SCHEMA;

/// Metrics in the Prometheus text format.
pub const METRICS: &str = "/metrics";
/// [`Health`]: status 200 if healthy, else 503.
pub const HEALTHZ: &str = "/healthz";
/// [`ratelimit_report::snapshot::Snapshot`].
pub const STATS: &str = "/api/v1/stats";
/// [`ratelimit_report::snapshot::CheckReport`] of the address that follows.
pub const CHECK: &str = "/api/v1/check";
/// [`ratelimit_report::snapshot::PrefixReport`] of `?prefix=CIDR`, socket only; `&most=N` entries of each origin.
pub const CHECK_PREFIX: &str = "/api/v1/check-prefix";
/// POST, socket only, [`ReloadRequest`] or nothing: [`ReloadReport`].
pub const RELOAD: &str = "/v1/reload";
/// POST, socket only, `?interface=NAME` for one: [`DetachReport`].
pub const DETACH: &str = "/v1/detach";

/// [`ratelimit_report::snapshot::ListReport`], socket only; what is asked for as [`ratelimit_report::snapshot::ListFilter`] says, field by field.
pub const LIST: &str = "/api/v1/list";
/// [`ratelimit_report::snapshot::SuggestReport`], socket only; `?rule=NAME` for one.
pub const SUGGEST: &str = "/api/v1/suggest";
/// [`ratelimit_report::snapshot::ExplainReport`] of the address that follows, socket only: `?to=443/tcp`, and `&address=A` for where to.
pub const EXPLAIN: &str = "/api/v1/explain";
/// POST, socket only, [`GrantRequest`]: [`GrantReport`].
pub const ALLOW: &str = "/v1/allow";
/// POST, socket only, [`GrantRequest`]: [`GrantReport`].
pub const DENY: &str = "/v1/deny";
/// POST, socket only, [`UnblockRequest`]: [`UnblockReport`].
pub const UNBLOCK: &str = "/v1/unblock";
/// POST, socket only, [`PrefixRequest`]: [`UnblockReport`].
pub const UNALLOW: &str = "/v1/unallow";
/// POST, socket only, [`SourceRequest`]: [`ResetReport`].
pub const RESET: &str = "/v1/reset";
/// POST, socket only, [`ModeRequest`]: [`ModeReport`].
pub const MODE: &str = "/v1/mode";
/// POST, socket only, [`ApplyRequest`]: [`ApplyReport`].
pub const APPLY: &str = "/v1/apply";
/// POST, socket only: [`ConfirmReport`].
pub const CONFIRM: &str = "/v1/confirm";
/// POST, socket only: [`RollbackReport`].
pub const ROLLBACK: &str = "/v1/rollback";
/// POST, socket only, [`ChargeRequest`]: [`Standing`]. For whoever may connect.
pub const CHARGE: &str = "/v1/charge";
/// [`Standing`] of the address that follows with `?rule=NAME`, socket only.
pub const STANDING: &str = "/v1/check";

pub use super::orders::{
    ApplyReport, ApplyRequest, ChargeRequest, ConfirmReport, GrantReport, GrantRequest, ModeReport, ModeRequest,
    ModeWord, PrefixRequest, ReloadRequest, ResetReport, RollbackReport, SourceRequest, Standing, Still, UnblockReport,
    UnblockRequest,
};

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
