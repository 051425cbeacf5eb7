//! What a packet proves of its sender. Whoever receives what this host sends is who it says: a TCP segment of one of the host's
//! connections. A SYN, a datagram or a segment of no connection can be anyone's, in anyone's name.
//!
//! So what is proven is counted in windows of its own, with the same limits: packets in the name of a source take nothing from its open
//! connections. And a ban follows what is proven: a segment of an established connection that was refused, or an attempt to connect, by a source that
//! has itself lately made nearly as many requests or connections as the limit lets in.

use crate::admission::Mark;
use crate::hash::HashKey;
use crate::refused::Key;
use crate::time::Nanos;

/// Of a slot, flipped: its window of what is proven.
pub const SLOT: u32 = 1 << 31;

/// Of a slot, flipped: its window of what a ban needs. It refuses nothing.
pub const EVIDENCE: u32 = 1 << 30;

/// By what the slots of a limit's windows may differ from its own.
pub const SIDES: [u32; 3] = [0, SLOT, EVIDENCE];

/// What the slots of all windows of a limit have in common: those of two limits differ in it, or they would share a window.
pub const fn of_all_sides(slot: u32) -> u32 {
    slot & !(SLOT | EVIDENCE)
}

/// What a rule asks proof for; some of them.
pub mod asks {
    /// Each TCP segment: the rule counts packets or bytes, or refuses everything.
    pub const SEGMENTS: u8 = 1;
    /// Each connection, once: the rule counts these or requests, and bans.
    pub const CONNECTIONS: u8 = 2;
    /// Bans begin by what is proven alone.
    pub const BANS: u8 = 4;
    /// No limit counts anything but connections, so that nothing that it lets in can prove anything.
    pub const CONNECTIONS_ALONE: u8 = 8;
}

/// Where it is kept that the connection of a segment with this key was found among the host's own: for 275 s at least. Its other address is
/// left out, for that costs a look and tells few apart.
#[inline(always)]
pub const fn found(seed: HashKey, key: Key, source_port: u16, now: Nanos) -> Mark {
    connection(seed, key, source_port, 38, now)
}

/// The same, that it was not: for a second at least.
#[inline(always)]
pub const fn not_found(seed: HashKey, key: Key, source_port: u16, now: Nanos) -> Mark {
    connection(seed, key, source_port, 30, now)
}

#[inline(always)]
const fn connection(seed: HashKey, key: Key, source_port: u16, turn_shift: u32, now: Nanos) -> Mark {
    Mark::of(seed, key.source, (source_port as u64) << 16 | key.port() as u64, turn_shift, now)
}

/// Whether a segment of a connection with this mark is looked up now though that was not found a moment ago, where a note refuses what its
/// source has not proven: in one of sixteen moments of 4 ms. So nothing stays refused by a mark that is another connection's; nobody
/// foresees when who does not know the seed.
#[inline(always)]
pub const fn is_looked_up(connection: Mark, now: Nanos) -> bool {
    HashKey([connection.place; 2]).hash(now.0 >> 22, 0) & 15 == 0
}

/// What the host's TCP socket that a segment is for says of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is none, or one that listens: anyone can send this.
    Unknown,
    /// It has answered a SYN, and waits for the end of the handshake. A client's first request may come with that, and be looked at
    /// before the stack has seen either: it is counted as what is proven, like those after it, and bans nobody. What is no request
    /// is not.
    Answered,
    /// It has heard from its peer what only that can know.
    Established,
}

/// What a socket in this state says (`include/net/tcp_states.h`, Linux 6.18).
#[inline(always)]
pub const fn standing(state: u32) -> Standing {
    const SYN_RECV: u32 = 3;
    const NEW_SYN_RECV: u32 = 12;
    if is_established(state) {
        Standing::Established
    } else if state == SYN_RECV || state == NEW_SYN_RECV {
        Standing::Answered
    } else {
        Standing::Unknown
    }
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

/// Whether so much of a limit of `amount` was proven that it is the source itself who asks for more: three quarters, or all of less than
/// four. Not each connection that is let in sends something.
#[inline(always)]
pub const fn is_enough(used: u64, amount: u64) -> bool {
    used != 0 && used >= amount - amount / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: HashKey = HashKey([77, 78]);

    #[test]
    fn a_socket_that_waits_for_its_peer_proves_nothing() {
        let (syn_sent, syn_recv, close, listen, new_syn_recv) = (2, 3, 7, 10, 12);
        for state in [0, syn_sent, close, listen, 32, 33, u32::MAX] {
            assert_eq!(standing(state), Standing::Unknown, "{state}");
        }
        for state in [syn_recv, new_syn_recv] {
            assert_eq!(standing(state), Standing::Answered, "{state}");
        }
        for state in [1, 4, 5, 6, 8, 9, 11] {
            assert_eq!(standing(state), Standing::Established, "{state}");
        }
    }

    #[test]
    fn a_connection_that_was_not_found_is_looked_up_in_one_of_sixteen_moments() {
        const MOMENTS: usize = 1000;
        for port in 0..100 {
            let at = |moment: usize| Nanos(1_767_261_600_000_000_000 + moment as u64 * (1 << 22));
            let mark = |now| not_found(SEED, Key { source: 5, what: 443 }, 40_000 + port, now);
            let looked_up = (0..MOMENTS).filter(|&moment| is_looked_up(mark(at(moment)), at(moment))).count();
            assert!((35..95).contains(&looked_up), "{looked_up}");
        }
    }

    #[test]
    fn a_connection_stays_marked_for_a_turn_at_least_and_is_another_by_each_of_its_words() {
        let (now, key) = (Nanos(1_767_261_600_000_000_000), Key { source: 5, what: 1 << 27 | 443 });
        type Marking = fn(HashKey, Key, u16, Nanos) -> Mark;
        for (marking, stays_s, ends_s) in [(found as Marking, 270, 600), (not_found, 1, 3)] {
            let mark = marking(SEED, key, 40_000, now);
            let cell = [mark.made_known(0).unwrap(), 0];
            for (later_s, is_marked) in [(0, true), (stays_s, true), (ends_s, false)] {
                let later = marking(SEED, key, 40_000, Nanos(now.0 + later_s * 1_000_000_000));
                let turned = later.current() ^ mark.current();
                assert_eq!(later.place, mark.place);
                assert_eq!(later.is_known(cell[turned], cell[1 - turned]), is_marked, "{later_s}");
            }
            let same = marking(SEED, Key { what: 9 << 27 | 443, ..key }, 40_000, now);
            assert_eq!(same, mark, "the epoch does not matter");
            for (key, port) in [(key, 40_001), (Key { source: 6, ..key }, 40_000), (Key { what: 80, ..key }, 40_000)] {
                assert_ne!(marking(SEED, key, port, now).place, mark.place);
            }
        }
    }

    #[test]
    fn three_quarters_of_the_limit_are_enough_and_less_is_not() {
        for (amount, enough) in [(1, 1), (2, 2), (3, 3), (4, 3), (10, 8), (1000, 750)] {
            assert!(is_enough(enough, amount) && !is_enough(enough - 1, amount), "{amount}");
        }
        assert!(!is_enough(0, 0));
    }
}
