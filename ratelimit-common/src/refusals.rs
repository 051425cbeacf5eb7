//! Memory of a window's refusals in one word: their number, and the bucket of the newest one.
//!
//! A source exactly at its limit is not over it. Its last admitted connection continues, even under a rule that refuses
//! everything of a source over its limit. The bucket distinguishes the two cases.
//!
//! ```text
//!     63            36 35            0
//!    [ bucket, low bits | refusals    ]
//! ```

use crate::time::BucketIndex;

/// Width of the count. At a million refusals a second, one source fills it in 19 hours; then it stays at its maximum.
const COUNT_BITS: u32 = 36;

/// Maximum of the count. It is below 2^36 by a margin, so concurrent additions by all CPUs, one each, never carry into
/// the bucket.
const COUNT_MAX: u64 = (1 << COUNT_BITS) - (1 << 16);

/// Word with the bucket and the number of refusals, see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Refusals(pub u64);

impl Refusals {
    /// Returns the number of packets that the window has refused.
    #[inline(always)]
    pub const fn count(self) -> u64 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }

    /// Returns whether the count has reached its maximum, so nothing may be added to the word.
    #[inline(always)]
    pub const fn is_full(self) -> bool {
        self.count() >= COUNT_MAX
    }

    /// Returns the word after `more` refusals in the bucket of the newest one.
    #[inline(always)]
    pub const fn and(self, more: u64) -> Self {
        Self(self.0 + self.room_for(more))
    }

    /// Returns how many of `more` refusals the word can count.
    #[inline(always)]
    pub const fn room_for(self, more: u64) -> u64 {
        let room = COUNT_MAX.saturating_sub(self.count());
        if more < room { more } else { room }
    }

    /// Returns whether the newest refusal was in this bucket.
    #[inline(always)]
    pub const fn is_in(self, bucket: BucketIndex) -> bool {
        self.0 >> COUNT_BITS == low(bucket)
    }

    /// Returns whether a refusal in this bucket is the first one there. [`Refusals::and_one_in`] counts a first
    /// refusal; adding 1 to the word counts any other. The newest refusal may be in a later bucket, if another CPU's
    /// clock is ahead.
    #[inline(always)]
    pub const fn is_first_in(self, bucket: BucketIndex) -> bool {
        let ahead = (self.0 >> COUNT_BITS).wrapping_sub(low(bucket)) & LOW;
        self.count() == 0 || ahead > AHEAD_MAX
    }

    /// Returns the word after one more refusal, in this bucket.
    #[inline(always)]
    pub const fn and_one_in(self, bucket: BucketIndex) -> Self {
        let count = if self.is_full() { self.count() } else { self.count() + 1 };
        Self(low(bucket) << COUNT_BITS | count)
    }

    /// Returns the word after `more` refusals, at least one, in this bucket.
    #[inline(always)]
    pub const fn and_more_in(self, bucket: BucketIndex, more: u64) -> Self {
        if self.is_first_in(bucket) { self.and_one_in(bucket).and(more.saturating_sub(1)) } else { self.and(more) }
    }

    /// Returns whether the newest refusal was in this bucket or one of the `full_buckets` before it. A refusal 2^28
    /// buckets ago looks like a new one; with the shortest buckets, that is 20 months.
    #[inline(always)]
    pub const fn is_within(self, bucket: BucketIndex, full_buckets: u8) -> bool {
        let age = low(bucket).wrapping_sub(self.0 >> COUNT_BITS) & LOW;
        self.count() != 0 && age <= full_buckets as u64
    }

    /// Returns whether a rule that refuses everything of a source over its limit passes a packet of this amount.
    /// `is_within` says whether that amount is within the limit; for an amount of 0, whether 1 is.
    ///
    /// After a refusal, nothing passes before the next bucket begins, even a smaller amount that would be within the
    /// limit. From then on, amounts within the limit pass. An amount of 0, which no unit counts, passes until the
    /// window refuses something.
    #[inline(always)]
    pub const fn passes_refuse_all(self, amount: u64, bucket: BucketIndex, full_buckets: u8, is_within: bool) -> bool {
        if self.is_within(bucket, 0) {
            return false;
        }
        amount == 0 && !self.is_within(bucket, full_buckets) || is_within
    }
}

/// Maximum number of buckets that one CPU's clock is ahead of another's: a quarter of a second, in buckets of a fifth.
const AHEAD_MAX: u64 = 2;

const LOW: u64 = (1 << (64 - COUNT_BITS)) - 1;

