//! Findings as text for people: grouped, one line each. A finding that is not ok also says why it matters and what
//! corrects it.

use std::fmt::Write as _;

use ratelimit_view::wrap_at;

use crate::finding::{Finding, Report, State};

/// Columns before the text of a finding.
const INDENT: usize = 11;
const WIDTH: usize = 100;

/// Returns the report as text, with line ends.
pub fn words(report: &Report) -> String {
    let mut out = String::new();
    let mut about = "";
    for finding in &report.checks {
        if finding.about != about {
            let space = if about.is_empty() { "" } else { "\n" };
            // Writing to a String cannot fail.
            let _infallible = writeln!(out, "{space}{}", finding.about);
            about = &finding.about;
        }
        out.push_str(&one(finding));
    }
    let counts =
        [(State::Problem, "problem"), (State::Warning, "warning"), (State::Unknown, "unknown"), (State::Ok, "ok")];
    let counts: Vec<String> = counts
        .into_iter()
        .map(|(state, word)| (report.count(state), state, word))
        .filter(|(count, state, _)| *count > 0 || *state == State::Problem)
        .map(|(count, state, word)| {
            let plural = if count != 1 && matches!(state, State::Problem | State::Warning) { "s" } else { "" };
            format!("{count} {word}{plural}")
        })
        .collect();
    let _infallible = writeln!(out, "\n{}", counts.join(", "));
    out
}

fn one(finding: &Finding) -> String {
    let state = match finding.state {
        State::Ok => "ok",
        State::Unknown => "unknown",
        State::Warning => "warning",
        State::Problem => "PROBLEM",
    };
    let mut out = folded(&format!("  {state:<9}{}", finding.seen));
    if finding.state != State::Ok {
        out.push_str(&folded(&format!("{:INDENT$}why: {}", "", finding.why)));
        if let Some(mend) = &finding.mend {
            // The remedy is not wrapped, so that it can be copied.
            let _infallible = writeln!(out, "{:INDENT$}mend: {mend}", "");
        }
    }
    out
}

fn folded(line: &str) -> String {
    wrap_at(line, WIDTH, INDENT).iter().map(|line| format!("{line}\n")).collect()
}
