//! Written values of the keys of one table, by key name. The table of keys lists the valid names. Pure.

use std::collections::BTreeMap;

use super::keys::TABLES;
use super::written::Written;

/// Values of a table's keys, as they were written. Keys that were not written are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<&'static str, Vec<Written>>);

impl Values {
    /// Appends values to those of a key.
    pub(super) fn add(&mut self, key: &'static str, values: Vec<Written>) {
        self.0.entry(known(key)).or_default().extend(values);
    }

    /// Returns the last value of a key. None if the key was not written.
    pub(super) fn one(&self, key: &str) -> Option<&Written> {
        self.list(key)?.last()
    }

    /// Returns the values of a key that takes several. None if the key was not written.
    pub(super) fn list(&self, key: &str) -> Option<&[Written]> {
        self.0.get(known(key)).map(Vec::as_slice)
    }

    /// Returns the values of a key that takes several. Empty if the key was not written.
    pub(super) fn all(&self, key: &str) -> &[Written] {
        self.list(key).unwrap_or_default()
    }
}

/// Checks in debug builds that the table of keys has this key. Every test that reads a configuration runs this check.
fn known(key: &str) -> &str {
    debug_assert!(TABLES.iter().flat_map(|table| table.keys).any(|of| of.name == key), "there is no key {key}");
    key
}
