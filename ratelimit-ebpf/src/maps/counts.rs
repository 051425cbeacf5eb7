//! Counters of packets, bans and faults. Each CPU has cells of its own.

use ratelimit_common::layout::{Fault, NOT_CACHED, REASONS_MAX};
use ratelimit_common::verdict::Reason;

use super::{BANS_BEGUN, COUNTERS, FAULTS, forget};

/// Adds a frame, which is one packet or more, to its row. Needs no atomic operation: each CPU has its own cells, and
/// XDP does not preempt itself there.
#[inline(always)]
pub(crate) fn count(row: u32, reason: Reason, packets: u64, bytes: u64) {
    // Hides the values from the verifier, which would otherwise follow each row and reason as a separate path.
    let (row, reason) = (forget(row), forget(reason as u32) as usize);
    if reason >= REASONS_MAX {
        return;
    }
    let Some(counters) = COUNTERS.get_ptr_mut(row) else {
        fault(Fault::CountersLookup);
        return;
    };
    // SAFETY: this CPU's cells, which live as long as the map; nothing else writes them.
    let tally = unsafe { &mut (*counters).by_reason[reason] };
    tally.packets = tally.packets.wrapping_add(packets);
    tally.bytes = tally.bytes.wrapping_add(bytes);
}

/// Counts a failed map operation.
#[inline(always)]
pub(crate) fn fault(fault: Fault) {
    let _always_zero = count_in_faults(fault as u32);
}

/// Returns the result of a lookup, and counts a fault if it is missing.
#[inline(always)]
pub(super) fn or_fault<T>(found: Option<T>, missing: Fault) -> Option<T> {
    if found.is_none() {
        fault(missing);
    }
    found
}

/// Counts a refusal that found no place in the drop cache.
#[inline(always)]
pub(super) fn count_not_cached() {
    let _always_zero = count_in_faults(NOT_CACHED);
}

/// Counts one fault in this cell. A function of its own: many places call it, for few packets. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_in_faults(cell: u32) -> u32 {
    if let Some(count) = FAULTS.get_ptr_mut(cell) {
        // SAFETY: this CPU's cell, as in `count`.
        unsafe { *count = (*count).wrapping_add(1) };
    }
    0
}

/// Counts a ban that the rule with this row has begun.
#[inline(always)]
pub(crate) fn count_ban(row: u8) {
    let Some(count) = BANS_BEGUN.get_ptr_mut(row.into()) else {
        fault(Fault::BansBegunLookup);
        return;
    };
    // SAFETY: this CPU's cell, as in `count`.
    unsafe { *count = (*count).wrapping_add(1) };
}
