//! Import of our exports, and of files from nft, ipset and publishers of lists. Every line is either read in full or
//! refused with its number. So no entry that allows addresses becomes a denial. Pure.

use std::path::Path;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use ratelimit_policy::config::lists;

use super::{Beside, Format, HEAD, OWN, Row, UNTIL, export, prefix_of, rows, shortened};
use crate::snapshot::ListReport;

mod ipset;
mod nft;

/// Problem of a file that ends within a command.
const CUT_OFF: &str = "the braces that begin here are not closed: the file is cut off";
/// Number of bytes from the start of a file by which its kind is recognized.
const LOOKED_AT: usize = 8192;
/// Prefix of errors from list files.
const BAD_LINE: &str = "bad line in a list file: ";

/// Reason why nothing of a file can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Wrong {
    /// Line number, from 1.
    pub line: usize,
    /// Problem, as a clause.
    pub problem: String,
}

/// Line or set from which nothing is denied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    /// Line number, from 1.
    pub line: usize,
    /// Name of the refused item, and the reason why it cannot be imported.
    pub problem: String,
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Denials that were read.
    pub rows: Vec<Row>,
    /// Items in the file that are not denied, sorted by line.
    pub refused: Vec<Refused>,
}

/// Reads rows from any export format, from `list --json`, `ipset save`, `ipset list` and `nft list`, or from a
/// published list. Expired rows are left out. An unedited script that we wrote yields its original rows. In an edited
/// script, each element takes its author from its original row.
///
/// # Errors Fails if the file is cut off, or if it is of another kind as a whole.
pub fn import(text: &str, now: Timestamp) -> Result<Imported, Wrong> {
    // Byte order mark of some editors.
    let text = text.trim_start_matches('\u{feff}');
    let mut imported = if text.trim_start().starts_with('{')
        && let Ok(report) = serde_json::from_str::<ListReport>(text)
    {
        Imported { rows: rows(&report), refused: Vec::new() }
    } else {
        match own_rows(text) {
            Some((made, at)) if [Format::Nft, Format::Ipset].iter().any(|of| export(&made, *of, at) == text) => {
                Imported { rows: made, refused: Vec::new() }
            }
            Some((made, at)) => {
                let read = lines(text, at)?;
                Imported { rows: read.rows.into_iter().map(|row| of_its_row(row, &made)).collect(), ..read }
            }
            None => lines(text, now)?,
        }
    };
    imported.rows.retain(|row| row.until.is_none_or(|until| now < until));
    imported.refused.sort();
    Ok(imported)
}

/// Returns the original rows of a script of ratelimitd, and the time of the script.
fn own_rows(text: &str) -> Option<(Vec<Row>, Timestamp)> {
    let mut own = text.lines().map_while(|line| line.strip_prefix(OWN));
    let at = own.next()?.strip_prefix(HEAD.strip_prefix(OWN)?)?.parse().ok()?;
    let rows: Option<Vec<Vec<Row>>> = own.map(|line| listed(line).ok()).collect();
    Some((rows?.into_iter().flatten().collect(), at))
}

/// Adds the author of the row that decided for the element when the script was written.
fn of_its_row(element: Row, made: &[Row]) -> Row {
    let around = made.iter().filter(|row| row.prefix.contains(&element.prefix));
    match around.max_by_key(|row| row.end()) {
        Some(row) => Row { by: row.by, owner: row.owner.clone(), of: row.of, ..element },
        None => element,
    }
}

