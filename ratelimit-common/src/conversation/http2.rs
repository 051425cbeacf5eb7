//! Request counting for HTTP/2 in the clear, from a preface on. Frame headers hold type and length (RFC 9113, section
//! 4.1), so HEADERS frames are counted.

use super::clear::VERSION_AT;
use super::search::{Sought, word};
use super::{CONTINUE_BYTES, Conversation, Entered, LOST, Step, Walk, is, speaks};
use crate::packet::Frame;

/// HTTP/2's client preface, followed by zeros so that the last word can be read.
const PREFACE: [u8; 40] = *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
pub(super) const PREFACE_BYTES: u32 = 24;

const HEADER_BYTES: u32 = 9;
/// Bytes of a frame's header that hold its length and its type.
const HEAD_BYTES: u32 = 4;
const HEADERS: u32 = 1;
/// Highest frame type of RFC 9113 (CONTINUATION). The search for a frame accepts no higher type, and no length above
/// the default maximum, [`LENGTH_MAX`].
const KIND_MAX: u32 = 9;
const LENGTH_MAX: u32 = 16_384;

/// Returns whether the payload matches the preface from its byte `known` on, as far as the payload goes.
#[inline(always)]
pub(super) fn is_preface<F: Frame>(frame: &F, at: u32, end: u32, known: u32) -> bool {
    let (mut at, mut known) = (at, known);
    while known < PREFACE_BYTES
        && let Some(is) = word(frame, at, end)
    {
        // The verifier does not know how far the loop goes.
        let place = frame.forget_u32(known) as usize & 31;
        let Some(expected) = PREFACE.get(place..).and_then(<[u8]>::first_chunk) else { return false };
        let different = is ^ u64::from_le_bytes(*expected);
        // Compares only bytes that are both in the preface and in the segment.
        let bytes = (PREFACE_BYTES - known).min(end - at);
        if bytes < 8 && different << (64 - 8 * bytes) != 0 || bytes >= 8 && different != 0 {
            return false;
        }
        (at, known) = (at + 8, known + 8);
    }
    true
}

/// Returns whether a preface begins before this `/`, the byte before `next`, and goes on behind it. The payload from
/// `start` to `end` is all that is compared.
#[inline(always)]
pub(super) fn goes_on<F: Frame>(frame: &F, start: u32, next: u32, end: u32) -> bool {
    let before = if next - start <= VERSION_AT { next - start } else { VERSION_AT + 1 };
    is_preface(frame, next - before, end, VERSION_AT + 1 - before)
}

/// Returns whether this looks like a frame header. No other known protocol begins like one.
#[inline(always)]
pub(super) fn is_frame<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    at + HEADER_BYTES <= end && frame.bytes::<4>(at as usize).is_some_and(|head| may_be_head(u32::from_be_bytes(head)))
}

/// Returns whether a frame may have this length and this type.
#[inline(always)]
const fn may_be_head(head: u32) -> bool {
    head & 0xff <= KIND_MAX && head >> 8 <= LENGTH_MAX
}

impl Conversation {
    /// Consumes the part of the preface that is in the payload from `at` to `end`, and returns its length in bytes.
    /// Switches the connection back to clear text if the payload differs from the preface.
    #[inline(always)]
    pub fn preface<F: Frame>(&mut self, frame: &F, at: u32, end: u32) -> u32 {
        if self.record_left == LOST {
            self.speaks = speaks::HTTP2;
            return 0;
        }
        let known = PREFACE_BYTES.saturating_sub(self.record_left);
        if !is_preface(frame, at, end, known) {
            (self.speaks, self.record_left) = (speaks::CLEAR, 0);
            // The preface's beginning was counted. It is the beginning of a request whose first line goes on here.
            if !self.has(is::OPEN) && known <= VERSION_AT {
                self.is |= is::AHEAD;
            }
            return 0;
        }
        let here = if end - at < self.record_left { end - at } else { self.record_left };
        self.record_left -= here;
        if self.record_left == 0 {
            self.speaks = speaks::HTTP2;
        }
        here
    }

