//! Map operations that failed in the packet path.

use serde::{Deserialize, Serialize};

/// Failures of one map operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapError {
    /// Name of the map.
    pub map: String,
    /// Name of the operation.
    pub op: String,
    /// Number of times that the operation failed.
    pub count: u64,
}

impl MapError {
    /// Creates the record for an operation, given the labels of map and operation.
    pub(super) fn of((map, op): (&str, &str), count: u64) -> Self {
        Self { map: map.to_owned(), op: op.to_owned(), count }
    }
}
