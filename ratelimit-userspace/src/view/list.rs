//! `ratelimitd list`, and what came of the commands that change it.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{counted, table};
use crate::control::proto::{ApplyReport, GrantReport, ModeReport, ModeWord, ReloadReport, ResetReport, UnblockReport};
use crate::snapshot::{Author, ListReport, Listed, State};

/// All of it, a line an entry.
pub fn list(report: &ListReport) -> String {
    let would = would_ban(report);
    if report.entries.is_empty() {
        return format!("Nothing is allowed, denied or banned: the limits alone hold.\n{would}");
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
    table(["PREFIX", "STATE", "UNTIL", "BY", "SINCE", "WHY"], &[], report.entries.iter().map(row)) + &would
}

/// Bans that dry run prevents.
fn would_ban(report: &ListReport) -> String {
    if report.would_ban.is_empty() {
        return String::new();
    }
    let row = |of: &Listed| {
        let until = of.until.map_or_else(|| "-".to_owned(), instant);
        [of.prefix.clone(), until, author(of), of.since.map_or_else(|| "-".to_owned(), instant)]
    };
    let rows = table(["PREFIX", "UNTIL", "BY", "SINCE"], &[], report.would_ban.iter().map(row));
    format!("\nDry run bans nobody. These would be banned:\n{rows}")
}

/// What `allow` and `deny` have done.
pub fn granted(report: &GrantReport) -> String {
    let of = &report.entry;
    let until = of.until.map_or_else(|| "for ever".to_owned(), |until| format!("until {}", instant(until)));
    let mut out = format!("{} is {} {until}\n", of.prefix, state(of));
    if report.frees_count > 0 {
        let more = report.frees_count - report.frees.len() as u64;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "frees {}: {}{more}", counted(report.frees_count, "source"), report.frees.join(", "));
    }
    out + &notes(&report.notes)
}

/// What `unblock` has done.
pub fn unblocked(report: &UnblockReport) -> String {
    let mut out = String::new();
    for of in &report.removed {
        out += &format!("{} is no longer {}\n", of.prefix, state(of));
    }
    if report.removed.is_empty() {
        out = format!("there was no denial of {}, and no ban within it\n", report.prefix);
    }
    out + &notes(&report.notes)
}

/// What `reset` has done.
pub fn reset(report: &ResetReport) -> String {
    if report.windows == 0 && report.bans == 0 {
        return format!("nothing was known of {}\n", report.source);
    }
    let (windows, bans) = (counted(report.windows, "window"), counted(report.bans, "ban"));
    format!("{} begins anew: {windows} and {bans} forgotten\n", report.source)
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
        out += &format!("ON TRIAL: it is rolled back in {seconds} s unless `ratelimitd confirm` follows\n");
    }
    out + &notes(&report.notes)
}

fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| format!("note: {note}\n")).collect()
}

const fn state(of: &Listed) -> &'static str {
    match of.state {
        State::Exempt => "allowed",
        State::Denied => "denied",
        State::Banned => "banned",
        State::OverLimit => "over a limit",
        State::Ok => "limited",
    }
}

fn author(of: &Listed) -> String {
    match (of.by, &of.user, &of.rule) {
        (Author::Command, Some(user), _) => user.clone(),
        (Author::Command, None, _) => "a command".to_owned(),
        (Author::Configuration, ..) => "configuration".to_owned(),
        (Author::Safety, ..) => "safety".to_owned(),
        (Author::Ban, _, Some(rule)) => format!("rule {rule}"),
        (Author::Ban, _, None) => "a ban".to_owned(),
    }
}

fn instant(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}
