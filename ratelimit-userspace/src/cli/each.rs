//! Commands on several addresses: each is tried and reported, and the worst result is the exit code.

use std::io::Read;

use anyhow::Context as _;

use super::OutputFormat;
use super::run::{print_json, print_words, show};
use crate::error::{self, Diagnostic, Exit, Place};
use ratelimit_control::client::ClientError;

/// Argument that stands for standard input.
const STDIN: &str = "-";
/// Maximum bytes of standard input. // as a list file
const BYTES_MAX: u64 = ratelimit_policy::config::lists::LIST_BYTES_MAX;
/// Maximum number of failed lines that are named one by one. The others are counted.
pub(super) const NAMED_MAX: usize = 20;
/// Maximum bytes of an address or prefix in a line. // IPv6 with IPv4 at its end and a length: 49
const TARGET_BYTES_MAX: usize = 64;

/// Addresses or prefixes that a command applies to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Targets {
    /// One address or prefix. The output is its result alone.
    One(String),
    /// Several from the command line.
    Several(Vec<Target>),
    /// All from standard input, and from the command line.
    Lines(Vec<Target>),
}

/// One of several addresses or prefixes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    text: String,
    /// Line of standard input, from 1; `None` for the command line.
    line: Option<usize>,
}

/// Result for one of several targets.
#[derive(serde::Serialize)]
struct Outcome<R> {
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(serde::Serialize)]
struct Outcomes<R> {
    schema: u32,
    results: Vec<Outcome<R>>,
}

impl Targets {
    /// Reads the targets of a command line. `-` adds those of `input`, one per line; blank lines and `#` comments are
    /// skipped.
    pub(super) fn read(arguments: Vec<String>, input: impl Read) -> anyhow::Result<Self> {
        let named = |text: &String| Target { text: text.clone(), line: None };
        let others: Vec<Target> = arguments.iter().filter(|argument| *argument != STDIN).map(named).collect();
        if others.len() == arguments.len() {
            return Ok(match <[String; 1]>::try_from(arguments) {
                Ok([one]) => Self::One(one),
                Err(_) => Self::Several(others),
            });
        }
        let mut bytes = Vec::new();
        // Read one more byte, to recognise longer input.
        input.take(BYTES_MAX + 1).read_to_end(&mut bytes).context("read standard input")?;
        if bytes.len() as u64 > BYTES_MAX {
            let problem = format!("standard input is longer than {BYTES_MAX} bytes, so nothing was done");
            let help = vec!["split it into several parts".to_owned()];
            return Err(Diagnostic { problem, place: Place::CommandLine, help }.into());
        }
        // Invalid UTF-8 makes only its own line invalid.
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.trim_start_matches('\u{feff}').lines();
        let named = (1..).zip(lines.map(|line| line.split('#').next().unwrap_or_default().trim()));
        let named = named.filter(|(_, line)| !line.is_empty());
        let named = named.map(|(line, text)| Target { text: text.to_owned(), line: Some(line) });
        let all: Vec<Target> = others.into_iter().chain(named).collect();
        if all.is_empty() {
            let problem = "standard input names no address".to_owned();
            let help = vec!["write one a line; blank lines and # comments are skipped".to_owned()];
            return Err(Diagnostic { problem, place: Place::CommandLine, help }.into());
        }
        Ok(Self::Lines(all))
    }

    /// Runs the command for each target and reports the results. If no daemon answers, stops.
    pub(super) async fn each<R: serde::Serialize>(
        self,
        verb: &str,
        format: OutputFormat,
        ask: impl AsyncFn(&str) -> anyhow::Result<R>,
        words: impl Fn(&R) -> String,
        exit: impl Fn(&R) -> Exit,
    ) -> anyhow::Result<Exit> {
        let (targets, has_lines) = match self {
            Self::Several(targets) => (targets, false),
            Self::Lines(targets) => (targets, true),
            Self::One(target) => {
                let report = ask(&target).await?;
                show(&report, words, format)?;
                return Ok(exit(&report));
            }
        };
        let (all, mut held, mut failed) = (targets.len(), 0, 0_usize);
        let (mut results, mut worst, mut broken_off) = (Vec::new(), Exit::Done, None);
        for Target { text, line } in targets {
            let asked = match too_long(&text).filter(|_| line.is_some()) {
                Some(why) => Err(why),
                None => ask(&text).await,
            };
            let target = shown(&text);
            let at = line.map_or_else(String::new, |line| format!("line {line}: "));
            match asked {
                Ok(report) => {
                    held += 1;
                    let code = exit(&report);
                    worst = worst.worse(code);
                    match format {
                        OutputFormat::Human => drop(print_words(&words(&report))?),
                        OutputFormat::Json => results.push(Outcome {
                            target,
                            line,
                            exit_code: code as u8,
                            report: Some(report),
                            error: None,
                        }),
                    }
                }
                Err(error) if is_without_daemon(&error) => {
                    let what = format!("{at}{verb} {target}: {held} of {all} are done, and the others were not tried");
                    broken_off = Some(if held + failed > 0 && has_lines { error.context(what) } else { error });
                    break;
                }
                Err(error) => {
                    failed += 1;
                    let said = format!("{error:#}");
                    let error = error.context(format!("{at}{verb} {target}"));
                    let is_named = !has_lines || failed <= NAMED_MAX;
                    let code = if is_named { error::report(&error) } else { Exit::from(&error) };
                    worst = worst.worse(code);
                    results.push(Outcome { target, line, exit_code: code as u8, report: None, error: Some(said) });
                }
            }
        }
        if has_lines && failed > NAMED_MAX {
            error::report(&anyhow::anyhow!("and {} more are refused", failed - NAMED_MAX));
        }
        if format == OutputFormat::Json && (broken_off.is_none() || has_lines) {
            print_json(&Outcomes { schema: 1, results })?;
        }
        match broken_off {
            Some(error) => Err(error),
            None if has_lines => Ok(of_lines(worst, held)),
            None => Ok(worst),
        }
    }
}

