//! The guard of a limit of requests: what bounds what is not counted as one.

use ratelimit_common::layout::Unit;
use ratelimit_common::verification::Side;

use super::{Limit, Protocol, Refuse, Rule, WindowForm};

use crate::labels;

/// Whether a limit of requests is guarded by what else a source does, see [`ratelimit_common::verification::Side::is_guard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Bounds connections by the limit too. A multiple of the limit bounds segments, and datagrams of QUIC, that begin no
    /// request.
    Auto,
    /// Requests alone are counted.
    Off,
}

labels!(pub Guard { Auto => "auto", Off => "off" });

impl Rule {
    /// Returns whether it has a guard: it counts requests of TCP or QUIC, does not refuse everything, and says nothing
    /// else.
    pub fn is_guarded(&self) -> bool {
        self.guard == Guard::Auto && self.refuse == Refuse::Excess && self.is_guardable()
    }

    /// Returns whether it counts requests of which packets do not tell all.
    pub fn is_guardable(&self) -> bool {
        let counts_requests = self.limits.iter().any(Limit::is_guardable);
        counts_requests && (!self.ports.tcp.is_empty() || self.protects_quic())
    }

    /// Returns whether some of its UDP ports speak QUIC.
    pub fn protects_quic(&self) -> bool {
        self.quic_ports.iter().any(|port| self.ports.holds(Protocol::Udp, port))
    }

    /// Its limits that have a guard.
    pub fn guarded(&self) -> impl Iterator<Item = &Limit> {
        let is_guarded = self.is_guarded();
        self.limits.iter().filter(move |limit| is_guarded && limit.is_guardable())
    }
}

impl Limit {
    /// Returns whether packets charge it requests.
    pub fn is_guardable(&self) -> bool {
        self.unit == Unit::Requests && self.condition.is_none()
    }

    /// What the guard of this limit allows on one of its sides, as a limit of its own with the slot of that side's window.
    pub fn guard(&self, side: Side) -> Self {
        let amount = self.layout().amount_on(side);
        let guard = Self { amount, burst: None, slot: side.slot(self.slot), ..*self };
        // A leaky bucket holds no more than leaks out in its window, each rounded up.
        let fits = guard.window_ns / guard.leak().cost_ns(1).max(1);
        Self { burst: (self.form == WindowForm::Gcra).then_some(fits), ..guard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{limit, policy};

    #[test]
    fn a_rule_has_a_guard_where_it_limits_requests_of_tcp_or_quic_and_does_not_refuse_everything() {
        let windows = |change: fn(&mut Rule)| {
            let mut policy = policy(vec![limit(10, Unit::Requests), limit(20, Unit::Connections)]);
            change(&mut policy.rules[0]);
            (policy.rules[0].guarded().count(), policy.windows_per_source())
        };
        assert_eq!(windows(|_| {}), (1, 3));
        assert_eq!(windows(|rule| rule.guard = Guard::Off), (0, 2));
        assert_eq!(windows(|rule| rule.refuse = Refuse::All), (0, 2));
        fn only_udp<const PORT: u16>(rule: &mut Rule) {
            rule.ports.tcp.clear();
            rule.ports.udp = vec![(PORT, PORT)];
        }
        assert_eq!(windows(|_| {}), (1, 3));
        assert_eq!(windows(only_udp::<53>), (0, 2));
        assert_eq!(windows(only_udp::<443>), (1, 3), "QUIC");
        assert_eq!(windows(|rule| rule.ports.udp.clear()), (1, 3));
        assert_eq!(windows(|rule| rule.limits.truncate(0)), (0, 1), "at least one");
    }

    #[test]
    fn the_guard_of_a_limit_is_a_limit_with_a_window_of_its_own() {
        let of = Limit { burst: Some(5), ..limit(1_000, Unit::Requests) };
        let [opened, segments] = [Side::Opened, Side::Segments].map(|side| of.guard(side));
        assert_eq!((opened.amount, opened.burst, opened.slot), (1_000, None, Side::Opened.slot(of.slot)));
        assert_eq!((segments.amount, segments.slot), (64_000, Side::Segments.slot(of.slot)));
        assert_eq!(segments.arithmetic(), of.layout().arithmetic(Side::Segments));
        let leaky = Limit { form: WindowForm::Gcra, ..of }.guard(Side::Segments);
        assert!(leaky.leak().burst_ns <= leaky.window_ns, "{leaky:?}");
        assert!(leaky.leak().burst_ns + leaky.leak().cost_ns(1) > leaky.window_ns, "{leaky:?}");
    }
}
