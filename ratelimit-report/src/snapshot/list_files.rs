//! State and problems of list files.

use serde::{Deserialize, Serialize};

/// List file with changes that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleList {
    /// Path of the file.
    pub file: String,
    /// Problem with the file. Left out where sources may not be named, because it quotes the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl StaleList {
    /// Creates the record of a file with its problem.
    pub fn new(path: &std::path::Path, error: &str) -> Self {
        Self { file: path.display().to_string(), error: Some(error.to_owned()) }
    }
}

/// Part of a list file that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListState {
    /// Current content of the file, except lines that are left out.
    InForce,
    /// Last content that could be read and was within bounds.
    LastGood,
    /// Nothing of the file.
    LeftOut,
}

impl ListState {
    /// All states, in ascending order of damage.
    pub const ALL: [Self; 3] = [Self::InForce, Self::LastGood, Self::LeftOut];

    /// Returns the name in JSON and in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::InForce => "in_force",
            Self::LastGood => "last_good",
            Self::LeftOut => "left_out",
        }
    }
}

/// State of one list file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFileReport {
    /// Path of the file.
    pub file: String,
    /// Part of the file that is in force.
    pub state: ListState,
    /// Number of lines that are not in force because they cannot be read.
    pub lines_left_out: u64,
    /// Number of the first bad line, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Problem with the file. Left out if there is none, and where sources may not be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl ListFileReport {
    /// Returns true if the file is in force without exceptions.
    pub const fn is_whole(&self) -> bool {
        matches!(self.state, ListState::InForce) && self.lines_left_out == 0
    }

    /// Describes the part of the file that is not in force, with the line but without the problem. Returns none for a
    /// file that is in force without exceptions.
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
                format!("PARTLY PROTECTED: the last good version of list file {file} is in force{line}")
            }
            (ListState::LeftOut, _) => {
                format!("PARTLY PROTECTED: list file {file} is left out{}", line(": see "))
            }
        })
    }
}

/// Describes how many list-file entries are ignored, without naming a source. Returns none for 0.
pub fn passed_over_words(count: u64) -> Option<String> {
    let entries = if count == 1 { "entry of a list file is" } else { "entries of list files are" };
    (count > 0)
        .then(|| format!("{count} {entries} PASSED OVER: the log and `ratelimitd check-config` say which and why"))
}
