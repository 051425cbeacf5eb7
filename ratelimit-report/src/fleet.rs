//! State of a fleet, as shown by `stats`, `ratelimitd fleet` and metrics. Plain values of schema 1: fields are added,
//! never renamed. The module knows no store and no clock; the daemon fills the values in.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::{Limit, SCHEMA};
use ratelimit_policy::labels;

/// State of this host in its fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetState {
    /// All exchanges with the store succeed.
    Connected,
    /// Some exchanges fail, or some limit is not summed.
    Degraded,
    /// No exchange succeeds: each host enforces its limits on its own.
    Away,
    /// The configuration has no fleet.
    #[default]
    Off,
}

labels!(pub FleetState { Connected => "connected", Degraded => "degraded", Away => "away", Off => "off" });

/// State of the fleet and of this host's exchanges: `fleet` of `stats --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// State of this host in the fleet.
    pub state: FleetState,
    /// Number of hosts heard from in the last minute, including this one.
    pub hosts: u64,
    /// Seconds since the store last answered; none if it never did.
    pub last_exchange_seconds: Option<f64>,
    /// Number of exchanges that the store answered.
    pub rounds: u64,
    /// Number of exchanges that the store did not answer.
    pub rounds_failed: u64,
    /// Number of source counts that the store accepted.
    pub reports: u64,
    /// Number of source counts that were not reported because a queue was full. The other hosts do not count them.
    pub reports_lost: u64,
    /// Name of the fleet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Time at which the current state began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Problem, as a clause: `the store does not answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Details of the problem. Left out where sources may not be named, because they may name files and the store's
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Error text of the store. Left out where sources may not be named, because it may name users and addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_says: Option<String>,
    /// True if exchanges succeed but late, so that the bound is higher or limits are not summed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slow: bool,
    /// Longest answer time of the store in the last 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<f64>,
    /// Longest delay of a report on this host or on any other active host. The bound includes the traffic of that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
    /// True if another machine has a copy of this host's state, so that both count as one host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doubled: bool,
    /// Seconds that this host's clock is ahead of the store's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_seconds: Option<f64>,
    /// Number of failed exchanges by cause, such as `hung`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
    /// Durations of the answered exchanges.
    #[serde(default)]
    pub round_seconds: RoundSeconds,
    /// Number of connections made to the store.
    #[serde(default)]
    pub connections: u64,
    /// Number of sums ignored because they exceed what all hosts can have admitted.
    #[serde(default)]
    pub garbage: u64,
    /// Number of answers ignored because they arrived after later ones.
    #[serde(default)]
    pub late: u64,
    /// Number of times that the store lost its data.
    #[serde(default)]
    pub store_lost: u64,
    /// Number of acts and messages lost because a table or queue was full.
    #[serde(default)]
    pub messages_lost: u64,
    /// Number of sources that are reported now.
    #[serde(default)]
    pub sources: u64,
    /// Limits that the fleet enforces together, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<FleetLimit>,
}

/// Histogram of the durations of exchanges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundSeconds {
    /// Sum of all durations in seconds.
    pub sum: f64,
    /// Upper bounds of the buckets in seconds, ascending.
    pub up_to: Vec<f64>,
    /// Number of exchanges in each bucket. The last bucket holds those longer than every bound.
    pub counts: Vec<u64>,
}

/// Limit that the fleet enforces together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetLimit {
    /// Name of the limit's rule.
    pub rule: String,
    /// Amount, window and unit of the limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Limit in words, as in events: `1000/5m requests`.
    pub text: String,
    /// Part of a source's traffic that is summed.
    pub sum: Summed,
    /// True if the limit is summed now. Otherwise each host enforces it on its own.
    pub summed: bool,
    /// Maximum that the fleet admits of a source in a window, under current conditions.
    pub bound: u64,
    /// Derivation of the bound, as `check-config` prints it: `at most 1000 + 3x125 + 6 + …`.
    pub bound_words: String,
    /// Number of other hosts, heard from in the last minute, that share the limit. None if there are none, or if one of
    /// them does not report its limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<u64>,
}

/// Part of a source's traffic that is summed over the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summed {
    /// Verified traffic, of established connections.
    Verified,
    /// All traffic, verified or not.
    All,
}

labels!(pub Summed { Verified => "verified", All => "all" });

/// Output of `ratelimitd fleet --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Time of the reading.
    pub time: Timestamp,
    /// State of the fleet, as in `stats`.
    pub fleet: Fleet,
    /// Hosts heard from in the last hour, including this one, sorted by name.
    pub hosts: Vec<FleetHost>,
}

/// One host, as described by its own reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetHost {
    /// Name that the host reports.
    pub name: String,
    /// Id of the host's kernel state, in hexadecimal.
    pub id: String,
    /// True for the host that answers.
    pub this: bool,
    /// Seconds since the host was last heard, by the store's clock.
    pub heard_seconds_ago: f64,
    /// Seconds that the host's clock is ahead of the store's; none if the host does not know yet.
    pub clock_ahead_seconds: Option<f64>,
    /// Version of the program on the host.
    pub version: String,
    /// Amount that the host admitted under the fleet's limits in the last minute.
    pub admitted_last_minute: u64,
}

impl Fleet {
    /// Removes the texts that may name addresses, files or users.
    pub fn without_addresses(mut self) -> Self {
        self.error = None;
        self.store_says = None;
        self
    }
}

impl FleetReport {
    /// Builds the report of a daemon without a fleet.
    pub fn off(time: Timestamp) -> Self {
        Self { schema: SCHEMA, time, fleet: Fleet::default(), hosts: Vec::new() }
    }
}
