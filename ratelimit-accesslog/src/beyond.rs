//! Sources that log lines took over their limit. For a while the kernel charges each of their turns as several
//! requests.

use std::collections::HashMap;
use std::hash::Hash;

/// Minimum number of sources before expired ones are removed.
const PURGED_FROM: usize = 1_024;

/// Sources that are charged several requests per turn, with the time of their last offence in nanoseconds.
#[derive(Debug)]
pub(crate) struct Beyond<K> {
    since: HashMap<K, u64>,
    /// Number of sources at which expired ones are removed.
    purge_at: usize,
    sources_max: usize,
    /// Time in nanoseconds after which an offence expires.
    forgiven_ns: u64,
    /// Number of requests that a turn is charged as at first.
    most: u16,
}

impl<K: Eq + Hash + Copy> Beyond<K> {
    /// Returns an empty set. `most` is the number of requests that a turn is charged as at first.
    pub(crate) fn new(sources_max: usize, forgiven_ns: u64, most: u16) -> Self {
        Self { since: HashMap::new(), purge_at: PURGED_FROM, sources_max, forgiven_ns: forgiven_ns.max(1), most }
    }

    /// Records that log lines took a source over its limit. If the table is full, an arbitrary other source is removed.
    pub(crate) fn remember(&mut self, key: K, now: u64) {
        if self.since.len() >= self.purge_at {
            let forgiven_ns = self.forgiven_ns;
            self.since.retain(|_, since| now.saturating_sub(*since) < forgiven_ns);
            self.purge_at = self.since.len().saturating_mul(2).max(PURGED_FROM);
        }
        if self.since.len() >= self.sources_max
            && !self.since.contains_key(&key)
            && let Some(other) = self.since.keys().next().copied()
        {
            self.since.remove(&other);
        }
        self.since.insert(key, now);
    }

    /// Removes a source, which is charged one request per turn again.
    pub(crate) fn forget(&mut self, key: K) {
        self.since.remove(&key);
    }

    /// Returns how many requests a turn of the source is charged as, at least 1.
    pub(crate) fn multiplicity(&self, key: K, now: u64) -> u16 {
        let Some(since) = self.since.get(&key) else { return 1 };
        // Full multiplicity for the first half of the time, then a linear decrease to 1.
        let half = (self.forgiven_ns / 2).max(1);
        let left = u128::from(self.forgiven_ns.saturating_sub(now.saturating_sub(*since)).min(half));
        let above = u128::from(self.most.saturating_sub(1)) * left / u128::from(half);
        u16::try_from(above).unwrap_or(u16::MAX).saturating_add(1)
    }
}
