//! Tests of the window against the design's timelines and text, with one thread. Tests with threads are in
//! tests/loom.rs.

use std::cell::Cell as StdCell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::time::{Nanos, SECOND_NS};

const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Bucket that begins at 10:00 of some day.
const TEN_O_CLOCK: BucketIndex = BucketIndex(29_700_600);

struct Ring([StdCell<u64>; CELLS]);

impl Ring {
    fn new() -> Self {
        Self(std::array::from_fn(|_| StdCell::new(0)))
    }
}

impl Cells for Ring {
    fn load(&self, index: usize) -> u64 {
        self.0[index].get()
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        let same = self.0[index].get() == current;
        if same {
            self.0[index].set(new);
        }
        same
    }
}

/// Ring that another CPU always changes first.
struct Overtaken;

impl Cells for Overtaken {
    fn load(&self, _: usize) -> u64 {
        0
    }

    fn compare_exchange(&self, _: usize, _: u64, _: u64) -> bool {
        false
    }
}

fn limit(amount: u64, full_buckets: u8) -> Limit {
    Limit { amount, full_buckets, parts: Parts::alone(MINUTE_NS), burst: BURST_ANY }
}

fn admitted(ring: &Ring, limit: Limit, minute: u64, tries: u64) -> u64 {
    (0..tries)
        .filter(|_| matches!(charge(ring, limit, BucketIndex(TEN_O_CLOCK.0 + minute), 1), Charge::Admitted(_)))
        .count() as u64
}

#[test]
fn the_classic_timeline_of_1000_in_5_minutes_holds_in_both_forms() {
    for full_buckets in [5, 4] {
        for (last, expected) in [(100, 100), (300, 250)] {
            let ring = Ring::new();
            let limit = limit(1000, full_buckets);
            assert_eq!(admitted(&ring, limit, 0, 250), 250);
            assert_eq!(admitted(&ring, limit, 2, 500), 500);
            assert_eq!(admitted(&ring, limit, 4, 250), 250);
            // The lenient window loses 10:00 at 10:05, and the strict one at 10:06.
            assert_eq!(admitted(&ring, limit, 6, last), expected, "behind {full_buckets}");
        }
    }
}

#[test]
fn the_classic_timeline_of_30_in_5_minutes_holds_in_both_forms() {
    for full_buckets in [5, 4] {
        let ring = Ring::new();
        let limit = limit(30, full_buckets);
        assert_eq!(admitted(&ring, limit, 45, 13), 13);
        assert_eq!(admitted(&ring, limit, 46, 7), 7);
        assert_eq!(admitted(&ring, limit, 47, 11), 10);
    }
}

#[test]
fn the_forms_differ_in_the_minute_that_strict_still_takes_in() {
    let strict = Ring::new();
    assert_eq!(admitted(&strict, limit(10, 5), 0, 10), 10);
    assert_eq!(admitted(&strict, limit(10, 5), 5, 10), 0);
    assert_eq!(admitted(&strict, limit(10, 5), 6, 11), 10);

    let lenient = Ring::new();
    assert_eq!(admitted(&lenient, limit(10, 4), 0, 10), 10);
    assert_eq!(admitted(&lenient, limit(10, 4), 4, 10), 0);
    assert_eq!(admitted(&lenient, limit(10, 4), 5, 11), 10);
}

#[test]
fn the_limit_passes_and_one_more_does_not() {
    for amount in [0, 1, 2, u64::from(u32::MAX)] {
        let ring = Ring::new();
        let limit = limit(amount, 5);
        if amount > 0 {
            assert!(matches!(charge(&ring, limit, TEN_O_CLOCK, amount), Charge::Admitted(_)));
        }
        assert_eq!(charge(&ring, limit, TEN_O_CLOCK, 1), Charge::Refused, "amount {amount}");
    }
}

#[test]
fn a_charge_that_overflows_is_refused() {
    let ring = Ring::new();
    assert!(matches!(charge(&ring, limit(10, 5), TEN_O_CLOCK, 1), Charge::Admitted(_)));
    assert_eq!(charge(&ring, limit(10, 5), TEN_O_CLOCK, u64::MAX), Charge::Refused);
}

#[test]
fn rejected_charges_are_not_added() {
    let ring = Ring::new();
    assert_eq!(admitted(&ring, limit(5, 5), 0, 500), 5);
    assert_eq!(used(&ring, limit(5, 5), TEN_O_CLOCK), 5);
    assert_eq!(admitted(&ring, limit(5, 5), 6, 1), 1);
}

#[test]
fn a_source_idle_for_a_century_starts_empty() {
    let ring = Ring::new();
    assert_eq!(admitted(&ring, limit(7, 7), 0, 9), 7);
    assert_eq!(admitted(&ring, limit(7, 7), 100 * 366 * 1440, 9), 7);
    // A multiple of the ring's length later, the cell is in the same place.
    assert_eq!(admitted(&ring, limit(7, 7), 100 * 366 * 1440 + 8 * 1000, 9), 7);
}

