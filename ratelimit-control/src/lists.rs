//! The command for list files, and its report. Serde types only.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::call::{Call, Route};

/// To put a version of a list file in force that is beyond the bounds of lists of `deny`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptList {
    /// Its absolute path.
    pub file: PathBuf,
    /// The version that is meant, as the objection to it names it. Another one is refused. None accepts what the file holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl Call for AcceptList {
    type Report = AcceptReport;
    const ROUTE: Route = Route::change("/v1/lists/accept");
}

/// What was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The list file.
    pub file: PathBuf,
    /// The version, 12 hexadecimal digits.
    pub version: String,
    /// Number of its prefixes.
    pub prefixes: u64,
    /// Shares of the address spaces that they cover, in words.
    pub covers: String,
    /// Whether they are in force now. If not, no list of the running configuration is this file.
    pub in_force: bool,
}
