//! The common and combined formats of nginx, Apache and Traefik. A virtual host or `X-Forwarded-For` may come first.

use std::net::IpAddr;

use super::time::Stamp;

/// Choice of the source among the addresses in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The source is the only address.
    Alone,
    /// The source connected and forwarded for others, which are named too.
    Forwards,
    /// The source is the last public address in a forwarding header; the address that connected is not named.
    Forwarded,
    /// The source is the second of two addresses.
    Second,
}

/// Source and time of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) source: IpAddr,
    pub(super) told: Told,
    pub(super) stamp: Stamp,
}

/// Time of the last line, cached because the next line mostly has the same text.
#[derive(Debug, Default)]
pub(super) struct Last {
    text: Vec<u8>,
    stamp: Option<Stamp>,
}

impl Last {
    fn stamp(&mut self, text: &[u8]) -> Option<Stamp> {
        if self.stamp.is_none() || self.text != text {
            self.stamp = Stamp::common(text).or_else(|| Stamp::iso(text));
            self.text.clear();
            self.text.extend_from_slice(text);
        }
        self.stamp
    }
}

/// Maximum number of bracketed fields before the request that are examined.
const BRACKETS_MAX: usize = 8;

/// Reads one line. Fails with a clause on what is wrong.
pub(super) fn line(text: &[u8], last: &mut Last) -> Result<Line, String> {
    let bracketed = before_request(text, last).or_else(|| before_quotes(text));
    let (head, stamp) = bracketed.ok_or_else(|| match words(text).next().and_then(address) {
        Some(_) => "it has no time in brackets with a request behind it",
        None => "it is not a request in a known format",
    })?;
    let (source, told) = source(head)?;
    Ok(Line { source, told, stamp: stamp.ok_or("its time is not as in 10/Oct/2000:13:55:36 -0700")? })
}

/// Finds the time right before the request, and the text before it. A user name may contain blanks and brackets.
fn before_request<'a>(text: &'a [u8], last: &mut Last) -> Option<(&'a [u8], Option<Stamp>)> {
    let end = position(text, b"] \"")?;
    let begin = text[..end].iter().rposition(|byte| *byte == b'[')?;
    Some((&text[..begin], last.stamp(&text[begin + 1..end])))
}

/// Finds the last time in brackets before the request, if other fields are between them.
fn before_quotes(text: &[u8]) -> Option<(&[u8], Option<Stamp>)> {
    let mut quotes = text.iter().enumerate().filter(|(_, byte)| **byte == b'"').map(|(at, _)| at);
    let quote = quotes.nth(if text.starts_with(b"\"") { 2 } else { 0 })?;
    let ends = text[..quote].iter().enumerate().rev().filter(|(_, byte)| **byte == b']').map(|(at, _)| at);
    ends.take(BRACKETS_MAX).find_map(|end| {
        let begin = text[..end].iter().rposition(|byte| *byte == b'[')?;
        let stamp = Stamp::common(&text[begin + 1..end]).or_else(|| Stamp::iso(&text[begin + 1..end]));
        // HAProxy's times have no offset, and another format.
        let stamp = stamp.filter(|stamp| stamp.has_offset())?;
        Some((&text[..begin], Some(stamp)))
    })
}

/// Determines the source from the text before the time.
fn source(head: &[u8]) -> Result<(IpAddr, Told), String> {
    if let Some(quoted) = head.strip_prefix(b"\"") {
        let end = quoted.iter().position(|byte| *byte == b'"').ok_or("a quotation mark is not closed")?;
        let mut behind = words(&quoted[end + 1..]);
        return of_list(forwarded_for(&quoted[..end]), behind.next().and_then(address)).ok_or_else(|| wrong(quoted));
    }
    let mut all = words(head);
    let first = all.next().ok_or("nothing is before its time")?;
    if first.ends_with(b",") {
        return of_words(head).ok_or_else(|| wrong(first));
    }
    let second = all.next().unwrap_or_default();
    let words_behind = all.count();
    match (address(first), address(second)) {
        (Some(source), None) if second.ends_with(b",") => Ok((source, Told::Forwards)),
        (Some(source), None) => Ok((source, Told::Alone)),
        // lighttpd's `%h %V %u` has three words: client, requested host, user. With a virtual host first there are
        // four.
        (Some(source), Some(_)) if words_behind == 1 => Ok((source, Told::Alone)),
        (Some(_), Some(source)) => Ok((source, Told::Second)),
        // The first word is a virtual host, or `-` for no `X-Forwarded-For`.
        (None, Some(source)) => Ok((source, Told::Alone)),
        (None, None) if second.ends_with(b",") => of_words(&head[first.len()..]).ok_or_else(|| wrong(first)),
        (None, None) => Err(wrong(first)),
    }
}

