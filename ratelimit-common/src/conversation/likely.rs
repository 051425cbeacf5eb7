//! Finds the places in a block of payload that have all around them that a version or a protocol's name has, eight bytes
//! at a time.

use super::Sought;
use super::search::{BLOCK_BYTES, TOP_BITS, WORD_BYTES, between, each, gathered, word, zeros};
use crate::packet::Frame;

/// Longest name before a version.
const NAME_BYTES: u32 = 4;
const LOWER_CASE: u64 = each(0x20);

/// Likely places of a block: a bit for each of its bytes, the lowest for the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Likely(pub u32);

impl Sought {
    /// Returns the likely places of the block at `block`, of a payload from `start` to `end`. All of the block has to be
    /// before the end. Reads 8 bytes before the block, the block, and 8 bytes behind it.
    #[inline(always)]
    pub fn likely<F: Frame>(self, frame: &F, start: u32, block: u32, end: u32) -> Likely {
        // Headers of more than 40 bytes are before any payload, so that what is before a short one's block can be read.
        let (Some(before), Some(this)) = (loaded(frame, block.wrapping_sub(WORD_BYTES)), loaded(frame, block)) else {
            return Likely::default();
        };
        let mut words = Words { before, this, all: 0, next: block };
        // The four words of a block, and no loop: Linux 6.1 refuses one that its compiler enters in the middle.
        words.look(self, frame, end);
        words.look(self, frame, end);
        words.look(self, frame, end);
        words.look(self, frame, end);
        let mut all = words.all;
        if !matches!(self, Self::Http2)
            && block <= start
            && let Some(first) = word(frame, start, end)
        {
            // The name may have begun in the segment before.
            let slashes = gathered(zeros(first ^ each(b'/'))) & ((1 << NAME_BYTES) - 1);
            all |= slashes << ((start - block) & (BLOCK_BYTES - 1));
        }
        Likely(all)
    }
}

/// The words of a block, one after the other.
struct Words {
    before: u64,
    this: u64,
    /// Likely places so far, those of the newest word highest.
    all: u32,
    /// Where the word behind `this` begins.
    next: u32,
}

impl Words {
    #[inline(always)]
    fn look<F: Frame>(&mut self, sought: Sought, frame: &F, end: u32) {
        let Self { before, this, .. } = *self;
        self.next += WORD_BYTES;
        // Where less is known than a word, all of it may be whatever it has to be.
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

/// A word of the payload with the words around it.
struct Around {
    before: u64,
    this: u64,
    after: u64,
}

impl Around {
    /// Returns what stands so many bytes before each byte of the word.
    #[inline(always)]
    const fn behind(&self, bytes: u32) -> u64 {
        self.this << (8 * bytes) | self.before >> (64 - 8 * bytes)
    }

    /// Returns what stands so many bytes behind each byte of the word.
    #[inline(always)]
    const fn ahead(&self, bytes: u32) -> u64 {
        Self::shifted(self.this, self.after, bytes)
    }

    #[inline(always)]
    const fn shifted(this: u64, after: u64, bytes: u32) -> u64 {
        this >> (8 * bytes) | after << (64 - 8 * bytes)
    }

    /// Returns the places of `h` in `h2` behind its length.
    #[inline(always)]
    const fn http2(&self) -> u64 {
        zeros((self.this ^ each(b'h')) | (self.behind(1) ^ each(2)) | (self.ahead(1) ^ each(b'2')))
    }

    /// Returns the places of `/` behind the name of a protocol and before what may be a number.
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

    /// Returns the places before what numbers, blanks and ends of lines are made of, or before what is behind the
    /// payload's end: four bytes of it, or three of which the last ends the line.
    #[inline(always)]
    const fn numbers(&self) -> u64 {
        let (this, after) = (Self::of_number(self.this), Self::of_number(self.after));
        let third = self.ahead(3);
        Self::shifted(this, after, 1)
            & Self::shifted(this, after, 2)
            & Self::shifted(this, after, 3)
            & (Self::shifted(this, after, 4) | zeros(third ^ each(b'\n')) | zeros(third ^ each(b'\r')))
    }

    /// Returns the bytes of a word that a number, a blank or the end of a line may have, and a few others.
    #[inline(always)]
    const fn of_number(word: u64) -> u64 {
        between(word, 0, b' ') | between(word, b'.', b'9') | word & TOP_BITS
    }
}
