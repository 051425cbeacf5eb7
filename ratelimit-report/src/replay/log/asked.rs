//! Method, target and status of the request in a log line, for limits with conditions.

use std::borrow::Cow;

use ratelimit_policy::desired::{Condition, LoggedRequest};
use serde_json::Value;

use super::common::words;
use super::{envelope, fields};

/// Names of the method in an object.
const METHODS: [&str; 4] = ["method", "request_method", "http_method", "requestmethod"];
/// Names of the target, best first. nginx's `$uri` comes late, because it is the target after rewriting.
const TARGETS: [&str; 6] = ["request_uri", REQUEST, "requestpath", "uri", "path", "url"];
/// Names of the status, best first. Traefik logs the status of its own answer and that of the server behind it.
const STATUSES: [&str; 6] =
    ["status", "status_code", "statuscode", "response_code", "downstreamstatus", "originstatus"];
/// Name of a whole request line, or of an object that contains the request.
const REQUEST: &str = "request";
/// Names of a server's line within another object.
const MESSAGES: [&str; 3] = ["message", "log", "msg"];
/// Maximum number of objects around an object.
const OBJECTS_MAX: usize = 3;
/// Number of slashes in HAProxy's timers, after which the status follows.
const TIMER_SLASHES: usize = 4;

/// Facts about the request in one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked<'a> {
    status: Option<u16>,
    target: Option<Cow<'a, str>>,
    method: Option<Cow<'a, str>>,
    /// True if a part of the line is missing.
    is_cut: bool,
}

impl<'a> Asked<'a> {
    /// Returns the facts of a line in a format that [`super::Parser`] reads. Facts that are not found stay unknown.
    pub fn of(line: &'a [u8]) -> Self {
        let text = line.trim_ascii();
        let object = text.iter().position(|byte| *byte == b'{').filter(|at| *at == 0 || !text[..*at].contains(&b'"'));
        if let Some(Ok(object)) = object.map(|at| serde_json::from_slice::<Value>(&text[at..])) {
            return Asked::of_object(&object, 0);
        }
        Self::of_text(text).unwrap_or_default()
    }

    /// Returns the facts, marked as cut if `is_cut` is true.
    #[must_use]
    pub fn cut(self, is_cut: bool) -> Self {
        Self { is_cut: self.is_cut || is_cut, ..self }
    }

    /// Returns true if the request meets a condition. An unknown fact meets none, unless a part of the line is missing.
    /// Otherwise a client could evade a condition by a line so long that this part is cut off.
    pub fn meets(&self, condition: &Condition) -> bool {
        if self.is_cut { condition.may_be_met_by(self.request()) } else { condition.is_met_by(self.request()) }
    }

    /// Returns the request, for [`ratelimit_policy::desired::Condition::is_met_by`].
    pub fn request(&self) -> LoggedRequest<'_> {
        LoggedRequest { status: self.status, target: self.target.as_deref(), method: self.method.as_deref() }
    }

    /// Reads the first quoted text that has a method and a target, or that a status follows. Later texts, such as the
    /// user agent, are under the client's control. So is the user name before the time, whose quotation marks are
    /// escaped.
    fn of_text(text: &'a [u8]) -> Option<Self> {
        let message = envelope::take_off(text).map_or(text, |envelope| envelope.message.trim_ascii());
        let is_haproxy = fields::haproxy(message).is_some();
        let mut begin = text.windows(3).position(|part| part == b"] \"").unwrap_or(0);
        while let Some(open) = opening_quote(text, begin) {
            let quoted = &text[open + 1..];
            // A line may be cut within its request.
            let close = end_of_quoted(quoted);
            let (end, is_cut) = (close.unwrap_or(quoted.len()), close.is_none());
            let (inside, behind) = (&quoted[..end], quoted.get(end + 1..).unwrap_or_default());
            let before = if is_haproxy { status_before(&text[..open]) } else { None };
            let status = words(behind).next().and_then(status).or(before);
            if let Some((method, target)) = request_line(inside) {
                return Some(Self { status, target: Some(target), method: Some(method), is_cut });
            }
            if status.is_some() {
                return Some(Self { status, ..Self::default() });
            }
            begin = (open + 1).saturating_add(end).saturating_add(1).min(text.len());
        }
        None
    }
}

impl Asked<'static> {
    /// Returns the facts of an object, or of a server's line within it.
    fn of_object(object: &Value, depth: usize) -> Self {
        let mut asked = Self::default();
        let mut ranks = (usize::MAX, usize::MAX);
        asked.take_object(object, &mut ranks);
        if asked == Self::default()
            && let Some(line) = MESSAGES.iter().find_map(|name| object.get(name)?.as_str())
        {
            if let Ok(inner) = serde_json::from_str::<Value>(line)
                && depth < OBJECTS_MAX
            {
                return Asked::of_object(&inner, depth + 1);
            }
            let Asked { status, target, method, is_cut } = Asked::of_text(line.trim().as_bytes()).unwrap_or_default();
            let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
            asked = Self { status, target: owned(target), method: owned(method), is_cut };
        }
        asked
    }

    /// Reads the fields at the top level and in the object that contains the request. Clients' headers have other
    /// names. `ranks` has the ranks of the names of target and status found so far.
    fn take_object(&mut self, object: &Value, ranks: &mut (usize, usize)) {
        let Value::Object(fields) = object else { return };
        for (name, value) in fields {
            let lower = name.to_ascii_lowercase();
            let rank = |names: &[&str]| names.iter().position(|of| *of == lower).unwrap_or(usize::MAX);
            let (target, status_at) = (rank(&TARGETS), rank(&STATUSES));
            if lower == REQUEST && value.is_object() {
                self.take_object(value, ranks);
            } else if let Some(code) = Some(value).filter(|_| status_at < ranks.1).and_then(status_of) {
                (self.status, ranks.1) = (Some(code), status_at);
            } else if let Some(text) = value.as_str() {
                let of_line = if lower == REQUEST { request_line(text.as_bytes()) } else { None };
                if let Some((method, path)) = of_line {
                    self.method = Some(Cow::Owned(method.into_owned()));
                    if target < ranks.0 {
                        (self.target, ranks.0) = (Some(Cow::Owned(path.into_owned())), target);
                    }
                } else if rank(&METHODS) != usize::MAX {
                    self.method = Some(Cow::Owned(text.to_owned()));
                } else if target < ranks.0 && lower != REQUEST {
                    (self.target, ranks.0) = (Some(Cow::Owned(text.to_owned())), target);
                }
            }
        }
    }
}

