//! Later fragments that may be of TCP, at all rules that they may belong to: no port says which, and each may bring requests to any.
//! One rule alone would let 64 KB of requests pass for one, at the others.
//!
//! Bans and refusals of everything are left to the rule that judges, and to the first fragment, without which nothing is put together:
//! it has its port.

use ratelimit_common::hold::Cost;
use ratelimit_common::layout::{self, RULES_MAX};
use ratelimit_common::verdict::{Action, Reason, Verdict};

use crate::clock::Clock;
use crate::cost::Leaves;
use crate::decide::{enforced, lowest};
use crate::hold::charge_all;
use crate::maps::{self, Active};
use crate::packet::forget;

/// The verdict on the packet that was seen last, of which the rule that judges it has said this: it passes where every other rule that it
/// may belong to has room for it too. What is charged where the next one refuses stays charged.
///
/// The loop is here, and what it keeps elsewhere: the calls from here leave no more of the stack than they need, and to the verifier all ways
/// that lead here are one.
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
    let said = maps::pending().map_or(0, |pending| pending.fragment_verdict);
    Verdict { reason: Reason::from_code(said & 0xff), rule: (said >> 8) as u8 }
}

/// Above all numbers of rules: there is none left to hold the packet, or none that need.
const NONE: u32 = u32::MAX;
/// Likewise: there is one, which has ended.
const HAS_ENDED: u32 = u32::MAX - 1;
/// In [`maps::Pending::fragment_verdict`], with a reason's code and above it the rule's row.
const IS_SAID: u32 = 1 << 31;

/// The number of the rule that holds the packet next, after one that found this reason. Of a [`layout::Active`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn next_rule(word: u64, found: u32) -> u32 {
    let word = layout::Active(word);
    let (Some(config), Some(pending)) = (maps::config(word.generation()), maps::pending()) else { return NONE };
    let verdict = enforced(maps::rule(config, pending.fragment_rule), Reason::from_code(found));
    let is_dropped = matches!(verdict.reason.action(), Action::Drop);
    if is_dropped || pending.fragment_verdict == 0 {
        pending.fragment_verdict = IS_SAID | verdict.reason as u32 | u32::from(verdict.rule) << 8;
    }
    // Of a source that is not remembered in one rule nothing is in others.
    if is_dropped || verdict.reason == Reason::NotAdmitted {
        return NONE;
    }
    let Some(index) = lowest(pending.fragment_rules) else { return NONE };
    pending.fragment_rules &= pending.fragment_rules - 1;
    pending.fragment_rule = index;
    let until_ns = maps::rule(config, index).until_ns;
    if until_ns == 0 || Clock::new(config.wall_offset_ns).coarse().0 < until_ns { index } else { HAS_ENDED }
}

/// Charges the rule with this number, as what nobody has verified; a reason's code.
#[inline(always)]
fn charge(Active { word, .. }: Active, index: u32) -> u32 {
    let (Some(seen), Some(pending)) = (maps::seen(), maps::pending()) else { return Reason::InternalError as u32 };
    pending.judge_by(word.generation(), index);
    pending.keep_cost(Cost { bytes: seen.ip_bytes(), requests: 1, ..Cost::default() }, Leaves::Nothing);
    charge_all()
}
