//! Tests of the window under real threads, with a clock that one of them advances. tests/loom.rs covers every order of
//! a few steps; these tests cover a few orders of millions.
#![cfg(not(loom))]
#![expect(clippy::expect_used, reason = "test code: where it cannot go on, the test fails")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::{self, Admitted, BURST_ANY, CELLS, Cells, Charge, Limit, Parts, TRIES_MAX};

const NOW: u64 = 29_700_600;
const THREADS: usize = 2;
const LIMIT: Limit = Limit { amount: 1000, full_buckets: 5, parts: Parts::alone(60_000_000_000), burst: BURST_ANY };

struct Ring([AtomicU64; CELLS]);

impl Ring {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
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

/// Admitted amounts by bucket since [`NOW`], and the number of charges that were overtaken in every try.
struct Tally {
    admitted: Vec<u64>,
    contended: u64,
}

/// Runs threads that charge one by one, each in the bucket that `clock` returns, until it returns None.
fn hammer(ring: &Ring, buckets: usize, clock: impl Fn() -> Option<u64> + Sync) -> Tally {
    let start = Barrier::new(THREADS);
    let tallies: Vec<Tally> = thread::scope(|scope| {
        let hammering: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    hammer_alone(ring, buckets, &clock)
                })
            })
            .collect();
        hammering.into_iter().map(|thread| thread.join().expect("the thread does not panic")).collect()
    });
    let mut all = Tally { admitted: vec![0; buckets], contended: 0 };
    for tally in tallies {
        all.contended += tally.contended;
        for (sum, admitted) in all.admitted.iter_mut().zip(tally.admitted) {
            *sum += admitted;
        }
    }
    all
}

fn hammer_alone(ring: &Ring, buckets: usize, clock: &impl Fn() -> Option<u64>) -> Tally {
    let mut tally = Tally { admitted: vec![0; buckets], contended: 0 };
    while let Some(bucket) = clock() {
        match window::charge(ring, LIMIT, BucketIndex(NOW + bucket), 1) {
            Charge::Admitted(Admitted { bucket, .. }) => {
                tally.admitted[usize::try_from(bucket.0 - NOW).expect("a bucket of the test")] += 1;
            }
            Charge::Refused => {}
            Charge::Unsettled(_) => panic!("these cells settle themselves"),
            Charge::Contended => tally.contended += 1,
        }
    }
    tally
}

#[test]
fn two_threads_admit_exactly_the_limit_in_one_bucket() {
    for _ in 0..200 {
        let ring = Ring::new();
        let tries = AtomicU64::new(0);
        let tally = hammer(&ring, 1, || (tries.fetch_add(1, Ordering::Relaxed) < 3 * LIMIT.amount).then_some(0));
        assert_eq!(tally.admitted, [LIMIT.amount]);
        assert_eq!(window::used(&ring, LIMIT, BucketIndex(NOW)), LIMIT.amount);
    }
}

#[test]
fn two_threads_never_exceed_the_limit_in_any_window_while_the_clock_turns() {
    // There are so few tries per bucket that only several buckets reach the limit, and most buckets turn meanwhile.
    const TRIES_A_BUCKET: u64 = 300;
    const BUCKETS: usize = 4000;
    let ring = Ring::new();
    let tries = AtomicU64::new(0);
    let clock = || {
        let bucket = tries.fetch_add(1, Ordering::Relaxed) / TRIES_A_BUCKET;
        (bucket < BUCKETS as u64).then_some(bucket)
    };
    // One bucket more, since a charge that finds its bucket sealed moves on to the next.
    let tally = hammer(&ring, BUCKETS + 1, clock);
    let window = usize::from(LIMIT.full_buckets) + 1;
    for (start, buckets) in tally.admitted.windows(window).enumerate() {
        let sum: u64 = buckets.iter().sum();
        assert!(sum <= LIMIT.amount, "{sum} admitted in the window from bucket {start}: {buckets:?}");
    }
    // Six buckets of 300 tries would be 1800, so the limit takes effect in every round. Contention loses nothing.
    let all: u64 = tally.admitted.iter().sum();
    let least = (BUCKETS / window) as u64 * LIMIT.amount * 9 / 10;
    assert!(all >= least, "{all} admitted in all, {least} expected at the least");
    // Two threads that only charge one window, unoptimised, are far worse than packets, which take time to arrive.
    let tries_in_all = BUCKETS as u64 * TRIES_A_BUCKET;
    assert!(tally.contended <= tries_in_all / 20, "{} charges overtaken {TRIES_MAX} times", tally.contended);
}
