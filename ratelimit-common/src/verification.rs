//! Verified and unverified traffic. A sender that receives this host's packets is the source that it names. Its segment
//! is accepted by one of the host's TCP connections, and so is verified. A SYN, a datagram or a segment without a
//! connection can be forged. So can a segment whose sequence numbers its connection rejects; it changes nothing there
//! and nothing here ([`Socket::takes`]).
//!
//! Verified traffic is counted in separate windows, with the same limits. So forged packets in the name of a source use
//! nothing of the limit of its open connections. A ban begins with a verified segment: a refused one, or one after
//! enough connections. In the latter case the source itself has opened as many connections as the limit allows, and was
//! refused another.

use crate::admission::Fingerprint;
use crate::drop_cache::Key;
use crate::hash::HashKey;
use crate::packet::Segment;
use crate::time::Nanos;

/// Window of a limit for one kind of traffic. The code changes the top three bits of the limit's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Side {
    /// Unverified traffic, which can be forged.
    Unverified = 0,
    /// Verified traffic, of connections that the host has answered.
    Verified = 1,
    /// Connections that a ban needs as evidence. The window refuses nothing.
    Evidence = 2,
    /// Request limits: connection attempts, which can be forged. Attempts over the limit pass, and make a source
    /// suspect.
    Attempts = 3,
    /// Request limits: connections that the guard allows a suspect source to open.
    Opened = 4,
    /// Request limits: segments that begin no request, as the guard allows them.
    Segments = 5,
    /// Request limits: retransmitted requests that were refused before. The window admits and refuses nothing. Its
    /// refusals are those of the limit's own window that repeat an earlier refusal.
    Repeated = 6,
    /// Request limits: QUIC datagrams that are no request, as the guard allows them. They can be forged, so they do not
    /// share the window of [`Side::Segments`].
    Datagrams = 7,
}

impl Side {
    /// All sides, in the order of their codes.
    pub const ALL: [Self; 8] = [
        Self::Unverified,
        Self::Verified,
        Self::Evidence,
        Self::Attempts,
        Self::Opened,
        Self::Segments,
        Self::Repeated,
        Self::Datagrams,
    ];

    /// Returns the side of a code. Unknown codes are [`Side::Unverified`].
    #[inline(always)]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Verified,
            2 => Self::Evidence,
            3 => Self::Attempts,
            4 => Self::Opened,
            5 => Self::Segments,
            6 => Self::Repeated,
            7 => Self::Datagrams,
            _ => Self::Unverified,
        }
    }

    /// Returns the slot of this side's window, for a limit with the given slot.
    #[inline(always)]
    pub const fn slot(self, slot: u32) -> u32 {
        slot ^ (self as u32) << SIDE_SHIFT
    }

    /// Returns whether the side's window belongs to the guard.
    #[inline(always)]
    pub const fn is_guard(self) -> bool {
        matches!(self, Self::Attempts | Self::Opened | Self::Segments | Self::Datagrams)
    }
}

/// Returns the slot for retransmissions of requests that the window of verified traffic in this slot refused.
#[inline(always)]
pub const fn repeated_of_verified(slot: u32) -> u32 {
    Side::Repeated.slot(Side::Verified.slot(slot))
}

const SIDE_SHIFT: u32 = 29;
// A slot has three bits for the side, and so has `hold::At`. A further side would be confused with the limit's own
// window.
const _: () = assert!(Side::ALL.len() <= 1 << (u32::BITS - SIDE_SHIFT));

/// Returns the part of a slot that all windows of a limit share. It differs between limits, or they would share
/// windows.
pub const fn of_all_sides(slot: u32) -> u32 {
    slot & ((1 << SIDE_SHIFT) - 1)
}

/// Segments that begin no request and that the guard allows a source, for each request of the limit. The minimum is
/// [`GUARDED_SEGMENTS_MIN`]. The guard allows as many datagrams, and counts few of them, see
/// [`crate::flow::DATAGRAMS_PER_COUNTED`]. docs/COUNTING.md has the measurements.
pub const GUARDED_SEGMENTS_PER_REQUEST: u64 = 64;