/// Returns the exit code of a command on lines: 3 if some hold and others are refused, as `import` does.
const fn of_lines(worst: Exit, held: usize) -> Exit {
    match worst {
        Exit::Usage if held > 0 => Exit::Blocked,
        Exit::Usage
        | Exit::Done
        | Exit::Internal
        | Exit::Blocked
        | Exit::Unavailable
        | Exit::Occupied
        | Exit::NotPrivileged
        | Exit::Config => worst,
    }
}

/// Returns an error if a line is too long for an address, so that it is not quoted in full.
fn too_long(text: &str) -> Option<anyhow::Error> {
    let length = text.len();
    let problem = || format!("a line of {length} bytes is no address, and no prefix");
    let why = || Diagnostic { problem: problem(), place: Place::CommandLine, help: Vec::new() };
    (length > TARGET_BYTES_MAX).then(|| why().into())
}

/// Returns the part of a target that is shown.
fn shown(text: &str) -> String {
    match text.char_indices().nth(TARGET_BYTES_MAX) {
        Some((end, _)) => text.get(..end).unwrap_or_default().to_owned() + "…",
        None => text.to_owned(),
    }
}

/// Returns true if the daemon cannot be used, so that no further target is tried.
fn is_without_daemon(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(
            ClientError::NoDaemon { .. }
            | ClientError::NotPermitted { .. }
            | ClientError::TimedOut { .. }
            | ClientError::Unanswered { .. }
            | ClientError::Unintelligible { .. },
        ) => true,
        Some(ClientError::Refused(_)) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], input: &[u8]) -> anyhow::Result<Targets> {
        Targets::read(arguments.iter().map(|of| (*of).to_owned()).collect(), input)
    }

    fn target(text: &str, line: Option<usize>) -> Target {
        Target { text: text.to_owned(), line }
    }

    #[test]
    fn standard_input_names_one_a_line_and_comments_are_skipped() {
        assert_eq!(read(&["192.0.2.1"], b"198.51.100.1").unwrap(), Targets::One("192.0.2.1".to_owned()));
        let several = vec![target("192.0.2.1", None), target("192.0.2.2", None)];
        assert_eq!(read(&["192.0.2.1", "192.0.2.2"], b"").unwrap(), Targets::Several(several));
        let input = b"\n# those of today\n 198.51.100.1 # a comment\r\n\n2001:db8::/32\n";
        let lines = vec![target("198.51.100.1", Some(3)), target("2001:db8::/32", Some(5))];
        assert_eq!(read(&["-"], input).unwrap(), Targets::Lines(lines));
        let beside = vec![target("192.0.2.1", None), target("198.51.100.1", Some(1))];
        assert_eq!(read(&["192.0.2.1", "-"], b"198.51.100.1").unwrap(), Targets::Lines(beside));
        assert_eq!(Exit::from(&read(&["-"], b"# nobody\n").unwrap_err()), Exit::Usage);
    }

    #[test]
    fn bytes_that_are_no_text_make_their_own_line_bad_and_no_other() {
        let Targets::Lines(lines) = read(&["-"], b"\xef\xbb\xbf192.0.2.1\n192.0\xff.2.2\n192.0.2.3").unwrap() else {
            panic!("lines");
        };
        assert_eq!(
            lines,
            [target("192.0.2.1", Some(1)), target("192.0\u{fffd}.2.2", Some(2)), target("192.0.2.3", Some(3))]
        );
    }

    #[test]
    fn input_that_is_too_long_is_refused_whole_since_its_last_line_may_be_cut() {
        let line: &[u8] = b"# of sixteen by.\n";
        let mut input = line.repeat(usize::try_from(BYTES_MAX).unwrap() / line.len());
        input.extend_from_slice(b"192.0.2.100\n192.0.2.101\n");
        let refused = read(&["-"], &input).unwrap_err();
        assert!(refused.to_string().contains("so nothing was done"), "{refused:#}");
    }

    #[test]
    fn a_bad_line_among_good_ones_ends_with_3_and_bad_lines_alone_with_2() {
        let run = |arguments: &[&str], input: &[u8]| {
            let targets = read(arguments, input).unwrap();
            let ask = async |text: &str| {
                let bad = || Diagnostic { problem: "bad".to_owned(), place: Place::CommandLine, help: Vec::new() };
                if text.starts_with("192") { Ok(text.to_owned()) } else { Err(bad().into()) }
            };
            let each = targets.each("deny", OutputFormat::Json, ask, String::clone, |_| Exit::Done);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(each).unwrap()
        };
        let long = format!("192.0.2.1\n192{}\n192.0.2.2", "0".repeat(TARGET_BYTES_MAX));
        for (arguments, input, expected) in [
            (&["-"][..], "192.0.2.1\n192.0.2.2", Exit::Done),
            (&["-"], "192.0.2.1\nhere\n192.0.2.2", Exit::Blocked),
            (&["-"], &long, Exit::Blocked),
            (&["-"], "here\nthere", Exit::Usage),
            (&["192.0.2.9", "-"], "here", Exit::Blocked),
            (&["192.0.2.9", "here"], "", Exit::Usage),
        ] {
            assert_eq!(run(arguments, input.as_bytes()), expected, "{arguments:?} {input}");
        }
    }
}
