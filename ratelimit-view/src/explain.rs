//! Output of `ratelimitd explain IP --to PORT`.

use super::check::shadows;
use ratelimit_report::snapshot::{ExplainReport, Outcome, StepOutcome};

/// Formats the report for people: a line for each step, the verdict, and the shadow limits.
pub fn explain(report: &ExplainReport) -> String {
    let to_address = report.to_address.as_ref().map_or(String::new(), |address| format!(" of {address}"));
    let mut out = format!("{} to port {}{to_address}\n", report.source, report.to);
    let width = report.steps.iter().map(|step| step.at.chars().count()).max().unwrap_or(0);
    for (number, step) in (1..).zip(&report.steps) {
        let mark = match step.outcome {
            StepOutcome::GoesOn => "",
            StepOutcome::Passes => " -> passes",
            StepOutcome::Drops => " -> dropped",
        };
        out += &format!("{number:>3}. {:<width$}  {}{mark}\n", step.at, step.why);
    }
    out += &format!("Verdict: {}\n", verdict(report));
    out + &shadows(&report.shadow_limits)
}

fn verdict(report: &ExplainReport) -> String {
    let rule = report.rule.as_deref().unwrap_or_default();
    match (report.verdict, report.reason.as_str()) {
        (Outcome::Pass, "not_protected") => "passes: no rule judges it.".to_owned(),
        (Outcome::Pass, "within_limit") => format!("passes: it is within every limit of rule {rule}."),
        (Outcome::Pass, "exempt") => "passes: it is allowed, whatever the limits say.".to_owned(),
        (Outcome::Pass, "dry_run") => format!("passes, but only because rule {rule} is in dry run."),
        (Outcome::Drop, "over_limit") => format!("dropped: it is over a limit of rule {rule}."),
        (Outcome::Drop, "guard") => format!("dropped: the guard of rule {rule} refuses it."),
        (Outcome::Drop, "banned") => format!("dropped: rule {rule} has banned it."),
        (Outcome::Drop, "denied") => "dropped: it is denied.".to_owned(),
        (Outcome::Pass, other) => format!("passes: {other}."),
        (Outcome::Drop, other) => format!("dropped: {other}."),
    }
}
