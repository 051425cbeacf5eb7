//! HTTP/1 in the clear: where requests begin, also behind one another in one segment.

use super::search::{EACH_BYTE, Sought, TOP_BITS, word};
use super::{CONTINUE_BYTES, Conversation, Fresh, Walk, is};
use crate::packet::Frame;

/// Whether a connection that begins so may speak HTTP/1: with a method, a known one or not, or with the empty line that servers
/// skip.
#[inline(always)]
pub(super) fn may_begin<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    let Some(word) = word(frame, at, end) else { return false };
    let letters = letters(word);
    let is_method = letters == 8 || letters >= 3 && (word >> (8 * letters)) & 0xff == b' ' as u64;
    is_method || matches!(word.to_le_bytes()[0], b'\r' | b'\n')
}

/// Whether a request begins here: one of the methods that servers of pages and of interfaces take, a space, and what a target
/// begins with where that is among the 8 bytes, and in the segment.
#[inline(always)]
pub(super) fn begins<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    match word(frame, at, end) {
        Some(word) => begins_with(word),
        None => false,
    }
}

/// Whether a request begins behind this line's end: only behind an empty line, or where what is before it is in another segment.
/// Where this one ends within the method, its first letters will do.
#[inline(always)]
pub(super) fn begins_behind<F: Frame>(frame: &F, start: u32, at: u32, end: u32) -> bool {
    let Some(word) = word(frame, at, end) else { return false };
    let is_far_in = at >= start + 4;
    let is_behind_empty_line = is_far_in
        && match frame.bytes::<4>(at as usize - 4) {
            Some([_, before, line, _]) => before == b'\n' && line == b'\r' || line == b'\n',
            None => false,
        };
    if begins_with(word) {
        is_behind_empty_line || !is_far_in
    } else {
        is_behind_empty_line && at + letters(word) == end
    }
}

#[inline(always)]
const fn begins_with(word: u64) -> bool {
    let letters = letters(word);
    if letters < 3 || letters > 7 {
        return false;
    }
    let (method, behind) = (word & ((1 << (8 * letters)) - 1), word >> (8 * letters));
    let target = (behind >> 8) & 0xff;
    let is_known = method == named(b"GET")
        || method == named(b"POST")
        || method == named(b"HEAD")
        || method == named(b"PUT")
        || method == named(b"OPTIONS")
        || method == named(b"DELETE")
        || method == named(b"PATCH")
        || method == named(b"CONNECT")
        || method == named(b"TRACE");
    is_known && behind & 0xff == b' ' as u64 && (letters == 7 || target == 0 || target > b' ' as u64)
}

/// A method's letters, as a word has them.
const fn named(method: &[u8]) -> u64 {
    let (mut word, mut at) = (0, method.len());
    while at > 0 {
        at -= 1;
        word = word << 8 | method[at] as u64;
    }
    word
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
        if is_start || self.has(is::OPEN) || self.has(is::PIPELINED) {
            let found = is_start as u32 + frame.found(fresh.at, fresh.end, Sought::Request);
            let requests = if found == 0 { self.has(is::OPEN) as u32 } else { found };
            if requests > 1 {
                self.is |= is::PIPELINED;
            }
            if requests != 0 {
                self.counted(fresh.acknowledged);
                return requests;
            }
        }
        if heard == 0 {
            return 0;
        }
        // Whatever a turn begins with is a request, so that to cut its first line in two is no way around, unless the server has
        // said no more than that the body may come, or a web socket's frames are what goes on here.
        let requests = (heard > CONTINUE_BYTES && !is_web_socket(frame, fresh)) as u32;
        self.counted(fresh.acknowledged);
        requests
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
