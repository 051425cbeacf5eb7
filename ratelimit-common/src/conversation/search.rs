//! Search for versions and names in a payload. Each byte is read once in a block. A second read happens only in blocks
//! that have a byte by which versions and names are found.

use super::{Step, Walk, clear, http2, tls};
use crate::packet::Frame;

pub(super) const WORD_BYTES: u32 = 8;

/// Number of bytes that are tested together. Most blocks contain no candidate.
pub const BLOCK_BYTES: u32 = 32;

/// Length of the shortest request: `A / ICE/1.` and the ends of two lines.
const REQUEST_BYTES_MIN: u32 = 12;

/// Smallest distance of two places that look like versions: ` ICE/`, and `1.1` or `1.` and the end of a line.
const LIKELY_BYTES_MIN: u32 = 8;

/// Number of steps that a payload may take beyond those for its blocks and its likely places: places near its start
/// are likely whatever is before them.
const OTHER_STEPS: u32 = 16;

const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
pub(super) const TOP_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns the 8 bytes from here, the first in the lowest place, and zeros for those that are behind the end.
#[inline(always)]
pub(super) fn word<F: Frame>(frame: &F, at: u32, end: u32) -> Option<u64> {
    if at >= end {
        return None;
    }
    // Every payload follows more than 8 bytes of headers, so reading before it is safe.
    let behind_end = (at + WORD_BYTES).saturating_sub(end);
    frame.bytes::<8>((at - behind_end) as usize).map(|bytes| u64::from_le_bytes(bytes) >> (8 * behind_end))
}

/// Returns a word of which each byte is this one.
#[inline(always)]
pub(super) const fn each(byte: u8) -> u64 {
    EACH_BYTE * byte as u64
}

/// Returns the top bit of each byte of the word that is zero.
#[inline(always)]
pub(super) const fn zeros(word: u64) -> u64 {
    // Each byte is handled by itself: there is no carry.
    !(((word & !TOP_BITS) + !TOP_BITS) | word | !TOP_BITS)
}

/// Returns the top bit of each byte of the word that lies between these two, which are below 0x80.
#[inline(always)]
pub(super) const fn between(word: u64, least: u8, most: u8) -> u64 {
    let low = word & !TOP_BITS;
    (low + each(0x80 - least)) & !(low + each(0x7f - most)) & !word & TOP_BITS
}

/// Returns whether the block at `block` has this byte.
#[inline(always)]
fn has_any<F: Frame>(frame: &F, block: u32, byte: u8) -> Option<bool> {
    let block = frame.bytes::<{ BLOCK_BYTES as usize }>(block as usize)?;
    let (words, _) = block.as_chunks::<{ WORD_BYTES as usize }>();
    let [first, second, third, fourth] = *words else { return None };
    let [first, second, third, fourth] =
        [first, second, third, fourth].map(|word| zeros(u64::from_le_bytes(word) ^ each(byte)));
    Some(first | second | third | fourth != 0)
}

