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
    /// Number of its prefixes.
    pub prefixes: u64,
    /// Whether they are in force now. If not, no list of the running configuration is this file.
    pub in_force: bool,
}
