//! The only place that counts verdicts.

use ratelimit_common::layout::{INTERFACE_UNKNOWN, counters_index};
use ratelimit_common::packet::Frame as _;
use ratelimit_common::verdict::{Reason, Verdict};

use crate::maps::{self, Active};
use crate::packet::PacketFrame;

/// Counts the packet under its interface, rule and reason.
#[inline(always)]
pub(crate) fn listed(active: Active, frame: &PacketFrame<'_>, verdict: Verdict) {
    count(position(active, frame.interface_index()), frame, verdict);
}

/// Counts a packet for which the list of interfaces is not available.
#[inline(always)]
pub(crate) fn unlisted(frame: &PacketFrame<'_>, verdict: Verdict) -> Verdict {
    count(INTERFACE_UNKNOWN, frame, verdict);
    verdict
}

#[inline(always)]
fn count(interface: usize, frame: &PacketFrame<'_>, verdict: Verdict) {
    let bytes = match verdict.reason {
        // The parser may not have asked for the whole length of these frames.
        Reason::NotIp | Reason::Malformed | Reason::InternalError | Reason::TooManyTags | Reason::DryRun => {
            frame.len(usize::MAX)
        }
        Reason::NotProtected
        | Reason::NotCounted
        | Reason::WithinLimit
        | Reason::Exempt
        | Reason::StateFull
        | Reason::OverLimit
        | Reason::Contended
        | Reason::Banned
        | Reason::Denied
        | Reason::TooManyHeaders
        | Reason::NewSourceBudget
        | Reason::Guard
        | Reason::Reset
        | Reason::Page
        | Reason::NotAdmitted => frame.known_len(),
    };
    let (packets, bytes) = frame.counted(bytes);
    maps::count(counters_index(interface, verdict.rule), verdict.reason, packets, bytes);
}

/// Returns the interface's row. // the first comparison hits where one interface is protected
#[inline(always)]
fn position(active: Active, interface_index: u32) -> usize {
    for (position, &index) in active.config.interfaces.iter().enumerate() {
        if index == interface_index {
            return position;
        }
    }
    INTERFACE_UNKNOWN
}
