//! Time as numbers: nanoseconds, and the buckets that they are divided into. This module knows no clock.

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds since 1970-01-01T00:00Z on the wall clock. Several hosts thus use one number for one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Nanos(pub u64);

/// Number of a bucket: how many buckets of its length have ended since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct BucketIndex(pub u64);

impl Nanos {
    /// Returns the bucket of this instant. A `bucket_ns` of 0 gives bucket 0: an unset limit is never used.
    #[inline(always)]
    pub const fn bucket(self, bucket_ns: u64) -> BucketIndex {
        match self.0.checked_div(bucket_ns) {
            Some(index) => BucketIndex(index),
            None => BucketIndex(0),
        }
    }
}

impl BucketIndex {
    /// Returns the instant at which this bucket begins; saturates at the end of time.
    #[inline(always)]
    pub const fn start(self, bucket_ns: u64) -> Nanos {
        Nanos(self.0.saturating_mul(bucket_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_begins_with_its_first_nanosecond_and_ends_before_the_next() {
        let minute = 60 * SECOND_NS;
        let start = BucketIndex(29_000_000).start(minute);
        assert_eq!(start.bucket(minute), BucketIndex(29_000_000));
        assert_eq!(Nanos(start.0 - 1).bucket(minute), BucketIndex(28_999_999));
        assert_eq!(Nanos(start.0 + minute - 1).bucket(minute), BucketIndex(29_000_000));
    }

    #[test]
    fn a_length_of_zero_divides_nothing() {
        assert_eq!(Nanos(5).bucket(0), BucketIndex(0));
    }
}
