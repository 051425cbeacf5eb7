//! Events from packets, translated from the words of the ring to the policy's rules and limits. Knows no ring.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use ratelimit_common::events::{EventTally, Kind};
use ratelimit_common::layout::{ChargeOrder, Event};
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::Reason;
use ratelimit_common::verification::Side;

use ratelimit_policy::desired::{self, Limit, Per, Policy, Rule, WindowForm};

const V4: u8 = ChargeOrder::V4.to_le_bytes()[0];
const V6: u8 = ChargeOrder::V6.to_le_bytes()[0];

/// Maximum number of events in one call of [`super::Datapath::events`].
pub const EVENTS_PART: usize = 4096;

/// A source begins to be refused by a limit, or to be banned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelEvent {
    /// Time on the datapath's clock.
    pub time: Nanos,
    /// Kind of event.
    pub kind: KernelEventKind,
    /// Prefix that is one client. For a limit of a group, the group: 0.0.0.0/0 for all sources of the rule.
    pub client: IpNet,
    /// Index of the rule in the policy applied last. None if that policy no longer has the rule.
    pub rule: Option<usize>,
    /// Limit of the rule. None if the limit no longer exists, or for a ban ordered by an application.
    pub limit: Option<EventLimit>,
    /// Reason of the refusal: [`Reason::OverLimit`], [`Reason::Guard`] or [`Reason::Banned`].
    pub reason: Reason,
    /// Side of the limit's guard that refuses, if the reason is [`Reason::Guard`].
    pub guard: Option<Side>,
    /// True if the refusing window counts verified traffic (see [`ratelimit_common::verification`]).
    pub is_verified: bool,
    /// Amount in that window, in the limit's unit or as the guard counts. 0 without a limit.
    pub used: u64,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelEventKind {
    /// The limit refuses the source for the first time in a bucket.
    Refused,
    /// A rule in dry run or a shadow limit would refuse the source for the first time in a bucket.
    WouldRefuse,
    /// The rule bans the source.
    Ban {
        /// Expiry on the datapath's clock.
        until: Nanos,
        /// Position in the sequence of consecutive bans, from 1.
        step: u32,
    },
}

/// Position of one of a rule's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventLimit {
    /// Index in [`Rule::limits`].
    Held(usize),
    /// Index in [`Rule::shadow_limits`].
    Shadow(usize),
}

impl EventLimit {
    /// Returns the limit at this position in a rule.
    #[must_use]
    pub fn of(self, rule: &Rule) -> Option<&Limit> {
        match self {
            Self::Held(index) => rule.limits.get(index),
            Self::Shadow(index) => rule.shadow_limits.get(index),
        }
    }
}

/// Counts of events of one kind. Each begun event was either sent or lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    /// Number of events put into the ring.
    pub sent: u64,
    /// Number of events over the budget of their CPU and kind, or without room in the ring.
    pub lost: u64,
}

/// Counts of all events since the maps were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Events of kind [`KernelEventKind::Refused`].
    pub refused: EventCount,
    /// Events of kind [`KernelEventKind::WouldRefuse`].
    pub would_refuse: EventCount,
    /// Events of kind [`KernelEventKind::Ban`].
    pub ban: EventCount,
}

impl EventCounts {
    /// Returns the number of sent events of all kinds.
    pub const fn sent(&self) -> u64 {
        self.refused.sent.wrapping_add(self.would_refuse.sent).wrapping_add(self.ban.sent)
    }

    /// Returns the number of lost events of all kinds.
    pub const fn lost(&self) -> u64 {
        self.refused.lost.wrapping_add(self.would_refuse.lost).wrapping_add(self.ban.lost)
    }

    /// Adds one CPU's counts of one kind.
    pub const fn add(&mut self, kind: Kind, tally: EventTally) {
        let count = match kind {
            Kind::Refused => &mut self.refused,
            Kind::WouldRefuse => &mut self.would_refuse,
            Kind::Ban => &mut self.ban,
        };
        count.sent = count.sent.wrapping_add(tally.sent);
        count.lost = count.lost.wrapping_add(tally.lost);
    }
}

