//! Request counting for HTTP/1 in the clear. Each request's first line ends with its version, so versions are counted,
//! wherever segments end and whatever the method is. A turn without a version counts as one request.

use super::search::{Hit, Sought, TOP_BITS, between, each, word, zeros};
use super::{Conversation, Entered, Fresh, Walk, also, is, late};
use crate::packet::Frame;

/// `HTTP` in lower case. Servers differ in which case they accept, so the comparison ignores it.
const NAME: u32 = u32::from_le_bytes(*b"http");
const NAME_BYTES: u32 = 4;
/// Other protocol names that Node's server answers, in this case only. `ICE` also ends other words, so a blank must
/// precede it.
const OTHER_NAMES: [u32; 3] =
    [u32::from_le_bytes(*b"RTSP"), u32::from_le_bytes(*b" ICE"), u32::from_le_bytes(*b"\tICE")];
/// Offset of the version's `/` in HTTP/2's preface.
pub(super) const VERSION_AT: u32 = 10;
/// Length of `http/1.1`, which ALPN puts before that name (RFC 7301).
const ALPN_LENGTH: u8 = 8;
/// Maximum bytes of two interim answers during a body, for example one from a proxy and one from the server behind it.
/// A final answer may be as short, but then a request after it needs a version.
const INTERIM_BYTES_MAX: u32 = 80;
const LOWER_CASE: u32 = 0x2020_2020;

/// Returns whether this `/`, the byte before `next`, belongs to a version that ends a line. `start` is the start of the
/// segment's payload. Bytes that lie in the segment before or after are assumed to match.
#[inline(always)]
pub(super) fn is_version<F: Frame>(frame: &F, start: u32, next: u32, end: u32) -> bool {
    let before = next - 1 - start;
    // Every payload follows more than 8 bytes of headers, so reading before it is safe.
    let Some([_, _, _, length, name @ ..]) = frame.bytes::<8>(next as usize - 9) else { return false };
    let missing = if before < 4 { 8 * (4 - before) } else { 0 };
    // With all four missing nothing is left to compare.
    #[expect(clippy::cast_possible_truncation, reason = "the lowest four bytes")]
    let known = (u64::from(u32::MAX) << missing) as u32;
    // In a ClientHello, the name is an ALPN protocol that its length precedes.
    if !is_name(u32::from_le_bytes(name), known) || before > NAME_BYTES && length == ALPN_LENGTH {
        return false;
    }
    is_number(word(frame, next, end).unwrap_or(0), end.saturating_sub(next))
}

/// Returns whether this is a protocol name, as far as its bytes are `known`.
#[inline(always)]
const fn is_name(name: u32, known: u32) -> bool {
    let [rtsp, ice, tab_ice] = OTHER_NAMES;
    let name = name & known;
    (name | LOWER_CASE) & known == NAME & known
        || name == rtsp & known
        || name == ice & known
        || name == tab_ice & known
}

/// Returns whether these bytes end within a protocol name.
#[inline(always)]
fn ends_in_name<F: Frame>(frame: &F, fresh: Fresh) -> bool {
    // Every payload follows more than 4 bytes of headers, so reading before it is safe.
    let Some(last) = frame.bytes::<4>((fresh.end - NAME_BYTES) as usize) else { return false };
    let [_, after_one, after_two, after_three] = [0, 8, 16, 24].map(|bits| u32::from_le_bytes(last) >> bits);
    let known = |bytes: u32| u32::MAX >> (8 * (NAME_BYTES - bytes));
    is_name(u32::from_le_bytes(last), known(4)) && fresh.len() >= 4
        || is_name(after_one, known(3)) && fresh.len() >= 3
        || is_name(after_two, known(2)) && fresh.len() >= 2
        || is_name(after_three, known(1))
}

/// Returns whether these bytes are a version number that ends a line, if the first `known` bytes are valid. A number is
/// digits, a dot, optional digits, optional blanks and the end of the line. All bytes are tested together; each `first`
/// is the top bit of one byte.
#[inline(always)]
const fn is_number(bytes: u64, known: u32) -> bool {
    let unknown = if known < 8 { TOP_BITS << (8 * known) } else { 0 };
    let others = TOP_BITS & !between(bytes, b'0', b'9');
    let first = lowest(others);
    if first & !unknown == 0 {
        return true;
    }
    // At least one digit must precede the dot.
    if first & zeros(bytes ^ each(b'.')) & !LOWEST_BYTE == 0 {
        return false;
    }
    let ends = zeros(bytes ^ each(b'\r')) | zeros(bytes ^ each(b'\n')) | unknown;
    let first = lowest(others & above(first));
    if first & !ends == 0 {
        return true;
    }
    let blanks = blanks(bytes);
    first & blanks != 0 && lowest(TOP_BITS & !blanks & above(first)) & !ends == 0
}

