//! Findings of checks. The JSON of `doctor --json` is schema 1: fields are added, never renamed.

use serde::{Deserialize, Serialize};

/// Version of the JSON schema.
pub const SCHEMA: u32 = 1;

/// State of an examined thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Everything is as it should be.
    Ok,
    /// The state could not be determined.
    Unknown,
    /// The thing works, but may be worse than expected.
    Warning,
    /// The thing does not work, or will not.
    Problem,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the check, for programs: `kernel.jit`.
    pub id: String,
    /// Group of the check: `kernel`, `interface eth0`.
    pub about: String,
    /// State of the examined thing.
    pub state: State,
    /// Description of what was found.
    pub seen: String,
    /// Reason why the check matters.
    pub why: String,
    /// Command or instruction that corrects it; `None` if the state is ok.
    pub mend: Option<String>,
}

/// Results of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the schema, [`SCHEMA`].
    pub schema: u32,
    /// Findings, ordered by group.
    pub checks: Vec<Finding>,
}

impl Report {
    /// Returns the number of findings with this state.
    pub fn count(&self, state: State) -> usize {
        self.checks.iter().filter(|of| of.state == state).count()
    }

    /// Returns true if there is no problem; warnings do not count.
    pub fn is_without_problem(&self) -> bool {
        self.count(State::Problem) == 0
    }
}

/// Subject of a check, with the reason why it matters. Builds the findings.
#[derive(Clone, Debug)]
pub(crate) struct Subject<'a> {
    about: &'a str,
    id: &'a str,
    why: &'a str,
}

impl<'a> Subject<'a> {
    pub(crate) const fn new(about: &'a str, id: &'a str, why: &'a str) -> Self {
        Self { about, id, why }
    }

    pub(crate) fn ok(&self, seen: impl Into<String>) -> Finding {
        self.finding(State::Ok, seen.into(), None)
    }

    pub(crate) fn warning(&self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.finding(State::Warning, seen.into(), Some(mend.into()))
    }

    pub(crate) fn problem(&self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.finding(State::Problem, seen.into(), Some(mend.into()))
    }

    pub(crate) fn unknown(&self, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.finding(State::Unknown, seen.into(), Some(mend.into()))
    }

    fn finding(&self, state: State, seen: String, mend: Option<String>) -> Finding {
        Finding { id: self.id.to_owned(), about: self.about.to_owned(), state, seen, why: self.why.to_owned(), mend }
    }
}