fn status_of(value: &Value) -> Option<u16> {
    let number = value.as_u64().and_then(|code| u16::try_from(code).ok());
    number.or_else(|| status(value.as_str()?.as_bytes()))
}

/// Returns the position of the first quotation mark from `begin` on that no backslash escapes.
fn opening_quote(text: &[u8], begin: usize) -> Option<usize> {
    (begin..text.len()).find(|at| text[*at] == b'"' && (*at == 0 || text[*at - 1] != b'\\'))
}

/// Returns the position of the first quotation mark that no backslash escapes.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    text.iter().position(|byte| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    })
}

/// Parses `GET /a?b HTTP/1.1` into method and target.
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

/// Returns HAProxy's status, which follows its timers: `0/0/1/24/25 200 … "GET / HTTP/1.1"`.
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
    use ratelimit_policy::desired::{PathPattern, Statuses};

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
            r#"{"remote_addr":"192.0.2.7","request":"POST /login?a HTTP/2.0","request_uri":"/login?a","status":401,"uri":"/index.php"}"#,
            r#"{"log":"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] \"POST /login?a HTTP/1.1\" 401 5"}"#,
            r#"{"log":"{\"request\":{\"method\":\"POST\",\"uri\":\"/login?a\"},\"status\":401}"}"#,
            r#"192.0.2.7 - 0/0/0/0/0 200 [10/Oct/2000:13:55:36 -0700] "POST /login?a HTTP/1.1" 401 5"#,
            r#"192.0.2.7 - x \"GET / HTTP/1.1\" 200 [10/Oct/2000:13:55:36 -0700] "POST /login?a HTTP/1.1" 401 5"#,
            r#"192.0.2.7 - x \"GET / HTTP/1.1\" 200 [10/Oct/2000:13:55:36 -0700] host "POST /login?a HTTP/1.1" 401 5"#,
            r#"Oct 10 13:55:36 web caddy: {"request":{"method":"POST","uri":"/login?a"},"status":401}"#,
        ] {
            let asked = Asked::of(line.as_bytes());
            let expected = LoggedRequest { status: Some(401), target: Some("/login?a"), method: Some("POST") };
            assert_eq!(asked.request(), expected, "{line}");
        }
    }

    #[test]
    fn a_line_that_is_cut_within_its_request_has_what_is_there() {
        let cut = br#"192.0.2.7:33317 [06/Feb/2009:12:14:14.655] f b/s 10/0/30/69/109 401 2750 - - ---- 1/1/1/1/0 0/0 "POST /login?xxx"#;
        let asked = Asked::of(cut);
        let expected = LoggedRequest { status: Some(401), target: Some("/login?xxx"), method: Some("POST") };
        assert_eq!(asked.request(), expected);
    }

    #[test]
    fn a_line_that_is_cut_meets_conditions_on_what_is_missing_and_no_other_line_does() {
        let mut statuses = Statuses::default();
        statuses.add(401);
        let of_status = Condition { statuses: Some(statuses), ..Condition::default() };
        let of_path = Condition { path: PathPattern::new("/login"), ..of_status };
        let text = br#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "POST /login?xxx"#;
        assert!(Asked::of(text).meets(&of_path), "its status is behind what is missing");
        assert!(!Asked::of(br#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "POST /other?xxx"#).meets(&of_path));
        let object = br#"{"request_uri":"/login"}"#;
        assert!(!Asked::of(object).meets(&of_status) && Asked::of(object).cut(true).meets(&of_status));
        let whole = br#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "POST /login HTTP/1.1" 200 5"#;
        assert!(!Asked::of(whole).cut(true).meets(&of_status), "it says another status");
    }

    #[test]
    fn a_malformed_request_has_only_a_status_and_hostile_text_says_nothing() {
        let garbage =
            br#"192.0.2.7 - - [10/Oct/2000:13:55:36 -0700] "\x16\x03\x01" 400 150 "-" "GET /login HTTP/1.1 200""#;
        assert_eq!(Asked::of(garbage).request().status, Some(400));
        for text in [&b""[..], b"\"", b"{", b"{}", b"\xff\"\xff", b"{\"request\":{\"request\":{}}}", b"\"\\"] {
            assert_eq!(Asked::of(text).request(), LoggedRequest::default(), "{text:?}");
        }
    }
}