    /// Switches a clear-text connection to a preface that goes on behind the `/` of its version. The version was
    /// counted as its request. The server may not accept the preface.
    #[inline(always)]
    pub(super) const fn begin_http2(&mut self) {
        self.speaks = speaks::PREFACE;
        self.record_left = PREFACE_BYTES - VERSION_AT - 1;
        self.split_len = 0;
        self.is |= is::CUT | is::PREFACE_COUNTED;
    }

    /// Returns the number of requests that begin in this payload: its HEADERS frames, without the first, which was
    /// counted with the preface. HTTP/1 versions count too, since a server may ignore the preface. If a frame's
    /// beginning was lost, turns count too.
    #[inline(always)]
    pub fn http2<F: Walk>(&mut self, frame: &F, entered: &Entered) -> u32 {
        let fresh = entered.fresh;
        if self.record_left == LOST || self.has(is::DOUBTED) {
            self.is |= is::CUT;
        }
        let mut requests = self.headers(frame, fresh.at, fresh.end);
        if requests != 0 && self.has(is::PREFACE_COUNTED) {
            self.is &= !is::PREFACE_COUNTED;
            requests -= 1;
        }
        if requests == 0 && self.has(is::OPEN) {
            self.is |= is::PREFACE_COUNTED;
        }
        let is_turn = self.has(is::OPEN) || self.is_guessed() && self.heard_since(fresh.said) > CONTINUE_BYTES;
        let versions = frame.found(fresh.at, fresh.end, Sought::Version).count();
        let others = if versions == 0 { is_turn as u32 } else { versions };
        let requests = if requests < others { others } else { requests };
        if requests != 0 {
            self.counted(fresh.moment());
        }
        requests
    }

    /// Returns the number of HEADERS frames that begin in the payload from `at` to `end`.
    #[inline(always)]
    fn headers<F: Walk>(&mut self, frame: &F, at: u32, end: u32) -> u32 {
        if self.stays_in_record(end - at) {
            return 0;
        }
        let is_sought = self.record_left == LOST;
        let mut frames = Frames { at, end, headers: 0, is_sought, is_known: true };
        if self.split_len != 0 {
            let Some(([a, b, c, kind, _], here)) = self.join_head(frame, at, end, HEAD_BYTES) else { return 0 };
            frames.headers += (kind as u32 == HEADERS) as u32;
            frames.at += here + HEADER_BYTES - HEAD_BYTES + u32::from_be_bytes([0, a, b, c]);
        } else if !is_sought {
            frames.at += self.record_left;
        }
        let Frames { at, headers, is_known, .. } = frame.repeat((end - at) / HEADER_BYTES + 1, frames);
        if !is_known {
            self.lose();
        } else if at >= end {
            self.record_left = at - end;
        } else {
            self.keep_head(frame, at, end);
        }
        headers
    }
}

/// State of the walk over the frames that begin in one segment.
#[repr(C)]
struct Frames {
    at: u32,
    end: u32,
    headers: u32,
    /// True if the frame's position is a guess.
    is_sought: bool,
    /// False once a position holds no frame.
    is_known: bool,
}

impl Step for Frames {
    #[inline(always)]
    fn step<F: Walk>(&mut self, frame: &F) -> bool {
        if self.at + HEAD_BYTES > self.end {
            return false;
        }
        let head = frame.bytes::<4>(self.at as usize).map(u32::from_be_bytes);
        let Some(head) = head.filter(|head| !self.is_sought || may_be_head(*head)) else {
            self.is_known = false;
            return false;
        };
        self.headers = frame.forget_u32(self.headers + (head & 0xff == HEADERS) as u32);
        self.at = frame.forget_u32(self.at + HEADER_BYTES + (head >> 8));
        true
    }
}
