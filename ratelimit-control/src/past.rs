//! What is asked of the past: what happened lately, and what the history remembers. Serde types only.

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

/// Reports of the past. // 1000 episodes and 1000 acts of 1 kB are 2 MB
const REPORT_BYTES_MAX: usize = 16 << 20;

/// Which events are wanted; all that are remembered where nothing is set. Not a [`Call`]: nobody has to be asked for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsOf {
    /// Of this address, or of all in this prefix.
    pub source: Option<String>,
    /// Of this rule.
    pub rule: Option<String>,
    /// Of this kind.
    pub kind: Option<EventKind>,
    /// From then on.
    pub since: Option<Timestamp>,
    /// At most so many of them, the newest.
    pub most: Option<usize>,
    /// And all that follow, one line each, until the connection is closed.
    pub follow: Option<bool>,
}

impl EventsOf {
    /// Where they are.
    pub const PATH: &'static str = "/api/v1/events";

    pub(super) fn wanted(&self) -> Result<Wanted, Problem> {
        let source = self.source.as_deref().map(prefix_of).transpose()?;
        Ok(Wanted { source, rule: self.rule.clone(), kind: self.kind, since: self.since })
    }
}

/// What has happened lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Oldest first.
    pub events: Vec<Event>,
    /// Older events, of any kind, that are not remembered any more.
    pub overwritten: u64,
}

/// Asks for all that is remembered of an address or a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryOf {
    /// The address or prefix.
    pub prefix: String,
    /// What ended before is left out.
    pub since: Option<Timestamp>,
    /// What began after is left out.
    pub until: Option<Timestamp>,
    /// Of this rule.
    pub rule: Option<String>,
    /// For this reason.
    pub reason: Option<String>,
}

impl HistoryOf {
    /// The prefix that is asked for.
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

/// Asks who was refused most; of the last day, where nothing is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worst {
    /// What ended before is left out.
    pub since: Option<Timestamp>,
    /// What began after is left out.
    pub until: Option<Timestamp>,
    /// Of this rule.
    pub rule: Option<String>,
    /// For this reason.
    pub reason: Option<String>,
}

impl Call for Worst {
    type Report = WorstReport;
    const ROUTE: Route = Route::ask("/api/v1/worst");
    const REPORT_BYTES_MAX: usize = REPORT_BYTES_MAX;
    const SIZE: Size = Size::Medium;
}

/// Asks for the traffic of a period, for charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Which.
    pub period: Span,
}

/// A period that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Span {
    /// Five minutes.
    #[serde(rename = "5m")]
    FiveMinutes,
    /// An hour.
    #[serde(rename = "1h")]
    Hour,
    /// A day.
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

/// Erases a source from what is remembered of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forget {
    /// Its address.
    pub source: IpAddr,
}

/// What was erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetReport {
    /// [`ratelimit_report::snapshot::SCHEMA`].
    pub schema: u32,
    /// Whose.
    pub source: String,
    /// Episodes and acts of the history.
    pub rows: u64,
    /// Events that were remembered beside it.
    pub events: u64,
}

impl Call for Forget {
    type Report = ForgetReport;
    const ROUTE: Route = Route::change("/v1/forget");
}

/// An address is itself, and no wider prefix.
fn prefix_of(text: &str) -> Result<IpNet, Problem> {
    Ok(match parse_target(text)? {
        Target::Address(address) => address.to_canonical().into(),
        Target::Prefix { network, .. } => network,
    })
}
