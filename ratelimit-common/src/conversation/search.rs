//! Looking for a byte in a payload, a word at a time.

use super::{Walk, clear, tls};
use crate::packet::Frame;

/// How much of a segment is searched: all of it on Ethernet.
const SEARCHED_BYTES_MAX: u32 = 1536;

/// Steps of a search: a word of 8 bytes, or a byte that was looked for, in each.
const STEPS_MAX: u32 = SEARCHED_BYTES_MAX / 8 + 64;

/// The shortest request: `A / HTTP/1.1` and two lines' ends.
const REQUEST_BYTES_MIN: u32 = 16;

const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// The 8 bytes from here, the first in the lowest place, and zeros for those that are behind the end.
#[inline(always)]
pub(super) fn word<F: Frame>(frame: &F, at: u32, end: u32) -> Option<u64> {
    if at >= end {
        return None;
    }
    // What is before a payload can be read as well: headers of more than 8 bytes.
    let behind_end = (at + 8).saturating_sub(end);
    frame.bytes::<8>((at - behind_end) as usize).map(|bytes| u64::from_le_bytes(bytes) >> (8 * behind_end))
}

/// What is looked for in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sought {
    /// The version that ends the first line of a request of HTTP/1.
    Version = 0,
    /// The name of HTTP/2 among the protocols that a ClientHello offers.
    Http2 = 1,
}

impl Sought {
    /// The byte that it is found by.
    #[inline(always)]
    const fn byte(self) -> u8 {
        match self {
            Self::Version => b'/',
            Self::Http2 => b'h',
        }
    }

    /// Whether that byte, the one before `next`, is part of it, by what is around it. `start` is where the search began.
    #[inline(always)]
    pub fn is_at<F: Frame>(self, frame: &F, start: u32, next: u32, end: u32) -> bool {
        match self {
            Self::Version => clear::is_version(frame, start, next, end),
            Self::Http2 => tls::is_http2(frame, next),
        }
    }

    /// How many there are from `at` to `end`. Who fills a segment with the byte that is looked for hides nothing behind it: where the search
    /// has to end for that, as many as may be in the rest.
    #[inline(always)]
    pub fn found<F: Walk>(self, frame: &F, at: u32, end: u32) -> u32 {
        let mut count = 0;
        let (start, mut at) = (at, at);
        for _ in 0..STEPS_MAX {
            let Some(word) = word(frame, at, end) else { return count };
            let different = word ^ (EACH_BYTE * self.byte() as u64);
            // The lowest of these bits is at the first such byte; those above it may err.
            let hit = different.wrapping_sub(EACH_BYTE) & !different & TOP_BITS;
            if hit == 0 {
                at = frame.forget_u32(at + 8);
                continue;
            }
            at = frame.forget_u32(at + hit.trailing_zeros() / 8 + 1);
            if frame.is_at(self, start, at, end) {
                count = frame.forget_u32(count + 1);
            }
        }
        let searched = start + SEARCHED_BYTES_MAX;
        let end = if end < searched { end } else { searched };
        count + end.saturating_sub(at) / REQUEST_BYTES_MIN
    }
}
