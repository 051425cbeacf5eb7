//! What `ratelimitd mode` shows: whether anything is dropped, by rule.

use serde::{Deserialize, Serialize};

use super::{Hold, Mode, SCHEMA, Snapshot};

/// Whether anything is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeNow {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `enforce` if some rule drops packets.
    pub mode: Mode,
    /// What keeps every rule from dropping, if a command does.
    pub hold: Option<Hold>,
    /// The rules, in the order in which they judge.
    pub rules: Vec<RuleMode>,
}

/// Whether one rule drops packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMode {
    /// The rule's name.
    pub name: String,
    /// What it does now.
    pub mode: Mode,
}

impl ModeNow {
    /// Of a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let rule = |of: &super::Rule| RuleMode { name: of.name.clone(), mode: of.mode };
        Self {
            schema: SCHEMA,
            mode: snapshot.mode,
            hold: snapshot.hold.clone(),
            rules: snapshot.rules.iter().map(rule).collect(),
        }
    }
}
