//! Sources that are refused, worst first, then sources near a limit.

use super::columns::{Column, fitting};
use super::{counted, number};
use crate::{duration, short, wait};
use ratelimit_common::verdict::Reason;
use ratelimit_report::snapshot::{State, TOP_MAX, TopSource};

/// Formats the sources as a table in at most `room` lines, with an empty line before it. `in_use` is the number of
/// sources that have used a limit, listed or not.
pub(super) fn lines(top: &[TopSource], in_use: u64, width: usize, room: usize) -> Vec<String> {
    if top.is_empty() {
        return Vec::new();
    }
    let listed = top.len() as u64;
    // Reserve an empty line, the head, and a line that counts the others, if any.
    let fits = room.saturating_sub(2 + usize::from(in_use > listed));
    let shown = if top.len() <= fits { top } else { top.get(..room.saturating_sub(3).max(1)).unwrap_or(top) };
    let mut out = vec![String::new()];
    out.extend(rows(shown, width));
    let at_least = if in_use > listed { "at least " } else { "" };
    let more = in_use.max(listed).saturating_sub(shown.len() as u64);
    match more {
        0 => {}
        more if shown.len() < TOP_MAX => {
            out.push(format!("{at_least}{}: ratelimitd stats --all", counted(more, "more source")));
        }
        more => out.push(format!("{at_least}{}: no more are listed", counted(more, "more source"))),
    }
    out
}

/// Formats the sources nearest to or over a limit, one line each, of any width.
pub(in super::super) fn top(top: &[TopSource]) -> String {
    rows(top, usize::MAX).iter().map(|line| format!("{line}\n")).collect()
}

fn rows(top: &[TopSource], width: usize) -> Vec<String> {
    let one_rule = top.iter().all(|of| of.rule == top[0].rule);
    let refused = |of: &TopSource| of.dropped.saturating_add(of.would_drop);
    let has_one_kind = top.iter().all(|of| of.dropped == 0) || top.iter().all(|of| of.would_drop == 0);
    let kind = match () {
        () if !has_one_kind => "REFUSED",
        () if top.iter().any(|of| of.would_drop > 0) => "WOULD DROP",
        () => "DROPPED",
    };
    let full = || {
        let used = |of: &TopSource| format!("{} in {}", used(of, number), duration(of.window_seconds));
        vec![
            Column::left("SOURCE", top, |of| of.source.clone()),
            Column::left("RULE", top, |of| of.rule.clone()),
            Column::left("USED", top, used),
            Column::right("DROPPED", top, |of| number(of.dropped)),
            Column::right("WOULD DROP", top, |of| number(of.would_drop)),
            Column::left("STATE", top, state_words),
            Column::left("PASSES AGAIN", top, |of| again(of, wait)),
        ]
    };
    // The rule comes last, because the last column is cut. With a single rule, the column is left out.
    let narrow = |used: &dyn Fn(&TopSource) -> String| {
        let mut columns = vec![
            Column::left("SOURCE", top, |of| of.source.clone()),
            Column::right("USED", top, used),
            Column::right(kind, top, |of| short(refused(of))),
            Column::left("STATE", top, |of| state(of).to_owned()),
            Column::left("AGAIN", top, again_short),
        ];
        if !one_rule {
            columns.push(Column::left("RULE", top, |of| of.rule.clone()));
        }
        columns
    };
    let with_unit = || narrow(&|of| used(of, short));
    let with_percent = || narrow(&percent);
    fitting(&[&full, &with_unit, &with_percent], width)
}

/// Formats the usage: `1,000 of 1,000 requests`.
fn used(of: &TopSource, number: fn(u64) -> String) -> String {
    format!("{} of {} {}", number(of.used), number(of.limit), of.unit.label())
}

fn percent(of: &TopSource) -> String {
    let percent = u128::from(of.used) * 100 / u128::from(of.limit.max(1));
    format!("{percent} %")
}

const fn is_refused(of: &TopSource) -> bool {
    match of.state {
        State::OverLimit | State::Banned | State::Denied => true,
        State::Ok | State::Exempt => false,
    }
}

/// Describes the state of a source, and names the group that refuses it.
fn state_words(of: &TopSource) -> String {
    match &of.group {
        Some(group) => format!("{} {group}", state(of)),
        None => state(of).to_owned(),
    }
}

/// Describes the state of a source.
pub fn state(of: &TopSource) -> &'static str {
    match of.state {
        State::OverLimit if of.group.is_some() => "over its group",
        State::Ok => "ok",
        State::OverLimit if of.reason == Reason::Guard.label() => "over the guard",
        State::OverLimit => "over the limit",
        State::Banned => "banned",
        State::Denied => "denied",
        State::Exempt => "allowed",
    }
}

/// Says when a source passes again.
fn again(of: &TopSource, wait: fn(f64) -> String) -> String {
    match () {
        () if !is_refused(of) => "-".to_owned(),
        () if of.never && of.state == State::Denied => "never: `ratelimitd check` says what undoes it".to_owned(),
        () if of.never => "never: the limit is 0".to_owned(),
        () => format!("in {}", wait(of.retry_after_seconds)),
    }
}

fn again_short(of: &TopSource) -> String {
    if is_refused(of) && of.never { "never".to_owned() } else { again(of, duration) }
}
