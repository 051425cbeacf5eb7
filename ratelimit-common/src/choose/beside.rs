//! Later fragments that may be of TCP, at all rules that they may belong to: no port says which, and each may bring
//! requests to any. One rule alone would let 64 KB of requests pass for one, at the others.
//!
//! Bans and refusals of everything are left to the rule that judges, and to the first fragment, without which nothing
//! is put together: it has its port.

use super::{Rules, enforced, has_ended, lowest};
use crate::layout::RuleSet;
use crate::verdict::{Action, Reason, Verdict};

/// The rules that a fragment has not been held to yet, and the verdicts of the others. It passes where it is within
/// the limits of each. What is charged where the next one refuses stays charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Beside {
    /// Those that are left.
    pub rules: RuleSet,
    /// The number of the one that it is held to.
    pub rule: u32,
    /// Below [`IS_SAID`] a reason's code, and above that the row of the rule that has said it; 0 before one has.
    said: u32,
}

const IS_SAID: u32 = 1 << 31;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The rule with this number.
    Rule(u32),
    /// One that has ended: it finds [`Reason::WithinLimit`].
    Ended,
    /// Nothing: no rule is left, or none need be asked.
    Nothing,
}

impl Beside {
    /// Of a fragment that this rule judges, and these too.
    #[inline(always)]
    pub const fn new(rule: u32, beside: RuleSet) -> Self {
        Self { rules: beside, rule, said: 0 }
    }

    /// Which rule is next, after the one that it was held to has found this.
    #[inline(always)]
    pub fn next<R: Rules>(&mut self, rules: &R, found: Reason) -> Next {
        let verdict = enforced(rules.rule(self.rule), found);
        let is_dropped = matches!(verdict.reason.action(), Action::Drop);
        if is_dropped || self.said == 0 {
            self.said = IS_SAID | verdict.reason as u32 | (verdict.rule as u32) << 8;
        }
        // Of a source that is not remembered in one rule nothing is in others.
        if is_dropped || matches!(verdict.reason, Reason::NotAdmitted) {
            return Next::Nothing;
        }
        let Some(index) = lowest(rules, self.rules) else { return Next::Nothing };
        self.rules &= self.rules - 1;
        self.rule = index;
        if has_ended(rules, index) { Next::Ended } else { Next::Rule(index) }
    }

    /// The verdict of all of them.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a row has eight bits")]
    pub const fn verdict(&self) -> Verdict {
        Verdict { reason: Reason::from_code(self.said & 0xff), rule: (self.said >> 8) as u8 }
    }
}
