//! Handling of record and frame headers that the end of a segment cuts in two.

use super::Conversation;
use crate::packet::Frame;

impl Conversation {
    /// Keeps the beginning of a header, at most 4 bytes, whose end is in the next segment.
    #[inline(always)]
    pub(super) fn keep_head<F: Frame>(&mut self, frame: &F, at: u32, end: u32) {
        self.lose();
        // Every payload follows more than 4 bytes of headers, so reading before it is safe.
        if let Some(last) = frame.bytes::<4>(end.saturating_sub(4) as usize) {
            #[expect(clippy::cast_possible_truncation, reason = "at most 4")]
            let split_len = (end - at) as u8;
            (self.split, self.split_len, self.record_left) = (last, split_len, 0);
        }
    }

    /// Joins the kept beginning of a header with this segment. Returns the header's first `bytes` bytes (at most 5), and
    /// the number of them in this segment. Returns None and keeps the new bytes if the header continues in the next segment.
    #[inline(always)]
    pub(super) fn join_head<F: Frame>(&mut self, frame: &F, at: u32, end: u32, bytes: u32) -> Option<([u8; 5], u32)> {
        let missing = bytes.saturating_sub(self.split_len as u32);
        let here = if end - at < missing { end - at } else { missing };
        let Some(more) = frame.bytes::<4>((at + here).saturating_sub(4) as usize) else {
            self.lose();
            return None;
        };
        let bits = 8 * (here & 7);
        let more = u32::from_be_bytes(more) as u64 & ((1 << bits) - 1);
        let head = (u32::from_be_bytes(self.split) as u64) << bits | more;
        if here < missing {
            #[expect(clippy::cast_possible_truncation, reason = "the newest 4 bytes, and fewer than 5")]
            let (split, here) = (head as u32, here as u8);
            self.split = split.to_be_bytes();
            self.split_len += here;
            return None;
        }
        self.split_len = 0;
        let [_, _, _, head @ ..] = (head << (8 * (5 - bytes))).to_be_bytes();
        Some((head, here))
    }
}
