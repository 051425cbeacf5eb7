//! Choice of the rule that judges a packet: the first that matches. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::time::Nanos;

use super::{Policy, Ports, Rule};
use crate::labels;

/// Fields of a packet that decide which rule judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Source address of the packet.
    pub from: IpAddr,
    /// Destination address. If it is not known, rules with destinations do not match.
    pub to: Option<IpAddr>,
    /// Transport protocol of the packet.
    pub protocol: Protocol,
    /// Destination port of the packet.
    pub port: u16,
}

/// Transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// First reason why a rule does not judge a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The rule has expired.
    Ended,
    /// The rule is for other ports.
    Port,
    /// The rule is for other sources.
    From,
    /// The rule is for other destinations.
    To,
    /// The rule is for certain destinations, and the packet's destination is not known.
    ToUnknown,
}

impl Sent {
    /// Returns a packet to the port named by `443`, `443/tcp`, `53/udp` or `ssh`. None if the text names no port.
    pub fn to_port(from: IpAddr, to: Option<IpAddr>, text: &str) -> Option<Self> {
        let (port, protocol) = match text.split_once('/') {
            None => (text, Protocol::Tcp),
            Some((port, "tcp")) => (port, Protocol::Tcp),
            Some((port, "udp")) => (port, Protocol::Udp),
            Some(_) => return None,
        };
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).or_else(|| crate::text::port::named(port))?;
        Some(Self { from, to, protocol, port })
    }
}

labels!(pub Protocol { Tcp => "tcp", Udp => "udp" });

impl Policy {
    /// Returns the rule that judges a packet at `now`, with its index: the first that matches.
    pub fn rule_for(&self, sent: &Sent, now: Nanos) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.mismatch(sent, now).is_none())
    }

    /// Returns the rules that may judge packets of `address` at `now`, on any port, with their indices. A rule is
    /// left out if an earlier one takes all its packets.
    pub fn rules_from(&self, address: IpAddr, now: Nanos) -> Vec<(usize, &Rule)> {
        let mut found: Vec<(usize, &Rule)> = Vec::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let matches = rule.has_from(address) && !rule.has_ended(now);
            if matches && !found.iter().any(|(_, earlier)| earlier.takes_all_of(rule)) {
                found.push((at, rule));
            }
        }
        found
    }
}

impl Rule {
    /// Returns the reason why the rule does not judge a packet at `now`. None if it matches.
    pub fn mismatch(&self, sent: &Sent, now: Nanos) -> Option<Mismatch> {
        if self.has_ended(now) {
            return Some(Mismatch::Ended);
        }
        if !self.ports.holds(sent.protocol, sent.port) {
            return Some(Mismatch::Port);
        }
        if !self.has_from(sent.from) {
            return Some(Mismatch::From);
        }
        match sent.to {
            _ if self.to.is_empty() => None,
            None => Some(Mismatch::ToUnknown),
            Some(to) => (!self.to.iter().any(|prefix| prefix.contains(&to))).then_some(Mismatch::To),
        }
    }

    /// Returns true if the rule is for packets from `address`.
    pub fn has_from(&self, address: IpAddr) -> bool {
        self.from.is_empty() || self.from.iter().any(|prefix| prefix.contains(&address))
    }

    /// Returns true if the rule has expired.
    pub fn has_ended(&self, now: Nanos) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Returns true if this rule leaves no packet to `later`, for a source that both match.
    fn takes_all_of(&self, later: &Self) -> bool {
        let within = |prefix: &IpNet| self.to.iter().any(|of| of.contains(prefix));
        let takes_all_to = self.to.is_empty() || !later.to.is_empty() && later.to.iter().all(within);
        takes_all_to && later.ports.without(&self.ports).is_empty()
    }
}

impl Ports {
    /// Returns true if the ports include this one.
    pub fn holds(&self, protocol: Protocol, port: u16) -> bool {
        let ranges = match protocol {
            Protocol::Tcp => &self.tcp,
            Protocol::Udp => &self.udp,
        };
        ranges.iter().any(|&(first, last)| (first..=last).contains(&port))
    }

    /// Returns true if there are no ports and no other protocols.
    pub const fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.udp.is_empty() && !self.other_protocols
    }

    /// Returns the ports that are in both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        self.without(&self.without(other))
    }

    /// Returns these ports without those of `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            tcp: without(&self.tcp, &other.tcp),
            udp: without(&self.udp, &other.udp),
            other_protocols: self.other_protocols && !other.other_protocols,
        }
    }
}