/// Returns a bit for each byte, of the top bits that [`zeros`] returns.
#[inline(always)]
pub(super) const fn gathered(top_bits: u64) -> u32 {
    ((top_bits >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

/// Pattern to search for in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Sought {
    /// Version at the end of an HTTP/1 request's first line.
    Version = 0,
    /// Name of HTTP/2 among the protocols that a ClientHello offers.
    Http2 = 1,
    /// Versions, up to the one in HTTP/2's preface.
    VersionToPreface = 2,
}

impl Sought {
    /// Returns the byte by which candidates are found.
    #[inline(always)]
    pub(super) const fn byte(self) -> u8 {
        match self {
            Self::Version | Self::VersionToPreface => b'/',
            Self::Http2 => b'h',
        }
    }

    /// Returns what the byte before `next` is part of, by the bytes around it. `start` is where the search began.
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

    /// Counts occurrences from `at` to `end`, where a payload begins and ends. Only places with the surroundings of a
    /// version are tested. A part that the bounded number of steps does not reach counts as the most requests that fit
    /// into it.
    #[inline(always)]
    pub fn found<F: Walk>(self, frame: &F, at: u32, end: u32) -> Found {
        let bytes = end.saturating_sub(at);
        let steps = bytes / BLOCK_BYTES + bytes / LIKELY_BYTES_MIN + OTHER_STEPS;
        let search =
            frame.repeat(steps, Search { sought: self, is_at_preface: 0, start: at, at, end, count: 0, likely: 0 });
        if search.is_at_preface != 0 {
            return Found::new(search.count, search.at);
        }
        Found::new(search.count + end.saturating_sub(search.at).div_ceil(REQUEST_BYTES_MIN), 0)
    }
}

/// Match at one place of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hit {
    /// No match.
    None = 0,
    /// One occurrence of the pattern.
    One = 1,
    /// Version in HTTP/2's preface; only for [`Sought::VersionToPreface`].
    Preface = 2,
}

/// Number of occurrences in a payload, and how far the payload was read if not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found(pub u64);

impl Found {
    #[inline(always)]
    pub(super) const fn new(count: u32, taken: u32) -> Self {
        Self((taken as u64) << 32 | count as u64)
    }

    /// Returns the number of occurrences.
    #[inline(always)]
    pub const fn count(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let count = self.0 as u32;
        count
    }

    /// Returns how far the payload was read: to where HTTP/2's preface goes on behind the `/` of its version. Returns 0
    /// if there is no preface.
    #[inline(always)]
    pub(super) const fn taken(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// State of a search over one payload.
#[repr(C)]
pub(super) struct Search {
    sought: Sought,
    /// 1 if `at` is behind the `/` of HTTP/2's preface, see [`Found::taken`].
    is_at_preface: u8,
    start: u32,
    /// Offset of the first byte that was not read yet.
    at: u32,
    end: u32,
    count: u32,
    /// Likely places of the block before `at` that still have to be tested, one bit for each byte.
    likely: u32,
}

impl Step for Search {
    /// Tests the next likely place, or moves on to the next block that has one.
    #[inline(always)]
    fn step<F: Walk>(&mut self, frame: &F) -> bool {
        if self.likely != 0 { self.ask(frame) } else { self.go_on(frame) }
    }
}

impl Search {
    #[inline(always)]
    fn ask<F: Walk>(&mut self, frame: &F) -> bool {
        let likely = self.likely;
        self.likely = frame.forget_u32(likely & (likely - 1));
        // All places of a block are tested before the next block is read.
        let next = self.at.wrapping_sub(BLOCK_BYTES - 1) + likely.trailing_zeros();
        let hit = frame.what_is_at(self.sought, self.start, next, self.end);
        self.count = frame.forget_u32(self.count + (hit != Hit::None) as u32);
        if hit == Hit::Preface {
            self.at = next;
            self.is_at_preface = 1;
        }
        // One match among the protocols is enough.
        hit != Hit::Preface && (hit == Hit::None || self.sought != Sought::Http2)
    }

    #[inline(always)]
    fn go_on<F: Walk>(&mut self, frame: &F) -> bool {
        // Two blocks, and no loop: Linux 6.1 rejects a loop that its compiler enters in the middle.
        let looked = self.look(frame).or_else(|| self.look(frame));
        looked.unwrap_or(true)
    }

    /// Reads the next block. Returns whether the search goes on, if the block has likely places or the payload ends.
    /// Returns None if the next block may be read at once.
    #[inline(always)]
    fn look<F: Walk>(&mut self, frame: &F) -> Option<bool> {
        let Self { sought, start, at, end, .. } = *self;
        // The last block ends where the payload does. More bytes of headers than a block has precede every payload, so
        // reading before it is safe.
        let seen = (at + BLOCK_BYTES).saturating_sub(end);
        let block = at.wrapping_sub(seen);
        let has_any = if at < end { has_any(frame, block, sought.byte()) } else { None };
        let Some(has_any) = has_any else {
            self.at = end;
            return Some(false);
        };
        self.at = frame.forget_u32(block + BLOCK_BYTES);
        if has_any {
            let unseen = u32::MAX << (seen & (BLOCK_BYTES - 1));
            // Tested before the next block is read.
            self.likely = frame.likely(sought, start, block, end).0 & unseen;
            if self.likely != 0 {
                return Some(true);
            }
        }
        None
    }
}
