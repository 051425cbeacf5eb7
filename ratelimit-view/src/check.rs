//! `ratelimitd check IP`.

use super::{counted, counting, duration, number};
use ratelimit_report::snapshot::{Budget, CheckGuard, CheckLimit, CheckReport, Mode, Outcome};

/// One source for people, several lines.
pub fn check(report: &CheckReport) -> String {
    let mut out = format!("{} {}\n", report.source, verdict_in_words(report));
    let is_guarded = report.guard.iter().any(|of| of.over);
    let is_held_back = is_guarded || report.limits.iter().any(|limit| limit.over);
    let until = match report.reason.as_str() {
        "denied" if report.never => Some("It is denied until `ratelimitd unblock`.\n".to_owned()),
        "denied" | "banned" => Some(format!("It is let in again in {}.\n", duration(report.retry_after_seconds))),
        _ => None,
    };
    if let Some(until) = until {
        out += &until;
    } else if !report.remembered && report.reason == "within_limit" {
        out += "Nothing of it is remembered: it has sent nothing that counts for a while, or was not looked at.\n";
    } else if is_held_back && report.reason != "exempt" {
        out += &if report.never {
            "There is never room: a limit is 0.\n".to_owned()
        } else {
            let again = duration(report.retry_after_seconds);
            format!("There is room again in {again}, if it sends nothing that is admitted meanwhile.\n")
        };
    }
    if is_guarded && report.reason != "exempt" {
        out += "`guard = \"off\"` in the rule ends its guard; with a higher limit it allows more.\n";
    }
    for limit in &report.limits {
        out += "\n";
        out += &self::limit(limit);
    }
    if !report.guard.is_empty() {
        out += "\n";
        out += &report.guard.iter().map(guard).collect::<String>();
    }
    if !report.shadow_limits.is_empty() {
        out += "\n";
        out += &shadows(&report.shadow_limits);
    }
    if !report.counting.is_empty() {
        out += "\n";
        out += &counting(&report.counting);
    }
    out
}

/// Shadow limits, a line each.
pub(super) fn shadows(limits: &[CheckLimit]) -> String {
    let line = |of: &CheckLimit| {
        format!(
            "Shadow limit of rule {}, NEVER ENFORCED: {} of {} {} used in {}; {} would have been dropped\n",
            of.rule,
            number(of.used),
            number(of.limit),
            of.unit.label(),
            duration(of.window_seconds),
            counted(of.refused, "packet"),
        )
    };
    limits.iter().map(line).collect()
}

fn verdict_in_words(report: &CheckReport) -> String {
    match (report.verdict, report.reason.as_str()) {
        (Outcome::Pass, "within_limit") => "passes: it is within every limit.".to_owned(),
        (Outcome::Pass, "exempt") => "passes: it is exempt from every limit.".to_owned(),
        (Outcome::Pass, "dry_run")
            if report.guard.iter().any(|of| of.over) && !report.limits.iter().any(|of| of.over) =>
        {
            "passes, but only because of the dry run: the guard of a limit would refuse it.".to_owned()
        }
        (Outcome::Pass, "dry_run") => "passes, but only because of the dry run: it is over a limit.".to_owned(),
        (Outcome::Pass, "not_protected") => "passes: no rule judges its packets.".to_owned(),
        (Outcome::Drop, "over_limit") => "is blocked: it is over a limit.".to_owned(),
        (Outcome::Drop, "guard") if report.guard.iter().any(|of| of.over && of.segments.used >= of.segments.limit) => {
            "is blocked by the guard: it has sent as much beside requests as a limit of requests allows.".to_owned()
        }
        (Outcome::Drop, "guard") => {
            "is blocked by the guard: it has opened as many connections that ask nothing as a limit of requests \
             allows. Its requests pass."
                .to_owned()
        }
        (Outcome::Drop, "banned") => "is blocked: it is banned for exceeding a limit.".to_owned(),
        (Outcome::Drop, "denied") => "is blocked: it is denied; `ratelimitd list` says by whom and why.".to_owned(),
        (Outcome::Pass, other) => format!("passes: {other}."),
        (Outcome::Drop, other) => format!("is blocked: {other}."),
    }
}

fn guard(of: &CheckGuard) -> String {
    let mode = match of.mode {
        Mode::Enforce => "",
        Mode::DryRun => ", dry run",
    };
    format!(
        "Guard of rule {}{mode}: {} of {} connections that ask nothing beyond the first {}, {} of {} segments that begin no \
         request used in {}\n",
        of.rule,
        number(of.connections.used),
        number(of.connections.limit),
        number(of.connections.limit),
        number(of.segments.used),
        number(of.segments.limit),
        duration(of.window_seconds),
    )
}

fn limit(limit: &CheckLimit) -> String {
    let mode = match limit.mode {
        Mode::Enforce => "",
        Mode::DryRun => ", dry run",
    };
    let newest = if limit.over && limit.remaining > 0 { ", the newest in this bucket" } else { "" };
    let budget = match limit.budget {
        None => "",
        Some(Budget::Proven) => " of its connections",
        Some(Budget::Unproven) => " of what anyone can forge",
    };
    let mut out = format!(
        "Rule {}{mode}: {} of {} {}{budget} used in {}, {} left; {} refused{newest}\n",
        limit.rule,
        number(limit.used),
        number(limit.limit),
        limit.unit.label(),
        duration(limit.window_seconds),
        number(limit.remaining),
        counted(limit.refused, "packet"),
    );
    let width = limit.buckets.iter().map(|bucket| number(bucket.count).len()).max().unwrap_or(0);
    for bucket in &limit.buckets {
        out += &format!("  {}  {:>width$}\n", bucket.start.strftime("%Y-%m-%d %H:%M:%S UTC"), number(bucket.count));
    }
    out
}
