//! Output of `ratelimitd stats`: first problems, then refused sources, then rules, interfaces and totals. Pure: a
//! function of a snapshot and the size of the screen.
//!
//! A bounded screen gets the rows that fit, worst first, and the number of others. A pipe or file gets all rows.

use ratelimit_common::verdict::{Action, Reason};

use super::{counted, fleet, number, table};
use ratelimit_report::fleet::FleetState;
use ratelimit_report::snapshot::{Closed, Mode, Overload, Rule, Snapshot};

mod attention;
pub(crate) mod columns;
mod groups;
mod interfaces;
mod rules;
mod top;

pub use attention::attention;
pub(super) use columns::wrap;
pub use columns::wrap_at;
pub(super) use groups::groups;
pub use interfaces::attachment;
pub use rules::mode_of;
pub use top::state;
pub(super) use top::top;

/// Minimum number of source rows, even on a small screen.
const SOURCES_LEAST: usize = 3;
/// Minimum width in columns, even if a terminal reports less.
const WIDTH_LEAST: usize = 80;

/// Size of the output, and amount of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Width in columns. Values below 80 count as 80.
    pub width: usize,
    /// Height in lines. None for no limit.
    pub rows: Option<usize>,
    /// Amount of detail, such as the accuracy of each unit's count.
    pub detail: Detail,
}

/// Amount of detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Only the values that change.
    Normal,
    /// Also the accuracy of each unit's counts.
    Verbose,
}

impl Page {
    /// A pipe or file: all lines, of any length.
    pub const ENDLESS: Self = Self { width: usize::MAX, rows: None, detail: Detail::Normal };
}

/// Formats a snapshot for people, in several lines.
pub fn stats(snapshot: &Snapshot, page: Page) -> String {
    stats_below(None, snapshot, page)
}

/// Formats a snapshot below an introductory sentence.
pub fn stats_below(notice: Option<&str>, snapshot: &Snapshot, page: Page) -> String {
    let width = page.width.max(WIDTH_LEAST);
    let rows = page.rows.unwrap_or(usize::MAX);
    let mut out = notice.map_or_else(Vec::new, |notice| wrap(notice, width));
    let uptime = super::duration(snapshot.uptime_seconds);
    let head = format!("ratelimitd {}, up {uptime}: {}", snapshot.version, what_it_does(snapshot));
    out.extend(wrap(&head, width));
    out.extend(attention::lines(snapshot, width, page.rows));
    let mut foot = interfaces::lines(snapshot, width, rows);
    foot.extend(sources(snapshot, width));
    if snapshot.fleet.state != FleetState::Off {
        foot.extend(wrap(&fleet::summary(&snapshot.fleet), width));
    }
    if page.detail == Detail::Verbose {
        foot.push(String::new());
        let reasons = snapshot.reasons.iter().filter(|(_, packets)| **packets > 0);
        let reasons: Vec<_> = reasons.map(|(reason, packets)| format!("{} {reason}", number(*packets))).collect();
        foot.extend(wrap(&format!("Packets by reason: {}", reasons.join(", ")), width));
        foot.extend(super::counting(&snapshot.counting).lines().flat_map(|line| wrap(line, width)));
    }
    let groups = groups::lines(&snapshot.groups, width, page.rows);
    foot.splice(0..0, groups);
    // Each section has an empty line before it.
    let left = rows.saturating_sub(out.len() + 1 + foot.len());
    let sources = snapshot.top.as_deref().unwrap_or_default();
    let least = if sources.is_empty() { 0 } else { 2 + SOURCES_LEAST.min(sources.len()) };
    let in_use = snapshot.sources.in_use;
    let is_more = usize::from(sources.len() > SOURCES_LEAST || in_use > sources.len() as u64);
    let rules = rules::lines(snapshot, width, left.saturating_sub(least + is_more));
    let top = top::lines(sources, in_use, width, left.saturating_sub(rules.len()));
    for section in [top, rules] {
        out.extend(section);
    }
    out.push(String::new());
    out.extend(foot);
    // The attention section stands first, so it stays if there is too much.
    out.truncate(rows);
    out.iter().map(|line| format!("{line}\n")).collect()
}

