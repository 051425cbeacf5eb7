//! Composition of a cell's count, for a limit that hosts may share.

use super::{Cells, count_bits};

/// Number of bits of a cell's count for the amounts of other hosts, if the limit is shared.
pub const OTHERS_BITS: u8 = 10;

/// Maximum number of units that a cell can hold for other hosts.
pub const OTHERS_MAX: u64 = (1 << OTHERS_BITS) - 1;

/// Composition of a cell's count: four bit widths in a word, extracted where they are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Parts(pub u32);

impl Parts {
    /// Width for "all bits": more than any sum of a window has.
    pub const WHOLE: u8 = 63;

    const fn of(count_bits: u8, own_bits: u8, unit_bits: u8, step_bits: u8) -> Self {
        Self(u32::from_le_bytes([count_bits, own_bits, unit_bits, step_bits]))
    }

    /// Returns the parts of a limit that is not shared, with buckets of this length.
    pub const fn alone(bucket_ns: u64) -> Self {
        Self::of(count_bits(bucket_ns), Self::WHOLE, 0, Self::WHOLE)
    }

    /// Returns the parts of a shared limit of `amount`. The unit is the smallest one with which a cell can hold almost
    /// twice the limit. `step_bits` is [`Parts::step_bits`].
    pub const fn shared(bucket_ns: u64, amount: u64, step_bits: u8) -> Self {
        let count_bits = count_bits(bucket_ns);
        let amount_bits = 64 - amount.leading_zeros();
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let unit_bits = amount_bits.saturating_sub(OTHERS_BITS as u32 - 1) as u8;
        Self::of(count_bits, count_bits.saturating_sub(OTHERS_BITS), unit_bits, step_bits)
    }

    /// Returns the width of the count, from [`count_bits`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one byte of the word is taken")]
    pub const fn count_bits(self) -> u8 {
        self.0 as u8 & 63
    }

    /// Returns the width of this host's part, the low bits; [`Parts::WHOLE`] if there is no other part.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one byte of the word is taken")]
    pub const fn own_bits(self) -> u8 {
        (self.0 >> 8) as u8 & 63
    }

    /// Returns the binary logarithm of the unit in which the others' part is counted.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "one byte of the word is taken")]
    pub const fn unit_bits(self) -> u8 {
        (self.0 >> 16) as u8 & 63
    }

    /// Returns the parts with another unit.
    #[must_use]
    pub const fn with_unit_bits(self, unit_bits: u8) -> Self {
        Self::of(self.count_bits(), self.own_bits(), unit_bits, self.step_bits())
    }

    /// Returns the binary logarithm of a step. A charge by which this host's part passes a multiple of the step is sent
    /// to the other hosts. With [`Parts::WHOLE`], none is.
    #[inline(always)]
    pub const fn step_bits(self) -> u8 {
        (self.0 >> 24) as u8 & 63
    }

    /// Returns the parts in a form whose value the compiler does not know. It then keeps the one word instead of the
    /// extracted widths.
    #[inline(always)]
    pub(super) fn anew<C: Cells + ?Sized>(self) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "it had 32 bits")]
        Self(C::unknown(self.0 as usize) as u32)
    }

    /// Returns the largest amount of a limit. For a shared limit, it is half of what this host's part can hold. So no
    /// sum over a window reaches into the others' part, even after a reload has made the window longer.
    pub const fn amount_max(self) -> u64 {
        if self.own_bits() == Self::WHOLE { (1 << self.count_bits()) - 1 } else { (1 << (self.own_bits() - 1)) - 1 }
    }

    /// Returns this host's part of a sum of counts.
    #[inline(always)]
    pub const fn own(self, sum: u64) -> u64 {
        sum & ((1 << self.own_bits()) - 1)
    }

    /// Returns the others' part of a sum of counts, in units.
    #[inline(always)]
    pub const fn units(self, sum: u64) -> u64 {
        sum >> self.own_bits()
    }

    /// Returns the total amount of a sum of counts.
    #[inline(always)]
    pub const fn total(self, sum: u64) -> u64 {
        self.own(sum).wrapping_add(self.units(sum) << self.unit_bits())
    }

    /// Returns whether `amount` more is a step, if this host's part is `own`.
    #[inline(always)]
    pub const fn is_step(self, own: u64, amount: u64) -> bool {
        (own ^ own.wrapping_add(amount)) >> self.step_bits() != 0
    }
}
