//! HTTP/1 in the clear: where requests begin, also behind one another in one segment.

use super::search::{EACH_BYTE, Sought, TOP_BITS, word};
use super::{CONTINUE_BYTES, Conversation, Fresh, Walk, is};
use crate::packet::Frame;

/// Whether a request begins here: a method, then what a target begins with.
#[inline(always)]
pub(super) fn begins<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    match word(frame, at, end) {
        Some(word) => begins_with(word),
        None => false,
    }
}

/// Whether a request begins behind this line's end, or may do so where the segment ends within its method: then behind an
/// empty line.
#[inline(always)]
pub(super) fn begins_behind<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    let Some(word) = word(frame, at, end) else { return false };
    let is_cut_off = at + letters(word) == end;
    begins_with(word) || is_cut_off && frame.bytes::<4>(at as usize - 4) == Some(*b"\r\n\r\n")
}

/// 3 to 7 letters, a space, and `/`, `*` or a scheme behind it where that is among the 8 bytes, and in the segment.
#[inline(always)]
const fn begins_with(word: u64) -> bool {
    let letters = letters(word);
    if letters < 3 || letters > 7 {
        return false;
    }
    let behind = word >> (8 * letters);
    if behind & 0xff != b' ' as u64 {
        return false;
    }
    let target = (behind >> 8) & 0xff;
    target == 0 || target == b'/' as u64 || target == b'*' as u64 || target == b'h' as u64
}

/// How many capital letters the word begins with.
#[inline(always)]
const fn letters(word: u64) -> u32 {
    // 'A' to 'Z' is 0x41 to 0x5a: with 0x3f added the top bit is set from 'A' on, with 0x25 from behind 'Z' on.
    let low = word & !TOP_BITS;
    let is_letter = (low + EACH_BYTE * 0x3f) & !(low + EACH_BYTE * 0x25) & !word & TOP_BITS;
    (!is_letter & TOP_BITS).trailing_zeros() / 8
}

impl Conversation {
    #[inline(always)]
    pub(super) fn http1<F: Walk>(&mut self, frame: &F, fresh: Fresh) -> u32 {
        let heard = self.heard_since(fresh.acknowledged);
        let is_start = begins(frame, fresh.at, fresh.end);
        if is_start || self.has(is::PIPELINED) {
            let requests = is_start as u32 + frame.found(fresh.at, fresh.end, Sought::Request);
            if requests > 1 {
                self.is |= is::PIPELINED;
            }
            if requests != 0 {
                self.counted(fresh);
                return requests;
            }
        }
        if heard == 0 {
            return 0;
        }
        // Whatever a turn begins with is a request, so that to cut its first line in two is no way around, unless the server has
        // said no more than that the body may come, or a web socket's frames are what goes on here.
        let requests = (heard > CONTINUE_BYTES && !is_web_socket(frame, fresh)) as u32;
        self.counted(fresh);
        requests
    }

    #[inline(always)]
    fn counted(&mut self, fresh: Fresh) {
        self.is &= !(is::OPEN | is::FIRST);
        self.heard = fresh.acknowledged;
    }
}

/// A frame of a web socket, from a client: no reserved bit but that of compression, an opcode that is one, masked (RFC 6455,
/// section 5.2).
#[inline(always)]
fn is_web_socket<F: Frame>(frame: &F, fresh: Fresh) -> bool {
    if fresh.len() < 6 {
        return false;
    }
    match frame.bytes::<2>(fresh.at as usize) {
        Some([first, second]) => {
            let opcode = first & 0x0f;
            first & 0x30 == 0 && (opcode <= 2 || (8..=10).contains(&opcode)) && second & 0x80 != 0
        }
        None => false,
    }
}
