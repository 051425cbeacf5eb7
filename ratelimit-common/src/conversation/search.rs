//! Looking for versions and names in a payload, a word at a time.

use super::{Step, Walk, clear, tls};
use crate::packet::Frame;

const WORD_BYTES: u32 = 8;

/// Words of a step, and places in them that are found and are not likely.
const WORDS: u32 = 8;

/// The shortest request: `A / HTTP/1.1` and two lines' ends.
const REQUEST_BYTES_MIN: u32 = 16;

/// Places that look like what is sought and are not: what is before a payload's first two bytes is not known, and a few names end like it.
const OTHERS_MAX: u32 = 8;

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

/// The top bit of each byte of the word that is this one.
#[inline(always)]
const fn equal(word: u64, byte: u8) -> u64 {
    let different = word ^ (EACH_BYTE * byte as u64);
    // Each byte by itself: nothing is carried on to the next.
    !(((different & !TOP_BITS) + !TOP_BITS) | different | !TOP_BITS)
}

/// How the names before a version end.
const HTTP_ENDS: u16 = u16::from_be_bytes(*b"tp");
const RTSP_ENDS: u16 = u16::from_be_bytes(*b"sp");
const ICE_ENDS: u16 = u16::from_be_bytes(*b"ce");

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
    /// What it is found by.
    #[inline(always)]
    const fn byte(self) -> u8 {
        match self {
            Self::Version => b'/',
            Self::Http2 => b'h',
        }
    }

    /// Whether it may be behind these two bytes: others are many in dates and paths, and each would cost a step.
    #[inline(always)]
    const fn is_likely(self, before: [u8; 2]) -> bool {
        match self {
            Self::Version => matches!(u16::from_be_bytes(before) | 0x2020, HTTP_ENDS | RTSP_ENDS | ICE_ENDS),
            Self::Http2 => before[1] == 2,
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

    /// How many there are from `at` to `end`, where a payload begins and ends. Steps are taken for its bytes, for each request that there may
    /// be, and for some that look like one. Who fills a payload with these hides nothing behind them: as many count as may be in the rest.
    #[inline(always)]
    pub fn found<F: Walk>(self, frame: &F, at: u32, end: u32) -> u32 {
        let bytes = end.saturating_sub(at);
        let steps = bytes.div_ceil(WORDS) + bytes / REQUEST_BYTES_MIN + OTHERS_MAX;
        let search = frame.repeat(steps, Search { sought: self, start: at, at, end, count: 0 });
        search.count + end.saturating_sub(search.at).div_ceil(REQUEST_BYTES_MIN)
    }
}

/// A search under way.
#[repr(C)]
pub(super) struct Search {
    sought: Sought,
    start: u32,
    at: u32,
    end: u32,
    count: u32,
}

impl Step for Search {
    /// Goes on to the next place where it may be, or by as many words as there are in a step.
    #[inline(always)]
    fn step<F: Walk>(&mut self, frame: &F) -> bool {
        let Self { sought, start, mut at, end, .. } = *self;
        for _ in 0..WORDS {
            let Some(word) = word(frame, at, end) else {
                self.at = end;
                return false;
            };
            let hits = equal(word, sought.byte());
            if hits == 0 {
                at = frame.forget_u32(at + WORD_BYTES);
                continue;
            }
            at = frame.forget_u32(at + hits.trailing_zeros() / 8 + 1);
            // What is before the payload may be in the segment before. Headers of more than two bytes can be read there.
            let is_first = at - start < 3;
            if is_first || frame.bytes::<2>(at as usize - 3).is_some_and(|before| sought.is_likely(before)) {
                self.at = at;
                self.count += frame.is_at(sought, start, at, end) as u32;
                return true;
            }
        }
        self.at = at;
        true
    }
}
