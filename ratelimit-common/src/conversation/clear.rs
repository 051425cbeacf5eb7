//! HTTP/1 in the clear. Each request's first line ends with its version, so versions are counted, wherever segments
//! end and whatever the method is; and a turn that has none counts as one.

use super::search::{Hit, Sought, TOP_BITS, between, each, word, zeros};
use super::{Conversation, Entered, Fresh, Walk, also, is, late};
use crate::packet::Frame;

/// `HTTP`, in any case: servers differ.
const NAME: u32 = u32::from_le_bytes(*b"http");
const NAME_BYTES: u32 = 4;
/// Node's server answers these too, as they are. The shorter one is the end of other words, unless there is a blank
/// before it.
const OTHER_NAMES: [u32; 3] =
    [u32::from_le_bytes(*b"RTSP"), u32::from_le_bytes(*b" ICE"), u32::from_le_bytes(*b"\tICE")];
/// Where the preface of HTTP/2 has the `/` of its version.
pub(super) const VERSION_AT: u32 = 10;
/// How long `http/1.1` is, as ALPN says before it (RFC 7301).
const ALPN_LENGTH: u8 = 8;
/// Two interim answers, as of a proxy and of what is behind it, while a body is sent. An answer may be as short, but
/// what follows it is a request only with a version.
const INTERIM_BYTES_MAX: u32 = 80;
const LOWER_CASE: u32 = 0x2020_2020;

/// Whether this `/`, the byte before `next`, is that of a version which ends a line. `start` is where the segment's
/// payload begins: of what was in the segment before it is taken to be what it should be, as is what follows in the
/// next one.
#[inline(always)]
pub(super) fn is_version<F: Frame>(frame: &F, start: u32, next: u32, end: u32) -> bool {
    let before = next - 1 - start;
    // Headers of more than 8 bytes are before any payload, so that can be read too.
    let Some([_, _, _, length, name @ ..]) = frame.bytes::<8>(next as usize - 9) else { return false };
    let missing = if before < 4 { 8 * (4 - before) } else { 0 };
    // With all four missing nothing is left to compare.
    #[expect(clippy::cast_possible_truncation, reason = "the lowest four bytes")]
    let known = (u64::from(u32::MAX) << missing) as u32;
    // In a ClientHello it is a protocol's name, behind its length.
    if !is_name(u32::from_le_bytes(name), known) || before > NAME_BYTES && length == ALPN_LENGTH {
        return false;
    }
    is_number(word(frame, next, end).unwrap_or(0), end.saturating_sub(next))
}

/// Whether this is the name of a protocol, as far as its bytes are `known`.
#[inline(always)]
const fn is_name(name: u32, known: u32) -> bool {
    let [rtsp, ice, tab_ice] = OTHER_NAMES;
    let name = name & known;
    (name | LOWER_CASE) & known == NAME & known
        || name == rtsp & known
        || name == ice & known
        || name == tab_ice & known
}

/// Whether these bytes end where the name of a protocol has begun.
#[inline(always)]
fn ends_in_name<F: Frame>(frame: &F, fresh: Fresh) -> bool {
    // Headers of more than 4 bytes are before any payload, so that can be read too.
    let Some(last) = frame.bytes::<4>((fresh.end - NAME_BYTES) as usize) else { return false };
    let [_, after_one, after_two, after_three] = [0, 8, 16, 24].map(|bits| u32::from_le_bytes(last) >> bits);
    let known = |bytes: u32| u32::MAX >> (8 * (NAME_BYTES - bytes));
    is_name(u32::from_le_bytes(last), known(4)) && fresh.len() >= 4
        || is_name(after_one, known(3)) && fresh.len() >= 3
        || is_name(after_two, known(2)) && fresh.len() >= 2
        || is_name(after_three, known(1))
}

/// Returns whether this is a version's number that ends a line, as far as so many bytes are known: digits, a dot,
/// perhaps digits, and the end of the line, perhaps behind blanks. All bytes are looked at together, and each `first`
/// is the top bit of one of them.
#[inline(always)]
const fn is_number(bytes: u64, known: u32) -> bool {
    let unknown = if known < 8 { TOP_BITS << (8 * known) } else { 0 };
    let others = TOP_BITS & !between(bytes, b'0', b'9');
    let first = lowest(others);
    if first & !unknown == 0 {
        return true;
    }
    // A digit has to be before the dot.
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

/// The top bit of the first byte is among these.
const LOWEST_BYTE: u64 = 0xff;

/// Returns the lowest bit that is set, or 0.
#[inline(always)]
const fn lowest(bits: u64) -> u64 {
    bits & bits.wrapping_neg()
}

/// Returns all bits above this one.
#[inline(always)]
const fn above(bit: u64) -> u64 {
    !(bit | bit.wrapping_sub(1))
}

/// Returns the top bit of each byte that is a blank to some server, with those of Python.
#[inline(always)]
const fn blanks(bytes: u64) -> u64 {
    zeros(bytes ^ each(b'\t'))
        | between(bytes, 0x0b, 0x0c)
        | between(bytes, 0x1c, b' ')
        | zeros(bytes ^ each(0x85))
        | zeros(bytes ^ each(0xa0))
}

impl Conversation {
    /// How many requests begin in this payload, up to where a preface of HTTP/2 goes on: what is behind that is left.
    #[inline(always)]
    pub fn clear<F: Walk>(&mut self, frame: &F, entered: &mut Entered) -> u32 {
        let fresh = entered.fresh;
        let mut all = frame.found(fresh.at, fresh.end, Sought::VersionToPreface);
        let mut found = self.versions(frame, fresh, all.count());
        if all.taken() != 0 && found == 0 {
            // What was before this segment says that it is none.
            all = frame.found(all.taken(), fresh.end, Sought::VersionToPreface);
            found = all.count();
        }
        // What was seen behind it may be of other bytes before that: the name may go on there.
        if entered.is_late == late::AGAIN && ends_in_name(frame, fresh) {
            found = frame.forget_u32(found + 1);
        }
        self.keep_last(frame, fresh);
        if found != 0 {
            let requests = found - self.has(is::AHEAD) as u32;
            // The first one is asked when the server has said nothing either.
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
        // Whatever a turn begins with is a request, so that to cut its first line in two is no way around, unless the
        // server has said no more than that the body may come.
        if self.has(is::OPEN) || self.heard_since(fresh.said) > INTERIM_BYTES_MAX {
            self.counted(fresh.moment());
            self.is |= is::AHEAD;
            return 1;
        }
        0
    }

    /// How many of the versions that were found here end a line, but for those of which the bytes before this segment
    /// say that they are none.
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

    /// Keeps the last bytes, for a version that begins in this segment and ends in the next.
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