/// Parses a forwarding list, `192.0.2.7, 10.0.0.1 …`, optionally followed by the address that connected.
fn of_words(head: &[u8]) -> Option<(IpAddr, Told)> {
    let mut list = words(head);
    let (mut last, mut is_last) = (None, false);
    for word in list.by_ref() {
        is_last = !word.ends_with(b",");
        last = nearer(last, address(word.strip_suffix(b",").unwrap_or(word)));
        if is_last {
            break;
        }
    }
    of_list(last, list.next().filter(|_| is_last).and_then(address))
}

/// Chooses between a forwarded address and the address that connected, if either is known.
fn of_list(forwarded: Option<IpAddr>, connected: Option<IpAddr>) -> Option<(IpAddr, Told)> {
    match (connected, forwarded) {
        (Some(source), Some(_)) => Some((source, Told::Forwards)),
        (Some(source), None) => Some((source, Told::Alone)),
        (None, forwarded) => forwarded.map(|source| (source, Told::Forwarded)),
    }
}

/// Returns the last public address of an `X-Forwarded-For`, or else the last address. A client can forge earlier ones.
pub(super) fn forwarded_for(list: &[u8]) -> Option<IpAddr> {
    list.split(|byte| *byte == b',').fold(None, |last, word| nearer(last, address(word.trim_ascii())))
}

fn nearer(last: Option<IpAddr>, next: Option<IpAddr>) -> Option<IpAddr> {
    match (last, next) {
        (Some(last), Some(next))
            if super::super::proxies::is_private(next) && !super::super::proxies::is_private(last) =>
        {
            Some(last)
        }
        (last, next) => next.or(last),
    }
}

/// Returns the address in a field, with or without a port or quotation marks. `::ffff:192.0.2.7`, which a dual-stack
/// server logs, becomes 192.0.2.7.
///
/// An IPv6 address and a port without brackets are separated only if there is one way to read them. That holds for
/// eight groups and a ninth, a port of five digits, or a port after an IPv4 address. `2001:db8::7:443` may be an
/// address and is read as one.
pub(super) fn address(word: &[u8]) -> Option<IpAddr> {
    // The second word of most lines is a dash, which needs no parser.
    if !word.iter().any(|byte| matches!(byte, b'.' | b':')) {
        return None;
    }
    let text = unquoted(std::str::from_utf8(word).ok()?);
    bare(text).or_else(|| bracketed(text)).or_else(|| before_port(text)).map(|source| source.to_canonical())
}

/// Returns the address in a field that a format defines as address and port, as load balancers and HAProxy write it. In
/// `2001:db8::7:443` the port is 443. A field without a port is read by [`address`].
pub(super) fn address_and_port(word: &[u8]) -> Option<IpAddr> {
    let text = unquoted(std::str::from_utf8(word).ok()?);
    bracketed(text).or_else(|| before_port(text)).map(|source| source.to_canonical()).or_else(|| address(word))
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// Parses `192.0.2.7`, `2001:db8::7` or `fe80::7%eth0`.
fn bare(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        Some((text, zone)) => text.parse().ok().filter(|source: &IpAddr| source.is_ipv6() && is_zone(zone)),
        None => text.parse().ok(),
    }
}

/// Parses `[2001:db8::7]`, `[2001:db8::7]:443` or `[fe80::7%eth0]:443`. lighttpd and a few others write IPv4 in
/// brackets too.
fn bracketed(text: &str) -> Option<IpAddr> {
    let (inner, behind) = text.strip_prefix('[')?.split_once(']')?;
    let is_whole = behind.is_empty() || behind.strip_prefix(':').is_some_and(is_port);
    bare(inner).filter(|_| is_whole)
}

