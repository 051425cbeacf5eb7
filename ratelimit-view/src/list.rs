//! Output of `ratelimitd list`, and results of commands that change what is enforced.

use jiff::Timestamp;

use super::number;
use super::stats::columns::{Column, wrap, wrapping};
use ratelimit_control::proto::{AcceptReport, ApplyReport, ModeReport, ModeWord, ReloadReport};
use ratelimit_report::snapshot::{Author, ListReport, Listed, Mode, ModeNow, Omitted, RuleMode, State};

/// Formats the whole list in lines of at most `width` columns.
pub fn list(report: &ListReport, width: usize) -> String {
    let would = would_ban(report, width);
    if report.entries.is_empty() {
        return format!("Nothing is allowed, denied or banned: only the limits apply.\n{would}");
    }
    entries(&report.entries, &report.omitted, width) + &would
}

/// Formats entries in lines of at most `width` columns, and the number of others. A narrower width leaves out columns,
/// then takes several lines for an entry. Nothing is cut.
pub(super) fn entries(entries: &[Listed], omitted: &[Omitted], width: usize) -> String {
    let begin = |until: fn(&Listed) -> String| {
        vec![
            Column::left("PREFIX", entries, |of| of.prefix.clone()),
            Column::left("STATE", entries, |of| format!("{}{}", state(of), overridden(of))),
            Column::left("UNTIL", entries, until),
            Column::left("BY", entries, author),
        ]
    };
    let mut full = begin(until);
    full.extend([Column::left("SINCE", entries, since), Column::left("WHY", entries, why)]);
    let mut compact = begin(|of| of.until.map_or_else(|| until(of), minute));
    compact.push(Column::left("WHY", entries, why));
    let record = |of: &Listed| {
        let mut lines = wrap(&format!(" {} {}{}, until {}", of.prefix, state(of), overridden(of), until(of)), width);
        lines.extend(wrap(&format!("   by {} since {}: {}", author(of), since(of), why(of)), width));
        lines
    };
    let records = || entries.iter().flat_map(record).collect();
    let out: Vec<String> = wrapping(&full, width).or_else(|| wrapping(&compact, width)).unwrap_or_else(records);
    let more = |of: &Omitted| format!("{}: {} more; `ratelimitd list --all` shows them\n", of.of, number(of.count));
    lines(&out) + &omitted.iter().map(more).collect::<String>()
}

fn lines(of: &[String]) -> String {
    of.iter().map(|line| format!("{line}\n")).collect()
}

fn until(of: &Listed) -> String {
    of.until.map_or_else(|| "permanent".to_owned(), instant)
}

fn since(of: &Listed) -> String {
    of.since.map_or_else(|| "-".to_owned(), instant)
}

/// Names the entry that overrides this one: `, overridden by allow of 192.0.2.0/24`. The expiry is in that entry's own
/// row.
fn overridden(of: &Listed) -> String {
    let Some(by) = &of.overridden_by else {
        return if of.decides { String::new() } else { ", overridden".to_owned() };
    };
    let verb = if by.state == State::Denied { "deny" } else { "allow" };
    let whom = if by.prefix == of.prefix { String::new() } else { format!(" of {}", by.prefix) };
    format!(", overridden by {verb}{whom}")
}

/// Returns the reason of an entry. For a list entry, returns its list, line and comment too.
fn why(of: &Listed) -> String {
    let parts: Vec<String> = [place(of), of.comment.clone(), of.reason.clone()].into_iter().flatten().collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(": ") }
}

/// Returns where an entry of the configuration is written: its list, or the file.
pub(super) fn place(of: &Listed) -> Option<String> {
    let line = of.line.map_or_else(String::new, |line| format!(" line {line}"));
    match (&of.list, &of.file) {
        (Some(list), _) => Some(format!("list {list}{line}")),
        (None, Some(file)) => Some(format!("{file}{line}")),
        (None, None) => None,
    }
}

