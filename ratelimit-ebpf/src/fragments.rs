//! Later fragments that may be TCP, judged by all rules that they may belong to. `ratelimit_common::choose` makes the
//! decisions.

use ratelimit_common::choose::Next;
use ratelimit_common::hold::{Charges, CheckResult, State as _};
use ratelimit_common::layout::{self, RULES_MAX};
use ratelimit_common::verdict::{Reason, Verdict};

use crate::charges::Leaves;
use crate::decide::Maps;
use crate::hold::Held;
use crate::maps::{self, Active};
use crate::packet::forget;

/// Returns the verdict on the current packet after its first rule returned `reason`. The packet passes if it is within
/// the limits of every other rule that it may belong to. Charges of earlier rules stay if a later rule refuses.
///
/// The loop is here and its state elsewhere. Calls from here use as little stack as possible, and the verifier sees one
/// path for all earlier ones.
#[inline(always)]
pub(crate) fn verdict(active: Active, reason: Reason) -> Verdict {
    let mut next = next_rule(active.word.0, forget(reason as u32));
    for _ in 0..RULES_MAX {
        if next == NONE {
            break;
        }
        let found = if next == HAS_ENDED { Reason::WithinLimit as u32 } else { charge(active, next) };
        next = next_rule(active.word.0, found);
    }
    maps::deferred().map_or(Verdict::unruled(Reason::InternalError), |deferred| deferred.beside.verdict())
}

/// Code above all rule numbers: no rule is left to judge the packet, or none needs to.
const NONE: u32 = u32::MAX;
/// Code above all rule numbers: the next rule has ended.
const HAS_ENDED: u32 = u32::MAX - 1;
/// Returns the number of the rule that judges the packet next, after a rule that returned the reason `found`. `word` is
/// a [`layout::Active`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn next_rule(word: u64, found: u32) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(deferred)) = (maps::config(word.generation()), maps::deferred()) else { return NONE };
    match deferred.beside.next(&Maps { active: Active { config, word }, now: deferred.now() }, maps::reason(found)) {
        Next::Rule(index) => index,
        Next::Ended => HAS_ENDED,
        Next::Nothing => NONE,
    }
}

/// Charges the packet as unverified traffic to the rule with this number. Returns a reason code.
#[inline(always)]
fn charge(Active { word, .. }: Active, index: u32) -> u32 {
    let (Some(parsed), Some(deferred)) = (maps::parsed(), maps::deferred()) else {
        return Reason::InternalError as u32;
    };
    deferred.judge_by(word.generation(), index);
    deferred.keep_charges(Charges { bytes: parsed.ip_bytes(), requests: 1, ..Charges::default() }, Leaves::Nothing);
    let checked = CheckResult::of(Reason::WithinLimit);
    Held::packet().map_or(Reason::InternalError as u32, |held| held.charge_all(checked).0 as u32)
}
