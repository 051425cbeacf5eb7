//! `ratelimitd list`, and what came of commands that change what is enforced.

use jiff::Timestamp;

use super::table;
use crate::control::proto::{ApplyReport, ModeReport, ModeWord, ReloadReport};
use crate::snapshot::{Author, ListReport, Listed, State};

/// All of it, a line an entry.
pub fn list(report: &ListReport) -> String {
    if report.entries.is_empty() {
        return "Nothing is allowed, denied or banned: the limits alone hold.\n".to_owned();
    }
    let row = |of: &Listed| {
        let overruled = if of.decides { "" } else { " (another entry goes before it)" };
        [
            of.prefix.clone(),
            format!("{}{overruled}", state(of)),
            of.until.map_or_else(|| "for ever".to_owned(), instant),
            author(of),
            of.since.map_or_else(|| "-".to_owned(), instant),
            of.reason.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    table(["PREFIX", "STATE", "UNTIL", "BY", "SINCE", "WHY"], &[], report.entries.iter().map(row))
}

/// What `mode` and `panic` have done.
pub fn mode(report: &ModeReport) -> String {
    let said = match (report.mode, report.changed) {
        (ModeWord::Enforce, true) => "enforcing: what is over a limit is dropped again",
        (ModeWord::Enforce, false) => "nothing was held back: the rules do as the configuration says",
        (ModeWord::DryRun, _) => {
            "dry run: NOTHING IS DROPPED, and what would be is counted; `ratelimitd mode enforce` ends it"
        }
        (ModeWord::Panic, _) => {
            "panic: EVERYTHING PASSES, and goes on being counted; `ratelimitd mode enforce` ends it"
        }
    };
    format!("{said}\n{}", notes(&report.notes))
}

/// What `reload` has done.
pub fn reloaded(report: &ReloadReport) -> String {
    let out = match report.changes.as_slice() {
        [] => "reloaded: nothing has changed\n".to_owned(),
        changes => format!("reloaded:\n  {}\n", changes.join("\n  ")),
    };
    out + &notes(&report.notes)
}

/// What `apply` has done.
pub fn applied(report: &ApplyReport) -> String {
    let mut out = match report.changes.as_slice() {
        [] => "applied: nothing has changed\n".to_owned(),
        changes => format!("applied:\n  {}\n", changes.join("\n  ")),
    };
    if let Some(seconds) = report.confirm_within_seconds {
        out += &format!(
            "ON TRIAL: it is rolled back in {seconds} s unless `ratelimitd confirm` follows; `ratelimitd rollback` does it now\n"
        );
    }
    out + &notes(&report.notes)
}

pub(super) fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

pub(super) const fn state(of: &Listed) -> &'static str {
    match of.state {
        State::Exempt => "allowed",
        State::Denied => "denied",
        State::Banned => "banned",
        State::OverLimit => "over a limit",
        State::Ok => "limited",
    }
}

pub(super) fn author(of: &Listed) -> String {
    match (of.by, &of.user, &of.rule) {
        (Author::Command, Some(user), _) => user.clone(),
        (Author::Command, None, _) => "a command".to_owned(),
        (Author::Configuration, ..) => "configuration".to_owned(),
        (Author::Safety, ..) => "safety".to_owned(),
        (Author::Ban, _, Some(rule)) => format!("rule {rule}"),
        (Author::Ban, _, None) => "a ban".to_owned(),
    }
}

pub(super) fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
