//! Frames, each judged as the kernel judges it. What it has beside is not here: no socket says what a segment proves, which is an argument;
//! nobody is forgotten, so nothing is drawn; no note refuses sooner what a window refuses too; and no guard counts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::choose::{self, Asked, Beside, Next, choice, enforced, protecting};
use ratelimit_common::conversation::Walk;
use ratelimit_common::hold::{Cost, is};
use ratelimit_common::layout::{Rule, RuleSet};
use ratelimit_common::packet::{Head, Packet, Parsed, Target, To, parse};
use ratelimit_common::proof::{Side, Standing, asks};
use ratelimit_common::source::Address;
use ratelimit_common::time::{Nanos, SECOND_NS};
use ratelimit_common::verdict::{Reason, Verdict};

use super::traffic::Seen;
use super::{Conversations, Held, Rules, Sources, address};

/// A client with its source port, and the port that it sends to.
type Connection = (IpNet, u16, u16);

/// What is remembered of the packets so far.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    pub(crate) sources: Sources,
    conversations: Conversations,
    /// Connections of which nothing more is taken, as a request of theirs was refused, or nothing that proves as little as that: until when,
    /// and by which rule.
    shut: BTreeMap<(Connection, Side), (Nanos, u8)>,
    /// Connections that have proven themselves, by both of their ends.
    proven: BTreeSet<(IpAddr, IpAddr, u16, u16)>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// The row is the rule's number.
    pub(crate) verdict: Verdict,
    /// Whether a ban of its source began.
    pub(crate) has_banned: bool,
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, has_banned: false }
    }
}

impl Packets {
    /// Other rules are in force, or what was known of some source is not any more: as the kernel begins an epoch.
    pub(crate) fn begin_epoch(&mut self) {
        self.shut.clear();
    }

    /// Judges a frame, of whose sender the host's sockets say this.
    pub(crate) fn judge<F: Walk>(&mut self, rules: &Rules, frame: &F, standing: Standing, now: Nanos) -> Judged {
        let packet = match parse(frame) {
            Parsed::Ip(packet) => packet,
            Parsed::NotIp => return Verdict::unruled(Reason::NotIp).into(),
            Parsed::Malformed => return Verdict::unruled(Reason::Malformed).into(),
            Parsed::TooManyTags => {
                let nowhere = Address::v4([0; 4]);
                return choose::too_many_tags(&rules.asked_by(nowhere, now)).into();
            }
        };
        let asked_by = rules.asked_by(packet.destination, now);
        let head = Head::from(&packet);
        let Some(protecting) = protecting(&asked_by, head.to).filter(|rules| *rules != 0) else {
            return Verdict::unruled(Reason::NotProtected).into();
        };
        let client = rules.policy().client(address(packet.source));
        let connection =
            connection(frame, &packet, client).filter(|_| client.addr().is_ipv4() || !rules.is_ipv6_wide());
        if let Some(rule) = connection.and_then(|connection| self.is_shut(connection, standing, now)) {
            return Verdict { reason: Reason::OverLimit, rule }.into();
        }
        let asked = Asked { source: packet.source, to: head.to, may_be_tcp: may_be_tcp(&packet) };
        let choice = choice(&asked_by, asked, protecting);
        let Some(index) = choice.rule else { return Verdict::unruled(choice.reason).into() };
        let rule = rules.rule(index);
        if choice.reason != Reason::NotCounted {
            return enforced(rule, choice.reason).into();
        }
        let held = self.hold(frame, &packet, standing, rule, client, now);
        if let (Some((until_ns, side)), Some(connection), true) = (held.shuts, connection, choice.is_of_client) {
            self.shut((connection, side), rule, until_ns, now);
        }
        let verdict = match choice.beside {
            0 => enforced(rule, held.reason),
            beside => {
                self.hold_beside(rules, &asked_by, Beside::new(index, beside), (client, packet.ip_bytes, now), held)
            }
        };
        Judged { verdict, has_banned: held.has_banned }
    }

    /// Judges what is no frame: a packet to a port that every rule protects, at an address that none names. Whatever comes is proven.
    pub(crate) fn judge_abstract(&mut self, rules: &Rules, source: IpAddr, cost: Cost, now: Nanos) -> Judged {
        let asked_by = rules.asked_by(Address::v4([0; 4]), now);
        let to = To::Tcp { port: 0, opening: cost.has(is::OPENING), has_payload: cost.requests != 0 };
        let choice = choice(&asked_by, Asked { source: packet_address(source), to, may_be_tcp: false }, RuleSet::MAX);
        let Some(index) = choice.rule else { return Verdict::unruled(choice.reason).into() };
        let rule = rules.rule(index);
        if choice.reason != Reason::NotCounted {
            return enforced(rule, choice.reason).into();
        }
        let unproven = Rule { proof: 0, ..*rule };
        let held = self.sources.hold(rules.policy().client(source), &unproven, cost, now);
        Judged { verdict: enforced(rule, held.reason), has_banned: held.has_banned }
    }

