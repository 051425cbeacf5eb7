//! The command for list files, and its report. Serde types only.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::call::{Call, Route};

/// Request to put a version of a list file in force that exceeds the bounds of lists of `deny`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptList {
    /// Absolute path of the list file.
    pub file: PathBuf,
    /// Expected version, as the objection names it. Any other version is refused. `None` accepts what the file holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl Call for AcceptList {
    type Report = AcceptReport;
    const ROUTE: Route = Route::change("/v1/lists/accept");
}

/// Result of accepting a list file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Path of the list file.
    pub file: PathBuf,
    /// Accepted version, 12 hexadecimal digits.
    pub version: String,
    /// Number of its prefixes.
    pub prefixes: u64,
    /// Shares of the address spaces that the prefixes cover, in words.
    pub covers: String,
    /// True if the prefixes are in force now. If false, no list of the running configuration is this file.
    pub in_force: bool,
}
