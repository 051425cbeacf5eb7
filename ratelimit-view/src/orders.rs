//! Results of `allow`, `deny`, `unblock`, `unallow`, `reset`, `confirm`, `rollback` and of erasing a source.

use super::list::{author, instant, notes, place, state};
use super::{counted, number};
use ratelimit_control::proto::{
    ConfirmReport, ForgetReport, GrantReport, ResetReport, RollbackReport, Still, UnblockReport,
};
use ratelimit_report::snapshot::{Listed, State};

/// Maximum number of entries that are named one by one.
const NAMED_MAX: u64 = 20;

/// Formats the result of `allow` and `deny`.
pub fn granted(report: &GrantReport) -> String {
    let of = &report.entry;
    let until = of.until.map_or_else(|| " permanently".to_owned(), |until| format!(" until {}", instant(until)));
    let mut out = format!("{} is {}{until}\n", of.prefix, state(of));
    if report.frees_count > 0 {
        out += &format!("frees {}\n", sources(&report.frees, report.frees_count));
    }
    out + &notes(&report.notes)
}

/// Formats the result of `unblock` and `unallow`.
pub fn lifted(report: &UnblockReport) -> String {
    let mut out = String::new();
    let named = report.removed.iter().take(usize::try_from(NAMED_MAX).unwrap_or(0));
    out += &named.map(|of| format!("{}: {} lifted\n", of.prefix, what(of))).collect::<String>();
    if report.removed_count > NAMED_MAX {
        out += &format!("and {} more\n", number(report.removed_count - NAMED_MAX));
    }
    if report.freed_count > 0 {
        out += &match report.freed.as_slice() {
            [one] => format!("{one}: counters reset\n"),
            several => format!("counters reset of {}\n", sources(several, report.freed_count)),
        };
    }
    for of in &report.still {
        out += &still(of);
    }
    if out.is_empty() {
        out = match report.prefix.as_str() {
            "" => "nothing to lift: no bans, and no denials by commands\n".to_owned(),
            prefix => format!("{}: nothing to lift\n", without_length(prefix)),
        };
    }
    out + &notes(&report.notes)
}

/// Formats the result of `reset`.
pub fn reset(report: &ResetReport) -> String {
    let limits = if report.limits == 0 { report.windows } else { report.limits };
    let counters = match limits {
        0 => "no counters to reset".to_owned(),
        limits => format!("counters reset ({})", counted(limits, "limit")),
    };
    let bans = match report.bans {
        0 => "no bans to lift".to_owned(),
        bans => format!("{} lifted", counted(bans, "ban")),
    };
    format!("{}: {counters}, {bans}\n{}", without_length(&report.source), notes(&report.notes))
}

/// Formats the result of `confirm`.
pub fn confirmed(report: &ConfirmReport) -> String {
    format!("confirmed: {} stays in force\n", report.file.display())
}

/// Formats the result of `rollback`.
pub fn rolled_back(report: &RollbackReport) -> String {
    let again = "the previous policy is in force again";
    if report.was_over {
        format!("{} was rolled back already: {again}\n", report.file)
    } else {
        format!("{} is rolled back: {again}\n", report.file)
    }
}

fn what(of: &Listed) -> String {
    match of.state {
        State::Banned => format!("ban by {}", author(of)),
        State::Denied => format!("denial by {}", author(of)),
        State::Exempt | State::OverLimit | State::Ok => format!("exemption by {}", author(of)),
    }
}

/// Formats the result of erasing a source.
pub fn erased(report: &ForgetReport) -> String {
    let ForgetReport { source, rows, events, .. } = report;
    format!("{source}: erased {} of the history and {}\n", counted(*rows, "row"), counted(*events, "recent event"))
}

fn still(of: &Still) -> String {
    let Still { entry, lift } = of;
    let until = entry.until.map_or_else(|| " permanently".to_owned(), |until| format!(" until {}", instant(until)));
    let by = place(entry).unwrap_or_else(|| author(entry));
    let what = match entry.state {
        State::OverLimit => format!("is STILL BLOCKED by rule {}", entry.rule.as_deref().unwrap_or_default()),
        State::Exempt | State::Denied | State::Banned | State::Ok => {
            format!("is STILL {}{until} by {by}", state(entry).to_uppercase())
        }
    };
    let why = entry.comment.as_ref().or(entry.reason.as_ref());
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    format!("{} {what}{why}\n  to lift it: {lift}\n", entry.prefix)
}

/// Names sources: `3 sources: 192.0.2.7, 192.0.2.8 and 1 more`.
fn sources(named: &[String], count: u64) -> String {
    let more = count.saturating_sub(named.len() as u64);
    let more = if more == 0 { String::new() } else { format!(" and {} more", number(more)) };
    format!("{}: {}{more}", counted(count, "source"), named.join(", "))
}

/// Removes the length from a prefix that is a single address.
fn without_length(prefix: &str) -> &str {
    let is_v6 = prefix.contains(':');
    prefix.strip_suffix(if is_v6 { "/128" } else { "/32" }).unwrap_or(prefix)
}
