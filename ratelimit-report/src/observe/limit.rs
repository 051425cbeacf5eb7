//! One limit: all the sources that were seen in it. Its memory is bounded by the number of sources, and said.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_common::window::{BURST_ANY, CELLS, Cell};

use super::Weight;
use super::once::{NAMED, Once};
use super::source::{Blocked, ObservedSource, Refused, Shape, Totals};
use ratelimit_datapath::{SourceReading, Whose};
use ratelimit_policy::desired::Limit;

/// What was observed of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Since when.
    pub since: Nanos,
    /// When it was last looked at.
    pub until: Nanos,
    /// The most that each source wanted in one window, ascending.
    pub busiest: Vec<u64>,
    /// Sources that there was no room to observe: at least so many.
    pub sources_not_observed: u64,
    /// Buckets that ended before they were read.
    pub missed_buckets: u64,
    /// Since when the candidates are counted.
    pub candidates_since: Nanos,
    /// Everything that was wanted since then.
    pub demand: u64,
    /// By amount, ascending.
    pub candidates: Vec<Candidate>,
}

/// What another amount of the same limit would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The amount.
    pub amount: u64,
    /// Sources that it would have blocked at least once.
    pub sources_blocked: u64,
    /// What it would have blocked, in the limit's unit.
    pub blocked: u64,
}

#[derive(Debug)]
pub(super) struct Observation {
    limit: Limit,
    shape: Shape,
    /// Index of its rule.
    rule: usize,
    /// True if an access log charges it: each line to both windows of a source, which are then one source here.
    is_logged: bool,
    since: Nanos,
    candidates_since: Nanos,
    until: Nanos,
    /// The bucket of the last round, once there was one.
    current: BucketIndex,
    rounds: u64,
    missed_buckets: u64,
    sources_max: usize,
    /// Where in `seen` a source is: half-empty tables are cheaper of these than of what is seen.
    index: HashMap<Whose, u32>,
    seen: Vec<ObservedSource>,
    once: Once,
    not_observed: u64,
    not_observed_in_round: u64,
    totals: Totals,
    weight: Weight,
    shared: Vec<(usize, Weight)>,
}

impl Observation {
    pub(super) fn new(limit: Limit, now: Nanos) -> Self {
        Self {
            limit,
            shape: shape(&limit),
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

    /// Whether what was observed of this one goes on with the other: the amount may differ, what a window is may not.
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

    /// Returns the key of a window's source. In a limit that a log charges, both windows of a source have that of its
    /// verified one.
    const fn whose(&self, (source, is_verified): Whose) -> Whose {
        (source, is_verified || self.is_logged)
    }

    /// What a refusal by this limit is to itself and to others of its rule.
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
            // The bucket of the last round was not finished then, and its cell is reused CELLS later.
            let gone = current.0.saturating_sub(CELLS as u64 - 1).saturating_sub(self.current.0);
            self.missed_buckets = self.missed_buckets.saturating_add(gone);
        }
        (self.current, self.until) = (current, now);
        self.not_observed_in_round = 0;
    }

    pub(super) fn nothing_until(&mut self, now: Nanos) {
        self.current = now.bucket(self.limit.bucket_ns);
    }

    /// Takes in one window, and tells how many refusals are new.
    pub(super) fn visit(&mut self, reading: &SourceReading, refused_bytes: u64) -> u64 {
        let (count, is_first) = (reading.window.refused.count(), self.rounds == 0);
        let ahead = ahead_max(self.current);
        let whose = self.whose(reading.whose());
        if self.once.has(newest(self.shape, reading, ahead)) && !self.index.contains_key(&whose) {
            return 0;
        }
        let is_back = self.once.had(oldest(self.shape, reading, ahead));
        let Some(seen) = entry(&mut self.index, &mut self.seen, self.sources_max, whose, || {
            // What was refused before the first look was refused at an unknown time.
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
        // What the other window refused is not known to be wanted beside what this one did.
        if whose != reading.whose() {
            seen.look(self.shape, &reading.window.cells, None, ahead_max(self.current), &mut self.totals);
            return 0;
        }
        let more = match count.checked_sub(seen.refused) {
            Some(more) => more,
            // The source was evicted, and is back.
            None if count <= seen.refused / 2 => count,
            // A drop-cache entry expired while the windows were read the last time, and was in that reading twice.
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
        fresh
    }

    /// Adds what another limit of the rule refused before this one was asked.
    pub(super) fn owe(&mut self, source: Whose, amount: u64) {
        let Some(at) = self.index.get(&self.whose(source)) else { return };
        let seen = &mut self.seen[*at as usize];
        seen.add(self.shape, Refused { amount, bucket: self.current }, &mut self.totals);
    }

    pub(super) fn finish(&mut self) {
        self.rounds += 1;
        self.not_observed = self.not_observed.max(self.not_observed_in_round);
        self.part_with_those_that_came_once();
    }

    /// Where most sources came once and are gone, as after a flood, keeps what they wanted alone.
    fn part_with_those_that_came_once(&mut self) {
        let until = Once::settled(self.current);
        let may_go = |of: &ObservedSource| of.came_once(until);
        // Of a limit of 0 no cell tells when a source came.
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
        // Verified traffic and the rest of one source are two windows.
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

    pub(super) fn bytes(&self) -> usize {
        // hashbrown: an entry and a byte of control for each place.
        let places = self.index.capacity() * 8 / 7 * (size_of::<(Whose, u32)>() + 1);
        let trials: usize = self.seen.iter().map(ObservedSource::trial_bytes).sum();
        places + self.seen.capacity() * size_of::<ObservedSource>() + trials
    }
}

/// The source, new where there is room.
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

/// The first bucket in which anything was admitted that the cells still tell.
fn oldest(shape: Shape, reading: &SourceReading, ahead_max: BucketIndex) -> Option<BucketIndex> {
    active(shape, reading, ahead_max).min()
}

/// The last such bucket.
fn newest(shape: Shape, reading: &SourceReading, ahead_max: BucketIndex) -> Option<BucketIndex> {
    active(shape, reading, ahead_max).max()
}

fn active(shape: Shape, reading: &SourceReading, ahead_max: BucketIndex) -> impl Iterator<Item = BucketIndex> {
    let cells = reading.window.cells.iter().enumerate().map(move |(at, word)| Cell::decode(*word, at, shape.parts));
    cells.filter(move |cell| cell.count > 0 && cell.bucket <= ahead_max).map(|cell| cell.bucket)
}

/// In which bucket the newest refusal was; the current one where it cannot be told.
fn newest_refusal(reading: &SourceReading, open: BucketIndex, current: BucketIndex) -> BucketIndex {
    let oldest = open.0.max(current.0.saturating_sub(CELLS as u64 - 1));
    let bucket = (oldest..=ahead_max(current).0).rev().map(BucketIndex);
    bucket.clone().find(|bucket| reading.window.refused.is_in(*bucket)).unwrap_or(current.max(open))
}

/// Buckets may turn while a visit goes on, by no more than its own length in the shortest of them.
const fn ahead_max(current: BucketIndex) -> BucketIndex {
    BucketIndex(current.0.saturating_add(CELLS as u64))
}

fn shape(limit: &Limit) -> Shape {
    Shape { full_buckets: limit.full_buckets(), burst: limit.burst.unwrap_or(BURST_ANY), parts: limit.parts() }
}
