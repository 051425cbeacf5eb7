//! Something wrong that the user wrote, with the place where it stands. How it is printed, and the exit code, are in `error`.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// Something that the user wrote and that does not work: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, a clause without a full stop.
    pub problem: String,
    /// Where.
    pub place: Place,
    /// What to do, one clause each.
    pub help: Vec<String>,
}

/// Where something wrong was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The command line as a whole.
    CommandLine,
    /// The value of a flag or argument.
    Flag {
        /// The flag, `--limit`.
        flag: &'static str,
        /// Its value.
        text: String,
        /// The offending bytes of the value.
        span: Range<usize>,
    },
    /// A file.
    File {
        /// Its path, as it was given.
        path: PathBuf,
        /// The place in it, where there is one.
        excerpt: Option<Box<Excerpt>>,
    },
}

/// A line of a file with a mark under part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// Number of the line, from 1.
    pub line: usize,
    /// The mark's first character in the line, from 1.
    pub column: usize,
    /// The line; of a long one what is around the mark. None of a file that whoever reads this may not read.
    pub text: Option<String>,
    /// The marked bytes of `text`.
    pub span: Range<usize>,
}

/// Bytes of a line on each side of where a mark begins. A file may be one line.
const AROUND_MAX: usize = 120;

impl Excerpt {
    /// The line of `contents` in which `span` (bytes) begins; the mark ends with the line at the latest.
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
        Self {
            line: contents[..line_start].matches('\n').count() + 1,
            column: contents[line_start..start].chars().count() + 1,
            text: Some(contents[shown_start..shown_end].to_owned()),
            span: start - shown_start..end.min(shown_end) - shown_start,
        }
    }

    /// Line and column of `span` alone.
    pub fn without_text(contents: &str, span: Range<usize>) -> Self {
        Self { text: None, span: 0..0, ..Self::of(contents, span) }
    }
}

impl std::error::Error for Diagnostic {}

impl fmt::Display for Diagnostic {
    /// On one line, for logs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_line_what_is_around_the_mark_is_shown() {
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
