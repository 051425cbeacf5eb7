//! Access logs, and what they added to what was counted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An access log as it is read now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessLogReport {
    /// Its path, or `unix:` and its socket's path.
    pub log: String,
    /// A clause about its condition: `is followed`.
    pub state: String,
    /// What is wrong with it, a clause: requests are counted as without it. None where it is read in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Seconds since its end was reached last.
    pub behind_seconds: f64,
    /// Bytes that are written and not read yet. None of a socket or a FIFO.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_bytes: Option<u64>,
    /// Its lines so far.
    pub lines: AccessLogLines,
    /// Bytes that were left out, as reading was too far behind.
    pub skipped_bytes: u64,
    /// Requests that logs have charged, by the name of each rule that has this log. A rule's logs are summed.
    pub requests_added: BTreeMap<String, u64>,
    /// Highest number of requests that a turn of one source is charged as now, by the name of each rule.
    #[serde(default)]
    pub turn_requests_max: BTreeMap<String, u64>,
}

/// Lines of an access log by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogLines {
    /// Lines that were matched with what was counted, or charged.
    pub reconciled: u64,
    /// Lines of an address that has no live window.
    pub not_a_peer: u64,
    /// Lines of peers while most lines were of no peer.
    pub proxied: u64,
    /// Lines in no known format.
    pub malformed: u64,
    /// Lines that are older than the window.
    pub too_old: u64,
    /// Lines of a time that has not come.
    pub in_future: u64,
    /// Lines that are longer than is read.
    pub too_long: u64,
}

impl AccessLogLines {
    /// Each count with its name in JSON and metrics.
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