#[test]
fn a_clock_that_lags_charges_the_bucket_that_is_already_open() {
    let ring = Ring::new();
    assert_eq!(admitted(&ring, limit(5, 5), 3, 4), 4);
    assert_eq!(admitted(&ring, limit(5, 5), 2, 4), 1);
    let charged = charge(&ring, limit(6, 5), BucketIndex(TEN_O_CLOCK.0 + 2), 1);
    assert_eq!(charged, Charge::Admitted(Admitted { bucket: BucketIndex(TEN_O_CLOCK.0 + 3), own: 6, is_step: false }));
}

#[test]
fn a_charge_that_is_always_overtaken_ends() {
    assert_eq!(charge(&Overtaken, limit(5, 5), TEN_O_CLOCK, 1), Charge::Contended);
    refund(&Overtaken, limit(5, 5), BucketIndex(0), 1);
}

#[test]
fn a_refund_gives_the_room_back_once() {
    let ring = Ring::new();
    let limit = limit(3, 5);
    let Charge::Admitted(Admitted { bucket, .. }) = charge(&ring, limit, TEN_O_CLOCK, 3) else {
        panic!("3 of 3 must fit")
    };
    refund(&ring, limit, bucket, 2);
    assert_eq!(admitted(&ring, limit, 0, 5), 2);
    // The refund also works after a later bucket has sealed this one.
    assert_eq!(admitted(&ring, limit, 1, 1), 0);
    refund(&ring, limit, bucket, 1);
    assert_eq!(admitted(&ring, limit, 1, 5), 1);
    // The refund does nothing once the cell holds another bucket.
    assert_eq!(admitted(&ring, limit, 8, 5), 3);
    refund(&ring, limit, bucket, 1);
    assert_eq!(used(&ring, limit, BucketIndex(TEN_O_CLOCK.0 + 8)), 3);
}

#[test]
fn an_opened_window_is_one_that_was_charged_once() {
    for offset in 0..CELLS as u64 {
        let now = BucketIndex(TEN_O_CLOCK.0 + offset);
        let mut words = [0; CELLS];
        assert!(open(&mut words, limit(5, 7), now, 2));
        let ring = Ring::new();
        let charged = charge(&ring, limit(5, 7), now, 2);
        assert_eq!(charged, Charge::Admitted(Admitted { bucket: now, own: 2, is_step: false }));
        // One bucket differs: it is settled with the second charge.
        let words = words.map(StdCell::new);
        assert_eq!(settle(&words, limit(5, 7), now), now);
        assert_eq!(words.map(|word| word.get()), std::array::from_fn(|at| ring.load(at)));
    }
    assert!(!open(&mut [0; CELLS], limit(5, 7), TEN_O_CLOCK, 6));
}

#[test]
fn the_window_frees_with_the_bucket_that_leaves_it() {
    let ring = Ring::new();
    let limit = limit(10, 5);
    assert_eq!(admitted(&ring, limit, 0, 4), 4);
    assert_eq!(admitted(&ring, limit, 2, 6), 6);
    let now = BucketIndex(TEN_O_CLOCK.0 + 3);
    assert_eq!(free_from(&ring, limit, now, 1), Some(BucketIndex(TEN_O_CLOCK.0 + 6)));
    assert_eq!(free_from(&ring, limit, now, 5), Some(BucketIndex(TEN_O_CLOCK.0 + 8)));
    assert_eq!(free_from(&ring, limit, now, 0), Some(now));
    assert_eq!(free_from(&ring, limit, now, 11), None);
}

#[test]
fn a_cell_lasts_a_century_and_counts_gigabits() {
    for (bucket_ns, seconds_in_window) in
        [(SECOND_NS / 5, 1), (2 * SECOND_NS, 10), (10 * SECOND_NS, 60), (MINUTE_NS, 300), (600 * SECOND_NS, 3600)]
    {
        let parts = Parts::alone(bucket_ns);
        let last = Nanos(150 * 366 * 86_400 * SECOND_NS).bucket(bucket_ns);
        let cell = Cell { bucket: last, sealed: true, count: amount_max(bucket_ns), others: 0 };
        assert_eq!(Cell::decode(cell.encode(parts), index(last), parts), cell);
        let gigabits_per_second = amount_max(bucket_ns) * 8 / seconds_in_window / 1_000_000_000;
        assert!(gigabits_per_second >= 7, "{bucket_ns} ns: {gigabits_per_second} Gbit/s");
    }
}

/// Rule in the words of the design, over an exact log of admissions.
struct Oracle {
    log: Vec<(u64, u64)>,
    amount: u64,
    bucket_ns: u64,
    full_buckets: u64,
    burst: u64,
}

