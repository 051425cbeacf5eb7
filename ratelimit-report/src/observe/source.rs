//! Demand of one source under one limit, bucket by bucket, and the admissions under each candidate amount.
//!
//! Buckets are finished in order. A candidate's admission in a bucket depends only on earlier buckets and on the
//! bucket's demand. If units come one by one, the result equals packet-by-packet admission.

use ratelimit_common::time::BucketIndex;
use ratelimit_common::window::{self, CELLS, Cell, Parts};

use ratelimit_policy::config::rule::CANDIDATES_MAX;

/// Arithmetic of the limit: how buckets are summed and how cells are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of full buckets before the current one that the sum includes.
    pub(super) full_buckets: u8,
    /// Maximum amount that one bucket admits.
    pub(super) burst: u64,
    /// Bit widths of a cell's count.
    pub(super) parts: Parts,
}

/// Sums over all sources of one limit, by candidate.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// Amounts of the candidates, ascending, at most [`CANDIDATES_MAX`].
    pub(super) amounts: Vec<u64>,
    /// Blocked sources and demand per candidate, in the order of `amounts`.
    pub(super) blocked: Vec<Blocked>,
    /// Demand of all sources since counting of the candidates began, in the limit's unit.
    pub(super) demand: u64,
    /// New demand of the visited source, by bucket. The caller takes it after each visit.
    pub(super) grown: Vec<(BucketIndex, u64)>,
}

/// Sources and demand that one candidate would have blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocked {
    /// Number of sources blocked at least once.
    pub(super) sources: u64,
    /// Blocked part of the demand, in the limit's unit.
    pub(super) amount: u64,
}

impl Totals {
    /// Creates totals for these candidate amounts, with nothing blocked yet.
    pub(super) fn new(amounts: Vec<u64>) -> Self {
        Self { blocked: vec![Blocked::default(); amounts.len()], amounts, demand: 0, grown: Vec::new() }
    }
}

/// Refusals that are new since the last visit of the source, in the limit's unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) amount: u64,
    pub(super) bucket: BucketIndex,
}

/// Amount for each of the last [`CELLS`] buckets.
#[derive(Clone, Copy, Debug, Default)]
struct Ring([u64; CELLS]);

impl Ring {
    fn at(&self, bucket: BucketIndex) -> u64 {
        self.0[window::index(bucket)]
    }

    fn set(&mut self, bucket: BucketIndex, amount: u64) {
        self.0[window::index(bucket)] = amount;
    }

    /// Returns the sum of the `full_buckets` buckets before `bucket`.
    fn before(&self, bucket: BucketIndex, full_buckets: u8) -> u64 {
        let earlier = (1..=u64::from(full_buckets)).map(|back| self.at(BucketIndex(bucket.0.wrapping_sub(back))));
        earlier.fold(0, u64::saturating_add)
    }
}

/// Observed state of one source. // 136 B; a source over a candidate adds 32 B, and 64 B per exceeded candidate
#[derive(Clone, Debug)]
pub(super) struct ObservedSource {
    /// Demand, admitted plus refused, of the open bucket and of the buckets before it.
    demand: Ring,
    /// First bucket in which the source was visited.
    first: BucketIndex,
    /// Newest bucket in which the source was active. Earlier buckets are finished.
    open: BucketIndex,
    /// Refused part of the open bucket's demand.
    open_refused: u64,
    /// Total refusals of the window at the last visit.
    pub(super) refused: u64,
    /// Total repetitions among the window's refusals, at the last visit.
    repeated: u64,
    /// Repetitions not yet matched by refusals: requests refused in an earlier round and admitted since. They are
    /// subtracted from later refusals.
    admitted_since: u64,
    /// Largest demand within any one window.
    pub(super) peak: u64,
    /// Candidate state; none while every candidate admits everything.
    trial: Option<Box<Trial>>,
}

/// Admissions of one source under the exceeded candidates.
#[derive(Clone, Debug, Default)]
struct Trial {
    /// Admitted amounts, one ring per exceeded candidate, the smallest candidate first. Larger candidates admit
    /// everything.
    admitted: Vec<Ring>,
    /// Bit mask of the candidates that have blocked the source.
    has_blocked: u8,
}