/// Parses `192.0.2.7:443`, `2001:db8:0:0:0:0:0:7:443` or `fe80::7%eth0:443`.
fn before_port(text: &str) -> Option<IpAddr> {
    let (before, port) = text.rsplit_once(':')?;
    bare(before).filter(|_| is_port(port))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn is_zone(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@'))
}

fn wrong(word: &[u8]) -> String {
    match std::str::from_utf8(word) {
        Ok(host) if host.chars().all(|c| c.is_ascii_graphic()) && (1..64).contains(&host.len()) => {
            format!("`{host}` is not an address (log addresses, not names: HostnameLookups Off)")
        }
        Ok(_) | Err(_) => "it begins with no address".to_owned(),
    }
}

/// Splits a text at blanks and tabs.
pub(super) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty())
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &[u8]) -> Result<Line, String> {
        super::line(text, &mut Last::default())
    }

    const REST: &str = r#"[10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 2326"#;

    #[test]
    fn the_source_is_who_connected_where_the_line_names_it() {
        for (head, source, told) in [
            ("192.0.2.7 - -", "192.0.2.7", Told::Alone),
            ("192.0.2.7 - \"a b\" [x]", "192.0.2.7", Told::Alone),
            ("::ffff:192.0.2.7 - frank", "192.0.2.7", Told::Alone),
            ("2001:db8::7 - -", "2001:db8::7", Told::Alone),
            ("192.0.2.7:4711 - -", "192.0.2.7", Told::Alone),
            ("[2001:db8::7]:4711 - -", "2001:db8::7", Told::Alone),
            ("fe80::7%eth0 - -", "fe80::7", Told::Alone),
            ("192.0.2.7 198.51.100.1 -", "192.0.2.7", Told::Alone),
            ("2001:db8::7 [2001:db8::1]:8080 -", "2001:db8::7", Told::Alone),
            ("www.example.org:443 192.0.2.7 - -", "192.0.2.7", Told::Alone),
            ("www.example.org 192.0.2.7 - -", "192.0.2.7", Told::Alone),
            ("198.51.100.1:80 192.0.2.7 - -", "192.0.2.7", Told::Second),
            ("- 192.0.2.7 - -", "192.0.2.7", Told::Alone),
            ("\"-\" 192.0.2.7 - -", "192.0.2.7", Told::Alone),
            ("\"203.0.113.9, 10.0.0.1\" 192.0.2.7 - -", "192.0.2.7", Told::Forwards),
            ("203.0.113.9, 10.0.0.1 192.0.2.7 - -", "192.0.2.7", Told::Forwards),
            ("192.0.2.7 203.0.113.9, 10.0.0.1 - -", "192.0.2.7", Told::Forwards),
            ("203.0.113.9, 10.0.0.1 - -", "203.0.113.9", Told::Forwarded),
            ("203.0.113.9, unknown, 198.51.100.8, 10.0.0.1 - -", "198.51.100.8", Told::Forwarded),
            ("www.example.org 203.0.113.9, 10.0.0.1 - -", "203.0.113.9", Told::Forwarded),
            ("\"203.0.113.9, 10.0.0.1\" - - -", "203.0.113.9", Told::Forwarded),
            ("10.0.0.2, 10.0.0.1 - -", "10.0.0.1", Told::Forwarded),
        ] {
            let of = line(format!("{head} {REST}").as_bytes()).expect(head);
            assert_eq!((of.source.to_string().as_str(), of.told), (source, told), "{head}");
        }
    }

    #[test]
    fn addresses_and_ports_are_told_apart_in_every_form() {
        for (text, expected, expected_with_port) in [
            ("192.0.2.7", Some("192.0.2.7"), Some("192.0.2.7")),
            ("192.0.2.7:443", Some("192.0.2.7"), Some("192.0.2.7")),
            ("\"192.0.2.7:443\"", Some("192.0.2.7"), Some("192.0.2.7")),
            ("[2001:db8::7]:443", Some("2001:db8::7"), Some("2001:db8::7")),
            ("\"[2001:db8::7]:443\"", Some("2001:db8::7"), Some("2001:db8::7")),
            ("[2001:db8::7]", Some("2001:db8::7"), Some("2001:db8::7")),
            (
                "2001:db8:4538:1:bcf4:5264:e01c:f215:50000",
                Some("2001:db8:4538:1:bcf4:5264:e01c:f215"),
                Some("2001:db8:4538:1:bcf4:5264:e01c:f215"),
            ),
            (
                "2001:db8:4538:1:bcf4:5264:e01c:f215:80",
                Some("2001:db8:4538:1:bcf4:5264:e01c:f215"),
                Some("2001:db8:4538:1:bcf4:5264:e01c:f215"),
            ),
            // Five digits cannot be a group of an address.
            ("2001:db8::7:50000", Some("2001:db8::7"), Some("2001:db8::7")),
            // The format decides whether the last group is a port.
            ("2001:db8::7:443", Some("2001:db8::7:443"), Some("2001:db8::7")),
            ("::1:443", Some("::1:443"), Some("::1")),
            ("2001:db8::", Some("2001:db8::"), Some("2001:db8::")),
            ("::ffff:192.0.2.7", Some("192.0.2.7"), Some("192.0.2.7")),
            ("::ffff:192.0.2.7:443", Some("192.0.2.7"), Some("192.0.2.7")),
            ("[::ffff:192.0.2.7]:443", Some("192.0.2.7"), Some("192.0.2.7")),
            ("fe80::7%eth0", Some("fe80::7"), Some("fe80::7")),
            ("fe80::7%eth0:443", Some("fe80::7"), Some("fe80::7")),
            ("[fe80::7%eth0]:443", Some("fe80::7"), Some("fe80::7")),
            ("[fe80::7%25eth0.1]", Some("fe80::7"), Some("fe80::7")),
            ("192.0.2.7:65536", None, None),
            ("192.0.2.7:", None, None),
            ("192.0.2.7:443:443", None, None),
            ("[192.0.2.7", None, None),
            ("[2001:db8::7]443", None, None),
            ("2001:db8:1:2:3:4:5:6:7:443", None, None),
            ("192.0.2.7%eth0", None, None),
            ("fe80::7%", None, None),
            ("unix:", None, None),
            ("-", None, None),
        ] {
            let text_of = |source: Option<IpAddr>| source.map(|source| source.to_string());
            let both = (text_of(address(text.as_bytes())), text_of(address_and_port(text.as_bytes())));
            assert_eq!((both.0.as_deref(), both.1.as_deref()), (expected, expected_with_port), "{text}");
        }
    }

    #[test]
    fn other_fields_may_stand_between_the_time_and_the_request() {
        for between in ["[10/Oct/2000:13:55:36 -0700] www.example.org", "[10/Oct/2000:13:55:36 -0700] [pipe] 0.003"] {
            let of = line(format!("192.0.2.7 - [x] {between} \"GET /[a] HTTP/1.0\" 200 1").as_bytes()).expect(between);
            assert_eq!((of.source.to_string().as_str(), of.told), ("192.0.2.7", Told::Alone), "{between}");
        }
        assert!(line(br#"192.0.2.7:33317 [06/Feb/2009:12:14:14.655] web web/a 0/0 200 1 "GET /""#).is_err());
    }

    #[test]
    fn errors_in_a_line_are_reported() {
        for (text, part) in [
            ("x", "in a known format"),
            (r#"crawler.example - - [10/Oct/2000:13:55:36 -0700] "GET /""#, "`crawler.example` is not an address"),
            (r#"unix: - - [10/Oct/2000:13:55:36 -0700] "GET /""#, "`unix:` is not an address"),
            ("192.0.2.7 - - 10/Oct/2000", "no time in brackets"),
            (r#"192.0.2.7 - - [Oct 2000] "GET /""#, "its time is not as in"),
            (r#""192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "GET /""#, "is not closed"),
            (r#" [10/Oct/2000:13:55:36 -0700] "GET /""#, "nothing is before"),
        ] {
            let problem = line(text.as_bytes()).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
