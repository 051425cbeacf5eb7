//! Takes out of a text what is secret: what files of secrets hold, values beside words such as `password`, what stands
//! before the `@` of a URL and behind its host, tokens by their prefixes, what programs are given as passwords, and private
//! keys.

use std::path::Path;

use ratelimit_policy::files;

mod json;
mod tokens;
mod words;

pub(crate) use words::Whose;

/// What stands for a secret.
const HIDDEN: &str = "<secret>";

/// A shorter line of a file of secrets would be found in words.
const LINE_MIN: usize = 6;
/// The longest file of secrets that is looked for.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Keys of JSON whose values users wrote.
const OF_USERS: [&str; 4] = ["reason", "comment", "note", "detail"];

/// What is secret on this host.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// Longest first.
    lines: Vec<String>,
}

/// What of the lines after one is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoesOn {
    /// Up to the line that has this.
    Until(&'static str),
    /// The next that says anything.
    Next,
    /// The next, where it is a comment as well.
    NextComment,
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
                // All on one line, with `\n` spelled out, as JSON has it.
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

    /// JSON, one document or one a line, that stays what it is. `beside` changes what is left of each string.
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
