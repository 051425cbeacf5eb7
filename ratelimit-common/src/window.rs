//! The window: how much of a limit is used, and whether one more fits.
//!
//! A window is a ring of [`CELLS`] words, one a bucket, that change only by compare-and-exchange; a bucket's
//! place in the ring is the low bits of its number. A cell packs the rest of the number, a *sealed* bit, and the count:
//!
//! ```text
//!     63            count_bits+1   count_bits   count_bits-1       0
//!    [ bucket number >> 3        |   sealed   |       count         ]
//! ```
//!
//! A charge is admitted only by a compare-and-exchange on the cell of the current bucket, and only while the
//! `behind` buckets before it are all sealed. A sealed count never changes again, so their sum is exact, however stale the
//! reads were; and whoever opens a later bucket seals this one first, which makes a late charge to it fail. So no order of
//! any number of CPUs admits more than the limit, and none is needed of their loads. A refusal needs no atomic: counts of buckets in the
//! window only grow, so a sum that leaves no room once leaves none later.
//!
//! Rejected charges are not added. Words of unused cells are 0, which reads as a bucket of 1970.

use crate::time::BucketIndex;

/// Cells of a window: the current bucket and at most 7 before it.
pub const CELLS: usize = 8;

/// The most full buckets before the current one that a window can take in.
pub const BEHIND_MAX: u8 = 7;

/// Tries to charge a window before giving up. Each failed one means that another CPU changed this very source's cell in between.
pub const TRIES_MAX: usize = 16;

/// How long bucket numbers last: 200 years from 1970.
const HORIZON_NS: u128 = 200 * 366 * 86_400 * 1_000_000_000;

const RING_BITS: u32 = CELLS.trailing_zeros();

/// Where a window's words live.
pub trait Cells {
    /// The word at `index` (below [`CELLS`]), however stale.
    fn load(&self, index: usize) -> u64;
    /// Replaces the word at `index` if it still is `current`, and says whether it did.
    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool;
}

/// One limit's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Admitted while the sum stays at or below it.
    pub amount: u64,
    /// Full buckets before the current one that the sum takes in, at most [`BEHIND_MAX`].
    pub behind: u8,
    /// Width of a cell's count, from [`count_bits`].
    pub count_bits: u8,
}

/// What became of a charge.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Added to this bucket.
    Admitted(BucketIndex),
    /// No room; nothing was added.
    Refused,
    /// [`TRIES_MAX`] tries were overtaken; nothing was added.
    Contended,
}

/// Bits of a cell's count for buckets of this length: what 200 years of bucket numbers leave of the word, at most 47.
///
/// The count's width follows from the bucket's length alone, so that a changed amount never changes what a cell means.
pub const fn count_bits(bucket_ns: u64) -> u8 {
    if bucket_ns == 0 {
        return 0;
    }
    let last = HORIZON_NS / bucket_ns as u128;
    let number_bits = 128 - last.leading_zeros();
    let tag_bits = number_bits.saturating_sub(RING_BITS);
    let tag_bits = if tag_bits < 16 { 16 } else { tag_bits };
    #[expect(clippy::cast_possible_truncation, reason = "at most 47")]
    let bits = 63_u32.saturating_sub(tag_bits) as u8;
    bits
}

/// The largest amount that a limit with buckets of this length can have.
pub const fn amount_max(bucket_ns: u64) -> u64 {
    (1 << count_bits(bucket_ns)) - 1
}

/// One cell, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Which bucket.
    pub bucket: BucketIndex,
    /// Whether its count is final.
    pub sealed: bool,
    /// What was admitted in it.
    pub count: u64,
}

impl Cell {
    /// The cell that `word` at `index` stands for.
    #[inline(always)]
    pub const fn decode(word: u64, index: usize, count_bits: u8) -> Self {
        let bits = (count_bits & 63) as u32;
        let tag = (word >> bits) >> 1;
        Self {
            bucket: BucketIndex(tag << RING_BITS | index as u64),
            sealed: (word >> bits) & 1 == 1,
            count: word & ((1 << bits) - 1),
        }
    }

    /// The word for this cell.
    #[inline(always)]
    pub const fn encode(self, count_bits: u8) -> u64 {
        let bits = (count_bits & 63) as u32;
        ((self.bucket.0 >> RING_BITS) << 1 | self.sealed as u64) << bits | self.count
    }
}

/// Where a bucket's cell is in the ring.
#[inline(always)]
pub const fn index(bucket: BucketIndex) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits are asked for")]
    let low = bucket.0 as usize;
    low & (CELLS - 1)
}

/// One look at a window.
struct View {
    /// The bucket looked from: the caller's, or a later one that another CPU has already opened.
    bucket: BucketIndex,
    /// Sum over the window.
    used: u64,
    /// Whether every bucket before the current one has its final count.
    settled: bool,
    /// The word in the current bucket's place, as it went into the sum.
    word: u64,
}

