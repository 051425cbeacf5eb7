//! Search for places in a payload block that match the surroundings of a version or of a protocol name, eight bytes at
//! a time.

use super::Sought;
use super::search::{BLOCK_BYTES, TOP_BITS, WORD_BYTES, between, each, gathered, word, zeros};
use crate::packet::Frame;

/// Longest protocol name before a version, in bytes.
const NAME_BYTES: u32 = 4;
const LOWER_CASE: u64 = each(0x20);

/// Bit mask of the likely places in a block: one bit for each byte, the lowest bit for the first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Likely(pub u32);

impl Sought {
    /// Returns the likely places of the block at `block`, in a payload from `start` to `end`. The whole block must lie
    /// before `end`. Reads the block, and 8 bytes on either side of it.
    #[inline(always)]
    pub fn likely<F: Frame>(self, frame: &F, start: u32, block: u32, end: u32) -> Likely {
        // More than 40 bytes of headers precede any payload, so bytes before a short payload's block can be read.
        let (Some(before), Some(this)) = (loaded(frame, block.wrapping_sub(WORD_BYTES)), loaded(frame, block)) else {
            return Likely::default();
        };
        let mut words = Words { before, this, all: 0, next: block };
        // Four words make a block. No loop: Linux 6.1 rejects a loop that its compiler enters in the middle.
        words.look(self, frame, end);
        words.look(self, frame, end);
        words.look(self, frame, end);
        words.look(self, frame, end);
        let mut all = words.all;
        if !matches!(self, Self::Http2)
            && block <= start
            && let Some(first) = word(frame, start, end)
        {
            // The name may have begun in the previous segment.
            let slashes = gathered(zeros(first ^ each(b'/'))) & ((1 << NAME_BYTES) - 1);
            all |= slashes << ((start - block) & (BLOCK_BYTES - 1));
        }
        Likely(all)
    }
}

/// Sliding window over the words of a block.
struct Words {
    before: u64,
    this: u64,
    /// Likely places so far; the newest word has the highest bits.
    all: u32,
    /// Offset of the word behind `this`.
    next: u32,
}

impl Words {
    #[inline(always)]
    fn look<F: Frame>(&mut self, sought: Sought, frame: &F, end: u32) {
        let Self { before, this, .. } = *self;
        self.next += WORD_BYTES;
        // An incomplete word at the end counts as a match.
        let after = if self.next + WORD_BYTES <= end { loaded(frame, self.next).unwrap_or(0) } else { 0 };
        let around = Around { before, this, after };
        let found = match sought {
            Sought::Http2 => around.http2(),
            Sought::Version | Sought::VersionToPreface => around.versions(),
        };
        self.all >>= WORD_BYTES;
        if found != 0 {
            self.all |= gathered(found) << (BLOCK_BYTES - WORD_BYTES);
        }
        (self.before, self.this) = (this, after);
    }
}

#[inline(always)]
fn loaded<F: Frame>(frame: &F, at: u32) -> Option<u64> {
    frame.bytes::<8>(at as usize).map(u64::from_le_bytes)
}

/// One word of the payload with its neighbours.
struct Around {
    before: u64,
    this: u64,
    after: u64,
}

impl Around {
    /// Returns, for each byte of the word, the byte that lies `bytes` bytes before it.
    #[inline(always)]
    const fn behind(&self, bytes: u32) -> u64 {
        self.this << (8 * bytes) | self.before >> (64 - 8 * bytes)
    }

    /// Returns, for each byte of the word, the byte that lies `bytes` bytes behind it.
    #[inline(always)]
    const fn ahead(&self, bytes: u32) -> u64 {
        Self::shifted(self.this, self.after, bytes)
    }

    #[inline(always)]
    const fn shifted(this: u64, after: u64, bytes: u32) -> u64 {
        this >> (8 * bytes) | after << (64 - 8 * bytes)
    }

    /// Returns the places of an `h` that belongs to a length-prefixed `h2`.
    #[inline(always)]
    const fn http2(&self) -> u64 {
        zeros((self.this ^ each(b'h')) | (self.behind(1) ^ each(2)) | (self.ahead(1) ^ each(b'2')))
    }

    /// Returns the places of a `/` between a protocol name and a possible version number.
    #[inline(always)]
    const fn versions(&self) -> u64 {
        if zeros(self.this ^ each(b'/')) == 0 {
            return 0;
        }
        let names = self.names();
        if names == 0 { 0 } else { names & self.numbers() }
    }

    #[inline(always)]
    const fn names(&self) -> u64 {
        let slash = self.this ^ each(b'/');
        let [last, third, second, first] = [self.behind(1), self.behind(2), self.behind(3), self.behind(4)];
        let http = slash
            | ((last | LOWER_CASE) ^ each(b'p'))
            | ((third | LOWER_CASE) ^ each(b't'))
            | ((second | LOWER_CASE) ^ each(b't'))
            | ((first | LOWER_CASE) ^ each(b'h'));
        let rtsp = slash | (last ^ each(b'P')) | (third ^ each(b'S')) | (second ^ each(b'T')) | (first ^ each(b'R'));
        let ice = slash | (last ^ each(b'E')) | (third ^ each(b'C')) | (second ^ each(b'I'));
        zeros(http) | zeros(rtsp) | zeros(ice | (first ^ each(b' '))) | zeros(ice | (first ^ each(b'\t')))
    }

    /// Returns the places that precede a possible version number: four bytes that may be digits, blanks, line ends or
    /// beyond the payload's end. Three bytes suffice if the third one ends the line.
    #[inline(always)]
    const fn numbers(&self) -> u64 {
        let (this, after) = (Self::of_number(self.this), Self::of_number(self.after));
        let third = self.ahead(3);
        Self::shifted(this, after, 1)
            & Self::shifted(this, after, 2)
            & Self::shifted(this, after, 3)
            & (Self::shifted(this, after, 4) | zeros(third ^ each(b'\n')) | zeros(third ^ each(b'\r')))
    }

    /// Returns the bytes of a word that may occur in a number, a blank or a line end, and a few others.
    #[inline(always)]
    const fn of_number(word: u64) -> u64 {
        between(word, 0, b' ') | between(word, b'.', b'9') | word & TOP_BITS
    }
}
