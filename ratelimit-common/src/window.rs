//! The window: how much of a limit is used, and whether one more is within the limit.
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
//! `full_buckets` buckets before it are all sealed. A sealed count never changes again, so their sum is exact, however
//! stale the reads were. A CPU that opens a later bucket seals this one first, which makes a late charge to it fail.
//! So no order of any number of CPUs admits more than the limit, and none is needed of their loads. A refusal needs no
//! atomic: counts of buckets in the window only grow (but for refunds), so a sum that is over the limit stays
//! over it.
//!
//! Rejected charges are not added. Words of unused cells are 0, which reads as a bucket of 1970.
//!
//! A limit that hosts share has two parts in its count ([`Parts`]): the low bits are what this host admitted, the
//! upper ones what it was told of the others, in units. Both are summed, so that ours and others' together stay at or
//! below the limit, and ours alone does too, whatever is told. Others' part changes in sealed cells as well: it is
//! known late, and a CPU that summed less was a moment early.

use crate::time::BucketIndex;

mod parts;

pub use parts::{OTHERS_BITS, OTHERS_MAX, Parts};

/// Cells of a window: the current bucket and at most 7 before it.
pub const CELLS: usize = 8;

/// The fewest full buckets before the current one that a window takes in: a lenient one of 5 buckets.
pub const FULL_BUCKETS_MIN: u8 = 4;

/// The most: a strict one of 7 buckets.
pub const FULL_BUCKETS_MAX: u8 = 7;

/// Tries to charge a window before giving up. Each failed one means that another CPU changed this very source's cell
/// in between.
pub const TRIES_MAX: usize = 16;

/// How long bucket numbers last: 200 years from 1970.
const HORIZON_NS: u128 = 200 * 366 * 86_400 * 1_000_000_000;

const RING_BITS: u32 = CELLS.trailing_zeros();

/// Where a window's words live.
pub trait Cells {
    /// Tries of one [`charge`], at most [`TRIES_MAX`]: fewer where a verifier follows each of them; the
    /// caller then charges again.
    const TRIES: usize = TRIES_MAX;

    /// The word at `index` (below [`CELLS`]), however stale.
    fn load(&self, index: usize) -> u64;
    /// Replaces the word at `index` if it still is `current`, and says whether it did.
    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool;

    /// Returns `value`. Where a verifier follows every path, this is where it forgets how it came by the number, so
    /// that the paths through one try are the same for the next.
    #[inline(always)]
    fn forget(&self, value: u64) -> u64 {
        value
    }

    /// Returns `value`, of which the compiler then knows nothing where it would make many copies of a loop that goes
    /// on to it.
    #[inline(always)]
    fn unknown(value: usize) -> usize {
        value
    }

    /// Calls [`settle`]; or returns none where a verifier counts the stack of one function within another. The caller then
    /// settles and charges again.
    #[inline(always)]
    fn settle(&self, limit: Limit, bucket: BucketIndex) -> Option<BucketIndex> {
        Some(settle(self, limit, bucket))
    }
}

/// One limit's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Admitted while the sum stays at or below it.
    pub amount: u64,
    /// Full buckets before the current one that the sum takes in, [`FULL_BUCKETS_MIN`] to [`FULL_BUCKETS_MAX`], or 0:
    /// a fixed window, which is its current bucket. What is outside counts as the nearest of these.
    pub full_buckets: u8,
    /// What a cell's count is made of.
    pub parts: Parts,
    /// At most so much in one bucket; [`BURST_ANY`] where the sum alone decides.
    pub burst: u64,
}

/// The burst of a limit that has none of its own.
pub const BURST_ANY: u64 = u64::MAX;

impl Limit {
    /// Whether `amount` more is within the limit where the current bucket has `current`, and those before it
    /// `before`.
    #[inline(always)]
    const fn is_within(self, before: u64, current: u64, amount: u64) -> bool {
        is_within(self.parts.total(before.wrapping_add(current)), amount, self.amount)
            && is_within(self.parts.total(current), amount, self.burst)
    }
}

/// What became of a charge.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Added to a bucket.
    Admitted(Admitted),
    /// Over the limit; nothing was added.
    Refused,
    /// [`Cells::TRIES`] tries were overtaken; nothing was added.
    Contended,
    /// Nothing was added, and [`Cells::settle`] left it to the caller to settle what is before this bucket.
    Unsettled(BucketIndex),
}

