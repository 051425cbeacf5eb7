//! Takes out of a text what is secret: what files of secrets hold, values beside words such as `password`, what stands
//! before the `@` of a URL and behind its host, and private keys.

use std::path::Path;

use ratelimit_policy::files;

/// What stands for a secret.
const HIDDEN: &str = "<secret>";

/// Words that a secret stands behind; a key that ends in `file` names where it is, which is none.
const WORDS: [&str; 18] = [
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "api_key",
    "api-key",
    "apikey",
    "private_key",
    "private-key",
    "authorization",
    "cookie",
    "credential",
    "requirepass",
    "pwd",
    "psk",
    "bearer",
    "akia",
];

/// A shorter line of a file of secrets would be found in words.
const LINE_MIN: usize = 6;
/// The longest file of secrets that is looked for.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What is secret on this host.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// Longest first.
    lines: Vec<String>,
}

impl Secrets {
    /// What stands in these files, as far as this user may read them; who may not cannot have put it into a text either.
    pub(crate) fn of(paths: &[&Path]) -> Self {
        let text = |path: &&Path| {
            let bytes = files::read_of_anyone(path, FILE_BYTES_MAX).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        Self::new(paths.iter().filter_map(text))
    }

    fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let mut lines = Vec::new();
        for text in texts {
            // A file of JSON has its secrets as strings.
            let parts = text.split(['\n', '"']).map(str::trim).filter(|part| part.len() >= LINE_MIN);
            lines.extend(parts.filter(|part| !part.starts_with("-----")).map(str::to_owned));
        }
        lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
        Self { lines }
    }

    /// The text without any.
    pub(crate) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for line in &self.lines {
            text = text.replace(line.as_str(), HIDDEN);
        }
        let mut out = String::with_capacity(text.len());
        let mut until: Option<&str> = None;
        for line in text.split_inclusive('\n') {
            match until {
                Some(end) if line.contains(end) => until = None,
                Some(_) => {}
                None if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") => {
                    out.push_str("<secret>\n");
                    // All on one line, with `\n` spelled out, as JSON has it.
                    until = (!line.contains("-----END")).then_some("-----END");
                }
                None => {
                    let (hidden, goes_on) = hide_line(line);
                    out.push_str(&hide_urls(&hidden));
                    until = goes_on;
                }
            }
        }
        out
    }
}

/// The line without values beside those words; and, where a value goes on in the lines after it, what ends it.
fn hide_line(line: &str) -> (String, Option<&'static str>) {
    let lower = line.to_ascii_lowercase();
    let is_comment = lower.trim_start().starts_with(['#', ';']);
    let mut at = 0;
    while let Some((word_at, word)) = first_word(&lower, at) {
        let after = word_at + word.len();
        at = after;
        // The rest of the key: `_file`, `_hash`.
        let key_end = after
            + lower[after..]
                .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-')))
                .unwrap_or(lower.len() - after);
        if lower[after..key_end].ends_with("file") {
            continue;
        }
        let rest = &line[key_end..];
        let spaces = rest.len() - rest.trim_start_matches(['"', '\'', ' ', '\t', '\\']).len();
        let is_given = rest[spaces..].starts_with([':', '=']);
        if !is_given && !is_comment {
            continue;
        }
        let from = key_end + if is_given { spaces + 1 } else { spaces };
        let value = line[from..].trim_start();
        let start = line.len() - value.len();
        let newline = if line.ends_with('\n') { "\n" } else { "" };
        for quotes in ["\"\"\"", "'''"] {
            if value.starts_with(quotes) && value.matches(quotes).count() == 1 {
                return (
                    format!("{}{HIDDEN}{newline}", &line[..start]),
                    Some(if quotes == "'''" { "'''" } else { "\"\"\"" }),
                );
            }
        }
        if value.trim_end() == "[" {
            return (format!("{}{HIDDEN}{newline}", &line[..start]), Some("]"));
        }
        // Of JSON on one line only the value goes; of anything else the rest of the line.
        let quoted = value.strip_prefix('"').filter(|_| !value.starts_with("\"\"\"")).and_then(end_of_string);
        if let Some(end) = quoted {
            let value_end = start + 1 + end;
            let (rest, goes_on) = hide_line(&line[value_end + 1..]);
            return (format!("{}\"{HIDDEN}\"{rest}", &line[..start]), goes_on);
        }
        return (format!("{}{HIDDEN}{newline}", &line[..start]), None);
    }
    (line.to_owned(), None)
}

fn first_word(lower: &str, from: usize) -> Option<(usize, &'static str)> {
    let found = |word: &'static str| lower[from..].find(word).map(|at| (from + at, word));
    WORDS.into_iter().filter_map(found).min_by_key(|(at, _)| *at)
}

