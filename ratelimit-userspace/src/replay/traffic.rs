//! What a packet costs: how many connections and requests begin in it, by what was remembered of its connection. As the kernel has
//! it in a dry run. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ratelimit_common::conversation::{self, Conversation, Walk};
use ratelimit_common::flow::{self, Datagram, Flow};
use ratelimit_common::hold::{Cost, is};
use ratelimit_common::packet::{Packet, Target};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;

use super::recent::Recent;
use crate::desired::QuicPorts;

/// Connections and flows that are remembered at least, each. // 2^18 x 2 halves x ~90 B = 47 MB of each
const REMEMBERED: usize = 1 << 18;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ConversationKey {
    source: Address,
    destination: Address,
    source_port: u16,
    port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct FlowKey {
    source: Address,
    source_port: u16,
    port: u16,
}

/// What connections have said so far.
pub(super) struct Conversations {
    tcp: Recent<ConversationKey, Conversation>,
    udp: Recent<FlowKey, Flow>,
}

/// A packet's cost, and what is to be remembered of it.
pub(super) struct Seen {
    pub(super) cost: Cost,
    newest: Newest,
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
    /// What a packet is, by what is remembered.
    pub(super) fn look<F: Walk>(&self, frame: &F, packet: &Packet, now: Nanos, quic: QuicPorts) -> Seen {
        let volume = Cost { bytes: packet.ip_bytes, ..Cost::default() };
        let costs = |opens, requests| Cost { requests: saturating(requests), ..volume }.with(is::OPENING, opens);
        let nothing = |cost| Seen { cost, newest: Newest::Nothing };
        match packet.target {
            // What begins in it is in other packets too.
            Target::Tcp { opening, is_fragment: true, .. } => nothing(costs(opening, 1)),
            Target::Tcp { port, opening, segment, is_fragment: false } => {
                if segment.payload_bytes == 0 {
                    return nothing(costs(opening, 0));
                }
                let (source, destination) = (packet.source, packet.destination);
                let key = ConversationKey { source, destination, source_port: segment.source_port, port };
                let turn = conversation::turn(frame, &segment, self.tcp.get(key), None);
                Seen { cost: costs(opening, turn.requests), newest: Newest::Tcp(key, turn.newest) }
            }
            Target::Udp { port, source_port, quic_initial, quic_short, payload_bytes } => {
                let key = FlowKey { source: packet.source, source_port, port };
                let datagram = Datagram { speaks_quic: quic.holds(port), quic_initial, quic_short, payload_bytes };
                let step = flow::step(self.udp.get(key), now, datagram);
                Seen { cost: costs(step.opens, step.requests), newest: Newest::Udp(key, step.newest) }
            }
            // Whatever it is, it may be anything.
            Target::Unwalkable => nothing(costs(true, 1)),
            Target::Fragment { may_be_tcp } => nothing(costs(false, may_be_tcp.into())),
            Target::Other | Target::Essential => nothing(volume),
        }
    }

    /// The packet has come in and passed, as in a dry run: the capture shows what followed. A flow over the limit is judged
    /// anew all the same, as it is in the kernel.
    pub(super) fn remember(&mut self, seen: Seen, is_admitted: bool) {
        match seen.newest {
            Newest::Tcp(key, newest) => self.tcp.insert(key, newest),
            Newest::Udp(key, newest) if is_admitted => self.udp.insert(key, newest),
            Newest::Udp(..) | Newest::Nothing => {}
        }
    }
}

fn saturating(requests: u32) -> u16 {
    u16::try_from(requests).unwrap_or(u16::MAX)
}

/// A packet's address as the rest of this side has it.
pub(super) fn address(address: Address) -> IpAddr {
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