/// A charge that was admitted.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// To this bucket.
    pub bucket: BucketIndex,
    /// What this host has admitted in it, with the charge.
    pub own: u64,
    /// Whether it is a step, see [`Parts::step_bits`].
    pub is_step: bool,
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

/// The largest amount that a limit of this host alone with buckets of this length can have.
pub const fn amount_max(bucket_ns: u64) -> u64 {
    Parts::alone(bucket_ns).amount_max()
}

/// One cell, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Which bucket.
    pub bucket: BucketIndex,
    /// Whether its count is final.
    pub sealed: bool,
    /// What this host admitted in it.
    pub count: u64,
    /// What other hosts admitted, in units, as far as they have told.
    pub others: u64,
}

impl Cell {
    /// The cell that `word` at `index` stands for.
    #[inline(always)]
    pub const fn decode(word: u64, index: usize, parts: Parts) -> Self {
        let (prefix, count) = (Prefix::of(word, parts.count_bits()), self::count(word, parts.count_bits()));
        let (own, others) = (parts.own(count), parts.units(count));
        Self { bucket: prefix.bucket(index), sealed: prefix.0 & 1 == 1, count: own, others }
    }

    /// The word for this cell.
    #[inline(always)]
    pub const fn encode(self, parts: Parts) -> u64 {
        let bits = parts.count_bits() as u32;
        let count = self.count | self.others << parts.own_bits();
        ((self.bucket.0 >> RING_BITS) << 1 | self.sealed as u64) << bits | count
    }
}

/// The word of a bucket with a count as it is in a cell, others' part included.
#[inline(always)]
const fn word_of(bucket: BucketIndex, sealed: bool, count: u64, count_bits: u8) -> u64 {
    ((bucket.0 >> RING_BITS) << 1 | sealed as u64) << (count_bits & 63) | count
}

/// Where a bucket's cell is in the ring.
#[inline(always)]
pub const fn index(bucket: BucketIndex) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits are asked for")]
    let low = bucket.0 as usize;
    low & (CELLS - 1)
}

/// A cell's word above its count, for comparisons: the tag and the sealed bit. Later buckets in one place compare
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

    /// The bucket that the cell at `index` with this prefix holds.
    #[inline(always)]
    const fn bucket(self, index: usize) -> BucketIndex {
        BucketIndex(self.0 >> 1 << RING_BITS | index as u64)
    }
}

#[inline(always)]
const fn count(word: u64, count_bits: u8) -> u64 {
    word & ((1 << (count_bits & 63)) - 1)
}

/// [`FULL_BUCKETS_MAX`], of which the compiler knows nothing.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "it had eight bits")]
fn full_buckets_max<C: Cells + ?Sized>() -> u8 {
    C::unknown(FULL_BUCKETS_MAX.into()) as u8
}

/// The full buckets before the current one.
struct Before {
    /// What was admitted in them; of no meaning unless they are settled.
    used: u64,
    /// Whether all of them have their final count.
    is_settled: bool,
}

