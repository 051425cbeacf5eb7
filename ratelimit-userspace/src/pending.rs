//! Stand-ins for what colleagues write, gone when their work is merged: `plan::diff`.

use crate::desired::{DesiredState, Policy};

/// What has to change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Interfaces to attach to.
    pub attach: Vec<String>,
    /// Interfaces to detach from.
    pub detach: Vec<String>,
    /// The new policy, if it is another one.
    pub policy: Option<Policy>,
}

impl Plan {
    /// One line a change.
    pub fn changes(&self) -> Vec<String> {
        let attach = self.attach.iter().map(|name| format!("attach {name}"));
        let detach = self.detach.iter().map(|name| format!("detach {name}"));
        attach.chain(detach).chain(self.policy.iter().map(|_| "policy".to_owned())).collect()
    }
}

/// What turns one state into the other.
pub fn diff(from: &DesiredState, to: &DesiredState) -> Plan {
    let missing =
        |here: &[String], there: &[String]| there.iter().filter(|name| !here.contains(name)).cloned().collect();
    Plan {
        attach: missing(&from.interfaces, &to.interfaces),
        detach: missing(&to.interfaces, &from.interfaces),
        policy: (from.policy != to.policy).then(|| to.policy.clone()),
    }
}
