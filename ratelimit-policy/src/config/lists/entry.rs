//! One line of a list file, in each form that published lists have. A line is read in full or refused: no line is taken for
//! fewer addresses than it names. Pure.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use super::super::network::{CIDR_HELP, parse_cidr_of_any_bits};

/// Keys that hold the prefix in a line of JSON: those of Spamhaus, AbuseIPDB, CrowdSec and others.
const PREFIX_KEYS: [&str; 9] =
    ["cidr", "ip", "ipAddress", "ip_address", "prefix", "network", "range", "value", "address"];
/// Ends of keys in a line of JSON that say how much more than one address is meant.
const EXTENT_KEYS: [&str; 8] = ["mask", "netmask", "length", "len", "bits", "end", "last", "to"];
/// A line of JSON takes some twenty times as much memory while it is read.
const JSON_BYTES_MAX: usize = 64 << 10;
/// Lines of JSON with this type tell of the list.
const METADATA: &str = "metadata";
/// eMule lets addresses pass whose access level is this or higher.
const PASSING_LEVEL: u32 = 127;

const RANGE_HELP: &str = "write a range as 192.0.2.0-192.0.2.255, or each address in a line of its own";
const NO_ADDRESS: &str = "this is no address, and no prefix";

/// Why a line cannot be read. Neither text quotes the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct Bad {
    /// Offset in bytes from where the line's text begins.
    pub(super) at: usize,
    pub(super) problem: &'static str,
    pub(super) help: &'static str,
}

const fn bad(at: usize, problem: &'static str, help: &'static str) -> Bad {
    Bad { at, problem, help }
}

/// Returns the prefixes that a line names; none of a line of JSON that tells of the list.
pub(in crate::config) fn read(line: &str) -> Result<Vec<IpNet>, Bad> {
    if line.starts_with('{') {
        let text = prefix_text(line)
            .map_err(|problem| bad(0, problem, "a line of JSON is an object with the prefix under `cidr` or `ip`"))?;
        return text.map_or_else(|| Ok(Vec::new()), |text| whole(&text));
    }
    let (body, comment) = line.split_at(line.find(['#', ';']).unwrap_or(line.len()));
    let body = body.trim_end();
    let prefixes = match range_at_start(body)? {
        Some((range, rest)) => {
            check_level(rest)?;
            check_rest(words(rest), &range)?;
            range
        }
        None => {
            let first = words(body).next().ok_or(bad(0, NO_ADDRESS, CIDR_HELP))?;
            match net(first) {
                Ok(of) => first_word(of, body)?,
                Err(wrong) => {
                    let range = named_range(line)?;
                    let other = |bad: Bad| if bad.problem == NO_ADDRESS { wrong } else { bad };
                    return range.map_or_else(|| directive(body, comment).map_err(other), Ok);
                }
            }
        }
    };
    check_semicolon(comment, &prefixes)?;
    Ok(prefixes)
}

/// Names of columns with addresses, at the head of tables such as DShield's.
const COLUMNS: [&str; 10] =
    ["start", "end", "ip", "ip_address", "ipaddress", "address", "network", "cidr", "prefix", "netmask"];

/// Whether a line is the head of a table: names of columns, and nothing that may be an address.
pub(super) fn is_head(line: &str) -> bool {
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '_' | '-'));
    let is_column = |word: &str| COLUMNS.iter().any(|name| word.eq_ignore_ascii_case(name));
    words(line).nth(1).is_some() && words(line).all(is_name) && words(line).any(is_column)
}

/// Reads a text that is one address, prefix or range, and nothing else.
fn whole(text: &str) -> Result<Vec<IpNet>, Bad> {
    match range_at_start(text)? {
        Some((range, "")) => Ok(range),
        Some(_) => Err(bad(0, NO_ADDRESS, CIDR_HELP)),
        None => net(text).map(|of| vec![of]),
    }
}

/// The words of a text, without the quotes that CSV has around them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.map(|word| word.trim_matches('"')).filter(|word| !word.is_empty())
}

/// Reads an address, a prefix, or an address with a netmask.
fn net(text: &str) -> Result<IpNet, Bad> {
    if let Some((address, mask)) = text.split_once('/')
        && mask.contains('.')
    {
        let at = address.len() + 1;
        let address: Ipv4Addr = address.parse().map_err(|_| bad(0, NO_ADDRESS, CIDR_HELP))?;
        let length = mask.parse().ok().and_then(mask_length);
        let length = length.ok_or(bad(at, "this is not a netmask", "write the length, as in 192.0.2.0/24"))?;
        return IpNet::new(address.into(), length).map(|of| of.trunc()).map_err(|_| bad(0, NO_ADDRESS, CIDR_HELP));
    }
    parse_cidr_of_any_bits(text).map_err(|error| match error.span.start {
        0 => bad(0, NO_ADDRESS, CIDR_HELP),
        start => bad(start, "this is not a prefix length", "lengths are 0 to 32 in IPv4, and 0 to 128 in IPv6"),
    })
}

