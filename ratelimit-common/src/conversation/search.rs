//! Looking for versions and names in a payload, a word at a time.

use super::{Step, Walk, clear, http2, tls};
use crate::packet::Frame;

const WORD_BYTES: usize = 8;

/// What is looked at together: few have anything.
const BLOCK_BYTES: u32 = 32;

/// Blocks of a step, and places in them that are found and are not likely.
const BLOCKS: u32 = 3;

/// The shortest request: `A / ICE/1.1` and two lines' ends.
const REQUEST_BYTES_MIN: u32 = 13;

/// Places that look like what is sought and are not: what is before a payload's first two bytes is not known, and a
/// few names end like it.
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

/// Which of the next bytes is this one, up to the length of a block: the lowest bit is that of the byte at `at`.
#[inline(always)]
fn hits<F: Frame>(frame: &F, at: u32, end: u32, byte: u8) -> Option<u32> {
    // What is before a payload can be read as well: headers of more bytes than a block has.
    let behind_end = (at + BLOCK_BYTES).saturating_sub(end);
    let block = frame.bytes::<{ BLOCK_BYTES as usize }>((at - behind_end) as usize)?;
    let (words, _) = block.as_chunks::<WORD_BYTES>();
    let [first, second, third, fourth] = *words else { return None };
    let [first, second, third, fourth] =
        [first, second, third, fourth].map(|word| equal(u64::from_le_bytes(word), byte));
    if first | second | third | fourth == 0 {
        return Some(0);
    }
    let all = gathered(first) | gathered(second) << 8 | gathered(third) << 16 | gathered(fourth) << 24;
    Some(all >> (behind_end & 31))
}

/// A bit for each byte, of what [`equal`] says.
#[inline(always)]
const fn gathered(top_bits: u64) -> u32 {
    ((top_bits >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
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
    /// Versions, up to that in HTTP/2's preface.
    VersionToPreface = 2,
}

impl Sought {
    /// What it is found by.
    #[inline(always)]
    const fn byte(self) -> u8 {
        match self {
            Self::Version | Self::VersionToPreface => b'/',
            Self::Http2 => b'h',
        }
    }

    /// Whether it may be behind these two bytes: others are many in dates and paths, and each would cost a step.
    #[inline(always)]
    const fn is_likely(self, before: [u8; 2]) -> bool {
        match self {
            Self::Version | Self::VersionToPreface => {
                matches!(u16::from_be_bytes(before) | 0x2020, HTTP_ENDS | RTSP_ENDS | ICE_ENDS)
            }
            Self::Http2 => before[1] == 2,
        }
    }

    /// What that byte, the one before `next`, is part of, by what is around it. `start` is where the search began.
    #[inline(always)]
    pub fn at<F: Frame>(self, frame: &F, start: u32, next: u32, end: u32) -> Hit {
        let is_one = match self {
            Self::Version | Self::VersionToPreface => clear::is_version(frame, start, next, end),
            Self::Http2 => tls::is_http2(frame, next),
        };
        match (is_one, self) {
            (false, _) => Hit::None,
            (true, Self::VersionToPreface) if http2::goes_on(frame, start, next, end) => Hit::Preface,
            (true, _) => Hit::One,
        }
    }

    /// How many there are from `at` to `end`, where a payload begins and ends. Steps are taken for its bytes, for each
    /// request that there may be, and for some that look like one. Who fills a payload with these hides nothing behind
    /// them: as many count as may be in the rest.
    #[inline(always)]
    pub fn found<F: Walk>(self, frame: &F, at: u32, end: u32) -> Found {
        let bytes = end.saturating_sub(at);
        let steps = bytes.div_ceil(BLOCKS) + bytes / REQUEST_BYTES_MIN + OTHERS_MAX;
        let search = frame.repeat(steps, Search { sought: self, start: at, at, end, count: 0, preface_at: 0 });
        let rest = if search.preface_at == 0 { end.saturating_sub(search.at) } else { 0 };
        let count = search.count + rest.div_ceil(REQUEST_BYTES_MIN);
        Found::new(count, search.preface_at)
    }
}

/// What a place in a payload is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hit {
    /// Nothing that is sought.
    None = 0,
    /// One of it.
    One = 1,
    /// The version in HTTP/2's preface, of [`Sought::VersionToPreface`] alone.
    Preface = 2,
}

/// What was found in a payload, and how far that was looked at, if not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found(pub u64);

impl Found {
    #[inline(always)]
    pub(super) const fn new(count: u32, taken: u32) -> Self {
        Self((taken as u64) << 32 | count as u64)
    }

    /// How many.
    #[inline(always)]
    pub const fn count(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let count = self.0 as u32;
        count
    }

    /// How far the payload was looked at: to where HTTP/2's preface goes on behind the `/` of its version; 0 where
    /// there is none.
    #[inline(always)]
    pub(super) const fn taken(self) -> u32 {
        (self.0 >> 32) as u32
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
    /// See [`Found::taken`].
    preface_at: u32,
}

impl Step for Search {
    /// Goes on to the next place where it may be, or by as many blocks as there are in a step.
    #[inline(always)]
    fn step<F: Walk>(&mut self, frame: &F) -> bool {
        let Self { sought, start, mut at, end, .. } = *self;
        for _ in 0..BLOCKS {
            let hits = if at < end { hits(frame, at, end, sought.byte()) } else { None };
            let Some(hits) = hits else {
                self.at = end;
                return false;
            };
            if hits == 0 {
                at = frame.forget_u32(at + BLOCK_BYTES);
                continue;
            }
            at = frame.forget_u32(at + hits.trailing_zeros() + 1);
            // What is before the payload may be in the segment before. Headers of more than two bytes can be read
            // there.
            let is_first = at - start < 3;
            if is_first || frame.bytes::<2>(at as usize - 3).is_some_and(|before| sought.is_likely(before)) {
                let hit = frame.what_is_at(sought, start, at, end);
                self.at = at;
                self.count = frame.forget_u32(self.count + (hit != Hit::None) as u32);
                if hit == Hit::Preface {
                    self.preface_at = at;
                }
                return hit != Hit::Preface;
            }
        }
        self.at = at;
        true
    }
}
