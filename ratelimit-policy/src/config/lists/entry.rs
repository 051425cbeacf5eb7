//! Parser of one line of a list file, in all forms of published lists. A line is read in full or refused, so it is
//! never read as fewer addresses than it names. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use super::super::network::{CIDR_HELP, parse_cidr_of_any_bits};
use super::json::{COUNT_KEYS, prefix_text};

/// Words before a prefix length.
const EXTENT_WORDS: [&str; 9] =
    ["mask", "netmask", "cidr", "prefix", "prefixlen", "prefix_length", "length", "len", "bits"];
/// Words that exclude some addresses of an entry.
pub(super) const EXCEPTING: [&str; 7] =
    ["except", "excepting", "exception", "excluding", "exclude", "without", "nomatch"];
/// Words that follow an entry in maps and access files, and permit its addresses.
pub(super) const LETTING_PASS: [&str; 13] = [
    "ok",
    "good",
    "allow",
    "allowed",
    "accept",
    "permit",
    "pass",
    "whitelist",
    "whitelisted",
    "ignore",
    "dunno",
    "no",
    "off",
];
/// Minimum access level at which eMule permits addresses instead of blocking them.
const PASSING_LEVEL: u32 = 127;

const RANGE_HELP: &str = "write a range as 192.0.2.0-192.0.2.255, or each address in a line of its own";
const LENGTH_HELP: &str = "write the length as in 192.0.2.0/24, or a remark behind a #";
const NO_ADDRESS: &str = "this is no address, and no prefix";

/// An error in a line. Its texts do not quote the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct Bad {
    /// Byte offset in the line's text.
    pub(super) at: usize,
    pub(super) problem: &'static str,
    pub(super) help: &'static str,
}

const fn bad(at: usize, problem: &'static str, help: &'static str) -> Bad {
    Bad { at, problem, help }
}

/// Returns the prefixes of a line. A JSON line with metadata about the list has none.
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

/// Names of address columns in the header lines of tables such as DShield's.
const COLUMNS: [&str; 10] =
    ["start", "end", "ip", "ip_address", "ipaddress", "address", "network", "cidr", "prefix", "netmask"];

/// Names of columns that extend the address of another column to a prefix or range.
const EXTENT_COLUMNS: [&str; 14] = [
    "prefixlen",
    "prefix_length",
    "prefixlength",
    "prefix_len",
    "mask",
    "netmask",
    "bits",
    "length",
    "len",
    "end",
    "last",
    "stop",
    "end_ip",
    "wildcard",
];

/// Returns the name of the column that extends the lines' addresses. DShield's table, with the columns start, end and
/// length, has none, because its lines are read whole.
pub(super) fn extent_column(head: &str) -> Option<&'static str> {
    let columns: Vec<&str> = words(head).take(3).collect();
    let is_start = |name: &&str| ["start", "start_ip", "first", "from"].iter().any(|of| name.eq_ignore_ascii_case(of));
    let counts = words(head).any(|name| is_among(&COUNT_KEYS, name)) && columns.iter().any(is_start);
    if counts {
        return Some("count");
    }
    // A pair of addresses is read or refused line by line.
    let is_range = columns.first().is_some_and(is_start);
    if is_range {
        return None;
    }
    EXTENT_COLUMNS.into_iter().find(|column| words(head).any(|name| name.eq_ignore_ascii_case(column)))
}

/// Returns true if a line is the header of a table: it has column names, and no word that may be an address.
pub(super) fn is_head(line: &str) -> bool {
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '_' | '-'));
    let is_column = |word: &str| COLUMNS.iter().any(|name| word.eq_ignore_ascii_case(name));
    words(line).nth(1).is_some() && words(line).all(is_name) && words(line).any(is_column)
}

/// Parses a text that is exactly one address, prefix or range.
pub(super) fn whole(text: &str) -> Result<Vec<IpNet>, Bad> {
    match range_at_start(text)? {
        Some((range, "")) => Ok(range),
        Some(_) => Err(bad(0, NO_ADDRESS, CIDR_HELP)),
        None => net(text).map(|of| vec![of]),
    }
}

