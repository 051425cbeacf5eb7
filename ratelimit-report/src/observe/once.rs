//! Sources that came once, as in a flood of forged addresses. Only their peak demands are kept, not their addresses.

use std::collections::BTreeMap;

use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::CELLS;

/// Number of sources that are always kept by address. // 16384 x 0.2 KB = 3.3 MB
pub(super) const NAMED: usize = 16_384;
/// Significant bits of a peak that are kept.
const PEAK_BITS: u32 = 7;

/// Peaks of sources that are no longer kept by address.
#[derive(Debug, Default)]
pub(super) struct Once {
    /// Number of sources by rounded peak. // 7 significant bits of 64: fewer than 3 800 peaks
    peaks: BTreeMap<u64, u64>,
    /// Last bucket covered. A window with no later activity belongs to a source that is counted here.
    until: Option<BucketIndex>,
}

impl Once {
    /// Returns true if dropping addresses pays: of more than [`NAMED`] sources, more than half may go.
    pub(super) fn is_worth(all: usize, may_go: usize) -> bool {
        all > NAMED && may_go > all / 2
    }

    /// Returns the last bucket that cannot change any more at `current`.
    pub(super) fn settled(current: BucketIndex) -> BucketIndex {
        BucketIndex(current.0.saturating_sub(CELLS as u64))
    }

    /// Adds a source by its peak demand, rounded down to [`PEAK_BITS`] significant bits.
    pub(super) fn add(&mut self, peak: u64) {
        let digits = u64::BITS - peak.leading_zeros();
        let rounded = peak >> digits.saturating_sub(PEAK_BITS) << digits.saturating_sub(PEAK_BITS);
        *self.peaks.entry(rounded).or_default() += 1;
    }

    /// Extends the covered period to `until`. A window with no later activity belongs to a source that is counted here.
    pub(super) fn settle(&mut self, until: BucketIndex) {
        self.until = self.until.max(Some(until));
    }

    /// Returns true if a window with this newest bucket belongs to a source that is already counted here.
    pub(super) fn has(&self, newest: Option<BucketIndex>) -> bool {
        self.until.zip(newest).is_some_and(|(until, newest)| newest <= until)
    }

    /// Returns true if a window with this oldest bucket belongs to a source that was counted here and has returned.
    pub(super) fn had(&self, oldest: Option<BucketIndex>) -> bool {
        self.until.zip(oldest).is_some_and(|(until, oldest)| oldest <= until)
    }

    /// Returns the rounded peak demand of each source, ascending, without zeros.
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