/// Mask of the first byte; its top bit is the first of the result bits.
const LOWEST_BYTE: u64 = 0xff;

/// Returns the lowest set bit, or 0.
#[inline(always)]
const fn lowest(bits: u64) -> u64 {
    bits & bits.wrapping_neg()
}

/// Returns a mask of all bits above `bit`.
#[inline(always)]
const fn above(bit: u64) -> u64 {
    !(bit | bit.wrapping_sub(1))
}

/// Returns the top bit of each byte that some server takes for a blank, including Python's.
#[inline(always)]
const fn blanks(bytes: u64) -> u64 {
    zeros(bytes ^ each(b'\t'))
        | between(bytes, 0x0b, 0x0c)
        | between(bytes, 0x1c, b' ')
        | zeros(bytes ^ each(0x85))
        | zeros(bytes ^ each(0xa0))
}

impl Conversation {
    /// Returns the number of requests that begin in this payload. The payload from a preface of HTTP/2 on is left in
    /// `entered`.
    #[inline(always)]
    pub fn clear<F: Walk>(&mut self, frame: &F, entered: &mut Entered) -> u32 {
        let fresh = entered.fresh;
        let mut all = frame.found(fresh.at, fresh.end, Sought::VersionToPreface);
        let mut found = self.versions(frame, fresh, all.count());
        if all.taken() != 0 && found == 0 {
            // The bytes before this segment show that the preface's version is none.
            all = frame.found(all.taken(), fresh.end, Sought::VersionToPreface);
            found = all.count();
        }
        // The bytes seen behind this segment may have followed other bytes, so a name may continue there.
        if entered.is_late == late::AGAIN && ends_in_name(frame, fresh) {
            found = frame.forget_u32(found + 1);
        }
        self.keep_last(frame, fresh);
        if found != 0 {
            let requests = found - self.has(is::AHEAD) as u32;
            // The first request needs no data from the server before it.
            if requests > 1 || requests != 0 && !self.has(is::OPEN) && self.heard_since(fresh.said) == 0 {
                self.also |= also::ASKED_AHEAD;
            }
            self.is &= !is::AHEAD;
            self.counted(fresh.moment());
            if all.taken() != 0 {
                self.begin_http2();
                entered.fresh.skip(all.taken() - fresh.at);
                entered.fresh.skip(frame.preface(self, entered.fresh));
            }
            return requests;
        }
        // A turn counts as a request whatever it begins with, so splitting the first line does not evade the count.
        // Interim answers begin no turn: they only let the body come.
        if self.has(is::OPEN) || self.heard_since(fresh.said) > INTERIM_BYTES_MAX {
            self.counted(fresh.moment());
            self.is |= is::AHEAD;
            return 1;
        }
        0
    }

    /// Returns `found` without the versions that the bytes before this segment rule out.
    #[inline(always)]
    fn versions<F: Walk>(&self, frame: &F, fresh: Fresh, found: u32) -> u32 {
        let mut found = found;
        if found == 0 || self.split_len == 0 {
            return found;
        }
        let Some(first) = word(frame, fresh.at, fresh.end) else { return found };
        let around = u32::from_le_bytes(self.split) as u64 | first << 32;
        for at in 0..NAME_BYTES {
            let is_slash = (first >> (8 * at)) & 0xff == b'/' as u64;
            #[expect(clippy::cast_possible_truncation, reason = "the lowest four bytes")]
            let is_named = is_name((around >> (8 * at)) as u32, u32::MAX);
            let next = fresh.at + at + 1;
            if is_slash && !is_named && frame.what_is_at(Sought::Version, fresh.at, next, fresh.end) != Hit::None {
                found = frame.forget_u32(found.saturating_sub(1));
            }
        }
        found
    }

    /// Keeps the last 4 bytes, for a version that begins in this segment and ends in the next.
    #[inline(always)]
    fn keep_last<F: Frame>(&mut self, frame: &F, fresh: Fresh) {
        let len = fresh.len();
        if len >= NAME_BYTES {
            self.split_len = 0;
            if let Some(last) = frame.bytes::<4>((fresh.end - NAME_BYTES) as usize) {
                (self.split, self.split_len) = (last, 1);
            }
        } else if self.split_len != 0 {
            let around = u32::from_le_bytes(self.split) as u64 | word(frame, fresh.at, fresh.end).unwrap_or(0) << 32;
            #[expect(clippy::cast_possible_truncation, reason = "the lowest four bytes")]
            let last = (around >> (8 * (len & 3))) as u32;
            self.split = last.to_le_bytes();
        }
    }
}
