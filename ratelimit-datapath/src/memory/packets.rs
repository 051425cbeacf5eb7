//! Frames, judged as in the kernel except for some parts. No socket tells whether a segment is verified: that is an
//! argument. No source is evicted, so none is sampled. No drop cache drops what a window would refuse later. No guard
//! counts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use ratelimit_common::choose::{self, Asked, Beside, Next, choice, enforced, protecting};
use ratelimit_common::conversation::{Peer, Walk};
use ratelimit_common::hold::{Charges, is};
use ratelimit_common::layout::{Rule, RuleSet};
use ratelimit_common::packet::{Destination, Head, Packet, Parsed, Target, parse};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Reason, Verdict};
use ratelimit_common::verification::{ConnectionState, EvidenceNeeds, Side};

use super::traffic::PacketCharges;
use super::{Conversations, Held, Rules, Sources, address};

/// Client, its source port, and the destination port.
type Connection = (IpNet, u16, u16);

/// State from the packets so far.
#[derive(Debug, Default)]
pub struct Packets {
    /// Windows and bans of the sources.
    pub sources: Sources,
    conversations: Conversations,
    /// Drop entries of connections that had a request refused: expiry and row of the rule. The side says whether only
    /// unverified segments are dropped.
    shut: BTreeMap<(Connection, Side), (Nanos, u8)>,
    /// Clients whose segments to a port met their ban: expiry and row of the rule. Takes precedence over `shut`.
    banned: BTreeMap<(IpNet, u16), (Nanos, u8)>,
    /// Generation in which a connection was last seen verified, by both of its ends.
    verified: BTreeMap<(IpAddr, IpAddr, u16, u16), u16>,
}

/// Information of the host's sockets about a segment's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// State of the sender's connection, which says whether the sender is verified.
    pub connection_state: ConnectionState,
    /// State of the server's socket, if known.
    pub peer: Option<Peer>,
}

impl Sender {
    /// No local socket matches the segment.
    pub const UNKNOWN: Self = Self { connection_state: ConnectionState::Unknown, peer: None };
}

/// Outcome of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Verdict. The row is the number of the rule.
    pub verdict: Verdict,
    /// True if a ban of the source began.
    pub has_banned: bool,
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, has_banned: false }
    }
}

impl Packets {
    /// Begins an epoch, like the kernel, after the policy changed or state of sources was removed.
    pub fn begin_epoch(&mut self) {
        self.shut.clear();
        self.banned.clear();
    }

    /// Judges a frame whose sender the host's sockets describe as `sender`.
    pub fn judge<F: Walk>(&mut self, rules: &Rules, frame: &F, sender: Sender, now: Nanos) -> Judged {
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
        let segment_of = segment_of(&packet, client);
        let connection = connection(frame, &packet, client);
        if let Some((_, rule)) = segment_of.and_then(|of| self.banned.get(&of)).filter(|(until, _)| now < *until) {
            return Verdict { reason: Reason::Banned, rule: *rule }.into();
        }
        // A segment that closes its connection is judged despite a drop entry.
        let shut = connection.filter(|_| !closes(&packet));
        if let Some(rule) = shut.and_then(|connection| self.is_shut(connection, sender.connection_state, now)) {
            return Verdict { reason: Reason::OverLimit, rule }.into();
        }
        let asked = Asked::from(&packet);
        let choice = choice(&asked_by, asked, protecting);
        let Some(index) = choice.rule else { return Verdict::unruled(choice.reason).into() };
        let rule = rules.rule(index);
        if choice.reason != Reason::NotCounted {
            return enforced(rule, choice.reason).into();
        }
        let held = self.hold(frame, &packet, sender, rule, (client, rules.turn(now)), now);
        if choice.is_of_client && !rule.is_dry_run() {
            if let (Some((until_ns, side)), Some(connection)) = (held.shuts, connection) {
                self.shut.insert((connection, side), ends_with(rule, rule.connection_drop_until_ns(now, until_ns)));
            }
            if let (Some(until_ns), Some(of)) = (held.banned_until, segment_of) {
                self.banned.insert(of, ends_with(rule, until_ns));
            }
        }
        let verdict = match choice.beside {
            0 => enforced(rule, held.reason),
            beside => {
                self.hold_beside(rules, &asked_by, Beside::new(index, beside), (client, packet.ip_bytes, now), held)
            }
        };
        Judged { verdict, has_banned: held.has_banned }
    }

    /// Judges an abstract packet without a frame, to a port that every rule protects and an address that no rule names.
    /// Every packet counts as verified.
    pub fn judge_abstract(&mut self, rules: &Rules, source: IpAddr, charges: Charges, now: Nanos) -> Judged {
        let asked_by = rules.asked_by(Address::v4([0; 4]), now);
        let to = Destination::Tcp { port: 0, opening: charges.has(is::OPENING), has_payload: charges.requests != 0 };
        let choice = choice(&asked_by, Asked { source: packet_address(source), to, may_be_tcp: false }, RuleSet::MAX);
        let Some(index) = choice.rule else { return Verdict::unruled(choice.reason).into() };
        let rule = rules.rule(index);
        if choice.reason != Reason::NotCounted {
            return enforced(rule, choice.reason).into();
        }
        let unverified = Rule { evidence: EvidenceNeeds::default(), ..*rule };
        let held = self.sources.hold(rules.policy().client(source), &unverified, charges, now);
        Judged { verdict: enforced(rule, held.reason), has_banned: held.has_banned }
    }

