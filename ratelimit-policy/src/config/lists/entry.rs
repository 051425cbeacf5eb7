//! One line of a list file, in each form that published lists have. A line is read in full or refused: no line is taken for
//! fewer addresses than it names. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};

use super::super::network::{CIDR_HELP, parse_cidr_of_any_bits};
use super::json::{COUNT_KEYS, prefix_text};

/// Words before the length of a prefix.
const EXTENT_WORDS: [&str; 9] =
    ["mask", "netmask", "cidr", "prefix", "prefixlen", "prefix_length", "length", "len", "bits"];
/// Words that except some addresses of an entry.
pub(super) const EXCEPTING: [&str; 7] =
    ["except", "excepting", "exception", "excluding", "exclude", "without", "nomatch"];
/// Words right behind an entry by which maps and access files let it pass.
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
/// eMule lets addresses pass whose access level is this or higher.
const PASSING_LEVEL: u32 = 127;

const RANGE_HELP: &str = "write a range as 192.0.2.0-192.0.2.255, or each address in a line of its own";
const LENGTH_HELP: &str = "write the length as in 192.0.2.0/24, or a remark behind a #";
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

/// Names of columns that say how much more than the address in another column is meant.
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

/// Returns the name of the column by which the lines of a table mean more than an address. Of DShield's table, whose
/// columns are start, end and length, lines are read whole.
pub(super) fn extent_column(head: &str) -> Option<&'static str> {
    let columns: Vec<&str> = words(head).take(3).collect();
    let is_start = |name: &&str| ["start", "start_ip", "first", "from"].iter().any(|of| name.eq_ignore_ascii_case(of));
    let counts = words(head).any(|name| is_among(&COUNT_KEYS, name)) && columns.iter().any(is_start);
    if counts {
        return Some("count");
    }
    // A range beside each other is read or refused in each line.
    let is_range = columns.first().is_some_and(is_start);
    if is_range {
        return None;
    }
    EXTENT_COLUMNS.into_iter().find(|column| words(head).any(|name| name.eq_ignore_ascii_case(column)))
}

/// Whether a line is the head of a table: names of columns, and nothing that may be an address.
pub(super) fn is_head(line: &str) -> bool {
    let is_name = |word: &str| word.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '_' | '-'));
    let is_column = |word: &str| COLUMNS.iter().any(|name| word.eq_ignore_ascii_case(name));
    words(line).nth(1).is_some() && words(line).all(is_name) && words(line).any(is_column)
}

/// Reads a text that is one address, prefix or range, and nothing else.
pub(super) fn whole(text: &str) -> Result<Vec<IpNet>, Bad> {
    match range_at_start(text)? {
        Some((range, "")) => Ok(range),
        Some(_) => Err(bad(0, NO_ADDRESS, CIDR_HELP)),
        None => net(text).map(|of| vec![of]),
    }
}

/// The words of a text, without the quotes that CSV has around them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.map(|word| word.trim_matches(['"', '\''])).filter(|word| !word.is_empty())
}

/// Reads an address, a prefix, or an address with a netmask.
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

/// Refuses words behind an entry that take addresses from it, or let it pass.
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

/// Refuses words behind an address that say how much more is meant: `netmask 24`, `(/24)`, `len=24`.
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

/// Marks between which words of a line may stand.
const BETWEEN: [char; 8] = ['|', '=', '(', ')', '[', ']', '<', '>'];

/// Whether a word names a source outside of these prefixes.
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

/// Refuses a semicolon that stands between two entries.
fn check_semicolon(comment: &str, prefixes: &[IpNet]) -> Result<(), Bad> {
    let next = comment.strip_prefix(';').map(|rest| rest.split(';').next().unwrap_or(rest));
    match next.and_then(|rest| words(rest).next()) {
        // A table whose columns semicolons part.
        Some(word) if prefixes.iter().any(|of| of.prefix_len() == of.max_prefix_len() && is_length(*of, word)) => {
            Err(bad(0, "the number behind this address may be a prefix length", LENGTH_HELP))
        }
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