/// Returns the prefix length of a netmask, whose ones stand before its zeros.
fn mask_length(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    let length = bits.leading_ones();
    (length + bits.trailing_zeros() == 32 || bits == u32::MAX).then(|| u8::try_from(length).ok())?
}

/// Reads an address of a range. Octets may have zeros before them where all four have three digits, as eMule writes them.
fn edge(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0; 4];
    let mut padded = text.split('.');
    for octet in &mut octets {
        let digits = padded.next().filter(|of| of.len() == 3 && of.bytes().all(|byte| byte.is_ascii_digit()))?;
        *octet = digits.parse().ok()?;
    }
    padded.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

/// Splits a range into the fewest prefixes.
fn split(first: IpAddr, last: IpAddr) -> Result<Vec<IpNet>, Bad> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            Ok(IpSubnets::from(Ipv4Subnets::new(first, last, 0)).collect())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            Ok(IpSubnets::from(Ipv6Subnets::new(first, last, 0)).collect())
        }
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
            Err(bad(0, "this range ends before it begins", RANGE_HELP))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            Err(bad(0, "this range begins in one family and ends in the other", RANGE_HELP))
        }
    }
}

/// Reads `FIRST-LAST` at the start of a text, and returns what follows it. Returns none where no range stands there.
fn range_at_start(body: &str) -> Result<Option<(Vec<IpNet>, &str)>, Bad> {
    let Some((left, right)) = body.split_once('-') else { return Ok(None) };
    let Some(first) = edge(left.trim().trim_matches('"')) else { return Ok(None) };
    let last = right.trim_start_matches(|c: char| c.is_whitespace() || c == '"');
    let (last, rest) = last.split_at(last.find(|c: char| c.is_whitespace() || c == ',').unwrap_or(last.len()));
    let last = last.trim_matches('"');
    if let Some(last) = edge(last) {
        return Ok(Some((split(first, last)?, rest)));
    }
    // A dash with blanks around it may begin a remark.
    let is_remark = left.ends_with(char::is_whitespace) && !last.starts_with(|c: char| c.is_ascii_digit() || c == ':');
    if is_remark { Ok(None) } else { Err(bad(0, "this is not a range of two addresses", RANGE_HELP)) }
}

/// Refuses the line of an eMule filter whose access level lets its addresses pass.
fn check_level(rest: &str) -> Result<(), Bad> {
    let level = rest.trim_start().strip_prefix(',').and_then(|rest| rest.split(',').next()?.trim().parse::<u32>().ok());
    if level.is_some_and(|level| level >= PASSING_LEVEL) {
        return Err(bad(0, "its access level of 127 or more lets these addresses pass", "leave the line out"));
    }
    Ok(())
}

/// Reads a line whose first word is an address or a prefix, by the words behind it.
fn first_word(of: IpNet, body: &str) -> Result<Vec<IpNet>, Bad> {
    let mut rest = words(body).skip(1).peekable();
    let Some(&second) = rest.peek() else { return Ok(vec![of]) };
    if second.starts_with('/') {
        return Err(bad(0, "a blank stands before the prefix length", CIDR_HELP));
    }
    let mut prefixes = vec![of];
    if words(body).next().is_some_and(|first| !first.contains('/')) {
        if let Some(last) = edge(second) {
            prefixes = pair(of.addr(), last, words(body).nth(2))?;
            rest.next();
        } else if is_length(of, second) {
            let help = "write the length as in 192.0.2.0/24, or a remark behind a #";
            return Err(bad(0, "the number behind this address may be a prefix length", help));
        } else if is_of_hosts_file(of.addr()) && second.contains(|c: char| c.is_ascii_alphabetic()) {
            let help = "packets have addresses, not names: take a list of addresses";
            return Err(bad(0, "this is a line of a hosts file, which names hosts", help));
        }
    }
    check_rest(rest, &prefixes)?;
    Ok(prefixes)
}

/// Whether a number behind an address may be the length of its prefix. Lists of reports have counts there.
fn is_length(address: IpNet, word: &str) -> bool {
    word.parse().is_ok_and(|length: u8| {
        let is_network = IpNet::new(address.addr(), length).is_ok_and(|of| of.network() == address.addr());
        length < address.max_prefix_len() && is_network
    })
}

/// Whether hosts files send names to this address.
fn is_of_hosts_file(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Reads two addresses beside each other: the edges of the prefix whose length follows, or an address and its netmask. What
/// else they may be is not certain.
fn pair(first: IpAddr, second: IpAddr, third: Option<&str>) -> Result<Vec<IpNet>, Bad> {
    if let Some(length) = third.and_then(|word| word.parse::<u8>().ok())
        && let Ok(of) = IpNet::new(first, length)
        && (of.network(), of.broadcast()) == (first, second)
    {
        return Ok(vec![of]);
    }
    if let (IpAddr::V4(address), IpAddr::V4(mask)) = (first, second)
        && mask.octets()[0] == 255
        && mask != Ipv4Addr::BROADCAST
        && address.octets()[0] < 224
        && let Some(of) = mask_length(mask).and_then(|length| IpNet::new(first, length).ok())
    {
        return Ok(vec![of.trunc()]);
    }
    Err(bad(0, "two addresses stand in this line, which may be a range", RANGE_HELP))
}

/// Refuses words that name sources which the line was not read as.
fn check_rest<'a>(mut rest: impl Iterator<Item = &'a str>, prefixes: &[IpNet]) -> Result<(), Bad> {
    if rest.any(|word| names_more(word, prefixes)) {
        return Err(bad(0, "another address stands in this line", RANGE_HELP));
    }
    Ok(())
}