impl KernelEvent {
    /// Translates an event of the ring to the rules of a policy. Returns none if the words are no event.
    pub fn of(event: &Event, policy: &Policy) -> Option<Self> {
        let kind = match Kind::from_code(event.kind)? {
            Kind::Refused => KernelEventKind::Refused,
            Kind::WouldRefuse => KernelEventKind::WouldRefuse,
            Kind::Ban => KernelEventKind::Ban { until: Nanos(event.until_ns), step: event.step.saturating_add(1) },
        };
        let side = Side::from_code(event.side.into());
        let reason = match kind {
            KernelEventKind::Ban { .. } => Reason::Banned,
            KernelEventKind::Refused | KernelEventKind::WouldRefuse if side.is_guard() => Reason::Guard,
            KernelEventKind::Refused | KernelEventKind::WouldRefuse => Reason::OverLimit,
        };
        let rule = policy.rules.iter().position(|rule| desired::name_hash(&rule.name) == event.rule);
        let of = rule.map(|index| &policy.rules[index]);
        let limit = of.and_then(|rule| limit(rule, event.slot));
        let its = of.zip(limit).and_then(|(rule, limit)| limit.of(rule));
        let used = its.map_or(0, |limit| used(limit, event.used));
        let client = holder(event, its.map_or(Per::Source, |limit| limit.per), policy)?;
        let is_verified = side == Side::Verified;
        let guard = (reason == Reason::Guard).then_some(side);
        Some(Self { time: Nanos(event.time_ns), kind, client, rule, limit, reason, guard, is_verified, used })
    }
}

/// Returns the source or group that the event's limit counts by.
fn holder(event: &Event, per: Per, policy: &Policy) -> Option<IpNet> {
    let (v4, v6) = match per {
        Per::Source => (policy.ipv4_prefix, policy.ipv6_prefix),
        Per::Prefix { v4, v6 } => (v4, v6),
        Per::List => (0, 0),
    };
    net(event.family, event.prefix, v4, v6)
}

/// Returns the client of an event's prefix in this family.
pub(crate) fn client(family: u8, prefix: [u64; 2], policy: &Policy) -> Option<IpNet> {
    net(family, prefix, policy.ipv4_prefix, policy.ipv6_prefix)
}

fn net(family: u8, [high, low]: [u64; 2], ipv4_prefix: u8, ipv6_prefix: u8) -> Option<IpNet> {
    if family == V4 {
        let octets = u32::try_from(high).ok()?.to_ne_bytes();
        return Ipv4Net::new(octets.into(), ipv4_prefix).ok().map(|net| IpNet::V4(net.trunc()));
    }
    let [high, low] = [high, low].map(|half| u128::from(u64::from_be_bytes(half.to_ne_bytes())));
    Ipv6Net::new(Ipv6Addr::from(high << 64 | low), ipv6_prefix).ok().map(|net| IpNet::V6(net.trunc()))
}

fn limit(rule: &Rule, slot: u32) -> Option<EventLimit> {
    let at = |limits: &[Limit]| limits.iter().position(|limit| limit.slot == slot);
    at(&rule.limits).map(EventLimit::Held).or_else(|| at(&rule.shadow_limits).map(EventLimit::Shadow))
}

/// Returns the event's used amount in the limit's unit.
fn used(limit: &Limit, used: u64) -> u64 {
    match limit.form {
        WindowForm::Strict | WindowForm::Lenient | WindowForm::Fixed => used,
        WindowForm::Gcra => limit.leak_used(used),
    }
}

