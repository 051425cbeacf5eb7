//! Memory of connections that a reset or a page has ended, and of those with a refused request.

use super::{Conversation, Peer, also, is, speaks};
use crate::packet::Segment;
use crate::refusal::REPETITIONS;
use crate::time::Nanos;

/// Position of a connection that a page has ended, in the server's sequence numbers. The server does not know of the
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paged {
    /// Next byte that the server expects.
    pub sequence: u32,
    /// Next byte that the server sends.
    pub acknowledged: u32,
}

/// Segments that still pass after a connection's reset; or the start of its refused request, and the time of the first
/// refusal.
///
/// ```text
///     31                       8        7        6                  0
///    [ sequence number, low bits | alone | segments left, or time ]
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Ended(u32);

const LEFT: u32 = (1 << 7) - 1;
const _: () = assert!(REPETITIONS <= LEFT);
/// Flag: nothing else is known of the connection.
const ALONE: u32 = 1 << 7;
const SEQUENCE_SHIFT: u32 = 8;
/// Shift of the refusal time: units of 2^28 ns (0.27 s), modulo 128 (34 s).
const TIME_SHIFT: u32 = 28;
/// Maximum age, in units, of a refused request that is still admitted: 0.54 to 0.8 s. Linux retransmits a request after
/// 0.2, 0.4 and 0.8 s. From the second retransmission on, the client may have closed without a sign.
const WAITS_UNITS: u32 = 2;
/// Half of the range of the stored sequence numbers, for comparisons modulo that range.
const HALF: u32 = 1 << (u32::BITS - SEQUENCE_SHIFT - 1);

/// Returns whether `first` is at or before `second`, modulo the range of the stored sequence numbers.
#[inline(always)]
const fn is_at_or_behind(first: u32, second: u32) -> bool {
    second.wrapping_sub(first) << SEQUENCE_SHIFT >> SEQUENCE_SHIFT < HALF
}

/// Returns the time of a refusal at `now`, in the bits that are stored.
#[inline(always)]
const fn time_of(now: Nanos) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "seven bits")]
    let time = (now.0 >> TIME_SHIFT & LEFT as u64) as u32;
    time
}

impl Conversation {
    /// Records that the server was sent a reset for the client. The next few segments without a socket pass, so that
    /// the kernel answers them.
    #[inline(always)]
    pub const fn end_by_reset(&mut self) {
        self.ended = Ended(self.ended.0 & ALONE | REPETITIONS);
        self.also &= !also::REFUSED;
    }

    /// Returns whether a segment without a socket is one of the few after a reset, and counts it.
    #[inline(always)]
    pub const fn is_repetition(&mut self) -> bool {
        let is_left = !self.has_refused() && self.ended.0 & LEFT != 0;
        if is_left {
            self.ended = Ended(self.ended.0 - 1);
        }
        is_left
    }

    /// Records the refusal of the request that begins in this segment, or at the next byte that the server expects.
    /// Returns true if this request, or an earlier one that the server does not have, was recorded already. The segment
    /// is then a retransmission, or comes after it.
    #[inline(always)]
    pub const fn keep_refused(&mut self, segment: &Segment, peer: &Peer, now: Nanos) -> bool {
        let skipped = peer.received.wrapping_sub(segment.sequence);
        let begins_at = if skipped < 1 << 31 { peer.received } else { segment.sequence };
        let kept = self.ended.0 >> SEQUENCE_SHIFT;
        if self.has_refused() && is_at_or_behind(peer.received, kept) && is_at_or_behind(kept, begins_at) {
            return true;
        }
        self.also |= also::REFUSED;
        self.ended = Ended(begins_at << SEQUENCE_SHIFT | self.ended.0 & ALONE | time_of(now));
        false
    }

    /// Resets the state to a connection that was never admitted anything: only its end or its refused request is known.
    #[inline(always)]
    pub const fn begin_alone(&mut self) {
        self.ended = Ended(ALONE);
    }

    /// Returns whether only the end or the refused request of the connection is known.
    #[inline(always)]
    pub const fn is_alone(&self) -> bool {
        self.ended.0 & ALONE != 0
    }

    /// Removes the refused request, as the connection becomes an admitted one.
    #[inline(always)]
    pub const fn forget_refused(&mut self) {
        self.ended = Ended(0);
        self.also &= !also::REFUSED;
    }

    /// Returns whether a request of the connection was refused.
    #[inline(always)]
    pub const fn has_refused(&self) -> bool {
        self.also & also::REFUSED != 0
    }

    /// Returns whether the request was refused so long ago that the client may have given up without a sign.
    #[inline(always)]
    pub const fn has_waited(&self, now: Nanos) -> bool {
        self.has_refused() && time_of(now).wrapping_sub(self.ended.0) & LEFT > WAITS_UNITS
    }

