//! Result of a replay: `ratelimitd replay --json`, schema 1. Pure.

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use serde::Serialize;

use super::Read;
use super::fared::{Fared, Judge};
use super::{order, proxies};
use crate::busy::{BusyPrefix, GroupProposal};
use crate::origins::{self, Sum};
use crate::snapshot::{Counting, Limit, SCHEMA, source_key, source_text, timestamp};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired;

/// Kind of input that was replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Packet capture.
    Capture,
    /// Access log of a web server.
    AccessLog,
}

/// Effect that the limits would have had on the input.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of the JSON schema, [`SCHEMA`].
    pub schema: u32,
    /// Summary of the input.
    pub input: Input,
    /// Judged ports; none for a log, which does not name ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<String>,
    /// Number of sources with any counted traffic.
    pub sources: u64,
    /// Results by limit, in the given order, with group limits last.
    pub limits: Vec<LimitReport>,
    /// Meaning and accuracy of each unit that the limits count.
    pub counting: Vec<Counting>,
    /// Reasons why the result may differ from what would have happened.
    pub warnings: Vec<String>,
}

/// Summary of the input.
#[derive(Debug, Serialize)]
pub struct Input {
    /// Kind of the input.
    pub kind: Kind,
    /// Number of packets or lines.
    pub read: u64,
    /// Number of packets or requests that the limits judged.
    pub judged: u64,
    /// Number of packets or lines that could not be read.
    pub unreadable: u64,
    /// Number of packets that the capture contains only in part.
    pub cut_off: u64,
    /// Number of packets that the limiter drops independent of the limits.
    pub malformed: u64,
    /// Number of log requests that came after a younger one and were put back in order.
    pub reordered: u64,
    /// Number of items older than an item judged before them, and judged at that item's time. In a log these are
    /// requests beyond the reorder window.
    pub out_of_order: u64,
    /// Reorder window of a log: the number of requests that wait to be put in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder_requests_max: Option<u64>,
    /// Time of the first judged item.
    pub from: Option<Timestamp>,
    /// Time of the last judged item.
    pub until: Option<Timestamp>,
    /// Summary of each file, in the order of the arguments.
    pub files: Vec<FileRead>,
}

/// Summary of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRead {
    /// Name of the file, or `standard input`.
    pub name: String,
    /// Compression of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<&'static str>,
    /// Names of the formats in the file.
    pub formats: Vec<String>,
    /// Number of packets or lines.
    pub read: u64,
    /// Number of packets or lines that could not be read.
    pub unreadable: u64,
}

/// Result for one limit.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// Amount, window and unit of the limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Amount admitted, in the limit's unit.
    pub admitted: u64,
    /// Amount that this limit refused, in its unit. Refusals by another limit are in neither count.
    pub refused: u64,
    /// Number of sources that the limit would have limited.
    pub sources_limited: u64,
    /// Limited sources, worst first.
    pub limited: Vec<Limited>,
    /// Prefixes with several limited sources, worst first, that account for most of the refusals. They are the groups
    /// of a group limit, else IPv4 /24 and IPv6 /56.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixLimited>,
    /// Given list files that contain limited sources, worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListLimited>,
    /// Prefixes, IPv4 /24 and IPv6 /48, with several sources, whether or not one is over the limit. Sorted by their
    /// busiest windows, largest first. Empty for a limit of groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub busiest_prefixes: Vec<BusyPrefix>,
    /// Proposed limit for each such prefix; none if too few were seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_proposal: Option<GroupProposal>,
    /// Given list files that contain any sources. Sorted by demand, largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub busiest_lists: Vec<ListBusy>,
}

/// List file that contains sources with any demand.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ListBusy {
    /// Path of the file.
    pub file: String,
    /// Number of sources in the list.
    pub sources: u64,
    /// Demand of these sources, admitted or not, in the limit's unit.
    pub wanted: u64,
}

/// Prefix with several limited sources.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct PrefixLimited {
    /// Prefix in CIDR notation.
    pub prefix: String,
    /// Number of limited sources in the prefix.
    pub sources: u64,
    /// Amount refused of these sources, in the limit's unit.
    pub refused: u64,
}

/// List file with limited sources.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ListLimited {
    /// Path of the file.
    pub file: String,
    /// Number of limited sources in the list.
    pub sources: u64,
    /// Amount refused of these sources, in the limit's unit.
    pub refused: u64,
}

/// Source that would have been limited.
#[derive(Debug, Serialize)]
pub struct Limited {
    /// Source: an address, or the prefix that counts as one client.
    pub source: String,
    /// Amount admitted, in the limit's unit.
    pub admitted: u64,
    /// Amount refused by the limit, in its unit.
    pub refused: u64,
    /// Time of the first refusal.
    pub first_refused: Timestamp,
    /// Time of the last refusal.
    pub last_refused: Timestamp,
}

/// Counts of packets or requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) judged: u64,
    pub(super) malformed: u64,
    pub(super) reordered: u64,
    pub(super) out_of_order: u64,
}

impl Input {
    pub(super) fn new(
        kind: Kind,
        read: &Read,
        span: Option<(Nanos, Nanos)>,
        counts: Counts,
        files: Vec<FileRead>,
    ) -> Self {
        let Counts { judged, malformed, reordered, out_of_order } = counts;
        let is_log = kind == Kind::AccessLog;
        Self {
            kind,
            read: read.items,
            judged,
            unreadable: read.unreadable,
            cut_off: read.cut_off,
            malformed,
            reordered,
            out_of_order,
            reorder_requests_max: is_log.then_some(order::HELD_MAX as u64),
            from: span.map(|(from, _)| timestamp(from)),
            until: span.map(|(_, until)| timestamp(until)),
            files,
        }
    }
}

