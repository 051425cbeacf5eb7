//! Many denials in one request, as `ratelimitd import` sends them: put in force and stored together. Serde types only.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::call::{Call, Route};
use super::proto::{Problem, ProblemKind};

/// Maximum number of rows in one request.
pub const ROWS_MAX: usize = 1_000;
/// Maximum bytes of a request's body. // 1000 rows of an address, an owner of 128 bytes and a reason of 200, each
/// possibly escaped
pub(super) const BODY_BYTES_MAX: usize = 2 << 20;

/// Request to deny many prefixes, each until its own end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// The rows, at most [`ROWS_MAX`].
    pub rows: Vec<ImportRow>,
    /// Address from which the requester is connected by SSH.
    #[serde(default)]
    pub ssh_peer: Option<IpAddr>,
}

/// One row of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRow {
    /// An address or a prefix. An IPv6 address alone means its source.
    pub prefix: String,
    /// End of the denial; permanent if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Reason for the denial, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Program that owns the denial, for example `fail2ban/sshd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Call for Import {
    type Report = ImportReport;
    const ROUTE: Route = Route::change("/v1/import");
    const BODY_BYTES_MAX: usize = BODY_BYTES_MAX;

    fn check(&self) -> Result<(), Problem> {
        let why = || format!("one request imports at most {ROWS_MAX} rows, and this has {}", self.rows.len());
        if self.rows.len() > ROWS_MAX { Err(Problem::new(ProblemKind::BadRequest, why())) } else { Ok(()) }
    }
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Number of rows that are newly denied, or until a later end than before.
    pub entered: u64,
    /// Number of rows that the same owner denied at least as long already.
    pub unchanged: u64,
    /// Rows that are not denied.
    pub refused: Vec<RefusedRow>,
    /// Further notes, one sentence each.
    pub notes: Vec<String>,
}

/// A row that is not denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// Prefix of the row, as it was sent.
    pub prefix: String,
    /// Reason why it is not denied.
    pub why: String,
}