/// Minimum number of segments that the guard allows, however small the limit is. An upload of 1 GB counts 8192, see
/// [`crate::conversation::Conversation::is_unaccounted`].
pub const GUARDED_SEGMENTS_MIN: u64 = 16_384;

/// Returns the number of segments that begin no request and that the guard of a limit allows. `requests` is the limit,
/// and `most` is the maximum count of a cell.
pub fn guarded_segments(requests: u64, most: u64) -> u64 {
    requests.saturating_mul(GUARDED_SEGMENTS_PER_REQUEST).max(GUARDED_SEGMENTS_MIN).min(most)
}

/// Set of the evidence that a rule needs from its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct EvidenceNeeds(pub u8);

impl EvidenceNeeds {
    /// Evidence of each TCP segment: the rule counts packets or bytes, or refuses everything.
    pub const SEGMENTS: Self = Self(1);
    /// Evidence of each connection, once: the rule counts connections, and bans or shares them with other hosts.
    pub const CONNECTIONS: Self = Self(2);
    /// Evidence for bans: only verified traffic begins a ban.
    pub const BANS: Self = Self(4);
    /// Flag for limits that count only connections, so packets that they admit are not verified traffic.
    pub const CONNECTIONS_ALONE: Self = Self(8);
    /// Evidence of each TCP segment, since a page may have ended its connection.
    pub const PAGES: Self = Self(16);

    /// Returns whether the set has any of these.
    #[inline(always)]
    pub const fn any(self, of: Self) -> bool {
        self.0 & of.0 != 0
    }

    /// Returns the set without `other`.
    #[inline(always)]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the union of both sets.
    #[inline(always)]
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Returns the fingerprint of a segment's connection that was found among the host's sockets. The filter keeps it for
/// at least 275 s. The destination address is left out: it takes a lookup, and separates few connections.
#[inline(always)]
pub const fn found(seed: HashKey, key: Key, source_port: u16, now: Nanos) -> Fingerprint {
    connection(seed, key, source_port, 38, now)
}

/// Returns the fingerprint of a segment's connection that was not found among the host's sockets. The filter keeps it
/// for at least a second.
#[inline(always)]
pub const fn not_found(seed: HashKey, key: Key, source_port: u16, now: Nanos) -> Fingerprint {
    connection(seed, key, source_port, 30, now)
}

#[inline(always)]
const fn connection(seed: HashKey, key: Key, source_port: u16, generation_shift: u32, now: Nanos) -> Fingerprint {
    Fingerprint::of(seed, key.source, (source_port as u64) << 16 | key.port() as u64, generation_shift, now)
}

/// Returns whether a connection that was not found recently is looked up again. Used if an entry drops unverified
/// traffic of the source. One of sixteen periods of 4 ms allows it. So a shared fingerprint never refuses a connection
/// for long, and the period cannot be predicted without the seed.
#[inline(always)]
pub const fn is_looked_up(connection: Fingerprint, now: Nanos) -> bool {
    HashKey([connection.place; 2]).hash(now.0 >> 22, 0) & 15 == 0
}

/// Verification of a segment's sender by the host's TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// No socket, or a listening one: the segment can be forged.
    Unknown,
    /// The socket has answered a SYN and waits for the end of the handshake, so it verifies nothing yet. The client's
    /// first request may arrive together with that end, before the stack has seen either. The request counts as
    /// verified, like those after it, and bans no source. Other segments do not count as verified.
    Answered,
    /// The connection is established: its peer has received the host's packets, and has sent this segment.
    Established,
    /// The socket rejects this segment from any sender.
    Ignored,
}

/// Sequence numbers of a socket: what it has received and sent (`struct tcp_sock`, Linux 6.18). They are in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// Next byte that the socket expects: `rcv_nxt`.
    pub received: u32,
    /// Next byte that the socket expected when it last announced its window: `rcv_wup`.
    pub window_at: u32,
    /// Receive window in bytes: `rcv_wnd`.
    pub window: u32,
    /// Sequence number of the next byte that the program will write: `write_seq`.
    pub said: u32,
    /// First byte that the peer has not acknowledged: `snd_una`.
    pub unacknowledged: u32,
    /// Largest window that the peer has announced: `max_window`.
    pub peers_window_max: u32,
}

