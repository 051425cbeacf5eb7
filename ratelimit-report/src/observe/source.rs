//! One source in one limit: what it wanted in each bucket, and what each candidate would have admitted of that.
//!
//! Buckets are finished in order. What a candidate admits of a bucket depends on the buckets before it alone, and on
//! how much was wanted in it: of units that come one by one, exactly what packet after packet would have been
//! admitted.

use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::{self, CELLS, Cell, Parts};

use ratelimit_policy::config::rule::CANDIDATES_MAX;

/// How the limit's buckets are summed and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Full buckets before the current one that the sum takes in.
    pub(super) full_buckets: u8,
    /// At most so much in one bucket.
    pub(super) burst: u64,
    /// What a cell's count is made of.
    pub(super) parts: Parts,
}

/// What all sources together come to under each candidate.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// The candidates' amounts, ascending, at most [`CANDIDATES_MAX`].
    pub(super) amounts: Vec<u64>,
    /// By candidate.
    pub(super) blocked: Vec<Blocked>,
    /// Everything that was wanted since the candidates are counted.
    pub(super) demand: u64,
}

/// What one candidate would have blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocked {
    /// Sources, each once.
    pub(super) sources: u64,
    /// Of what they wanted, in the limit's unit.
    pub(super) amount: u64,
}

impl Totals {
    /// None blocked yet.
    pub(super) fn new(amounts: Vec<u64>) -> Self {
        Self { blocked: vec![Blocked::default(); amounts.len()], amounts, demand: 0 }
    }
}

/// Refusals that were not there when the source was last looked at, in the limit's unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) amount: u64,
    pub(super) bucket: BucketIndex,
}

/// One amount for each of the last [`CELLS`] buckets.
#[derive(Clone, Copy, Debug, Default)]
struct Ring([u64; CELLS]);

impl Ring {
    fn at(&self, bucket: BucketIndex) -> u64 {
        self.0[window::index(bucket)]
    }

    fn set(&mut self, bucket: BucketIndex, amount: u64) {
        self.0[window::index(bucket)] = amount;
    }

    /// Sum of the `full_buckets` buckets before this one.
    fn before(&self, bucket: BucketIndex, full_buckets: u8) -> u64 {
        let earlier = (1..=u64::from(full_buckets)).map(|back| self.at(BucketIndex(bucket.0.wrapping_sub(back))));
        earlier.fold(0, u64::saturating_add)
    }
}

/// What is known of one source. // 136 B, and once it exceeds a candidate 32 B and 64 B for each such
#[derive(Clone, Debug)]
pub(super) struct ObservedSource {
    /// What it wanted in the open bucket and those before it: admitted or refused.
    demand: Ring,
    /// The first bucket that it was looked at in.
    first: BucketIndex,
    /// The newest bucket in which it was active. Those before it are finished.
    open: BucketIndex,
    /// What of the open bucket's demand was refused.
    open_refused: u64,
    /// The window's refusals when it was last looked at.
    pub(super) refused: u64,
    /// Those of them that only repeat an earlier one.
    repeated: u64,
    /// Requests that were refused in an earlier round and have been admitted since: so many new refusals are none.
    admitted_since: u64,
    /// The most that it wanted in any one window.
    pub(super) peak: u64,
    /// None while every candidate admits everything.
    trial: Option<Box<Trial>>,
}

/// What the candidates admit of one source.
#[derive(Clone, Debug, Default)]
struct Trial {
    /// Of the smallest candidates, which the source has exceeded. The others admit everything.
    admitted: Vec<Ring>,
    /// A bit for each candidate that has blocked it.
    has_blocked: u8,
}

const _: () = assert!(CANDIDATES_MAX <= u8::BITS as usize);

impl ObservedSource {
    /// One that was not seen before, from this bucket on.
    pub(super) fn new(open: BucketIndex, (refused, repeated): (u64, u64)) -> Self {
        let (demand, open_refused, admitted_since, peak, trial) = (Ring::default(), 0, 0, 0, None);
        Self { demand, first: open, open, open_refused, refused, repeated, admitted_since, peak, trial }
    }

    /// How many of so many new refusals are no repetition of an earlier one, of all that its window has refused.
    pub(super) fn without_repetitions(&mut self, refused: u64, repeated: u64) -> u64 {
        // One that was evicted counts from zero.
        let again = repeated.checked_sub(self.repeated).unwrap_or(repeated).saturating_add(self.admitted_since);
        (self.repeated, self.admitted_since) = (repeated, again.saturating_sub(refused));
        refused.saturating_sub(again)
    }

    /// The first bucket that is not finished.
    pub(super) const fn open(&self) -> BucketIndex {
        self.open
    }

    /// Whether all that it ever wanted lies within one window, and before this bucket or in it.
    pub(super) const fn came_once(&self, until: BucketIndex) -> bool {
        self.open.0 <= until.0 && self.open.0 - self.first.0 < CELLS as u64
    }

    /// Ends it: nothing more is wanted of its open bucket.
    pub(super) fn end(&mut self, shape: Shape, totals: &mut Totals) {
        self.finish(shape, self.open, totals);
    }

