//! Common parts of the small grammars of flags and file: an error with its place in the text, a scanner, and near
//! misses. Independent of what is parsed.

use std::ops::Range;

/// An error in a text, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Offending bytes of the text, on character boundaries. Empty where something is missing.
    pub span: Range<usize>,
    /// Description of the error, a clause without a full stop.
    pub problem: String,
    /// Advice for the user, a clause without a full stop.
    pub help: Option<String>,
}

impl SyntaxError {
    /// Returns an error at `span`, without help.
    pub fn new(span: Range<usize>, problem: impl Into<String>) -> Self {
        Self { span, problem: shortened(problem.into()), help: None }
    }

    /// Returns this error with `help`.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(shortened(help.into())), ..self }
    }

    /// Returns this error with `help`, or unchanged if `help` is None.
    #[must_use]
    pub fn with_help_if(self, help: Option<String>) -> Self {
        Self { help: help.or(self.help), ..self }
    }

    /// Returns this error with its span moved by `offset`, the place of the parsed text in a larger text.
    #[must_use]
    pub fn shifted(self, offset: usize) -> Self {
        Self { span: self.span.start + offset..self.span.end + offset, ..self }
    }
}

/// Returns true if a terminal would show the text after `c` in another order or on another line. These are Unicode's
/// bidirectional formatting characters (UAX #9) and its line and paragraph separators.
pub const fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces each character that a terminal would act on by one other character, so that marks below the text stay in
/// place.
pub fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() || turns_text(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Makes several lines [`printable`], and keeps their line ends.
pub fn printable_lines(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| line.strip_suffix('\n').map_or_else(|| printable(line), |line| printable(line) + "\n"))
        .collect()
}

/// Escapes the characters in JSON that a terminal would act on and that JSON permits unescaped, for example as
/// `\u009b`.
pub fn json_text(json: &str) -> String {
    let is_obeyed = |c: char| (c.is_control() && c != '\n') || turns_text(c);
    let mut text = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_obeyed(*c)) {
        text += &rest[..at];
        c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}"));
        rest = &rest[at + c.len_utf8()..];
    }
    text + rest
}

/// Maximum length of a message in characters. A quoted text may be as long as the file, and its place is shown
/// anyway.
const SAID_MAX: usize = 300;

/// Shortens a text to 300 characters, and marks the cut with an ellipsis.
pub fn shortened(text: String) -> String {
    match text.char_indices().nth(SAID_MAX) {
        Some((at, _)) => format!("{}\u{2026}", &text[..at]),
        None => text,
    }
}

/// Returns the candidate that `word` most likely means. The spelling may differ in at most a third of the candidate's
/// characters, and at least in one.
pub fn near_miss<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let length = word.chars().count();
    let differs_at_most = |candidate: &str| 1.max(candidate.chars().count() / 3);
    candidates
        .into_iter()
        // The distance is at least the difference in length. Computing it takes memory proportional to the product of
        // both.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= differs_at_most(candidate))
        .map(|candidate| (strsim::damerau_levenshtein(&word, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= differs_at_most(candidate))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// A reader of a text, from left to right, by classes of characters.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    /// Returns a scanner at the start of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns the text that is left.
    pub fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Returns true if no text is left.
    pub fn is_done(&self) -> bool {
        self.rest().is_empty()
    }

    /// Reads all next characters for which `belongs` is true. The result may be empty.
    pub fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Reads `expected` if it is the next character. Returns whether it was.
    pub fn take(&mut self, expected: char) -> bool {
        let is_next = self.rest().starts_with(expected);
        if is_next {
            self.at += expected.len_utf8();
        }
        is_next
    }

    /// Returns the byte range of the next character. Empty at the end.
    pub fn next_span(&self) -> Range<usize> {
        self.at..self.at + self.rest().chars().next().map_or(0, char::len_utf8)
    }

    /// Returns the byte range from `start` to the current place.
    pub fn span_from(&self, start: usize) -> Range<usize> {
        start..self.at
    }
}

/// Yields the trimmed items of a comma-separated list, each with its offset. Empty items are errors.
pub fn items(text: &str) -> impl Iterator<Item = Result<(usize, &str), SyntaxError>> {
    let mut offset = 0;
    text.split(',').map(move |item| {
        let start = offset;
        offset += item.len() + 1;
        let trimmed = item.trim_start();
        let start = start + (item.len() - trimmed.len());
        let trimmed = trimmed.trim_end();
        if trimmed.is_empty() {
            let problem = if text.trim().is_empty() { "it is empty" } else { "there is nothing between the commas" };
            return Err(SyntaxError::new(start..start, problem).with_help("separate values by one comma each"));
        }
        Ok((start, trimmed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_nothing_that_a_terminal_obeys_and_says_the_same() {
        let json = "[\n  \"a\u{9b}31m\u{7f}\u{202e}\u{e9}\\n\"\n]";
        assert_eq!(json_text(json), "[\n  \"a\\u009b31m\\u007f\\u202e\u{e9}\\n\"\n]");
    }

    #[test]
    fn a_near_miss_is_a_spelling_away() {
        let words = ["limits", "ports", "name"];
        assert_eq!(near_miss("limts", words), Some("limits"));
        assert_eq!(near_miss("LIMITS", words), Some("limits"));
        assert_eq!(near_miss("prots", words), Some("ports"));
        assert_eq!(near_miss("sources", words), None);
        assert_eq!(near_miss("", words), None);
    }

    #[test]
    fn messages_about_a_long_text_are_short() {
        let long = "x".repeat(1 << 20);
        assert_eq!(near_miss(&long, ["limits", "ports"]), None);
        let error = SyntaxError::new(0..1, format!("`{long}` is no limit")).with_help(format!("not {long}"));
        assert!(error.problem.len() <= 304 && error.help.is_some_and(|help| help.len() <= 304));
        assert_eq!(shortened("as it was".into()), "as it was");
    }

    #[test]
    fn items_know_where_they_start() {
        let found: Result<Vec<_>, _> = items("a, bc ,d").collect();
        assert_eq!(found, Ok(vec![(0, "a"), (3, "bc"), (7, "d")]));
        let missing: Vec<_> = items("a,,b").filter_map(Result::err).map(|error| error.span.start).collect();
        assert_eq!(missing, [2]);
    }
}
