//! Formats with fields at fixed positions: W3C extended (IIS, CloudFront), HAProxy's HTTP log, AWS load balancers,
//! Squid, Envoy.

use std::net::IpAddr;

use super::common::{Told, address, address_and_port, forwarded_for, words};
use super::time::{Stamp, millis};

/// Positions of the fields in a W3C extended log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    date: usize,
    time: usize,
    client: usize,
    took: Option<usize>,
}

impl Columns {
    /// Parses the names after `#Fields:`. Fails with a clause on which field is missing.
    pub(super) fn of(names: &[u8]) -> Result<Self, String> {
        let find = |name: &str| words(names).position(|word| word.eq_ignore_ascii_case(name.as_bytes()));
        let place = |name: &str| find(name).ok_or_else(|| format!("its #Fields have no {name}"));
        let (date, time, client) = (place("date")?, place("time")?, place("c-ip")?);
        Ok(Self { date, time, client, took: find("time-taken") })
    }

    /// Returns the source and time of a line's request. Date and time are in UTC and those of the request's end, so the
    /// duration is subtracted if the line has it.
    pub(super) fn line(&self, text: &[u8]) -> Result<(IpAddr, Stamp), String> {
        let field = |place| words(text).nth(place).unwrap_or_default();
        let stamp = Stamp::of_date_and_time(field(self.date), field(self.time));
        let source = address(field(self.client)).ok_or("its c-ip is not an address")?;
        let stamp = stamp.ok_or("its date and time are not as in 2026-10-10 13:55:36")?;
        let took = self.took.and_then(|place| taken_ms(field(place))).unwrap_or_default();
        Ok((source, stamp.earlier_by_ms(took).unwrap_or(stamp)))
    }
}

/// Returns the milliseconds of a time-taken field. CloudFront writes seconds with a fraction, IIS whole milliseconds.
fn taken_ms(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    if text.contains('.') { millis(text) } else { text.parse().ok() }
}

/// Parses HAProxy's `option httplog` and `option httpslog`: `192.0.2.7:33317 [06/Feb/2009:12:14:14.655] frontend … "GET
/// / HTTP/1.1"`, with or without TLS fields after the request.
pub(super) fn haproxy(text: &[u8]) -> Option<Result<(IpAddr, Stamp), String>> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    text[..at].contains(&b':').then_some(())?;
    let rest = text[at..].strip_prefix(b" [")?;
    let end = rest.iter().position(|byte| *byte == b']')?;
    let stamp = Stamp::common(&rest[..end])?;
    if !rest.contains(&b'"') {
        return Some(Err(
            "it is a line of HAProxy's TCP log, which has connections, not requests: `option httplog`".to_owned()
        ));
    }
    let source = address_and_port(&text[..at]);
    Some(source.map(|source| (source, stamp)).ok_or_else(|| "it begins with no address".to_owned()))
}

/// Index of the request among the fields of an application load balancer's line. The first field is the type.
const ALB_REQUEST_AT: usize = 12;

/// Parses a line of an application load balancer: `https 2018-07-02T22:23:00.186641Z app/name/id 192.0.2.7:2817 …`. A
/// classic one lacks the first word. The fields of client and target are always address and port, IPv6 without
/// brackets.
pub(super) fn load_balancer(text: &[u8]) -> Option<Result<(IpAddr, Stamp), String>> {
    if let Some(rest) = text.strip_prefix(b"tls 2.0 ") {
        Stamp::iso(words(rest).next()?)?;
        let wrong = "it is a TLS connection of a network load balancer, not a request: replay the server's own log";
        return Some(Err(wrong.to_owned()));
    }
    let types = [b"http ".as_slice(), b"https ", b"h2 ", b"grpcs ", b"ws ", b"wss "];
    let is_typed = types.iter().any(|word| text.starts_with(word));
    let mut fields = words(text).skip(usize::from(is_typed));
    let answered = Stamp::iso(fields.next()?)?;
    let (client, target) = (fields.nth(1)?, fields.next()?);
    if target != b"-" && address_and_port(target).is_none() {
        return None;
    }
    let source = address_and_port(client)?;
    if !is_typed && contains(text, b" \"- - - \"") {
        let wrong = "it is a TCP connection of a classic load balancer, not a request: replay the server's own log";
        return Some(Err(wrong.to_owned()));
    }
    // A request is logged when it is answered. A later field has the time of its arrival.
    let came = if is_typed { creation_time(text) } else { None };
    Some(Ok((source, came.unwrap_or(answered))))
}