/// Yields the words of a text, without the quotes of CSV.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.map(|word| word.trim_matches(['"', '\''])).filter(|word| !word.is_empty())
}

/// Parses an address, a prefix, or an address with a netmask.
fn net(text: &str) -> Result<IpNet, Bad> {
    if let Some((address, length)) = text.split_once('/')
        && address.parse::<Ipv6Addr>().is_ok_and(|of| of.to_ipv4_mapped().is_some())
        && length.parse::<u8>().is_ok_and(|length| length < 96)
    {
        let at = address.len() + 1;
        return Err(bad(at, "this length is less than the 96 bits before an IPv4 address", CIDR_HELP));
    }
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

/// Returns the prefix length of a netmask. None if a one follows a zero in it.
fn mask_length(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    let length = bits.leading_ones();
    (length + bits.trailing_zeros() == 32 || bits == u32::MAX).then(|| u8::try_from(length).ok())?
}

/// Parses an address of a range. Octets may have leading zeros if all four have three digits, as in eMule's files.
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

/// Parses `FIRST-LAST` at the start of a text, and returns the text that follows. None if the text does not start
/// with a range.
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

/// Fails for a line of an eMule filter with an access level that permits its addresses.
fn check_level(rest: &str) -> Result<(), Bad> {
    let level = rest.trim_start().strip_prefix(',').and_then(|rest| rest.split(',').next()?.trim().parse::<u32>().ok());
    if level.is_some_and(|level| level >= PASSING_LEVEL) {
        return Err(bad(0, "its access level of 127 or more lets these addresses pass", "leave the line out"));
    }
    Ok(())
}

/// Parses a line that begins with an address or prefix. The words behind it may extend it or make the line invalid.
fn first_word(of: IpNet, body: &str) -> Result<Vec<IpNet>, Bad> {
    let mut rest = words(body).skip(1).peekable();
    let Some(&second) = rest.peek() else { return Ok(vec![of]) };
    if second.starts_with('/') {
        return Err(bad(0, "a blank stands before the prefix length", CIDR_HELP));
    }
    check_exceptions(body)?;
    let mut prefixes = vec![of];
    if words(body).next().is_some_and(|first| !first.contains('/')) {
        check_extent(body)?;
        if let Some(last) = edge(second) {
            prefixes = pair(of.addr(), last, words(body).nth(2))?;
            rest.next();
        } else if is_length(of, second) {
            return Err(bad(0, "the number behind this address may be a prefix length", LENGTH_HELP));
        } else if is_of_hosts_file(of.addr()) && second.contains(|c: char| c.is_ascii_alphabetic()) {
            let help = "packets have addresses, not names: take a list of addresses";
            return Err(bad(0, "this is a line of a hosts file, which names hosts", help));
        }
    }
    check_rest(rest, &prefixes)?;
    Ok(prefixes)
}

/// Fails if words behind an entry exclude some addresses or permit all of them.
fn check_exceptions(body: &str) -> Result<(), Bad> {
    const HELP: &str = "write the other addresses alone, or leave the line out";
    if words(body).skip(1).any(|word| word.starts_with('!') || is_among(&EXCEPTING, word)) {
        return Err(bad(0, "this line excepts some of its addresses", HELP));
    }
    if words(body).nth(1).is_some_and(|word| is_among(&LETTING_PASS, word)) {
        return Err(bad(0, "this line lets its addresses pass", "leave the line out"));
    }
    Ok(())
}

/// Fails if words behind an address extend it: `netmask 24`, `(/24)`, `len=24`.
fn check_extent(body: &str) -> Result<(), Bad> {
    let is_number = |word: &str| word.trim_start_matches('/').parse::<u8>().is_ok_and(|length| length <= 128);
    let is_part = |c: char| matches!(c, '(' | ')' | '[' | ']' | '\'' | '=' | ':');
    let rest = || words(body).skip(1).flat_map(|word| word.split(is_part)).filter(|word| !word.is_empty());
    let is_length = rest().any(|word| word.starts_with('/') && is_number(word));
    let is_named = rest().zip(rest().skip(1)).any(|(name, number)| is_among(&EXTENT_WORDS, name) && is_number(number));
    if is_length || is_named {
        return Err(bad(0, "the number behind this address may be a prefix length", LENGTH_HELP));
    }
    Ok(())
}

pub(super) fn is_among(names: &[&str], word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    names.iter().any(|name| name.eq_ignore_ascii_case(word))
}

/// Returns true if a number behind an address may be its prefix length. Lists of reports have counts there.
fn is_length(address: IpNet, word: &str) -> bool {
    word.parse().is_ok_and(|length: u8| {
        let is_network = IpNet::new(address.addr(), length).is_ok_and(|of| of.network() == address.addr());
        length < address.max_prefix_len() && is_network
    })
}

/// Returns true if hosts files map names to this address.
fn is_of_hosts_file(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback() || address == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// Parses two neighbouring addresses: the ends of a prefix with its length behind them, or an address and its
/// netmask. Anything else is ambiguous and fails.
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

/// Fails if a word names sources outside `prefixes`.
fn check_rest<'a>(mut rest: impl Iterator<Item = &'a str>, prefixes: &[IpNet]) -> Result<(), Bad> {
    if rest.any(|word| names_more(word, prefixes)) {
        return Err(bad(0, "another address stands in this line", RANGE_HELP));
    }
    Ok(())
}

/// Marks that separate words of a line.
const BETWEEN: [char; 8] = ['|', '=', '(', ')', '[', ']', '<', '>'];

/// Returns true if a word names a source outside `prefixes`.
pub(super) fn names_more(word: &str, prefixes: &[IpNet]) -> bool {
    if word.contains(BETWEEN) {
        return word.split(BETWEEN).any(|part| names_more(part, prefixes));
    }
    if word.contains('*') {
        return word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'*'));
    }
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/' | '-');
    let word = word.trim_matches(|c: char| !is_part(c) || matches!(c, '-' | '/')).trim_end_matches('.');
    if !word.contains(['.', ':']) || !word.contains(|c: char| c.is_ascii_hexdigit()) {
        return false;
    }
    let range = || word.rsplit_once(':').map_or(word, |(_, range)| range);
    // An address may have a port.
    let host = word.split_once(':').map_or(word, |(host, _)| if host.contains('.') { host } else { word });
    match net(word).or_else(|_| net(host)) {
        Ok(of) => !prefixes.iter().any(|prefix| prefix.contains(&of)),
        Err(_) => [word, range()].into_iter().any(|text| matches!(range_at_start(text), Ok(Some(_)))),
    }
}

