//! Application of a later fragment that may be TCP to all rules that it may belong to. No port says which, and the
//! fragment may contain requests for any of them. With one rule alone, 64 KB of requests would count as one at the
//! others.
//!
//! Bans and `refuse_all` are left to the rule that judges, and to the first fragment, which has the port. Without the
//! first fragment, nothing is reassembled.

use super::{Rules, enforced, has_ended, lowest};
use crate::layout::RuleSet;
use crate::verdict::{Action, Reason, Verdict};

/// Progress of a fragment through its rules: the rules that are left, and the verdict of the earlier ones. The fragment
/// passes if it is within the limits of each rule. Charges stay even if a later rule refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Beside {
    /// Rules that are left.
    pub rules: RuleSet,
    /// Number of the rule that is being applied.
    pub rule: u32,
    /// Verdict so far: a reason's code in the low byte, the row of its rule above it, and [`IS_SAID`]. 0 before the
    /// first verdict.
    said: u32,
}

const IS_SAID: u32 = 1 << 31;

/// Next action for a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Apply the rule with this number.
    Rule(u32),
    /// Skip a rule that has ended; its result is [`Reason::WithinLimit`].
    Ended,
    /// Stop: no rule is left, or none needs to be applied.
    Nothing,
}

impl Beside {
    /// Creates the state for a fragment that `rule` judges, and to which the rules `beside` apply too.
    #[inline(always)]
    pub const fn new(rule: u32, beside: RuleSet) -> Self {
        Self { rules: beside, rule, said: 0 }
    }

    /// Returns the next rule, after the current one has found `found`.
    #[inline(always)]
    pub fn next<R: Rules>(&mut self, rules: &R, found: Reason) -> Next {
        let verdict = enforced(rules.rule(self.rule), found);
        let is_dropped = matches!(verdict.reason.action(), Action::Drop);
        if is_dropped || self.said == 0 {
            self.said = IS_SAID | verdict.reason as u32 | (verdict.rule as u32) << 8;
        }
        // A source that one rule does not remember is remembered by no other.
        if is_dropped || matches!(verdict.reason, Reason::NotAdmitted) {
            return Next::Nothing;
        }
        let Some(index) = lowest(rules, self.rules) else { return Next::Nothing };
        self.rules &= self.rules - 1;
        self.rule = index;
        if has_ended(rules, index) { Next::Ended } else { Next::Rule(index) }
    }

    /// Returns the verdict of all applied rules.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a row has eight bits")]
    pub const fn verdict(&self) -> Verdict {
        Verdict { reason: Reason::from_code(self.said & 0xff), rule: (self.said >> 8) as u8 }
    }
}
