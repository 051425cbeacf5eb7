//! Tests of sources that log lines took beyond a limit.

use super::*;
use crate::layout::LOGGED_REQUESTS;

impl Memory {
    /// Charges log lines to the limit at a position, whatever it allows.
    fn charge_lines(&self, at: usize, lines: u64) {
        let mut any = self.rule;
        any.limits[at].amount = u64::MAX >> 8;
        let order = Memory { rule: any, windows: RefCell::new(self.windows.borrow().clone()), ..memory(any) };
        assert!(charge_with_retry(&order, At::new(at, Side::Unverified), lines).bucket().is_some());
        *self.windows.borrow_mut() = order.windows.into_inner();
    }
}

#[test]
fn only_log_lines_take_a_source_beyond_a_limit_of_requests() {
    let memory = memory(rule(&[limit(7, Unit::Packets, 1), limit(8, Unit::Requests, 3)]));
    for _ in 0..5 {
        memory.judges(Charges { requests: 1, ..PACKET });
    }
    memory.charge_lines(0, 10);
    memory.charge_lines(1, 2);
    assert!(!is_beyond_by_log(&memory, true), "within the limit of requests");
    memory.charge_lines(1, 1);
    assert!(is_beyond_by_log(&memory, true));
    assert!(!is_beyond_by_log(&memory, false), "by requests in flight alone");
    memory.now.set(Nanos(NOW.0 + 6 * MINUTE_NS));
    assert!(!is_beyond_by_log(&memory, true), "the window is free again");
}

#[test]
fn a_limit_with_conditions_and_a_limit_of_one_have_no_tolerance() {
    let conditioned = Limit { unit: LOGGED_REQUESTS, ..limit(8, Unit::Requests, 5) };
    for (limit, lines) in [(conditioned, 5), (limit(8, Unit::Requests, 1), 1)] {
        let memory = memory(rule(&[limit]));
        memory.charge_lines(0, lines);
        assert!(!is_beyond_by_log(&memory, false));
        memory.charge_lines(0, 1);
        assert!(is_beyond_by_log(&memory, false));
    }
}
