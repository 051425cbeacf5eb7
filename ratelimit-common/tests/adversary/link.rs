//! Path from a client to a server: the limiter, then the segments that it passes, the server's TCP, and the server.

use std::collections::VecDeque;

use ratelimit_common::conversation::{Conversation, turn};
use ratelimit_common::packet::Segment;

use crate::random::Random;
use crate::tcp::{Piece, Receiver};

/// Bytes of the headers of Ethernet, IPv4 and TCP.
const HEADERS: usize = 54;

/// Maximum number of segments that the limiter sees before the server's TCP has any of them: a batch of the driver.
const BEHIND_MAX: usize = 8;

/// Application that reads the payload in order.
pub(crate) trait Server {
    /// Reads bytes that the limiter judged when the server had said `said`.
    fn reads(&mut self, bytes: &[u8], said: u32);

    /// Returns the answers that the server owes, in bytes, so that the caller can take them.
    fn owes(&mut self) -> &mut VecDeque<u32>;

    /// Returns, for each accepted request, what had been said when the limiter saw its beginning.
    fn accepted(&self) -> &[u32];

    /// Returns whether the server has stopped reading.
    fn has_ended(&self) -> bool;
}

/// Limiter that works like `judge` and `verdict` in the BPF program.
pub(crate) struct Limiter {
    pub(crate) known: Option<Conversation>,
    pub(crate) counted: u64,
    pub(crate) unaccounted: u64,
    /// Number of payload bytes that passed.
    pub(crate) bytes: u64,
    /// Maximum number of requests that pass.
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

/// Segment on its way to the server.
pub(crate) struct Sent<'a> {
    pub(crate) at: i64,
    pub(crate) payload: &'a [u8],
    pub(crate) acknowledged: u32,
    /// True if the segment reaches the limiter, but not the server.
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

    /// Removes the socket, as on a host that forwards: only the client's numbers are known.
    pub(crate) fn without_socket(self) -> Self {
        Self { has_socket: false, ..self }
    }

    /// Sends a segment, and returns whether it passed.
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

    /// Delivers up to `segments` of the segments on the way.
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

    /// Makes the server send up to `answers` of the answers that it owes.
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
