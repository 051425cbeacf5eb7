//! Tests of limits that are charged without a check of all of them before.

use proptest::prelude::*;

use super::groups::grouped;
use super::*;

/// Returns the same rule, with the check.
fn looking(memory: &Memory) -> Memory {
    let looking = super::memory(memory.rule);
    Memory { rule: Rule { is_of_limits_alone: 0, ..memory.rule }, ..looking }
}

proptest! {
    #[test]
    fn charging_each_says_and_leaves_what_a_look_before_does(
        amounts in prop::collection::vec((0_u64..12, any::<bool>()), 2..5),
        own in 0_u8..4,
        packets in prop::collection::vec((0_u32..4, 0_u32..60, 0_u64..40, any::<bool>()), 1..80),
    ) {
        let limits: Vec<Limit> = (0..)
            .zip(&amounts)
            .map(|(slot, &(amount, of_requests))| {
                let unit = if of_requests { Unit::Requests } else { Unit::Packets };
                let parts = Parts::shared(60 * SECOND_NS, amount, 1);
                Limit { parts, told_sides: 1 << Side::Unverified as u8, ..limit(7 + slot, unit, amount) }
            })
            .collect();
        let own = own.min(u8::try_from(limits.len()).unwrap());
        let each = memory(grouped(&limits, own));
        let looking = looking(&each);
        prop_assert_eq!((each.rule.is_of_limits_alone, looking.rule.is_of_limits_alone), (1, 0));
        let mut at = NOW;
        for (source, later_s, lag_ms, has_request) in packets {
            at = Nanos(at.0 + u64::from(later_s) * SECOND_NS);
            let charges = Charges { requests: u16::from(has_request), ..PACKET };
            let judged = [&each, &looking].map(|memory| {
                memory.now.set(at);
                memory.lag_ns.set(lag_ms * 1_000_000);
                memory.source.set(0x0100 + (source << 7));
                memory.judges(charges)
            });
            prop_assert_eq!(judged[0], judged[1]);
        }
        let cells = |memory: &Memory| -> Vec<_> {
            let kept = memory.windows.borrow();
            kept.iter().map(|(of, kept)| (*of, kept.cells.clone().map(Cell::into_inner), kept.refused.get())).collect()
        };
        prop_assert_eq!(cells(&each), cells(&looking));
        prop_assert_eq!(each.steps.into_inner(), looking.steps.into_inner(), "what is told is told once");
    }
}

#[test]
fn a_refusal_is_refunded_to_the_limits_charged_before_it() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 9), limit(8, Unit::Packets, 2)]));
    assert_eq!(memory.rule.is_of_limits_alone, 1);
    let judged: Vec<_> = (0..4).map(|_| memory.judges(PACKET)).collect();
    assert_eq!(judged[1..], [Reason::WithinLimit, Reason::OverLimit, Reason::OverLimit]);
    assert_eq!([0, 1].map(|at| memory.used(at)), [2, 2]);
    let (first, second) = (memory.window_of(7).unwrap(), memory.window_of(8).unwrap());
    assert_eq!((first.refusals().count(), second.refusals().count()), (0, 2));
    memory.charges.set(PACKET);
    assert_eq!(charge_each(&memory), None, "nothing is charged of what one refuses");
    assert_eq!([0, 1].map(|at| memory.used(at)), [2, 2]);
}

#[test]
fn rules_beyond_plain_limits_check_before_they_charge() {
    let two = [limit(7, Unit::Packets, 9), limit(8, Unit::Packets, 2)];
    let mut leaky = two;
    leaky[1].is_gcra = 1;
    let mut banning = rule(&two);
    banning.bans.steps_len = 1;
    for looks in [
        rule(&two[..1]),
        rule(&leaky),
        banning,
        Rule { refuse_all: 1, ..rule(&two) },
        Rule { shadows_len: 1, ..rule(&two) },
    ] {
        assert!(!is_of_limits_alone(&looks));
    }
    let memory = memory(rule(&two));
    memory.samples_out.set(true);
    memory.charges.set(PACKET);
    assert_eq!(charge_each(&memory), None, "a new source is sampled before it is charged");
}