/// Whether a word names a source outside of these prefixes.
fn names_more(word: &str, prefixes: &[IpNet]) -> bool {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/' | '-');
    let word = word.trim_matches(|c: char| !is_part(c) || matches!(c, '-' | '/')).trim_end_matches('.');
    if !word.contains(['.', ':']) || !word.contains(|c: char| c.is_ascii_hexdigit()) {
        return false;
    }
    let range = || word.rsplit_once(':').map_or(word, |(_, range)| range);
    match net(word) {
        Ok(of) => !prefixes.iter().any(|prefix| prefix.contains(&of)),
        Err(_) => [word, range()].into_iter().any(|text| matches!(range_at_start(text), Ok(Some(_)))),
    }
}

/// Refuses a semicolon that stands between two entries.
fn check_semicolon(comment: &str, prefixes: &[IpNet]) -> Result<(), Bad> {
    let next = comment.strip_prefix(';').map(|rest| rest.split(';').next().unwrap_or(rest));
    match next.and_then(|rest| words(rest).next()) {
        Some(word) if names_more(word, prefixes) => Err(bad(0, "another address stands in this line", RANGE_HELP)),
        Some(_) | None => Ok(()),
    }
}

/// Reads a line of PeerGuardian, `NAME:FIRST-LAST`. The name may hold anything, colons and marks of comments too.
fn named_range(line: &str) -> Result<Option<Vec<IpNet>>, Bad> {
    let Some((_, range)) = line.rsplit_once(':') else { return Ok(None) };
    match range_at_start(range) {
        Ok(Some((prefixes, ""))) => Ok(Some(prefixes)),
        Ok(_) => Ok(None),
        Err(_) if range.contains('-') && range.starts_with(|c: char| c.is_ascii_digit()) => {
            Err(bad(0, "this is not a range of two addresses", RANGE_HELP))
        }
        Err(_) => Ok(None),
    }
}

/// Reads a directive of a web server: `deny NET;` of nginx, `Deny from NET…` and `Require not ip NET…` of Apache.
fn directive(body: &str, comment: &str) -> Result<Vec<IpNet>, Bad> {
    const HELP: &str = "of directives, those that deny addresses are read";
    let lower = body.to_ascii_lowercase();
    let mut known = lower.split_whitespace();
    let skipped = match (known.next(), known.next(), known.next()) {
        (Some("deny"), Some("from"), Some(_)) => 2,
        (Some("require"), Some("not"), Some("ip")) => 3,
        (Some("deny"), Some(_), None) => 1,
        _ => return Err(bad(0, NO_ADDRESS, CIDR_HELP)),
    };
    let is_over = comment.trim_start_matches(';').trim_start();
    if !is_over.is_empty() && !is_over.starts_with('#') && !comment.starts_with('#') {
        return Err(bad(0, "another directive stands in this line", HELP));
    }
    let nets =
        words(body).skip(skipped).map(|word| net(word).map_err(|_| bad(0, "this directive names no address", HELP)));
    nets.collect()
}

/// The text of an entry's prefix, which a line of JSON has within; none where that tells of the list.
///
/// # Errors
/// What is wrong with it, in words.
pub fn prefix_text(entry: &str) -> Result<Option<Cow<'_, str>>, &'static str> {
    if !entry.starts_with('{') {
        return Ok(Some(Cow::Borrowed(entry)));
    }
    if entry.len() > JSON_BYTES_MAX {
        return Err("this line of JSON is longer than 65536 bytes");
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(entry).map_err(|_| "this is no JSON object")?;
    if object.get("type").and_then(serde_json::Value::as_str) == Some(METADATA) {
        return Ok(None);
    }
    let (key, prefix) = PREFIX_KEYS
        .iter()
        .find_map(|key| Some((*key, object.get(*key)?.as_str()?.trim())))
        .ok_or("this JSON object has no prefix")?;
    let read = whole(prefix).unwrap_or_default();
    for (other, value) in object.iter().filter(|(other, _)| *other != key) {
        let extends = EXTENT_KEYS.iter().any(|end| other.to_ascii_lowercase().ends_with(end)) || *other == "prefix";
        if extends && !prefix.contains(['/', '-']) && (value.is_u64() || is_length_text(value)) {
            return Err("this JSON object has its prefix in several fields");
        }
        if value.as_str().is_some_and(|text| names_more(text.trim(), &read)) {
            return Err("this JSON object has another address too");
        }
    }
    Ok(Some(Cow::Owned(prefix.to_owned())))
}

fn is_length_text(value: &serde_json::Value) -> bool {
    value.as_str().is_some_and(|text| text.trim_start_matches('/').parse::<u8>().is_ok())
}
