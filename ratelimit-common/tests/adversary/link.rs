//! The way from a client to a server: the limiter, then what it lets pass, then the server's TCP, then the server.

use std::collections::VecDeque;

use ratelimit_common::conversation::{Conversation, turn};
use ratelimit_common::packet::Segment;

use crate::random::Random;
use crate::tcp::{Piece, Receiver};

/// Of Ethernet, IPv4 and TCP.
const HEADERS: usize = 54;

/// Segments that the limiter sees before the server's TCP has any of them: what a driver takes in at once.
const BEHIND_MAX: usize = 8;

/// What reads the payload, in order.
pub(crate) trait Server {
    /// Reads, where the limiter judged these bytes when the server had said `said`.
    fn reads(&mut self, bytes: &[u8], said: u32);

    /// Answers that it owes, in bytes. Taken out.
    fn owes(&mut self) -> &mut VecDeque<u32>;

    /// What had been said when the limiter saw the beginning of each request that was accepted.
    fn accepted(&self) -> &[u32];

    /// Whether it reads nothing any more.
    fn has_ended(&self) -> bool;
}

/// What the limiter does: as `judge` and `verdict` do in the BPF program.
pub(crate) struct Limiter {
    pub(crate) known: Option<Conversation>,
    pub(crate) counted: u64,
    pub(crate) unaccounted: u64,
    /// Payload that passes, in bytes.
    pub(crate) bytes: u64,
    /// Requests that pass.
    pub(crate) limit: u64,
    frame: Vec<u8>,
}

impl Limiter {
    fn passes(&mut self, segment: Segment, payload: &[u8], peer: Option<ratelimit_common::conversation::Peer>) -> bool {
        self.frame.truncate(HEADERS);
        self.frame.extend_from_slice(payload);
        let turn = turn(&self.frame.as_slice(), &segment, self.known, peer);
        let requests = u64::from(turn.requests);
        if self.counted + requests > self.limit {
            return false;
        }
        self.counted += requests;
        self.unaccounted += u64::from(turn.is_unaccounted);
        self.bytes += u64::from(segment.payload_bytes);
        self.known = Some(turn.newest);
        true
    }
}

/// A segment on its way.
pub(crate) struct Sent<'a> {
    pub(crate) at: i64,
    pub(crate) payload: &'a [u8],
    pub(crate) acknowledged: u32,
    /// It arrives at the limiter alone.
    pub(crate) is_lost: bool,
}

pub(crate) struct Link<S> {
    pub(crate) limiter: Limiter,
    pub(crate) tcp: Receiver,
    pub(crate) server: S,
    pub(crate) log: Option<Vec<String>>,
    has_socket: bool,
    on_the_way: VecDeque<Option<Piece>>,
}

impl<S: Server> Link<S> {
    pub(crate) fn new(server: S, random: &mut Random, limit: u64) -> Self {
        let tcp = Receiver::new(random.word(), random.word());
        let limiter = Limiter { known: None, counted: 0, unaccounted: 0, bytes: 0, limit, frame: vec![0xaa; HEADERS] };
        Self { limiter, tcp, server, log: None, has_socket: true, on_the_way: VecDeque::new() }
    }

    /// On a host that forwards: only the client knows the connection.
    pub(crate) fn without_socket(self) -> Self {
        Self { has_socket: false, ..self }
    }

    /// Whether it passed.
    pub(crate) fn sends(&mut self, sent: &Sent) -> bool {
        let end = sent.at + i64::try_from(sent.payload.len()).unwrap();
        if sent.payload.is_empty() || self.has_socket && !self.tcp.takes(sent.at, end) {
            return true;
        }
        let segment = Segment {
            source_port: 50_000,
            sequence: self.tcp.number(sent.at),
            acknowledged: sent.acknowledged,
            payload_at: u32::try_from(HEADERS).unwrap(),
            payload_bytes: u32::try_from(sent.payload.len()).unwrap(),
            says: 0,
        };
        let peer = self.has_socket.then(|| self.tcp.peer());
        let said = if self.has_socket { self.tcp.said } else { sent.acknowledged };
        let before = self.limiter.counted;
        let passes = self.limiter.passes(segment, sent.payload, peer);
        if let Some(log) = &mut self.log {
            log.push(format!(
                "at {} ({} received, {} said): {:?}{}{} => {}",
                sent.at,
                self.tcp.received,
                said,
                String::from_utf8_lossy(&sent.payload[..sent.payload.len().min(120)]),
                if sent.payload.len() > 120 { format!("... {} bytes", sent.payload.len()) } else { String::new() },
                if sent.is_lost { " lost" } else { "" },
                if passes { format!("{} counted", self.limiter.counted - before) } else { "refused".into() },
            ));
        }
        if passes {
            let piece = Piece { at: sent.at, bytes: sent.payload.to_vec(), said };
            self.on_the_way.push_back((!sent.is_lost).then_some(piece));
            if self.on_the_way.len() > BEHIND_MAX {
                self.arrives(1);
            }
        }
        passes
    }

    /// So many of what is on the way arrive.
    pub(crate) fn arrives(&mut self, segments: usize) {
        for _ in 0..segments {
            let Some(piece) = self.on_the_way.pop_front() else { return };
            if let Some(piece) = piece
                && !self.server.has_ended()
            {
                let server = &mut self.server;
                self.tcp.receives(piece, |bytes, said| server.reads(bytes, said));
            }
        }
    }

    /// The server says so much of what it owes.
    pub(crate) fn answers(&mut self, answers: usize) {
        for _ in 0..answers {
            let Some(bytes) = self.server.owes().pop_front() else { break };
            self.tcp.said = self.tcp.said.wrapping_add(bytes);
            if let Some(log) = &mut self.log {
                log.push(format!("    the server says {bytes} bytes"));
            }
        }
        self.tcp.has_ended = self.server.has_ended() && self.server.owes().is_empty();
    }

    pub(crate) fn settles(&mut self) {
        self.arrives(usize::MAX);
        self.answers(usize::MAX);
    }
}
