//! Sliding window: how much of a limit is used, and whether a charge is within the limit.
//!
//! A window is a ring of [`CELLS`] words, one for each bucket, that change only by compare-and-exchange. A bucket's
//! place in the ring is the low bits of its number. A cell packs the rest of the number, a *sealed* bit, and the count:
//!
//! ```text
//!     63            count_bits+1   count_bits   count_bits-1       0
//!    [ bucket number >> 3        |   sealed   |       count         ]
//! ```
//!
//! A charge is admitted only by a compare-and-exchange on the current bucket's cell, and only while the `full_buckets`
//! buckets before it are all sealed. A sealed count never grows again, so their sum is exact, however stale the reads
//! were. A CPU that opens a later bucket first seals the current one, so a late charge to that one fails. So no order
//! of any number of CPUs admits more than the limit, and their loads need no order. A refusal needs no atomic: counts
//! in the window only grow, except for refunds, so a sum over the limit stays over it.
//!
//! Rejected charges are not added. Words of unused cells are 0, which reads as a bucket of 1970.
//!
//! A limit that hosts share has two parts in its count ([`Parts`]). The low bits are what this host admitted. The upper
//! bits are what other hosts reported, in units. Both are summed: all hosts together stay within the limit, and so does
//! this host alone, whatever is reported. The others' part may change in sealed cells: it arrives late, and a CPU that
//! summed less was early.

use crate::time::BucketIndex;

mod parts;

pub use parts::{OTHERS_BITS, OTHERS_MAX, Parts};

/// Number of cells of a window: the current bucket and at most 7 before it.
pub const CELLS: usize = 8;

/// Minimum number of full buckets before the current one in a window: a lenient one of 5 buckets.
pub const FULL_BUCKETS_MIN: u8 = 4;

/// Maximum number of full buckets before the current one in a window: a strict one of 7 buckets.
pub const FULL_BUCKETS_MAX: u8 = 7;

/// Maximum tries to charge a window. Each failed try means that another CPU changed this source's cell in between.
pub const TRIES_MAX: usize = 16;

/// Range of bucket numbers in nanoseconds: 200 years from 1970.
const HORIZON_NS: u128 = 200 * 366 * 86_400 * 1_000_000_000;

const RING_BITS: u32 = CELLS.trailing_zeros();

/// Storage of a window's words.
pub trait Cells {
    /// Number of tries of one [`charge`], at most [`TRIES_MAX`]. It is smaller if a verifier follows each try; the
    /// caller then charges again.
    const TRIES: usize = TRIES_MAX;

    /// Returns the word at `index` (below [`CELLS`]), which may be stale.
    fn load(&self, index: usize) -> u64;
    /// Replaces the word at `index` if it still is `current`. Returns whether it was replaced.
    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool;

    /// Returns `value`. A verifier that follows every path forgets here how the number was computed. So the paths
    /// through one try are the same for the next.
    #[inline(always)]
    fn forget(&self, value: u64) -> u64 {
        value
    }

    /// Returns `value`. The compiler then knows nothing about the value, so it copies no loop that depends on it.
    #[inline(always)]
    fn unknown(value: usize) -> usize {
        value
    }

    /// Calls [`settle`]. Returns None where a verifier adds up the stack of nested functions; the caller then settles
    /// and charges again.
    #[inline(always)]
    fn settle(&self, limit: Limit, bucket: BucketIndex) -> Option<BucketIndex> {
        Some(settle(self, limit, bucket))
    }
}

/// Arithmetic of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum sum of admitted amounts in the window.
    pub amount: u64,
    /// Number of full buckets before the current one that the sum includes: [`FULL_BUCKETS_MIN`] to
    /// [`FULL_BUCKETS_MAX`], or 0 for a fixed window of one bucket. Other values count as the nearest of these.
    pub full_buckets: u8,
    /// Composition of a cell's count.
    pub parts: Parts,
    /// Maximum amount in one bucket; [`BURST_ANY`] if only the sum is limited.
    pub burst: u64,
}

/// Burst of a limit without a burst of its own.
pub const BURST_ANY: u64 = u64::MAX;

impl Limit {
    /// Returns whether `amount` more is within the limit. `current` is the count of the current bucket, and `before` is
    /// that of the buckets before it.
    #[inline(always)]
    const fn is_within(self, before: u64, current: u64, amount: u64) -> bool {
        is_within(self.parts.total(before.wrapping_add(current)), amount, self.amount)
            && is_within(self.parts.total(current), amount, self.burst)
    }
}

