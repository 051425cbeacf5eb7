//! Export of denials and bans for other programs: as a list file, for nft and for ipset. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::snapshot::{Author, ListFilter, ListReport, State};
use ratelimit_policy::access::REASON_BYTES_MAX;

mod effective;
mod read;
mod times;

pub use read::{Imported, Refused, Wrong, import};

use effective::{Kind, Nested, disjoint, in_effect};
use times::nft_time;

/// Table that nft scripts create.
const TABLE: &str = "inet ratelimitd";
const SET: [&str; 2] = ["denied4", "denied6"];
/// Maximum timeout of ipset, in seconds.
const IPSET_SECONDS_MAX: i64 = 2_147_483;
/// Capacity of an ipset set. It is constant, because `create -exist` fails on a set of another size.
const IPSET_ROOM: u32 = 1 << 24;
/// Prefix of script lines that only [`import`] reads. Other programs take them for comments.
const OWN: &str = "#= ";
/// Prefix of the first such line, before the time of the script.
const HEAD: &str = "#= ratelimitd 1 ";
/// Prefix of the expiry in comments of the list that `ratelimitd crowdsec` writes.
pub const UNTIL: &str = "until ";
/// Maximum length of an nft comment in bytes. // NFTNL_UDATA_COMMENT_MAXLEN is 128 with its terminator
const COMMENT_BYTES_MAX: usize = 120;

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// List file: one prefix per line, with expiry and reason as JSON after a `#`.
    Plain,
    /// Script for `nft -f`.
    Nft,
    /// Script for `ipset restore`.
    Ipset,
}

/// Denial or ban of one prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Prefix that is denied or banned.
    pub prefix: IpNet,
    /// Expiry; none if permanent.
    pub until: Option<Timestamp>,
    /// Reason in words.
    pub reason: Option<String>,
    /// Kind of author. Entries of the configuration and bans of rules end with their author, unlike those of commands.
    pub by: Author,
    /// Program that owns the denial.
    pub owner: Option<String>,
    /// Prefix of the whole entry, if exemptions reduce it to this part.
    pub of: Option<IpNet>,
}

impl Row {
    /// Creates a permanent denial by a command.
    pub const fn command(prefix: IpNet, reason: Option<String>) -> Self {
        Self::listed(prefix, None, reason)
    }

    /// Creates a row from a line of any list.
    const fn listed(prefix: IpNet, until: Option<Timestamp>, reason: Option<String>) -> Self {
        Self { prefix, until, reason, by: Author::Command, owner: None, of: None }
    }

    fn end(&self) -> (bool, Option<Timestamp>) {
        (self.until.is_none(), self.until)
    }
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<IpNet>,
}

const fn a_command() -> Author {
    Author::Command
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_a_command(by: &Author) -> bool {
    *by == Author::Command
}

/// Returns the denials and bans in a report of all entries. The rows cover an address exactly if this host denies or
/// bans it. For equal prefixes the entry that ends last counts. Exempt parts of an entry are in no row.
pub fn rows(report: &ListReport) -> Vec<Row> {
    rows_of(report, &ListFilter::default())
}

/// Returns the rows of the entries that `filter` accepts. The report must have all entries, because others may exempt a
/// part.
pub fn rows_of(report: &ListReport, filter: &ListFilter) -> Vec<Row> {
    let nested = report.entries.iter().enumerate().filter_map(|(id, of)| {
        let kind = match (of.state, of.decides) {
            (State::Exempt, true) => Kind::Exempt,
            (State::Denied, true) => Kind::Denied,
            // The denial that overrides a ban may end sooner.
            (State::Banned, _) => Kind::Banned,
            (State::Exempt | State::Denied, false) | (State::OverLimit | State::Ok, _) => return None,
        };
        Some(Nested { prefix: prefix_of(&of.prefix)?, kind, until: of.until, id })
    });
    let mut rows: BTreeMap<IpNet, Row> = BTreeMap::new();
    for (prefix, id) in in_effect(nested.collect()) {
        let Some((of, whole)) = report.entries.get(id).and_then(|of| Some((of, prefix_of(&of.prefix)?))) else {
            continue;
        };
        if !filter.takes(whole, of) {
            continue;
        }
        let reason = of.reason.as_deref().or(of.comment.as_deref()).map(shortened);
        let part_of = Some(whole).filter(|whole| *whole != prefix);
        let row = Row { prefix, until: of.until, reason, by: of.by, owner: of.owner.clone(), of: part_of };
        match rows.get_mut(&prefix) {
            Some(before) if before.end() >= row.end() => {}
            Some(before) => *before = row,
            None => drop(rows.insert(prefix, row)),
        }
    }
    rows.into_values().collect()
}

/// Formats the rows for a program.
pub fn export(rows: &[Row], format: Format, now: Timestamp) -> String {
    match format {
        Format::Plain => rows.iter().map(plain).collect(),
        Format::Nft => nft(rows, now),
        Format::Ipset => ipset(rows, now),
    }
}

fn plain(row: &Row) -> String {
    let Row { until, reason, by, owner, of, .. } = row.clone();
    let beside = Beside { until, reason, by, owner, of };
    // Serializing texts cannot fail, and JSON has no line breaks.
    let beside = serde_json::to_string(&beside).unwrap_or_default();
    if beside == "{}" { format!("{}\n", row.prefix) } else { format!("{} # {beside}\n", row.prefix) }
}

/// Returns the lines from which [`import`] restores the rows of an unedited script without loss.
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
        // One command for all elements, because nft reads the whole set again for each command.
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
        // hash:net does not accept a prefix of length 0.
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

/// Returns the seconds until a row expires, rounded up, or `Some(None)` if it is permanent. Returns none if it has
/// expired.
fn seconds_left(row: &Row, now: Timestamp) -> Option<Option<i64>> {
    let Some(until) = row.until else { return Some(None) };
    let left = until.duration_since(now);
    let seconds = left.as_secs() + i64::from(left.subsec_nanos() > 0);
    (seconds > 0).then_some(Some(seconds))
}

/// Replaces characters that cannot stand between quotes, because neither program has an escape. Cuts the text to
/// [`COMMENT_BYTES_MAX`].
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

fn prefix_of(text: &str) -> Option<IpNet> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address.to_canonical())),
        Err(_) => text.parse::<IpNet>().ok().map(|prefix| prefix.trunc()),
    }
}

/// Cuts a text to [`REASON_BYTES_MAX`] bytes at a character boundary.
fn shortened(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