    fn hold<F: Walk>(
        &mut self,
        frame: &F,
        packet: &Packet,
        standing: Standing,
        rule: &Rule,
        client: IpNet,
        now: Nanos,
    ) -> Held {
        let mut seen = match standing {
            // Its server does not take it, so nothing begins in it.
            Standing::Ignored => Seen::of_volume(packet),
            Standing::Unknown | Standing::Answered | Standing::Established => {
                self.conversations.look(frame, packet, now, rule)
            }
        };
        if let Target::Tcp { opening: false, is_fragment: false, segment, .. } = packet.target {
            let may_ask = rule.counts_requests != 0 && segment.payload_bytes != 0;
            if may_ask || rule.proof & (asks::SEGMENTS | asks::CONNECTIONS) != 0 {
                seen.cost.is |= self.proof(packet, standing, rule, client, may_ask);
            }
        }
        let held = self.sources.hold(client, rule, seen.cost, now);
        self.conversations.remember(seen, rule, held.reason);
        held
    }

    /// What of [`is`] a segment proves.
    fn proof(&mut self, packet: &Packet, standing: Standing, rule: &Rule, client: IpNet, may_ask: bool) -> u8 {
        let asks_segments = rule.proof & asks::SEGMENTS != 0;
        let bits = match standing {
            Standing::Answered if may_ask && !asks_segments => is::PROVEN,
            Standing::Established => is::PROVEN | is::ESTABLISHED,
            Standing::Answered | Standing::Unknown | Standing::Ignored => 0,
        };
        let Target::Tcp { port, segment, .. } = packet.target else { return bits };
        if rule.proof & asks::CONNECTIONS == 0 || standing != Standing::Established {
            return bits;
        }
        let is_armed = self.sources.is_armed(client, rule);
        let is_first =
            self.proven.insert((address(packet.source), address(packet.destination), segment.source_port, port));
        match (is_first, is_armed) {
            (false, false) if !may_ask && !asks_segments => 0,
            (false, false) => bits,
            (true, false) => bits | is::FIRST,
            (false, true) => bits | is::ARMED,
            (true, true) => bits | is::FIRST | is::ARMED,
        }
    }

    /// Holds a later fragment, of which the rule that judges it has found this, to those that it may belong to beside.
    fn hold_beside(
        &mut self,
        rules: &Rules,
        asked_by: &impl choose::Rules,
        mut beside: Beside,
        (client, bytes, now): (IpNet, u32, Nanos),
        held: Held,
    ) -> Verdict {
        let mut found = held.reason;
        loop {
            found = match beside.next(asked_by, found) {
                Next::Nothing => return beside.verdict(),
                Next::Ended => Reason::WithinLimit,
                Next::Rule(index) => {
                    let cost = Cost { bytes, requests: 1, ..Cost::default() };
                    self.sources.charge(client, rules.rule(index), cost, now).reason
                }
            };
        }
    }

    /// Takes nothing more of a connection until then, or where there is room, but not for so much, for a second: no longer than the rule lasts.
    fn shut(&mut self, of: (Connection, Side), rule: &Rule, until_ns: u64, now: Nanos) {
        if rule.dry_run != 0 {
            return;
        }
        let until_ns = if until_ns == 0 { now.0 + SECOND_NS } else { until_ns };
        let until_ns = if rule.until_ns == 0 { until_ns } else { until_ns.min(rule.until_ns) };
        self.shut.insert(of, (Nanos(until_ns), rule.row));
    }

    /// The row of the rule by which nothing more is taken of this connection, from such a sender.
    fn is_shut(&self, connection: Connection, standing: Standing, now: Nanos) -> Option<u8> {
        let sides =
            if standing == Standing::Established { &[Side::Proven][..] } else { &[Side::Proven, Side::Unproven] };
        let mut shut = sides.iter().filter_map(|side| self.shut.get(&(connection, *side)));
        shut.find(|(until, _)| now < *until).map(|(_, rule)| *rule)
    }
}

/// The connection of a segment that brings it something, where that can be read at a glance.
fn connection<F: Walk>(frame: &F, packet: &Packet, client: IpNet) -> Option<Connection> {
    let Target::Tcp { port, opening: false, segment, is_fragment: false } = packet.target else { return None };
    (segment.payload_bytes != 0 && Head::of(frame).is_some()).then_some((client, segment.source_port, port))
}

/// An address as packets have it.
fn packet_address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => Address::v4(address.octets()),
        IpAddr::V6(address) => Address::v6(address.octets()),
    }
}

/// Of a later fragment, whether it may be one of TCP.
const fn may_be_tcp(packet: &Packet) -> bool {
    matches!(packet.target, Target::Fragment { may_be_tcp: true })
}
