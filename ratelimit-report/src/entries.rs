//! What is denied and banned, for other programs: as a list file, for nft and for ipset; and the same read again. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::{Author, ListReport, Listed, State};
use ratelimit_policy::access::REASON_BYTES_MAX;
use ratelimit_policy::config::lists::prefix_text;

mod times;

use times::{nft_time, seconds};

/// The table and the sets that are written.
const TABLE: &str = "inet ratelimitd";
const SET: [&str; 2] = ["denied4", "denied6"];
/// The longest that ipset counts.
const IPSET_SECONDS_MAX: i64 = 2_147_483;
/// Entries that a set of ipset may hold. The same for any rows: a set of another size is another set, which stands in the way.
const IPSET_ROOM: u32 = 1 << 24;
/// Before the lines of a script that are for [`import`] alone. The other programs take them for comments.
const OWN: &str = "#= ";
/// The first of them, before the time of the script.
const HEAD: &str = "#= ratelimitd 1 ";
/// Before the end in a comment of the list that `ratelimitd crowdsec` keeps.
pub const UNTIL: &str = "until ";
/// Bytes of a comment of nft. // NFTNL_UDATA_COMMENT_MAXLEN is 128 with its terminator
const COMMENT_BYTES_MAX: usize = 120;

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One prefix a line, with its end and reason as JSON behind a `#`: a list file.
    Plain,
    /// A script for `nft -f`.
    Nft,
    /// A script for `ipset restore`.
    Ipset,
}

/// One denial or ban.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Who.
    pub prefix: IpNet,
    /// Until when; none is permanent.
    pub until: Option<Timestamp>,
    /// Why.
    pub reason: Option<String>,
    /// Who entered it: what a configuration denies or a rule bans is no command's, and ends with those.
    pub by: Author,
    /// The program whose denial it is.
    pub owner: Option<String>,
}

impl Row {
    /// A permanent denial by a command.
    pub const fn command(prefix: IpNet, reason: Option<String>) -> Self {
        Self::listed(prefix, None, reason)
    }

    /// What a line of any list says.
    const fn listed(prefix: IpNet, until: Option<Timestamp>, reason: Option<String>) -> Self {
        Self { prefix, until, reason, by: Author::Command, owner: None }
    }

    fn end(&self) -> (bool, Option<Timestamp>) {
        (self.until.is_none(), self.until)
    }
}

/// A line that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Wrong {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub problem: &'static str,
}

#[derive(Serialize, Deserialize)]
struct Beside {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default = "a_command", skip_serializing_if = "is_a_command")]
    by: Author,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
}

