//! Questions, which change nothing: a GET with a query. Serde types only.

use std::net::IpAddr;

use axum::http::StatusCode;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::call::{Call, Route, Size};
use super::proto::{Health, Problem, ProblemKind, StandingReport, parse_address, parse_target};
use ratelimit_policy::config::network::Target;
use ratelimit_policy::desired::Sent;
use ratelimit_report::fleet::FleetReport;
use ratelimit_report::snapshot::{
    CheckReport, ExplainReport, ListFilter, ListReport, PrefixReport, Snapshot, SuggestReport, TOP_MAX,
};

/// Maximum bytes of a list with as many prefixes as the kernel accepts. // 2 x 1048576 x 256 B = 537 MB
const LIST_BYTES_MAX: usize = 512 << 20;

/// Maximum bytes of statistics with [`TOP_MAX`] sources. // 10 000 x 600 B = 6 MB
const STATS_BYTES_MAX: usize = 16 << 20;

/// Request for all statistics.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// Earliest acceptable start of the reading.
    #[serde(skip, default = "Instant::now")]
    pub since: Instant,
    /// Maximum number of sources in `top`, at most 10 000; `None` for 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<usize>,
}

impl Stats {
    /// Returns a request for a reading that begins now or later.
    pub fn now() -> Self {
        Self { since: Instant::now(), sources: None }
    }

    /// Returns a request for a reading that begins now or later, with up to [`TOP_MAX`] sources.
    pub fn of_all_sources() -> Self {
        Self { sources: Some(TOP_MAX), ..Self::now() }
    }
}

impl Call for Stats {
    type Report = Snapshot;
    const ROUTE: Route = Route::ask("/api/v1/stats");
    const REPORT_BYTES_MAX: usize = STATS_BYTES_MAX;

    fn size(&self) -> Size {
        if self.sources.is_some() { Size::Medium } else { Size::Small }
    }
}

/// Request for the state of one source.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Address of the source.
    pub ip: IpAddr,
}

impl Call for Check {
    type Report = CheckReport;
    const ROUTE: Route = Route::ask("/api/v1/check/{ip}");
}

/// Request for all entries and sources in a prefix.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckPrefix {
    /// Prefix to look up, as text.
    pub prefix: String,
    /// Maximum number of entries of each origin; `None` for all.
    pub most: Option<u64>,
}

impl CheckPrefix {
    /// Returns the requested prefix. A single address is not widened to its source.
    pub fn prefix(&self) -> Result<IpNet, Problem> {
        Ok(match parse_target(&self.prefix)? {
            Target::Address(address) => address.to_canonical().into(),
            Target::Prefix { network, .. } => network,
        })
    }
}

impl Call for CheckPrefix {
    type Report = PrefixReport;
    const ROUTE: Route = Route::ask("/api/v1/check-prefix");
    const REPORT_BYTES_MAX: usize = LIST_BYTES_MAX;
    const SIZE: Size = Size::Large;

    fn check(&self) -> Result<(), Problem> {
        self.prefix().map(drop)
    }
}

/// Request for the daemon's health: status 200 if everything is attached and readable, else 503.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Healthz {}

impl Call for Healthz {
    type Report = Health;
    const ROUTE: Route = Route::ask("/healthz");

    fn status(report: &Health) -> StatusCode {
        if report.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }
}

/// Request for allowed, denied and banned prefixes.
impl Call for ListFilter {
    type Report = ListReport;
    const ROUTE: Route = Route::ask("/api/v1/list");
    const REPORT_BYTES_MAX: usize = LIST_BYTES_MAX;
    const SIZE: Size = Size::Large;
}

/// Request for limits that follow from observed traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suggest {
    /// Name of the rule; `None` for all rules.
    pub rule: Option<String>,
}

impl Call for Suggest {
    type Report = SuggestReport;
    const ROUTE: Route = Route::ask("/api/v1/suggest");
}

/// Request for the verdict on a hypothetical packet, which is not counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// Source address of the packet.
    pub ip: IpAddr,
    /// Destination port, for example `443/tcp`.
    pub to: String,
    /// Destination address, if the packet's is not any.
    pub address: Option<String>,
}

impl Explain {
    /// Returns a request about this packet.
    pub fn new(sent: &Sent) -> Self {
        let to = format!("{}/{}", sent.port, sent.protocol.label());
        Self { ip: sent.from, to, address: sent.to.map(|to| to.to_string()) }
    }

    /// Returns the packet. Fails if the port or the address is invalid.
    pub fn sent(&self) -> Result<Sent, Problem> {
        let to = self.address.as_deref().map(parse_address).transpose()?;
        Sent::to_port(self.ip, to, &self.to).ok_or_else(|| {
            let why = format!("`{}` is no port: write a number, followed by /udp if it is not TCP", self.to);
            Problem::new(ProblemKind::BadRequest, why)
        })
    }
}

impl Call for Explain {
    type Report = ExplainReport;
    const ROUTE: Route = Route::ask("/api/v1/explain/{ip}");

    fn check(&self) -> Result<(), Problem> {
        self.sent().map(drop)
    }
}

/// Request for the state of the fleet and a list of its hosts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FleetStatus {}

impl Call for FleetStatus {
    type Report = FleetReport;
    const ROUTE: Route = Route::ask("/api/v1/fleet");
}

/// Request for the state of a source under one rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandingOf {
    /// Address of the source.
    pub ip: IpAddr,
    /// Name of the rule.
    pub rule: String,
}

impl Call for StandingOf {
    type Report = StandingReport;
    const ROUTE: Route = Route::ask("/v1/check/{ip}");
}
