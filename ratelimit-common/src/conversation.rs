//! Which of a client's segments begin a request. Pure, and of the inbound direction alone: what the connection has
//! said so far is an argument, as are the segment and the frame that it lies in.

use crate::packet::{Frame, Segment};

/// What is remembered of a TCP connection: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Conversation {
    /// The byte that the client has not sent yet.
    next: u32,
    /// What the client had of the server's bytes when its newest request was counted.
    heard: u32,
}

/// What a segment is to its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Requests that begin in it.
    pub requests: u32,
    /// What to remember once they are admitted. While they are not, the connection stays as it is known, so that each
    /// retransmission is judged again.
    pub newest: Conversation,
}

/// Judges a segment that carries payload, of the conversation last remembered as `known`.
#[inline(always)]
pub fn turn<F: Frame>(_frame: &F, segment: &Segment, known: Option<Conversation>) -> Turn {
    let next = segment.sequence.wrapping_add(segment.payload_bytes);
    let requests = match known {
        None => 1,
        Some(known) => u32::from(next != known.next && segment.acknowledged != known.heard),
    };
    Turn { requests, newest: Conversation { next, heard: segment.acknowledged } }
}
