//! Mode of each rule, as shown by `ratelimitd mode`.

use serde::{Deserialize, Serialize};

use super::{Hold, Mode, SCHEMA, Snapshot};

/// Mode of the host and of its rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeNow {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Overall mode: `enforce` if some rule drops packets.
    pub mode: Mode,
    /// Order that keeps every rule from dropping, if a command gave one.
    pub hold: Option<Hold>,
    /// Rules in the order in which they judge.
    pub rules: Vec<RuleMode>,
}

/// Mode of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMode {
    /// Rule name.
    pub name: String,
    /// Mode of the rule now.
    pub mode: Mode,
}

impl ModeNow {
    /// Extracts the modes from a snapshot.
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
