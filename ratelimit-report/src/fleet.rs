//! What is told of a fleet: in `stats`, by `ratelimitd fleet`, in metrics. Plain values of schema 1: fields are added,
//! never renamed. Knows no store and no clock; the daemon fills them in.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::{Limit, SCHEMA};
use ratelimit_policy::labels;

/// How this host does in its fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetState {
    /// All exchanges with the store succeed.
    Connected,
    /// Some do not, or some limit is not summed.
    Degraded,
    /// None does: each host holds its limits by itself.
    Away,
    /// The configuration has no fleet.
    #[default]
    Off,
}

labels!(pub FleetState { Connected => "connected", Degraded => "degraded", Away => "away", Off => "off" });

/// How the fleet does: `fleet` of `stats --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// One word.
    pub state: FleetState,
    /// Hosts heard of in the last minute, this one among them.
    pub hosts: u64,
    /// How long ago the store last answered; none where it never did.
    pub last_exchange_seconds: Option<f64>,
    /// Exchanges that the store answered.
    pub rounds: u64,
    /// Exchanges that it did not.
    pub rounds_failed: u64,
    /// Counts of sources that the store took.
    pub reports: u64,
    /// Counts that were not reported, for want of room: they are forgiven.
    pub reports_lost: u64,
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Since when it is in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// What is wrong, in a clause: `the store does not answer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// More of it, in words. Left out where sources may not be named: it may name files and the store's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The store's own words for what is wrong. Left out where sources may not be named: they may name users and addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_says: Option<String>,
    /// Exchanges succeed, but late: the bound is higher, or limits are not summed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slow: bool,
    /// The longest that the store took to answer in the last 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_seconds: Option<f64>,
    /// The longest that a report takes, on this host or another that is heard: the bound counts what is sent within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
    /// Another machine has a copy of this host's state: both are counted as one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doubled: bool,
    /// This host's clock minus the store's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ahead_seconds: Option<f64>,
    /// `rounds_failed` by what was wrong: `hung`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
    /// How long the answered exchanges took.
    #[serde(default)]
    pub round_seconds: RoundSeconds,
    /// Connections to the store that were made.
    #[serde(default)]
    pub connections: u64,
    /// Answered sums that were more than all hosts can have admitted: they are passed over.
    #[serde(default)]
    pub garbage: u64,
    /// Answers that came after later ones: they are passed over.
    #[serde(default)]
    pub late: u64,
    /// Times that the store had lost what it had been told.
    #[serde(default)]
    pub store_lost: u64,
    /// Acts and messages that were lost for want of room.
    #[serde(default)]
    pub messages_lost: u64,
    /// Sources that are reported now.
    #[serde(default)]
    pub sources: u64,
    /// The limits that the fleet holds together, in the configuration's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<FleetLimit>,
}

/// How long exchanges took: a histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundSeconds {
    /// Their sum.
    pub sum: f64,
    /// The upper ends, in seconds.
    pub up_to: Vec<f64>,
    /// How many took up to so long and longer than the end before; the last is of those past all ends.
    pub counts: Vec<u64>,
}

/// A limit that the fleet holds together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetLimit {
    /// The rule's name.
    pub rule: String,
    /// The limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// The same in words, as events have it: `1000/5m requests`.
    pub text: String,
    /// What of a source's traffic is summed.
    pub sum: Summed,
    /// Whether it is summed now; else each host holds it by itself.
    pub summed: bool,
    /// The most that the fleet admits of a source in a window, as things are now.
    pub bound: u64,
    /// The same in words, as `check-config` says it: `at most 1000 + 3x125 + 6 + …`.
    pub bound_words: String,
    /// How many other hosts heard of in the last minute share it; none where there are none, or one does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<u64>,
}

/// What of a source's traffic is summed over the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summed {
    /// What established connections proved.
    Verified,
    /// All of it.
    All,
}

labels!(pub Summed { Verified => "verified", All => "all" });

/// `ratelimitd fleet --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When this was read.
    pub time: Timestamp,
    /// How it does, as in `stats`.
    pub fleet: Fleet,
    /// The hosts heard of in the last hour, this one among them, by name.
    pub hosts: Vec<FleetHost>,
}

/// One host, as it said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetHost {
    /// Its name.
    pub name: String,
    /// The id of its state in the kernel, in hexadecimal.
    pub id: String,
    /// Whether it is the one that answers.
    pub this: bool,
    /// How long ago it was heard, by the store's clock.
    pub heard_seconds_ago: f64,
    /// Its clock minus the store's; none where it does not know yet.
    pub clock_ahead_seconds: Option<f64>,
    /// The version of ratelimitd.
    pub version: String,
    /// What it admitted under the fleet's limits in the last minute.
    pub admitted_last_minute: u64,
}

impl Fleet {
    /// The same without what may name addresses.
    pub fn without_addresses(mut self) -> Self {
        self.error = None;
        self.store_says = None;
        self
    }
}

impl FleetReport {
    /// Of a daemon without a fleet.
    pub fn off(time: Timestamp) -> Self {
        Self { schema: SCHEMA, time, fleet: Fleet::default(), hosts: Vec::new() }
    }
}
