//! What became of the events that the packet path has sent.

use serde::{Deserialize, Serialize};

/// Events of sources that began to be refused or banned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Told to the daemon.
    pub sent: u64,
    /// Over the budget, or the ring was full. Together with those that were told, all that began.
    pub lost: u64,
    /// The names of all kinds of events, also of those that the daemon tells by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}
