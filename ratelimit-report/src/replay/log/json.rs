//! Source and time of requests in JSON lines, found at any depth by the names that servers and collectors use.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::de::{Deserialize as _, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::common::{address, forwarded_for};
use super::time::{Stamp, millis};

/// Names of the address that connected, best first: nginx, Caddy, Traefik, Envoy, Google's and Elastic's schemas, and
/// common names. Traefik's `ClientHost` may come from a client's header, so its `ClientAddr` is better. They are in the form of [`Found::push`]. A leading point also matches below other names.
const SOURCES: [&str; 19] = [
    ".remoteaddr",
    ".remoteip",
    ".clientaddr",
    ".clienthost",
    ".downstreamremoteaddress",
    ".client.ip",
    ".client.address",
    ".source.ip",
    ".source.address",
    ".clientip",
    ".clientaddress",
    ".remotehost",
    ".sourceip",
    ".srcip",
    ".peeraddr",
    ".cip",
    "client",
    "remote",
    "ip",
];

/// Names of the time, best first.
const TIMES: [&str; 16] = [
    ".startutc",
    ".edgestarttimestamp",
    ".starttime",
    ".startlocal",
    ".ts",
    ".timestamp",
    ".time",
    ".timeiso8601",
    ".timelocal",
    ".msec",
    ".datetime",
    ".date",
    ".eventtime",
    ".timems",
    ".sourcerealtimetimestamp",
    ".realtimetimestamp",
];

/// Number of [`TIMES`], from the first, that are the start of a request in every format.
const BEGINS: usize = 4;

/// Names of the duration in seconds, for servers that log the time of a request's end: nginx's `$request_time` and
/// Caddy's `duration`. Other servers write `duration` in other units.
const TOOK: [&str; 2] = [".requesttime", "duration"];
/// Index of Caddy's name in [`TOOK`], and the message in each line of its access log.
const TOOK_BY_CADDY: (usize, &[u8]) = (1, b"handled request");

/// Names of the forwarding header.
const FORWARDED: [&str; 3] = [".xforwardedfor", ".httpxforwardedfor", ".forwardedfor"];

/// Name suffixes of objects that a client fills: headers, cookies and arguments. Only the forwarding header is read
/// there.
const OF_CLIENT: [&str; 7] = ["headers", "header", "cookies", "cookie", "args", "params", "parameters"];
/// Full names of objects that a client fills.
const OF_CLIENT_WHOLE: [&str; 5] = ["arguments", "body", "form", "query", "querystring"];

/// Names of a server's line within another object: a journal's, Docker's or a collector's.
const MESSAGES: [&str; 3] = ["message", "log", "msg"];

/// Names of top-level lists with one request per element, as Azure, AWS and others write them.
const BUNDLES: [&str; 6] = [".records", ".logevents", ".events", ".entries", ".items", ".logs"];
const BUNDLE: &str = "it has several requests in a list: write an object a line, as `jq -c '.records[]'` does";

/// Maximum depth that is read.
const DEPTH_MAX: usize = 4;

/// Maximum number of characters of a path. Names are short.
const PATH_MAX: usize = 120;

/// Values found in an object.
#[derive(Debug, Default)]
pub(super) struct Found {
    path: String,
    source: Option<(usize, IpAddr)>,
    stamp: Option<(usize, Stamp)>,
    /// Index of the name in [`TOOK`], and duration in milliseconds.
    took: Option<(usize, u64)>,
    forwarded: Option<IpAddr>,
    message: Option<(usize, Vec<u8>)>,
    /// Number of client-filled objects around the current value.
    of_client: usize,
    /// Number of client addresses that were read.
    clients: usize,
    /// True if the object contains a list of several requests.
    is_bundle: bool,
}

