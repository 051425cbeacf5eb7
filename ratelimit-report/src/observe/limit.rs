//! Observation of one limit over all its sources. Memory is bounded by the number of sources; sources beyond the bound
//! are counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::window::{BURST_ANY, CELLS, Cell};

use super::Weight;
use super::once::{NAMED, Once};
use super::source::{Blocked, ObservedSource, Refused, Shape, Totals};
use crate::busy::{Busy, Prefixes};
use ratelimit_datapath::{SourceReading, Whose};
use ratelimit_policy::desired::Limit;

/// Observations of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Start of the observation.
    pub since: Nanos,
    /// Time of the last visit.
    pub until: Nanos,
    /// Largest demand of each source within one window, ascending.
    pub busiest: Vec<u64>,
    /// Lower bound on the number of sources that were not observed because the table was full.
    pub sources_not_observed: u64,
    /// Number of buckets that ended before they were read.
    pub missed_buckets: u64,
    /// Time at which counting of the candidates began.
    pub candidates_since: Nanos,
    /// Demand of all sources since `candidates_since`, in the limit's unit.
    pub demand: u64,
    /// Results for each candidate amount, ascending.
    pub candidates: Vec<Candidate>,
}

/// Effect that another amount of the same limit would have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Candidate amount, in the limit's unit.
    pub amount: u64,
    /// Number of sources that the candidate would have blocked at least once.
    pub sources_blocked: u64,
    /// Demand that the candidate would have blocked, in the limit's unit.
    pub blocked: u64,
}

#[derive(Debug)]
pub(super) struct Observation {
    limit: Limit,
    shape: Shape,
    /// Index of the limit's rule.
    rule: usize,
    /// True if an access log charges the limit. Each line charges both windows of a source, so they count as one source
    /// here.
    is_logged: bool,
    since: Nanos,
    candidates_since: Nanos,
    until: Nanos,
    /// Bucket of the last round, or of the observation's start. `nothing_until` advances it too.
    current: BucketIndex,
    rounds: u64,
    missed_buckets: u64,
    sources_max: usize,
    /// Index of each source in `seen`. A half-empty hash table of indices costs less memory than one of whole sources.
    index: HashMap<Whose, u32>,
    seen: Vec<ObservedSource>,
    once: Once,
    not_observed: u64,
    not_observed_in_round: u64,
    totals: Totals,
    /// Demand of the prefixes of the sources.
    prefixes: Prefixes,
    weight: Weight,
    shared: Vec<(usize, Weight)>,
}

impl Observation {
    pub(super) fn new(limit: Limit, now: Nanos) -> Self {
        Self {
            limit,
            shape: shape(&limit),
            prefixes: Prefixes::new(&limit),
            rule: 0,
            is_logged: false,
            since: now,
            candidates_since: now,
            until: now,
            current: now.bucket(limit.bucket_ns),
            rounds: 0,
            missed_buckets: 0,
            sources_max: 0,
            index: HashMap::new(),
            seen: Vec::new(),
            once: Once::default(),
            not_observed: 0,
            not_observed_in_round: 0,
            totals: Totals::default(),
            weight: Weight::Unknown,
            shared: Vec::new(),
        }
    }

    /// Returns true if the observation stays valid for `limit`. The amount may differ, the window's slot, unit and
    /// shape may not.
    pub(super) fn counts_like(&self, limit: &Limit) -> bool {
        let window = |of: &Limit| (of.slot, of.unit, of.bucket_ns, of.window_ns);
        window(&self.limit) == window(limit) && self.shape == shape(limit)
    }

    pub(super) fn follow(
        &mut self,
        limit: Limit,
        (rule, is_logged): (usize, bool),
        amounts: Vec<u64>,
        sources_max: usize,
        now: Nanos,
    ) {
        (self.limit, self.rule, self.is_logged, self.sources_max) = (limit, rule, is_logged, sources_max);
        if self.totals.amounts != amounts {
            self.totals = Totals::new(amounts);
            self.candidates_since = now;
            self.seen.iter_mut().for_each(ObservedSource::reset);
        }
    }

    /// Returns the key of a window's source. For a limit that a log charges, both windows of a source share the key of
    /// the verified one.
    const fn whose(&self, (source, is_verified): Whose) -> Whose {
        (source, is_verified || self.is_logged)
    }

    /// Sets what one refusal by this limit weighs in its own unit and in the other limits of its rule.
    pub(super) fn weigh(&mut self, own: Weight, shared: Vec<(usize, Weight)>) {
        (self.weight, self.shared) = (own, shared);
    }

    pub(super) const fn limit(&self) -> &Limit {
        &self.limit
    }

    pub(super) const fn rule(&self) -> usize {
        self.rule
    }

    pub(super) fn shared(&self) -> &[(usize, Weight)] {
        &self.shared
    }