pub(super) fn lines(text: &str, now: Timestamp) -> Result<Imported, Wrong> {
    check_kind(text)?;
    let mut read = Imported::default();
    let (mut nft, mut ipset) = (nft::Script::default(), ipset::Script::default());
    let (mut rest, mut line) = (text, 1);
    while !rest.is_empty() {
        let (first, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let words = first.trim();
        if nft::is_statement(words) {
            let begin = line;
            (rest, line) = nft.statement(rest, line, now)?;
            debug_assert!(line > begin || rest.is_empty(), "a statement takes its line");
            continue;
        }
        if words.is_empty() || words.starts_with(['#', ';']) {
            ipset.blank_line(words);
        } else if !ipset.line(words, line, now) {
            match listed(words) {
                Ok(rows) => read.rows.extend(rows),
                // A column header may mean that no line is just an address.
                Err(problem) if read == Imported::default() && !problem.starts_with(BAD_LINE) => {
                    return Err(Wrong { line, problem });
                }
                Err(problem) => {
                    let problem = problem.strip_prefix(BAD_LINE).unwrap_or(&problem).to_owned();
                    read.refused.push(Refused { line, problem });
                }
            }
        }
        if read.rows.len() > lists::LIST_ENTRIES_MAX {
            let problem = format!("there are more than {} entries: cut the file into several", lists::LIST_ENTRIES_MAX);
            return Err(Wrong { line, problem });
        }
        (rest, line) = (after, line + 1);
    }
    nft.finish(&mut read);
    ipset.finish(&mut read);
    Ok(read)
}

/// Refuses a file of another kind, such as an HTML page, in which every line would be refused.
fn check_kind(text: &str) -> Result<(), Wrong> {
    let mut end = text.len().min(LOOKED_AT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let start = text.get(..end).unwrap_or_default();
    if start.trim_start().starts_with("{\"nftables\"") || start.trim_start().starts_with("{ \"nftables\"") {
        let problem = "this is nft's JSON; what `nft list set` prints without -j is read".to_owned();
        return Err(Wrong { line: 1, problem });
    }
    if start.trim_start().starts_with("<ipset") {
        let problem = "this is ipset's XML; what `ipset save` prints is read".to_owned();
        return Err(Wrong { line: 1, problem });
    }
    match lists::parse(Path::new(""), start) {
        Err(found) if found.first().problem.ends_with("not a list of addresses") => {
            Err(Wrong { line: 1, problem: found.first().problem.clone() })
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Parses `198.51.100.7 # {"until":"…"}`, or a line of any list.
fn listed(text: &str) -> Result<Vec<Row>, String> {
    let end = text.find(|c: char| c.is_whitespace() || c == '#' || c == ';').unwrap_or(text.len());
    let (first, rest) = text.split_at(end);
    let mark = rest.trim_start();
    let comment = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '#' || c == ';').trim_end();
    let own = prefix_of(first).filter(|_| mark.is_empty() || mark.starts_with('#'));
    let Some(prefix) = own else {
        let prefixes = prefixes_of(text)?;
        let comment = if prefix_of(first).is_some() { shortened(comment) } else { String::new() };
        let row = |prefix| Row::listed(prefix, None, Some(comment.clone()).filter(|text| !text.is_empty()));
        return Ok(prefixes.into_iter().map(row).collect());
    };
    if comment.starts_with('{')
        && let Ok(Beside { until, reason, by, owner, of }) = serde_json::from_str(comment)
    {
        return Ok(vec![Row { prefix, until, reason, by, owner, of }]);
    }
    let (until, comment) = match comment.strip_prefix(UNTIL).map(|rest| rest.split_once(' ').unwrap_or((rest, ""))) {
        Some((until, rest)) => until.parse().map_or((None, comment), |until| (Some(until), rest)),
        None => (None, comment),
    };
    Ok(vec![Row::listed(prefix, until, Some(shortened(comment)).filter(|text| !text.is_empty()))])
}

/// Returns the prefixes in a line of a published list, by the rules for list files.
fn prefixes_of(line: &str) -> Result<Vec<IpNet>, String> {
    lists::parse(Path::new(""), line).map_err(|found| found.first().problem.clone())
}

/// Parses an address, a prefix, or a range of two addresses. The family stays as written.
fn addresses(text: &str) -> Option<Vec<IpNet>> {
    let address = |text: &str| text.parse::<std::net::IpAddr>().ok();
    if let Some(one) = address(text) {
        return Some(vec![IpNet::from(one)]);
    }
    if let Some((first, last)) = text.split_once('-') {
        let subnets = match (address(first)?, address(last)?) {
            (std::net::IpAddr::V4(first), std::net::IpAddr::V4(last)) if first <= last => {
                ipnet::IpSubnets::from(ipnet::Ipv4Subnets::new(first, last, 0))
            }
            (std::net::IpAddr::V6(first), std::net::IpAddr::V6(last)) if first <= last => {
                ipnet::IpSubnets::from(ipnet::Ipv6Subnets::new(first, last, 0))
            }
            (std::net::IpAddr::V4(_) | std::net::IpAddr::V6(_), _) => return None,
        };
        return Some(subnets.collect());
    }
    text.parse::<IpNet>().ok().map(|prefix| vec![prefix.trunc()])
}

/// Returns the time `seconds` from now; 0 means no end. Returns none if the time is out of range.
fn ends_in(seconds: i64, now: Timestamp) -> Option<Option<Timestamp>> {
    if seconds == 0 {
        return Some(None);
    }
    now.checked_add(SignedDuration::from_secs(seconds)).ok().map(Some)
}

#[cfg(test)]
mod tests;
