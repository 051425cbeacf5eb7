//! Looking for a byte in a payload, a word at a time.

use super::{Walk, clear, tls};
use crate::packet::Frame;

/// How much is searched at once: a segment on Ethernet.
const PART_BYTES: u32 = 1536;

/// How many of these a segment has at most: jumbo frames have six.
pub(super) const PARTS_MAX: u32 = 6;

/// Steps of a search: a word of 8 bytes, or a byte that was looked for, in each.
const STEPS_MAX: u32 = PART_BYTES / 8 + 64;

/// The shortest request: `A / HTTP/1.1` and two lines' ends.
const REQUEST_BYTES_MIN: u32 = 16;

const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const TOP_BITS: u64 = 0x8080_8080_8080_8080;
/// What tells a capital from a small letter.
const EVERY_CAPITAL: u64 = EACH_BYTE * 0x20;

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

/// The top bit of each byte of the word that is this one.
#[inline(always)]
const fn equal(word: u64, byte: u8) -> u64 {
    let different = word ^ (EACH_BYTE * byte as u64);
    // Each byte by itself: nothing is carried on to the next.
    !(((different & !TOP_BITS) + !TOP_BITS) | different | !TOP_BITS)
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
    /// Where in this word it may be: the top bit of each byte that it is found by. `last` are the two bytes before the word, and `unseen` is
    /// which of the word's bytes have none of the payload before them. What is before a byte is looked at too: slashes alone are many in
    /// dates and paths, and each would cost a step.
    #[inline(always)]
    const fn hits(self, word: u64, last: u32, unseen: u64) -> u64 {
        let (before, before_that) = ((word << 8) | (last as u64 >> 8), (word << 16) | last as u64);
        match self {
            Self::Version => {
                let (before, before_that) = (before | EVERY_CAPITAL, before_that | EVERY_CAPITAL);
                equal(word, b'/') & (equal(before, b'p') & equal(before_that, b't') | unseen)
            }
            Self::Http2 => equal(word, b'h') & (equal(before, 2) | unseen),
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

    /// How many there are from `at` to `end`, where a payload begins and ends.
    #[inline(always)]
    pub fn found<F: Walk>(self, frame: &F, at: u32, end: u32) -> u32 {
        let mut count = 0;
        for part in 0..PARTS_MAX {
            let from = at + part * PART_BYTES;
            if from >= end {
                break;
            }
            count = frame.forget_u32(count + frame.found_in_part(at, from, end, self));
        }
        count
    }

    /// How many there are in the part that begins at `at`, of a payload from `start` to `end`. Who fills a segment with the byte that is looked
    /// for hides nothing behind it: where the search has to end for that, as many as may be in the rest.
    #[inline(always)]
    pub fn found_in_part<F: Walk>(self, frame: &F, start: u32, at: u32, end: u32) -> u32 {
        let part_end = at + PART_BYTES;
        let part_end = if part_end < end { part_end } else { end };
        // What is before the payload may be in the segment before. Headers of more than two bytes can be read there.
        let before = frame.bytes::<2>(at.saturating_sub(2) as usize).unwrap_or_default();
        let (mut count, mut at, mut last, mut unseen) =
            (0, at, u32::from(u16::from_le_bytes(before)), if at == start { 0xffff } else { 0 });
        for _ in 0..STEPS_MAX {
            if at >= part_end {
                return count;
            }
            let Some(word) = word(frame, at, end) else { return count };
            let hit = self.hits(word, last, unseen as u64);
            if hit == 0 {
                at = frame.forget_u32(at + 8);
                last = frame.forget_u32((word >> 48) as u32);
                unseen = frame.forget_u32(0);
                continue;
            }
            let before_hit = hit.trailing_zeros() / 8;
            at = frame.forget_u32(at + before_hit + 1);
            if at > part_end {
                return count;
            }
            unseen = frame.forget_u32((unseen >> (8 * (before_hit & 3))) >> 8);
            // Nothing is found twice within two bytes.
            last = 0;
            if frame.is_at(self, start, at, end) {
                count = frame.forget_u32(count + 1);
            }
        }
        count + part_end.saturating_sub(at) / REQUEST_BYTES_MIN
    }
}
