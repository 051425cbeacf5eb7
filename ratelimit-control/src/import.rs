//! Many denials at once, as `ratelimitd import` sends them: they are put in force and kept together. Serde types only.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::call::{Call, Route};
use super::proto::{Problem, ProblemKind};

/// Denials of one request.
pub const ROWS_MAX: usize = 1_000;
/// The longest request. // 1000 rows of an address, an owner of 128 bytes and a reason of 200, of which each may be escaped
pub(super) const BODY_BYTES_MAX: usize = 2 << 20;

/// To deny many prefixes, each until its own end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// At most [`ROWS_MAX`].
    pub rows: Vec<ImportRow>,
    /// Where the one who asks came from by SSH.
    #[serde(default)]
    pub ssh_peer: Option<IpAddr>,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRow {
    /// An address or a prefix; an IPv6 address alone is its source.
    pub prefix: String,
    /// Until when; without it permanent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The program whose denial it is, as in `fail2ban/sshd`.
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

/// What was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Rows that are denied from now on, or until later than before.
    pub entered: u64,
    /// Rows that were denied as long already by the same owner.
    pub unchanged: u64,
    /// Rows that are not denied.
    pub refused: Vec<RefusedRow>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
}

/// A row that is not denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRow {
    /// Its prefix, as it was sent.
    pub prefix: String,
    /// Why not.
    pub why: String,
}