const fn a_command() -> Author {
    Author::Command
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_a_command(by: &Author) -> bool {
    *by == Author::Command
}

/// What is denied or banned in a report, and decides: of one prefix what ends last.
pub fn rows(report: &ListReport) -> Vec<Row> {
    let mut rows: BTreeMap<IpNet, Row> = BTreeMap::new();
    let denies = |of: &&Listed| of.decides && matches!(of.state, State::Denied | State::Banned);
    for of in report.entries.iter().filter(denies) {
        let Some(prefix) = prefix_of(&of.prefix) else { continue };
        let reason = of.reason.as_deref().or(of.comment.as_deref()).map(shortened);
        let row = Row { prefix, until: of.until, reason, by: of.by, owner: of.owner.clone() };
        match rows.get_mut(&prefix) {
            Some(before) if before.end() >= row.end() => {}
            Some(before) => *before = row,
            None => drop(rows.insert(prefix, row)),
        }
    }
    rows.into_values().collect()
}

/// The rows for a program.
pub fn export(rows: &[Row], format: Format, now: Timestamp) -> String {
    match format {
        Format::Plain => rows.iter().map(plain).collect(),
        Format::Nft => nft(rows, now),
        Format::Ipset => ipset(rows, now),
    }
}

fn plain(row: &Row) -> String {
    let beside = Beside { until: row.until, reason: row.reason.clone(), by: row.by, owner: row.owner.clone() };
    // Two texts: it cannot fail. JSON has no line breaks.
    let beside = serde_json::to_string(&beside).unwrap_or_default();
    if beside == "{}" { format!("{}\n", row.prefix) } else { format!("{} # {beside}\n", row.prefix) }
}

/// What [`import`] reads of a script that nobody has edited, so that nothing of the rows is lost by it.
fn own_lines(rows: &[Row], now: Timestamp) -> String {
    let rows = rows.iter().map(|row| format!("{OWN}{}", plain(row)));
    std::iter::once(format!("{HEAD}{now}\n")).chain(rows).collect()
}

fn nft(rows: &[Row], now: Timestamp) -> String {
    let mut text = own_lines(rows, now) + &format!("add table {TABLE}\n");
    for (name, kind) in SET.iter().zip(["ipv4_addr", "ipv6_addr"]) {
        let _ = writeln!(text, "add set {TABLE} {name} {{ type {kind}; flags interval, timeout; }}");
        let _ = writeln!(text, "flush set {TABLE} {name}");
    }
    let rows = disjoint(rows);
    for (is_ipv6, set) in [false, true].into_iter().zip(SET) {
        let of = rows.iter().filter(|row| row.prefix.addr().is_ipv6() == is_ipv6);
        let elements: String = of.filter_map(|row| nft_element(row, now)).collect();
        // In one command: nft reads the whole set again for each.
        if !elements.is_empty() {
            let _ = writeln!(text, "add element {TABLE} {set} {{\n{elements}}}");
        }
    }
    text
}

fn nft_element(row: &Row, now: Timestamp) -> Option<String> {
    let timeout = seconds_left(row, now)?.map_or_else(String::new, |seconds| format!(" timeout {}", nft_time(seconds)));
    let comment = row.reason.as_deref().map(quoted).filter(|text| !text.is_empty());
    let comment = comment.map_or_else(String::new, |text| format!(" comment \"{text}\""));
    Some(format!("\t{}{timeout}{comment},\n", row.prefix))
}

fn ipset(rows: &[Row], now: Timestamp) -> String {
    let mut text = own_lines(rows, now);
    for (name, family) in SET.iter().zip(["inet", "inet6"]) {
        let _ = writeln!(text, "create {name} hash:net family {family} timeout 0 comment maxelem {IPSET_ROOM} -exist");
        let _ = writeln!(text, "flush {name}");
    }
    for row in rows {
        let set = SET[usize::from(row.prefix.addr().is_ipv6())];
        let Some(seconds) = seconds_left(row, now) else { continue };
        let timeout = seconds.map_or(0, |seconds| seconds.min(IPSET_SECONDS_MAX));
        let comment = row.reason.as_deref().map(quoted).filter(|text| !text.is_empty());
        let comment = comment.map_or_else(String::new, |text| format!(" comment \"{text}\""));
        // hash:net takes no prefix of length 0.
        let halves: Vec<IpNet> = if row.prefix.prefix_len() == 0 {
            row.prefix.subnets(1).map_or_else(|_| vec![], Iterator::collect)
        } else {
            vec![row.prefix]
        };
        for prefix in halves {
            let _ = writeln!(text, "add {set} {prefix} timeout {timeout}{comment}");
        }
    }
    text
}

/// Seconds until a row is over, rounded up; none where it is over.
fn seconds_left(row: &Row, now: Timestamp) -> Option<Option<i64>> {
    let Some(until) = row.until else { return Some(None) };
    let left = until.duration_since(now);
    let seconds = left.as_secs() + i64::from(left.subsec_nanos() > 0);
    (seconds > 0).then_some(Some(seconds))
}

/// A text that stands between quotes, where neither program has a way to write one.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for c in text.chars().map(|c| if c == '"' || c == '\\' || c.is_control() { '\'' } else { c }) {
        if quoted.len() + c.len_utf8() > COMMENT_BYTES_MAX {
            break;
        }
        quoted.push(c);
    }
    quoted
}