/// Returns the family and prefix of a client in the form of an event.
pub(crate) fn source(client: IpNet) -> (u8, [u64; 2]) {
    match client.network() {
        IpAddr::V4(address) => (V4, [u32::from_ne_bytes(address.octets()).into(), 0]),
        IpAddr::V6(address) => {
            let octets = address.octets();
            let (halves, _) = octets.as_chunks::<8>();
            (V6, [halves[0], halves[1]].map(u64::from_ne_bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use ratelimit_common::layout::Unit;
    use ratelimit_common::time::SECOND_NS;
    use ratelimit_policy::desired::Ports;

    use super::*;

    fn policy() -> Policy {
        let limit = |slot, form| Limit {
            amount: 30,
            unit: Unit::Packets,
            window_ns: 60 * SECOND_NS,
            buckets: 6,
            bucket_ns: 10 * SECOND_NS,
            form,
            burst: None,
            slot,
            shared: None,
            per: Per::Source,
            condition: None,
        };
        let ports = Ports { tcp: vec![(80, 80)], udp: Vec::new(), other_protocols: false };
        let limits = vec![limit(7, WindowForm::Strict), limit(8, WindowForm::Gcra)];
        let mut rule = Rule::new("web".into(), ports.clone(), limits);
        rule.shadow_limits = vec![limit(9, WindowForm::Strict)];
        let other = Rule::new("other".into(), ports, vec![limit(5, WindowForm::Strict)]);
        Policy { ipv4_prefix: 24, ipv6_prefix: 64, access: Vec::new(), rules: vec![other, rule] }
    }

    fn event(client: &str) -> Event {
        let client: IpNet = client.parse().unwrap();
        let (family, prefix) = source(client);
        Event { time_ns: 5, family, prefix, rule: desired::name_hash("web"), slot: 7, used: 30, ..Event::default() }
    }

    #[test]
    fn an_event_is_told_by_the_policys_rule_and_limit() {
        let told = KernelEvent::of(&event("198.51.100.0/24"), &policy()).unwrap();
        let expected = KernelEvent {
            time: Nanos(5),
            kind: KernelEventKind::Refused,
            client: "198.51.100.0/24".parse().unwrap(),
            rule: Some(1),
            limit: Some(EventLimit::Held(0)),
            reason: Reason::OverLimit,
            guard: None,
            is_verified: false,
            used: 30,
        };
        assert_eq!(told, expected);
        let of = |event| KernelEvent::of(&event, &policy()).unwrap();
        let shadow = of(Event { slot: 9, kind: 1, ..event("2001:db8:0:1::/64") });
        assert_eq!((shadow.kind, shadow.limit), (KernelEventKind::WouldRefuse, Some(EventLimit::Shadow(0))));
        assert_eq!(shadow.client, "2001:db8:0:1::/64".parse().unwrap());
        let guard = of(Event { side: Side::Segments as u8, ..event("198.51.100.0/24") });
        assert_eq!((guard.reason, guard.limit), (Reason::Guard, Some(EventLimit::Held(0))));
        assert_eq!(guard.guard, Some(Side::Segments));
        let verified = of(Event { side: Side::Verified as u8, ..event("198.51.100.0/24") });
        assert!(verified.is_verified);
        // A bucket that empties in half a minute has used half of the limit per minute.
        let leaky = of(Event { slot: 8, used: 30 * SECOND_NS, ..event("198.51.100.0/24") });
        assert_eq!((leaky.limit, leaky.used), (Some(EventLimit::Held(1)), 15));
    }

    #[test]
    fn a_ban_has_its_end_its_step_and_its_limit() {
        let of = |event| KernelEvent::of(&event, &policy()).unwrap();
        let ban = Event { kind: 2, until_ns: 99, step: 2, ..event("198.51.100.0/24") };
        let told = of(ban);
        assert_eq!(told.kind, KernelEventKind::Ban { until: Nanos(99), step: 3 });
        assert_eq!((told.reason, told.limit, told.used), (Reason::Banned, Some(EventLimit::Held(0)), 30));
    }

    #[test]
    fn events_of_removed_rules_have_no_name_and_invalid_ones_are_ignored() {
        let gone = KernelEvent::of(&Event { rule: 1, ..event("198.51.100.0/24") }, &policy()).unwrap();
        assert_eq!((gone.rule, gone.limit, gone.used), (None, None, 0));
        let changed = KernelEvent::of(&Event { slot: 1, ..event("198.51.100.0/24") }, &policy()).unwrap();
        assert_eq!((changed.rule, changed.limit), (Some(1), None));
        assert_eq!(KernelEvent::of(&Event { kind: 9, ..event("198.51.100.0/24") }, &policy()), None);
        assert_eq!(KernelEvent::of(&Event { prefix: [u64::MAX; 2], ..event("198.51.100.0/24") }, &policy()), None);
    }
}
