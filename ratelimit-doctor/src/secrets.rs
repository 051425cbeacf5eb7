//! Removes secrets from a text. These are contents of secret files, values beside words such as `password`, and user
//! parts and paths of URLs. Also tokens by their prefixes, passwords given to programs, and private keys.

use std::path::Path;

use ratelimit_policy::files;

mod json;
mod tokens;
mod words;

pub(crate) use words::Whose;

/// Replacement for a secret.
const HIDDEN: &str = "<secret>";

/// Minimum length of a line of a secret file that is hidden elsewhere. Shorter lines would match in ordinary words.
const LINE_MIN: usize = 6;
/// Maximum size in bytes of a secret file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// JSON keys whose values were written by users.
const OF_USERS: [&str; 4] = ["reason", "comment", "note", "detail"];

/// The secrets of this host.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// Lines of the secret files, longest first.
    lines: Vec<String>,
}

/// Extent of a secret that continues after its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoesOn {
    /// Up to the line that contains this text.
    Until(&'static str),
    /// The next line that is not empty.
    Next,
    /// The next line that is not empty, if it is a comment too.
    NextComment,
}

impl Secrets {
    /// Reads the secrets in these files. Files that this user cannot read are skipped: this user cannot have copied
    /// their contents into a text.
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
            // A JSON file has its secrets as strings.
            let parts = text.split(['\n', '"']).map(str::trim).filter(|part| part.len() >= LINE_MIN);
            lines.extend(parts.filter(|part| !part.starts_with("-----")).map(str::to_owned));
        }
        lines.sort_by_key(|line| std::cmp::Reverse(line.len()));
        Self { lines }
    }

    /// Returns the text without secrets.
    pub(crate) fn hide(&self, text: &str, whose: Whose) -> String {
        let text = self.without_lines(text);
        let mut out = String::with_capacity(text.len());
        let mut goes_on: Option<GoesOn> = None;
        for line in text.split_inclusive('\n') {
            let (content, newline) = line.strip_suffix('\n').map_or((line, ""), |content| (content, "\n"));
            let marker = content.len() - content.trim_start_matches([' ', '\t', '#', ';']).len();
            match goes_on {
                Some(GoesOn::Until(end)) => {
                    if line.contains(end) {
                        goes_on = None;
                    }
                    continue;
                }
                Some(GoesOn::Next | GoesOn::NextComment) if content[marker..].is_empty() => {
                    out.push_str(line);
                    continue;
                }
                Some(of @ (GoesOn::Next | GoesOn::NextComment)) => {
                    goes_on = None;
                    if of == GoesOn::Next || whose == Whose::Users || content[..marker].contains(['#', ';']) {
                        out.extend([&content[..marker], HIDDEN, newline]);
                        continue;
                    }
                }
                None => {}
            }
            if content.contains("-----BEGIN") && content.contains("PRIVATE KEY") {
                out.extend([HIDDEN, newline]);
                // Some keys are on one line, with `\n` spelled out, as in JSON.
                goes_on = (!content.contains("-----END")).then_some(GoesOn::Until("-----END"));
                continue;
            }
            let (hidden, next) = words::hide_line(content, whose);
            out.push_str(&tokens::hide(&hidden, whose));
            out.push_str(newline);
            goes_on = next;
        }
        out
    }

    /// Hides secrets in JSON, one document or one per line, and keeps it valid. `beside` then changes each string.
    pub(crate) fn hide_json(&self, text: &str, beside: impl Fn(&str) -> String) -> String {
        json::changed(text, words::names_a_secret, |key, text| {
            let whose = if key.is_some_and(|key| OF_USERS.contains(&key)) { Whose::Users } else { Whose::Ours };
            beside(&self.hide(text, whose))
        })
    }

    fn without_lines(&self, text: &str) -> String {
        self.lines.iter().fold(text.to_owned(), |text, line| text.replace(line.as_str(), HIDDEN))
    }
}

#[cfg(test)]
mod tests;
