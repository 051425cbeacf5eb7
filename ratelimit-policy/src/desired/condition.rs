//! Conditions of limits: which requests of an access log a limit counts, by status, path and method.

use std::fmt;

use arrayvec::ArrayString;

/// Maximum length of a path in bytes.
pub const PATH_BYTES_MAX: usize = 120;
/// Maximum length of a method in bytes.
pub const METHOD_BYTES_MAX: usize = 16;
/// Smallest valid status code.
pub const STATUS_MIN: u16 = 100;
/// Largest valid status code.
pub const STATUS_MAX: u16 = 599;
/// Maximum number of components of a path that are compared.
const COMPONENTS_MAX: usize = 256;

const WORDS: usize = 8;
const _: () = assert!((STATUS_MAX - STATUS_MIN) as usize / 64 < WORDS);

/// Conditions of the requests that a limit counts. A request must meet every condition that is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Statuses that are counted.
    pub statuses: Option<Statuses>,
    /// Path that is counted.
    pub path: Option<PathPattern>,
    /// Method that is counted, in upper case.
    pub method: Option<ArrayString<METHOD_BYTES_MAX>>,
}

/// A request as a log line describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggedRequest<'a> {
    /// Status of the response, if the line has one.
    pub status: Option<u16>,
    /// Target of the request, with its query.
    pub target: Option<&'a str>,
    /// Method of the request.
    pub method: Option<&'a str>,
}

impl Condition {
    /// Returns true if a request meets the condition. A field that the line lacks meets no condition.
    pub fn is_met_by(&self, request: LoggedRequest<'_>) -> bool {
        self.is_met(request, false)
    }

    /// Returns true if a request meets the condition, or could meet it with a field that its line lacks.
    pub fn may_be_met_by(&self, request: LoggedRequest<'_>) -> bool {
        self.is_met(request, true)
    }

    fn is_met(&self, request: LoggedRequest<'_>, unless_said: bool) -> bool {
        let LoggedRequest { status, target, method } = request;
        self.statuses.is_none_or(|of| status.map_or(unless_said, |status| of.has(status)))
            && self.method.is_none_or(|of| method.map_or(unless_said, |method| of.eq_ignore_ascii_case(method)))
            && self.path.is_none_or(|of| target.map_or(unless_said, |target| of.matches(target)))
    }
}

impl fmt::Display for Condition {
    /// Writes the condition as in flags and files: `status=401,403 path=/login method=POST`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.statuses.map(|statuses| format!("status={statuses}")),
            self.path.map(|path| format!("path={path}")),
            self.method.map(|method| format!("method={method}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// A set of status codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Statuses([u64; WORDS]);

impl Statuses {
    /// Adds a code between [`STATUS_MIN`] and [`STATUS_MAX`].
    pub fn add(&mut self, status: u16) {
        if let Some((word, bit)) = place(status) {
            self.0[word] |= bit;
        }
    }

    /// Returns true if the set contains a code.
    pub fn has(&self, status: u16) -> bool {
        place(status).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }
}

fn place(status: u16) -> Option<(usize, u64)> {
    let at = usize::from(status.checked_sub(STATUS_MIN)?);
    (status <= STATUS_MAX).then(|| (at / 64, 1 << (at % 64)))
}

impl fmt::Display for Statuses {
    /// Writes the codes, with whole classes abbreviated: `401,403`, `4xx,503`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = |hundred: u16| {
            let codes = hundred * 100..hundred * 100 + 100;
            if codes.clone().all(|status| self.has(status)) {
                return vec![format!("{hundred}xx")];
            }
            codes.filter(|status| self.has(*status)).map(|status| status.to_string()).collect()
        };
        f.write_str(&(1..=STATUS_MAX / 100).flat_map(class).collect::<Vec<_>>().join(","))
    }
}

/// A path, or a common prefix of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: ArrayString<PATH_BYTES_MAX>,
    is_prefix: bool,
}

impl PathPattern {
    /// Returns the pattern for `/login`, or for `/api/*`: all paths that begin with `/api/`. The path is normalised
    /// as servers do: `/a/../%6cogin` is `/login`. None if it does not begin with a slash, is too long, or has a
    /// star, `?` or `#` elsewhere.
    pub fn new(text: &str) -> Option<Self> {
        let (path, is_prefix) = match text.strip_suffix('*') {
            Some(path) => (path, true),
            None => (text, false),
        };
        let is_path = path.starts_with('/') && !path.contains(['*', '?', '#']);
        let text = ArrayString::from(&normalised(path)).ok().filter(|_| is_path)?;
        Some(Self { text, is_prefix })
    }

    /// Returns true if a request's target matches the pattern, regardless of its query and its spelling.
    pub fn matches(&self, target: &str) -> bool {
        let path = normalised(target);
        let trimmed = |path: &str| path.trim_end_matches('/').to_owned();
        if self.is_prefix {
            path.starts_with(self.text.as_str()) || format!("{path}/") == self.text.as_str()
        } else {
            trimmed(&path) == trimmed(&self.text)
        }
    }
}

