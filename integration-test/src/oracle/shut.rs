//! Packets that are refused without being judged: for half a second the rest of a connection whose request was refused,
//! since its server takes nothing behind a gap, unless the limit frees sooner; and the segments of a client that is banned.

use std::collections::HashMap;
use std::net::IpAddr;

use super::packet::{Kind, Outcome, Packet};
use super::policy::{
    Form, Limit, Mode, Nanos, Prefix, Refuse, Rule, SECOND, Unit, bucket_start, first_of_window, is_in,
};
use super::{Oracle, counter};

/// A client with its source port, and the port that it sends to.
type Connection = (IpAddr, u16, u16);

/// What is shut, and until when. Another policy opens all of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shut {
    connections: HashMap<Connection, Nanos>,
    /// Clients that were met while they were banned, by the port that they sent to.
    banned: HashMap<(IpAddr, u16), Nanos>,
}

impl Oracle {
    /// What becomes of a packet that is refused unseen.
    pub(super) fn refused_unseen(&self, packet: &Packet, now: Nanos) -> Option<Outcome> {
        let (client, port) = self.sender(packet)?;
        if self.shut.banned.get(&(client, port)).is_some_and(|until| now < *until) {
            return Some(Outcome::Banned);
        }
        let until = self.shut.connections.get(&self.connection(packet)?)?;
        // What ends a connection is judged.
        (!packet.closes && now < *until).then_some(Outcome::OverLimit)
    }

    /// Shuts a connection, one of whose requests this limit has just refused. Leaky buckets free at any time; and
    /// where all is refused, or counted beside, each segment matters.
    pub(super) fn shut_connection(&mut self, rule: &Rule, limit: &Limit, packet: &Packet, now: Nanos) {
        let is_plain = rule.refuse == Refuse::Excess && rule.shadows.is_empty() && rule.mode == Mode::Enforce;
        if !is_plain || limit.unit != Unit::Requests || limit.form == Form::Leaky || !self.is_one(packet.source) {
            return;
        }
        let Some(connection) = self.connection(packet) else { return };
        // Its client is not to wait for long: whatever comes later is judged.
        let frees = self.frees_for_one_at(rule, limit, packet.source, now);
        let until = frees.map_or(now + SECOND / 2, |at| at.min(now + SECOND / 2));
        self.shut.connections.insert(connection, ends_with(rule, until));
    }

    /// Shuts out a client that was met while it was banned until then.
    pub(super) fn shut_out(&mut self, rule: &Rule, packet: &Packet, until: Nanos) {
        if let Some(sender) = self.sender(packet).filter(|_| rule.mode == Mode::Enforce && self.is_one(packet.source)) {
            self.shut.banned.insert(sender, ends_with(rule, until));
        }
    }

    /// The client that sent a segment which opens nothing, and to which port.
    fn sender(&self, packet: &Packet) -> Option<(IpAddr, u16)> {
        let Kind::Tcp { port, opens: false, .. } = packet.kind else { return None };
        Some((self.client(packet.source), port))
    }

    /// The connection of a segment that brings it something, where that can be read at a glance.
    fn connection(&self, packet: &Packet) -> Option<Connection> {
        let Kind::Tcp { source_port, port, opens: false, .. } = packet.kind else { return None };
        let is_seen = packet.is_plain && !packet.payload.is_empty();
        is_seen.then(|| (self.client(packet.source), source_port, port))
    }

    /// Whether all that is sent in the client's name is judged alike: no list tells some of its addresses from others,
    /// or knows it at all, and no rule asks where it sends to.
    fn is_one(&self, source: IpAddr) -> bool {
        let (listed, rules) = (&self.policy.access, &self.policy.rules);
        let prefixes: Vec<_> =
            listed.iter().map(|(prefix, _, _)| prefix).chain(rules.iter().flat_map(|rule| &rule.from)).collect();
        let len = if source.is_ipv4() { self.policy.ipv4_prefix } else { self.policy.ipv6_prefix };
        let is_listed =
            |prefix: &Prefix| is_in(source, prefix) || prefix.0.is_ipv4() == source.is_ipv4() && prefix.1 > len;
        rules.iter().all(|rule| rule.to.is_empty()) && !prefixes.iter().any(|prefix| is_listed(prefix))
    }

    /// The bucket's beginning from which one more is within the limit, if nothing is admitted before; none where it is
    /// now.
    fn frees_for_one_at(&self, rule: &Rule, limit: &Limit, source: IpAddr, now: Nanos) -> Option<Nanos> {
        let counter = counter(rule, limit, source, (self.policy.ipv4_prefix, self.policy.ipv6_prefix));
        let current = bucket_start(limit, now);
        let is_full = |turns: u64| {
            let first = first_of_window(limit, now) + turns * limit.bucket;
            first <= current && self.used_since(&counter, first) >= limit.amount
        };
        let turns = (0..).find(|turns| !is_full(*turns))?;
        let is_burst = limit.burst.is_some_and(|burst| self.used_since(&counter, current) >= burst);
        let turns = if turns == 0 { u64::from(is_burst) } else { turns };
        (turns > 0).then_some(current + turns * limit.bucket)
    }
}

/// Nothing is refused by a rule that has ended.
fn ends_with(rule: &Rule, until: Nanos) -> Nanos {
    rule.until.map_or(until, |end| until.min(end))
}
