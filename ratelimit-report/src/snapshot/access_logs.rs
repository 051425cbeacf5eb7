//! State of access logs, and the requests that they added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// State of one access log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessLogReport {
    /// Path of the log, or `unix:` and the path of its socket.
    pub log: String,
    /// State as a clause: `is followed`.
    pub state: String,
    /// Problem as a clause. As long as it lasts, requests are counted without the log. None if the log is read in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Seconds since the end of the log was last reached.
    pub behind_seconds: f64,
    /// Number of bytes written and not read yet. None for a socket or a FIFO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<u64>,
    /// Number of lines so far, by outcome.
    pub lines: AccessLogLines,
    /// Number of bytes skipped because reading was too far behind.
    pub skipped_bytes: u64,
    /// Number of requests charged by logs, by the name of each rule that has this log. The logs of a rule are summed.
    pub requests_added: BTreeMap<String, u64>,
    /// Maximum number of requests that a turn of one source is charged as now, by rule name.
    #[serde(default)]
    pub turn_requests_max: BTreeMap<String, u64>,
}

/// Number of lines of an access log by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogLines {
    /// Lines that were matched with counted requests, or charged.
    pub reconciled: u64,
    /// Lines of an address that has no live window.
    pub not_a_peer: u64,
    /// Lines of peers while most lines were of no peer.
    pub proxied: u64,
    /// Lines in no known format.
    pub malformed: u64,
    /// Lines older than the window.
    pub too_old: u64,
    /// Lines with a time in the future.
    pub in_future: u64,
    /// Lines that exceed the maximum length.
    pub too_long: u64,
}

impl AccessLogLines {
    /// Returns each count with its name in JSON and metrics.
    pub const fn by_outcome(self) -> [(&'static str, u64); 7] {
        [
            ("reconciled", self.reconciled),
            ("not_a_peer", self.not_a_peer),
            ("proxied", self.proxied),
            ("malformed", self.malformed),
            ("too_old", self.too_old),
            ("in_future", self.in_future),
            ("too_long", self.too_long),
        ]
    }
}
