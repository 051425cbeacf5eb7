//! A bounded map of recently used entries, in place of the kernel's LRU maps. Pure.

use std::collections::HashMap;
use std::hash::Hash;

/// Map that holds at least the newest `half` keys, and at most twice as many.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    pub(super) fn new(half: usize) -> Self {
        Self { newer: HashMap::new(), older: HashMap::new(), half: half.max(1) }
    }

    pub(super) fn get(&self, key: K) -> Option<V> {
        self.newer.get(&key).or_else(|| self.older.get(&key)).copied()
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.newer.len() >= self.half && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_used_keys_are_remembered_and_others_evicted() {
        let mut recent = Recent::new(10);
        for key in 0..100 {
            recent.insert(7_000, key);
            recent.insert(key, key);
        }
        assert_eq!(recent.get(7_000), Some(99));
        assert!((90..100).all(|key| recent.get(key) == Some(key)));
        assert_eq!(recent.get(50), None);
        assert!(recent.newer.len() + recent.older.len() <= 20);
    }
}
