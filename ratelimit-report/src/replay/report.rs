//! What a replay ends in: `ratelimitd replay --json`, schema 1. Pure.

use ipnet::IpNet;
use jiff::Timestamp;
use ratelimit_common::time::Nanos;
use serde::Serialize;

use super::Read;
use super::fared::{Fared, Judge};
use super::{order, proxies};
use crate::origins::{self, Sum};
use crate::snapshot::{Counting, Limit, SCHEMA, source_text, timestamp};
use ratelimit_policy::config::lists::ListFile;
use ratelimit_policy::desired;

/// What was replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Packets.
    Capture,
    /// A web server's log.
    AccessLog,
}

/// What limits would have made of what came in.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was read.
    pub input: Input,
    /// The ports that were judged; of a log, which does not tell them, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<String>,
    /// Sources of which anything counted.
    pub sources: u64,
    /// In the order in which they were given, those of groups last.
    pub limits: Vec<LimitReport>,
    /// What the limits count, and how well.
    pub counting: Vec<Counting>,
    /// In what respect this may not be what would have been.
    pub warnings: Vec<String>,
}

/// What was read.
#[derive(Debug, Serialize)]
pub struct Input {
    /// What it is.
    pub kind: Kind,
    /// Packets or lines.
    pub read: u64,
    /// Those that the limits are about.
    pub judged: u64,
    /// Those that could not be read.
    pub unreadable: u64,
    /// Packets of which not all is there.
    pub cut_off: u64,
    /// Packets that the limiter drops whatever the limits say.
    pub malformed: u64,
    /// Requests of a log that were older than one before them, and were judged in their own place.
    pub reordered: u64,
    /// Those that were older than what was before them, and were taken to be as late: of a log, those that the reorder
    /// window did not hold.
    pub out_of_order: u64,
    /// Reorder window of a log: the number of requests that wait to be put in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder_requests_max: Option<u64>,
    /// When the first one came that was judged.
    pub from: Option<Timestamp>,
    /// And the last.
    pub until: Option<Timestamp>,
    /// File by file, as they were named.
    pub files: Vec<FileRead>,
}

/// What was read of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileRead {
    /// Its name, or what standard input is called.
    pub name: String,
    /// What it was packed with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<&'static str>,
    /// What its formats are called.
    pub formats: Vec<String>,
    /// Packets or lines.
    pub read: u64,
    /// Those that could not be read.
    pub unreadable: u64,
}

/// What one limit would have done.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// The limit.
    #[serde(flatten)]
    pub limit: Limit,
    /// Admitted, in its unit.
    pub admitted: u64,
    /// Refused by it, in its unit. What another limit refused is in neither.
    pub refused: u64,
    /// Sources that it would have limited.
    pub sources_limited: u64,
    /// Those, worst first.
    pub limited: Vec<Limited>,
    /// The prefixes that most of what it refused came from, of those with several such sources, worst first: the
    /// groups of a limit that has some, else each IPv4 /24 and IPv6 /56.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<PrefixLimited>,
    /// The list files that any of it came from, of those that were named, worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListLimited>,
}

/// A prefix with several sources that would have been limited.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct PrefixLimited {
    /// The prefix.
    pub prefix: String,
    /// Its sources that would have been limited.
    pub sources: u64,
    /// Refused of them, in the limit's unit.
    pub refused: u64,
}

/// A list file with sources that would have been limited.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ListLimited {
    /// The file.
    pub file: String,
    /// Its sources that would have been limited.
    pub sources: u64,
    /// Refused of them, in the limit's unit.
    pub refused: u64,
}

/// A source that would have been limited.
#[derive(Debug, Serialize)]
pub struct Limited {
    /// Its address, or the prefix that is one client.
    pub source: String,
    /// Admitted, in the limit's unit.
    pub admitted: u64,
    /// Refused by the limit.
    pub refused: u64,
    /// When it was first.
    pub first_refused: Timestamp,
    /// When it was last.
    pub last_refused: Timestamp,
}

/// Numbers of packets or requests.
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
    /// In what respect what was judged may not be what would have been.
    pub(super) fn warnings(&self, input: &Input, read: Read) -> Vec<String> {
        let mut warnings = read.warnings;
        warnings.extend(input.warnings());
        if self.unplaced > 0 {
            warnings.push(format!(
                "not judged, as there is no room for more sources: {}; choose a shorter --ipv4-prefix or --ipv6-prefix",
                self.unplaced
            ));
        }
        let counted = self.sources.iter().map(|(source, judged)| (*source, judged.counted));
        warnings.extend(proxies::warning(counted, input.kind.of_one()));
        warnings
    }
}

impl Kind {
    /// What is judged.
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
                "packets cut off in the capture: {}. Requests are told by what packets hold, so some may be missing or counted \
                 twice: capture whole packets (tcpdump -s 0)",
                self.cut_off
            ));
        }
        if self.out_of_order > 0 {
            warnings.push(match self.kind {
                Kind::Capture => format!(
                    "packets older than one before them, and taken to be as late as that: {} (captures of several \
                     interfaces or queues are often like this)",
                    self.out_of_order
                ),
                Kind::AccessLog => format!(
                    "lines too far behind younger ones, and taken to be as late as what was judged before: {} (lines are \
                     put in order of their own time within {} requests; name rotated files each, they are merged by time)",
                    self.out_of_order,
                    order::HELD_MAX
                ),
            });
        }
        if self.judged == 0 && self.kind == Kind::Capture {
            warnings.push("no packet was sent to the protected ports: say which they are with --port".to_owned());
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
        let lists = origins::lists(lists, &refused).into_iter();
        limited.sort_by(|one, other| other.refused.cmp(&one.refused).then_with(|| one.source.cmp(&other.source)));
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
        }
    }
}
