//! Rules: their limits, their admissions, and the reasons of their drops.

use std::cmp::Reverse;

use ratelimit_common::verdict::Reason;

use super::columns::{wrap, wrap_at};
use super::{counted, number};
use crate::{cut, duration, form, limit};
use ratelimit_report::snapshot::{Counter, LimitUse, Mode, Outcome, Rule, Snapshot, Unit};

/// Column at which the details of a rule begin.
const AT: usize = 15;

/// Formats all rules, with an empty line before each. If not all fit, rules with the most refusals, then admissions,
/// are shown in full. Others get one line each below them, as long as there is room.
pub(super) fn lines(snapshot: &Snapshot, width: usize, room: usize) -> Vec<String> {
    let blocks: Vec<Vec<String>> = snapshot.rules.iter().map(|of| rule(snapshot, of, width)).collect();
    if blocks.iter().map(Vec::len).sum::<usize>() <= room {
        return blocks.into_iter().flatten().collect();
    }
    let mut order: Vec<(usize, &Rule)> = snapshot.rules.iter().enumerate().collect();
    order.sort_by_key(|(_, of)| Reverse((of.dropped.saturating_add(of.would_drop), of.admitted)));
    // Each rule needs one line, plus one empty line. The remaining room shows some rules in full.
    let mut left = room.saturating_sub(1 + order.len());
    let (mut whole, mut short) = (Vec::new(), Vec::new());
    for (at, _) in order {
        let more = blocks[at].len().saturating_sub(1);
        if short.is_empty() && more <= left {
            left -= more;
            whole.push(at);
        } else {
            short.push(at);
        }
    }
    let fit = room.saturating_sub(1).max(1);
    let hidden = if short.len() <= fit { 0 } else { short.len() - fit.saturating_sub(1) };
    short.truncate(short.len() - hidden);
    whole.sort_unstable();
    short.sort_unstable();
    let mut out: Vec<String> = whole.into_iter().flat_map(|at| blocks[at].clone()).collect();
    out.push(String::new());
    out.extend(short.into_iter().filter_map(|at| snapshot.rules.get(at)).map(|of| cut(&in_a_line(of), width)));
    if hidden > 0 {
        out.push(format!("{}: ratelimitd stats --all", counted(hidden as u64, "more rule")));
    }
    out
}

fn in_a_line(rule: &Rule) -> String {
    let (verb, refused) = match rule.mode {
        Mode::Enforce => ("dropped", rule.dropped),
        Mode::DryRun => ("would drop", rule.would_drop),
    };
    let (admitted, refused) = (counted(rule.admitted, "packet"), number(refused));
    let of_packets = match used(rule).next() {
        // The dropped amount comes early, because long lines are cut at the end.
        Some(of) => {
            let (used, unit, window) = (number(of.used), of.unit.label(), window(of));
            format!("{used} {unit}/{window}; {verb} {refused}, admitted {admitted}")
        }
        None => format!("{admitted} admitted, {verb} {refused}"),
    };
    format!("Rule {} ({}): {of_packets}", rule.name, mode_of(rule))
}

/// Returns the use of each limit that does not count packets.
fn used(rule: &Rule) -> impl Iterator<Item = &LimitUse> {
    rule.used.iter().filter(|of| of.unit != Unit::Packets)
}

fn window(of: &LimitUse) -> String {
    duration(of.window_seconds)
}

/// Returns the mode of a rule in words.
pub const fn mode_of(rule: &Rule) -> &'static str {
    match rule.mode {
        Mode::Enforce => "enforced",
        Mode::DryRun => "dry run",
    }
}

