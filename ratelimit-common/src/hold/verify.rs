//! What a verified connection leaves: evidence for a ban, and what the hosts of a fleet sum of a limit of connections.

use super::{At, GateBypass, State, by, limits, new_source_gate};
use crate::layout::Unit;
use crate::verification::{EvidenceNeeds, Side};

/// Counts a verified connection, of which this packet is the first that is known, and bans the source where it was
/// refused another while its last ones were being opened.
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