/// Returns the part of `ranges` that is not in `taken`. Both must be sorted and merged.
pub(crate) fn without(ranges: &[(u16, u16)], taken: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let mut left = Vec::new();
    for &(first, last) in ranges {
        let mut from = Some(first);
        let reaching = &taken[taken.partition_point(|taken| taken.1 < first)..];
        for &(taken_first, taken_last) in reaching.iter().take_while(|taken| taken.0 <= last) {
            let Some(start) = from else { break };
            if start < taken_first {
                left.push((start, taken_first - 1));
            }
            from = taken_last.checked_add(1).filter(|next| *next <= last);
        }
        left.extend(from.map(|start| (start, last)));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, ports: &[(u16, u16)]) -> Rule {
        let ports = Ports { tcp: ports.to_vec(), ..Ports::default() };
        Rule::new(name.to_owned(), ports, Vec::new())
    }

    fn prefixes(text: &str) -> Vec<IpNet> {
        vec![text.parse().expect("a prefix")]
    }

    fn policy(rules: Vec<Rule>) -> Policy {
        Policy { ipv4_prefix: 32, ipv6_prefix: 64, access: Vec::new(), rules }
    }

    #[test]
    fn the_first_rule_that_matches_judges_and_every_other_says_why_not() {
        let now = Nanos(1_000);
        let ended = Rule { until: Some(now), ..rule("ended", &[(80, 80)]) };
        let other = rule("other", &[(443, 443)]);
        let partner = Rule { from: prefixes("192.0.2.0/24"), ..rule("partner", &[(80, 80)]) };
        let api = Rule { to: prefixes("203.0.113.5/32"), ..rule("api", &[(80, 90)]) };
        let policy = policy(vec![ended, other, partner, api, rule("web", &[(80, 80)]), rule("last", &[(0, u16::MAX)])]);
        let sent = |from: &str, to: Option<&str>| Sent {
            from: from.parse().expect("an address"),
            to: to.map(|to| to.parse().expect("an address")),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let judge = |sent: Sent| policy.rule_for(&sent, now).map(|(at, rule)| (at, rule.name.as_str()));
        assert_eq!(judge(sent("192.0.2.1", None)), Some((2, "partner")));
        assert_eq!(judge(sent("198.51.100.7", Some("203.0.113.5"))), Some((3, "api")));
        assert_eq!(judge(sent("198.51.100.7", Some("203.0.113.6"))), Some((4, "web")));
        assert_eq!(judge(Sent { protocol: Protocol::Udp, ..sent("198.51.100.7", None) }), None);
        let why = |sent: Sent| policy.rules.iter().map(|rule| rule.mismatch(&sent, now)).collect::<Vec<_>>();
        let unlike = [Mismatch::Ended, Mismatch::Port, Mismatch::From, Mismatch::ToUnknown].map(Some);
        assert_eq!(why(sent("198.51.100.7", None))[..4], unlike);
        assert_eq!(why(sent("198.51.100.7", Some("203.0.113.6")))[3], Some(Mismatch::To));
        assert_eq!(why(sent("198.51.100.7", None))[4..], [None, None]);
        assert_eq!(policy.rules[0].mismatch(&sent("198.51.100.7", None), Nanos(999)), None);
    }

    #[test]
    fn a_rule_that_is_left_nothing_of_a_source_is_none_of_its_rules() {
        let partner = Rule { from: prefixes("192.0.2.0/24"), ..rule("partner", &[(0, u16::MAX)]) };
        let api = Rule { to: prefixes("203.0.113.0/24"), ..rule("api", &[(80, 80)]) };
        let inside = Rule { to: prefixes("203.0.113.5/32"), ..rule("inside", &[(80, 80)]) };
        let policy =
            policy(vec![partner, api, inside, rule("web", &[(80, 80), (443, 443)]), rule("login", &[(22, 22)])]);
        let names = |from: &str| {
            let rules = policy.rules_from(from.parse().expect("an address"), Nanos(0));
            rules.into_iter().map(|(_, rule)| rule.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names("192.0.2.1"), ["partner"]);
        assert_eq!(names("198.51.100.7"), ["api", "web", "login"]);
    }

    #[test]
    fn the_ports_that_another_rule_takes_are_cut_out_of_ranges() {
        let ports = |tcp: &[(u16, u16)]| Ports { tcp: tcp.to_vec(), ..Ports::default() };
        let all = ports(&[(0, u16::MAX)]);
        let left = all.without(&ports(&[(0, 0), (22, 22), (80, 90), (u16::MAX, u16::MAX)]));
        assert_eq!(left.tcp, [(1, 21), (23, 79), (91, u16::MAX - 1)]);
        assert_eq!(ports(&[(80, 80), (443, 443)]).without(&ports(&[(443, 500)])).tcp, [(80, 80)]);
        assert!(ports(&[(80, 80)]).without(&all).is_empty());
    }

    #[test]
    fn a_port_is_tcp_unless_it_is_said() {
        let ports = ["443", "443/tcp", "53/udp"]
            .map(|text| Sent::to_port(IpAddr::from([192, 0, 2, 1]), None, text).expect(text));
        assert_eq!(
            ports.map(|of| (of.port, of.protocol)),
            [(443, Protocol::Tcp), (443, Protocol::Tcp), (53, Protocol::Udp)]
        );
        for text in ["", "htp", "65536", "+80", "80/sctp", "80/"] {
            assert_eq!(Sent::to_port(IpAddr::from([192, 0, 2, 1]), None, text), None, "{text}");
        }
    }
}