    /// Returns whether this segment ends the connection while the server has no byte of its refused request. The
    /// segment is a FIN or RST, or retransmits a request that was refused too long ago. `peer` says what the server
    /// has. The sender must acknowledge exactly what the server has said, which only its client knows. The server must
    /// have said something since the newest admitted request. Until then it owes an answer, and a client that closed
    /// only its own side waits for that.
    #[inline(always)]
    pub const fn is_abandoned(&self, segment: &Segment, peer: &Peer, now: Nanos) -> bool {
        let refused_at = self.ended.0 >> SEQUENCE_SHIFT;
        let end = segment.sequence.wrapping_add(segment.payload_bytes);
        self.has_refused()
            && (segment.closes() || self.has_waited(now))
            && segment.acknowledged == peer.said
            && (self.is_alone() || peer.said != self.heard)
            && is_at_or_behind(peer.received, refused_at)
            && refused_at != end << SEQUENCE_SHIFT >> SEQUENCE_SHIFT
            && is_at_or_behind(refused_at, end)
    }

    /// Stores the position of a connection that a page has ended. The entry is separate, so two fields hold the
    /// position instead of their usual meaning.
    #[inline(always)]
    pub const fn keep_paged(&mut self, segment: &Segment) {
        self.begins_at = segment.sequence;
        self.acknowledged = segment.acknowledged;
        self.also = also::PAGED;
    }

    /// Returns the position of a connection that a page has ended.
    #[inline(always)]
    pub const fn paged(&self) -> Option<Paged> {
        if self.also & also::PAGED == 0 {
            return None;
        }
        Some(Paged { sequence: self.begins_at, acknowledged: self.acknowledged })
    }

