//! Questions about the past: recent events, and the history. Serde types only.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::call::{Call, Route, Size};
use super::feed::Wanted;
use super::proto::{Problem, parse_target};
use ratelimit_policy::config::network::Target;
use ratelimit_report::event::{Event, EventKind};
use ratelimit_report::history::{HistoryReport, SeriesReport, WorstReport};

/// Maximum bytes of a report about the past. // 1000 episodes and 1000 acts of 1 kB are 2 MB
const REPORT_BYTES_MAX: usize = 16 << 20;

/// Filter of recent events; all of them if nothing is set. Not a [`Call`], because the owner is not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsOf {
    /// Only events of this address, or of all addresses in this prefix.
    pub source: Option<String>,
    /// Only events of this rule.
    pub rule: Option<String>,
    /// Only events of this kind.
    pub kind: Option<EventKind>,
    /// Only events from this time on.
    pub since: Option<Timestamp>,
    /// Maximum number of events, the newest.
    pub most: Option<usize>,
    /// Also streams all following events, one line each, until the connection is closed.
    pub follow: Option<bool>,
}

impl EventsOf {
    /// Path of the request.
    pub const PATH: &'static str = "/api/v1/events";

    pub(super) fn wanted(&self) -> Result<Wanted, Problem> {
        let source = self.source.as_deref().map(prefix_of).transpose()?;
        Ok(Wanted { source, rule: self.rule.clone(), kind: self.kind, since: self.since })
    }
}

/// Recent events that match the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// Number of older events, of any kind, that were overwritten.
    pub overwritten: u64,
}

/// Request for the history of an address or a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryOf {
    /// The address or prefix.
    pub prefix: String,
    /// Excludes records that ended before this time.
    pub since: Option<Timestamp>,
    /// Excludes records that began after this time.
    pub until: Option<Timestamp>,
    /// Only entries of this rule.
    pub rule: Option<String>,
    /// Only entries with this reason.
    pub reason: Option<String>,
}

impl HistoryOf {
    /// Returns the requested prefix. Fails if the text is no address or prefix.
    pub fn of(&self) -> Result<IpNet, Problem> {
        prefix_of(&self.prefix)
    }
}

impl Call for HistoryOf {
    type Report = HistoryReport;
    const ROUTE: Route = Route::ask("/api/v1/history");
    const REPORT_BYTES_MAX: usize = REPORT_BYTES_MAX;
    const SIZE: Size = Size::Medium;

    fn check(&self) -> Result<(), Problem> {
        self.of().map(drop)
    }
}

/// Request for the sources that were refused most, in the last day by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worst {
    /// Excludes records that ended before this time.
    pub since: Option<Timestamp>,
    /// Excludes records that began after this time.
    pub until: Option<Timestamp>,
    /// Only entries of this rule.
    pub rule: Option<String>,
    /// Only entries with this reason.
    pub reason: Option<String>,
}

impl Call for Worst {
    type Report = WorstReport;
    const ROUTE: Route = Route::ask("/api/v1/worst");
    const REPORT_BYTES_MAX: usize = REPORT_BYTES_MAX;
    const SIZE: Size = Size::Medium;
}

/// Request for the traffic of a period, for charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Period that the series covers.
    pub period: Span,
}

/// Period that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Span {
    /// Five minutes.
    #[serde(rename = "5m")]
    FiveMinutes,
    /// One hour.
    #[serde(rename = "1h")]
    Hour,
    /// One day.
    #[serde(rename = "24h")]
    Day,
    /// 30 days.
    #[serde(rename = "30d")]
    Month,
}

impl Call for Series {
    type Report = SeriesReport;
    const ROUTE: Route = Route::ask("/api/v1/series");
    const REPORT_BYTES_MAX: usize = REPORT_BYTES_MAX;
    const SIZE: Size = Size::Medium;
}

/// Request to erase a source from the history and the recent events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forget {
    /// Address of the source.
    pub source: IpAddr,
}

/// Result of erasing a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetReport {
    /// Version of the JSON schema, [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// The erased source.
    pub source: String,
    /// Number of erased episodes and acts of the history.
    pub rows: u64,
    /// Number of erased recent events.
    pub events: u64,
}

impl Call for Forget {
    type Report = ForgetReport;
    const ROUTE: Route = Route::change("/v1/forget");
}

/// Parses an address or prefix. A single address is not widened to its source.
fn prefix_of(text: &str) -> Result<IpNet, Problem> {
    Ok(match parse_target(text)? {
        Target::Address(address) => address.to_canonical().into(),
        Target::Prefix { network, .. } => network,
    })
}
