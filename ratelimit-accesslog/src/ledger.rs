//! The requests of one source that were counted and logged, bucket by bucket.

use std::collections::VecDeque;

/// Totals of one bucket of a source's window.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    /// Requests that the kernel counted itself.
    counted: u64,
    /// Requests that were charged from the log.
    corrected: u64,
    /// Counted requests that are not matched with a line yet.
    open: u64,
}

/// Counted and logged requests of one source.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Buckets of the window, the current one and the one after it at most. Ascending by number.
    buckets: VecDeque<Bucket>,
    /// Place among all sources in the order of use.
    pub(crate) order: u64,
    /// Time in nanoseconds of the last line, counted request or correction.
    pub(crate) used_at: u64,
}

impl Ledger {
    /// Returns the ledger of a new source.
    pub(crate) fn new(order: u64, now: u64, full_buckets: u8) -> Self {
        let buckets = VecDeque::with_capacity(usize::from(full_buckets) + 2);
        Self { buckets, order, used_at: now }
    }

    /// Removes buckets before `oldest`.
    pub(crate) fn expire(&mut self, oldest: u64) {
        while self.buckets.front().is_some_and(|bucket| bucket.number < oldest) {
            self.buckets.pop_front();
        }
    }

    /// Returns the bucket with this number, created if missing.
    fn bucket(&mut self, number: u64) -> &mut Bucket {
        let index = self.buckets.partition_point(|bucket| bucket.number < number);
        if self.buckets.get(index).is_none_or(|bucket| bucket.number != number) {
            self.buckets.insert(index, Bucket { number, ..Bucket::default() });
        }
        &mut self.buckets[index]
    }

    /// Updates a bucket from the kernel's count, which includes each correction `charged_in` times. A count below half
    /// of the known one means that the kernel's window was erased and restarted. A smaller decrease is a refund.
    pub(crate) fn observe(&mut self, number: u64, total: u64, charged_in: u64) {
        let bucket = self.bucket(number);
        let known = bucket.corrected.saturating_mul(charged_in).saturating_add(bucket.counted);
        if total < known / 2 {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        let added = total.saturating_sub(bucket.corrected.saturating_mul(charged_in)).saturating_sub(bucket.counted);
        bucket.counted += added;
        bucket.open += added;
    }

    /// Matches lines with counted requests, oldest bucket first. Books those without a match into bucket `current`, and
    /// returns their number.
    pub(crate) fn settle(&mut self, current: u64, lines: u64) -> u64 {
        let mut unmatched = lines;
        for bucket in &mut self.buckets {
            let matched = bucket.open.min(unmatched);
            bucket.open -= matched;
            unmatched -= matched;
        }
        if unmatched > 0 {
            let bucket = self.bucket(current);
            bucket.corrected = bucket.corrected.saturating_add(unmatched);
        }
        unmatched
    }

    /// Cancels up to `amount` of the charges that were booked into a bucket.
    pub(crate) fn unbook(&mut self, number: u64, amount: u64) {
        if let Some(bucket) = self.buckets.iter_mut().find(|bucket| bucket.number == number) {
            bucket.corrected = bucket.corrected.saturating_sub(amount);
        }
    }

    /// Returns the number of requests that were counted or charged in the remembered buckets.
    pub(crate) fn used(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.counted.saturating_add(bucket.corrected)).fold(0, u64::saturating_add)
    }

    /// Returns the number of counted requests in buckets from `oldest` on that are matched with a line.
    pub(crate) fn matched(&self, oldest: u64) -> u64 {
        let live = self.buckets.iter().filter(|bucket| bucket.number >= oldest);
        live.map(|bucket| bucket.counted.saturating_sub(bucket.open)).fold(0, u64::saturating_add)
    }

    /// Returns the number of requests that were charged in buckets from `oldest` on.
    pub(crate) fn corrected(&self, oldest: u64) -> u64 {
        let live = self.buckets.iter().filter(|bucket| bucket.number >= oldest);
        live.map(|bucket| bucket.corrected).fold(0, u64::saturating_add)
    }
}
