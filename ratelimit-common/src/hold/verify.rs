//! Effects of a verified connection: evidence for a ban, and the number of connections that the hosts of a fleet sum.

use super::{At, GateBypass, State, by, limits, new_source_gate};
use crate::layout::Unit;
use crate::verification::{EvidenceNeeds, Side};

/// Counts a verified connection, of which this packet is the first known one. Bans the source if it was refused another
/// connection while its last ones were being opened.
#[inline(always)]
pub fn verify<S: State>(state: S) {
    let rule = state.rule();
    let _whatever = new_source_gate(state, GateBypass::VerifiedOrTooLarge);
    for (position, limit) in limits::<S>(rule, rule.own_len.into()) {
        if limit.unit != Unit::Connections as u8 {
            continue;
        }
        let _whatever = state.charge(At::new(position, Side::Evidence), 1);
        if rule.evidence.any(EvidenceNeeds::BANS) {
            state.ban_source(At::new(position, Side::Unverified).0 | by::EVIDENCE);
        }
    }
}
