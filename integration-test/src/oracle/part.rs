//! A packet's step in its connection or flow: whether it opens one, and how many requests begin in it. UDP is handled
//! here, and TCP in `conversation`.

use std::collections::HashMap;
use std::net::IpAddr;

use super::conversation::{Conversation, versions};
use super::{Kind, Nanos, Packet, SECOND};

/// Silence after which a UDP flow is new again.
pub(super) const FLOW_IDLE: Nanos = 120 * SECOND;

/// Maximum number of QUIC Initial datagrams of one connection.
const INITIALS_PER_CONNECTION: u32 = 8;

/// Key of a UDP flow: whole address, source port, destination port.
type FlowKey = (IpAddr, u16, u16);

/// Key of a TCP connection: both addresses, source port, destination port.
type ConversationKey = (IpAddr, IpAddr, u16, u16);

/// A packet's step in its connection or flow.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) opens: bool,
    pub(super) requests: u64,
    /// State that is remembered if the packet passes.
    pub(super) newest: Newest,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Newest {
    #[default]
    Nothing,
    Flow(FlowKey, Flow),
    Conversation(ConversationKey, Conversation),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    last: Nanos,
    /// Number of Initials since the flow's newest connection.
    initials: u32,
    /// The newest connection has sent a request.
    has_asked: bool,
    /// The newest short header belonged to a request body, so the next one may end it.
    is_in_body: bool,
}

/// State of all flows and connections.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    flows: HashMap<FlowKey, Flow>,
    conversations: HashMap<ConversationKey, Conversation>,
}

impl Parts {
    /// Counts a TCP or UDP packet that passes, and returns the number of requests that begin in it.
    pub fn requests(&mut self, packet: &Packet, now: Nanos, quic: &[u16]) -> u64 {
        let part = match packet.kind {
            Kind::Udp { port, .. } => self.datagram(packet, now, quic.contains(&port)),
            Kind::Tcp { is_fragment: true, .. } => Step { requests: 1, ..Step::default() },
            Kind::Tcp { .. } if !packet.payload.is_empty() => self.segment(packet),
            Kind::Fragment { may_be_tcp } => Step { requests: may_be_tcp.into(), ..Step::default() },
            Kind::Tcp { .. } | Kind::Unparsable | Kind::ControlTraffic | Kind::Other => Step::default(),
        };
        self.remember(part.newest);
        part.requests
    }

    pub(super) fn remember(&mut self, newest: Newest) {
        match newest {
            Newest::Nothing => {}
            Newest::Flow(key, flow) => drop(self.flows.insert(key, flow)),
            Newest::Conversation(key, conversation) => drop(self.conversations.insert(key, conversation)),
        }
    }

    /// Returns whether the flow or connection is remembered already.
    pub(super) fn has(&self, newest: &Newest) -> bool {
        match newest {
            Newest::Nothing => true,
            Newest::Flow(key, _) => self.flows.contains_key(key),
            Newest::Conversation(key, _) => self.conversations.contains_key(key),
        }
    }

    pub(super) fn datagram(&self, packet: &Packet, now: Nanos, speaks_quic: bool) -> Step {
        let Kind::Udp { source_port, port, quic_initial } = packet.kind else { return Step::default() };
        let key = (packet.source, source_port, port);
        let is_short = packet.payload.len() >= 6 && packet.payload[0] < 0x80;
        let known = self.flows.get(&key).filter(|flow| now - flow.last <= FLOW_IDLE);
        if !speaks_quic {
            let flow = Flow { last: now, initials: 0, has_asked: false, is_in_body: false };
            return Step { opens: known.is_none(), requests: 1, newest: Newest::Flow(key, flow) };
        }
        let has_asked = is_short;
        let before = known.copied().unwrap_or(Flow { last: now, initials: 0, has_asked, is_in_body: false });
        let mut flow = Flow { last: now, initials: before.initials + u32::from(quic_initial), ..before };
        let opens = known.is_none() || flow.initials > INITIALS_PER_CONNECTION;
        if opens && quic_initial {
            flow = Flow { last: now, initials: 1, has_asked: false, is_in_body: false };
        }
        let is_quic = flow.initials > 0 || flow.has_asked;
        let asks = is_short && (64..=1000).contains(&packet.payload.len()) && !before.is_in_body;
        let is_request = if !is_quic {
            true
        } else if asks {
            // The Initial was counted as the first request.
            flow.has_asked
        } else {
            quic_initial && (opens || before.initials == 0)
        };
        flow.has_asked |= is_quic && asks;
        if is_quic && is_short {
            flow.is_in_body = packet.payload.len() > 1000;
        }
        Step { opens, requests: u64::from(is_request), newest: Newest::Flow(key, flow) }
    }

    pub(super) fn segment(&self, packet: &Packet) -> Step {
        let Kind::Tcp { source_port, port, opens, sequence, acknowledged, is_fragment: _ } = packet.kind else {
            return Step::default();
        };
        // A server that accepts payload with a SYN answers each request in it. The position of later data stays
        // unknown.
        if opens {
            return Step { opens, requests: versions(&packet.payload).max(1), newest: Newest::Nothing };
        }
        let key = (packet.source, packet.destination, source_port, port);
        let (conversation, requests) =
            Conversation::turn(self.conversations.get(&key), sequence, acknowledged, &packet.payload);
        Step { opens, requests, newest: Newest::Conversation(key, conversation) }
    }
}
