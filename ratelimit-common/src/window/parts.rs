//! What a cell's count is made of, of a limit that hosts share.

use super::{Cells, count_bits};

/// Bits of a cell's count that hold what other hosts admitted, of a limit that they share.
pub const OTHERS_BITS: u8 = 10;

/// The most units that a cell can hold of others.
pub const OTHERS_MAX: u64 = (1 << OTHERS_BITS) - 1;

/// What a cell's count is made of: four widths in a word, taken out of it where they are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Parts(pub u32);

impl Parts {
    /// More bits than any sum of a window has.
    pub const WHOLE: u8 = 63;

    const fn of(count_bits: u8, own_bits: u8, unit_bits: u8, step_bits: u8) -> Self {
        Self(u32::from_le_bytes([count_bits, own_bits, unit_bits, step_bits]))
    }

    /// Those of a limit that this host has for itself, with buckets of this length.
    pub const fn alone(bucket_ns: u64) -> Self {
        Self::of(count_bits(bucket_ns), Self::WHOLE, 0, Self::WHOLE)
    }

    /// Those of a limit of so much that hosts share. The unit is the smallest of which a cell holds twice the limit, less one,
    /// `step_bits` is as in [`Parts::step_bits`].
    pub const fn shared(bucket_ns: u64, amount: u64, step_bits: u8) -> Self {
        let count_bits = count_bits(bucket_ns);
        let amount_bits = 64 - amount.leading_zeros();
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let unit_bits = amount_bits.saturating_sub(OTHERS_BITS as u32 - 1) as u8;
        Self::of(count_bits, count_bits.saturating_sub(OTHERS_BITS), unit_bits, step_bits)
    }

    /// Width of the count, from [`count_bits`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one byte of the word is taken")]
    pub const fn count_bits(self) -> u8 {
        self.0 as u8 & 63
    }

    /// Width of this host's part, the low bits; [`Parts::WHOLE`] where there is no other.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one byte of the word is taken")]
    pub const fn own_bits(self) -> u8 {
        (self.0 >> 8) as u8 & 63
    }

    /// Others' part counts units of two to the power of this.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one byte of the word is taken")]
    pub const fn unit_bits(self) -> u8 {
        (self.0 >> 16) as u8 & 63
    }

    /// The same with another unit.
    #[must_use]
    pub const fn with_unit_bits(self, unit_bits: u8) -> Self {
        Self::of(self.count_bits(), self.own_bits(), unit_bits, self.step_bits())
    }

    /// A charge by which this host's part passes a multiple of two to the power of this is a step, which is told to
    /// the other hosts. [`Parts::WHOLE`]: none is.
    #[inline(always)]
    pub const fn step_bits(self) -> u8 {
        (self.0 >> 24) as u8 & 63
    }

    /// The same, of which the compiler then knows nothing: it keeps the word, and not what it took out of it before.
    #[inline(always)]
    pub(super) fn anew<C: Cells + ?Sized>(self) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "it had 32 bits")]
        Self(C::unknown(self.0 as usize) as u32)
    }

    /// The largest amount that a limit can have: where hosts share it, half of what this host's part holds, so that
    /// no sum over a window reaches into others' part, also where a reload has made the window longer.
    pub const fn amount_max(self) -> u64 {
        if self.own_bits() == Self::WHOLE { (1 << self.count_bits()) - 1 } else { (1 << (self.own_bits() - 1)) - 1 }
    }

    /// Of a sum of counts, this host's part.
    #[inline(always)]
    pub const fn own(self, sum: u64) -> u64 {
        sum & ((1 << self.own_bits()) - 1)
    }

    /// Of a sum of counts, others' part, in units.
    #[inline(always)]
    pub const fn units(self, sum: u64) -> u64 {
        sum >> self.own_bits()
    }

    /// What a sum of counts comes to.
    #[inline(always)]
    pub const fn total(self, sum: u64) -> u64 {
        self.own(sum).wrapping_add(self.units(sum) << self.unit_bits())
    }

    /// Whether so much more is a step, where this host's part is `own`.
    #[inline(always)]
    pub const fn is_step(self, own: u64, amount: u64) -> bool {
        (own ^ own.wrapping_add(amount)) >> self.step_bits() != 0
    }
}
