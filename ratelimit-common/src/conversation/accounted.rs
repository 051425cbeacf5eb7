//! What the guard counts of segments that begin no request; and what it does not, so that nothing has to be asked of
//! it.

use super::{Conversation, LOST, also, is, speaks};
use crate::packet::{Frame, Segment};

/// Bytes of long segments of which the guard counts one segment. // 1 GB is 8 192
pub const ACCOUNTED_BYTES: u32 = 1 << ACCOUNTED_SHIFT;
const ACCOUNTED_SHIFT: u32 = 17;

/// Least payload of a long segment: the guard counts each shorter one.
// Writes of 16 and 64 KB end in segments of 346 to 478 bytes where others have 1448 or 1460.
pub const SHORT_BYTES: u32 = 256;

/// Whether it is the one in [`ACCOUNTED_BYTES`] of what is long.
#[inline(always)]
const fn is_one_in_many(segment: &Segment) -> bool {
    let end = segment.sequence.wrapping_add(segment.payload_bytes);
    segment.sequence >> ACCOUNTED_SHIFT != end >> ACCOUNTED_SHIFT
}

/// The top bits of four bytes.
const TOP_BITS: u32 = 0x8080_8080;
/// The third byte of a ClientHello in the form of SSL 2, which some servers take before TLS 1.3; the first is of 128
/// or more.
const SSL2_CLIENT_HELLO: u8 = 1;

/// Whether a first request may begin here: in the clear and under TLS its first bytes are below 128, but for an old
/// form of TLS. // so are those of one in 16 segments of data
#[inline(always)]
fn may_begin_a_connection<F: Frame>(frame: &F, at: u32) -> bool {
    let Some(bytes) = frame.bytes::<4>(at as usize) else { return true };
    u32::from_ne_bytes(bytes) & TOP_BITS == 0 || bytes[2] == SSL2_CLIENT_HELLO
}

impl Conversation {
    /// Goes on by a segment that lies whole in the record of TLS that is under way, and is not short: what the server
    /// says of it changes nothing then. Else false, and nothing is done. Where it is one that the guard counts, the
    /// next one that does not go on so is counted for it.
    ///
    /// A client may end its connection in the middle of a record, and begin another between the same ports whose first
    /// byte has the number of the next one. So the client must not have heard more since: another connection's server
    /// has other numbers. And what it sends must not look like what a connection begins with, as servers before Linux
    /// 6.1.69 take what acknowledges older numbers.
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

    /// Whether the guard counts the segment by which it has come here, and which begins no request: each that is
    /// short and of no body, or by which it `went_on` nowhere, as it was sent again; and of those by which a stream goes
    /// on one in [`ACCOUNTED_BYTES`]. None before the first request, where it is known what that is: the server ends a handshake
    /// that goes on for long by itself.
    #[inline(always)]
    pub const fn is_unaccounted(&mut self, segment: &Segment, went_on: bool) -> bool {
        let is_due = self.also & also::UNACCOUNTED != 0;
        self.also &= !also::UNACCOUNTED;
        let is_handshake = self.has(is::OPEN) && self.record_left != LOST;
        // The server's answers bound what a body may hide: see [`Conversation::is_answered`].
        let is_short = segment.payload_bytes < SHORT_BYTES && !self.has(is::IN_BODY);
        (!went_on || is_short || is_one_in_many(segment) || is_due) && !is_handshake
    }
}
