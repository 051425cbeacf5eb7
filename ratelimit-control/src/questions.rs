//! What is asked without changing anything: the query of a GET. Serde types only.

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
    CheckReport, ExplainReport, ListFilter, ListReport, PrefixReport, Snapshot, SuggestReport,
};

/// As many prefixes as the kernel takes. // 2 x 1048576 x 256 B = 537 MB
const LIST_BYTES_MAX: usize = 512 << 20;

/// Reads everything.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stats {
    /// A reading that began later than this will do.
    #[serde(skip, default = "Instant::now")]
    pub since: Instant,
}

impl Stats {
    /// As of now.
    pub fn now() -> Self {
        Self { since: Instant::now() }
    }
}

impl Call for Stats {
    type Report = Snapshot;
    const ROUTE: Route = Route::ask("/api/v1/stats");
}

/// Looks at one source.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Its address.
    pub ip: IpAddr,
}

impl Call for Check {
    type Report = CheckReport;
    const ROUTE: Route = Route::ask("/api/v1/check/{ip}");
}

/// Looks at all of a prefix.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckPrefix {
    /// The prefix.
    pub prefix: String,
    /// Entries of each origin; none is all.
    pub most: Option<u64>,
}

impl CheckPrefix {
    /// The prefix. What is asked about is not changed by it, so that an address means itself.
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

/// Says whether everything is attached and readable: status 200 if so, else 503.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Healthz {}

impl Call for Healthz {
    type Report = Health;
    const ROUTE: Route = Route::ask("/healthz");

    fn status(report: &Health) -> StatusCode {
        if report.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    }
}

/// Says what is allowed, denied and banned.
impl Call for ListFilter {
    type Report = ListReport;
    const ROUTE: Route = Route::ask("/api/v1/list");
    const REPORT_BYTES_MAX: usize = LIST_BYTES_MAX;
    const SIZE: Size = Size::Large;
}

/// Reads limits off what was observed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suggest {
    /// Of the rule with this name; none is of all.
    pub rule: Option<String>,
}

impl Call for Suggest {
    type Report = SuggestReport;
    const ROUTE: Route = Route::ask("/api/v1/suggest");
}

/// Says what would become of a packet, and counts nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// Where it comes from.
    pub ip: IpAddr,
    /// The port that it goes to, as in `443/tcp`.
    pub to: String,
    /// The address that it goes to.
    pub address: Option<String>,
}

impl Explain {
    /// About this packet.
    pub fn new(sent: &Sent) -> Self {
        let to = format!("{}/{}", sent.port, sent.protocol.label());
        Self { ip: sent.from, to, address: sent.to.map(|to| to.to_string()) }
    }

    /// The packet.
    pub fn sent(&self) -> Result<Sent, Problem> {
        let to = self.address.as_deref().map(parse_address).transpose()?;
        Sent::to_port(self.ip, to, &self.to).ok_or_else(|| {
            let why = format!("`{}` is no port: write a number, and /udp after it where it is not TCP", self.to);
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

/// Says how the fleet does, and lists its hosts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FleetStatus {}

impl Call for FleetStatus {
    type Report = FleetReport;
    const ROUTE: Route = Route::ask("/api/v1/fleet");
}

/// Says how a source stands with one rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandingOf {
    /// Its address.
    pub ip: IpAddr,
    /// The rule's name.
    pub rule: String,
}

impl Call for StandingOf {
    type Report = StandingReport;
    const ROUTE: Route = Route::ask("/v1/check/{ip}");
}