impl Socket {
    /// Returns the first byte beyond the socket's receive window.
    #[inline(always)]
    pub const fn window_end(&self) -> u32 {
        self.window_at.wrapping_add(self.window)
    }

    /// Returns whether the socket accepts a segment by its sequence numbers, or has accepted it (`tcp_sequence`,
    /// `tcp_ack`, net/ipv4/tcp_input.c, Linux 6.18). A sender that missed the acknowledgement retransmits the segment.
    #[inline(always)]
    pub const fn takes(&self, segment: &Segment) -> bool {
        let end = segment.sequence.wrapping_add(segment.payload_bytes);
        let oldest = self.window_at.wrapping_sub(self.window);
        let is_in_window = is_at_or_behind(oldest, end) && is_at_or_behind(segment.sequence, self.window_end());
        let (unheard, not_acknowledged) =
            (self.said.wrapping_sub(segment.acknowledged), self.said.wrapping_sub(self.unacknowledged));
        is_in_window && unheard <= not_acknowledged.saturating_add(self.peers_window_max)
    }
}

/// Returns whether `first` is at or before `second`, modulo 2^32.
#[inline(always)]
const fn is_at_or_behind(first: u32, second: u32) -> bool {
    second.wrapping_sub(first) < 1 << 31
}

/// Returns the verification by a socket in this state (`include/net/tcp_states.h`, Linux 6.18).
#[inline(always)]
pub const fn connection_state(state: u32) -> ConnectionState {
    const SYN_RECV: u32 = 3;
    const NEW_SYN_RECV: u32 = 12;
    if is_established(state) {
        ConnectionState::Established
    } else if state == SYN_RECV || state == NEW_SYN_RECV {
        ConnectionState::Answered
    } else {
        ConnectionState::Unknown
    }
}

/// Returns whether a socket in this state listens.
#[inline(always)]
pub const fn is_listening(state: u32) -> bool {
    const LISTEN: u32 = 10;
    state == LISTEN
}

/// Returns whether this is the state of a request socket, which the kernel keeps for a SYN.
#[inline(always)]
pub const fn is_request(state: u32) -> bool {
    const NEW_SYN_RECV: u32 = 12;
    state == NEW_SYN_RECV
}

/// Returns whether a socket in this state has closed its side, so it sends no more answers.
#[inline(always)]
pub const fn has_ended(state: u32) -> bool {
    const ESTABLISHED: u32 = 1;
    const CLOSE_WAIT: u32 = 8;
    is_established(state) && state != ESTABLISHED && state != CLOSE_WAIT
}