#[inline(always)]
const fn low(bucket: BucketIndex) -> u64 {
    bucket.0 & LOW
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: BucketIndex = BucketIndex(29_700_600);

    #[test]
    fn nothing_refused_is_within_no_window() {
        assert!(!Refusals(0).is_within(BucketIndex(0), 7));
        assert!(!Refusals(0).is_within(NOW, 7));
    }

    #[test]
    fn a_refusal_stays_within_the_window_as_long_as_its_bucket_does() {
        let refusals = Refusals(0).and_one_in(NOW);
        assert_eq!(refusals.count(), 1);
        assert!(!refusals.is_first_in(NOW));
        assert!(refusals.is_within(BucketIndex(NOW.0 + 5), 5));
        assert!(!refusals.is_within(BucketIndex(NOW.0 + 6), 5));
    }

    #[test]
    fn the_count_goes_on_in_the_next_bucket() {
        let refusals = Refusals(Refusals(0).and_one_in(NOW).0 + 1);
        let later = BucketIndex(NOW.0 + 1);
        assert!(refusals.is_first_in(later));
        assert_eq!(refusals.and_one_in(later).count(), 3);
        assert!(!refusals.and_one_in(later).is_first_in(later));
    }

    #[test]
    fn several_refusals_count_in_their_bucket() {
        let refusals = Refusals(0).and_more_in(NOW, 3).and_more_in(NOW, 4);
        assert_eq!((refusals.count(), refusals.is_in(NOW)), (7, true));
        let later = BucketIndex(NOW.0 + 1);
        let refusals = refusals.and_more_in(later, 1);
        assert_eq!((refusals.count(), refusals.is_in(later)), (8, true));
        assert_eq!(refusals.and_more_in(later, u64::MAX).count(), COUNT_MAX);
    }

    #[test]
    fn one_refusal_in_a_bucket_is_the_first_also_where_the_clocks_of_two_cpus_differ() {
        assert!(Refusals(0).is_first_in(NOW) && Refusals(0).is_first_in(BucketIndex(0)));
        let refusals = Refusals(0).and_one_in(NOW);
        for (bucket, is_first) in [(NOW.0 - 3, true), (NOW.0 - 2, false), (NOW.0 - 1, false), (NOW.0 + 1, true)] {
            assert_eq!(refusals.is_first_in(BucketIndex(bucket)), is_first, "in bucket {bucket}");
        }
    }

    #[test]
    fn a_refusal_of_hours_ago_is_not_one_of_now() {
        let refusals = Refusals(0).and_one_in(NOW);
        for buckets in [1 << 8, 1 << 16, 1 << 24, 1 << 27] {
            assert!(!refusals.is_within(BucketIndex(NOW.0 + buckets), 7), "{buckets} buckets later");
        }
    }

    #[test]
    fn a_count_at_its_end_stays_there_and_its_bucket_goes_on() {
        let full = Refusals(Refusals(0).and_one_in(NOW).0 + COUNT_MAX - 1);
        assert!(full.is_full());
        let later = full.and_one_in(BucketIndex(NOW.0 + 1));
        assert_eq!(later.count(), COUNT_MAX);
        assert!(!later.is_first_in(BucketIndex(NOW.0 + 1)));
    }

    #[test]
    fn buckets_are_told_apart_where_their_low_bits_wrap() {
        let last = BucketIndex(0x0fff_ffff);
        let refusals = Refusals(0).and_one_in(last);
        assert!(refusals.is_within(BucketIndex(0x1000_0000), 1));
        assert!(!refusals.is_within(BucketIndex(0x1000_0002), 1));
    }

    #[test]
    fn after_a_refusal_nothing_passes_before_the_next_bucket() {
        let (refusals, next) = (Refusals(0).and_one_in(NOW), BucketIndex(NOW.0 + 1));
        assert!(Refusals(0).passes_refuse_all(10, NOW, 5, true));
        assert!(!refusals.passes_refuse_all(10, NOW, 5, true));
        assert!(refusals.passes_refuse_all(10, next, 5, true));
        assert!(!refusals.passes_refuse_all(10, next, 5, false));
    }

    #[test]
    fn uncounted_packets_pass_until_something_is_refused_in_the_window() {
        let refusals = Refusals(0).and_one_in(NOW);
        assert!(Refusals(0).passes_refuse_all(0, NOW, 5, false));
        assert!(!refusals.passes_refuse_all(0, BucketIndex(NOW.0 + 5), 5, false));
        assert!(refusals.passes_refuse_all(0, BucketIndex(NOW.0 + 6), 5, false));
    }
}
