//! Decision whether and how the hosts of a fleet share the limits of a rule. Pure.

use super::super::limits::InFleet;
use super::super::syntax::SyntaxError;
use super::{Context, RuleSettings};
use crate::fleet::Sum;

impl RuleSettings {
    /// Returns how the rule's limits are shared, or None if they are not.
    pub(super) fn in_fleet<'s>(&'s self, context: &mut Context<'_>) -> Option<InFleet<'s>> {
        let source = context.source;
        let is_shared = source.is_set(self.values.one("fleet"), context.hosts.is_some());
        let sum = source.choice(self.values.one("fleet_sum"), Sum::ALL, Sum::label);
        // Each override asks again. A repeated diagnostic is kept only once.
        let is_shared = context.found.keep(is_shared)?;
        let sum = context.found.keep(sum)?;
        if let Some(written) = self.values.one("fleet_sum").filter(|_| !is_shared) {
            let error = SyntaxError::new(0..written.text.len(), "no limit of this rule is shared");
            context.found.push(source.wrong(written, error.with_help("leave it out, or share the rule: fleet = true")));
        }
        match (context.hosts, is_shared) {
            (Some(hosts), true) => Some(InFleet { hosts, sum, written: self.values.one("fleet") }),
            (Some(_), false) | (None, false) => None,
            (None, true) => {
                let written = self.values.one("fleet")?;
                let error = SyntaxError::new(0..written.text.len(), "there is no fleet to share its limits with");
                let help = "name the store: [fleet] with url = \"redis://…\"";
                context.found.push(source.wrong(written, error.with_help(help)));
                None
            }
        }
    }
}
