//! Later fragments that may be of TCP, at all rules that they may belong to. What is decided by is in
//! `ratelimit_common::choose`.

use ratelimit_common::choose::Next;
use ratelimit_common::hold::{Charges, CheckResult, State as _};
use ratelimit_common::layout::{self, RULES_MAX};
use ratelimit_common::verdict::{Reason, Verdict};

use crate::charges::Leaves;
use crate::decide::Maps;
use crate::hold::Held;
use crate::maps::{self, Active};
use crate::packet::forget;

/// The verdict on the packet at hand, of which the rule that judges it has said this: it passes where it is within
/// the limits of every other rule that it may belong to. What is charged where the next one refuses stays charged.
///
/// The loop is here, and what it keeps elsewhere: the calls from here leave no more of the stack than they need, and
/// to the verifier all ways that lead here are one.
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

/// Above all numbers of rules: there is none left to hold the packet, or none that need.
const NONE: u32 = u32::MAX;
/// Likewise: there is one, which has ended.
const HAS_ENDED: u32 = u32::MAX - 1;
/// The number of the rule that holds the packet next, after one that found this reason. Of a [`layout::Active`].
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

/// Charges the rule with this number, as unverified traffic; a reason's code.
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
