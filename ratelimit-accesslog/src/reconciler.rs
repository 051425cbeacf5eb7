//! Reconciles the requests in a log with those that the kernel counted, for the sources of one rule.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use crate::beyond::Beyond;
use crate::ledger::Ledger;

/// Maximum number of idle sources that one call removes, so that none takes long.
const EXPIRED_PER_CALL: usize = 2;

/// Fraction of the limit, as a divisor, by which lines may take a source over it without consequences.
const BEYOND_PART: u64 = 10;

/// Number of windows after which a source beyond the limit is forgiven.
const FORGIVEN_WINDOWS: u64 = 8;

/// Shape of the rule's window, and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Length of a bucket in nanoseconds. Bucket `n` begins at `n` times this.
    pub bucket_ns: u64,
    /// Number of buckets before the current one that the window includes. The window lasts that many buckets.
    pub full_buckets: u8,
    /// Number of times that the counts given to [`Reconciler::counted`] include each charge. It is 2 if they are the
    /// sum over two windows, and a charge goes to both.
    pub charged_in: u64,
    /// Maximum number of sources that are remembered, at least 1. A source takes about 800 bytes.
    pub sources_max: usize,
    /// Maximum number of requests that a turn is charged as. The caller sets the rule's limit, if that is less than the
    /// default of 1000: a turn that is charged more than the limit would never be admitted.
    pub multiplicity_max: u16,
    /// Number of requests that the limit admits within a window. By default lines take no source beyond it.
    pub amount: u64,
}

impl Settings {
    /// Returns the default bounds for a window of that shape.
    #[must_use]
    pub const fn new(bucket_ns: u64, full_buckets: u8) -> Self {
        Self { bucket_ns, full_buckets, charged_in: 1, sources_max: 1 << 16, multiplicity_max: 1000, amount: u64::MAX }
    }
}

/// Result that [`Reconciler::settle`] would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Number of requests that would be charged.
    pub charged: u64,
    /// Number of requests that would then be used in the window, in buckets up to the one after the current one.
    pub used: u64,
}

/// Reconciliation state of the sources of one rule.
///
/// A line is matched with the oldest counted request of the window that has no line yet. A line without a match is
/// charged, and no charge is ever taken back. A counted request that is not logged within its window expires.
///
/// The kernel's counts include the charges. After a restart every source is new to the reconciler. All counts in the
/// window of a new source are unmatched, so its lines may be charged too little within one window, never too much.
/// Lines that a restart reads again therefore charge nothing.
#[derive(Debug)]
pub struct Reconciler<K> {
    settings: Settings,
    sources: HashMap<K, Ledger>,
    /// Sources in the order of their last use.
    by_use: BTreeMap<u64, K>,
    next_order: u64,
    beyond: Beyond<K>,
}

