//! Looking for versions and names in a payload, a word at a time.

use super::{Step, Walk, clear, tls};
use crate::packet::Frame;

const WORD_BYTES: u32 = 8;

/// Words of a step.
const WORDS: u32 = 8;

/// The shortest request: `A / HTTP/1.1` and two lines' ends.
const REQUEST_BYTES_MIN: u32 = 16;

/// Places that look like what is sought and are not: what is before a payload's first two bytes is not known, and a few names end like it.
const OTHERS_MAX: u32 = 8;

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
    /// What it is found by.
    #[inline(always)]
    const fn byte(self) -> u8 {
        match self {
            Self::Version => b'/',
            Self::Http2 => b'h',
        }
    }

    /// Which of the hits in this word may be it, by the two bytes before each: the top bit of each byte. `last` are the two before the word, and
    /// `unseen` is which of the word's bytes have none of the payload before them. Slashes alone are many in dates and paths, and each would
    /// cost a step.
    #[inline(always)]
    const fn likely(self, hits: u64, word: u64, last: u16, unseen: u64) -> u64 {
        let (before, before_that) = ((word << 8) | (last >> 8) as u64, (word << 16) | last as u64);
        match self {
            Self::Version => {
                let (before, before_that) = (before | EVERY_CAPITAL, before_that | EVERY_CAPITAL);
                hits & (equal(before, b'p') & equal(before_that, b't') | unseen)
            }
            Self::Http2 => hits & (equal(before, 2) | unseen),
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

    /// How many there are from `at` to `end`, where a payload begins and ends. Steps are taken for its words, for each request that there may
    /// be, and for some that look like one. Who fills a payload with these hides nothing behind them: as many count as may be in the rest.
    #[inline(always)]
    pub fn found<F: Walk>(self, frame: &F, at: u32, end: u32) -> u32 {
        let bytes = end.saturating_sub(at);
        let steps = bytes.div_ceil(WORD_BYTES * WORDS) + bytes / REQUEST_BYTES_MIN + OTHERS_MAX;
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
            if hits != 0 {
                let hit = likely(sought, frame, start, at, word, hits);
                if hit != 0 {
                    self.at = at + hit.trailing_zeros() / 8 + 1;
                    self.count += frame.is_at(sought, start, self.at, end) as u32;
                    return true;
                }
            }
            at = frame.forget_u32(at + WORD_BYTES);
        }
        self.at = at;
        true
    }
}

/// [`Sought::likely`] of the word that is here.
#[inline(always)]
fn likely<F: Frame>(sought: Sought, frame: &F, start: u32, at: u32, word: u64, hits: u64) -> u64 {
    // What is before the payload may be in the segment before. Headers of more than two bytes can be read there.
    let last = frame.bytes::<2>(at.saturating_sub(2) as usize).unwrap_or_default();
    let unseen = match at - start {
        0 => 0xffff,
        1 => 0xff,
        _ => 0,
    };
    sought.likely(hits, word, u16::from_le_bytes(last), unseen)
}
