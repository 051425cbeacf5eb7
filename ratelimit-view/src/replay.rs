//! Output of `ratelimitd replay`.

use super::suggest::{busiest, lists_seen};
use super::{counted, counting, form, limit, number, table};
use jiff::{Timestamp, Unit};
use ratelimit_report::replay::{
    FileRead, Input, Kind, LimitReport, Limited, ListBusy, ListLimited, PrefixLimited, Report,
};

/// Maximum number of a limit's sources that are named one by one.
const NAMED_MAX: usize = 20;
/// Maximum number of prefixes that are named one by one.
pub(super) const PREFIXES_NAMED_MAX: usize = 5;
/// Maximum number of files that are named one by one.
const FILES_MAX: usize = 10;

/// Formats a replay for people, in several lines. Its warnings are reported elsewhere.
pub fn replay(report: &Report) -> String {
    let ports = report.ports.as_ref().map_or_else(String::new, |ports| format!(" to ports {ports}"));
    let mut out = input(&report.input, "judged", &ports, report.sources);
    for of in &report.limits {
        out += "\n";
        out += &of_limit(of, report.sources);
    }
    if !report.counting.is_empty() {
        out += "\n";
        out += &counting(&report.counting);
    }
    out
}

/// Describes the files that were read, and the period of the traffic. `done` is the verb for the use of the traffic.
pub(super) fn input(input: &Input, done: &str, ports: &str, sources: u64) -> String {
    let (read, judged) = match input.kind {
        Kind::Capture => (counted(input.read, "packet"), counted(input.judged, "packet")),
        Kind::AccessLog => (counted(input.read, "line"), counted(input.judged, "request")),
    };
    let mut out = format!("Read {read}; {done} {judged}{ports} of {}\n", counted(sources, "source"));
    for file in input.files.iter().take(FILES_MAX) {
        out += &format!("  {}: {}\n", file.name, words(file));
    }
    if let Some(more @ 1..) = input.files.len().checked_sub(FILES_MAX) {
        out += &format!("  and {}\n", counted(more as u64, "more file"));
    }
    if let (Some(from), Some(until)) = (input.from, input.until) {
        out += &format!("From {} to {}\n", time(from), time(until));
    }
    if input.reordered > 0 {
        out += &format!("Sorted by their own time: {} written after newer ones\n", counted(input.reordered, "line"));
    }
    out
}

/// Describes the formats and compression of a file.
fn words(file: &FileRead) -> String {
    let packed = file.compression.map_or_else(String::new, |with| format!(", packed by {with}"));
    format!("{}{packed}", file.formats.join(" and "))
}

fn of_limit(of: &LimitReport, sources: u64) -> String {
    let unit = of.limit.unit.label();
    let mut out = format!("Limit {}, {}\n", limit(&of.limit), form(&of.limit));
    out += &format!("  admitted     {} {unit}\n", number(of.admitted));
    out += &format!("  refused      {} {unit}\n", number(of.refused));
    out += &format!("  over limit   {} of {}\n", number(of.sources_limited), counted(sources, "source"));
    out += &limited(of);
    out += &busiest(&of.busiest_prefixes, of.group_proposal.as_ref(), &of.limit, str::to_owned);
    let row = |of: &ListBusy| [of.file.clone(), number(of.sources), number(of.wanted)];
    out + &lists_seen(of.busiest_lists.iter().map(row), str::to_owned)
}

/// Formats the sources over the limit, and the prefixes and lists that contain them.
fn limited(of: &LimitReport) -> String {
    let mut out = String::new();
    if of.limited.is_empty() {
        return out;
    }
    let row = |of: &Limited| {
        let [first, last] = [of.first_refused, of.last_refused].map(time);
        [of.source.clone(), number(of.admitted), number(of.refused), first, last]
    };
    out += "\n";
    out += &table(
        ["SOURCE", "ADMITTED", "REFUSED", "FIRST REFUSED", "LAST REFUSED"],
        &[1, 2],
        of.limited.iter().take(NAMED_MAX).map(row),
    );
    if let Some(more @ 1..) = of.limited.len().checked_sub(NAMED_MAX) {
        out += &format!("and {} more: --json has them all\n", number(more as u64));
    }
    if !of.prefixes.is_empty() {
        out += "\n";
        let row = |of: &PrefixLimited| [of.prefix.clone(), number(of.sources), number(of.refused)];
        out += &table(["PREFIX", "SOURCES", "REFUSED"], &[1, 2], of.prefixes.iter().take(PREFIXES_NAMED_MAX).map(row));
    }
    if !of.lists.is_empty() {
        out += "\n";
        let row = |of: &ListLimited| [of.file.clone(), number(of.sources), number(of.refused)];
        out += &table(["LIST", "SOURCES", "REFUSED"], &[1, 2], of.lists.iter().map(row));
    }
    out
}

/// Formats a time as in RFC 3339, to the millisecond.
fn time(at: Timestamp) -> String {
    at.round(Unit::Millisecond).unwrap_or(at).to_string()
}
