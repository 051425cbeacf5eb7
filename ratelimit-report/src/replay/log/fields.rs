//! Formats whose fields stand at places: W3C extended (IIS, CloudFront), HAProxy's HTTP log, AWS load balancers.

use std::net::IpAddr;

use super::common::{address, words};
use super::time::Stamp;

/// Where the fields of a W3C extended log are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    date: usize,
    time: usize,
    client: usize,
}

impl Columns {
    /// Of what is behind `#Fields:`; else what is missing there, a clause.
    pub(super) fn of(names: &[u8]) -> Result<Self, String> {
        let place = |name: &str| {
            let place = words(names).position(|word| word.eq_ignore_ascii_case(name.as_bytes()));
            place.ok_or_else(|| format!("its #Fields have no {name}"))
        };
        Ok(Self { date: place("date")?, time: place("time")?, client: place("c-ip")? })
    }

    /// Who sent a line's request, and when, which is in UTC.
    pub(super) fn line(&self, text: &[u8]) -> Result<(IpAddr, Stamp), String> {
        let field = |place| words(text).nth(place).unwrap_or_default();
        let stamp = Stamp::of_date_and_time(field(self.date), field(self.time));
        let source = address(field(self.client)).ok_or("its c-ip is not an address")?;
        Ok((source, stamp.ok_or("its date and time are not as in 2026-10-10 13:55:36")?))
    }
}

/// HAProxy's `option httplog`: `192.0.2.7:33317 [06/Feb/2009:12:14:14.655] frontend … "GET / HTTP/1.1"`.
pub(super) fn haproxy(text: &[u8]) -> Option<Result<(IpAddr, Stamp), String>> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    let port = text[..at].iter().rposition(|byte| *byte == b':')?;
    let rest = text[at..].strip_prefix(b" [")?;
    let end = rest.iter().position(|byte| *byte == b']')?;
    let stamp = Stamp::common(&rest[..end])?;
    if !rest.ends_with(b"\"") {
        return Some(
            Err("it is a line of HAProxy's TCP log, a connection and no request: `option httplog`".to_owned()),
        );
    }
    let source = address(&text[..port]).or_else(|| address(&text[..at]));
    Some(source.map(|source| (source, stamp)).ok_or_else(|| "it begins with no address".to_owned()))
}

/// `https 2018-07-02T22:23:00.186641Z app/name/id 192.0.2.7:2817 …` of an application load balancer; of a classic one
/// without the first word.
pub(super) fn load_balancer(text: &[u8]) -> Option<(IpAddr, Stamp)> {
    let is_typed = [b"http ".as_slice(), b"https ", b"h2 ", b"grpcs ", b"ws ", b"wss "];
    let is_typed = is_typed.iter().any(|word| text.starts_with(word));
    let mut fields = words(text).skip(usize::from(is_typed));
    let stamp = Stamp::iso(fields.next()?)?;
    let (client, target) = (fields.nth(1)?, fields.next()?);
    let is_one = target == b"-" || address(target).is_some();
    is_one.then(|| Some((address(client)?, stamp)))?
}
