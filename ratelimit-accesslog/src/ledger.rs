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
    /// Counted requests that no line was matched with.
    open: u64,
    /// Lines, since the last settlement, that say that their requests began in the bucket.
    unsettled: u64,
}

/// Counted and logged requests of one source.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Buckets of the window, the current one and the one after it at most. Ascending by number.
    buckets: VecDeque<Bucket>,
    /// Lines, since the last settlement, that do not say when their requests began.
    undated: u64,
    /// Place among all sources in the order of use.
    pub(crate) order: u64,
    /// Time in nanoseconds of the last line, counted request or correction.
    pub(crate) used_at: u64,
}

impl Ledger {
    /// Returns the ledger of a new source.
    pub(crate) fn new(order: u64, now: u64, full_buckets: u8) -> Self {
        let buckets = VecDeque::with_capacity(usize::from(full_buckets) + 2);
        Self { buckets, undated: 0, order, used_at: now }
    }

    /// Removes buckets before `oldest`. Returns the number of unsettled lines in them.
    pub(crate) fn expire(&mut self, oldest: u64) -> u64 {
        let mut lines = 0_u64;
        while let Some(bucket) = self.buckets.front()
            && bucket.number < oldest
        {
            lines = lines.saturating_add(bucket.unsettled);
            self.buckets.pop_front();
        }
        lines
    }

    /// Returns the bucket of that number, which is made if there is none.
    fn bucket(&mut self, number: u64) -> &mut Bucket {
        let index = self.buckets.partition_point(|bucket| bucket.number < number);
        if self.buckets.get(index).is_none_or(|bucket| bucket.number != number) {
            self.buckets.insert(index, Bucket { number, ..Bucket::default() });
        }
        &mut self.buckets[index]
    }

    /// Adds lines of requests that began in a bucket, if that is known.
    pub(crate) fn add_lines(&mut self, began: Option<u64>, lines: u64) {
        let unsettled = match began {
            Some(number) => &mut self.bucket(number).unsettled,
            None => &mut self.undated,
        };
        *unsettled = unsettled.saturating_add(lines);
    }

    /// Number of lines since the last settlement.
    pub(crate) fn unsettled(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.unsettled).fold(self.undated, u64::saturating_add)
    }

    /// Takes the kernel's count of a bucket, each correction included so many times. Returns whether it has grown.
    pub(crate) fn observe(&mut self, number: u64, total: u64, charged_in: u64) -> bool {
        if total == 0 {
            return false;
        }
        let bucket = self.bucket(number);
        let added = total.saturating_sub(bucket.corrected.saturating_mul(charged_in)).saturating_sub(bucket.counted);
        bucket.counted += added;
        bucket.open += added;
        added > 0
    }

    /// Matches lines with counted requests, oldest bucket first. Books lines without a match into bucket `current`.
    pub(crate) fn settle(&mut self, current: u64) -> Settled {
        let mut lines = std::mem::take(&mut self.undated);
        let mut too_old = 0_u64;
        let is_live = |bucket: &&Bucket| bucket.counted > 0 || bucket.corrected > 0;
        let live_from = self.buckets.iter().find(is_live).map_or(0, |bucket| bucket.number.min(current));
        for bucket in &mut self.buckets {
            let unsettled = std::mem::take(&mut bucket.unsettled);
            let sum = if bucket.number < live_from { &mut too_old } else { &mut lines };
            *sum = sum.saturating_add(unsettled);
        }
        let mut unmatched = lines;
        for bucket in &mut self.buckets {
            let matched = bucket.open.min(unmatched);
            bucket.open -= matched;
            unmatched -= matched;
        }
        if lines > 0 {
            let bucket = self.bucket(current);
            bucket.corrected = bucket.corrected.saturating_add(unmatched);
        }
        Settled { lines, charged: unmatched, too_old }
    }

    /// Takes back up to `amount` of what was booked as charged into a bucket.
    pub(crate) fn unbook(&mut self, number: u64, amount: u64) {
        if let Some(bucket) = self.buckets.iter_mut().find(|bucket| bucket.number == number) {
            bucket.corrected = bucket.corrected.saturating_sub(amount);
        }
    }

    /// Number of requests that were counted or charged in the buckets that are remembered.
    pub(crate) fn used(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.counted.saturating_add(bucket.corrected)).fold(0, u64::saturating_add)
    }

    /// Number of requests that were charged in the buckets that are remembered.
    pub(crate) fn corrected(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.corrected).fold(0, u64::saturating_add)
    }
}

/// Result of one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Lines of requests within the source's live window.
    pub(crate) lines: u64,
    /// The part of `lines` that no counted request matches.
    pub(crate) charged: u64,
    /// Lines of requests that began before the source's live window.
    pub(crate) too_old: u64,
}