impl Found {
    /// Reads one line. Fails with a clause on what is wrong.
    pub(super) fn of(text: &[u8]) -> Result<Self, String> {
        match Self::read(text) {
            Err(_) => {
                // nginx without `escape=json` writes \x22, and copies other bytes.
                let mended = String::from_utf8_lossy(text).replace("\\x", "\\\\x");
                Self::read(mended.as_bytes()).map_err(|error| {
                    let problem = error.to_string();
                    if problem.starts_with(BUNDLE) {
                        BUNDLE.to_owned()
                    } else {
                        format!("it is no JSON object: {problem}")
                    }
                })
            }
            found => found.map_err(|error| error.to_string()),
        }
    }

    fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        let mut found = Self::default();
        let mut reader = serde_json::Deserializer::from_slice(text);
        Value { found: &mut found, depth: 0 }.deserialize(&mut reader)?;
        reader.end()?;
        if found.is_bundle {
            return Err(serde::de::Error::custom(BUNDLE));
        }
        Ok(found)
    }

    pub(super) fn source(&self) -> Option<IpAddr> {
        self.source.map(|(_, source)| source)
    }

    /// Returns the time when the request began: the logged time, minus the duration if the logged time is the end.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let (rank, stamp) = self.stamp?;
        let (by, took) = self.took.unwrap_or_default();
        let is_caddy = self.message.as_ref().is_some_and(|(_, message)| message == TOOK_BY_CADDY.1);
        let is_end = rank >= BEGINS && (by != TOOK_BY_CADDY.0 || is_caddy);
        let began = stamp.earlier_by_ms(took).filter(|_| is_end);
        Some(began.unwrap_or(stamp))
    }

    pub(super) const fn forwarded(&self) -> Option<IpAddr> {
        self.forwarded
    }

    pub(super) fn message(&self) -> Option<&[u8]> {
        self.message.as_ref().map(|(_, message)| message.as_slice())
    }

    /// Appends a name to the path. `X-Forwarded-For`, `x_forwarded_for` and `xForwardedFor` become one name.
    fn push(&mut self, name: &str) {
        self.path.push('.');
        let room = PATH_MAX.saturating_sub(self.path.len());
        let letters = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.').take(room);
        self.path.extend(letters.map(|c| c.to_ascii_lowercase()));
    }

    fn takes_numbers(&self) -> bool {
        rank(&TIMES, &self.path).is_some() || rank(&TOOK, &self.path).is_some()
    }

    /// Returns true if a client fills the object that the path names.
    fn is_of_client(&self) -> bool {
        let name = self.path.rsplit('.').next().unwrap_or_default();
        OF_CLIENT_WHOLE.contains(&name) || OF_CLIENT.iter().any(|end| name.ends_with(end))
    }

    fn scalar(&mut self, text: &[u8]) {
        if rank(&FORWARDED, &self.path).is_some() {
            self.forwarded = self.forwarded.or_else(|| forwarded_for(text));
        }
        if self.of_client > 0 {
            return;
        }
        self.clients += usize::from(rank(&SOURCES, &self.path).is_some() && address(text).is_some());
        if let Some(rank) = rank(&SOURCES, &self.path).filter(|rank| self.source.is_none_or(|(best, _)| *rank < best))
            && let Some(source) = address(text)
        {
            self.source = Some((rank, source));
        }
        if let Some(rank) = rank(&TIMES, &self.path).filter(|rank| self.stamp.is_none_or(|(best, _)| *rank < best))
            && let Some(stamp) = Stamp::any(text)
        {
            self.stamp = Some((rank, stamp));
        }
        if let Some(rank) = rank(&TOOK, &self.path).filter(|rank| self.took.is_none_or(|(best, _)| *rank < best))
            && let Some(ms) = std::str::from_utf8(text).ok().and_then(millis)
        {
            self.took = Some((rank, ms));
        }
        if let Some(rank) = rank(&MESSAGES, &self.path)
            && self.message.as_ref().is_none_or(|(best, _)| rank < *best)
        {
            self.message = Some((rank, text.to_vec()));
        }
    }
}