/// Where the quotation ends that has begun.
fn end_of_string(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

/// Without what stands before the `@` of URLs, which may hold a slash where nobody has escaped it, and without their paths and
/// queries: webhooks and feeds have their keys there. A local path, behind no host, is none but for its query; neither is the
/// number of a store's database.
fn hide_urls(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        out.push_str(before);
        out.push_str("://");
        let len =
            after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`')).unwrap_or(after.len());
        let (url, further) = after.split_at(len);
        let url = match url.rsplit_once('@') {
            Some((_, host)) => {
                out.push_str(HIDDEN);
                out.push('@');
                host
            }
            None => url,
        };
        let is_local = url.starts_with('/');
        let shown = url.find(|c: char| matches!(c, '?' | '#') || (c == '/' && !is_local)).unwrap_or(url.len());
        let (host, behind) = url.split_at(shown);
        out.push_str(host);
        let plain = behind.trim_end_matches([')', ']', ',', '.', ';', ':', '}', '|']);
        let is_database =
            plain.strip_prefix('/').is_some_and(|of| of.len() <= 2 && of.bytes().all(|c| c.is_ascii_digit()));
        if is_database || plain.is_empty() {
            out.push_str(behind);
        } else {
            out.push_str(plain.get(..1).unwrap_or_default());
            out.push_str(HIDDEN);
            out.push_str(&behind[plain.len()..]);
        }
        rest = further;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "hunter2-Tr0ub4dor";

    #[test]
    fn no_secret_is_left_wherever_it_stands() {
        for text in [
            format!("password = \"{SECRET}\""),
            format!("# password: {SECRET}"),
            format!("# the old password was {SECRET}"),
            format!("PASSWORD={SECRET} other"),
            format!("secret={SECRET}"),
            format!("{{\"token\":\"{SECRET}\",\"schema\":1}}"),
            format!("{{\"a\":1,\"password\" : \"x\\\"{SECRET}\"}}"),
            format!("api_key: '{SECRET}'"),
            format!("password = \"\"\"\nfirst\n{SECRET}\n\"\"\"\nnext = 1"),
            format!("tokens = [\n  \"{SECRET}\",\n]\nnext = 1"),
            format!("url = \"redis://rl:{SECRET}@192.0.2.1:6379\""),
            format!("url = [\"rediss://:{SECRET}@a:1\", \"rediss://:{SECRET}@b:1\"]"),
            format!("redis://:pa/{SECRET}@a:6379/0"),
            format!("redis://:p@{SECRET}@a:6379/0"),
            format!("http://127.0.0.1:9464/login#{SECRET}"),
            format!("URL=https://hooks.example.org/services/T0/{SECRET}\nnext = 1"),
            format!("url = \"https://example.org/{SECRET}/list.txt\" # a feed"),
            format!("https://example.org/list?key={SECRET}&format=text, and so on"),
            format!("https://example.org?{SECRET}"),
            format!("https://example.org/a#{SECRET}"),
            format!("(https://u:p@example.org/a/{SECRET})"),
            format!("unix:///run/valkey.sock?pw={SECRET}"),
            format!("redis+unix:///run/valkey.sock?db=1&x={SECRET}"),
            format!("cannot reach https://[2001:db8::1]:8443/lapi/{SECRET}: refused"),
            format!("Authorization: Bearer {SECRET}"),
            format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\nnext = 1"),
        ] {
            let hidden = Secrets::default().hide(&text);
            assert!(!hidden.contains(SECRET) && hidden.contains(HIDDEN), "{text} -> {hidden}");
            assert_eq!(hidden.contains("next = 1"), text.contains("next = 1"), "{text} -> {hidden}");
        }
    }

    #[test]
    fn what_a_file_of_secrets_holds_is_hidden_in_any_text() {
        let secrets = Secrets::new([format!("{SECRET}\n"), "{\"token\":\"abcdef0123\"}".to_owned()]);
        assert_eq!(secrets.hide(&format!("x{SECRET}y abcdef0123")), format!("x{HIDDEN}y {HIDDEN}"));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, format!("{SECRET}\n")).unwrap();
        let secrets = Secrets::of(&[&path, Path::new("/nonexistent")]);
        assert_eq!(secrets.hide(SECRET), HIDDEN);
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "secret_file = \"/etc/ratelimitd/fleet.secret\"\n",
            "password_file = \"/etc/x\"\nhosts = 4\n",
            "the fleet's secret cannot be taken from /etc/x: permission denied\n",
            "{\"id\":\"files.secret\",\"state\":\"ok\"}\n",
            "see https://example.org/ and http://127.0.0.1:8080, redis://192.0.2.1:6379/0\n",
            "file:///etc/ratelimitd/feeds/drop.env and unix:///run/valkey.sock\n",
            "(https://example.org).\n",
            "",
        ] {
            assert_eq!(Secrets::default().hide(text), text);
        }
        let hidden = Secrets::default().hide("{\"token\":\"x\",\"schema\":1}");
        assert_eq!(hidden, "{\"token\":\"<secret>\",\"schema\":1}");
    }
}
