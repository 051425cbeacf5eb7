//! HTTP/2 in the clear, from a preface on. Frames say by type and length what is in them (RFC 9113, section 4.1), so HEADERS are counted.

use super::search::Sought;
use super::tls::LOST;
use super::{CONTINUE_BYTES, Conversation, Fresh, Walk, is};
use crate::packet::Frame;

/// What a client begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(super) const PREFACE_BYTES: u32 = 24;
const _: () = assert!(PREFACE.len() == PREFACE_BYTES as usize);

const HEADER_BYTES: u32 = 9;
/// Of a frame's header: its length, and its type.
const HEAD_BYTES: u32 = 4;
const HEADERS: u32 = 1;
/// The last of the types of RFC 9113 (CONTINUATION), and the most that a frame has unless the server said otherwise: where a frame is looked
/// for, others are none.
const KIND_MAX: u32 = 9;
const LENGTH_MAX: u32 = 16_384;

/// Frames of one segment that are looked at: as many as fit one on Ethernet.
const FRAMES_MAX: u32 = 168;
/// The shortest HEADERS frame: its header, and one field.
const HEADERS_BYTES_MIN: u32 = 10;

/// Whether a connection begins here that speaks it.
#[inline(always)]
pub(super) fn is_preface<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    at + PREFACE_BYTES <= end
        && frame.bytes::<8>(at as usize) == PREFACE.first_chunk().copied()
        && frame.bytes::<8>(at as usize + 8) == PREFACE[8..].first_chunk().copied()
        && frame.bytes::<8>(at as usize + 16) == PREFACE.last_chunk().copied()
}

impl Conversation {
    /// How many requests begin in this payload: its HEADERS, the first of which was counted with the preface. Versions of HTTP/1 count as well,
    /// or a server that makes nothing of a preface would be asked for nothing. Where a frame's beginning was lost, so do turns.
    #[inline(always)]
    pub(super) fn http2<F: Walk>(&mut self, frame: &F, fresh: Fresh) -> u32 {
        if self.record_left == LOST || self.has(is::DOUBTED) {
            self.is |= is::CUT;
        }
        let mut requests = frame.headers(self, fresh.at, fresh.end);
        if requests != 0 && self.has(is::PREFACE_COUNTED) {
            self.is &= !is::PREFACE_COUNTED;
            requests -= 1;
        }
        if requests == 0 && self.has(is::OPEN) {
            self.is |= is::PREFACE_COUNTED;
        }
        let is_turn = self.has(is::OPEN) || self.has(is::CUT) && self.heard_since(fresh.said) > CONTINUE_BYTES;
        let versions = frame.found(fresh.at, fresh.end, Sought::Version);
        let others = if versions == 0 { is_turn as u32 } else { versions };
        let requests = if requests < others { others } else { requests };
        if requests != 0 {
            self.counted(fresh.moment());
        }
        requests
    }

    /// How many HEADERS frames begin in the payload from `at` to `end`.
    #[inline(always)]
    pub fn headers<F: Frame>(&mut self, frame: &F, at: u32, end: u32) -> u32 {
        if self.stays_in_record(end - at) {
            return 0;
        }
        let is_sought = self.record_left == LOST;
        let (mut headers, mut at) = (0, at);
        if self.split_len != 0 {
            let missing = HEAD_BYTES - (self.split_len as u32 & 3);
            let Some([a, b, c, kind, _]) = self.join_head(frame, at, end, HEAD_BYTES) else { return 0 };
            headers += (kind as u32 == HEADERS) as u32;
            at += missing + HEADER_BYTES - HEAD_BYTES + u32::from_be_bytes([0, a, b, c]);
        } else if !is_sought {
            at += self.record_left;
        }
        for _ in 0..FRAMES_MAX {
            if at >= end {
                self.record_left = at - end;
                return headers;
            }
            if at + HEAD_BYTES > end {
                self.keep_head(frame, at, end);
                return headers;
            }
            let Some(head) = frame.bytes::<4>(at as usize).map(u32::from_be_bytes) else {
                self.lose();
                return headers;
            };
            if is_sought && (head & 0xff > KIND_MAX || head >> 8 > LENGTH_MAX) {
                self.lose();
                return headers;
            }
            headers = frame.forget_u32(headers + (head & 0xff == HEADERS) as u32);
            at = frame.forget_u32(at + HEADER_BYTES + (head >> 8));
        }
        self.lose();
        headers + end.saturating_sub(at) / HEADERS_BYTES_MIN
    }
}