    fn hold<F: Walk>(
        &mut self,
        frame: &F,
        packet: &Packet,
        Sender { connection_state, peer }: Sender,
        rule: &Rule,
        (client, turn): (IpNet, u16),
        now: Nanos,
    ) -> Held {
        let mut taken = match connection_state {
            // The server ignores the segment, so no connection or request begins.
            ConnectionState::Ignored => PacketCharges::of_volume(packet),
            ConnectionState::Unknown | ConnectionState::Answered | ConnectionState::Established => {
                self.conversations.look(frame, packet, peer, now, rule)
            }
        };
        if let Target::Tcp { opening: false, is_fragment: false, segment, .. } = packet.target {
            let may_ask = rule.counts_requests != 0 && segment.payload_bytes != 0;
            if may_ask || rule.evidence.any(EvidenceNeeds::SEGMENTS.or(EvidenceNeeds::CONNECTIONS)) {
                taken.charges.is |= self.verification(packet, connection_state, rule, turn, may_ask);
            }
        }
        let held = self.sources.hold(client, rule, taken.charges, now);
        self.conversations.remember(taken, rule, held.reason);
        held
    }

    /// Returns the flags of [`is`] that a segment gets from its connection.
    fn verification(
        &mut self,
        packet: &Packet,
        connection_state: ConnectionState,
        rule: &Rule,
        turn: u16,
        may_ask: bool,
    ) -> u8 {
        let asks_segments = rule.evidence.any(EvidenceNeeds::SEGMENTS);
        let bits = match connection_state {
            ConnectionState::Answered if may_ask && !asks_segments => is::VERIFIED,
            ConnectionState::Established => is::VERIFIED | is::ESTABLISHED,
            ConnectionState::Answered | ConnectionState::Unknown | ConnectionState::Ignored => 0,
        };
        let Target::Tcp { port, segment, .. } = packet.target else { return bits };
        if !rule.evidence.any(EvidenceNeeds::CONNECTIONS) {
            return bits;
        }
        let is_kept = |in_turn: Option<&u16>| in_turn.is_some_and(|kept| turn.wrapping_sub(*kept) <= 1);
        let ends = (address(packet.source), address(packet.destination), segment.source_port, port);
        let is_known = is_kept(self.verified.get(&ends));
        if is_known && !may_ask && !asks_segments {
            self.verified.insert(ends, turn);
            return 0;
        }
        if connection_state != ConnectionState::Established {
            return bits;
        }
        self.verified.insert(ends, turn);
        bits | if is_known { 0 } else { is::FIRST }
    }

    /// Applies a non-first fragment to every other rule whose ports it could belong to. `held` is the result of the
    /// judging rule.
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
                    let charges = Charges { bytes, requests: 1, ..Charges::default() };
                    self.sources.charge(client, rules.rule(index), charges, now).reason
                }
            };
        }
    }

    /// Returns the row of the rule whose drop entry covers this connection for a sender in this state.
    fn is_shut(&self, connection: Connection, connection_state: ConnectionState, now: Nanos) -> Option<u8> {
        let sides = if connection_state == ConnectionState::Established {
            &[Side::Verified][..]
        } else {
            &[Side::Verified, Side::Unverified]
        };
        let mut shut = sides.iter().filter_map(|side| self.shut.get(&(connection, *side)));
        shut.find(|(until, _)| now < *until).map(|(_, rule)| *rule)
    }
}

/// Returns the expiry of a refusal, limited by the rule's own end, and the rule's row.
fn ends_with(rule: &Rule, until_ns: u64) -> (Nanos, u8) {
    (Nanos(if rule.until_ns == 0 { until_ns } else { until_ns.min(rule.until_ns) }), rule.row)
}

/// Returns the client and the destination port of a segment that opens no connection.
const fn segment_of(packet: &Packet, client: IpNet) -> Option<(IpNet, u16)> {
    let Target::Tcp { port, opening: false, .. } = packet.target else { return None };
    Some((client, port))
}

/// Returns the connection of a segment with payload, if its head can be read with few loads.
fn connection<F: Walk>(frame: &F, packet: &Packet, client: IpNet) -> Option<Connection> {
    let Target::Tcp { port, opening: false, segment, is_fragment: false } = packet.target else { return None };
    (segment.payload_bytes != 0 && Head::of(frame).is_some()).then_some((client, segment.source_port, port))
}

/// Returns whether a packet is a segment that closes its connection.
fn closes(packet: &Packet) -> bool {
    matches!(&packet.target, Target::Tcp { segment, .. } if segment.closes())
}

/// Converts an address to the form that packets have.
fn packet_address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => Address::v4(address.octets()),
        IpAddr::V6(address) => Address::v6(address.octets()),
    }
}