/// Result of a charge.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The charge was added to a bucket.
    Admitted(Admitted),
    /// The charge is over the limit; nothing was added.
    Refused,
    /// Other CPUs were faster in all [`Cells::TRIES`] tries; nothing was added.
    Contended,
    /// Nothing was added. The caller has to settle the buckets before this one, since [`Cells::settle`] did not.
    Unsettled(BucketIndex),
}

/// Charge that was admitted.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Bucket that was charged.
    pub bucket: BucketIndex,
    /// Amount that this host has admitted in the bucket, including the charge.
    pub own: u64,
    /// True if the charge is a step, see [`Parts::step_bits`].
    pub is_step: bool,
}

/// Returns the bits of a cell's count for buckets of this length: those that 200 years of bucket numbers leave, at most
/// 47.
///
/// The width depends on the bucket's length only, so a changed amount never changes the meaning of a cell.
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

/// Returns the largest amount of a limit that hosts do not share, with buckets of this length.
pub const fn amount_max(bucket_ns: u64) -> u64 {
    Parts::alone(bucket_ns).amount_max()
}

/// Decoded cell of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Number of the cell's bucket.
    pub bucket: BucketIndex,
    /// True if the count is final.
    pub sealed: bool,
    /// Amount that this host admitted in the bucket.
    pub count: u64,
    /// Amount that other hosts reported for the bucket, in units.
    pub others: u64,
}

impl Cell {
    /// Returns the cell that `word` at `index` encodes.
    #[inline(always)]
    pub const fn decode(word: u64, index: usize, parts: Parts) -> Self {
        let (prefix, count) = (Prefix::of(word, parts.count_bits()), self::count(word, parts.count_bits()));
        let (own, others) = (parts.own(count), parts.units(count));
        Self { bucket: prefix.bucket(index), sealed: prefix.0 & 1 == 1, count: own, others }
    }

    /// Returns the word that encodes this cell.
    #[inline(always)]
    pub const fn encode(self, parts: Parts) -> u64 {
        let bits = parts.count_bits() as u32;
        let count = self.count | self.others << parts.own_bits();
        ((self.bucket.0 >> RING_BITS) << 1 | self.sealed as u64) << bits | count
    }
}

/// Returns the word of a bucket with `count` as stored in a cell, including the others' part.
#[inline(always)]
const fn word_of(bucket: BucketIndex, sealed: bool, count: u64, count_bits: u8) -> u64 {
    ((bucket.0 >> RING_BITS) << 1 | sealed as u64) << (count_bits & 63) | count
}

/// Returns the place of a bucket's cell in the ring.
#[inline(always)]
pub const fn index(bucket: BucketIndex) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits are asked for")]
    let low = bucket.0 as usize;
    low & (CELLS - 1)
}

/// Upper part of a cell's word, above the count: the tag and the sealed bit. Later buckets in one place compare
/// greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix(u64);

impl Prefix {
    #[inline(always)]
    const fn of(word: u64, count_bits: u8) -> Self {
        Self(word >> (count_bits & 63))
    }

    #[inline(always)]
    const fn open(bucket: BucketIndex) -> Self {
        Self(bucket.0 >> RING_BITS << 1)
    }

    #[inline(always)]
    const fn sealed(bucket: BucketIndex) -> Self {
        Self(bucket.0 >> RING_BITS << 1 | 1)
    }

    /// Returns the bucket that the cell at `index` with this prefix holds.
    #[inline(always)]
    const fn bucket(self, index: usize) -> BucketIndex {
        BucketIndex(self.0 >> 1 << RING_BITS | index as u64)
    }
}

#[inline(always)]
const fn count(word: u64, count_bits: u8) -> u64 {
    word & ((1 << (count_bits & 63)) - 1)
}

/// Returns [`FULL_BUCKETS_MAX`], in a form whose value the compiler does not know.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "it had eight bits")]
fn full_buckets_max<C: Cells + ?Sized>() -> u8 {
    C::unknown(FULL_BUCKETS_MAX.into()) as u8
}

/// Sum over the full buckets before the current one.
struct Before {
    /// Amount that was admitted in them; meaningless unless they are settled.
    used: u64,
    /// True if all of them have their final count.
    is_settled: bool,
}