/// Formats the bans that dry run prevents.
fn would_ban(report: &ListReport, width: usize) -> String {
    if report.would_ban.is_empty() {
        return String::new();
    }
    let all = report.would_ban.as_slice();
    let until = |of: &Listed| of.until.map_or_else(|| "-".to_owned(), instant);
    let columns = [
        Column::left("PREFIX", all, |of| of.prefix.clone()),
        Column::left("UNTIL", all, until),
        Column::left("BY", all, author),
        Column::left("SINCE", all, since),
    ];
    let record = |of: &Listed| {
        wrap(&format!(" {} until {}, by {} since {}", of.prefix, until(of), author(of), since(of)), width)
    };
    let rows = wrapping(&columns, width).unwrap_or_else(|| all.iter().flat_map(record).collect());
    format!("\nDry run bans no source. These would be banned:\n{}", lines(&rows))
}

/// Formats the result of `mode` and `panic`.
pub fn mode(report: &ModeReport) -> String {
    let said = match (report.mode, report.changed) {
        (ModeWord::Enforce, true) => "the rules do as the configuration says again",
        (ModeWord::Enforce, false) => "no change: the rules do as the configuration says",
        (ModeWord::DryRun, _) => {
            "dry run: NOTHING IS DROPPED, and what would be is counted; `ratelimitd mode enforce` ends it"
        }
        (ModeWord::Panic, _) => "panic: EVERYTHING PASSES, and is still counted; `ratelimitd mode enforce` ends it",
    };
    let rules = match report.mode {
        ModeWord::Enforce => self::rules(&report.rules),
        ModeWord::DryRun | ModeWord::Panic => String::new(),
    };
    format!("{said}\n{rules}{}", notes(&report.notes))
}

/// Formats the current mode of each rule, or the mode that holds for all rules.
pub fn mode_now(now: &ModeNow) -> String {
    if let Some(hold) = &now.hold {
        let what = if hold.panic { "panic: EVERYTHING PASSES" } else { "dry run: NOTHING IS DROPPED" };
        let (by, since) = (&hold.by, instant(hold.since));
        return format!("{what}, by {by} since {since}; `ratelimitd mode enforce` ends it\n");
    }
    rules(&now.rules)
}

fn rules(rules: &[RuleMode]) -> String {
    let word = |mode: Mode| if mode == Mode::Enforce { "enforce" } else { "dry run" };
    rules.iter().map(|rule| format!("rule {}: {}\n", rule.name, word(rule.mode))).collect()
}

/// Formats the result of `reload`.
pub fn reloaded(report: &ReloadReport) -> String {
    let out = match report.changes.as_slice() {
        [] => "reloaded: nothing has changed\n".to_owned(),
        changes => format!("reloaded:\n  {}\n", changes.join("\n  ")),
    };
    out + &notes(&report.notes)
}

/// Formats the result of `lists accept`.
pub fn accepted(report: &AcceptReport) -> String {
    let AcceptReport { file, version, prefixes, covers, in_force, .. } = report;
    let then = if *in_force {
        "in force"
    } else {
        "accepted; no list of the running configuration names this file: once one does, `ratelimitd reload` puts it in \
         force"
    };
    let prefixes = if *prefixes == 1 { "1 prefix".to_owned() } else { format!("{} prefixes", number(*prefixes)) };
    format!("{}: version {version}, {prefixes}, {covers}, {then}\n", file.display())
}

/// Formats the result of `apply`.
pub fn applied(report: &ApplyReport) -> String {
    let mut out = match report.changes.as_slice() {
        [] => "applied: nothing has changed\n".to_owned(),
        changes => format!("applied:\n  {}\n", changes.join("\n  ")),
    };
    if let Some(seconds) = report.confirm_within_seconds {
        out += &format!(
            "ON TRIAL for {seconds} s, then rolled back. To keep it: ratelimitd confirm. To roll back now: ratelimitd rollback\n"
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
        (Author::Command, Some(user), _) => {
            of.owner.as_ref().map_or_else(|| user.clone(), |owner| format!("{user} for {owner}"))
        }
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

/// Formats a time to the minute, without the zone.
fn minute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M").to_string()
}