/// Returns the index of the first name that equals the path, or that ends it if the name begins with a point.
fn rank(names: &[&str], path: &str) -> Option<usize> {
    names.iter().position(|name| if name.starts_with('.') { path.ends_with(name) } else { path.get(1..) == Some(name) })
}

/// Object key, copied only if it has escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Value at the current path.
struct Value<'a> {
    found: &'a mut Found,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.depth == 0 {
            return deserializer.deserialize_map(self);
        }
        if self.depth > DEPTH_MAX {
            return IgnoredAny::deserialize(deserializer).map(|_| ());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { found, depth } = self;
        let len = found.path.len();
        while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
            found.push(&name);
            let of_client = usize::from(found.is_of_client());
            found.of_client += of_client;
            map.next_value_seed(Value { found: &mut *found, depth: depth + 1 })?;
            found.of_client -= of_client;
            found.path.truncate(len);
        }
        Ok(())
    }

    /// Reads a list: the values of a header, or a journal's message as bytes. Elements that are no byte become `?`.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if rank(&MESSAGES, &self.found.path).is_some() {
            let mut bytes = Vec::new();
            while let Some(byte) = list.next_element::<serde_json::Value>()? {
                bytes.push(byte.as_u64().and_then(|byte| u8::try_from(byte).ok()).unwrap_or(b'?'));
            }
            self.found.scalar(&bytes);
            return Ok(());
        }
        let (mut requests, is_of_objects) = (0, BUNDLES.contains(&self.found.path.as_str()));
        loop {
            let before = self.found.clients;
            if list.next_element_seed(Value { found: &mut *self.found, depth: self.depth + 1 })?.is_none() {
                break;
            }
            requests += usize::from(self.found.clients > before);
        }
        self.found.is_bundle |= is_of_objects && requests > 1;
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.found.scalar(text.as_bytes());
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        if self.found.takes_numbers() {
            self.found.scalar(number.to_string().as_bytes());
        }
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        if self.found.takes_numbers() {
            self.found.scalar(format!("{number:.6}").as_bytes());
        }
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Closes an object that was cut off, after its last complete member. Returns none if the text has no such object.
pub fn mended(text: &[u8]) -> Option<Vec<u8>> {
    let begin = text.iter().position(|byte| *byte == b'{')?;
    let (mut is_quoted, mut is_escaped) = (false, false);
    let (mut closing, mut whole) = (Vec::new(), None);
    for (at, byte) in text.iter().enumerate().skip(begin) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'{' => closing.push(b'}'),
            b'[' => closing.push(b']'),
            b'}' | b']' => drop(closing.pop()),
            b',' => whole = Some((at, closing.clone())),
            _ => {}
        }
    }
    let (end, closing) = whole?;
    Some(text[..end].iter().copied().chain(closing.into_iter().rev()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;

    use super::super::time::{Clock, Times};

    fn at(stamp: Stamp) -> u64 {
        let now = jiff::Timestamp::UNIX_EPOCH;
        Times::new(Clock { zone: TimeZone::UTC, now }).at(stamp).expect("a time").0 / 1_000_000
    }

    #[test]
    fn source_and_time_are_found_among_the_names_that_servers_give_them() {
        for text in [
            r#"{"time_local":"10/Oct/2026:20:55:36 +0000","remote_addr":"192.0.2.7","http_x_forwarded_for":"203.0.113.9"}"#,
            r#"{"msec":"1791665736.003","server_addr":"10.0.0.1","remote_addr":"192.0.2.7","request_time":"0.003"}"#,
            r#"{"level":"info","ts":1791665736.1,"msg":"handled request","request":{"remote_ip":"192.0.2.7","remote_port":"1","client_ip":"203.0.113.9","headers":{"X-Forwarded-For":["203.0.113.9"]}},"duration":0.1}"#,
            r#"{"request":{"remote_addr":"192.0.2.7:4711"},"ts":"2026-10-10T20:55:36.000Z"}"#,
            r#"{"ClientAddr":"192.0.2.7:4711","ClientHost":"203.0.113.9","StartUTC":"2026-10-10T20:55:36Z","time":"2026-10-10T20:55:36Z"}"#,
            r#"{"start_time":"2026-10-10T20:55:36.000Z","downstream_remote_address":"[::ffff:192.0.2.7]:4711"}"#,
            r#"{"@timestamp":"2026-10-10T20:55:36.000Z","host":{"ip":["10.0.0.9"]},"source":{"ip":"192.0.2.7"}}"#,
            r#"{"httpRequest":{"remoteIp":"192.0.2.7","serverIp":"10.0.0.1"},"timestamp":"2026-10-10T20:55:36Z"}"#,
            r#"{"client":"192.0.2.7","timestamp":1791665736000}"#,
            r#"{"remote_addr":"192.0.2.7","ua":"a\x22b","time":"2026-10-10T20:55:36+00:00"}"#,
        ] {
            let found = Found::of(text.as_bytes()).expect(text);
            assert_eq!(found.source().map(|source| source.to_string()).as_deref(), Some("192.0.2.7"), "{text}");
            assert_eq!(found.stamp().map(at), Some(1_791_665_736_000), "{text}");
        }
        let raw = Found::of(b"{\"remote_addr\":\"192.0.2.7\",\"ua\":\"\xe9\"}").expect("mended");
        assert!(raw.source().is_some());
    }

    #[test]
    fn a_duration_moves_the_time_of_an_end_to_the_begin_and_no_other_time() {
        const BEGAN_MS: u64 = 1_791_665_736_000;
        for (text, expected) in [
            (r#"{"time_local":"10/Oct/2026:21:55:36 +0000","request_time":"3600.000"}"#, BEGAN_MS),
            (r#"{"request_time":60.25,"msec":1791665796.25}"#, BEGAN_MS),
            (r#"{"ts":1791665738.5,"msg":"handled request","duration":2.5}"#, BEGAN_MS),
            (r#"{"ts":1791665738.5,"msg":"handled request","duration":2}"#, BEGAN_MS + 500),
            // The duration of another program may be in any unit.
            (r#"{"ts":1791665736,"msg":"done","duration":250}"#, BEGAN_MS),
            (r#"{"timestamp":1791665736,"event":{"duration":2500000}}"#, BEGAN_MS),
            // The line contains the start of the request.
            (r#"{"start_time":"2026-10-10T20:55:36.000Z","time":"2026-10-10T20:59:36Z","request_time":240}"#, BEGAN_MS),
            (r#"{"StartUTC":"2026-10-10T20:55:36Z","time":"2026-10-10T20:55:39Z","Duration":3000000000}"#, BEGAN_MS),
            // The line has no valid duration.
            (r#"{"msec":"1791665736.000","request_time":"-"}"#, BEGAN_MS),
            (r#"{"msec":"1791665736.000","request_time":"-1"}"#, BEGAN_MS),
            (r#"{"msec":"1791665736.000","request_time":"NaN"}"#, BEGAN_MS),
            (r#"{"msec":"1791665736.000","request_time":"inf"}"#, BEGAN_MS),
            (r#"{"msec":"1791665736.000","request_time":"1e300"}"#, BEGAN_MS),
        ] {
            let found = Found::of(text.as_bytes()).expect(text);
            assert_eq!(found.stamp().map(at), Some(expected), "{text}");
        }
    }

    #[test]
    fn nothing_that_a_client_sends_names_its_source_or_its_time() {
        for text in [
            r#"{"ts":1791665736.0,"request":{"remote_ip":"192.0.2.7","headers":{"Remote-Addr":["198.51.100.9"],"Startutc":["2030-01-01T00:00:00Z"]}}}"#,
            r#"{"request":{"headers":{"Remoteaddr":["198.51.100.9"],"Edgestarttimestamp":["2106-01-01T00:00:00Z"]},"remote_ip":"192.0.2.7"},"ts":1791665736.0}"#,
            r#"{"EdgeStartTimestamp":1791665736,"ClientIP":"192.0.2.7","RequestHeaders":{"remote-addr":"198.51.100.9"},"Cookies":{"remote_ip":"198.51.100.9"}}"#,
            r#"{"start_time":"2026-10-10T20:55:36.000Z","downstream_remote_address":"192.0.2.7:4711","headers":{"remote_addr":"198.51.100.9"}}"#,
            r#"{"time":1791665736,"client_ip":"192.0.2.7","args":{"remote_addr":"198.51.100.9","ts":"1"},"query":{"remote_ip":"198.51.100.9"}}"#,
            r#"{"time":1791665736,"client_ip":"192.0.2.7","http":{"request":{"headers":{"x":{"remote_addr":"198.51.100.9"}}}}}"#,
        ] {
            let found = Found::of(text.as_bytes()).expect(text);
            assert_eq!(found.source().map(|source| source.to_string()).as_deref(), Some("192.0.2.7"), "{text}");
            assert_eq!(found.stamp().map(at), Some(1_791_665_736_000), "{text}");
        }
    }

    #[test]
    fn several_requests_in_one_object_are_refused_and_a_list_of_addresses_is_not() {
        let one = r#"{"clientIp":"192.0.2.7","time":"2026-10-10T20:55:36Z"}"#;
        let of = |list: &str| Found::of(format!(r#"{{"records":[{list}]}}"#).as_bytes());
        assert!(of(one).expect("one request").source().is_some());
        assert!(of(&format!("{one},{one}")).expect_err("two").starts_with("it has several requests in a list"));
        let hops = br#"{"client":{"ip":["192.0.2.7","192.0.2.8"]},"events":["a","b"],"ts":1791665736}"#;
        assert!(Found::of(hops).expect("one request").source().is_some());
    }

    #[test]
    fn an_object_that_is_cut_has_what_stands_before() {
        let line = br#"{"ts":1.5,"request":{"remote_ip":"192.0.2.7","uri":"/a\"{,","headers":{"A":["b,\\","c"],"D":["x"]}},"status":200}"#;
        for end in 0..line.len() {
            let Some(mended) = mended(&line[..end]) else { continue };
            let object: serde_json::Value = serde_json::from_slice(&mended).unwrap_or_else(|error| {
                panic!("{end}: {error}: {}", String::from_utf8_lossy(&mended));
            });
            assert!(object["ts"].is_number(), "{end}");
        }
        let cut = mended(&line[..line.len() - 20]).expect("its beginning is whole");
        assert!(cut.starts_with(br#"{"ts":1.5,"request":{"remote_ip":"192.0.2.7","uri":"/a\"{,""#));
        assert_eq!(mended(b"192.0.2.7 - -"), None);
    }

    #[test]
    fn forwarded_sources_and_embedded_lines_are_found() {
        let found = Found::of(br#"{"x_forwarded_for":"203.0.113.9, 10.0.0.1","message":"a"}"#).expect("read");
        assert_eq!(found.forwarded().map(|source| source.to_string()).as_deref(), Some("203.0.113.9"));
        assert_eq!((found.source(), found.message()), (None, Some(b"a".as_slice())));
        let found =
            Found::of(br#"{"MESSAGE":[49,46,255,300],"__REALTIME_TIMESTAMP":"1791665736000000"}"#).expect("read");
        assert_eq!((found.message(), found.stamp().map(at)), (Some(b"1.\xff?".as_slice()), Some(1_791_665_736_000)));
    }

    #[test]
    fn a_line_that_is_no_object_is_an_error() {
        for text in ["[1]", "1", "{", "{}x", "{\"a\":}"] {
            assert!(Found::of(text.as_bytes()).expect_err(text).contains("no JSON object"), "{text}");
        }
    }
}