    pub(super) fn begin(&mut self, now: Nanos) {
        let current = now.bucket(self.limit.bucket_ns);
        if self.rounds > 0 {
            // The bucket of the last round was still open then, and its cell is reused CELLS buckets later.
            let gone = current.0.saturating_sub(CELLS as u64 - 1).saturating_sub(self.current.0);
            self.missed_buckets = self.missed_buckets.saturating_add(gone);
        }
        (self.current, self.until) = (current, now);
        self.not_observed_in_round = 0;
    }

    pub(super) fn nothing_until(&mut self, now: Nanos) {
        self.current = now.bucket(self.limit.bucket_ns);
    }

    /// Updates a source from one window and returns how many of its refusals are new.
    pub(super) fn visit(&mut self, reading: &SourceReading, refused_bytes: u64) -> u64 {
        let (count, is_first) = (reading.window.refused.count(), self.rounds == 0);
        let ahead = ahead_max(self.current);
        let whose = self.whose(reading.whose());
        if self.once.has(newest(self.shape, reading, ahead)) && !self.index.contains_key(&whose) {
            return 0;
        }
        let is_back = self.once.had(oldest(self.shape, reading, ahead));
        let Some(seen) = entry(&mut self.index, &mut self.seen, self.sources_max, whose, || {
            // Refusals before the first visit happened at an unknown time, so they are not counted.
            let open = BucketIndex(self.current.0.saturating_sub(CELLS as u64 - 1));
            if is_first || is_back {
                ObservedSource::new(open, (count, reading.repeated))
            } else {
                ObservedSource::new(oldest(self.shape, reading, ahead_max(self.current)).unwrap_or(open), (0, 0))
            }
        }) else {
            self.not_observed_in_round += 1;
            return 0;
        };
        // Refusals of the other window may repeat demand that this window already counted.
        if whose != reading.whose() {
            seen.look(self.shape, &reading.window.cells, None, ahead_max(self.current), &mut self.totals);
            self.add_to_prefix(&reading.prefix);
            return 0;
        }
        let more = match count.checked_sub(seen.refused) {
            Some(more) => more,
            // The source was evicted and has returned.
            None if count <= seen.refused / 2 => count,
            // A drop-cache entry expired during the previous read, so that reading counted its refusals twice.
            None => 0,
        };
        seen.refused = count;
        let fresh = seen.without_repetitions(more, reading.repeated);
        let refused = (fresh > 0).then(|| {
            let bucket = newest_refusal(reading, seen.open(), self.current);
            let is_known = self.weight == Weight::OneOfMany && seen.is_refused_in(bucket);
            Refused { amount: if is_known { 0 } else { self.weight.amount(fresh, refused_bytes) }, bucket }
        });
        seen.look(self.shape, &reading.window.cells, refused, ahead_max(self.current), &mut self.totals);
        self.add_to_prefix(&reading.prefix);
        fresh
    }

    /// Adds the new demand of a source to its prefix.
    fn add_to_prefix(&mut self, source: &IpNet) {
        for (bucket, amount) in self.totals.grown.drain(..) {
            self.prefixes.add(source, bucket, amount);
        }
    }

    /// Adds refusals by another limit of the rule that decided before this limit was checked.
    pub(super) fn owe(&mut self, source: Whose, amount: u64) {
        let Some(at) = self.index.get(&self.whose(source)) else { return };
        let seen = &mut self.seen[*at as usize];
        seen.add(self.shape, Refused { amount, bucket: self.current }, &mut self.totals);
        self.add_to_prefix(&source.0);
    }

    pub(super) fn finish(&mut self) {
        self.rounds += 1;
        self.not_observed = self.not_observed.max(self.not_observed_in_round);
        self.prefixes.end_round();
        self.part_with_those_that_came_once();
    }

    /// Keeps only the peaks of sources that came once, if these are the majority, as after a flood.
    fn part_with_those_that_came_once(&mut self) {
        let until = Once::settled(self.current);
        let may_go = |of: &ObservedSource| of.came_once(until);
        // The cells of a limit of 0 stay empty and do not tell when a source came.
        let going = if self.seen.len() > NAMED && self.limit.amount > 0 {
            self.seen.iter().filter(|of| may_go(of)).count()
        } else {
            0
        };
        if !Once::is_worth(self.seen.len(), going) {
            return;
        }
        let mut places = Vec::with_capacity(self.seen.len());
        let mut kept = Vec::with_capacity(self.seen.len() - going);
        for mut of in std::mem::take(&mut self.seen) {
            if may_go(&of) {
                of.end(self.shape, &mut self.totals);
                self.once.add(of.peak);
                places.push(None);
            } else {
                places.push(u32::try_from(kept.len()).ok());
                kept.push(of);
            }
        }
        self.seen = kept;
        self.index.retain(|_, at| {
            let place = places.get(*at as usize).copied().flatten();
            *at = place.unwrap_or(*at);
            place.is_some()
        });
        self.index.shrink_to_fit();
        self.once.settle(until);
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.rounds > 0
    }

