//! Groups of sources nearest to or over a limit, one line each.

use crate::{counted, duration, number, wait};
use ratelimit_report::snapshot::{State, TopGroup};

/// Maximum number of groups on a screen.
const GROUPS_SHOWN: usize = 3;

/// Formats groups in at most `room` lines, and an empty line after them. A bounded screen omits groups below half of
/// their limit.
pub(super) fn lines(groups: &[TopGroup], width: usize, room: Option<usize>) -> Vec<String> {
    let is_near = |of: &&TopGroup| room.is_none() || of.state == State::OverLimit || of.used >= of.limit / 2;
    let near: Vec<&TopGroup> = groups.iter().filter(is_near).collect();
    let shown = near.len().min(room.map_or(usize::MAX, |room| room.min(GROUPS_SHOWN)));
    let mut out: Vec<String> = near[..shown].iter().map(|of| super::super::cut(&line(of), width)).collect();
    let more = near.len() - shown;
    if more > 0 && shown > 0 {
        out.push(format!("and {}: --json has them", counted(more as u64, "more group")));
    }
    if !out.is_empty() {
        out.push(String::new());
    }
    out
}

/// Formats all groups, one line each, of any width.
pub(in super::super) fn groups(groups: &[TopGroup]) -> String {
    groups.iter().map(|of| line(of) + "\n").collect()
}

/// Formats a group: `Group 203.0.113.0/24: 5,000 of 5,000 requests by 212 sources in 1m (rule web), 40 packets dropped,
/// over the limit; passes again in 12 s`.
fn line(of: &TopGroup) -> String {
    let by = of.sources.map_or_else(String::new, |sources| format!(" by {}", counted(sources, "source")));
    let used = format!("{} of {} {}", number(of.used), number(of.limit), of.unit.label());
    let state = match of.state {
        State::OverLimit if of.never => ", over the limit".to_owned(),
        State::OverLimit => format!(", over the limit; passes again in {}", wait(of.retry_after_seconds)),
        State::Ok | State::Banned | State::Denied | State::Exempt => String::new(),
    };
    let dropped = match (of.dropped, of.would_drop) {
        (0, 0) => String::new(),
        (0, would) => format!(", {} would be dropped", counted(would, "packet")),
        (dropped, _) => format!(", {} dropped", counted(dropped, "packet")),
    };
    format!("Group {}: {used}{by} in {} (rule {}){dropped}{state}", of.group, duration(of.window_seconds), of.rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_report::snapshot::Unit;

    fn group() -> TopGroup {
        TopGroup {
            group: "203.0.113.0/24".to_owned(),
            rule: "web".to_owned(),
            text: "5000/1m requests per /24,/56".to_owned(),
            unit: Unit::Requests,
            used: 5_000,
            limit: 5_000,
            window_seconds: 60.0,
            sources: Some(212),
            dropped: 1_234,
            would_drop: 0,
            state: State::OverLimit,
            retry_after_seconds: 12.0,
            never: false,
        }
    }

    #[test]
    fn a_group_says_who_has_used_what_and_when_it_passes_again() {
        let near = TopGroup {
            group: "list asn64496".to_owned(),
            used: 2_500,
            sources: None,
            dropped: 0,
            would_drop: 7,
            state: State::Ok,
            ..group()
        };
        assert_eq!(
            lines(&[group(), near], usize::MAX, None),
            [
                "Group 203.0.113.0/24: 5,000 of 5,000 requests by 212 sources in 1m (rule web), 1,234 packets dropped, \
                 over the limit; passes again in 12 s",
                "Group list asn64496: 2,500 of 5,000 requests in 1m (rule web), 7 packets would be dropped",
                "",
            ]
        );
    }

    #[test]
    fn a_screen_has_those_that_matter() {
        let quiet = TopGroup { used: 2_499, state: State::Ok, ..group() };
        assert!(lines(std::slice::from_ref(&quiet), 80, Some(9)).is_empty());
        let screen = lines(&vec![group(); 9], 80, Some(9));
        assert_eq!(screen.len(), 5);
        assert_eq!(screen[3..], ["and 6 more groups: --json has them", ""]);
        assert_eq!(lines(&[quiet], 80, None).len(), 2);
    }
}