/// One pass without a branch but for the length: nearly always all are settled. `most` is [`FULL_BUCKETS_MAX`].
#[inline(always)]
fn before<C: Cells>(cells: &C, limit: Limit, bucket: BucketIndex, most: u8) -> Before {
    let mut used = 0_u64;
    let mut difference = 0;
    if limit.full_buckets == 0 {
        // Nothing is summed. What is left of [`open`] is settled all the same.
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

/// What was admitted in the full buckets before the current one, as far as is known: final where they are settled, else
/// at least this.
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

/// What was admitted in this bucket, as far as is known: nothing where its place has another one.
#[inline(always)]
fn admitted_in<C: Cells + ?Sized>(cells: &C, limit: Limit, bucket: BucketIndex) -> u64 {
    let word = cells.load(index(bucket));
    // 0: still open. 1: sealed. Else another bucket.
    if Prefix::of(word, limit.parts.count_bits()).0 ^ Prefix::open(bucket).0 <= 1 {
        count(word, limit.parts.count_bits())
    } else {
        0
    }
}

/// Gives each bucket before the current one its final count. A step that another CPU overtakes is left to the next
/// try. Returns the current bucket, or a later one that is already there.
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

/// Bucket numbers start above the window's length, so that no bucket before the current one is negative.
#[inline(always)]
const fn never_negative(bucket: BucketIndex) -> BucketIndex {
    if bucket.0 < CELLS as u64 { BucketIndex(CELLS as u64) } else { bucket }
}

/// Charges `amount` at `now`, exactly: of any charges on any number of CPUs, those admitted never sum to more
/// than the limit in the window of the last of them.
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

/// [`charge`], in one try.
#[inline(always)]
pub fn charge_once<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Charge {
    match charge_in(cells, limit, never_negative(now), amount, FULL_BUCKETS_MAX) {
        Tried::Done(charge) => charge,
        Tried::Later(_) => Charge::Contended,
    }
}

/// What one try comes to.
enum Tried {
    Done(Charge),
    /// To be tried again, in this bucket.
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

/// Whether `amount` would be admitted at `now`, without charging it. "No" is certain; "yes" another CPU may overtake.
#[inline(always)]
pub fn is_within_limit<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> bool {
    let bucket = BucketIndex(cells.forget(never_negative(now).0));
    limit.is_within(full(cells, limit, bucket), admitted_in(cells, limit, bucket), amount)
}

/// Takes back a charge that [`charge`] admitted to `bucket`, as far as the cell still holds that bucket. If
/// [`Cells::TRIES`] tries are overtaken it stays charged: the error is on the side of refusing.
///
/// A sealed count may shrink, never grow: a CPU that summed the larger one only refused more.
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

/// Writes what other hosts admitted in a bucket, in units; what a cell does not hold is cut off. It replaces what they
/// had told before. Nothing is written where the place has a later bucket, where `bucket` is later than `now`, or where
/// [`Cells::TRIES`] tries are overtaken: then this host admits as if it had not been told.
///
/// This host's part stays as it is, so nothing that is told makes it admit more than the limit by itself.
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
            // Nothing was admitted here in this bucket. One that is over stays so.
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

/// Writes the words of a window that nothing was charged to before, with `amount` charged at `now`. False, and nothing
/// written, if it is over the limit. One bucket is left to be settled, so that the second charge is told from the
/// first: the latest to which no charge can come any more, as what is before that takes in the place of `now`.
#[inline(always)]
pub fn open(words: &mut [u64; CELLS], limit: Limit, now: BucketIndex, amount: u64) -> bool {
    if !limit.is_within(0, 0, amount) {
        return false;
    }
    let now = never_negative(now).0;
    // One word after the other: all at once would be a fifth of the kernel's stack.
    for at in 0..core::hint::black_box(CELLS) {
        // The newest bucket at or before `now` whose place this is.
        let back = now.wrapping_sub(at as u64) & (CELLS as u64 - 1);
        let bucket = BucketIndex(now - back);
        let count = if back == 0 { amount } else { 0 };
        let sealed = back != 0 && back != FULL_BUCKETS_MIN as u64;
        words[at & (CELLS - 1)] = word_of(bucket, sealed, count, limit.parts.count_bits());
    }
    true
}

/// Sum over the window at `now`, with what other hosts admitted.
#[inline(always)]
pub fn used<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> u64 {
    limit.parts.total(sum(cells, limit, now))
}

/// The same, in two: this host's part, and others'.
pub fn used_apart<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> (u64, u64) {
    let sum = sum(cells, limit, now);
    (limit.parts.own(sum), limit.parts.total(sum) - limit.parts.own(sum))
}

#[inline(always)]
fn sum<C: Cells>(cells: &C, limit: Limit, now: BucketIndex) -> u64 {
    let bucket = never_negative(now);
    full(cells, limit, bucket).wrapping_add(admitted_in(cells, limit, bucket))
}

/// The first bucket, from `now` on, in which `amount` is within the limit if nothing else is charged; none if it
/// never is.
pub fn free_from<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, amount: u64) -> Option<BucketIndex> {
    (0..=CELLS as u64)
        .map(|ahead| BucketIndex(now.0.saturating_add(ahead)))
        .find(|&bucket| is_within_limit(cells, limit, bucket, amount))
}

/// The first bucket, from `now` on, in which `least` is within the limit if nothing else is charged, at least 1:
/// [`free_from`] in one pass. Where that is more than the limit, the first one in which nothing is left of what was
/// admitted.
#[inline(always)]
pub fn full_until<C: Cells>(cells: &C, limit: Limit, now: BucketIndex, least: u64) -> BucketIndex {
    let bucket = BucketIndex(cells.forget(never_negative(now).0));
    let current = admitted_in(cells, limit, bucket);
    let mut used = current;
    // As much puts it over the limit.
    let (amount, burst) = (limit.amount.saturating_sub(least - 1), limit.burst.saturating_sub(least - 1));
    // Of the sums of one bucket, two, and so on: those that are full. // the first is that number from the end
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

    /// A copy of a window is for reading.
    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> bool {
        false
    }
}

/// A window that no other thread has.
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