#[inline(always)]
fn look<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> View {
    let mut words = [0_u64; CELLS];
    // Bucket numbers start above the window's length, so that no bucket before the current one is negative.
    let mut bucket = if now.0 < CELLS as u64 { BucketIndex(CELLS as u64) } else { now };
    for (at, copy) in words.iter_mut().enumerate() {
        *copy = cells.load(at);
        let seen = Cell::decode(*copy, at, limit.count_bits).bucket;
        if seen > bucket {
            bucket = seen;
        }
    }
    let behind = limit.behind & BEHIND_MAX;
    let oldest = BucketIndex(bucket.0 - behind as u64);
    let mut view = View { bucket, used: 0, settled: false, word: 0 };
    let mut final_counts = 0;
    for (at, &word) in words.iter().enumerate() {
        let cell = Cell::decode(word, at, limit.count_bits);
        if cell.bucket >= oldest {
            view.used = view.used.wrapping_add(cell.count);
            final_counts += (cell.sealed && cell.bucket < bucket) as u8;
        }
        if at == index(bucket) {
            view.word = word;
        }
    }
    view.settled = final_counts == behind;
    view
}

/// Gives each bucket before the current one its final count. A step that another CPU overtakes is left to the next look.
#[inline(always)]
fn settle<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex) {
    let behind = (limit.behind & BEHIND_MAX) as u64;
    for back in 1..=BEHIND_MAX as u64 {
        if back > behind {
            break;
        }
        let earlier = BucketIndex(bucket.0 - back);
        let at = index(earlier);
        let word = cells.load(at);
        let cell = Cell::decode(word, at, limit.count_bits);
        let count = if cell.bucket == earlier { cell.count } else { 0 };
        if cell.bucket < earlier || (cell.bucket == earlier && !cell.sealed) {
            let _overtaken = cells.compare_exchange(
                at,
                word,
                Cell { bucket: earlier, sealed: true, count }.encode(limit.count_bits),
            );
        }
    }
}

/// Charges `amount` at `now`, exactly: of any charges on any number of CPUs, those admitted never sum to more
/// than the limit in the window of the last of them.
#[inline(always)]
pub fn charge<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Charge {
    let mut now = now;
    for _ in 0..TRIES_MAX {
        let view = look(cells, limit, now);
        if !fits(view.used, amount, limit.amount) {
            return Charge::Refused;
        }
        let at = index(view.bucket);
        let current = Cell::decode(view.word, at, limit.count_bits);
        let is_open = current.bucket == view.bucket;
        if is_open && current.sealed {
            // Another CPU's clock is past this bucket, so it is over.
            now = BucketIndex(view.bucket.0 + 1);
            continue;
        }
        now = view.bucket;
        if !view.settled {
            settle(cells, limit, view.bucket);
            continue;
        }
        let count = if is_open { current.count } else { 0 };
        let charged = Cell { bucket: view.bucket, sealed: false, count: count + amount };
        if cells.compare_exchange(at, view.word, charged.encode(limit.count_bits)) {
            return Charge::Admitted(view.bucket);
        }
    }
    Charge::Contended
}

/// Whether `amount` would be admitted at `now`, without charging it. "No" is certain; "yes" another CPU may overtake.
#[inline(always)]
pub fn has_room<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> bool {
    fits(look(cells, limit, now).used, amount, limit.amount)
}

/// Takes back a charge that [`charge`] admitted to `bucket`, as far as the cell still holds that bucket. If
/// [`TRIES_MAX`] tries are overtaken it stays charged: the error is on the side of refusing.
///
/// A sealed count may shrink, never grow: whoever summed the larger one only refused more.
#[inline(always)]
pub fn refund<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex, amount: u64) {
    let at = index(bucket);
    for _ in 0..TRIES_MAX {
        let word = cells.load(at);
        let cell = Cell::decode(word, at, limit.count_bits);
        if cell.bucket != bucket {
            return;
        }
        let returned = Cell { count: cell.count.saturating_sub(amount), ..cell };
        if cells.compare_exchange(at, word, returned.encode(limit.count_bits)) {
            return;
        }
    }
}

/// The words of a window that nothing was charged to before, with `amount` charged at `now`; none if it does not fit.
#[inline(always)]
pub fn opened(limit: Limit, now: BucketIndex, amount: u64) -> Option<[u64; CELLS]> {
    if !fits(0, amount, limit.amount) {
        return None;
    }
    let now = if now.0 < CELLS as u64 { CELLS as u64 } else { now.0 };
    let mut words = [0; CELLS];
    for (at, word) in words.iter_mut().enumerate() {
        // The newest bucket at or before `now` whose place this is.
        let back = now.wrapping_sub(at as u64) & (CELLS as u64 - 1);
        let cell = if back == 0 {
            Cell { bucket: BucketIndex(now), sealed: false, count: amount }
        } else {
            Cell { bucket: BucketIndex(now - back), sealed: true, count: 0 }
        };
        *word = cell.encode(limit.count_bits);
    }
    Some(words)
}

/// Sum over the window at `now`, as [`charge`] would see it.
pub fn used<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> u64 {
    look(cells, limit, now).used
}

/// The first bucket, from `now` on, in which `amount` fits if nothing else is charged; none if it never does.
pub fn room_from<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Option<BucketIndex> {
    let first = look(cells, limit, now).bucket;
    (0..=CELLS as u64)
        .map(|ahead| BucketIndex(first.0 + ahead))
        .find(|&bucket| fits(look(cells, limit, bucket).used, amount, limit.amount))
}

#[inline(always)]
const fn fits(used: u64, amount: u64, limit: u64) -> bool {
    match used.checked_add(amount) {
        Some(sum) => sum <= limit,
        None => false,
    }
}

impl Cells for [u64; CELLS] {
    fn load(&self, index: usize) -> u64 {
        self[index & (CELLS - 1)]
    }

    /// A copy of a window is for reading.
    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> bool {
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
