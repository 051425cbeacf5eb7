//! Errors in the user's input, with their place. Output and exit codes are in `error`.

mod secret;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

pub(crate) use self::secret::in_address;

/// An error in the user's input: the problem, its place and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Description of the problem, a clause without a full stop.
    pub problem: String,
    /// Place of the problem.
    pub place: Place,
    /// Advice for the user, one clause each.
    pub help: Vec<String>,
}

impl Diagnostic {
    /// Returns the line of the file, from 1, if the place is known.
    pub fn line(&self) -> Option<usize> {
        match &self.place {
            Place::File { excerpt: Some(excerpt), .. } => Some(excerpt.line),
            Place::CommandLine | Place::Flag { .. } | Place::File { excerpt: None, .. } => None,
        }
    }
}

/// Place of an error in the user's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The command line as a whole.
    CommandLine,
    /// The value of a flag or argument.
    Flag {
        /// Name of the flag with its dashes: `--limit`.
        flag: &'static str,
        /// Value of the flag.
        text: String,
        /// Offending bytes of the value.
        span: Range<usize>,
    },
    /// A configuration or list file.
    File {
        /// Path of the file, as it was given.
        path: PathBuf,
        /// Place in the file. None if the error concerns the whole file.
        excerpt: Option<Box<Excerpt>>,
    },
}

/// A line of a file, with a mark under the offending part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// Number of the line, from 1.
    pub line: usize,
    /// Column of the mark's first character, from 1.
    pub column: usize,
    /// Text of the line, cut to the surroundings of the mark if it is long. None if the reader may not read the file,
    /// or if the line may hold a password.
    pub text: Option<String>,
    /// Marked bytes of `text`.
    pub span: Range<usize>,
}

/// Maximum number of bytes shown on each side of the mark's start. A whole file may be one line.
const AROUND_MAX: usize = 120;

impl Excerpt {
    /// Returns the line of `contents` in which the byte range `span` begins. The mark ends at the line's end at the
    /// latest.
    pub fn of(contents: &str, span: Range<usize>) -> Self {
        let floor =
            |at: usize| (0..=at.min(contents.len())).rev().find(|at| contents.is_char_boundary(*at)).unwrap_or(0);
        let start = floor(span.start);
        let line_start = contents[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = contents[line_start..].find('\n').map_or(contents.len(), |length| line_start + length);
        let text = contents[line_start..line_end].trim_end_matches('\r');
        let end = floor(span.end).clamp(start, line_start + text.len().max(start - line_start));
        let shown_start = floor(start.saturating_sub(AROUND_MAX).max(line_start));
        let shown_end = floor((start + AROUND_MAX).min(line_start + text.len())).max(start);
        let line = contents[..line_start].matches('\n').count() + 1;
        let column = contents[line_start..start].chars().count() + 1;
        if secret::may_hold_one(&contents[..line_start], text) {
            return Self { line, column, text: None, span: 0..0 };
        }
        let span = start - shown_start..end.min(shown_end) - shown_start;
        Self { line, column, text: Some(contents[shown_start..shown_end].to_owned()), span }
    }
}

impl std::error::Error for Diagnostic {}

impl fmt::Display for Diagnostic {
    /// Writes one line for logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Place::File { path, excerpt } = &self.place {
            write!(f, "{}:", path.display())?;
            if let Some(excerpt) = excerpt {
                write!(f, "{}:{}:", excerpt.line, excerpt.column)?;
            }
            write!(f, " ")?;
        }
        write!(f, "{}", self.problem)?;
        if !self.help.is_empty() {
            write!(f, " ({})", self.help.join("; "))?;
        }
        Ok(())
    }
}

/// All errors in the user's input, ordered by place; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    first: Box<Diagnostic>,
    others: Vec<Diagnostic>,
    more: usize,
}

/// Maximum number of diagnostics that are kept. Further ones are only counted. // 64 x 1 kB = 64 kB
const TOLD_MAX: usize = 64;

impl Diagnostics {
    /// Returns the first diagnostic.
    pub fn first(&self) -> &Diagnostic {
        &self.first
    }