/// The same addresses by prefixes that do not overlap, as nft's sets of intervals want them: each address as long as it is
/// denied by the last row for it.
fn disjoint(rows: &[Row]) -> Vec<Row> {
    let mut out = Vec::new();
    for is_ipv6 in [false, true] {
        let mut of: Vec<&Row> = rows.iter().filter(|row| row.prefix.addr().is_ipv6() == is_ipv6).collect();
        of.sort_by_key(|row| row.prefix);
        let mut rest = of.as_slice();
        while let Some(first) = rest.first() {
            let within = rest.iter().take_while(|row| first.prefix.contains(&row.prefix)).count();
            let (inside, after) = rest.split_at(within);
            split(first.prefix, None, inside, &mut out);
            rest = after;
        }
    }
    out
}

/// `rows` lie within `prefix`, in order. `around` is what holds for all of it.
fn split(prefix: IpNet, around: Option<&Row>, rows: &[&Row], out: &mut Vec<Row>) {
    let outlasts = |one: &Row, other: &Row| one.end() > other.end();
    let own = rows.iter().take_while(|row| row.prefix == prefix).count();
    let (own, inside) = rows.split_at(own);
    let around = own.iter().copied().fold(around, |of, row| match of {
        Some(of) if !outlasts(row, of) => Some(of),
        Some(_) | None => Some(row),
    });
    let inside: Vec<&Row> = inside.iter().copied().filter(|row| around.is_none_or(|of| outlasts(row, of))).collect();
    if inside.is_empty() {
        out.extend(around.map(|of| Row { prefix, ..of.clone() }));
        return;
    }
    let Ok(halves) = prefix.subnets(prefix.prefix_len() + 1) else { return };
    for half in halves {
        let of: Vec<&Row> = inside.iter().copied().filter(|row| half.contains(&row.prefix)).collect();
        split(half, around, &of, out);
    }
}

/// Reads rows again from any of the formats, or from `list --json`. What is over is left out; what a script says beside
/// elements is passed over. A script of ours that nobody has edited is the rows that it was made of; in an edited one each
/// element is of the row that it was made of.
///
/// # Errors
/// At the first line that is none of them.
pub fn import(text: &str, now: Timestamp) -> Result<Vec<Row>, Wrong> {
    // What some editors begin a file with.
    let text = text.trim_start_matches('\u{feff}');
    let mut rows = if text.trim_start().starts_with('{')
        && let Ok(report) = serde_json::from_str::<ListReport>(text)
    {
        rows(&report)
    } else {
        match own_rows(text) {
            Some((made, at)) if [Format::Nft, Format::Ipset].iter().any(|of| export(&made, *of, at) == text) => made,
            Some((made, at)) => lines(text, at)?.into_iter().map(|row| of_its_row(row, &made)).collect(),
            None => lines(text, now)?,
        }
    };
    rows.retain(|row| row.until.is_none_or(|until| now < until));
    Ok(rows)
}

/// The rows that a script of ours was made of, and when.
fn own_rows(text: &str) -> Option<(Vec<Row>, Timestamp)> {
    let mut own = text.lines().map_while(|line| line.strip_prefix(OWN));
    let at = own.next()?.strip_prefix(HEAD.strip_prefix(OWN)?)?.parse().ok()?;
    let rows: Result<Vec<Row>, _> = own.map(listed).collect();
    Some((rows.ok()?, at))
}

/// An element with the author of the row that decided for it when it was written.
fn of_its_row(element: Row, made: &[Row]) -> Row {
    let around = made.iter().filter(|row| row.prefix.contains(&element.prefix));
    match around.max_by_key(|row| row.end()) {
        Some(row) => Row { by: row.by, owner: row.owner.clone(), ..element },
        None => element,
    }
}

