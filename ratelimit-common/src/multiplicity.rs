//! Multiplicity of a source: number of requests that one turn of it is charged as. It exceeds 1 if the server's access
//! log has more requests than were counted. The daemon learns it from the log, and packets read it.
//!
//! An element belongs to one source under one rule. Sources that share a place replace each other's elements. A turn of
//! a source without an element counts as one request. A rule has an element too, which says that its log is read in
//! time.

use crate::hash::spread;
use crate::time::Nanos;

/// Number of elements for sources, a power of two.
pub const SOURCE_PLACES: u32 = 1 << 16;

/// Shift from nanoseconds to the unit of an element's end (1.07 s).
const END_SHIFT: u32 = 30;
const END_LOW: u32 = 32;
const ROW_LOW: u32 = 16;

/// Number of requests that each turn of a source is charged as, until an end.
///
/// ```text
///     63          32 31    24 23       16 15        0
///    [ end, 2^30 ns | unused | rule's row | requests ]
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Multiplicity {
    /// [`SourceName`] of the source; 0 in the element of a rule.
    source: u64,
    word: u64,
}

const _: () = assert!(size_of::<Multiplicity>() == 16);

/// Identifier of a source in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceName(u64);

impl SourceName {
    /// Returns the name of the source with these words. `places` is the key of [`spread`].
    #[inline(always)]
    pub const fn of(words: [u64; 2], places: u64) -> Self {
        Self(words[0] ^ words[1].wrapping_mul(places | 1))
    }

    /// Returns the index of the source's element for the rule with this row.
    #[inline(always)]
    pub const fn place(self, row: u8, places: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "both halves are mixed")]
        let mixed = (self.0 ^ self.0 >> 32) as u32 ^ (row as u32) << 24;
        #[expect(clippy::cast_possible_truncation, reason = "it has 32 bits")]
        let place = spread(places, mixed) as u32;
        place & (SOURCE_PLACES - 1)
    }
}

/// Returns the index of the element of the rule with this row.
#[inline(always)]
pub const fn place_of_rule(row: u8) -> u32 {
    SOURCE_PLACES + row as u32
}

impl Multiplicity {
    /// Returns an element for a source.
    pub const fn new(source: SourceName, row: u8, requests: u16, until: Nanos) -> Self {
        Self::with(source.0, row, requests, until)
    }

    /// Returns the element of a rule whose log is read in time.
    pub const fn of_rule(row: u8, until: Nanos) -> Self {
        Self::with(0, row, 1, until)
    }

    const fn with(source: u64, row: u8, requests: u16, until: Nanos) -> Self {
        Self { source, word: until.0 >> END_SHIFT << END_LOW | (row as u64) << ROW_LOW | requests as u64 }
    }

    /// Returns the number of requests, at least 1. Returns None if the element belongs to another source or rule, or
    /// has expired.
    #[inline(always)]
    pub const fn requests(&self, source: SourceName, row: u8, now: Nanos) -> Option<u32> {
        self.requests_of(source.0, row, now)
    }

    /// Returns whether the log of the rule with this row is read in time.
    #[inline(always)]
    pub const fn is_log_read(&self, row: u8, now: Nanos) -> bool {
        self.requests_of(0, row, now).is_some()
    }

    #[inline(always)]
    const fn requests_of(&self, name: u64, row: u8, now: Nanos) -> Option<u32> {
        let is_its = self.source == name && self.word >> ROW_LOW & 0xff == row as u64;
        if !is_its || self.word >> END_LOW <= now.0 >> END_SHIFT {
            return None;
        }
        let requests = (self.word & 0xffff) as u32;
        Some(if requests == 0 { 1 } else { requests })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NS;

    const PLACES: u64 = 0x9e37_79b9_7f4a_7c15;
    const NOW: Nanos = Nanos(1_800_000_000 * SECOND_NS);

    #[test]
    fn an_element_is_of_its_source_and_rule_until_its_end() {
        let [one, other] = [[7, 4], [7, 6]].map(|words| SourceName::of(words, PLACES));
        let until = Nanos(NOW.0 + 10 * SECOND_NS);
        let element = Multiplicity::new(one, 3, 100, until);
        assert_eq!(element.requests(one, 3, NOW), Some(100));
        assert_eq!(element.requests(one, 2, NOW), None);
        assert_eq!(element.requests(other, 3, NOW), None);
        assert!(!element.is_log_read(3, NOW));
        assert_eq!(element.requests(one, 3, until), None);
        assert_eq!(Multiplicity::new(one, 3, 0, until).requests(one, 3, NOW), Some(1));
        let of_rule = Multiplicity::of_rule(3, until);
        assert!(of_rule.is_log_read(3, NOW) && !of_rule.is_log_read(3, until) && !of_rule.is_log_read(2, NOW));
        assert!(!Multiplicity::default().is_log_read(0, NOW));
    }

    #[test]
    fn sources_of_a_network_have_places_of_their_own() {
        let place = |last: u64| SourceName::of([last << 24 | 0x07_00_0a, 4], PLACES).place(0, PLACES);
        let mut places: Vec<u32> = (0..256).map(place).collect();
        assert!(places.iter().all(|place| *place < SOURCE_PLACES));
        places.sort_unstable();
        places.dedup();
        assert!(places.len() > 250, "{}", places.len());
        assert_eq!(place_of_rule(0), SOURCE_PLACES);
    }
}
