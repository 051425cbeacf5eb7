//! Multiplicity: how many logged requests one counted request stands for.

/// Sixteenths of one request.
const ONE: u16 = 16;

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

    /// Returns `lines` divided by `turns_16`, which is in sixteenths and counts as one turn at least.
    pub(crate) fn quotient(lines: u64, turns_16: u64) -> Self {
        let one = u128::from(ONE);
        let sixteenths = u128::from(lines) * one * one / u128::from(turns_16).max(one);
        Self::from_sixteenths(u16::try_from(sixteenths).unwrap_or(u16::MAX))
    }

    /// Returns how many turns were charged as `amount` requests, in sixteenths.
    pub(crate) fn turns_16(self, amount: u64) -> u64 {
        let turns = u128::from(amount) * u128::from(ONE) * u128::from(ONE) / u128::from(self.0);
        u64::try_from(turns).unwrap_or(u64::MAX)
    }

    /// Returns what is left after `age_ns`: all of it at first, 1 after `window_ns`, and evenly less in between.
    pub(crate) fn decayed(self, age_ns: u64, window_ns: u64) -> Self {
        let left_ns = u128::from(window_ns.saturating_sub(age_ns));
        let above = u128::from(self.0 - ONE) * left_ns / u128::from(window_ns.max(1));
        Self(u16::try_from(above).unwrap_or_default() + ONE)
    }
}

impl Default for Multiplicity {
    fn default() -> Self {
        Self::ONE
    }
}
