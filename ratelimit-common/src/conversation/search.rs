//! Looking for a byte in a payload, a word at a time.

use super::Fresh;
use crate::packet::Frame;

/// How much of a segment is searched: all of it on Ethernet.
const SEARCHED_BYTES_MAX: u32 = 1536;

/// Steps of a search: a word of 8 bytes, or a byte that was looked for, in each.
const STEPS_MAX: u32 = SEARCHED_BYTES_MAX / 8 + 64;

pub(super) const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
pub(super) const TOP_BITS: u64 = 0x8080_8080_8080_8080;

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

/// How many times `byte` is in the payload with what `is_followed` asks for behind it.
#[inline(always)]
pub(super) fn found<F: Frame>(frame: &F, fresh: Fresh, byte: u8, is_followed: impl Fn(u32) -> bool) -> u32 {
    let mut count = 0;
    let mut at = fresh.at;
    for _ in 0..STEPS_MAX {
        let Some(word) = word(frame, at, fresh.end) else { break };
        let different = word ^ (EACH_BYTE * byte as u64);
        // The lowest of these bits is at the first such byte; those above it may err.
        let hit = different.wrapping_sub(EACH_BYTE) & !different & TOP_BITS;
        if hit == 0 {
            at = frame.forget(at as usize + 8) as u32;
            continue;
        }
        at = frame.forget(at as usize + hit.trailing_zeros() as usize / 8 + 1) as u32;
        if is_followed(at) {
            count = frame.forget(count as usize + 1) as u32;
        }
    }
    count
}
