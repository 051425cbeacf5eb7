//! What was written of the keys of one table, by their names. The table of keys says which there are. Pure.

use std::collections::BTreeMap;

use super::keys::TABLES;
use super::written::Written;

/// The values of a table's keys, as they were written. What nobody wrote is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(BTreeMap<&'static str, Vec<Written>>);

impl Values {
    /// Puts values to those of a key.
    pub(super) fn add(&mut self, key: &'static str, values: Vec<Written>) {
        self.0.entry(known(key)).or_default().extend(values);
    }

    /// The value of a key.
    pub(super) fn one(&self, key: &str) -> Option<&Written> {
        self.list(key)?.last()
    }

    /// The values of a key that takes several, where it was written.
    pub(super) fn list(&self, key: &str) -> Option<&[Written]> {
        self.0.get(known(key)).map(Vec::as_slice)
    }

    /// The same, none where it was not.
    pub(super) fn all(&self, key: &str) -> &[Written] {
        self.list(key).unwrap_or_default()
    }
}

/// A key is asked for by a name that the table has: every test that reads a configuration holds that.
fn known(key: &str) -> &str {
    debug_assert!(TABLES.iter().flat_map(|table| table.keys).any(|of| of.name == key), "there is no key {key}");
    key
}
