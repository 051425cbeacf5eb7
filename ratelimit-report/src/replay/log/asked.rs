//! Method, target and status of the request in a log's line, for limits with conditions.

use std::borrow::Cow;

use ratelimit_policy::desired::LoggedRequest;
use serde_json::Value;

use super::common::words;

/// Names of the method in an object, with or without another one before it.
const METHODS: [&str; 4] = ["method", "request_method", "http_method", "requestmethod"];
/// Names of the target.
const TARGETS: [&str; 5] = ["uri", "request_uri", "requestpath", "path", "url"];
/// Names of the status.
const STATUSES: [&str; 6] =
    ["status", "status_code", "statuscode", "response_code", "downstreamstatus", "originstatus"];
/// Name of a whole request line.
const REQUEST: &str = "request";
/// Number of slashes in HAProxy's timers, behind which the status stands.
const TIMER_SLASHES: usize = 4;

/// Facts of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked<'a> {
    status: Option<u16>,
    target: Option<Cow<'a, str>>,
    method: Option<Cow<'a, str>>,
}

impl<'a> Asked<'a> {
    /// Returns the facts of a line in a format that [`super::Parser`] reads. What it does not find stays unknown.
    pub fn of(line: &'a [u8]) -> Self {
        let text = line.trim_ascii();
        let object = text.iter().position(|byte| *byte == b'{').filter(|at| *at == 0 || !text[..*at].contains(&b'"'));
        if let Some(Ok(object)) = object.map(|at| serde_json::from_slice::<Value>(&text[at..])) {
            let mut asked = Self::default();
            asked.take_object(&object);
            return asked;
        }
        Self::of_text(text).unwrap_or_default()
    }

    /// Returns the request, for [`ratelimit_policy::desired::Condition::is_met_by`].
    pub fn request(&self) -> LoggedRequest<'_> {
        LoggedRequest { status: self.status, target: self.target.as_deref(), method: self.method.as_deref() }
    }

    /// The first text within quotation marks that has a method and a target, or that a status follows: what is behind that
    /// is a client's, such as its agent.
    fn of_text(text: &'a [u8]) -> Option<Self> {
        let mut rest = text;
        while let Some(open) = rest.iter().position(|byte| *byte == b'"') {
            let begin = text.len() - rest.len();
            let (before, quoted) = (&text[..begin + open], &rest[open + 1..]);
            let end = end_of_quoted(quoted)?;
            let (inside, behind) = (&quoted[..end], &quoted[end + 1..]);
            let status = status_before(before).or_else(|| words(behind).next().and_then(status));
            if let Some((method, target)) = request_line(inside) {
                return Some(Self { status, target: Some(target), method: Some(method) });
            }
            if status.is_some() {
                return Some(Self { status, ..Self::default() });
            }
            rest = behind;
        }
        None
    }

    /// Takes what is at the top, and in the object that is the request. Clients' headers are below other names.
    fn take_object(&mut self, object: &Value) {
        let Value::Object(fields) = object else { return };
        for (name, value) in fields {
            let lower = name.to_ascii_lowercase();
            let is = |names: &[&str]| names.contains(&&*lower);
            match value {
                Value::String(text) if is(&METHODS) => self.method = Some(Cow::Owned(text.clone())),
                Value::String(text) if is(&TARGETS) && (self.target.is_none() || lower.ends_with("uri")) => {
                    self.target = Some(Cow::Owned(text.clone()));
                }
                Value::String(text) if lower == REQUEST => {
                    if let Some((method, target)) = request_line(text.as_bytes()) {
                        self.method = Some(Cow::Owned(method.into_owned()));
                        self.target = Some(Cow::Owned(target.into_owned()));
                    }
                }
                Value::String(text) if is(&STATUSES) => self.status = status(text.as_bytes()).or(self.status),
                Value::Number(number) if is(&STATUSES) => {
                    self.status = number.as_u64().and_then(|code| u16::try_from(code).ok()).or(self.status);
                }
                Value::Object(_) if lower == REQUEST => self.take_object(value),
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_) => {}
            }
        }
    }
}

/// The first quotation mark that no backslash escapes.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    text.iter().position(|byte| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    })
}

/// `GET /a?b HTTP/1.1`: method and target.
fn request_line(text: &[u8]) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    let mut parts = words(text);
    let (method, target) = (parts.next()?, parts.next()?);
    let is_method = method.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'));
    let is_target = target.starts_with(b"/") || target == b"*" || target.windows(3).any(|part| part == b"://");
    (is_method && is_target).then(|| (String::from_utf8_lossy(method), String::from_utf8_lossy(target)))
}

fn status(word: &[u8]) -> Option<u16> {
    let is_code = word.len() == 3 && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| is_code)?.parse().ok()
}

/// HAProxy's stands behind its timers: `0/0/1/24/25 200 … "GET / HTTP/1.1"`.
fn status_before(text: &[u8]) -> Option<u16> {
    let mut all = words(text);
    all.find(|word| {
        let slashes = word.iter().filter(|byte| **byte == b'/').count();
        slashes == TIMER_SLASHES && word.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'/' | b'-' | b'+'))
    })?;
    all.next().and_then(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_says_what_was_asked_and_how_it_was_answered() {
        for line in [
            r#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "POST /login?a HTTP/2.0" 401 2326"#,
            r#"192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "POST /login?a HTTP/1.1" 401 2326 "-" "curl \"x\" 200""#,
            r#"<190>Oct 10 13:55:36 web nginx: 192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "POST /login?a HTTP/2.0" 401 5"#,
            r#"192.0.2.7:33317 [06/Feb/2009:12:14:14.655] f b/s 10/0/30/69/109 401 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "POST /login?a HTTP/1.1""#,
            r#"[2016-04-15T20:17:00.310Z] "POST /login?a HTTP/2" 401 - 154 0 226 100 "10.0.35.28" "nsq2http" "-" "-" "-""#,
            r#"{"remote_addr":"192.0.2.7","request":"POST /login?a HTTP/2.0","status":"401"}"#,
            r#"{"request_method":"POST","request_uri":"/login?a","uri":"/login?a","status":401}"#,
            r#"{"level":"info","request":{"remote_ip":"192.0.2.7","method":"POST","uri":"/login?a","headers":{"Method":["GET"]}},"status":401}"#,
            r#"Oct 10 13:55:36 web caddy: {"request":{"method":"POST","uri":"/login?a"},"status":401}"#,
        ] {
            let asked = Asked::of(line.as_bytes());
            let expected = LoggedRequest { status: Some(401), target: Some("/login?a"), method: Some("POST") };
            assert_eq!(asked.request(), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_request_has_a_status_alone_and_hostile_text_says_nothing() {
        let garbage =
            br#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03\x01" 400 150 "-" "GET /login HTTP/1.1 200""#;
        assert_eq!(Asked::of(garbage).request().status, Some(400));
        for text in [&b""[..], b"\"", b"{", b"{}", b"\xff\"\xff", b"{\"request\":{\"request\":{}}}", b"\"\\"] {
            assert_eq!(Asked::of(text).request(), LoggedRequest::default(), "{text:?}");
        }
    }
}