/// Returns the sum over the full buckets before `bucket`, in one pass without branches except for the length. Nearly
/// always, all of them are settled. `most` is [`FULL_BUCKETS_MAX`].
#[inline(always)]
fn before<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex, most: u8) -> Before {
    let mut used = 0_u64;
    let mut difference = 0;
    if limit.full_buckets == 0 {
        // Nothing is summed, but the bucket that [`open`] left must be settled.
        let left = BucketIndex(bucket.0 - FULL_BUCKETS_MIN as u64);
        let is_settled = Prefix::of(cells.load(index(left)), limit.parts.count_bits()) == Prefix::sealed(left);
        return Before { used, is_settled };
    }
    for back in 1..most + 1 {
        if back > FULL_BUCKETS_MIN && back > limit.full_buckets {
            break;
        }
        let earlier = BucketIndex(bucket.0 - back as u64);
        let word = cells.load(index(earlier));
        difference |= Prefix::of(word, limit.parts.count_bits()).0 ^ Prefix::sealed(earlier).0;
        used = used.wrapping_add(count(word, limit.parts.count_bits()));
    }
    Before { used, is_settled: difference == 0 }
}

/// Returns the amount that is known to be admitted in the full buckets before the current one. It is final if they are
/// settled, and a lower bound otherwise.
#[inline(always)]
fn full<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex) -> u64 {
    let mut used = 0_u64;
    if limit.full_buckets == 0 {
        return used;
    }
    for back in 1..full_buckets_max::<C>() + 1 {
        if back > FULL_BUCKETS_MIN && back > limit.full_buckets {
            break;
        }
        used = used.wrapping_add(admitted_in(cells, limit, BucketIndex(bucket.0.wrapping_sub(back as u64))));
    }
    used
}

/// Returns the amount that is known to be admitted in this bucket; 0 if its place holds another bucket.
#[inline(always)]
fn admitted_in<C: Cells + ?Sized>(cells: &C, limit: Limit, bucket: BucketIndex) -> u64 {
    let word = cells.load(index(bucket));
    // 0: still open. 1: sealed. Any other value: another bucket.
    if Prefix::of(word, limit.parts.count_bits()).0 ^ Prefix::open(bucket).0 <= 1 {
        count(word, limit.parts.count_bits())
    } else {
        0
    }
}

/// Gives each bucket before the current one its final count. If another CPU interferes, the next try continues. Returns
/// the current bucket, or a later one that is already there.
#[inline(always)]
pub fn settle<C: Cells + ?Sized>(cells: &C, limit: Limit, bucket: BucketIndex) -> BucketIndex {
    let mut newest = bucket;
    for back in 1..full_buckets_max::<C>() + 1 {
        if back > FULL_BUCKETS_MIN && back > limit.full_buckets {
            break;
        }
        let earlier = BucketIndex(bucket.0.wrapping_sub(back as u64));
        let at = index(earlier);
        let word = cells.load(at);
        let (prefix, sealed) = (Prefix::of(word, limit.parts.count_bits()), Prefix::sealed(earlier));
        if prefix > sealed && prefix.bucket(at) > newest {
            newest = prefix.bucket(at);
        }
        if prefix < sealed {
            let count = if prefix == Prefix::open(earlier) { count(word, limit.parts.count_bits()) } else { 0 };
            let settled = word_of(earlier, true, count, limit.parts.count_bits());
            let _overtaken = cells.compare_exchange(at, word, settled);
        }
    }
    newest
}

/// Returns the bucket, or the first allowed one: numbers start at [`CELLS`], so no bucket before the current one is
/// negative.
#[inline(always)]
const fn never_negative(bucket: BucketIndex) -> BucketIndex {
    if bucket.0 < CELLS as u64 { BucketIndex(CELLS as u64) } else { bucket }
}

/// Charges `amount` at `now`, exactly. The charges that are admitted, on any number of CPUs, never sum to more than the
/// limit in the window of the last of them.
#[inline(always)]
pub fn charge<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Charge {
    let (mut bucket, most) = (never_negative(now), full_buckets_max::<C>());
    for _ in 0..C::unknown(C::TRIES) {
        bucket = BucketIndex(cells.forget(bucket.0));
        match charge_in(cells, limit, bucket, amount, most) {
            Tried::Done(charge) => return charge,
            Tried::Later(later) => bucket = later,
        }
    }
    Charge::Contended
}

