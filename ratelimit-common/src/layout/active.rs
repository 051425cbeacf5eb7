//! Generation of the configuration that packets read, and epoch of the entries that they cache.

use super::GENERATIONS;
use crate::hash::{HashKey, spread};
use crate::source::Address;
use crate::time::Nanos;

/// Word that packets read first. The lowest bit is the generation, the 31 bits above it are the lapse time, and the
/// upper half is the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Active(pub u64);

const _: () = assert!(GENERATIONS == 2, "a generation has one bit");

impl Active {
    /// Bits of the unit of a lapse time: 2^28 ns, 268 ms. 31 bits of units cover 18 years: nine before now, nine after.
    const LAPSE_UNIT_BITS: u32 = 28;
    /// Mask of the bits of a lapse time.
    const LAPSE_MASK: u32 = u32::MAX >> 1;
    /// Sign bit of the difference of two lapse times: set if the first is before the second.
    const IS_BEFORE: u32 = 1 << 30;
    /// Bits of the epoch that differ after a trial.
    const AFTER_TRIAL: u32 = 1 << 31 | 1 << 4;

    /// Mask of the bits of the epoch that a drop-cache entry holds.
    pub const ENTRY_EPOCH_MASK: u32 = 0x1f;

    /// Returns the word for this generation and epoch, without a lapse time.
    #[inline(always)]
    pub const fn new(generation: u32, epoch: u32) -> Self {
        Self((epoch as u64) << 32 | generation as u64)
    }

    /// Returns the generation of the configuration that packets read.
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half, and cut to the generations that there are"
        )]
        let generation = self.0 as u32 & (GENERATIONS - 1);
        generation
    }

    /// Returns the epoch after a trial that was rolled back in this one. No daemon starts with it, and drop-cache
    /// entries distinguish the two.
    #[inline(always)]
    pub const fn epoch_after_trial(epoch: u32) -> u32 {
        epoch ^ Self::AFTER_TRIAL
    }

    /// Returns the word that packets use after a trial was rolled back: the other generation, with an epoch of its own.
    /// Entries that were cached during the trial are then invalid.
    #[inline(always)]
    #[must_use]
    pub const fn after_trial(self) -> Self {
        Self(self.0 ^ ((Self::AFTER_TRIAL as u64) << 32 | 1))
    }

    /// Returns the word with this generation and epoch, and with the old lapse time.
    #[must_use]
    pub const fn with(self, generation: u32, epoch: u32) -> Self {
        let lapse = self.0 & ((Self::LAPSE_MASK as u64) << 1);
        Self(Self::new(generation & (GENERATIONS - 1), epoch).0 | lapse)
    }

    /// Returns the word with this lapse time, rounded up by less than a unit. None means that enforcement never lapses.
    #[must_use]
    pub const fn with_lapse(self, at: Option<Nanos>) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "cut to the bits that there are")]
        let units = match at {
            None => 0,
            Some(at) => match at.0.div_ceil(1 << Self::LAPSE_UNIT_BITS) as u32 & Self::LAPSE_MASK {
                0 => 1,
                units => units,
            },
        };
        Self(self.0 & !((Self::LAPSE_MASK as u64) << 1) | (units as u64) << 1)
    }

    /// Returns whether enforcement has lapsed by this time, since no daemon has confirmed within the configured time
    /// that it runs.
    #[inline(always)]
    pub const fn has_lapsed(self, now: Nanos) -> bool {
        self.may_lapse() && Self::units(now).wrapping_sub(self.lapse_units()) & Self::IS_BEFORE == 0
    }

    /// Returns whether a lapse time is set.
    #[inline(always)]
    pub const fn may_lapse(self) -> bool {
        self.lapse_units() != 0
    }

    /// Returns the time at which enforcement lapses or has lapsed. `now` resolves the wrapped bits.
    pub const fn lapse(self, now: Nanos) -> Option<Nanos> {
        if !self.may_lapse() {
            return None;
        }
        let ahead = (self.lapse_units().wrapping_sub(Self::units(now)) << 1).cast_signed() >> 1;
        let units = (now.0 >> Self::LAPSE_UNIT_BITS).saturating_add_signed(ahead as i64);
        Some(Nanos(units << Self::LAPSE_UNIT_BITS))
    }

    #[inline(always)]
    const fn lapse_units(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let lower = self.0 as u32;
        lower >> 1
    }

    #[inline(always)]
    const fn units(time: Nanos) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "differences are of 31 bits")]
        let units = (time.0 >> Self::LAPSE_UNIT_BITS) as u32;
        units
    }

    /// Returns the next epoch. In a drop-cache entry, 0 means no epoch. So the bits of this epoch, and of the one after
    /// its trial, are never 0 or all ones.
    pub const fn next_epoch(self) -> u32 {
        let next = self.epoch().wrapping_add(1);
        match next & 0xf {
            0 => next + 1,
            0xf => next.wrapping_add(2),
            _ => next,
        }
    }

    /// Returns the epoch, which grows whenever cached facts of sources may be invalid: see [`crate::drop_cache`] and
    /// [`PrefixMiss`].
    #[inline(always)]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Entry of [`super::map::PREFIX_MISSES`]: no prefix holds this source, in this epoch. For IPv4, it holds the address
