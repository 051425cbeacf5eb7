//! Fill of a source's window under a limit, and the time at which the limit admits again.

use ratelimit_common::layout::{Source, Unit as Counted};
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::window::{self, FULL_BUCKETS_MAX};

use super::Retry;
use ratelimit_policy::desired::{Limit, Refuse, WindowForm};

/// Fill of one window.
pub(super) struct Level {
    pub(super) used: u64,
    pub(super) elsewhere: u64,
    pub(super) over: bool,
    pub(super) is_shut: bool,
}

impl Level {
    pub(super) fn of(limit: &Limit, refuse: Refuse, source: &Source, now: Nanos) -> Self {
        if limit.form == WindowForm::Gcra {
            let over = limit.leak().next(leak_word(source), now, 1).is_none();
            return Self { used: leak_used(limit, source, now), elsewhere: 0, over, is_shut: false };
        }
        let (arithmetic, bucket) = (limit.arithmetic(), now.bucket(limit.bucket_ns));
        let is_shut = is_shut(limit, refuse, source, bucket);
        let over = is_shut || !window::is_within_limit(&source.cells, arithmetic, bucket, 1);
        let (own, elsewhere) = window::used_apart(&source.cells, arithmetic, bucket);
        Self { used: own.saturating_add(elsewhere), elsewhere, over, is_shut }
    }
}

/// Returns the amount that passes now, one unit after the other.
pub(super) fn remaining(limit: &Limit, used: u64, source: &Source, now: Nanos) -> u64 {
    let left = limit.amount.saturating_sub(used);
    let Some(burst) = limit.burst else { return left };
    match limit.form {
        WindowForm::Gcra => burst.saturating_sub(used),
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => {
            let current = window::Limit { full_buckets: 0, ..limit.arithmetic() };
            left.min(burst.saturating_sub(window::used(&source.cells, current, now.bucket(limit.bucket_ns))))
        }
    }
}

/// Returns the word of a leaky bucket.
const fn leak_word(source: &Source) -> u64 {
    source.cells[0]
}

/// Returns the amount in a leaky bucket.
fn leak_used(limit: &Limit, source: &Source, now: Nanos) -> u64 {
    limit.leak_used(leak_word(source).saturating_sub(now.0))
}

/// Returns true if a refusal in this bucket closes the window until the next bucket, although one more unit may fit.
/// The window then refuses everything, if the rule says so, or packets of many units like the refused one.
fn is_shut(limit: &Limit, refuse: Refuse, source: &Source, bucket: BucketIndex) -> bool {
    // The clock was read before the window, whose newest bucket may be later.
    let newest = BucketIndex(bucket.0.saturating_add(u64::from(FULL_BUCKETS_MAX)));
    let tells = match (limit.unit, refuse) {
        (Counted::Requests | Counted::Connections | Counted::Packets, Refuse::Excess) => false,
        (Counted::Bytes, Refuse::Excess | Refuse::All)
        | (Counted::Requests | Counted::Connections | Counted::Packets, Refuse::All) => true,
    };
    tells && source.refused.is_within(newest, FULL_BUCKETS_MAX)
}

impl Retry {
    /// Returns the wait until the limit admits again, `first` being the earliest bucket that can admit.
    pub(super) fn from(first: BucketIndex, limit: &Limit, source: &Source, now: Nanos) -> Self {
        let room = window::free_from(&source.cells, limit.arithmetic(), first, 1);
        let bucket = now.bucket(limit.bucket_ns);
        let empty = BucketIndex(bucket.0.saturating_add(u64::from(limit.full_buckets()) + 1));
        Self { never: room.is_none(), after_ns: until(room.unwrap_or(empty), limit.bucket_ns, now) }
    }

    /// Returns the wait for a leaky bucket, which can free at any time.
    pub(super) fn of_leak(limit: &Limit, source: &Source, now: Nanos) -> Self {
        let word = leak_word(source);
        let room = limit.leak().free_from(word, now, 1);
        Self { never: room.is_none(), after_ns: room.map_or(word, |room| room.0).saturating_sub(now.0) }
    }
}

fn until(bucket: BucketIndex, bucket_ns: u64, now: Nanos) -> u64 {
    bucket.start(bucket_ns).0.saturating_sub(now.0)
}