/// Fails if a semicolon separates two entries.
fn check_semicolon(comment: &str, prefixes: &[IpNet]) -> Result<(), Bad> {
    let next = comment.strip_prefix(';').map(|rest| rest.split(';').next().unwrap_or(rest));
    match next.and_then(|rest| words(rest).next()) {
        // Semicolons may separate the columns of a table.
        Some(word) if prefixes.iter().any(|of| of.prefix_len() == of.max_prefix_len() && is_length(*of, word)) => {
            Err(bad(0, "the number behind this address may be a prefix length", LENGTH_HELP))
        }
        Some(word) if names_more(word, prefixes) => Err(bad(0, "another address stands in this line", RANGE_HELP)),
        Some(_) | None => Ok(()),
    }
}

/// Parses a line of PeerGuardian, `NAME:FIRST-LAST`. The name may hold anything, even colons and comment marks.
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

/// Parses a directive of a web server: nginx's `deny NET;`, or Apache's `Deny from NET…` and `Require not ip NET…`.
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
    let nets: Result<Vec<IpNet>, Bad> = words(body)
        .skip(skipped)
        .map(|word| net(word).map_err(|_| bad(0, "this directive names no address", HELP)))
        .collect();
    let nets = nets?;
    if let [IpNet::V4(address), IpNet::V4(mask)] = nets.as_slice()
        && mask.addr().octets()[0] == 255
        && mask_length(mask.addr()).is_some_and(|length| length < 32)
        && address.prefix_len() == 32
    {
        return Err(bad(
            0,
            "the second address of this directive may be a netmask",
            "write the length, as in 192.0.2.0/24",
        ));
    }
    Ok(nets)
}