impl fmt::Display for PathPattern {
    /// Writes a percent sign and two digits for each byte that [`PathPattern::new`] would read as something else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.text.bytes() {
            if byte.is_ascii_graphic() && !b"%*?#,\"\\".contains(&byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        f.write_str(if self.is_prefix { "*" } else { "" })
    }
}

/// Returns the path that a server looks up for a target: without scheme, host and query. Percent escapes are decoded.
/// Empty components, `.` and `..` are removed.
fn normalised(target: &str) -> String {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = match path.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => rest.find('/').map_or("/", |at| &rest[at..]),
        _ => path,
    };
    let decoded = decoded(path);
    let ends_in_slash = decoded.ends_with('/') || decoded.ends_with("/.") || decoded.ends_with("/..");
    let mut components: Vec<&str> = Vec::new();
    for component in decoded.split('/').filter(|component| !component.is_empty() && *component != ".") {
        if component == ".." {
            components.pop();
        } else if components.len() < COMPONENTS_MAX {
            components.push(component);
        }
    }
    let end = if ends_in_slash && !components.is_empty() { "/" } else { "" };
    format!("/{}{end}", components.join("/"))
}

/// Decodes `%6c`, and the form `\\x6c` in which nginx and Apache write bytes to their logs.
fn decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let hex = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    while let Some(byte) = bytes.get(at) {
        let escape_len = if bytes[at..].starts_with(b"\\x") { 2 } else { usize::from(*byte == b'%') };
        let digits = hex(at + escape_len).zip(hex(at + escape_len + 1)).filter(|_| escape_len > 0);
        let code = digits.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        out.push(code.unwrap_or(*byte));
        at += code.map_or(1, |_| escape_len + 2);
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_met_however_it_is_written_and_no_other_is() {
        let login = PathPattern::new("/login").unwrap();
        for target in [
            "/login",
            "/login/",
            "/login?next=/",
            "//login",
            "/./login",
            "/a/../login",
            "/%6cogin",
            "/%6Cogin#x",
            "https://example.org/login?x",
            "/../login",
            "/a/b/../../login",
            r"/\x6cogin",
        ] {
            assert!(login.matches(target), "{target}");
        }
        for target in ["/", "/login2", "/log", "/a/login", "/Login", "*", "", "/%256cogin", "/login%2fx", "/?/login"] {
            assert!(!login.matches(target), "{target}");
        }
        let api = PathPattern::new("/api/*").unwrap();
        for (target, is_met) in [
            ("/api/", true),
            ("/api/v1/a", true),
            ("/api", true),
            ("/apix", false),
            ("/x/../api/a", true),
            ("/", false),
        ] {
            assert_eq!(api.matches(target), is_met, "{target}");
        }
        assert!(PathPattern::new("/*").unwrap().matches("/anything"));
        for (written, printed) in [
            ("/a/../login", "/login"),
            ("//%6cogin", "/login"),
            ("/caf%C3%A9", "/caf%C3%A9"),
            ("/café", "/caf%C3%A9"),
            ("/a%20b/*", "/a%20b/*"),
            ("/100%25/%2a%2C*", "/100%25/%2A%2C*"),
        ] {
            let pattern = PathPattern::new(written).unwrap();
            assert_eq!(pattern.to_string(), printed);
            assert_eq!(PathPattern::new(printed), Some(pattern), "{printed}");
            assert!(pattern.matches(written.trim_end_matches('*')), "{written}");
        }
        for wrong in ["", "login", "*", "/a*b", "/a?b", &format!("/{}", "x".repeat(PATH_BYTES_MAX))] {
            assert_eq!(PathPattern::new(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_that_is_set_has_to_be_met_and_what_is_not_known_meets_nothing() {
        let mut statuses = Statuses::default();
        [401, 403].into_iter().for_each(|status| statuses.add(status));
        (500..600).for_each(|status| statuses.add(status));
        assert_eq!(statuses.to_string(), "401,403,5xx");
        let condition = Condition {
            statuses: Some(statuses),
            path: PathPattern::new("/login"),
            method: ArrayString::from("POST").ok(),
        };
        assert_eq!(condition.to_string(), "status=401,403,5xx path=/login method=POST");
        let met = LoggedRequest { status: Some(401), target: Some("/login"), method: Some("post") };
        assert!(condition.is_met_by(met));
        for other in [
            LoggedRequest { status: Some(200), ..met },
            LoggedRequest { status: None, ..met },
            LoggedRequest { target: Some("/"), ..met },
            LoggedRequest { target: None, ..met },
            LoggedRequest { method: Some("GET"), ..met },
            LoggedRequest { method: None, ..met },
            LoggedRequest { status: Some(65_535), ..met },
        ] {
            assert!(!condition.is_met_by(other), "{other:?}");
        }
        assert!(Condition::default().is_met_by(LoggedRequest::default()));
    }
}
