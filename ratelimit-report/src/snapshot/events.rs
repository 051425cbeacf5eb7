//! Counts of the events of the packet path.

use serde::{Deserialize, Serialize};

/// Counts of events for sources that began to be refused or banned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Number of events sent to the daemon.
    pub sent: u64,
    /// Number of events lost, because they exceeded the budget or the ring was full. `sent` plus `lost` is the total.
    pub lost: u64,
    /// Names of all kinds of events, including those that the daemon itself reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}
