//! Multiplicity: how many logged requests one counted request stands for.

/// Sixteenths of one request.
const ONE: u16 = 16;
/// Parts of one turn.
const TURN: u128 = 4096;

/// A quotient of logged to counted requests, at least 1, in sixteenths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Multiplicity(u16);

impl Multiplicity {
    /// Each counted request is one.
    pub const ONE: Self = Self(ONE);
    /// Largest value: 4095 and 15 sixteenths.
    pub const MAX: Self = Self(u16::MAX);

    /// Returns the multiplicity of that many sixteenths, 1 if that is less.
    #[must_use]
    pub const fn from_sixteenths(sixteenths: u16) -> Self {
        Self(if sixteenths < ONE { ONE } else { sixteenths })
    }

    /// Returns a whole multiplicity, between 1 and [`Self::MAX`].
    #[must_use]
    pub const fn from_whole(whole: u16) -> Self {
        Self::from_sixteenths(whole.saturating_mul(ONE))
    }

    /// Returns the number of sixteenths, 16 or more.
    #[must_use]
    pub const fn sixteenths(self) -> u16 {
        self.0
    }

    /// Returns `lines` divided by `turns`, which is in parts of 4096 and counts as one turn at least.
    pub(crate) fn quotient(lines: u64, turns: u64) -> Self {
        let sixteenths = u128::from(lines) * u128::from(ONE) * TURN / u128::from(turns).max(TURN);
        Self::from_sixteenths(u16::try_from(sixteenths).unwrap_or(u16::MAX))
    }

    /// Returns how many turns were charged as `amount` requests, in parts of 4096.
    pub(crate) fn turns(self, amount: u64) -> u64 {
        let turns = u128::from(amount) * u128::from(ONE) * TURN / u128::from(self.0);
        u64::try_from(turns).unwrap_or(u64::MAX)
    }

    /// Returns the multiplicity that would have become `to` while this one became `from`, if that is less.
    pub(crate) fn lowered(self, to: Self, from: Self) -> Self {
        if to >= from {
            return self;
        }
        let above = u128::from(self.0 - ONE) * u128::from(to.0 - ONE) / u128::from(from.0 - ONE);
        Self(u16::try_from(above).unwrap_or_default() + ONE)
    }

    /// Returns the nearest whole number of requests, which a turn can be charged as.
    pub(crate) fn rounded(self) -> Self {
        Self::from_whole((self.0.saturating_add(ONE / 2)) / ONE)
    }

    /// Number of requests by which a turn of one request is overcharged.
    pub(crate) fn overcharge(self) -> u64 {
        u64::from((self.0 - ONE) / ONE)
    }

    /// Returns the part of what exceeds 1 that is left after `age` of `whole`, plus 1.
    pub(crate) fn decayed(self, age: u64, whole: u64) -> Self {
        let left = u128::from(whole.saturating_sub(age));
        let above = u128::from(self.0 - ONE) * left / u128::from(whole.max(1));
        Self(u16::try_from(above).unwrap_or_default() + ONE)
    }
}

impl Default for Multiplicity {
    fn default() -> Self {
        Self::ONE
    }
}
