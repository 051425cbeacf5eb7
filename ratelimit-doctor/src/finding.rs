//! What a check comes to. `doctor --json` is schema 1: fields are added, never renamed.

use serde::{Deserialize, Serialize};

/// The schema's number.
pub const SCHEMA: u32 = 1;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// It could not be told.
    Unknown,
    /// It works, and may be worse than thought.
    Warning,
    /// Something does not work, or will not.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at, for programs: `kernel.jit`.
    pub id: String,
    /// What it belongs to: `kernel`, `interface eth0`.
    pub about: String,
    /// How it stands.
    pub state: State,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// The command that mends it, or what to do; none where nothing is to mend.
    pub mend: Option<String>,
}

/// All that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// In order, by what they belong to.
    pub checks: Vec<Finding>,
}

impl Report {
    /// How many stand so.
    pub fn count(&self, state: State) -> usize {
        self.checks.iter().filter(|of| of.state == state).count()
    }

    /// Whether nothing fails; warnings are no failure.
    pub fn is_without_problem(&self) -> bool {
        self.count(State::Problem) == 0
    }
}

/// What checks make findings with: one subject, and why it matters, whatever is seen.
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
