//! What is wrong with list files.

use serde::{Deserialize, Serialize};

/// A list file that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleList {
    /// Its path.
    pub file: String,
    /// What is wrong with it. Left out where sources may not be named: it quotes the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl StaleList {
    /// The file at a path, and what is wrong with it.
    pub fn new(path: &std::path::Path, error: &str) -> Self {
        Self { file: path.display().to_string(), error: Some(error.to_owned()) }
    }
}

/// That entries of list files are passed over, if any: how many, as no source may be named to all.
pub fn passed_over_words(count: u64) -> Option<String> {
    let entries = if count == 1 { "entry of a list file is" } else { "entries of list files are" };
    (count > 0)
        .then(|| format!("{count} {entries} PASSED OVER: the log and `ratelimitd check-config` say which and why"))
}
