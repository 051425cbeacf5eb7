//! JSON lines: who sent a request and when, by the names that servers and collectors give them, wherever in the object.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::common::{address, forwarded_for};
use super::time::Stamp;

/// Who connected, best first: nginx, Caddy, Traefik, Envoy, Google's and Elastic's schemas, and what people call it. As
/// [`plain`] writes names; with a point before it also below other names.
const SOURCES: [&str; 19] = [
    ".remoteaddr",
    ".remoteip",
    ".clienthost",
    ".clientaddr",
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

/// When, best first.
const TIMES: [&str; 15] = [
    ".ts",
    ".timestamp",
    ".time",
    ".timeiso8601",
    ".timelocal",
    ".msec",
    ".startutc",
    ".starttime",
    ".startlocal",
    ".datetime",
    ".date",
    ".eventtime",
    ".timems",
    ".sourcerealtimetimestamp",
    ".realtimetimestamp",
];

/// Who it was forwarded for.
const FORWARDED: [&str; 3] = [".xforwardedfor", ".httpxforwardedfor", ".forwardedfor"];

/// The line of a server within another's object: a journal's, Docker's, a collector's.
const MESSAGES: [&str; 3] = ["message", "log", "msg"];

/// Deeper there is nothing.
const DEPTH_MAX: usize = 4;

/// What an object says.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) source: Option<IpAddr>,
    pub(super) stamp: Option<Stamp>,
    pub(super) forwarded: Option<IpAddr>,
    pub(super) message: Option<Vec<u8>>,
}

impl Found {
    /// What one line says; else what is wrong with it, a clause.
    pub(super) fn of(text: &[u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(text).or_else(|_| {
            // nginx without `escape=json` writes \x22, and other bytes as they came.
            serde_json::from_str(&String::from_utf8_lossy(text).replace("\\x", "\\\\x"))
        });
        let object: Map<String, Value> = read.map_err(|error| format!("it is no JSON object: {error}"))?;
        let mut scalars = Vec::new();
        collect("", &object, 1, &mut scalars);
        Ok(Self {
            source: best(&SOURCES, &scalars, address),
            stamp: best(&TIMES, &scalars, Stamp::any),
            forwarded: best(&FORWARDED, &scalars, forwarded_for),
            message: best(&MESSAGES, &scalars, |message| Some(message.to_vec())),
        })
    }
}

/// A text, or a number that may be a time, and the path of names to it.
type Scalar = (String, Vec<u8>);

fn collect(path: &str, object: &Map<String, Value>, depth: usize, scalars: &mut Vec<Scalar>) {
    for (name, value) in object {
        add(&format!("{path}.{}", plain(name)), value, depth, scalars);
    }
}

fn add(path: &str, value: &Value, depth: usize, scalars: &mut Vec<Scalar>) {
    match value {
        Value::String(text) => scalars.push((path.to_owned(), text.clone().into_bytes())),
        Value::Number(number) if is_any(&TIMES, path) => scalars.push((path.to_owned(), number.to_string().into())),
        // A journal has bytes in a list that are no text; what is none of them is a question mark.
        Value::Array(bytes) if is_any(&MESSAGES, path) => {
            let byte = |of: &Value| of.as_u64().and_then(|of| u8::try_from(of).ok()).unwrap_or(b'?');
            scalars.push((path.to_owned(), bytes.iter().map(byte).collect()));
        }
        // A header has its values in a list.
        Value::Array(values) if depth < DEPTH_MAX => values.iter().for_each(|of| add(path, of, depth + 1, scalars)),
        Value::Object(object) if depth < DEPTH_MAX => collect(path, object, depth + 1, scalars),
        Value::Array(_) | Value::Object(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
    }
}

/// `X-Forwarded-For`, `x_forwarded_for` and `xForwardedFor` are one.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.');
    letters.map(|c| c.to_ascii_lowercase()).collect()
}

/// What the first of these names has that can be read.
fn best<T>(names: &[&str], scalars: &[Scalar], read: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    names.iter().find_map(|name| {
        let mut named = scalars.iter().filter(|(path, _)| is_named(path, name));
        named.find_map(|(_, text)| read(text))
    })
}

fn is_any(names: &[&str], path: &str) -> bool {
    names.iter().any(|name| is_named(path, name))
}

/// Whether a path is this name, or ends in it.
fn is_named(path: &str, name: &str) -> bool {
    if name.starts_with('.') { path.ends_with(name) } else { path.get(1..) == Some(name) }
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
            r#"{"msec":"1791665736.000","server_addr":"10.0.0.1","remote_addr":"192.0.2.7","request_time":"0.003"}"#,
            r#"{"level":"info","ts":1791665736.0,"msg":"handled request","request":{"remote_ip":"192.0.2.7","remote_port":"1","client_ip":"203.0.113.9","headers":{"X-Forwarded-For":["203.0.113.9"]}},"duration":0.1}"#,
            r#"{"request":{"remote_addr":"192.0.2.7:4711"},"ts":"2026-10-10T20:55:36.000Z"}"#,
            r#"{"ClientAddr":"192.0.2.7:4711","ClientHost":"192.0.2.7","StartUTC":"2026-10-10T20:55:36Z","time":"2026-10-10T20:55:36Z"}"#,
            r#"{"start_time":"2026-10-10T20:55:36.000Z","downstream_remote_address":"[::ffff:192.0.2.7]:4711"}"#,
            r#"{"@timestamp":"2026-10-10T20:55:36.000Z","host":{"ip":["10.0.0.9"]},"source":{"ip":"192.0.2.7"}}"#,
            r#"{"httpRequest":{"remoteIp":"192.0.2.7","serverIp":"10.0.0.1"},"timestamp":"2026-10-10T20:55:36Z"}"#,
            r#"{"client":"192.0.2.7","timestamp":1791665736000}"#,
            r#"{"remote_addr":"192.0.2.7","ua":"a\x22b","time":"2026-10-10T20:55:36+00:00"}"#,
        ] {
            let found = Found::of(text.as_bytes()).expect(text);
            assert_eq!(found.source.map(|source| source.to_string()).as_deref(), Some("192.0.2.7"), "{text}");
            assert_eq!(found.stamp.map(at), Some(1_791_665_736_000), "{text}");
        }
        let raw = Found::of(b"{\"remote_addr\":\"192.0.2.7\",\"ua\":\"\xe9\"}").expect("mended");
        assert!(raw.source.is_some());
    }

    #[test]
    fn what_is_forwarded_or_is_a_line_itself_is_found_beside() {
        let found = Found::of(br#"{"x_forwarded_for":"203.0.113.9, 10.0.0.1","message":"a"}"#).expect("read");
        assert_eq!(found.forwarded.map(|source| source.to_string()).as_deref(), Some("203.0.113.9"));
        assert_eq!((found.source, found.message.as_deref()), (None, Some(b"a".as_slice())));
        let found =
            Found::of(br#"{"MESSAGE":[49,46,255,300],"__REALTIME_TIMESTAMP":"1791665736000000"}"#).expect("read");
        assert_eq!(
            (found.message.as_deref(), found.stamp.map(at)),
            (Some(b"1.\xff?".as_slice()), Some(1_791_665_736_000))
        );
    }

    #[test]
    fn what_is_no_object_is_said() {
        for text in ["[1]", "1", "{", "{}x", "{\"a\":}"] {
            assert!(Found::of(text.as_bytes()).expect_err(text).contains("no JSON object"), "{text}");
        }
    }
}
