//! Output of `ratelimitd events`, a line for each event.

use ratelimit_control::proto::EventsReport;
use ratelimit_report::event::Event;

use super::counted;

/// Formats an event: time, kind, and the words of the log.
pub fn event(of: &Event) -> String {
    format!("{} {:<12} {}\n", of.time.strftime("%Y-%m-%d %H:%M:%S"), of.kind.label(), of.detail)
}

/// Formats recent events, and says if older ones were overwritten.
pub fn events(report: &EventsReport) -> String {
    let mut out = String::new();
    if report.overwritten > 0 {
        let older = counted(report.overwritten, "older event");
        out += &format!("{older} not remembered any more; `ratelimitd history` has what was refused\n");
    }
    out += &report.events.iter().map(event).collect::<String>();
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
    fn an_event_is_its_time_its_kind_and_its_words() {
        let of = Event::new(Timestamp::UNIX_EPOCH, EventKind::Ban, "198.51.100.7 banned".to_owned());
        let report = EventsReport { schema: 1, events: vec![of], overwritten: 1_200 };
        assert_eq!(
            events(&report),
            "1,200 older events not remembered any more; `ratelimitd history` has what was refused\n\
             1970-01-01 00:00:00 ban          198.51.100.7 banned\n"
        );
        let none = EventsReport { schema: 1, events: vec![], overwritten: 0 };
        assert_eq!(events(&none), "No remembered event matches.\n");
    }
}
