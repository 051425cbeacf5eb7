//! Packet totals of each minute, from monotonic counters. Pure.

use std::collections::BTreeMap;

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};
use ratelimit_common::layout::Tally;
use ratelimit_common::verdict::{Action, Reason};

use ratelimit_datapath::{Reading, Tallies};
use ratelimit_history::Total;
use ratelimit_policy::desired::Policy;
use ratelimit_report::history::Outcome;

/// Counters by rule name and reason.
type Counters = BTreeMap<(String, Reason), Tally>;

/// Current minute, and the counters at its start.
#[derive(Debug, Default)]
pub(super) struct Totals {
    began: Option<(Timestamp, Counters)>,
}

impl Totals {
    /// Processes a reading. At the first reading of a new minute, returns the previous minute and its rows.
    pub(super) fn look(
        &mut self,
        reading: &Reading,
        policy: &Policy,
        wall: Timestamp,
    ) -> Option<(Timestamp, Vec<Total>)> {
        let round = TimestampRound::new().smallest(Unit::Minute).mode(RoundMode::Trunc);
        let minute = wall.round(round).unwrap_or(wall);
        if self.began.as_ref().is_some_and(|(began, _)| *began == minute) {
            return None;
        }
        let now = counters(reading, policy);
        let (over, before) = self.began.replace((minute, now.clone()))?;
        let rows: Vec<Total> = now.into_iter().filter_map(|(of, tally)| row(of, tally, &before)).collect();
        (!rows.is_empty()).then_some((over, rows))
    }
}

fn row((rule, reason): (String, Reason), now: Tally, before: &Counters) -> Option<Total> {
    let before = before.get(&(rule.clone(), reason)).copied().unwrap_or_default();
    // A counter that went down was reset and counts from zero.
    let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    let (packets, bytes) = (more(now.packets, before.packets), more(now.bytes, before.bytes));
    let row = Total { rule, reason: reason.label().to_owned(), outcome: outcome(reason), packets, bytes };
    (packets > 0).then_some(row)
}

fn outcome(reason: Reason) -> Outcome {
    match (reason, reason.action()) {
        (Reason::DryRun, _) => Outcome::Would,
        (_, Action::Pass) => Outcome::Admitted,
        (_, Action::Drop) => Outcome::Dropped,
    }
}

/// Returns the counters summed over all interfaces.
fn counters(reading: &Reading, policy: &Policy) -> Counters {
    let mut counters = Counters::new();
    let mut add = |rule: &str, tallies: &Tallies| {
        for (reason, tally) in &tallies.0 {
            let sum = counters.entry((rule.to_owned(), *reason)).or_default();
            sum.packets = sum.packets.wrapping_add(tally.packets);
            sum.bytes = sum.bytes.wrapping_add(tally.bytes);
        }
    };
    for interface in &reading.interfaces {
        add("", &interface.unruled);
        interface.rules.iter().zip(&policy.rules).for_each(|(tallies, rule)| add(&rule.name, tallies));
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_common::layout::Unit;
    use ratelimit_datapath::InterfaceReading;
    use ratelimit_report::fixture::{limit, policy};

    fn reading(passed: u64, dropped: u64) -> Reading {
        let tally = |packets| Tally { packets, bytes: packets * 100 };
        let tallies = vec![(Reason::WithinLimit, tally(passed)), (Reason::OverLimit, tally(dropped))];
        let interface = InterfaceReading {
            name: "eth0".into(),
            attached: None,
            xdp_holder: None,
            unruled: Tallies::default(),
            rules: vec![Tallies(tallies)],
        };
        Reading { interfaces: vec![interface], ..Reading::fixture() }
    }

    #[test]
    fn a_minute_is_what_counters_grew_by_in_it() {
        let policy = policy(vec![limit(3, Unit::Connections)]);
        let mut totals = Totals::default();
        let mut look = |second, reading: Reading| {
            let rows = totals.look(&reading, &policy, Timestamp::from_second(second).unwrap());
            rows.map(|(minute, rows)| {
                let rows = rows.into_iter().map(|of| (of.rule, of.reason, of.outcome, of.packets, of.bytes));
                (minute.as_second(), rows.collect::<Vec<_>>())
            })
        };
        assert_eq!(look(61, reading(10, 1)), None);
        assert_eq!(look(119, reading(15, 1)), None);
        let row =
            |reason: &str, outcome, packets| ("default".to_owned(), reason.to_owned(), outcome, packets, packets * 100);
        let expected = vec![row("within_limit", Outcome::Admitted, 8), row("over_limit", Outcome::Dropped, 3)];
        assert_eq!(look(121, reading(18, 4)), Some((60, expected)));
        assert_eq!(look(181, reading(18, 4)), None, "nothing came");
        let anew = vec![row("within_limit", Outcome::Admitted, 2)];
        assert_eq!(look(241, reading(2, 0)), Some((180, anew)), "counters that were reset");
    }
}