fn lines(text: &str, now: Timestamp) -> Result<Vec<Row>, Wrong> {
    let mut rows = Vec::new();
    // The braces that are open, of a command of nft, by the line of its first.
    let mut open = None;
    for (line, text) in (1..).zip(text.lines()) {
        let wrong = |problem| Wrong { line, problem };
        let words = text.trim();
        if words.is_empty() || words.starts_with(['#', ';']) {
            continue;
        }
        let command = words.strip_prefix("add element ").map(|rest| rest.split_once('{'));
        let inside = match (open, command) {
            (Some(_), _) => Some(words),
            (None, Some(command)) => Some(command.ok_or(wrong("no element between braces"))?.1),
            (None, None) => None,
        };
        if let Some(inside) = inside {
            let (elements, is_closed) = elements_in(inside);
            for element in elements {
                rows.push(element_of(element, now).map_err(wrong)?);
            }
            open = if is_closed { None } else { open.or(Some(line)) };
            continue;
        }
        let row = if words.split(' ').next().is_some_and(|word| matches!(word, "add" | "create" | "flush" | "COMMIT")) {
            match words.strip_prefix("add ").and_then(|rest| rest.split_once(' ')) {
                Some(("set" | "table", _)) | None => None,
                Some((_, element)) => Some(element_of(element, now).map_err(wrong)?),
            }
        } else if words.starts_with('{') {
            // As in a list file; what tells of the list is no entry.
            let text = prefix_text(words).map_err(wrong)?;
            let prefix = |text: &str| prefix_of(text).ok_or(wrong("this is no address, and no prefix"));
            text.map(|text| Ok(Row::listed(prefix(&text)?, None, None))).transpose()?
        } else {
            Some(listed(words).map_err(wrong)?)
        };
        rows.extend(row);
    }
    match open {
        None => Ok(rows),
        Some(line) => Err(Wrong { line, problem: "the braces that begin here do not end: the rest is missing" }),
    }
}

/// The elements of a line between braces, and whether they end on it. What stands between quotes ends nothing.
fn elements_in(text: &str) -> (Vec<&str>, bool) {
    let (mut elements, mut from, mut is_quoted) = (Vec::new(), 0, false);
    let mut end = (text.len(), false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => {
                elements.push(&text[from..at]);
                from = at + 1;
            }
            '}' | '#' if !is_quoted => {
                end = (at, c == '}');
                break;
            }
            _ => {}
        }
    }
    elements.extend(text.get(from..end.0));
    elements.retain(|element| !element.trim().is_empty());
    (elements, end.1)
}

/// `198.51.100.7 # {"until":"…"}`, or a line of any list.
fn listed(text: &str) -> Result<Row, &'static str> {
    let end = text.find(|c: char| c.is_whitespace() || c == '#' || c == ';').unwrap_or(text.len());
    let (prefix, rest) = text.split_at(end);
    let prefix = prefix_of(prefix).ok_or("this is no address, and no prefix")?;
    let comment = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '#' || c == ';').trim_end();
    if comment.starts_with('{')
        && let Ok(Beside { until, reason, by, owner }) = serde_json::from_str(comment)
    {
        return Ok(Row { prefix, until, reason, by, owner });
    }
    let (until, comment) = match comment.strip_prefix(UNTIL).map(|rest| rest.split_once(' ').unwrap_or((rest, ""))) {
        Some((until, rest)) => until.parse().map_or((None, comment), |until| (Some(until), rest)),
        None => (None, comment),
    };
    Ok(Row::listed(prefix, until, Some(shortened(comment)).filter(|text| !text.is_empty())))
}

/// `198.51.100.7 timeout 3h comment "why"`, in the order of either program.
fn element_of(text: &str, now: Timestamp) -> Result<Row, &'static str> {
    let text = text.trim();
    let (before, comment) = match text.split_once(" comment \"") {
        Some((before, rest)) => (before, rest.rsplit_once('"').map(|(comment, _)| shortened(comment))),
        None => (text, None),
    };
    let mut words = before.split_whitespace();
    let prefix = words.next().and_then(prefix_of).ok_or("this is no address, and no prefix")?;
    let mut until = None;
    while let Some(word) = words.next() {
        if word == "timeout" {
            let seconds = words.next().and_then(seconds).ok_or("this is no time")?;
            let ends = || now.checked_add(jiff::SignedDuration::from_secs(seconds)).map_err(|_| "this is no time");
            until = if seconds == 0 { None } else { Some(ends()?) };
        }
    }
    Ok(Row::listed(prefix, until, comment.filter(|text| !text.is_empty())))
}

fn prefix_of(text: &str) -> Option<IpNet> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address.to_canonical())),
        Err(_) => text.parse::<IpNet>().ok().map(|prefix| prefix.trunc()),
    }
}

/// As long as a reason may be.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
