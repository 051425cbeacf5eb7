//! Tests of the window's protocol under every order of two threads' loads and exchanges, and under the common orders of
//! three.
//!
//! Loads are relaxed, so loom also gives every stale value that a CPU might see.
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ratelimit-common --test loom --release`; without it, this file is
//! empty.
#![cfg(loom)]
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::sync::Mutex;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use ratelimit_common::drop_cache::{BUSY, ONE_DROPPED};
use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::{self, Admitted, BURST_ANY, CELLS, Cells, Charge, FULL_BUCKETS_MIN, Limit, Parts};

/// Bucket whose place in the ring is the first.
const NOW: u64 = 29_700_600;
const MINUTE_NS: u64 = 60_000_000_000;

struct Ring([AtomicU64; CELLS]);

impl Ring {
    /// Returns a window in which `amount` was charged at `NOW`, as the packet path creates it.
    fn opened(limit: Limit, amount: u64) -> Self {
        let mut words = [0; CELLS];
        assert!(window::open(&mut words, limit, BucketIndex(NOW), amount), "the first charge fits");
        Self(words.map(AtomicU64::new))
    }
}

impl Cells for Ring {
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    fn compare_exchange(&self, index: usize, current: u64, new: u64) -> bool {
        self.0[index].compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

fn limit(amount: u64, full_buckets: u8) -> Limit {
    Limit { amount, full_buckets, parts: Parts::alone(MINUTE_NS), burst: BURST_ANY }
}

/// Charge that a thread makes.
#[derive(Clone, Copy)]
struct Demand {
    bucket: u64,
    amount: u64,
    does: Does,
}

#[derive(Clone, Copy)]
enum Does {
    Charge,
    /// Charges, and refunds the charge, as a rule does when another of its limits refuses.
    ChargeAndRefund,
    /// Writes the amount that other hosts admitted, in units.
    Tell,
}

const fn charge(bucket: u64, amount: u64) -> Demand {
    Demand { bucket, amount, does: Does::Charge }
}

const fn charge_and_refund(bucket: u64, amount: u64) -> Demand {
    Demand { bucket, amount, does: Does::ChargeAndRefund }
}

const fn tell(bucket: u64, units: u64) -> Demand {
    Demand { bucket, amount: units, does: Does::Tell }
}

/// Result that every order of the threads must give.
struct Expected {
    /// Minimum amount that is admitted in all, including the amount at the start.
    at_least: u64,
    preemptions: Option<usize>,
}

/// Runs the threads in every order, and asserts that no window that ends with an admission holds more than the limit.
fn in_every_order(limit: Limit, opened_with: u64, threads: &'static [&'static [Demand]], expected: Expected) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = expected.preemptions;
    model.max_branches = 20_000;
    model.check(move || {
        let ring = Arc::new(Ring::opened(limit, opened_with));
        let log = Arc::new(Mutex::new(vec![(NOW, opened_with)]));
        let running: Vec<_> = threads
            .iter()
            .map(|demands| {
                let (ring, log) = (Arc::clone(&ring), Arc::clone(&log));
                thread::spawn(move || run(&ring, limit, demands, &log))
            })
            .collect();
        for thread in running {
            thread.join().expect("the thread does not panic");
        }
        let log = log.lock().expect("not poisoned").clone();
        holds(limit, &log);
        let admitted: u64 = log.iter().map(|(_, amount)| amount).sum();
        assert!(admitted >= expected.at_least, "{admitted} of {} admitted: {log:?}", expected.at_least);
    });
}

fn run(ring: &Ring, limit: Limit, demands: &[Demand], log: &Mutex<Vec<(u64, u64)>>) {
    for demand in demands {
        let bucket = BucketIndex(demand.bucket);
        if let Does::Tell = demand.does {
            let _too_late = window::write_others(ring, limit, bucket, bucket, demand.amount);
            continue;
        }
        match window::charge(ring, limit, bucket, demand.amount) {
            Charge::Admitted(Admitted { bucket, .. }) if matches!(demand.does, Does::ChargeAndRefund) => {
                window::refund(ring, limit, bucket, demand.amount);
            }
            Charge::Admitted(Admitted { bucket, .. }) => {
                log.lock().expect("not poisoned").push((bucket.0, demand.amount))
            }
            Charge::Refused => {}
            Charge::Unsettled(_) => panic!("these cells settle themselves"),
            Charge::Contended => panic!("a handful of threads never overtake one charge so often"),
        }
    }
}

/// Asserts that the window ending with each admission's bucket is within the limit.
fn holds(limit: Limit, log: &[(u64, u64)]) {
    for &(last, _) in log {
        let sum: u64 = log
            .iter()
            .filter(|(bucket, _)| *bucket <= last && bucket + u64::from(limit.full_buckets) >= last)
            .map(|(_, amount)| amount)
            .sum();
        assert!(sum <= limit.amount, "{sum} of {} in the window that ends with {last}: {log:?}", limit.amount);
    }
}

#[test]
fn two_threads_at_the_edge_of_one_bucket_admit_exactly_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1), charge(NOW, 1)], &[charge(NOW, 1), charge(NOW, 1)]];
    in_every_order(limit(3, 5), 1, THREADS, Expected { at_least: 3, preemptions: None });
}

#[test]
fn two_threads_for_the_last_place_admit_one() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1)], &[charge(NOW, 1)]];
    in_every_order(limit(2, 5), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn two_threads_with_different_amounts_never_exceed_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 3), charge(NOW, 1)], &[charge(NOW, 2)]];
    in_every_order(limit(5, 5), 1, THREADS, Expected { at_least: 4, preemptions: None });
}

#[test]
fn three_threads_at_the_edge_of_one_bucket_admit_exactly_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1)], &[charge(NOW, 1)], &[charge(NOW, 1)]];
    in_every_order(limit(3, 5), 1, THREADS, Expected { at_least: 3, preemptions: Some(3) });
}

#[test]
fn while_the_bucket_turns_two_threads_never_exceed_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1), charge(NOW, 1)], &[charge(NOW + 1, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn while_the_bucket_turns_the_last_place_goes_to_one() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1)], &[charge(NOW + 1, 1)]];
    in_every_order(limit(2, 5), 1, THREADS, Expected { at_least: 2, preemptions: Some(3) });
}

#[test]
fn while_the_bucket_turns_three_threads_never_exceed_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1)], &[charge(NOW + 1, 1)], &[charge(NOW + 1, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: Some(2) });
}

#[test]
fn a_thread_that_turns_two_buckets_meets_one_that_turns_one() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW + 1, 1)], &[charge(NOW + 2, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn a_straggler_several_buckets_late_never_gets_past_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1)], &[charge(NOW + FULL_BUCKETS_MIN as u64, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn a_straggler_in_the_bucket_that_was_left_open_never_gets_past_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW - FULL_BUCKETS_MIN as u64, 1)], &[charge(NOW, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn a_straggler_whose_place_in_the_ring_was_taken_never_gets_past_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1)], &[charge(NOW + CELLS as u64, 2)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: Some(2) });
}

#[test]
fn a_refund_in_the_same_bucket_never_makes_room_twice() {
    const THREADS: &[&[Demand]] = &[&[charge_and_refund(NOW, 1), charge(NOW, 1)], &[charge(NOW, 1), charge(NOW, 1)]];
    in_every_order(limit(2, 5), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn a_refund_while_the_bucket_turns_never_makes_room_twice() {
    const THREADS: &[&[Demand]] = &[&[charge_and_refund(NOW, 1)], &[charge(NOW + 1, 1), charge(NOW + 1, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 1, preemptions: None });
}

#[test]
fn a_refund_whose_place_in_the_ring_was_taken_makes_no_room() {
    const LATER: u64 = NOW + CELLS as u64;
    const THREADS: &[&[Demand]] = &[&[charge_and_refund(NOW, 1)], &[charge(LATER, 2), charge(LATER, 1)]];
    in_every_order(limit(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 2, preemptions: Some(2) });
}

fn shared(amount: u64, full_buckets: u8) -> Limit {
    Limit { parts: Parts::shared(MINUTE_NS, amount, 0), ..limit(amount, full_buckets) }
}

#[test]
fn remote_admissions_never_make_this_host_admit_more_than_the_limit() {
    const THREADS: &[&[Demand]] = &[&[charge(NOW, 1), charge(NOW, 1)], &[tell(NOW, 1), tell(NOW, 0)]];
    in_every_order(shared(3, 5), 1, THREADS, Expected { at_least: 2, preemptions: None });
}

#[test]
fn while_the_bucket_turns_what_others_admitted_takes_nothing_from_the_count() {
    const THREADS: &[&[Demand]] =
        &[&[charge(NOW, 1), charge(NOW + 1, 1)], &[charge(NOW + 1, 1)], &[tell(NOW + 1, 1), tell(NOW, 0)]];
    in_every_order(shared(3, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 1, preemptions: Some(2) });
}

#[test]
fn a_bucket_that_others_open_is_settled_like_one_of_our_own() {
    const THREADS: &[&[Demand]] = &[&[tell(NOW + 1, 1), charge(NOW + 1, 1)], &[charge(NOW, 1), charge(NOW + 2, 1)]];
    in_every_order(shared(2, FULL_BUCKETS_MIN), 1, THREADS, Expected { at_least: 1, preemptions: Some(3) });
}

/// Models an entry of the drop cache as `ratelimit-ebpf/src/maps/drop_cache.rs` writes and reads it. Another source
/// takes the entry while a packet of the first one looks it up. Later loads wait for the first one, as on aarch64 where
/// their address depends on it. With a relaxed first load, the packet finds the other source's refusal.
#[test]
fn a_packet_is_never_refused_by_an_entry_of_another_source() {
    const SOURCES: [u64; 2] = [10, 20];
    const WORDS: [u64; 2] = [1, 2];
    loom::model(|| {
        let entry = Arc::new([AtomicU64::new(WORDS[0]), AtomicU64::new(SOURCES[0])]);
        let writer = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                let [word, source] = &*entry;
                if word.compare_exchange(WORDS[0], BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    source.store(SOURCES[1], Ordering::Relaxed);
                    word.swap(WORDS[1], Ordering::SeqCst);
                }
            })
        };
        let [word, source] = &*entry;
        let read = word.load(Ordering::Acquire);
        if source.load(Ordering::Relaxed) == SOURCES[0] && read != BUSY {
            let counted = word.compare_exchange(read, read + ONE_DROPPED, Ordering::SeqCst, Ordering::SeqCst);
            assert!(counted.is_err() || read == WORDS[0], "refused by the entry {read} of another source");
        }
        writer.join().expect("the thread does not panic");
    });
}
