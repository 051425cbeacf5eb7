//! Charges of a packet: the connections and requests that begin in it, from the tracked state of its connection.
//! Without the server's socket, the segment's own numbers decide. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ratelimit_common::choose::enforced;
use ratelimit_common::conversation::{self, Conversation, Peer, Walk};
use ratelimit_common::flow::{self, Datagram, Flow};
use ratelimit_common::hold::{Charges, is};
use ratelimit_common::layout::Rule;
use ratelimit_common::packet::{Packet, Segment, Target};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;
use ratelimit_common::verdict::{Action, Reason};

use super::recent::Recent;

/// Minimum number of tracked connections, and of tracked flows. Each set takes up to 2^18 x 2 halves x ~90 B = 47 MB.
const REMEMBERED: usize = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ConversationKey {
    source: Address,
    destination: Address,
    source_port: u16,
    port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    source: Address,
    source_port: u16,
    port: u16,
}

/// Tracked state of connections and flows.
#[derive(Debug)]
pub struct Conversations {
    tcp: Recent<ConversationKey, Conversation>,
    udp: Recent<FlowKey, Flow>,
}

/// Charges of a packet, and the connection state to store if it passes.
pub struct PacketCharges {
    pub charges: Charges,
    newest: Newest,
}

impl PacketCharges {
    /// Returns the charges of a packet in which nothing begins.
    pub fn of_volume(packet: &Packet) -> Self {
        Self { charges: Charges { bytes: packet.ip_bytes, ..Charges::default() }, newest: Newest::Nothing }
    }
}

enum Newest {
    Nothing,
    Tcp(ConversationKey, Conversation),
    Udp(FlowKey, Flow),
}

impl Default for Conversations {
    fn default() -> Self {
        Self { tcp: Recent::new(REMEMBERED), udp: Recent::new(REMEMBERED) }
    }
}

impl Conversations {
    /// Returns the charges of a packet under the judging rule. `peer` is the state of the server's socket, if known.
    pub fn look<F: Walk>(
        &self,
        frame: &F,
        packet: &Packet,
        peer: Option<Peer>,
        now: Nanos,
        rule: &Rule,
    ) -> PacketCharges {
        let volume = PacketCharges::of_volume(packet).charges;
        let costs = |opens, requests| Charges { requests: saturating(requests), ..volume }.with(is::OPENING, opens);
        let nothing = |charges| PacketCharges { charges, newest: Newest::Nothing };
        match packet.target {
            // A fragment may repeat what begins in other packets.
            Target::Tcp { port, opening, segment, is_fragment: true } if rule.counts_requests != 0 => {
                let key = conversation_key(packet, &segment, port);
                let known = self.tcp.get(key);
                let mut newest = known.unwrap_or_default();
                newest.come_in_fragments(known.is_some());
                PacketCharges { charges: costs(opening, 1), newest: Newest::Tcp(key, newest) }
            }
            Target::Tcp { opening, is_fragment: true, .. } => nothing(costs(opening, 1)),
            Target::Tcp { opening, segment, .. } if segment.payload_bytes == 0 || rule.counts_requests == 0 => {
                nothing(costs(opening, 0))
            }
            // A server that accepts payload with a SYN answers it.
            Target::Tcp { opening: true, segment, .. } => {
                let end = segment.payload_at.saturating_add(segment.payload_bytes);
                nothing(costs(true, conversation::with_syn(frame, segment.payload_at, end).unwrap_or(1)))
            }
            Target::Tcp { port, segment, .. } => {
                let key = conversation_key(packet, &segment, port);
                let turn = conversation::turn(frame, &segment, self.tcp.get(key), peer);
                PacketCharges { charges: costs(false, turn.requests), newest: Newest::Tcp(key, turn.newest) }
            }
            Target::Udp { .. } if rule.counts_connections | rule.counts_requests == 0 => nothing(volume),
            Target::Udp { port, source_port, quic_initial, quic_short, payload_bytes } => {
                let key = FlowKey { source: packet.source, source_port, port };
                let datagram =
                    Datagram { speaks_quic: rule.speaks_quic(port), quic_initial, quic_short, payload_bytes };
                let step = flow::step(self.udp.get(key), now, datagram);
                PacketCharges { charges: costs(step.opens, step.requests), newest: Newest::Udp(key, step.newest) }
            }
            // A packet with unparsable headers may be anything.
            Target::UnparsableHeaders => nothing(costs(true, 1)),
            Target::Fragment { may_be_tcp } => nothing(costs(false, may_be_tcp.into())),
            Target::Other | Target::ControlTraffic => nothing(volume),
        }
    }

    /// Stores the state of a packet that the rule passes. Its limits returned `reason`. In dry run, connections proceed
    /// with every passed packet. A flow over the limit is judged anew even there.
    pub fn remember(&mut self, taken: PacketCharges, rule: &Rule, reason: Reason) {
        match taken.newest {
            Newest::Tcp(key, newest) if enforced(rule, reason).reason.action() == Action::Pass => {
                self.tcp.insert(key, newest);
            }
            Newest::Udp(key, newest) if reason.action() == Action::Pass => self.udp.insert(key, newest),
            Newest::Tcp(..) | Newest::Udp(..) | Newest::Nothing => {}
        }
    }
}

fn conversation_key(packet: &Packet, segment: &Segment, port: u16) -> ConversationKey {
    let (source, destination) = (packet.source, packet.destination);
    ConversationKey { source, destination, source_port: segment.source_port, port }
}

fn saturating(requests: u32) -> u16 {
    u16::try_from(requests).unwrap_or(u16::MAX)
}

/// Converts a packet's address to a standard one.
pub fn address(address: Address) -> IpAddr {
    match address {
        Address::V4(word) => Ipv4Addr::from(word.to_ne_bytes()).into(),
        Address::V6([high, low]) => {
            let mut octets = [0; 16];
            octets[..8].copy_from_slice(&high.to_ne_bytes());
            octets[8..].copy_from_slice(&low.to_ne_bytes());
            Ipv6Addr::from(octets).into()
        }
    }
}
