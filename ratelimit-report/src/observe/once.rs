//! Sources that came once: of many, as of a flood of forged ones, what they wanted is kept, and not who they were.

use std::collections::BTreeMap;

use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::CELLS;

/// Sources that are always known by name. // 16384 x 0.2 KB = 3.3 MB
pub(super) const NAMED: usize = 16_384;
/// Digits of a peak that are kept, in bits.
const PEAK_BITS: u32 = 7;

/// What is left of sources that are not known by name any more.
#[derive(Debug, Default)]
pub(super) struct Once {
    /// How many had this peak. // 7 bits of 64 at any place: fewer than 3 800 peaks
    peaks: BTreeMap<u64, u64>,
    /// The windows of sources whose newest bucket is no later than this are of those.
    until: Option<BucketIndex>,
}

impl Once {
    /// Whether it is worth it to keep no names of so many sources, where there are so many in all.
    pub(super) fn is_worth(all: usize, may_go: usize) -> bool {
        all > NAMED && may_go > all / 2
    }

    /// Returns the last bucket of which nothing can change any more at `current`.
    pub(super) fn settled(current: BucketIndex) -> BucketIndex {
        BucketIndex(current.0.saturating_sub(CELLS as u64))
    }

    /// Takes in one more, by the most that it wanted.
    pub(super) fn add(&mut self, peak: u64) {
        let digits = u64::BITS - peak.leading_zeros();
        let rounded = peak >> digits.saturating_sub(PEAK_BITS) << digits.saturating_sub(PEAK_BITS);
        *self.peaks.entry(rounded).or_default() += 1;
    }

    /// Those that were active until then alone are in it.
    pub(super) fn settle(&mut self, until: BucketIndex) {
        self.until = self.until.max(Some(until));
    }

    /// Whether a window whose newest bucket is this one is of a source that is in it.
    pub(super) fn has(&self, newest: Option<BucketIndex>) -> bool {
        self.until.zip(newest).is_some_and(|(until, newest)| newest <= until)
    }

    /// Whether a window that has this bucket is of a source that is in it and is back.
    pub(super) fn had(&self, oldest: Option<BucketIndex>) -> bool {
        self.until.zip(oldest).is_some_and(|(until, oldest)| oldest <= until)
    }

    /// The most that each wanted.
    pub(super) fn peaks(&self) -> impl Iterator<Item = u64> {
        let all = self.peaks.iter().filter(|(peak, _)| **peak > 0);
        all.flat_map(|(peak, count)| std::iter::repeat_n(*peak, usize::try_from(*count).unwrap_or(usize::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_kept_to_seven_bits() {
        let mut once = Once::default();
        [0, 1, 127, 128, 129, 1_000_000, u64::MAX].into_iter().for_each(|peak| once.add(peak));
        let peaks: Vec<u64> = once.peaks().collect();
        assert_eq!(peaks, [1, 127, 128, 128, 999_424, 0xfe << 56]);
    }
}
