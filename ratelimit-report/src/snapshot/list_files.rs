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

/// What of a list file is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListState {
    /// What the file holds, but for lines that are left out.
    InForce,
    /// What it held when it could last be read, or was within its bounds.
    LastGood,
    /// Nothing.
    LeftOut,
}

impl ListState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::InForce, Self::LastGood, Self::LeftOut];

    /// Its name in JSON and in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::InForce => "in_force",
            Self::LastGood => "last_good",
            Self::LeftOut => "left_out",
        }
    }
}

/// How one list file is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFileReport {
    /// Its path.
    pub file: String,
    /// What of it is in force.
    pub state: ListState,
    /// Lines that are left out of what is in force, as they cannot be read.
    pub lines_left_out: u64,
    /// The first line that is bad, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// What is wrong with the file. Left out where nothing is, and where sources may not be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl ListFileReport {
    /// Whether the file is in force as it stands.
    pub const fn is_whole(&self) -> bool {
        matches!(self.state, ListState::InForce) && self.lines_left_out == 0
    }

    /// What of the file is not in force, with the line but without what is wrong; none where it is in force as it stands.
    pub fn words(&self) -> Option<String> {
        let file = &self.file;
        let line = |before: &str| self.line.map_or_else(String::new, |line| format!("{before}line {line}"));
        Some(match (self.state, self.lines_left_out) {
            (ListState::InForce, 0) => return None,
            (ListState::InForce, 1) => {
                format!("PARTLY PROTECTED: a line of list file {file} is left out{}", line(": "))
            }
            (ListState::InForce, lines) => {
                let first = line(", first of them ");
                format!("PARTLY PROTECTED: {lines} lines of list file {file} are left out{first}")
            }
            (ListState::LastGood, _) => {
                let line = line(": see ");
                format!("PARTLY PROTECTED: of list file {file} the last good version is in force{line}")
            }
            (ListState::LeftOut, _) => {
                format!("PARTLY PROTECTED: nothing of list file {file} is in force{}", line(": see "))
            }
        })
    }
}

/// That entries of list files are passed over, if any: how many, as no source may be named to all.
pub fn passed_over_words(count: u64) -> Option<String> {
    let entries = if count == 1 { "entry of a list file is" } else { "entries of list files are" };
    (count > 0)
        .then(|| format!("{count} {entries} PASSED OVER: the log and `ratelimitd check-config` say which and why"))
}
