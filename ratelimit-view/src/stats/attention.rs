//! Problems that need attention, most urgent first: one sentence each, with the remedy.

use super::columns::wrap;
use super::{counted, number};
use crate::{fleet, wait};
use ratelimit_report::history::HealthState;
use ratelimit_report::snapshot::{Hook, Interface, ListState, Overload, Snapshot, XdpMode, passed_over_words};

/// Maximum number of lines of a sentence on a bounded screen, because an error may be long.
const LINES_MAX: usize = 3;

/// Returns the lines of all sentences. A bounded screen gets at least one sentence, and otherwise about half of its
/// rows.
pub(super) fn lines(snapshot: &Snapshot, width: usize, rows: Option<usize>) -> Vec<String> {
    let sentences = attention(snapshot);
    let Some(rows) = rows else { return sentences.iter().flat_map(|of| wrap(of, width)).collect() };
    let mut out: Vec<String> = Vec::new();
    for (at, sentence) in sentences.iter().enumerate() {
        let sentence = shortened(wrap(sentence, width));
        let is_last = at + 1 == sentences.len();
        if !out.is_empty() && out.len() + sentence.len() + usize::from(!is_last) > rows / 2 {
            out.push(format!("{} MORE LIKE THESE: ratelimitd stats --all", sentences.len() - at));
            break;
        }
        out.extend(sentence);
    }
    out
}

fn shortened(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > LINES_MAX {
        lines.truncate(LINES_MAX);
        if let Some(last) = lines.last_mut() {
            last.pop();
            last.push('…');
        }
    }
    lines
}

/// Returns the problems that need attention, one sentence each.
pub fn attention(snapshot: &Snapshot) -> Vec<String> {
    let mut out = Vec::new();
    for of in &snapshot.interfaces {
        let Some(problem) = &of.problem else { continue };
        out.push(if of.attached {
            format!("PACKETS COUNT TWICE: {problem}")
        } else {
            format!("{} IS NOT ATTACHED: {problem}; the daemon keeps retrying", of.name)
        });
    }
    let generic = snapshot.interfaces.iter().filter(|of| of.xdp_mode == Some(XdpMode::Generic));
    let generic: Vec<&str> = generic.map(|of| of.name.as_str()).collect();
    if !generic.is_empty() {
        out.push(format!("GENERIC MODE on {}: it limits all the same, and a packet costs more", generic.join(", ")));
    }
    let named = |of: &Interface| match &of.xdp_holder {
        Some(holder) => format!("{}, where {holder} uses XDP", of.name),
        None => of.name.clone(),
    };
    let tcx: Vec<_> = snapshot.interfaces.iter().filter(|of| of.hook == Some(Hook::Tcx)).map(named).collect();
    if !tcx.is_empty() {
        out.push(format!("BY TCX on {}: it limits all the same, and a packet costs about 350 ns more", tcx.join(", ")));
    }
    held(snapshot, &mut out);
    out.extend(snapshot.unkept.clone());
    configured(snapshot, &mut out);
    out.extend(fleet::attention(&snapshot.fleet));
    out.extend(snapshot.top_talkers.iter().map(|of| format!("RULE {}: {}", of.rule, of.words())));
    out.extend(overload(snapshot));
    for error in snapshot.map_errors.iter().filter(|error| error.count > 0) {
        out.push(format!("MAP ERRORS: {} {}, {}", error.map, error.op, counted(error.count, "time")));
    }
    if let Some(of) = snapshot.history.as_ref().filter(|of| of.state != HealthState::Ok || of.detail.is_some()) {
        let why = of.detail.as_deref().unwrap_or("it is not written: see the log");
        out.push(format!("HISTORY: {why}"));
    }
    if snapshot.events.lost > 0 {
        let begun = snapshot.events.sent.saturating_add(snapshot.events.lost);
        let (lost, begun) = (number(snapshot.events.lost), counted(begun, "event"));
        out.push(format!("EVENTS LOST: {lost} of {begun}; limits and counters are exact all the same"));
    }
    out
}

/// Adds the overrides that keep rules from dropping.
fn held(snapshot: &Snapshot, out: &mut Vec<String>) {
    if let Some(hold) = &snapshot.hold {
        let what = if hold.panic { "PANIC" } else { "DRY RUN" };
        let since = hold.since.strftime("%Y-%m-%d %H:%M:%S UTC");
        out.push(format!("{what} by {} since {since}: `ratelimitd mode enforce` ends it", hold.by));
    }
    if let Some(left) = snapshot.confirm_within_seconds {
        let left = wait(left);
        out.push(format!(
            "A FILE IS ON TRIAL: it is rolled back in {left} unless `ratelimitd confirm` follows; `ratelimitd rollback` \
             does it now"
        ));
    }
    for rule in &snapshot.fallen_back {
        out.push(format!(
            "RULE {rule} FELL BACK TO DRY RUN, as it dropped more than it may: `ratelimitd mode enforce` ends it"
        ));
    }
}

/// Adds configured changes that are not in force.
fn configured(snapshot: &Snapshot, out: &mut Vec<String>) {
    if let Some(of) = &snapshot.config.rolled_back {
        let why = if of.why.is_empty() { String::new() } else { format!(" ({})", of.why) };
        let file = &of.file;
        out.push(format!(
            "ROLLED BACK: the policy before {file} is in force again{why}; to put it in force: ratelimitd apply {file}"
        ));
    }
    if !snapshot.config.last_reload_successful {
        let why = snapshot.config.error.as_deref().unwrap_or("see the log");
        out.push(format!("THE LAST RELOAD FAILED, and the previous policy stays in force: {why}"));
    }
    for of in &snapshot.access_logs {
        if let Some(trouble) = &of.trouble {
            out.push(format!("ACCESS LOG {} {trouble}: requests are counted without it", of.log));
        }
    }
    for list in &snapshot.stale_lists {
        let why = list.error.as_deref().unwrap_or("see the log");
        let of = snapshot.lists.iter().find(|of| of.file == list.file);
        let partly = if of.is_some() { "PARTLY PROTECTED: " } else { "" };
        let holds = match of.map(|of| of.state) {
            Some(ListState::LeftOut) => "none of its entries is in force",
            Some(ListState::InForce | ListState::LastGood) | None => "its previous entries stay",
        };
        out.push(format!("{partly}LIST FILE {} IS NOT FOLLOWED, and {holds}: {why}", list.file));
    }
    for list in snapshot.lists.iter().filter(|list| list.state == ListState::InForce) {
        let why = list.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        out.extend(list.words().map(|words| format!("{words}{why}")));
    }
    out.extend(passed_over_words(snapshot.list_entries_passed_over));
}

/// Warns that more new sources arrive than can be tracked, and names the setting that bounds them.
fn overload(snapshot: &Snapshot) -> Option<String> {
    let is_bounded = snapshot.rules.iter().any(|rule| rule.new_sources.is_some());
    match snapshot.sources.overload {
        Overload::Sampling => {
            let advice = if is_bounded { "" } else { "; `new_sources` in a rule bounds them" };
            Some(format!(
                "MORE NEW SOURCES COME THAN CAN BE REMEMBERED: 1 in {} of their packets is sampled, the rest \
                 pass{advice}",
                number(snapshot.sources.sampled_one_in)
            ))
        }
        Overload::None => None,
    }
}