/// Charges like [`charge`], in one try.
#[inline(always)]
pub fn charge_once<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Charge {
    match charge_in(cells, limit, never_negative(now), amount, FULL_BUCKETS_MAX) {
        Tried::Done(charge) => charge,
        Tried::Later(_) => Charge::Contended,
    }
}

/// Result of one try to charge.
enum Tried {
    Done(Charge),
    /// The charge has to be tried again, in this bucket.
    Later(BucketIndex),
}

/// Tries to charge in this bucket. `most` is [`FULL_BUCKETS_MAX`].
#[inline(always)]
fn charge_in<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex, amount: u64, most: u8) -> Tried {
    let at = index(bucket);
    let word = cells.load(at);
    let (prefix, open) = (Prefix::of(word, limit.parts.count_bits()), Prefix::open(bucket));
    if prefix > open {
        // Another CPU's clock is past this bucket: it is sealed, or its place holds a later one.
        let is_sealed = prefix == Prefix::sealed(bucket);
        return Tried::Later(if is_sealed { BucketIndex(bucket.0 + 1) } else { prefix.bucket(at) });
    }
    let count = if prefix == open { count(word, limit.parts.count_bits()) } else { 0 };
    let before = before(cells, limit, bucket, most);
    if !before.is_settled {
        return cells.settle(limit, bucket).map_or(Tried::Done(Charge::Unsettled(bucket)), Tried::Later);
    }
    let limit = Limit { parts: limit.parts.anew::<C>(), ..limit };
    if !limit.is_within(before.used, count, amount) {
        return Tried::Done(Charge::Refused);
    }
    if cells.compare_exchange(at, word, word_of(bucket, false, count.wrapping_add(amount), limit.parts.count_bits())) {
        let parts = limit.parts.anew::<C>();
        let own = parts.own(count);
        let is_step = parts.is_step(own, amount);
        Tried::Done(Charge::Admitted(Admitted { bucket, own: own.wrapping_add(amount), is_step }))
    } else {
        Tried::Later(bucket)
    }
}

/// Returns whether `amount` would be admitted at `now`, without a charge. `false` is certain; another CPU may overtake
/// `true`.
#[inline(always)]
pub fn is_within_limit<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> bool {
    let bucket = BucketIndex(cells.forget(never_negative(now).0));
    limit.is_within(full(cells, limit, bucket), admitted_in(cells, limit, bucket), amount)
}

/// Takes back a charge that [`charge`] admitted to `bucket`, if the cell still holds that bucket. If other CPUs are
/// faster in [`Cells::TRIES`] tries, the amount stays charged, which can only refuse more.
///
/// A sealed count may shrink, never grow: a CPU that summed the larger count only refused more.
#[inline(always)]
pub fn refund<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex, amount: u64) {
    let at = index(bucket);
    for _ in 0..C::unknown(C::TRIES) {
        let word = cells.load(at);
        let cell = Cell::decode(word, at, limit.parts);
        if cell.bucket != bucket {
            return;
        }
        let returned = if amount < cell.count { amount } else { cell.count };
        if cells.compare_exchange(at, word, word.wrapping_sub(returned)) {
            return;
        }
    }
}

/// Writes the amount that other hosts admitted in a bucket, in units, up to [`OTHERS_MAX`]. It replaces the amount that
/// they reported before. Returns false and writes nothing in three cases: the place has a later bucket, `bucket` is
/// later than `now`, or [`Cells::TRIES`] tries fail. This host then admits as without the report.
///
/// This host's part stays unchanged, so no report makes it alone admit more than the limit.
#[inline(always)]
pub fn write_others<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, bucket: BucketIndex, units: u64) -> bool {
    let (at, parts) = (index(bucket), limit.parts);
    if bucket.0 < CELLS as u64 || bucket > now || parts.own_bits() == Parts::WHOLE {
        return false;
    }
    let units = if units > OTHERS_MAX { OTHERS_MAX } else { units };
    for _ in 0..C::unknown(C::TRIES) {
        let word = cells.load(at);
        let (prefix, open) = (Prefix::of(word, parts.count_bits()), Prefix::open(bucket));
        let written = if prefix == open || prefix == Prefix::sealed(bucket) {
            let own = parts.own(count(word, parts.count_bits()));
            word_of(bucket, prefix != open, own | units << parts.own_bits(), parts.count_bits())
        } else if prefix < open {
            // This host admitted nothing in the bucket. A bucket that is over is written as sealed.
            word_of(bucket, bucket < now, units << parts.own_bits(), parts.count_bits())
        } else {
            return false;
        };
        if word == written || cells.compare_exchange(at, word, written) {
            return true;
        }
    }
    false
}