impl Oracle {
    fn admits(&mut self, now_ns: u64, charges: u64) -> bool {
        let current = now_ns / self.bucket_ns;
        let first_ns = (current - self.full_buckets) * self.bucket_ns;
        let sum: u64 = self.log.iter().filter(|(at_ns, _)| *at_ns >= first_ns).map(|(_, charges)| charges).sum();
        let in_bucket = self.log.iter().filter(|(at_ns, _)| at_ns / self.bucket_ns == current);
        let in_bucket: u64 = in_bucket.map(|(_, charges)| charges).sum();
        let admits = sum + charges <= self.amount && in_bucket + charges <= self.burst;
        if admits {
            self.log.push((now_ns, charges));
        }
        admits
    }
}

/// Returns steps: how far the clock moves, in quarters of a bucket, and the amount that is charged.
fn steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let advance = prop_oneof![8 => 0..3_u64, 2 => 3..40_u64, 1 => Just(4 * 8), 1 => Just(4 * 1_000)];
    proptest::collection::vec((advance, 0..9_u64), 1..200)
}

proptest! {
    #[test]
    fn the_window_agrees_with_the_log_of_admissions(
        steps in steps(), amount in 0..40_u64,
        full_buckets in prop_oneof![5 => FULL_BUCKETS_MIN..=FULL_BUCKETS_MAX, 1 => Just(0_u8)],
        burst in prop_oneof![2 => Just(BURST_ANY), 1 => 0..20_u64],
        bucket_ns in prop_oneof![Just(MINUTE_NS), Just(SECOND_NS / 5), Just(600 * SECOND_NS)],
    ) {
        let limit = Limit { amount, full_buckets, parts: Parts::alone(bucket_ns), burst };
        let mut oracle = Oracle { log: Vec::new(), amount, bucket_ns, full_buckets: full_buckets.into(), burst };
        let ring = Ring::new();
        let mut now_ns = 1_800_000_000 * SECOND_NS;
        for (quarters, charges) in steps {
            now_ns += quarters * bucket_ns / 4;
            let room = is_within_limit(&ring, limit, Nanos(now_ns).bucket(bucket_ns), charges);
            let charged = charge(&ring, limit, Nanos(now_ns).bucket(bucket_ns), charges);
            let expected = oracle.admits(now_ns, charges);
            prop_assert_eq!(matches!(charged, Charge::Admitted(_)), expected);
            prop_assert_eq!(room, expected);
            prop_assert_ne!(charged, Charge::Contended);
            let bucket = Nanos(now_ns).bucket(bucket_ns);
            for least in (1..30).take_while(|&least| least <= amount && least <= burst) {
                prop_assert_eq!(Some(full_until(&ring, limit, bucket, least)), free_from(&ring, limit, bucket, least));
            }
        }
    }

    #[test]
    fn no_real_interval_of_the_windows_length_admits_more_than_the_limit(
        steps in proptest::collection::vec((0..90_u64, 1..4_u64), 1..300), amount in 1..30_u64, buckets in 5..=7_u8,
    ) {
        let limit = Limit { amount, full_buckets: buckets, parts: Parts::alone(SECOND_NS), burst: BURST_ANY };
        let ring = Ring::new();
        let mut now_ns = 1_800_000_000 * SECOND_NS;
        let mut log: Vec<(u64, u64)> = Vec::new();
        for (hundredths, charges) in steps {
            now_ns += hundredths * SECOND_NS / 100;
            if matches!(charge(&ring, limit, Nanos(now_ns).bucket(SECOND_NS), charges), Charge::Admitted(_)) {
                log.push((now_ns, charges));
            }
        }
        for (start, _) in &log {
            let end = start + u64::from(buckets) * SECOND_NS;
            let sum: u64 = log.iter().filter(|(at, _)| at >= start && *at < end).map(|(_, charges)| charges).sum();
            prop_assert!(sum <= amount, "{sum} in the {buckets} s from {start}");
        }
    }

    #[test]
    fn any_words_are_read_without_panic(
        words in any::<[u64; CELLS]>(), amount in any::<u64>(), full_buckets in any::<u8>(),
        parts in any::<u32>().prop_map(Parts), now in 0..u64::MAX >> 16, more in any::<u64>(), units in any::<u64>(),
    ) {
        let limit = Limit { amount, full_buckets, parts, burst: BURST_ANY };
        let _ = used(&words, limit, BucketIndex(now));
        let _ = free_from(&words, limit, BucketIndex(now), more);
        let _ = charge(&words, limit, BucketIndex(now), more);
        let _ = write_others(&words, limit, BucketIndex(now), BucketIndex(now.saturating_sub(1)), units);
    }

    /// Whatever is reported, in any order, this host's part is what it admitted. Both parts together are within the
    /// limit.
    #[test]
    fn remote_admissions_count_and_are_never_taken_for_local_ones(
        steps in proptest::collection::vec((0..9_u64, 0..9_u64, 0..7_u64, 0..40_u64), 1..200), amount in 1..2000_u64,
        full_buckets in prop_oneof![5 => FULL_BUCKETS_MIN..=FULL_BUCKETS_MAX, 1 => Just(0_u8)],
    ) {
        let parts = Parts::shared(MINUTE_NS, amount, 3);
        let limit = Limit { amount, full_buckets, parts, burst: BURST_ANY };
        let ring = Ring::new();
        let (mut now, mut own, mut others) = (TEN_O_CLOCK.0, BTreeMap::new(), BTreeMap::new());
        for (advance, charges, back, units) in steps {
            now += advance.saturating_sub(6);
            let told = BucketIndex(now - back);
            if write_others(&ring, limit, BucketIndex(now), told, units) {
                others.insert(told.0, units << parts.unit_bits());
            }
            let sum = |of: &BTreeMap<u64, u64>| of.range(now - u64::from(full_buckets)..=now).map(|(_, n)| n).sum::<u64>();
            prop_assert_eq!(used_apart(&ring, limit, BucketIndex(now)), (sum(&own), sum(&others)));
            let fits = sum(&own) + sum(&others) + charges <= amount;
            let before = own.get(&now).copied().unwrap_or(0);
            match charge(&ring, limit, BucketIndex(now), charges) {
                Charge::Admitted(admitted) => {
                    prop_assert!(fits);
                    let is_step = before / 8 != (before + charges) / 8;
                    let expected = Admitted { bucket: BucketIndex(now), own: before + charges, is_step };
                    prop_assert_eq!(admitted, expected);
                    own.insert(now, before + charges);
                }
                charge @ (Charge::Refused | Charge::Contended | Charge::Unsettled(_)) => {
                    prop_assert_eq!(charge, Charge::Refused);
                    prop_assert!(!fits);
                }
            }
        }
    }
}

