//! Guard accounting for segments that begin no request, and the fast path for segments that need no socket look-up.

use super::{Conversation, LOST, also, is, speaks};
use crate::packet::{Frame, Segment};

/// Bytes of long segments for which the guard counts one segment: 128 KiB, so 1 GiB counts as 8192 segments.
pub const ACCOUNTED_BYTES: u32 = 1 << ACCOUNTED_SHIFT;
const ACCOUNTED_SHIFT: u32 = 17;

/// Smallest payload of a long segment, in bytes. The guard counts each shorter segment.
// Writes of 16 and 64 KB end in segments of 346 to 478 bytes; the other segments have 1448 or 1460 bytes.
pub const SHORT_BYTES: u32 = 256;

/// Returns whether this segment is the one to count of each [`ACCOUNTED_BYTES`]: it crosses a multiple of them.
#[inline(always)]
const fn is_one_in_many(segment: &Segment) -> bool {
    let end = segment.sequence.wrapping_add(segment.payload_bytes);
    segment.sequence >> ACCOUNTED_SHIFT != end >> ACCOUNTED_SHIFT
}

/// Mask of the top bits of four bytes.
const TOP_BITS: u32 = 0x8080_8080;
/// Third byte of a ClientHello in SSL 2 format, which some servers accept before TLS 1.3. Its first byte is 128 or
/// more.
const SSL2_CLIENT_HELLO: u8 = 1;

/// Returns whether a connection's first request may begin here. The first bytes of clear text and TLS are below 128,
/// except in an SSL 2 ClientHello. One in 16 segments of random data passes this test too.
#[inline(always)]
fn may_begin_a_connection<F: Frame>(frame: &F, at: u32) -> bool {
    let Some(bytes) = frame.bytes::<4>(at as usize) else { return true };
    u32::from_ne_bytes(bytes) & TOP_BITS == 0 || bytes[2] == SSL2_CLIENT_HELLO
}

impl Conversation {
    /// Updates the state by a long segment that lies entirely in the current TLS record. The socket's state changes
    /// nothing then. Otherwise returns false and changes nothing. If the guard has to count such a segment, the next
    /// segment that takes the slow path is counted for it.
    ///
    /// A client may close its connection in the middle of a record, and open another one on the same ports that begins
    /// at the next sequence number. Two checks rule that out. The acknowledgement must be unchanged, since another
    /// connection's server has other numbers. The payload must not look like the start of a connection, since servers
    /// before Linux 6.1.69 accept segments that acknowledge older numbers.
    #[inline(always)]
    pub fn goes_on<F: Frame>(&mut self, frame: &F, segment: &Segment) -> bool {
        let bytes = segment.payload_bytes;
        let is_known =
            self.speaks == speaks::TLS && self.is & (is::TAKEN | is::UNSEEN | is::CUT | is::DOUBTED) == is::TAKEN;
        if !is_known
            || self.also & (also::ANSWERED | also::IN_FRAGMENTS) != also::ANSWERED
            || segment.is_urgent()
            || segment.sequence != self.next
            || segment.acknowledged != self.acknowledged
            || bytes < SHORT_BYTES
            || may_begin_a_connection(frame, segment.payload_at)
            || !self.stays_in_record(bytes)
        {
            return false;
        }
        if is_one_in_many(segment) {
            self.also |= also::UNACCOUNTED;
        }
        self.next = segment.sequence.wrapping_add(bytes);
        true
    }

    /// Returns whether the guard counts a segment that begins no request. Counted are short segments outside a body,
    /// retransmissions (`went_on` is false), and one long segment in each [`ACCOUNTED_BYTES`]. Nothing is counted
    /// during a handshake that is known as such, since the server ends a long one itself.
    #[inline(always)]
    pub const fn is_unaccounted(&mut self, segment: &Segment, went_on: bool) -> bool {
        let is_due = self.also & also::UNACCOUNTED != 0;
        self.also &= !also::UNACCOUNTED;
        let is_handshake = self.has(is::OPEN) && self.record_left != LOST;
        // The server's answers bound the number of requests that a body may hide: see [`Conversation::is_answered`].
        let is_short = segment.payload_bytes < SHORT_BYTES && !self.has(is::IN_BODY);
        (!went_on || is_short || is_one_in_many(segment) || is_due) && !is_handshake
    }

    /// Returns whether a segment in which no request was found may still be one. It is short, and under TLS outside a
    /// body: HTTP/2 requests can be as short as the control frames that are not counted.
    #[inline(always)]
    pub const fn may_hide_request(&self, segment: &Segment) -> bool {
        self.shares_records() && segment.payload_bytes < SHORT_BYTES && !self.has(is::IN_BODY)
    }
}