/// Writes the words of a new window, with `amount` charged at `now`. Returns false and writes nothing if it is over the
/// limit. One bucket stays unsettled, which distinguishes the second charge from the first. It is the latest bucket
/// that no charge can reach any more.
#[inline(always)]
pub fn open(words: &mut [u64; CELLS], limit: Limit, now: BucketIndex, amount: u64) -> bool {
    if !limit.is_within(0, 0, amount) {
        return false;
    }
    let now = never_negative(now).0;
    // One word after the other: all of them at once would take a fifth of the kernel's stack.
    for at in 0..core::hint::black_box(CELLS) {
        // The newest bucket at or before `now` that belongs to this place.
        let back = now.wrapping_sub(at as u64) & (CELLS as u64 - 1);
        let bucket = BucketIndex(now - back);
        let count = if back == 0 { amount } else { 0 };
        let sealed = back != 0 && back != FULL_BUCKETS_MIN as u64;
        words[at & (CELLS - 1)] = word_of(bucket, sealed, count, limit.parts.count_bits());
    }
    true
}

/// Returns the sum over the window at `now`, including the amounts of other hosts.
#[inline(always)]
pub fn used<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> u64 {
    limit.parts.total(sum(cells, limit, now))
}

/// Returns the sum over the window at `now` in two parts: this host's and the others'.
pub fn used_apart<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> (u64, u64) {
    let sum = sum(cells, limit, now);
    (limit.parts.own(sum), limit.parts.total(sum) - limit.parts.own(sum))
}

#[inline(always)]
fn sum<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> u64 {
    let bucket = never_negative(now);
    full(cells, limit, bucket).wrapping_add(admitted_in(cells, limit, bucket))
}

/// Returns the first bucket, from `now` on, in which `amount` is within the limit if nothing else is charged. Returns
/// None if it never is.
pub fn free_from<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Option<BucketIndex> {
    (0..=CELLS as u64)
        .map(|ahead| BucketIndex(now.0.saturating_add(ahead)))
        .find(|&bucket| is_within_limit(cells, limit, bucket, amount))
}

/// Returns the first bucket, from `now` on, in which `least` is within the limit if nothing else is charged. `least` is
/// at least 1. Works like [`free_from`], in one pass. If `least` exceeds the limit, returns the first bucket in which
/// all admitted amounts have expired.
#[inline(always)]
pub fn full_until<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, least: u64) -> BucketIndex {
    let bucket = BucketIndex(cells.forget(never_negative(now).0));
    let current = admitted_in(cells, limit, bucket);
    let mut used = current;
    // Amounts at which `least` more is over the limit.
    let (amount, burst) = (limit.amount.saturating_sub(least - 1), limit.burst.saturating_sub(least - 1));
    // Number of sums that are full, over one bucket, two buckets, and so on. That number, from the end, is the first
    // one.
    let mut full = (limit.parts.total(used) >= amount) as u64;
    for back in 1..full_buckets_max::<C>() + 1 {
        if back <= limit.full_buckets {
            used = used.wrapping_add(admitted_in(cells, limit, BucketIndex(bucket.0.wrapping_sub(back as u64))));
        }
        full = cells.forget(full + (limit.parts.total(used) >= amount) as u64);
    }
    let passed_over = (FULL_BUCKETS_MAX - limit.full_buckets) as u64;
    let buckets = if full > passed_over { full - passed_over } else { (limit.parts.total(current) >= burst) as u64 };
    BucketIndex(bucket.0 + buckets)
}

#[inline(always)]
const fn is_within(used: u64, amount: u64, limit: u64) -> bool {
    match used.checked_add(amount) {
        Some(sum) => sum <= limit,
        None => false,
    }
}

impl Cells for [u64; CELLS] {
    fn load(&self, index: usize) -> u64 {
        self[index & (CELLS - 1)]
    }

    /// Fails always: a copy of a window is for reading.
    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> bool {
        false
    }
}

/// Window that only one thread uses.
impl Cells for [core::cell::Cell<u64>; CELLS] {
    fn load(&self, index: usize) -> u64 {
        self[index & (CELLS - 1)].get()
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        let word = &self[index & (CELLS - 1)];
        let is_current = word.get() == current;
        if is_current {
            word.set(new);
        }
        is_current
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