impl<K: Eq + Hash + Copy> Reconciler<K> {
    /// Returns a reconciler without sources.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings =
            Settings { bucket_ns: settings.bucket_ns.max(1), sources_max: settings.sources_max.max(1), ..settings };
        let window_ns = settings.bucket_ns.saturating_mul(settings.full_buckets.into());
        let forgiven_ns = window_ns.saturating_mul(FORGIVEN_WINDOWS);
        Self {
            settings,
            sources: HashMap::new(),
            by_use: BTreeMap::new(),
            next_order: 0,
            beyond: Beyond::new(settings.sources_max, forgiven_ns, settings.multiplicity_max),
        }
    }

    /// Returns the number of the bucket that a time in nanoseconds is in.
    #[must_use]
    pub fn bucket(&self, at: u64) -> u64 {
        at / self.settings.bucket_ns
    }

    /// Returns the number of sources that are remembered.
    #[must_use]
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Matches the `lines` of a source with the kernel's `counts` for it. Returns the number of requests to charge to
    /// bucket [`Self::bucket`]`(now)`, and books them as charged.
    ///
    /// `counts` are pairs of a bucket number and its count, including charges from the log. They must be read after the
    /// lines. Otherwise they lack requests with lines that were already read, which would be charged twice. Within a
    /// bucket, only growth counts. Buckets outside the window are ignored. The bucket after the current one is not,
    /// because it may have begun since `now` was read.
    #[must_use = "these requests are booked as charged"]
    pub fn settle(&mut self, key: K, now: u64, lines: u64, counts: &[(u64, u64)]) -> u64 {
        self.expire_idle(now);
        let (buckets, current) = (self.oldest(now)..=self.bucket(now).saturating_add(1), self.bucket(now));
        let charged_in = self.settings.charged_in;
        let source = self.source(key, now);
        for (number, total) in counts.iter().filter(|(number, total)| *total > 0 && buckets.contains(number)) {
            source.observe(*number, *total, charged_in);
        }
        let charged = source.settle(current, lines);
        let used = source.used();
        let amount = self.settings.amount;
        if charged > 0 && used > amount.saturating_add(amount / BEYOND_PART) {
            self.beyond.remember(key, now);
        }
        charged
    }

    /// Returns what [`Self::settle`] would charge now, or more where the kernel took requests back. Books nothing.
    #[must_use]
    pub fn outlook(&self, key: K, now: u64, lines: u64, counts: &[(u64, u64)]) -> Outlook {
        let (oldest, last) = (self.oldest(now), self.bucket(now).saturating_add(1));
        let live = counts.iter().filter(|(number, _)| (oldest..=last).contains(number));
        let total = live.map(|(_, total)| *total).fold(0, u64::saturating_add);
        let source = self.sources.get(&key);
        let corrected = source.map_or(0, |source| source.corrected(oldest));
        let matched = source.map_or(0, |source| source.matched(oldest));
        let counted = total.saturating_sub(corrected.saturating_mul(self.settings.charged_in));
        let charged = lines.saturating_sub(counted.saturating_sub(matched));
        Outlook { charged, used: counted.saturating_add(corrected).saturating_add(charged) }
    }

    /// Cancels `amount` charges that were settled into a bucket but could not be made, for example because the limit is
    /// used up or the bucket is over. They are not charged later.
    pub fn not_charged(&mut self, key: K, bucket: u64, amount: u64) {
        if let Some(source) = self.sources.get_mut(&key) {
            source.unbook(bucket, amount);
        }
    }

    /// Returns the number of requests in a source's live window that were charged from lines.
    pub fn corrected(&self, key: K, now: u64) -> u64 {
        self.sources.get(&key).map_or(0, |source| source.corrected(self.oldest(now)))
    }

    /// Removes a source after its window was erased in the kernel.
    pub fn forget(&mut self, key: K) {
        self.beyond.forget(key);
        if let Some(source) = self.sources.remove(&key) {
            self.by_use.remove(&source.order);
        }
    }

    /// Returns the number of requests that the kernel should charge for each turn of a source, at least 1. The caller
    /// asks again after each settlement, and each second as long as the result exceeds 1, because it falls with time.
    ///
    /// A source within its limit is charged one request per turn, so that its counts equal its lines. A source that
    /// lines took more than a tenth over the limit is charged [`Settings::multiplicity_max`] per turn, so that it gets
    /// one turn per window. From the fourth window on the value falls, to 1 after eight, regardless of the source's
    /// requests. The mean of its turns would not bound the source: most turns of such a client are one request, and the
    /// first turn of each connection is all of its streams.
    #[must_use]
    pub fn multiplicity(&self, key: K, now: u64) -> u16 {
        self.beyond.multiplicity(key, now)
    }

    /// Returns the number of the oldest bucket in the window.
    fn oldest(&self, now: u64) -> u64 {
        self.bucket(now).saturating_sub(self.settings.full_buckets.into())
    }

    /// Returns a source, created if missing, and marks it as the most recently used.
    fn source(&mut self, key: K, now: u64) -> &mut Ledger {
        if !self.sources.contains_key(&key) && self.sources.len() >= self.settings.sources_max {
            self.drop_oldest();
        }
        let order = self.next_order;
        self.next_order += 1;
        self.by_use.insert(order, key);
        let full_buckets = self.settings.full_buckets;
        let oldest = self.oldest(now);
        let source = self.sources.entry(key).or_insert_with(|| Ledger::new(order, now, full_buckets));
        if source.order != order {
            self.by_use.remove(&source.order);
            source.order = order;
        }
        source.expire(oldest);
        source.used_at = source.used_at.max(now);
        source
    }

    fn drop_oldest(&mut self) {
        if let Some((_, key)) = self.by_use.pop_first() {
            self.sources.remove(&key);
        }
    }

    /// Removes a few sources that were last used more than a window ago.
    fn expire_idle(&mut self, now: u64) {
        let oldest = self.oldest(now).saturating_sub(u64::from(self.settings.full_buckets) + 1);
        for _ in 0..EXPIRED_PER_CALL {
            let key = self.by_use.first_key_value().map(|(_, key)| *key);
            let is_idle = |source: &Ledger| self.bucket(source.used_at) < oldest;
            match key {
                Some(key) if self.sources.get(&key).is_none_or(is_idle) => self.drop_oldest(),
                _ => break,
            }
        }
    }
}
