//! What is said when something fails, and the exit code that goes with it. The one place that prints an error.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::styling::{AnsiColor, Style};

use crate::config::syntax::printable;
use crate::control::client::ClientError;
use crate::daemon::DaemonError;
use crate::datapath::DatapathError;

/// How the program ends. The numbers stay put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Something failed that the user did not cause.
    Internal = 1,
    /// A bad flag, a bad limit, no such interface.
    Usage = 2,
    /// `check`: the source is blocked. `unblock`, `unallow`: something else holds all the same.
    Blocked = 3,
    /// The kernel or driver cannot, or no daemon answers (`EX_UNAVAILABLE`).
    Unavailable = 69,
    /// The interface has another XDP program, or the socket another daemon (`EX_TEMPFAIL`).
    Occupied = 75,
    /// Not privileged (`EX_NOPERM`).
    NotPrivileged = 77,
    /// A bad configuration file (`EX_CONFIG`).
    Config = 78,
}

impl Exit {
    /// The one of two that matters more, where a command did several things.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        // What the daemon or the host cannot do comes before what was asked wrongly, and that before what it has found.
        let rank = |exit: Self| match exit {
            Self::Done => 0,
            Self::Blocked => 1,
            Self::Usage => 2,
            Self::Config => 3,
            Self::Occupied => 4,
            Self::NotPrivileged => 5,
            Self::Unavailable => 6,
            Self::Internal => 7,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&Diagnostic> for Exit {
    fn from(diagnostic: &Diagnostic) -> Self {
        match diagnostic.place {
            Place::CommandLine | Place::Flag { .. } => Self::Usage,
            Place::File { .. } => Self::Config,
        }
    }
}

impl From<&DatapathError> for Exit {
    fn from(error: &DatapathError) -> Self {
        match error {
            DatapathError::NoSuchInterface { .. } => Self::Usage,
            DatapathError::Occupied { .. } | DatapathError::InUse { .. } => Self::Occupied,
            DatapathError::Unsupported { .. } | DatapathError::Pins { .. } => Self::Unavailable,
            DatapathError::NotPrivileged { .. } => Self::NotPrivileged,
            DatapathError::Other(_) => Self::Internal,
        }
    }
}

impl From<&anyhow::Error> for Exit {
    /// By the outermost error of the chain that has a code of its own.
    fn from(error: &anyhow::Error) -> Self {
        // anyhow finds a typed context only through itself, and a typed cause only through the chain.
        let context = [
            error.downcast_ref().map(|error: &Diagnostic| error.into()),
            error.downcast_ref().map(|error: &DatapathError| error.into()),
        ];
        let outermost = context.into_iter().flatten().next();
        outermost.or_else(|| error.chain().find_map(exit_of_cause)).unwrap_or(Self::Internal)
    }
}

fn exit_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    let diagnostic = cause.downcast_ref::<Diagnostic>().map(Exit::from);
    let datapath = || cause.downcast_ref::<DatapathError>().map(Exit::from);
    let daemon = || cause.downcast_ref::<DaemonError>().map(DaemonError::exit);
    let client = || cause.downcast_ref::<ClientError>().map(ClientError::exit);
    diagnostic.or_else(datapath).or_else(daemon).or_else(client)
}

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

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HELP: Style = AnsiColor::Cyan.on_default().bold();
const FAINT: Style = AnsiColor::Blue.on_default().bold();

/// Prints an error with its whole chain of causes on standard error, and says how to exit.
pub fn report(error: &anyhow::Error) -> Exit {
    // Where standard error is gone there is nobody to tell.
    let _gone = anstream::stderr().write_all(render(error).as_bytes());
    Exit::from(error)
}

/// Prints a warning on standard error.
pub fn warn(text: &str) {
    let line = format!("{WARNING}warning{WARNING:#}: {}\n", printable(text));
    let _gone = anstream::stderr().write_all(line.as_bytes());
}

/// An error as [`report`] prints it, with colour codes.
pub fn render(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for (position, cause) in error.chain().enumerate() {
        if position > 0
            && error.chain().nth(position - 1).is_some_and(|outer| outer.to_string().contains(&cause.to_string()))
        {
            continue;
        }
        let title = if position == 0 { format!("{ERROR}error{ERROR:#}: ") } else { "  because: ".to_owned() };
        match cause.downcast_ref::<Diagnostic>() {
            Some(diagnostic) => push_diagnostic(&mut out, &title, diagnostic),
            None => push_line(&mut out, &title, &printable(&cause.to_string())),
        }
    }
    for help in error.chain().flat_map(help_of_cause) {
        push_line(&mut out, &format!("  {HELP}help{HELP:#}: "), &printable(&help));
    }
    out
}

/// What to do about a cause that says it apart from its message.
fn help_of_cause(cause: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let client = cause.downcast_ref::<ClientError>().map(ClientError::help);
    let daemon = || cause.downcast_ref::<DaemonError>().map(DaemonError::help);
    client.or_else(daemon).unwrap_or_default()
}

fn push_diagnostic(out: &mut String, title: &str, diagnostic: &Diagnostic) {
    push_line(out, title, &printable(&diagnostic.problem));
    match &diagnostic.place {
        Place::CommandLine => {}
        Place::Flag { flag, text, span } => {
            let quote = if text.is_empty() || text.contains(char::is_whitespace) { "\"" } else { "" };
            let before = format!("  {flag} {quote}");
            push_line(out, &before, &format!("{}{quote}", printable(text)));
            push_line(out, &" ".repeat(before.chars().count()), &mark(text, span));
        }
        Place::File { path, excerpt: None } => {
            push_line(out, &format!("  {FAINT}-->{FAINT:#} "), &printable(&path.display().to_string()));
        }
        Place::File { path, excerpt: Some(excerpt) } => {
            let margin = " ".repeat(excerpt.line.to_string().len());
            let place = format!("{}:{}:{}", path.display(), excerpt.line, excerpt.column);
            push_line(out, &format!("{margin}{FAINT}-->{FAINT:#} "), &printable(&place));
            if let Some(text) = &excerpt.text {
                push_line(out, &format!("{margin} {FAINT}|{FAINT:#}"), "");
                push_line(out, &format!("{FAINT}{} |{FAINT:#} ", excerpt.line), &printable(text));
                push_line(out, &format!("{margin} {FAINT}|{FAINT:#} "), &mark(text, &excerpt.span));
            }
        }
    }
    for help in &diagnostic.help {
        push_line(out, &format!("  {HELP}help{HELP:#}: "), &printable(help));
    }
}

fn push_line(out: &mut String, start: &str, rest: &str) {
    // Writing to a String cannot fail.
    let _infallible = writeln!(out, "{start}{rest}");
}

/// Carets under `span` of `text`, at least one.
fn mark(text: &str, span: &Range<usize>) -> String {
    let characters = |part: Option<&str>| part.map_or(0, |part| part.chars().count());
    let before = characters(text.get(..span.start));
    let width = characters(text.get(span.clone())).max(1);
    format!("{}{ERROR}{}{ERROR:#}", " ".repeat(before), "^".repeat(width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::pins::Orphans;
    use proptest::prelude::*;

    fn plain(error: &anyhow::Error) -> String {
        anstream::adapter::strip_str(&render(error)).to_string()
    }

    #[test]
    fn a_flag_is_shown_with_a_mark_under_the_character() {
        let place = Place::Flag { flag: "--limit", text: "1000/5x".into(), span: 6..7 };
        let error = Diagnostic { problem: "no".into(), place, help: vec!["do this".into()] };
        assert_eq!(plain(&error.into()), "error: no\n  --limit 1000/5x\n                ^\n  help: do this\n");
    }

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

    #[test]
    fn a_line_is_shown_with_a_mark_under_the_characters() {
        let contents = "a = 1\nb = \"é\"\tx\n";
        let excerpt = Excerpt::of(contents, 10..14);
        assert_eq!((excerpt.line, excerpt.column), (2, 5));
        let place = Place::File { path: "r.toml".into(), excerpt: Some(Box::new(excerpt)) };
        let error = Diagnostic { problem: "no".into(), place, help: vec![] };
        let expected = "error: no\n --> r.toml:2:5\n  |\n2 | b = \"é\" x\n  |     ^^^\n";
        assert_eq!(plain(&error.into()), expected);
    }

    #[test]
    fn every_cause_is_named_once() {
        let error = anyhow::Error::from(std::io::Error::other("permission denied")).context("open map SOURCES");
        assert_eq!(plain(&error), "error: open map SOURCES\n  because: permission denied\n");
        let transparent = anyhow::Error::from(DatapathError::Other(anyhow::anyhow!("odd")));
        assert_eq!(plain(&transparent), "error: odd\n");
    }

    #[test]
    fn terminals_are_not_sent_what_was_typed() {
        let error = anyhow::anyhow!("interface \u{1b}[31mred\u{7}");
        assert!(!render(&error).contains("\u{1b}[31mred"));
        assert!(!render(&error).contains('\u{7}'));
        let place = Place::File { path: "a\u{1b}[2J\u{202e}.toml".into(), excerpt: None };
        let turned = render(&Diagnostic { problem: "\u{202e}no".into(), place, help: vec![] }.into());
        assert!(!turned.contains('\u{202e}') && !turned.contains("\u{1b}[2J"), "{turned:?}");
    }

    #[test]
    fn each_failure_has_its_exit_code() {
        let interface = || "eth0".to_owned();
        let rows: [(DatapathError, u8); 7] = [
            (DatapathError::NoSuchInterface { name: interface(), present: String::new() }, 2),
            (DatapathError::Occupied { interface: interface(), owner: String::new() }, 75),
            (DatapathError::Unsupported { what: interface(), why: String::new() }, 69),
            (DatapathError::NotPrivileged { what: interface() }, 77),
            (DatapathError::InUse { path: String::new(), remedy: "" }, 75),
            (DatapathError::Pins { path: String::new(), why: String::new() }, 69),
            (DatapathError::Other(anyhow::anyhow!("x")), 1),
        ];
        for (error, code) in rows {
            let wrapped = anyhow::Error::from(error).context("while starting");
            assert_eq!(Exit::from(&wrapped) as u8, code, "{wrapped:#}");
        }
        let flag = Diagnostic { problem: String::new(), place: Place::CommandLine, help: vec![] };
        assert_eq!(Exit::from(&anyhow::Error::from(flag)), Exit::Usage);
        let file = Place::File { path: "f".into(), excerpt: None };
        let file = Diagnostic { problem: String::new(), place: file, help: vec![] };
        assert_eq!(Exit::from(&anyhow::Error::from(file).context("reload")), Exit::Config);
        let silent =
            ClientError::NoDaemon { path: "s".into(), why: std::io::Error::other("x"), orphans: Orphans::Nothing };
        assert_eq!(Exit::from(&anyhow::Error::from(silent)), Exit::Unavailable);
        let daemon = DaemonError::from(DatapathError::NotPrivileged { what: interface() });
        assert_eq!(Exit::from(&anyhow::Error::from(daemon)), Exit::NotPrivileged);
        let as_context = anyhow::anyhow!("x").context(DatapathError::NotPrivileged { what: interface() });
        assert_eq!(Exit::from(&as_context), Exit::NotPrivileged);
        assert_eq!(Exit::from(&anyhow::anyhow!("x")), Exit::Internal);
    }

    proptest! {
        #[test]
        fn no_span_panics(contents in "(\\PC|\n|\r){0,30}", start in 0_usize..60, length in 0_usize..60) {
            let excerpt = Excerpt::of(&contents, start..start + length);
            let text = excerpt.text.clone().unwrap_or_default();
            prop_assert!(text.get(excerpt.span.clone()).is_some() || excerpt.span.is_empty());
            let place = Place::File { path: "f".into(), excerpt: Some(Box::new(excerpt)) };
            let _text = render(&Diagnostic { problem: String::new(), place, help: vec![] }.into());
        }
    }
}