#[inline(always)]
const fn is_established(state: u32) -> bool {
    const ESTABLISHED: u32 = 1;
    const FIN_WAIT1: u32 = 4;
    const FIN_WAIT2: u32 = 5;
    const TIME_WAIT: u32 = 6;
    const CLOSE_WAIT: u32 = 8;
    const LAST_ACK: u32 = 9;
    const CLOSING: u32 = 11;
    const ALL: u32 = 1 << ESTABLISHED
        | 1 << FIN_WAIT1
        | 1 << FIN_WAIT2
        | 1 << TIME_WAIT
        | 1 << CLOSE_WAIT
        | 1 << LAST_ACK
        | 1 << CLOSING;
    state < 32 && ALL >> (state & 31) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: HashKey = HashKey([77, 78]);

    #[test]
    fn a_socket_that_waits_for_its_peer_verifies_nothing() {
        let (syn_sent, syn_recv, close, listen, new_syn_recv) = (2, 3, 7, 10, 12);
        for state in [0, syn_sent, close, listen, 32, 33, u32::MAX] {
            assert_eq!(connection_state(state), ConnectionState::Unknown, "{state}");
        }
        for state in [syn_recv, new_syn_recv] {
            assert_eq!(connection_state(state), ConnectionState::Answered, "{state}");
        }
        for state in [1, 4, 5, 6, 8, 9, 11] {
            assert_eq!(connection_state(state), ConnectionState::Established, "{state}");
        }
    }

    #[test]
    fn a_connection_that_was_not_found_is_looked_up_in_one_of_sixteen_moments() {
        const MOMENTS: usize = 1000;
        for port in 0..100 {
            let at = |moment: usize| Nanos(1_767_261_600_000_000_000 + moment as u64 * (1 << 22));
            let fingerprint = |now| not_found(SEED, Key { source: 5, what: 443 }, 40_000 + port, now);
            let looked_up = (0..MOMENTS).filter(|&moment| is_looked_up(fingerprint(at(moment)), at(moment))).count();
            assert!((35..95).contains(&looked_up), "{looked_up}");
        }
    }

    #[test]
    fn the_filter_keeps_a_connection_for_a_generation_and_separates_keys() {
        let (now, key) = (Nanos(1_767_261_600_000_000_000), Key { source: 5, what: 1 << 27 | 443 });
        type Fingerprinting = fn(HashKey, Key, u16, Nanos) -> Fingerprint;
        for (fingerprinting, stays_s, ends_s) in [(found as Fingerprinting, 270, 600), (not_found, 1, 3)] {
            let fingerprint = fingerprinting(SEED, key, 40_000, now);
            let cell = [fingerprint.with_added(0).unwrap(), 0];
            for (later_s, filter_has) in [(0, true), (stays_s, true), (ends_s, false)] {
                let later = fingerprinting(SEED, key, 40_000, Nanos(now.0 + later_s * 1_000_000_000));
                let turned = later.current() ^ fingerprint.current();
                assert_eq!(later.place, fingerprint.place);
                assert_eq!(later.contains(cell[turned], cell[1 - turned]), filter_has, "{later_s}");
            }
            let same = fingerprinting(SEED, Key { what: 9 << 27 | 443, ..key }, 40_000, now);
            assert_eq!(same, fingerprint, "the epoch does not matter");
            for (key, port) in [(key, 40_001), (Key { source: 6, ..key }, 40_000), (Key { what: 80, ..key }, 40_000)] {
                assert_ne!(fingerprinting(SEED, key, port, now).place, fingerprint.place);
            }
        }
    }

    #[test]
    fn a_socket_takes_what_is_in_its_window_and_acknowledges_what_it_has_said() {
        let socket = Socket {
            received: 1_000,
            window_at: 900,
            window: 5_000,
            said: 10,
            unacknowledged: u32::MAX - 9,
            peers_window_max: 100,
        };
        let takes = |sequence, acknowledged, payload_bytes| {
            socket.takes(&Segment { sequence, acknowledged, payload_bytes, ..Segment::default() })
        };
        for (sequence, payload_bytes, is_taken) in [
            (1_000, 0, true),
            (800, 100, true),
            (900_u32.wrapping_sub(5_000), 0, true),
            (900_u32.wrapping_sub(5_001), 0, false),
            (5_900, 10, true),
            (5_901, 10, false),
            (1_000_u32.wrapping_sub(1 << 31), 10, false),
        ] {
            assert_eq!(takes(sequence, 10, payload_bytes), is_taken, "{sequence} {payload_bytes}");
        }
        for (acknowledged, is_taken) in [
            (10, true),
            (11, false),
            (u32::MAX - 9, true),
            (u32::MAX - 109, true),
            (u32::MAX - 110, false),
            (1 << 30, false),
        ] {
            assert_eq!(takes(1_000, acknowledged, 10), is_taken, "{acknowledged}");
        }
    }

    #[test]
    fn each_side_of_a_limit_has_a_window_of_its_own() {
        let mut slots: Vec<_> = [7, 8].into_iter().flat_map(|slot| Side::ALL.map(|side| side.slot(slot))).collect();
        assert!(slots.iter().all(|slot| [7, 8].contains(&of_all_sides(*slot))));
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(repeated_of_verified(Side::Verified.slot(7)), Side::Repeated.slot(7));
        assert_eq!(slots.len(), 2 * Side::ALL.len());
        assert!(Side::ALL.iter().all(|side| Side::from_code(*side as u32) == *side));
    }
}