    /// Takes in what its cells say now, and what was refused since the last look.
    pub(super) fn look(
        &mut self,
        shape: Shape,
        cells: &[u64; CELLS],
        refused: Option<Refused>,
        ahead_max: BucketIndex,
        totals: &mut Totals,
    ) {
        let cells: [Cell; CELLS] = std::array::from_fn(|at| Cell::decode(cells[at], at, shape.parts));
        let active = cells.iter().filter(|cell| cell.count > 0 && cell.bucket <= ahead_max).map(|cell| cell.bucket);
        let newest = active.chain(refused.map(|refused| refused.bucket)).max().unwrap_or(self.open).max(self.open);
        let mut bucket = self.open;
        loop {
            let cell = cells[window::index(bucket)];
            let counted = if cell.bucket == bucket { cell.count } else { 0 };
            self.open_refused = match refused {
                Some(refused) if refused.bucket == bucket => self.open_refused.saturating_add(refused.amount),
                Some(_) | None => self.open_refused,
            };
            self.want(shape, bucket, counted.saturating_add(self.open_refused), totals);
            if bucket == newest {
                break;
            }
            self.finish(shape, bucket, totals);
            bucket = self.next(bucket, newest);
        }
        self.open = bucket;
    }

    /// The bucket after one that is finished. The oldest that the cells still tell is [`CELLS`] - 1 before `newest`:
    /// what is in no window with that one need not be gone through.
    fn next(&mut self, bucket: BucketIndex, newest: BucketIndex) -> BucketIndex {
        self.open_refused = 0;
        if newest.0 - bucket.0 <= 2 * CELLS as u64 {
            let next = BucketIndex(bucket.0 + 1);
            self.demand.set(next, 0);
            return next;
        }
        self.demand = Ring::default();
        if let Some(trial) = &mut self.trial {
            trial.admitted.fill(Ring::default());
        }
        BucketIndex(newest.0 - (CELLS as u64 - 1))
    }

    /// Adds what was refused elsewhere, in a bucket that is open or yet to come.
    pub(super) fn add(&mut self, shape: Shape, refused: Refused, totals: &mut Totals) {
        let newest = refused.bucket.max(self.open);
        while self.open != newest {
            self.finish(shape, self.open, totals);
            self.open = self.next(self.open, newest);
        }
        self.open_refused = self.open_refused.saturating_add(refused.amount);
        self.want(shape, self.open, self.demand.at(self.open).saturating_add(refused.amount), totals);
    }

    /// Whether something of what it wanted in this bucket, which is not finished, is known to be refused.
    pub(super) fn is_refused_in(&self, bucket: BucketIndex) -> bool {
        bucket == self.open && self.open_refused > 0
    }

    /// The demand of a bucket only grows: a source that is evicted and comes back is counted from 0 again.
    fn want(&mut self, shape: Shape, bucket: BucketIndex, demand: u64, totals: &mut Totals) {
        let before = self.demand.at(bucket);
        if demand <= before {
            return;
        }
        self.demand.set(bucket, demand);
        totals.demand = totals.demand.saturating_add(demand - before);
        let window = self.demand.before(bucket, shape.full_buckets).saturating_add(demand);
        self.peak = self.peak.max(window);
        let exceeded = if demand > shape.burst {
            totals.amounts.len()
        } else {
            totals.amounts.partition_point(|amount| *amount < window)
        };
        if exceeded > 0 {
            let trial = self.trial.get_or_insert_default();
            if exceeded > trial.admitted.len() {
                trial.admitted.reserve_exact(exceeded - trial.admitted.len());
                trial.admitted.resize(exceeded, self.demand);
            }
        }
    }

    fn finish(&mut self, shape: Shape, bucket: BucketIndex, totals: &mut Totals) {
        let demand = self.demand.at(bucket);
        let Some(trial) = &mut self.trial else { return };
        for (candidate, (ring, amount)) in trial.admitted.iter_mut().zip(&totals.amounts).enumerate() {
            let admitted = demand.min(room(shape, ring, bucket, *amount));
            ring.set(bucket, admitted);
            if admitted < demand {
                let bit = 1 << candidate;
                totals.blocked[candidate].sources += u64::from(trial.has_blocked & bit == 0);
                totals.blocked[candidate].amount = totals.blocked[candidate].amount.saturating_add(demand - admitted);
                trial.has_blocked |= bit;
            }
        }
    }

    /// Adds what the candidates would block of the open bucket if nothing more came in it.
    pub(super) fn add_open(&self, shape: Shape, amounts: &[u64], blocked: &mut [Blocked]) {
        let demand = self.demand.at(self.open);
        let Some(trial) = &self.trial else { return };
        for (candidate, (ring, amount)) in trial.admitted.iter().zip(amounts).enumerate() {
            let refused = demand.saturating_sub(room(shape, ring, self.open, *amount));
            let is_new = refused > 0 && trial.has_blocked & 1 << candidate == 0;
            blocked[candidate].sources += u64::from(is_new);
            blocked[candidate].amount = blocked[candidate].amount.saturating_add(refused);
        }
    }

    /// Forgets what earlier candidates admitted.
    pub(super) fn reset(&mut self) {
        self.trial = None;
    }

    /// Bytes that it takes beside itself.
    pub(super) fn trial_bytes(&self) -> usize {
        let rings = |trial: &Trial| size_of::<Trial>() + trial.admitted.capacity() * size_of::<Ring>();
        self.trial.as_deref().map_or(0, rings)
    }
}

/// What a limit of this amount still admits, in this bucket and in all.
fn room(shape: Shape, admitted: &Ring, bucket: BucketIndex, amount: u64) -> u64 {
    amount.saturating_sub(admitted.before(bucket, shape.full_buckets)).min(shape.burst)
}