/// itself, so entries may share a place. For IPv6, it is a keyed hash of 64 bits, so one source in 2^63 is mistaken for
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMiss {
    /// Word of the map in which the entry lies, modulo the number of words.
    pub place: u64,
    /// Value of the word if the entry is present.
    pub word: u64,
}

/// Bits that, with the epoch, mark the hash of an IPv6 entry. No other hash uses them.
const WORDS: u64 = 1 << 41;

impl PrefixMiss {
    /// Returns the entry of this source; `places` is [`HashKey::of_places`].
    #[inline(always)]
    pub const fn of(source: Address, epoch: u32, seed: HashKey, places: u64) -> Self {
        match source {
            Address::V4(address) => {
                Self { place: spread(places, address), word: (epoch as u64) << 32 | address as u64 }
            }
            Address::V6([high, low]) => {
                let place = seed.hash(high, low);
                let word = seed.hash(place, WORDS | epoch as u64);
                // 0 means no entry.
                Self { place, word: word | 1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NS;

    const UNIT: u64 = 1 << Active::LAPSE_UNIT_BITS;

    #[test]
    fn enforcement_lapses_within_a_unit_of_its_time_and_never_without_one() {
        let word = Active::new(1, 77);
        for start in [0, UNIT - 1, UNIT << 31, (UNIT << 31) - 5 * SECOND_NS, 1_800_000_000 * SECOND_NS] {
            let at = Nanos(start + 2 * SECOND_NS);
            let set = word.with_lapse(Some(at));
            assert_eq!((set.generation(), set.epoch()), (1, 77));
            assert!(!set.has_lapsed(Nanos(start)) && !set.has_lapsed(Nanos(at.0 - 1)), "{start}");
            // A time whose units would read as 0 is stored one unit later.
            let latest = if at.0.div_ceil(UNIT) & 0x7fff_ffff == 0 { 2 * UNIT } else { UNIT };
            assert!(set.has_lapsed(Nanos(at.0 + latest)), "{start}");
            assert!(set.has_lapsed(Nanos(at.0 + 3_600 * 24 * 365 * 9 * SECOND_NS)), "{start}");
            for now in [start, at.0 + 86_400 * SECOND_NS] {
                let told = set.lapse(Nanos(now)).unwrap().0;
                assert!((at.0..at.0 + latest).contains(&told), "{told} is not {at:?}");
            }
            assert_eq!(set.with_lapse(None), word);
            assert!(!word.has_lapsed(at) && word.lapse(at).is_none());
        }
        // A multiple of the whole range of units.
        assert!(word.with_lapse(Some(Nanos(UNIT << 31))).may_lapse());
    }

    #[test]
    fn the_time_of_lapse_stays_with_another_generation_another_epoch_and_after_a_trial() {
        let at = Some(Nanos(1_800_000_000 * SECOND_NS));
        let word = Active::new(0, 9).with_lapse(at);
        for other in [word.with(1, 12), word.with(3, 12)] {
            assert_eq!(other, Active::new(1, 12).with_lapse(at));
        }
        let after = word.after_trial();
        assert_eq!(after, Active::new(1, Active::epoch_after_trial(9)).with_lapse(at));
        assert_eq!(after.after_trial(), word);
    }

    #[test]
    fn no_epoch_is_none_in_an_entry_or_the_same_as_the_one_before_or_that_after_a_trial() {
        let mut active = Active::new(0, u32::MAX - 40);
        for _ in 0..100 {
            let (before, epoch) = (active.epoch() & Active::ENTRY_EPOCH_MASK, active.next_epoch());
            let after_trial = Active::epoch_after_trial(epoch);
            for of in [epoch, after_trial].map(|of| of & Active::ENTRY_EPOCH_MASK) {
                assert!(of != 0 && of != Active::ENTRY_EPOCH_MASK && of != before, "{epoch:x} after {before:x}");
            }
            assert_ne!(epoch & Active::ENTRY_EPOCH_MASK, after_trial & Active::ENTRY_EPOCH_MASK);
            active = Active::new(0, epoch);
        }
    }

    #[test]
    fn neighbouring_addresses_of_ipv4_are_spread_over_all_places() {
        const PLACES: usize = 1 << 17;
        for key in 0..20 {
            let places = HashKey([key, 1]).of_places();
            for step in [1, 256, 65_536] {
                let mut taken = vec![false; PLACES];
                for number in 0..65_536_u32 {
                    let source = Address::V4(number.wrapping_mul(step).to_be());
                    let PrefixMiss { place, word } = PrefixMiss::of(source, 7, HashKey([key, 1]), places);
                    taken[usize::try_from(place).unwrap() % PLACES] = true;
                    assert_eq!(word, 7 << 32 | u64::from(number.wrapping_mul(step).to_be()));
                }
                let (taken, addresses) =
                    (taken.iter().filter(|taken| **taken).count(), 65_536.min((1_u64 << 32) / u64::from(step)));
                // With random places, four fifths would have a place of their own.
                assert!(taken as u64 * 2 > addresses, "{taken} places of {addresses} by key {key}, step {step}");
            }
        }
    }
}