fn rule(snapshot: &Snapshot, rule: &Rule, width: usize) -> Vec<String> {
    let mut out = vec![String::new()];
    out.extend(wrap(&format!("Rule {} ({}) on ports {}", rule.name, mode_of(rule), rule.ports), width));
    let mut say = |head: &str, text: &str| out.extend(wrap_at(&format!("  {head:<11}  {text}"), width, AT));
    for of in &rule.limits {
        say("limit", &format!("{}, {}", limit(of), form(of)));
    }
    if let Some(of) = rule.new_sources {
        say("new sources", &format!("at most {} in {}", number(of.amount), duration(of.window_seconds)));
    }
    // The units of the limits come before packets, which are counted for every rule.
    for of in used(rule) {
        let sources = counted(of.sources, "source");
        say(of.unit.label(), &format!("{} in the last {}, from {sources}", number(of.used), window(of)));
    }
    let admitted = counted(rule.admitted, "packet");
    say("admitted", &format!("{admitted}; {} more that no limit counts", number(rule.not_counted)));
    for of in &snapshot.access_logs {
        if let Some(added) = of.requests_added.get(&rule.name) {
            let state = match &of.trouble {
                Some(_) => "charges nobody now".to_owned(),
                None => format!("is {:.1} s behind", of.behind_seconds),
            };
            say("access log", &format!("{} added; {} {state}", counted(*added, "request"), of.log));
            let turn = of.turn_requests_max.get(&rule.name).copied().unwrap_or(1);
            if turn > 1 {
                say("", &format!("a turn of HTTP/2 or HTTP/3 is charged as up to {} requests", number(turn)));
            }
        }
    }
    if rule.mode == Mode::Enforce || rule.dropped > 0 {
        say("dropped", &(counted(rule.dropped, "packet") + &reasons(snapshot, rule)));
    }
    if rule.mode == Mode::DryRun || rule.would_drop > 0 {
        let would = |of: &&Counter| of.reason == Reason::DryRun.label();
        let bytes = counters(snapshot, rule).filter(would).fold(0, |sum: u64, of| sum.saturating_add(of.bytes));
        let own = if rule.would_drop == 0 { String::new() } else { own_unit(rule, rule.would_drop, bytes) };
        say("would drop", &(counted(rule.would_drop, "packet") + &own));
    }
    if rule.sources_over_limit > 0 {
        say("over limit", &format!("{} now", counted(rule.sources_over_limit, "source")));
    }
    if rule.bans != 0 {
        say("bans", &format!("{} begun", number(rule.bans)));
    }
    if let Some(of) = rule.would_ban {
        let sources = counted(of.sources, "source");
        say("would ban", &format!("{} since the start; {sources} would be banned now", number(of.bans)));
    }
    for of in &rule.shadow_limits {
        let what = if of.limit.condition.is_some() { "request" } else { "packet" };
        let (dropped, sources) = (counted(of.would_drop, what), counted(of.sources, "source"));
        say("shadow", &format!("{}: would have dropped {dropped} of {sources}", limit(&of.limit)));
    }
    out
}

fn counters<'a>(snapshot: &'a Snapshot, rule: &'a Rule) -> impl Iterator<Item = &'a Counter> {
    snapshot.interfaces.iter().flat_map(|interface| &interface.counters).filter(|of| of.rule == rule.name)
}

/// Describes the reasons of a rule's drops, with amounts in the unit of its limits:
/// `: 1,285 over the limit (96,000 bytes), 270 by the guard`.
fn reasons(snapshot: &Snapshot, rule: &Rule) -> String {
    let mut reasons: Vec<(&str, u64, u64)> = Vec::new();
    for of in counters(snapshot, rule).filter(|of| of.verdict == Outcome::Drop && of.packets != 0) {
        match reasons.iter_mut().find(|(reason, ..)| *reason == of.reason) {
            Some((_, packets, bytes)) => {
                *packets = packets.saturating_add(of.packets);
                *bytes = bytes.saturating_add(of.bytes);
            }
            None => reasons.push((&of.reason, of.packets, of.bytes)),
        }
    }
    let words = |(reason, packets, bytes): &(&str, u64, u64)| {
        let own = if *reason == Reason::OverLimit.label() { own_unit(rule, *packets, *bytes) } else { String::new() };
        format!("{} {}{own}", number(*packets), drop_words(reason))
    };
    match reasons.as_slice() {
        [] => String::new(),
        // The caller prints the number before these words.
        [one] => words(one).trim_start_matches(|c: char| c.is_ascii_digit() || c == ',').to_owned(),
        several => format!(": {}", several.iter().map(words).collect::<Vec<_>>().join(", ")),
    }
}

/// Converts refused packets to the unit of the rule's limits, if that is possible. The program counts refusals in
/// packets and bytes. A refused connection is at least one packet. One packet may hold several requests.
fn own_unit(rule: &Rule, packets: u64, bytes: u64) -> String {
    let has = |unit: Unit| rule.limits.iter().any(|limit| limit.unit == unit);
    match () {
        () if has(Unit::Bytes) => format!(" ({})", counted(bytes, "byte")),
        () if has(Unit::Requests) || has(Unit::Packets) => String::new(),
        () => format!(" (at most {})", counted(packets, "connection")),
    }
}

/// Returns a drop reason in words that follow a number of packets. An unknown reason of a later daemon is returned
/// unchanged.
pub(super) fn drop_words(reason: &str) -> &str {
    match Reason::ALL.iter().find(|of| of.label() == reason) {
        Some(Reason::OverLimit) => "over the limit",
        Some(Reason::Contended) => "whose count other CPUs changed at every try",
        Some(Reason::Banned) => "of banned sources",
        Some(Reason::Denied) => "of denied sources",
        Some(Reason::NewSourceBudget) => "of new sources over their budget",
        Some(Reason::TooManyTags) => "behind too many tags",
        Some(Reason::Guard) => "by the guard",
        Some(Reason::Reset) => "answered by a reset",
        Some(Reason::Page) => "answered by a page",
        Some(Reason::TooManyHeaders) => "behind headers that cannot be parsed",
        Some(_) | None => reason,
    }
}
