//! Which generation of the configuration packets read, and the epoch of what they note.

use super::GENERATIONS;
use crate::refused::mix;
use crate::source::Address;

/// What packets read first, in one load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Active(pub u64);

impl Active {
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

    /// The epoch after a trial that ended by itself in this one.
    #[inline(always)]
    pub const fn epoch_after_trial(epoch: u32) -> u32 {
        epoch ^ 1 << 31
    }

    /// Grows whenever what was noted of sources may hold no longer: see [`crate::refused`] and [`Unlisted`].
    #[inline(always)]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A note in [`map::UNLISTED`]: no prefix holds this source, in this epoch. Of IPv4 it is the address itself. Of IPv6 it is a keyed hash
/// of 64 bits, so one source in 2^64 is taken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlisted {
    /// Which word of the map, before it is cut to how many there are.
    pub place: u64,
    /// What it says then.
    pub word: u64,
}

impl Unlisted {
    /// The note of this source.
    #[inline(always)]
    pub const fn of(source: Address, epoch: u32, seed: u64) -> Self {
        match source {
            Address::V4(address) => {
                Self { place: mix(seed, address as u64, 4), word: (epoch as u64) << 32 | address as u64 }
            }
            Address::V6([high, low]) => {
                let place = mix(seed, high, low);
                let word = mix(mix(!seed, high, low.rotate_left(32)), epoch as u64, low ^ place);
                // 0 is no note.
                Self { place, word: word | 1 }
            }
        }
    }
}
