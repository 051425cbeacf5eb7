//! Placement of a segment in its connection, by the server's socket or by the client's own numbers.

use super::{Conversation, LOST, Peer, speaks};
use crate::packet::Segment;

/// Distance in bytes that no window in use reaches. A segment farther away belongs to another connection on the same
/// ports, or is invalid.
pub(super) const FAR_BYTES: u32 = 1 << 23;

/// Position of a segment relative to what was seen of its connection.
pub(super) enum Place {
    /// The segment begins a connection. The field is the number of bytes before its start.
    Begins(u32),
    /// Nothing is known of the bytes before the segment.
    Middle,
    /// The connection's first payload has not arrived yet, and this segment comes after it.
    MiddleOfFirst,
    /// The server has all of the segment.
    Repeated,
    /// The segment lies beyond the server's window.
    Outside,
    /// The segment continues where the last one ended. The field is the number of bytes at its start that are not new.
    Next(u32),
    /// The segment comes after a hole of `left_out` bytes. The server has `received` bytes of its start.
    Ahead { left_out: u32, received: u32 },
    /// The segment lies in the hole.
    InHole,
    /// Retransmission of bytes that were seen but that the server does not have: they were lost, or are still on their
    /// way. The field is the number of bytes at its start that the server has.
    Again(u32),
}

/// Returns whether `count` is at or after `other`, modulo 2^32.
#[inline(always)]
pub(super) const fn passed(count: u32, other: u32) -> bool {
    count.wrapping_sub(other) < 1 << 31
}

/// Returns how much of a record is left after `bytes` bytes that were not seen; [`LOST`] if that is unknown.
#[inline(always)]
const fn without(record_left: u32, bytes: u32) -> u32 {
    if bytes == 0 {
        record_left
    } else if record_left != LOST && bytes <= record_left {
        record_left - bytes
    } else {
        LOST
    }
}

impl Conversation {
    /// Places a segment by what the server's socket has received and accepts.
    #[inline(always)]
    pub(super) fn place(&self, segment: &Segment, is_known: bool, peer: Peer) -> Place {
        let (sequence, len) = (segment.sequence, segment.payload_bytes);
        if passed(peer.received, sequence.wrapping_add(len)) {
            return Place::Repeated;
        }
        if !passed(peer.window_end, sequence) {
            return Place::Outside;
        }
        let is_behind = passed(peer.received, sequence);
        let received = if is_behind { peer.received.wrapping_sub(sequence) } else { 0 };
        if peer.is_first != 0 {
            // Any earlier state belongs to another connection, or to an earlier transmission of this segment.
            if is_behind {
                return Place::Begins(received);
            }
            if !is_known || self.begins_at != peer.received {
                return Place::MiddleOfFirst;
            }
        } else if !is_known {
            return Place::Middle;
        }
        let start = sequence.wrapping_add(received);
        let ahead = start.wrapping_sub(self.next);
        if ahead == 0 {
            Place::Next(received)
        } else if ahead < 1 << 31 {
            Place::Ahead { left_out: ahead, received }
        } else if received == 0 && self.is_in_hole(sequence) && passed(self.hole_end, sequence.wrapping_add(len)) {
            Place::InHole
        } else {
            Place::Again(received)
        }
    }

    /// Places a segment by the client's own sequence numbers.
    #[inline(always)]
    pub(super) fn place_by_client(&self, segment: &Segment, is_known: bool) -> Place {
        let (sequence, len) = (segment.sequence, segment.payload_bytes);
        let (ahead, behind) = (sequence.wrapping_sub(self.next), self.next.wrapping_sub(sequence));
        if !is_known || ahead > FAR_BYTES && behind > FAR_BYTES {
            Place::Begins(0)
        } else if ahead != 0 && ahead <= FAR_BYTES {
            Place::Ahead { left_out: ahead, received: 0 }
        } else if self.is_in_hole(sequence) {
            Place::InHole
        } else if behind < len {
            Place::Next(behind)
        } else {
            Place::Repeated
        }
    }

    #[inline(always)]
    const fn is_in_hole(&self, sequence: u32) -> bool {
        self.hole != self.hole_end && passed(sequence, self.hole) && !passed(sequence, self.hole_end)
    }

    /// Records a hole of `bytes` bytes before this segment. If the server `tells` what it has, older holes are dropped:
    /// their bytes were seen, and may be retransmitted.
    #[inline(always)]
    pub(super) fn leave_out(&mut self, bytes: u32, sequence: u32, end: u32, tells: bool) {
        if tells || self.hole == self.hole_end {
            self.hole = self.next;
        }
        self.hole_end = sequence;
        self.next = end;
        self.record_left = if self.speaks == speaks::PREFACE { LOST } else { without(self.record_left, bytes) };
        self.split_len = 0;
        self.leave_out_finished();
    }

    /// Records a segment that fills part of the hole.
    #[inline(always)]
    pub(super) const fn fill(&mut self, sequence: u32, end: u32) {
        if sequence == self.hole {
            self.hole = if passed(end, self.hole_end) { self.hole_end } else { end };
        }
        if !passed(self.next, end) {
            self.next = end;
            self.lose();
        }
    }

    /// Records a retransmission that the server does not have. The record boundaries behind it are unknown.
    #[inline(always)]
    pub(super) const fn doubt(&mut self, end: u32) {
        if !passed(self.next, end) {
            self.next = end;
        }
        self.lose();
    }
}