const _: () = assert!(CANDIDATES_MAX <= u8::BITS as usize);

impl ObservedSource {
    /// Creates the state of a newly seen source. `open` is its first bucket, and the pair holds its total refusals and
    /// repetitions so far.
    pub(super) fn new(open: BucketIndex, (refused, repeated): (u64, u64)) -> Self {
        let (demand, open_refused, admitted_since, peak, trial) = (Ring::default(), 0, 0, 0, None);
        Self { demand, first: open, open, open_refused, refused, repeated, admitted_since, peak, trial }
    }

    /// Returns how many of the `refused` new refusals repeat no earlier refusal. `repeated` is the window's total of
    /// repetitions.
    pub(super) fn without_repetitions(&mut self, refused: u64, repeated: u64) -> u64 {
        // After an eviction the window counts its repetitions from zero.
        let again = repeated.checked_sub(self.repeated).unwrap_or(repeated).saturating_add(self.admitted_since);
        (self.repeated, self.admitted_since) = (repeated, again.saturating_sub(refused));
        refused.saturating_sub(again)
    }

    /// Returns the first unfinished bucket.
    pub(super) const fn open(&self) -> BucketIndex {
        self.open
    }

    /// Returns true if all activity of the source lies within [`CELLS`] buckets, the last no later than `until`.
    pub(super) const fn came_once(&self, until: BucketIndex) -> bool {
        self.open.0 <= until.0 && self.open.0 - self.first.0 < CELLS as u64
    }

    /// Finishes the open bucket, which gets no more demand.
    pub(super) fn end(&mut self, shape: Shape, totals: &mut Totals) {
        self.finish(shape, self.open, totals);
    }

    /// Updates the demand from the window's cells and from the refusals since the last visit.
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

    /// Opens the bucket after `bucket`, which is finished, and returns it. The cells reach back [`CELLS`] - 1 buckets
    /// from `newest`. A longer gap is skipped, because its buckets share no window with them.
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

    /// Adds refusals by another limit of the rule, in a bucket that is open or still to come.
    pub(super) fn add(&mut self, shape: Shape, refused: Refused, totals: &mut Totals) {
        let newest = refused.bucket.max(self.open);
        while self.open != newest {
            self.finish(shape, self.open, totals);
            self.open = self.next(self.open, newest);
        }
        self.open_refused = self.open_refused.saturating_add(refused.amount);
        self.want(shape, self.open, self.demand.at(self.open).saturating_add(refused.amount), totals);
    }

    /// Returns true if `bucket` is the open one and some of its demand was refused.
    pub(super) fn is_refused_in(&self, bucket: BucketIndex) -> bool {
        bucket == self.open && self.open_refused > 0
    }

    /// Raises the demand of a bucket to `demand` and ignores a smaller value: an evicted source that returns counts
    /// from 0.
    fn want(&mut self, shape: Shape, bucket: BucketIndex, demand: u64, totals: &mut Totals) {
        let before = self.demand.at(bucket);
        if demand <= before {
            return;
        }
        self.demand.set(bucket, demand);
        totals.demand = totals.demand.saturating_add(demand - before);
        totals.grown.push((bucket, demand - before));
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

    /// Adds what each candidate would block of the open bucket if its demand stayed as it is.
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

    /// Discards the admissions under earlier candidates.
    pub(super) fn reset(&mut self) {
        self.trial = None;
    }

    /// Returns the heap memory of the source in bytes.
    pub(super) fn trial_bytes(&self) -> usize {
        let rings = |trial: &Trial| size_of::<Trial>() + trial.admitted.capacity() * size_of::<Ring>();
        self.trial.as_deref().map_or(0, rings)
    }
}

/// Returns the amount that a limit of `amount` still admits in `bucket`.
fn room(shape: Shape, admitted: &Ring, bucket: BucketIndex, amount: u64) -> u64 {
    amount.saturating_sub(admitted.before(bucket, shape.full_buckets)).min(shape.burst)
}
