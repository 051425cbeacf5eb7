//! Values as they were written, each with its place, and functions that read them. Errors point to that place. Pure.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::syntax::{SyntaxError, near_miss, shortened};
use crate::diagnostic::{Diagnostic, Excerpt, Place};

/// A value as it was written, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Text of the value, without quotes.
    pub text: String,
    /// Place of the value.
    pub origin: Origin,
}

/// Place of a value: a flag or a key of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A flag, with its dashes: `--limit`.
    Flag(&'static str),
    /// A key of the file.
    Key {
        /// Prefix of the keys of this table, for example `rule.`.
        prefix: &'static str,
        /// Name of the key, for example `limits`.
        key: &'static str,
        /// Rule that the key belongs to. None if there are not several.
        of: Option<OfRule>,
        /// Byte range of the value in the file, quotes included.
        span: Range<usize>,
    },
}

/// One of several rules, displayed as `rule login` or `rule 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfRule {
    /// Index among the rules, from 0.
    pub index: usize,
    /// Name of the rule, if it has one.
    pub name: Option<String>,
}

impl fmt::Display for OfRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "rule {}", shortened(name.clone())),
            None => write!(f, "rule {}", self.index + 1),
        }
    }
}

/// Author of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The user who typed the command.
    #[default]
    CommandLine,
    /// A configuration file, with its text.
    File {
        /// Path of the file, as given.
        path: PathBuf,
        /// Whole text of the file.
        contents: String,
    },
}

impl Source {
    /// Returns the choice with the written label, or the first choice if nothing was written. Fails if no label
    /// matches.
    pub(super) fn choice<T: Copy, const N: usize>(
        &self,
        written: Option<&Written>,
        choices: [T; N],
        label: impl Fn(T) -> &'static str,
    ) -> Result<T, Diagnostic> {
        let Some(written) = written else {
            return Ok(choices[0]);
        };
        self.read(written, |text| {
            let labels = choices.map(&label);
            choices.into_iter().find(|choice| label(*choice) == text).ok_or_else(|| {
                let all = labels.join(" or ");
                let help = match near_miss(text, labels) {
                    Some(meant) => format!("did you mean `{meant}`? The choice is {all}"),
                    None => format!("the choice is {all}"),
                };
                SyntaxError::new(0..text.len(), format!("`{text}` is not one of them")).with_help(help)
            })
        })
    }

    pub(super) fn read<T>(
        &self,
        written: &Written,
        parse: impl FnOnce(&str) -> Result<T, SyntaxError>,
    ) -> Result<T, Diagnostic> {
        parse(&written.text).map_err(|error| self.wrong(written, error))
    }

    pub(super) fn read_if<T>(
        &self,
        written: Option<&Written>,
        parse: impl FnOnce(&str) -> Result<T, SyntaxError>,
    ) -> Result<Option<T>, Diagnostic> {
        written.map(|written| self.read(written, parse)).transpose()
    }

    pub(super) fn wrong(&self, written: &Written, mut error: SyntaxError) -> Diagnostic {
        let (Origin::Key { key: name, .. } | Origin::Flag(name)) = &written.origin;
        // Errors about addresses (`url`) already leave the password out.
        if !matches!(*name, "url" | "--fleet") && written.text.split_once("://").is_some_and(|of| of.1.contains('@')) {
            "the value is not shown, because it may contain a password".clone_into(&mut error.problem);
        }
        let help = error.help.into_iter().collect();
        match (&written.origin, self) {
            (Origin::Key { prefix, key, of, span }, Self::File { path, contents }) => {
                let excerpt = Excerpt::of(contents, file_span(contents, span, &written.text, error.span));
                let of = of.as_ref().map_or_else(String::new, |of| format!(" of {of}"));
                Diagnostic {
                    problem: format!("bad value for `{prefix}{key}`{of}: {}", error.problem),
                    place: Place::File { path: path.clone(), excerpt: Some(Box::new(excerpt)) },
                    help,
                }
            }
            (Origin::Key { key: name, .. } | Origin::Flag(name), _) => Diagnostic {
                problem: format!("bad value for {name}: {}", error.problem),
                place: Place::Flag { flag: name, text: written.text.clone(), span: error.span },
                help,
            },
        }
    }

    /// Returns `true` or `false` as written, or `default`. Fails on any other text.
    pub(super) fn is_set(&self, written: Option<&Written>, default: bool) -> Result<bool, Diagnostic> {
        match written {
            Some(_) => self.choice(written, [true, false], |is_set| if is_set { "true" } else { "false" }),
            None => Ok(default),
        }
    }

    /// Returns a path as written. A relative path in a file is relative to that file's directory.
    pub(super) fn beside(&self, written: &Written, example: &str) -> Result<PathBuf, Diagnostic> {
        let path = self.read(written, |text| {
            if text.is_empty() || text.contains('\0') {
                return Err(SyntaxError::new(0..text.len(), "it is not a path").with_help(example));
            }
            Ok(PathBuf::from(text))
        })?;
        Ok(match self {
            Self::File { path: file, .. } => file.parent().unwrap_or(Path::new("")).join(path),
            Self::CommandLine => path,
        })
    }

    /// Returns the error for a required value that is missing. It names the flag or key, the rule and the reason.
    /// `example` is a value as a file has it.
    pub(super) fn missing(&self, flag: &str, key: &str, of: Option<&OfRule>, why: &str, example: &str) -> Diagnostic {
        match self {
            Self::CommandLine => Diagnostic {
                problem: format!("{flag} is missing"),
                place: Place::CommandLine,
                help: vec![format!("{why}, as in {flag} {}", example.trim_matches(['[', ']', '"']))],
            },
            Self::File { path, .. } => {
                let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
                let place = match (table, of) {
                    ("", _) => String::new(),
                    ("rule", None) | ("fleet", _) => format!(" under [{table}]"),
                    _ => format!(" under [[{table}]]"),
                };
                let of = of.map_or_else(String::new, |of| format!(" of {of}"));
                Diagnostic {
                    problem: format!("`{key}`{of} is missing, or empty"),
                    place: Place::File { path: path.clone(), excerpt: None },
                    help: vec![format!("{why}, as in {name} = {example}{place}")],
                }
            }
        }
    }
}

/// Returns the range of `part` of a value's text in the file. If the file writes the text with escapes, the range
/// covers the whole value.
fn file_span(contents: &str, value: &Range<usize>, text: &str, part: Range<usize>) -> Range<usize> {
    let quoted = contents.get(value.start + 1..value.end.saturating_sub(1)) == Some(text);
    let plain = contents.get(value.clone()) == Some(text);
    if quoted || plain {
        let start = value.start + usize::from(!plain);
        return start + part.start..start + part.end;
    }
    value.clone()
}