/// Formats the data of the pins when no daemon runs: packets by interface, by rule and by drop reason.
pub fn left(snapshot: &Snapshot, page: Page) -> String {
    let width = page.width.max(WIDTH_LEAST);
    let rule = |of: &Rule| {
        let admitted = number(of.admitted);
        let mode = rules::mode_of(of).to_owned();
        [of.name.clone(), mode, of.ports.clone(), admitted, number(of.dropped), number(of.would_drop)]
    };
    let head = ["RULE", "MODE", "PORTS", "ADMITTED", "DROPPED", "WOULD DROP"];
    let interfaces = interfaces::lines(snapshot, width, usize::MAX);
    let mut out: String = interfaces.iter().map(|line| format!("{line}\n")).collect();
    out += "\n";
    let rules = table(head, &[3, 4, 5], snapshot.rules.iter().map(rule));
    out += &rules.lines().map(|line| super::cut(line, width) + "\n").collect::<String>();
    let drops = Reason::ALL.iter().filter(|reason| reason.action() == Action::Drop);
    let drops = drops.filter_map(|reason| Some((reason, *snapshot.reasons.get(reason.label())?)));
    let drops: Vec<_> = drops
        .filter(|(_, packets)| *packets > 0)
        .map(|(reason, packets)| format!("{} {}", number(packets), rules::drop_words(reason.label())))
        .collect();
    if !drops.is_empty() {
        let drops = wrap(&format!("Dropped packets: {}", drops.join(", ")), width);
        out += &format!("\n{}\n", drops.join("\n"));
    }
    out
}

/// Describes the enforcement: in one clause if it is the same everywhere, or else for each rule and interface.
pub fn what_it_does(snapshot: &Snapshot) -> String {
    let rules = |mode: Mode| -> Vec<&str> {
        snapshot.rules.iter().filter(|rule| rule.mode == mode).map(|rule| rule.name.as_str()).collect()
    };
    let interfaces = |is_attached: bool| -> String {
        let of = snapshot.interfaces.iter().filter(|of| of.attached == is_attached);
        of.map(|of| of.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (attached, away) = (interfaces(true), interfaces(false));
    if attached.is_empty() {
        return format!("NOT PROTECTED: {away} not attached, so nothing is counted or dropped");
    }
    let panics = snapshot.hold.as_ref().is_some_and(|hold| hold.panic);
    let does = match (rules(Mode::Enforce).as_slice(), rules(Mode::DryRun).as_slice()) {
        _ if panics => "PANIC, everything passes and is still counted".to_owned(),
        (_, []) => "enforcing, what is over a limit is dropped".to_owned(),
        ([], _) => "dry run, nothing is dropped and what would be is counted".to_owned(),
        (enforced, dry) => format!("enforcing {}, dry run in {}", names(enforced), names(dry)),
    };
    let alone = if snapshot.fleet.state == FleetState::Away {
        "; the fleet is AWAY, so each host limits by itself"
    } else {
        ""
    };
    let partly = match snapshot.lists.iter().filter(|list| !list.is_whole()).count() {
        0 => String::new(),
        1 => "; PARTLY PROTECTED: a list file is not in force as it stands".to_owned(),
        lists => format!("; PARTLY PROTECTED: {lists} list files are not in force as they stand"),
    };
    if away.is_empty() {
        format!("{does}{alone}{partly}")
    } else {
        format!("{does} on {attached}{alone}; NOT PROTECTED: {away} not attached{partly}")
    }
}

/// Formats rule names: `rule web`, `rules web, api`.
fn names(rules: &[&str]) -> String {
    format!("rule{} {}", if rules.len() == 1 { "" } else { "s" }, rules.join(", "))
}

/// Formats the number of sources, and the treatment of sources beyond the capacity.
fn sources(snapshot: &Snapshot, width: usize) -> Vec<String> {
    let of = &snapshot.sources;
    let mut out =
        vec![format!("Sources: {} tracked, at most {} IPv4 and as many IPv6", number(of.tracked), number(of.capacity))];
    if of.banned > 0 {
        out.push(format!("  {} banned; `ratelimitd list` names them", counted(of.banned, "source")));
    }
    if of.not_admitted > 0 {
        out.push(format!("  {} from sources that could not be remembered", counted(of.not_admitted, "packet")));
    }
    let Closed { ended, left_open, passed_over } = snapshot.connections;
    if !snapshot.connections.is_none() {
        let left =
            if left_open == 0 { String::new() } else { format!("; {} beyond the budget stay open", number(left_open)) };
        let over = if passed_over == 0 {
            String::new()
        } else {
            format!("; those of {} not searched", counted(passed_over, "source"))
        };
        out.push(format!("  closed {} of denied or banned sources{left}{over}", counted(ended, "connection")));
    }
    if of.overload == Overload::None && of.overloaded_periods > 0 {
        let periods = counted(of.overloaded_periods, "time");
        out.push(format!("  source tracking overflowed {periods} on a CPU, not now"));
    }
    out.iter().flat_map(|line| wrap(line, width)).collect()
}

#[cfg(test)]
mod tests;