    /// Returns whether the client takes the server's next data for the answer to the request in this segment, in clear
    /// text. The server must have all of the client's earlier data, and the client all of the server's. After an
    /// earlier request, the server must have said something, and no request may ever have been sent ahead. The code
    /// cannot tell whether the server's answer is complete. If a client sends ahead during an answer, the page lands in
    /// the middle of that answer.
    #[inline(always)]
    pub fn owes_nothing(known: Option<&Self>, segment: &Segment, peer: &Peer) -> bool {
        const DOUBT: u16 = is::AHEAD | is::HTTP2 | is::UNSEEN | is::DOUBTED;
        let is_next = segment.sequence == peer.received && segment.acknowledged == peer.said && peer.has_ended == 0;
        is_next
            && (peer.is_first != 0
                || known.is_some_and(|known| {
                    known.speaks == speaks::CLEAR
                        && known.is & DOUBT == 0
                        && known.also & also::ASKED_AHEAD == 0
                        && known.heard != peer.said
                }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::says;
    use crate::time::SECOND_NS;

    const AT: Nanos = Nanos(77 * SECOND_NS);

    #[test]
    fn a_few_segments_pass_after_a_reset_and_none_before() {
        let mut conversation = Conversation::default();
        assert!(!conversation.is_repetition());
        conversation.end_by_reset();
        assert!((0..REPETITIONS).all(|_| conversation.is_repetition()));
        assert!(!conversation.is_repetition());
    }

    #[test]
    fn a_refused_request_is_told_from_its_repetition_and_from_another() {
        let peer = Peer { received: u32::MAX - 9, ..Peer::default() };
        let at = |sequence| Segment { sequence, ..Segment::default() };
        let mut conversation = Conversation::default();
        conversation.begin_alone();
        assert!(!conversation.has_refused() && conversation.is_alone());
        for (sequence, is_known) in [(u32::MAX - 9, false), (u32::MAX - 9, true), (u32::MAX - 19, true), (5, true)] {
            assert_eq!(conversation.keep_refused(&at(sequence), &peer, Nanos(0)), is_known, "{sequence}");
        }
        assert!(conversation.has_refused() && conversation.is_alone());
        conversation.forget_refused();
        assert_eq!(conversation, Conversation::default());
    }

    #[test]
    fn a_client_gives_up_where_it_ends_what_the_server_waits_for() {
        let refused = Segment { sequence: u32::MAX - 9, payload_bytes: 30, ..Segment::default() };
        let peer = Peer { received: refused.sequence, said: 900, ..Peer::default() };
        let mut conversation = Conversation::default();
        let fin = Segment { sequence: 20, acknowledged: 900, says: says::CLOSES, ..Segment::default() };
        assert!(!conversation.is_abandoned(&fin, &peer, AT), "nothing was refused");
        assert!(!conversation.keep_refused(&refused, &peer, AT));
        let with_data = Segment { sequence: refused.sequence, payload_bytes: 30, ..fin };
        for ends in [fin, with_data, Segment { sequence: 400, ..fin }] {
            assert!(conversation.is_abandoned(&ends, &peer, AT), "{ends:?}");
        }
        for goes_on in [
            Segment { says: 0, ..fin },
            Segment { acknowledged: 899, ..fin },
            Segment { acknowledged: 901, ..fin },
            Segment { sequence: refused.sequence, ..fin },
            Segment { sequence: refused.sequence.wrapping_sub(1), ..fin },
        ] {
            assert!(!conversation.is_abandoned(&goes_on, &peer, AT), "{goes_on:?}");
        }
        assert!(!conversation.is_abandoned(&fin, &Peer { received: 20, ..peer }, AT), "the server has it");
        conversation.end_by_reset();
        assert!(!conversation.is_abandoned(&fin, &peer, AT) && conversation.is_repetition());
    }

    #[test]
    fn a_request_that_was_refused_half_a_second_ago_is_given_up_at_its_next_repetition() {
        const TENTH_NS: u64 = SECOND_NS / 10;
        let request = Segment { sequence: 100, acknowledged: 900, payload_bytes: 30, ..Segment::default() };
        let peer = Peer { received: 100, said: 900, ..Peer::default() };
        // Every phase within a unit of time.
        for begins in (0..60).map(|step| AT.0 + step * TENTH_NS / 7) {
            let mut conversation = Conversation::default();
            conversation.begin_alone();
            let at = |tenths| Nanos(begins + tenths * TENTH_NS);
            assert!(!conversation.keep_refused(&request, &peer, at(0)));
            assert!(conversation.keep_refused(&request, &peer, at(4)), "the first refusal is what counts");
            let second = Segment { sequence: 130, ..request };
            assert!(conversation.keep_refused(&second, &peer, at(4)), "it is behind the first one");
            for of in [&request, &second] {
                assert!(!conversation.is_abandoned(of, &peer, at(5)), "{begins}");
                assert!(conversation.is_abandoned(of, &peer, at(9)), "{begins}");
            }
            let delivered = Peer { received: 130, ..peer };
            assert!(!conversation.is_abandoned(&second, &delivered, at(9)), "the server has the first one");
            assert!(!conversation.keep_refused(&second, &delivered, at(9)), "so this is another");
            assert!(!conversation.is_repetition(), "its time is no number of segments");
        }
    }

    #[test]
    fn a_client_that_still_waits_for_an_answer_has_not_given_up() {
        let refused = Segment { sequence: 100, payload_bytes: 30, ..Segment::default() };
        let peer = Peer { received: 100, said: 900, ..Peer::default() };
        // The server had sent as much when the request before the refused one was admitted.
        let mut conversation = Conversation { heard: 900, ..Conversation::default() };
        assert!(!conversation.keep_refused(&refused, &peer, AT));
        let fin = Segment { sequence: 130, acknowledged: 900, says: says::CLOSES, ..Segment::default() };
        assert!(!conversation.is_abandoned(&fin, &peer, AT), "the server owes an answer");
        let answered = Segment { acknowledged: 901, ..fin };
        assert!(conversation.is_abandoned(&answered, &Peer { said: 901, ..peer }, AT));
    }

    #[test]
    fn a_connection_ended_by_a_page_is_known_by_its_sequence_numbers() {
        let mut conversation = Conversation::default();
        assert_eq!(conversation.paged(), None);
        conversation.keep_paged(&Segment { sequence: 7, acknowledged: u32::MAX, ..Segment::default() });
        assert_eq!(conversation.paged(), Some(Paged { sequence: 7, acknowledged: u32::MAX }));
    }

    #[test]
    fn a_server_owes_nothing_at_first_and_once_it_has_answered_and_all_of_that_has_come() {
        let segment = Segment { sequence: 100, acknowledged: 900, ..Segment::default() };
        let first = Peer { received: 100, said: 900, is_first: 1, ..Peer::default() };
        let later = Peer { is_first: 0, ..first };
        let answered = Conversation { heard: 800, ..Conversation::default() };
        let owes_nothing =
            |known: Option<&Conversation>, peer: &Peer| Conversation::owes_nothing(known, &segment, peer);
        assert!(owes_nothing(None, &first) && owes_nothing(Some(&answered), &later));
        assert!(!owes_nothing(None, &later), "what was asked before is not known");
        assert!(!owes_nothing(Some(&Conversation { heard: 900, ..answered }), &later), "one that was asked before");
        for is in [is::AHEAD, is::UNSEEN, is::DOUBTED, is::HTTP2] {
            assert!(!owes_nothing(Some(&Conversation { is, ..answered }), &later), "{is}");
        }
        assert!(!owes_nothing(Some(&Conversation { speaks: speaks::TLS, ..answered }), &later));
        assert!(!owes_nothing(Some(&Conversation { also: also::ASKED_AHEAD, ..answered }), &later));
        for first in [
            Peer { received: 99, ..first },
            Peer { received: 101, ..first },
            Peer { said: 901, ..first },
            Peer { has_ended: 1, ..first },
        ] {
            assert!(!owes_nothing(None, &first), "{first:?}");
        }
    }
}
