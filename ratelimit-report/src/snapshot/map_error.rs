//! Map operations that failed in the packet path.

use serde::{Deserialize, Serialize};

/// Failures of one map operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapError {
    /// The map's name.
    pub map: String,
    /// The operation.
    pub op: String,
    /// How often it failed.
    pub count: u64,
}

impl MapError {
    /// Failures of an operation, by the labels of map and operation.
    pub(super) fn of((map, op): (&str, &str), count: u64) -> Self {
        Self { map: map.to_owned(), op: op.to_owned(), count }
    }
}
