//! Error texts of the store, cleaned for display. Pure.

use std::fmt;

use ratelimit_policy::config::syntax::printable;

use super::bounded::Notes;

/// Maximum number of characters that are shown.
pub const SHOWN_MAX: usize = 240;

/// Error text of the store, without the request and without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said(String);

impl Said {
    /// Cleans an error text of the store. None if nothing is left or the text contains the password.
    pub fn new(words: &str, password: Option<&str>) -> Option<Self> {
        // After these words an error repeats the request.
        let repeats = [", with args beginning with", " with args beginning with"];
        let end = repeats.iter().filter_map(|repeats| words.find(repeats)).min().unwrap_or(words.len());
        let words = printable(words[..end].trim());
        let has_password = password.is_some_and(|password| !password.is_empty() && words.contains(password));
        if words.is_empty() || has_password {
            return None;
        }
        let mut shown: String = words.chars().take(SHOWN_MAX).collect();
        if shown.len() < words.len() {
            shown.push('…');
        }
        Some(Self(shown))
    }

    /// Returns the last error of a connection.
    pub(super) fn last(notes: &Notes, password: Option<&str>) -> Option<Self> {
        Self::new(&notes.error()?, password)
    }

    /// Returns the error that was a server's only answer before it ended the connection.
    pub(super) fn farewell(notes: &Notes) -> Option<Self> {
        Self::new(&notes.farewell()?, None)
    }

    /// Returns the cleaned text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_repeat_neither_the_command_nor_the_password() {
        let said = |words: &str| Said::new(words, Some("hunter2")).map(|said| said.to_string());
        assert_eq!(
            said("ERR unknown command 'AUTH', with args beginning with: 'rl' 'hunter2' ").as_deref(),
            Some("ERR unknown command 'AUTH'")
        );
        assert_eq!(said("ERR no hunter2"), None);
        assert_eq!(said("  "), None);
        assert_eq!(said("-\u{1b}[2J").as_deref(), Some("-\u{fffd}[2J"));
        assert!(said(&"word ".repeat(1000)).unwrap().chars().count() == SHOWN_MAX + 1);
    }
}
