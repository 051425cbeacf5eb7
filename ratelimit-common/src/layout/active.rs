//! Which generation of the configuration packets read, and the epoch of what they cache.

use super::GENERATIONS;
use crate::hash::{HashKey, spread};
use crate::source::Address;

/// What packets read first, in one load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Active(pub u64);

impl Active {
    /// The bits of the epoch that a drop-cache entry has.
    pub const ENTRY_EPOCH_MASK: u32 = 0x1f;

    /// The word.
    #[inline(always)]
    pub const fn new(generation: u32, epoch: u32) -> Self {
        Self((epoch as u64) << 32 | generation as u64)
    }

    /// Which generation of the configuration packets read.
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half, and cut to the generations that there are"
        )]
        let generation = self.0 as u32 & (GENERATIONS - 1);
        generation
    }

    /// The epoch after a trial that ended by itself in this one. No daemon begins it, and drop-cache entries tell it
    /// apart too.
    #[inline(always)]
    pub const fn epoch_after_trial(epoch: u32) -> u32 {
        epoch ^ (1 << 31 | 1 << 4)
    }

    /// The other generation, which packets read after a trial that ended by itself. Nothing else begins its epoch,
    /// and what was cached on trial holds no longer.
    #[inline(always)]
    #[must_use]
    pub const fn after_trial(self) -> Self {
        Self::new(self.generation() ^ 1, Self::epoch_after_trial(self.epoch()))
    }

    /// The next epoch. In a drop-cache entry neither it nor the one after its trial is 0, which is none, or all ones.
    pub const fn next_epoch(self) -> u32 {
        let next = self.epoch().wrapping_add(1);
        match next & 0xf {
            0 => next + 1,
            0xf => next.wrapping_add(2),
            _ => next,
        }
    }

    /// Grows whenever what was cached of sources may hold no longer: see [`crate::drop_cache`] and [`PrefixMiss`].
    #[inline(always)]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// An entry of [`map::PREFIX_MISSES`]: no prefix holds this source, in this epoch. Of IPv4 it is the address itself,
/// so its place may be any. Of IPv6 it is a keyed hash of 64 bits, so one source in 2^63 is taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMiss {
    /// Which word of the map, before it is cut to how many there are.
    pub place: u64,
    /// What it says then.
    pub word: u64,
}

/// With the epoch, what is hashed for a word of IPv6: nothing else is hashed with these bits.
const WORDS: u64 = 1 << 41;

impl PrefixMiss {
    /// The entry of this source; `places` is [`HashKey::of_places`].
    #[inline(always)]
    pub const fn of(source: Address, epoch: u32, seed: HashKey, places: u64) -> Self {
        match source {
            Address::V4(address) => {
                Self { place: spread(places, address), word: (epoch as u64) << 32 | address as u64 }
            }
            Address::V6([high, low]) => {
                let place = seed.hash(high, low);
                let word = seed.hash(place, WORDS | epoch as u64);
                // 0 is no entry.
                Self { place, word: word | 1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                // At random four fifths would have a place of their own.
                assert!(taken as u64 * 2 > addresses, "{taken} places of {addresses} by key {key}, step {step}");
            }
        }
    }
}
