//! Guard of a request limit: bounds on traffic that does not count as a request.

use ratelimit_common::layout::Unit;
use ratelimit_common::verification::Side;

use super::{Limit, Protocol, Refuse, Rule, WindowForm};

use crate::labels;

/// Guard setting of a request limit: bounds on other activity of a source, see
/// [`ratelimit_common::verification::Side::is_guard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Connections are bounded by the limit too. TCP segments and QUIC datagrams that begin no request are bounded by
    /// a multiple of the limit.
    Auto,
    /// Only requests are counted.
    Off,
}

labels!(pub Guard { Auto => "auto", Off => "off" });

impl Rule {
    /// Returns true if the rule has a guard: it counts requests of TCP or QUIC, does not refuse all packets, and the
    /// guard is not switched off.
    pub fn is_guarded(&self) -> bool {
        self.guard == Guard::Auto && self.refuse == Refuse::Excess && self.is_guardable()
    }

    /// Returns true if the rule counts requests that packets show only in part.
    pub fn is_guardable(&self) -> bool {
        let counts_requests = self.limits.iter().any(Limit::is_guardable);
        counts_requests && (!self.ports.tcp.is_empty() || self.protects_quic())
    }

    /// Returns true if QUIC is spoken on some of the rule's UDP ports.
    pub fn protects_quic(&self) -> bool {
        self.quic_ports.iter().any(|port| self.ports.holds(Protocol::Udp, port))
    }

    /// Returns the rule's limits that have a guard.
    pub fn guarded(&self) -> impl Iterator<Item = &Limit> {
        let is_guarded = self.is_guarded();
        self.limits.iter().filter(move |limit| is_guarded && limit.is_guardable())
    }
}

impl Limit {
    /// Returns true if packets charge requests to the limit.
    pub fn is_guardable(&self) -> bool {
        self.unit == Unit::Requests && self.condition.is_none()
    }

    /// Returns the bound of this limit's guard on one side, as a limit with the slot of that side's window.
    pub fn guard(&self, side: Side) -> Self {
        let amount = self.layout().amount_on(side);
        let guard = Self { amount, burst: None, slot: side.slot(self.slot), ..*self };
        // A leaky bucket holds no more than drains in its window, each unit rounded up.
        let fits = guard.window_ns / guard.leak().cost_ns(1).max(1);
        Self { burst: (self.form == WindowForm::Gcra).then_some(fits), ..guard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{limit, policy};

    #[test]
    fn rules_limiting_tcp_or_quic_requests_have_a_guard_unless_refusing_all() {
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