impl Judge {
    /// Returns the reasons why the result may differ from what would have happened, one clause each.
    pub(super) fn warnings(&self, input: &Input, read: Read) -> Vec<String> {
        let mut warnings = read.warnings;
        warnings.extend(input.warnings());
        if self.unplaced > 0 {
            warnings.push(format!(
                "not judged, because there is no room for more sources: {}; choose a shorter --ipv4-prefix or \
                 --ipv6-prefix",
                self.unplaced
            ));
        }
        let counted = self.sources.iter().map(|(source, judged)| (*source, judged.counted));
        warnings.extend(proxies::warning(counted, input.kind.of_one()));
        warnings
    }
}

impl Kind {
    /// Returns the plural noun for the judged items.
    const fn of_one(self) -> &'static str {
        match self {
            Self::Capture => "packets",
            Self::AccessLog => "requests",
        }
    }
}

impl Report {
    pub(super) fn new(judge: Judge, input: Input, read: Read, lists: &[ListFile]) -> Self {
        let warnings = judge.warnings(&input, read);
        let limits: Vec<LimitReport> =
            judge.limits().iter().enumerate().map(|(at, limit)| LimitReport::new(limit, at, &judge, lists)).collect();
        let ports = match input.kind {
            Kind::Capture => Some(judge.ports().to_string()),
            Kind::AccessLog => None,
        };
        let counting = match input.kind {
            Kind::Capture => Counting::of(judge.limits()),
            Kind::AccessLog => vec![Counting::of_log()],
        };
        Self { schema: SCHEMA, ports, sources: judge.sources.len() as u64, limits, counting, warnings, input }
    }
}

impl Input {
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.cut_off > 0 {
            warnings.push(format!(
                "packets cut off in the capture: {}. Requests are recognized by the content of packets, so some may \
                 be missing or counted twice: capture whole packets (tcpdump -s 0)",
                self.cut_off
            ));
        }
        if self.out_of_order > 0 {
            warnings.push(match self.kind {
                Kind::Capture => format!(
                    "packets older than an earlier one, judged at the time of that one: {} (captures of several \
                     interfaces or queues are often like this)",
                    self.out_of_order
                ),
                Kind::AccessLog => format!(
                    "lines too far behind younger ones, judged at the time of the line before: {} (lines are sorted \
                     by time within {} requests; name each rotated file, they are merged by time)",
                    self.out_of_order,
                    order::HELD_MAX
                ),
            });
        }
        if self.judged == 0 && self.kind == Kind::Capture {
            warnings.push("no packet was sent to the protected ports: name the ports with --port".to_owned());
        }
        warnings
    }
}

impl LimitReport {
    fn new(limit: &desired::Limit, at: usize, judge: &Judge, lists: &[ListFile]) -> Self {
        let fared = || judge.sources.iter().filter_map(|(client, fared)| Some((client, fared.limits.get(at)?)));
        let mut limited: Vec<Limited> = fared()
            .filter_map(|(client, Fared { admitted, refused, span, .. })| {
                let (first, last) = (*span)?;
                Some(Limited {
                    source: source_text(*client),
                    admitted: *admitted,
                    refused: *refused,
                    first_refused: timestamp(first),
                    last_refused: timestamp(last),
                })
            })
            .collect();
        let refused: Vec<(IpNet, u64)> =
            fared().filter(|(_, of)| of.span.is_some()).map(|(client, of)| (*client, of.refused)).collect();
        let prefixes = origins::prefixes(limit.per, &refused).into_iter();
        let wanted: Vec<(IpNet, u64)> = fared()
            .map(|(client, of)| (*client, of.admitted.saturating_add(of.refused)))
            .filter(|(_, wanted)| *wanted > 0)
            .collect();
        let busy = judge.prefixes(at).busy(limit, wanted.iter().map(|(client, _)| client));
        let busiest_lists = origins::lists(lists, &wanted).into_iter();
        let lists = origins::lists(lists, &refused).into_iter();
        limited.sort_by(|one, other| {
            other.refused.cmp(&one.refused).then_with(|| source_key(&one.source).cmp(&source_key(&other.source)))
        });
        Self {
            limit: limit.into(),
            admitted: fared().map(|(_, fared)| fared.admitted).sum(),
            refused: fared().map(|(_, fared)| fared.refused).sum(),
            sources_limited: limited.len() as u64,
            limited,
            prefixes: prefixes
                .map(|(prefix, Sum { sources, amount })| PrefixLimited {
                    prefix: prefix.to_string(),
                    sources,
                    refused: amount,
                })
                .collect(),
            lists: lists
                .map(|(list, Sum { sources, amount })| ListLimited {
                    file: list.path.display().to_string(),
                    sources,
                    refused: amount,
                })
                .collect(),
            busiest_prefixes: busy.prefixes,
            group_proposal: busy.proposal,
            busiest_lists: busiest_lists
                .map(|(list, Sum { sources, amount })| ListBusy {
                    file: list.path.display().to_string(),
                    sources,
                    wanted: amount,
                })
                .collect(),
        }
    }
}