/// Returns the request_creation_time of an application load balancer's line. Quoted fields before it may contain
/// blanks.
fn creation_time(text: &[u8]) -> Option<Stamp> {
    let mut quoted = quoted_fields(text);
    quoted.nth(ALB_REQUEST_AT)?;
    // user agent, cipher, protocol, target group, trace id, domain, certificate, priority, creation time
    Stamp::iso(quoted.nth(8)?)
}

/// Splits a text at blanks, except within quotation marks.
fn quoted_fields(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        rest = rest.trim_ascii_start();
        let (field, behind) = match rest.strip_prefix(b"\"") {
            Some(quoted) => split_at_end(quoted, |byte| byte == b'"'),
            None => split_at_end(rest, |byte| byte == b' '),
        };
        let is_there = !rest.is_empty();
        rest = behind;
        is_there.then_some(field)
    })
}

fn split_at_end(text: &[u8], is_end: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| is_end(*byte)) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

/// Parses Squid's native format: `1286536309.586    921 192.0.2.7 TCP_MISS/200 507 GET http://…`. The time is that of
/// the end, and the second field is the duration in milliseconds.
pub(super) fn squid(text: &[u8]) -> Option<(IpAddr, Stamp)> {
    let mut fields = words(text);
    let (time, took, client, result) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let took: u64 = std::str::from_utf8(took).ok()?.parse().ok()?;
    let slash = result.iter().position(|byte| *byte == b'/')?;
    let is_result = result[..slash].iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_');
    let stamp = if time.contains(&b'.') { Stamp::epoch(time)? } else { return None };
    is_result.then(|| Some((address(client)?, stamp.earlier_by_ms(took)?)))?
}

/// Parses the text formats of Envoy and Istio: `[2016-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - … "FORWARDED FOR" …`.
/// Istio names the address that connected as the third of three addresses after the cluster. Envoy's default has only
/// `X-Forwarded-For`.
pub(super) fn envoy(text: &[u8]) -> Option<Result<(IpAddr, Told, Stamp), String>> {
    let (time, rest) = split_at_end(text.strip_prefix(b"[")?, |byte| byte == b']');
    let stamp = Stamp::iso(time)?;
    rest.strip_prefix(b" \"")?;
    let fields: Vec<&[u8]> = quoted_fields(rest).take(ENVOY_FIELDS_MAX).collect();
    let connected = fields.windows(3).rev().find_map(|three| match three {
        [local, to, from] if (*local == b"-" || is_socket(local)) && is_socket(to) && is_socket(from) => {
            address_and_port(from)
        }
        _ => None,
    });
    if let Some(source) = connected {
        return Some(Ok((source, Told::Alone, stamp)));
    }
    // After the request come status, flags, received, sent, duration, the upstream's time, and then the header.
    let forwarded = fields.get(7).and_then(|field| forwarded_for(field));
    Some(forwarded.map(|source| (source, Told::Forwarded, stamp)).ok_or_else(|| {
        "it is a line of Envoy without a client: add %DOWNSTREAM_REMOTE_ADDRESS% to its format".to_owned()
    }))
}

/// Maximum number of fields that are examined. No known format has more.
const ENVOY_FIELDS_MAX: usize = 40;

fn is_socket(field: &[u8]) -> bool {
    field.contains(&b':') && address_and_port(field).is_some()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