#[test]
fn remote_admissions_go_to_their_own_bucket_and_no_later_one() {
    let (ring, parts) = (Ring::new(), Parts::shared(MINUTE_NS, 10, 2));
    let limit = Limit { amount: 10, full_buckets: 5, parts, burst: BURST_ANY };
    let at = |minute: u64| BucketIndex(TEN_O_CLOCK.0 + minute);
    assert_eq!(admitted(&ring, limit, 2, 3), 3);
    assert!(write_others(&ring, limit, at(2), at(0), 4), "of a bucket in which nothing was admitted here");
    assert!(write_others(&ring, limit, at(2), at(2), 2));
    assert!(!write_others(&ring, limit, at(2), at(3), 9), "its clock is ahead");
    assert_eq!(used_apart(&ring, limit, at(2)), (3, 6));
    assert_eq!(admitted(&ring, limit, 2, 3), 1, "3 of ours and 6 of theirs are 9 of 10");
    assert!(write_others(&ring, limit, at(2), at(2), 1), "they were reset");
    assert_eq!(used_apart(&ring, limit, at(2)), (4, 5));
    assert_eq!(used_apart(&ring, limit, at(6)), (4, 1), "what was told expires with its bucket");
    assert_eq!(admitted(&ring, limit, 8, 2), 2);
    assert!(!write_others(&ring, limit, at(8), at(0), 9), "its place has a later bucket");
    // A refund takes from this host's part only.
    let Charge::Admitted(Admitted { bucket, .. }) = charge(&ring, limit, at(8), 1) else { panic!("it fits") };
    assert!(write_others(&ring, limit, at(8), at(8), 5));
    refund(&ring, limit, bucket, 9);
    assert_eq!(used_apart(&ring, Limit { full_buckets: 0, ..limit }, at(8)), (0, 5));
    // A limit that is not shared takes no reports.
    assert!(!write_others(&ring, self::limit(10, 5), at(8), at(8), 5));
}

#[test]
fn a_unit_is_fine_and_a_cell_holds_twice_the_limit() {
    for amount in [1, 10, 511, 512, 1000, 1_000_000, 50_000_000, (1 << 28) - 1] {
        let parts = Parts::shared(MINUTE_NS, amount, 0);
        assert!(parts.amount_max() >= amount, "{amount}");
        assert!((OTHERS_MAX + 1) << parts.unit_bits() >= 2 * amount, "{amount}: {parts:?}");
        assert!(amount < 512 || (1 << parts.unit_bits()) * 255 <= amount, "{amount}: {parts:?}");
        let cell = Cell { bucket: TEN_O_CLOCK, sealed: true, count: parts.amount_max(), others: OTHERS_MAX };
        assert_eq!(Cell::decode(cell.encode(parts), index(TEN_O_CLOCK), parts), cell);
    }
}
