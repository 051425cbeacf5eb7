//! What a packet costs: how many connections and requests begin in it, by what was remembered of its connection. As the kernel has
//! it in a dry run. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ratelimit_common::conversation::{self, Conversation, Walk};
use ratelimit_common::flow::{self, Datagram, Flow};
use ratelimit_common::packet::{Packet, Target};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;

use super::judge::Cost;
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
        let volume = Cost { packets: 1, bytes: u64::from(packet.ip_bytes), ..Cost::default() };
        let nothing = |cost| Seen { cost, newest: Newest::Nothing };
        match packet.target {
            // What begins in it is in other packets too.
            Target::Tcp { opening, is_fragment: true, .. } => {
                nothing(Cost { connections: u64::from(opening), requests: 1, ..volume })
            }
            Target::Tcp { port, opening, segment, is_fragment: false } => {
                let cost = Cost { connections: u64::from(opening), ..volume };
                if segment.payload_bytes == 0 {
                    return nothing(cost);
                }
                let (source, destination) = (packet.source, packet.destination);
                let key = ConversationKey { source, destination, source_port: segment.source_port, port };
                let turn = conversation::turn(frame, &segment, self.tcp.get(key));
                Seen {
                    cost: Cost { requests: u64::from(turn.requests), ..cost },
                    newest: Newest::Tcp(key, turn.newest),
                }
            }
            Target::Udp { port, source_port, quic_initial, quic_short, payload_bytes } => {
                let key = FlowKey { source: packet.source, source_port, port };
                let datagram = Datagram { speaks_quic: quic.holds(port), quic_initial, quic_short, payload_bytes };
                let step = flow::step(self.udp.get(key), now, datagram);
                let (connections, requests) = (u64::from(step.opens), u64::from(step.requests));
                Seen { cost: Cost { connections, requests, ..volume }, newest: Newest::Udp(key, step.newest) }
            }
            // Whatever it is, it may be anything.
            Target::Unwalkable => nothing(Cost { connections: 1, requests: 1, ..volume }),
            Target::Fragment { may_be_tcp } => nothing(Cost { requests: u64::from(may_be_tcp), ..volume }),
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
