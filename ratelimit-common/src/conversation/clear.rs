//! HTTP/1 in the clear. Each request's first line ends with its version, so versions are counted, wherever segments end and
//! whatever the method is; and a turn that has none counts as one.

use super::search::{Sought, word};
use super::{Conversation, Fresh, Walk, is};
use crate::packet::Frame;

/// `HTTP`, in any case: servers differ.
const NAME: u32 = u32::from_le_bytes(*b"http");
const NAME_BYTES: u32 = 4;
/// Node's server answers these too, as they are. The shorter one is the end of other words, unless there is a blank before it.
const OTHER_NAMES: [u32; 3] =
    [u32::from_le_bytes(*b"RTSP"), u32::from_le_bytes(*b" ICE"), u32::from_le_bytes(*b"\tICE")];
/// Where the preface of HTTP/2 has the `/` of its version.
pub(super) const VERSION_AT: u32 = 10;
/// How long `http/1.1` is, as ALPN says before it (RFC 7301).
const ALPN_LENGTH: u8 = 8;
/// Two interim answers, as of a proxy and of what is behind it, while a body is sent. An answer may be as short, but what follows it is a
/// request only with a version.
const INTERIM_BYTES_MAX: u32 = 80;
const LOWER_CASE: u32 = 0x2020_2020;

/// Whether this `/`, the byte before `next`, is that of a version which ends a line. `start` is where the segment's payload begins: of what
/// was in the segment before it is taken to be what it should be, as is what follows in the next one.
#[inline(always)]
pub(super) fn is_version<F: Frame>(frame: &F, start: u32, next: u32, end: u32) -> bool {
    let before = next - 1 - start;
    // Headers of more than 4 bytes are before any payload, so that can be read too.
    let Some(name) = frame.bytes::<4>(next as usize - 5) else { return false };
    let missing = if before < 4 { 8 * (4 - before) } else { 0 };
    // With all four missing nothing is left to compare.
    #[expect(clippy::cast_possible_truncation, reason = "the lowest four bytes")]
    let known = (u64::from(u32::MAX) << missing) as u32;
    if !is_name(u32::from_le_bytes(name), known) {
        return false;
    }
    // In a ClientHello it is a protocol's name, behind its length.
    if before > NAME_BYTES
        && let Some([ALPN_LENGTH, _]) = frame.bytes::<2>(next as usize - 6)
    {
        return false;
    }
    // Zeros stand for what is in the next segment.
    let [major, dot, minor, rest @ ..] = word(frame, next, end).unwrap_or(0).to_le_bytes();
    is_digit(major) && matches!(dot, b'.' | 0) && is_digit(minor) && ends_line(rest)
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

#[inline(always)]
const fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == 0
}

/// Whether a line ends here: at once, or behind blanks or more digits, as some servers take it.
#[inline(always)]
const fn ends_line(rest: [u8; 5]) -> bool {
    let (mut at, mut is_number) = (0, true);
    while at < rest.len() {
        match rest[at] {
            b'\r' | b'\n' | 0 => return true,
            b'0'..=b'9' if is_number => {}
            b' ' | b'\t' => is_number = false,
            _ => return false,
        }
        at += 1;
    }
    true
}

impl Conversation {
    #[inline(always)]
    pub(super) fn clear<F: Walk>(&mut self, frame: &F, fresh: Fresh) -> u32 {
        let found = self.versions(frame, fresh);
        self.keep_last(frame, fresh);
        if found != 0 {
            let requests = found - self.has(is::AHEAD) as u32;
            self.is &= !is::AHEAD;
            self.counted(fresh.moment());
            return requests;
        }
        // Whatever a turn begins with is a request, so that to cut its first line in two is no way around, unless the server has
        // said no more than that the body may come.
        if self.has(is::OPEN) || self.heard_since(fresh.said) > INTERIM_BYTES_MAX {
            self.counted(fresh.moment());
            self.is |= is::AHEAD;
            return 1;
        }
        0
    }

    /// How many versions end a line here, but for those of which the bytes before this segment say that they are none.
    #[inline(always)]
    fn versions<F: Walk>(&self, frame: &F, fresh: Fresh) -> u32 {
        let mut found = frame.found(fresh.at, fresh.end, Sought::Version);
        if found == 0 || self.split_len == 0 {
            return found;
        }
        let Some(first) = word(frame, fresh.at, fresh.end) else { return found };
        let around = u32::from_le_bytes(self.split) as u64 | first << 32;
        for at in 0..NAME_BYTES {
            let is_slash = (first >> (8 * at)) & 0xff == b'/' as u64;
            #[expect(clippy::cast_possible_truncation, reason = "the lowest four bytes")]
            let is_named = is_name((around >> (8 * at)) as u32, u32::MAX);
            if is_slash && !is_named && frame.is_at(Sought::Version, fresh.at, fresh.at + at + 1, fresh.end) {
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
