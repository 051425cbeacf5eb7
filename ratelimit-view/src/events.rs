//! Output of `ratelimitd events`, a line for each event.

use ratelimit_control::proto::EventsReport;
use ratelimit_report::event::Event;

use super::stats::wrap_at;
use super::{counted, folded};

/// Column at which the words of an event begin: after the time and the kind.
const AT: usize = 33;

/// Formats an event in lines of at most `width` columns: time, kind, and the text of the log line.
pub fn event(of: &Event, width: usize) -> String {
    let line = format!("{} {:<12} {}", of.time.strftime("%Y-%m-%d %H:%M:%S"), of.kind.label(), of.detail);
    let at = if width >= 2 * AT { AT } else { 2 };
    wrap_at(&line, width, at).iter().map(|line| format!("{line}\n")).collect()
}

/// Formats recent events in lines of at most `width` columns, and says if older ones were overwritten.
pub fn events(report: &EventsReport, width: usize) -> String {
    let mut out = String::new();
    if report.overwritten > 0 {
        let older = counted(report.overwritten, "older event");
        let said = format!("{older} not remembered any more; `ratelimitd history` has what was refused");
        out += &folded(&said, width);
    }
    out += &report.events.iter().map(|of| event(of, width)).collect::<String>();
    if report.events.is_empty() {
        out += "No remembered event matches.\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use ratelimit_report::event::EventKind;

    #[test]
    fn a_long_event_is_wrapped_on_a_terminal_and_whole_in_a_pipe() {
        let detail = "198.51.100.7 refused by rule \"web\": used 34 of 33/1m connections without a request (guard)";
        let of = Event::new(Timestamp::UNIX_EPOCH, EventKind::Refused, detail.to_owned());
        let report = EventsReport { schema: 1, events: vec![of], overwritten: 1_200 };
        for width in [40, 80, 100] {
            let said = events(&report, width);
            assert!(said.lines().all(|line| line.chars().count() <= width), "{said}");
            let words: Vec<&str> = said.split_whitespace().collect();
            assert!(words.join(" ").contains(detail), "{said}");
        }
        assert_eq!(
            events(&report, 80).lines().last(),
            Some("                                 33/1m connections without a request (guard)")
        );
        assert!(events(&report, usize::MAX).lines().any(|line| line.ends_with(detail)));
    }

    #[test]
    fn an_event_is_its_time_its_kind_and_its_words() {
        let of = Event::new(Timestamp::UNIX_EPOCH, EventKind::Ban, "198.51.100.7 banned".to_owned());
        let report = EventsReport { schema: 1, events: vec![of], overwritten: 1_200 };
        assert_eq!(
            events(&report, usize::MAX),
            "1,200 older events not remembered any more; `ratelimitd history` has what was refused\n\
             1970-01-01 00:00:00 ban          198.51.100.7 banned\n"
        );
        let none = EventsReport { schema: 1, events: vec![], overwritten: 0 };
        assert_eq!(events(&none, usize::MAX), "No remembered event matches.\n");
    }
}