    /// Returns all diagnostics that were kept.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        std::iter::once(self.first()).chain(&self.others)
    }

    /// Returns the number of further diagnostics, which were only counted.
    pub const fn more(&self) -> usize {
        self.more
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(first: Diagnostic) -> Self {
        Self { first: Box::new(first), others: Vec::new(), more: 0 }
    }
}

impl std::error::Error for Diagnostics {}

impl fmt::Display for Diagnostics {
    /// Writes one line for each diagnostic.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.others.iter().try_for_each(|other| write!(f, "\n{other}"))?;
        if self.more > 0 { write!(f, "\nand {} more", self.more) } else { Ok(()) }
    }
}

/// Collector of errors, so that all are reported at once. A value that could not be read has a placeholder meanwhile.
/// Nobody sees it, because [`Found::into_result`] returns no value if anything was found.
#[derive(Debug, Default)]
pub struct Found {
    all: Vec<Diagnostic>,
    more: usize,
    /// Keys and tables that are present but cannot be read.
    unread: Vec<String>,
}

impl Found {
    /// Adds a diagnostic, unless an equal one is kept. If 64 are kept, it is only counted.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        match self.all.len() {
            _ if self.all.contains(&diagnostic) => {}
            TOLD_MAX.. => self.more += 1,
            _ => self.all.push(diagnostic),
        }
    }

    /// Returns the value. An error is added to the diagnostics, and the result is None.
    pub fn keep<T, E: Into<Diagnostics>>(&mut self, result: Result<T, E>) -> Option<T> {
        let wrong = match result {
            Ok(value) => return Some(value),
            Err(wrong) => wrong.into(),
        };
        self.more += wrong.more;
        std::iter::once(*wrong.first).chain(wrong.others).for_each(|diagnostic| self.push(diagnostic));
        None
    }

    /// Records that a key, or a table with all its keys, is present but cannot be read. It is then not reported as
    /// missing too.
    pub fn unread(&mut self, key: impl Into<String>) {
        self.unread.push(key.into());
    }

    /// Adds the diagnostic for a missing key, unless the key or its table is present but cannot be read.
    pub fn missing(&mut self, key: &str, diagnostic: Diagnostic) {
        let is_in =
            |of: &String| key.strip_prefix(of.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if !self.unread.iter().any(is_in) {
            self.push(diagnostic);
        }
    }

    /// Returns true if no further diagnostic can be kept.
    pub fn is_full(&self) -> bool {
        self.all.len() == TOLD_MAX
    }

    /// Returns the number of diagnostics found so far.
    pub fn count(&self) -> usize {
        self.all.len() + self.more
    }

    /// Removes the diagnostics for which `passes` is false.
    pub fn retain(&mut self, passes: impl Fn(&Diagnostic) -> bool) {
        self.all.retain(passes);
    }

    /// Returns the value if nothing was found. Otherwise returns all diagnostics, ordered by place.
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        let mut all = self.all;
        all.sort_by_cached_key(|of| match &of.place {
            Place::CommandLine | Place::Flag { .. } => None,
            Place::File { path, excerpt: None } => Some((path.clone(), usize::MAX, 0)),
            Place::File { path, excerpt: Some(excerpt) } => Some((path.clone(), excerpt.line, excerpt.column)),
        });
        let mut all = all.into_iter();
        match all.next() {
            Some(first) => Err(Diagnostics { first: Box::new(first), others: all.collect(), more: self.more }),
            None => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_of_a_long_line_shows_the_part_around_the_mark() {
        let contents = format!("a = 1\n{}\"x\"{}\n", "\u{e9}".repeat(100_000), "z".repeat(100_000));
        let at = 6 + 200_000;
        let excerpt = Excerpt::of(&contents, at..at + 3);
        assert_eq!((excerpt.line, excerpt.column), (2, 100_001));
        let text = excerpt.text.unwrap();
        assert_eq!(&text[excerpt.span.clone()], "\"x\"");
        assert!(text.len() <= 2 * AROUND_MAX && text.starts_with('\u{e9}'));
        let all = Excerpt::of(&contents, 6..contents.len());
        assert_eq!((all.column, all.span), (1, 0..AROUND_MAX));
    }
}