    pub(super) fn observed(&self) -> Observed {
        let peaks = self.seen.iter().map(|seen| seen.peak).filter(|peak| *peak > 0);
        let mut busiest: Vec<u64> = peaks.chain(self.once.peaks()).collect();
        busiest.sort_unstable();
        let mut blocked: Vec<Blocked> = self.totals.blocked.clone();
        for seen in &self.seen {
            seen.add_open(self.shape, &self.totals.amounts, &mut blocked);
        }
        let candidate = |(amount, of): (&u64, Blocked)| Candidate {
            amount: *amount,
            sources_blocked: of.sources,
            blocked: of.amount,
        };
        Observed {
            since: self.since,
            until: self.until,
            busiest,
            sources_not_observed: self.not_observed,
            missed_buckets: self.missed_buckets,
            candidates_since: self.candidates_since,
            demand: self.totals.demand,
            candidates: self.totals.amounts.iter().zip(blocked).map(candidate).collect(),
        }
    }

    pub(super) fn over(&self, amount: u64) -> Vec<(IpNet, u64)> {
        // A source has two windows, one for verified and one for unverified traffic.
        let mut peaks: BTreeMap<IpNet, u64> = BTreeMap::new();
        for ((source, _), at) in &self.index {
            let peak = self.seen.get(*at as usize).map_or(0, |seen| seen.peak);
            if peak > amount {
                let of = peaks.entry(*source).or_default();
                *of = of.saturating_add(peak);
            }
        }
        peaks.into_iter().collect()
    }

    /// Returns the busiest prefixes, a limit for them that is not below `limit`, and a note if there is no such limit.
    pub(super) fn busy(&self, limit: &Limit) -> (Busy, Option<String>) {
        // A source has two windows.
        let sources: BTreeSet<&IpNet> = self.index.keys().map(|(source, _)| source).collect();
        let busy = self.prefixes.busy(limit, sources);
        let note = self.prefixes.note(&busy);
        (busy, note)
    }

    pub(super) fn bytes(&self) -> usize {
        // hashbrown stores an entry and one control byte per slot.
        let places = self.index.capacity() * 8 / 7 * (size_of::<(Whose, u32)>() + 1);
        let trials: usize = self.seen.iter().map(ObservedSource::trial_bytes).sum();
        places + self.seen.capacity() * size_of::<ObservedSource>() + trials + self.prefixes.bytes()
    }
}

/// Returns the source's state and creates it if there is room. Returns none if `sources_max` are observed.
fn entry<'a>(
    index: &mut HashMap<Whose, u32>,
    seen: &'a mut Vec<ObservedSource>,
    sources_max: usize,
    source: Whose,
    new: impl FnOnce() -> ObservedSource,
) -> Option<&'a mut ObservedSource> {
    if let Some(at) = index.get(&source) {
        return seen.get_mut(*at as usize);
    }
    let at = u32::try_from(seen.len()).ok().filter(|_| seen.len() < sources_max)?;
    index.insert(source, at);
    seen.push(new());
    seen.last_mut()
}

/// Returns the first bucket with an admission that the cells still hold.
fn oldest(shape: Shape, reading: &SourceReading, ahead_max: BucketIndex) -> Option<BucketIndex> {
    active(shape, reading, ahead_max).min()
}

/// Returns the last bucket with an admission that the cells hold.
fn newest(shape: Shape, reading: &SourceReading, ahead_max: BucketIndex) -> Option<BucketIndex> {
    active(shape, reading, ahead_max).max()
}

fn active(shape: Shape, reading: &SourceReading, ahead_max: BucketIndex) -> impl Iterator<Item = BucketIndex> {
    let cells = reading.window.cells.iter().enumerate().map(move |(at, word)| Cell::decode(*word, at, shape.parts));
    cells.filter(move |cell| cell.count > 0 && cell.bucket <= ahead_max).map(|cell| cell.bucket)
}

/// Returns the bucket of the newest refusal, or the current bucket if the window does not tell.
fn newest_refusal(reading: &SourceReading, open: BucketIndex, current: BucketIndex) -> BucketIndex {
    let oldest = open.0.max(current.0.saturating_sub(CELLS as u64 - 1));
    let bucket = (oldest..=ahead_max(current).0).rev().map(BucketIndex);
    bucket.clone().find(|bucket| reading.window.refused.is_in(*bucket)).unwrap_or(current.max(open))
}

/// Returns the latest plausible bucket, [`CELLS`] after the current one, because buckets advance while a round runs.
const fn ahead_max(current: BucketIndex) -> BucketIndex {
    BucketIndex(current.0.saturating_add(CELLS as u64))
}

fn shape(limit: &Limit) -> Shape {
    Shape { full_buckets: limit.full_buckets(), burst: limit.burst.unwrap_or(BURST_ANY), parts: limit.parts() }
}
