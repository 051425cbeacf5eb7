//! Commands on several addresses: each is tried, what came of each is said, and the worst of it is the exit code.

use std::io::Read;

use anyhow::Context as _;

use super::OutputFormat;
use super::run::{print_json, print_words, show};
use crate::error::{self, Diagnostic, Exit, Place};
use ratelimit_control::client::ClientError;

/// What stands for standard input.
const STDIN: &str = "-";
/// What is read of it at most. // as a list file
const BYTES_MAX: u64 = ratelimit_policy::config::lists::LIST_BYTES_MAX;

/// What a command is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Targets {
    /// One address or prefix: what comes of it is all that there is to say.
    One(String),
    /// Several, or what standard input names.
    Each(Vec<String>),
}

/// What came of one of several.
#[derive(serde::Serialize)]
struct Outcome<R> {
    target: String,
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
    /// Those of a command line; `-` is what `input` has, one a line: blank lines are skipped, and what follows a `#`.
    pub(super) fn read(arguments: Vec<String>, input: impl Read) -> anyhow::Result<Self> {
        let asks = arguments.iter().filter(|argument| *argument == STDIN).count();
        if let ([_], 0) = (arguments.as_slice(), asks) {
            return Ok(Self::One(arguments.into_iter().collect()));
        }
        let mut text = String::new();
        if asks > 0 {
            input.take(BYTES_MAX).read_to_string(&mut text).context("read standard input")?;
        }
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let named: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
        let arguments = arguments.into_iter().filter(|argument| argument != STDIN);
        let all: Vec<String> = arguments.chain(named).collect();
        if all.is_empty() {
            let problem = "standard input names no address".to_owned();
            let help = vec!["write one a line; blank lines and # comments are skipped".to_owned()];
            return Err(Diagnostic { problem, place: Place::CommandLine, help }.into());
        }
        Ok(Self::Each(all))
    }

    /// Does it to each, and says what came of it. Where no daemon answers, the others are not tried.
    pub(super) async fn each<R: serde::Serialize>(
        self,
        verb: &str,
        format: OutputFormat,
        ask: impl AsyncFn(&str) -> anyhow::Result<R>,
        words: impl Fn(&R) -> String,
        exit: impl Fn(&R) -> Exit,
    ) -> anyhow::Result<Exit> {
        let targets = match self {
            Self::Each(targets) => targets,
            Self::One(target) => {
                let report = ask(&target).await?;
                show(&report, words, format)?;
                return Ok(exit(&report));
            }
        };
        let mut results = Vec::new();
        let mut worst = Exit::Done;
        for target in targets {
            match ask(&target).await {
                Ok(report) => {
                    let code = exit(&report);
                    worst = worst.worse(code);
                    match format {
                        OutputFormat::Human => drop(print_words(&words(&report))?),
                        OutputFormat::Json => {
                            results.push(Outcome { target, exit_code: code as u8, report: Some(report), error: None })
                        }
                    }
                }
                Err(error) if is_without_daemon(&error) => return Err(error),
                Err(error) => {
                    let said = format!("{error:#}");
                    let code = error::report(&error.context(format!("{verb} {target}")));
                    worst = worst.worse(code);
                    results.push(Outcome { target, exit_code: code as u8, report: None, error: Some(said) });
                }
            }
        }
        if format == OutputFormat::Json {
            print_json(&Outcomes { schema: 1, results })?;
        }
        Ok(worst)
    }
}

/// Nothing else will come of the next one.
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

    #[test]
    fn standard_input_names_one_a_line_and_comments_are_skipped() {
        let read = |arguments: &[&str], input: &str| {
            Targets::read(arguments.iter().map(|of| (*of).to_owned()).collect(), input.as_bytes())
        };
        let each = |of: &[&str]| Targets::Each(of.iter().map(|of| (*of).to_owned()).collect());
        assert_eq!(read(&["192.0.2.1"], "198.51.100.1").unwrap(), Targets::One("192.0.2.1".to_owned()));
        assert_eq!(read(&["192.0.2.1", "192.0.2.2"], "").unwrap(), each(&["192.0.2.1", "192.0.2.2"]));
        let input = "\n# those of today\n 198.51.100.1 # a comment\r\n\n2001:db8::/32\n";
        assert_eq!(read(&["-"], input).unwrap(), each(&["198.51.100.1", "2001:db8::/32"]));
        assert_eq!(read(&["192.0.2.1", "-"], "198.51.100.1").unwrap(), each(&["192.0.2.1", "198.51.100.1"]));
        assert_eq!(Exit::from(&read(&["-"], "# nobody\n").unwrap_err()), Exit::Usage);
    }
}
