//! Where a segment belongs among what was sent before: by what the server's TCP says, or by what the client does.

use super::{Conversation, LOST, Peer, speaks};
use crate::packet::Segment;

/// Farther from what is expected than any window that is in use: another connection with the same ports, or nonsense.
pub(super) const FAR_BYTES: u32 = 1 << 23;

/// Where a segment belongs among what was sent before.
pub(super) enum Place {
    /// A connection begins with it, behind so many bytes that are of none.
    Begins(u32),
    /// Nothing is known of what was before it.
    Middle,
    /// A connection's first payload is still on its way, and this is some of what comes after that.
    MiddleOfFirst,
    /// The server has it.
    Repeated,
    /// The server does not take it.
    Outside,
    /// It goes on where the last one ended, or overlaps it by so many bytes.
    Next(u32),
    /// It leaves out so many bytes; and the server has so many of its first.
    Ahead { left_out: u32, received: u32 },
    /// Among what was left out.
    InHole,
    /// It was seen before, but for so many bytes at its beginning the server does not have it: what was seen then did
    /// not arrive there, or has not yet.
    Again(u32),
}

/// Whether `count` is at or behind `other`, on the circle that sequence numbers are.
#[inline(always)]
pub(super) const fn passed(count: u32, other: u32) -> bool {
    count.wrapping_sub(other) < 1 << 31
}

/// What of a record is left behind `bytes` that were not seen.
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
    /// By what the server has and takes.
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
            // Whatever was known before is of another connection, or of what this one sends for the first time once
            // more.
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

    /// By what the client says alone.
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

    /// A segment comes that leaves out so many bytes. Where the server `tells` what it has, no older ones are kept:
    /// what is between them was seen, and may come again.
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

    /// A segment comes that was left out.
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

    /// A segment comes again that the server does not have: nothing is known of where records begin behind it.
    #[inline(always)]
    pub(super) const fn doubt(&mut self, end: u32) {
        if !passed(self.next, end) {
            self.next = end;
        }
        self.lose();
    }
}
