//! What is remembered of a connection that was ended by a reset.

use super::Conversation;
use crate::refusal::REPETITIONS;

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
}
