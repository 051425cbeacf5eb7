//! Packets that are refused without being judged. After a refused request its connection is refused for half a second,
//! or until the limit frees, because the server accepts nothing behind a gap. Segments of a banned client are refused
//! too.

use std::collections::HashMap;
use std::net::IpAddr;

use super::packet::{Kind, Outcome, Packet};
use super::policy::{
    Form, Limit, Mode, Nanos, Prefix, Refuse, Rule, SECOND, Unit, bucket_start, first_of_window, is_in,
};
use super::{Oracle, counter};

/// A client with its source port, and its destination port.
type Connection = (IpAddr, u16, u16);

/// Connections and clients with packets that are refused unseen, and the times when that ends. Another policy clears
/// all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Shut {
    connections: HashMap<Connection, Nanos>,
    /// Clients that sent a packet while banned, by destination port.
    banned: HashMap<(IpAddr, u16), Nanos>,
}

impl Oracle {
    /// Returns the outcome of a packet that is refused without being judged.
    pub(super) fn refused_unseen(&self, packet: &Packet, now: Nanos) -> Option<Outcome> {
        let (client, port) = self.sender(packet)?;
        if self.shut.banned.get(&(client, port)).is_some_and(|until| now < *until) {
            return Some(Outcome::Banned);
        }
        let until = self.shut.connections.get(&self.connection(packet)?)?;
        // Packets that end a connection are judged.
        (!packet.closes && now < *until).then_some(Outcome::OverLimit)
    }

    /// Shuts a connection after this limit has refused one of its requests. Connections stay open for leaky buckets,
    /// which free at any time, and where everything is refused or shadow limits count, because every segment matters
    /// there.
    pub(super) fn shut_connection(&mut self, rule: &Rule, limit: &Limit, packet: &Packet, now: Nanos) {
        let is_plain = rule.refuse == Refuse::Excess && rule.shadows.is_empty() && rule.mode == Mode::Enforce;
        if !is_plain || limit.unit != Unit::Requests || limit.form == Form::Leaky || !self.is_one(packet.source) {
            return;
        }
        let Some(connection) = self.connection(packet) else { return };
        // The client should not wait for long, so later packets are judged.
        let frees = self.frees_for_one_at(rule, limit, packet.source, now);
        let until = frees.map_or(now + SECOND / 2, |at| at.min(now + SECOND / 2));
        self.shut.connections.insert(connection, ends_with(rule, until));
    }

    /// Shuts out a client that sent a packet while banned, until the time `until`.
    pub(super) fn shut_out(&mut self, rule: &Rule, packet: &Packet, until: Nanos) {
        if let Some(sender) = self.sender(packet).filter(|_| rule.mode == Mode::Enforce && self.is_one(packet.source)) {
            self.shut.banned.insert(sender, ends_with(rule, until));
        }
    }

    /// Returns the client and the destination port of a segment that does not open a connection.
    fn sender(&self, packet: &Packet) -> Option<(IpAddr, u16)> {
        let Kind::Tcp { port, opens: false, .. } = packet.kind else { return None };
        Some((self.client(packet.source), port))
    }

    /// Returns the connection of a segment with payload, if no option, extension or tag hides it.
    fn connection(&self, packet: &Packet) -> Option<Connection> {
        let Kind::Tcp { source_port, port, opens: false, .. } = packet.kind else { return None };
        let is_seen = packet.is_plain && !packet.payload.is_empty();
        is_seen.then(|| (self.client(packet.source), source_port, port))
    }

    /// Returns whether all packets of the client's addresses are judged alike. They are not if a list has a prefix of
    /// the client or within it, or if a rule names destinations.
    fn is_one(&self, source: IpAddr) -> bool {
        let (listed, rules) = (&self.policy.access, &self.policy.rules);
        let prefixes: Vec<_> =
            listed.iter().map(|(prefix, _, _)| prefix).chain(rules.iter().flat_map(|rule| &rule.from)).collect();
        let len = if source.is_ipv4() { self.policy.ipv4_prefix } else { self.policy.ipv6_prefix };
        let is_listed =
            |prefix: &Prefix| is_in(source, prefix) || prefix.0.is_ipv4() == source.is_ipv4() && prefix.1 > len;
        rules.iter().all(|rule| rule.to.is_empty()) && !prefixes.iter().any(|prefix| is_listed(prefix))
    }

    /// Returns the start of the bucket from which one more is within the limit, if nothing is admitted before. Returns
    /// `None` if one more is within the limit now.
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

/// Returns the end of a refusal, which is at most the end of its rule.
fn ends_with(rule: &Rule, until: Nanos) -> Nanos {
    rule.until.map_or(until, |end| until.min(end))
}
