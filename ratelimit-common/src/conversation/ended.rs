//! What is remembered of a connection that was ended by a reset, or by a page.

use super::{Conversation, Peer, also, is, speaks};
use crate::packet::Segment;
use crate::refusal::REPETITIONS;

/// Where a connection stood that a page has ended, by its server's count: the server knows nothing of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paged {
    /// The next byte that it expects.
    pub sequence: u32,
    /// The next byte that it sends.
    pub acknowledged: u32,
}

impl Conversation {
    /// Its server was told that its client has ended it: the next few segments without a socket are for the kernel to
    /// answer.
    #[inline(always)]
    pub const fn end_by_reset(&mut self) {
        self.repetitions = REPETITIONS;
    }

    /// Whether a segment without a socket is one of those; each is one less.
    #[inline(always)]
    pub const fn is_repetition(&mut self) -> bool {
        let left = self.repetitions;
        self.repetitions = left.saturating_sub(1);
        left != 0
    }

    /// What is remembered of a connection that a page has ended: in an element of its own, so two fields are used for
    /// where it stood, and not for what they say elsewhere.
    #[inline(always)]
    pub const fn keep_paged(&mut self, segment: &Segment) {
        self.begins_at = segment.sequence;
        self.acknowledged = segment.acknowledged;
        self.also = also::PAGED;
    }

    /// Where that stood.
    #[inline(always)]
    pub const fn paged(&self) -> Option<Paged> {
        if self.also & also::PAGED == 0 {
            return None;
        }
        Some(Paged { sequence: self.begins_at, acknowledged: self.acknowledged })
    }

    /// Whether the server owes nothing before the answer to what begins in this segment, in the clear, by what its
    /// socket says: so the client takes for that answer what comes next. It has all of the client's before, and the
    /// client all of its. Of a connection that was asked something before, it has said something since, and nothing was
    /// ever asked ahead. Whether what it has said was all of its answer cannot be told: who asks ahead now, while one is
    /// under way, has the page in the midst of it.
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

    #[test]
    fn a_few_segments_pass_after_a_reset_and_none_before() {
        let mut conversation = Conversation::default();
        assert!(!conversation.is_repetition());
        conversation.end_by_reset();
        assert!((0..REPETITIONS).all(|_| conversation.is_repetition()));
        assert!(!conversation.is_repetition());
    }

    #[test]
    fn what_a_page_has_ended_is_known_by_where_it_stood() {
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
