//! Which of a client's segments begin a request. Pure, and of the inbound direction alone: what is remembered of the
//! connection is an argument, as are the segment and the frame that it lies in.
//!
//! A request is what begins a new *turn*: new payload, sent by a client that has heard something of the server since its
//! last request. What the payload is decides the rest: clear HTTP/1 ([`http1`]), TLS ([`tls`]), or neither.
//!
//! Everything here is the sender's choice but for what the server makes of it, so nothing is believed for long: a byte
//! sent far ahead makes what comes after it no repetition, and no end of what is remembered makes a request free.

mod http1;
mod search;
#[cfg(test)]
mod tests;
mod tls;

pub use search::Sought;
pub use tls::Record;

use crate::packet::{Frame, Segment};

/// What is remembered of a TCP connection: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Conversation {
    /// The first byte that the client has not sent yet.
    next: u32,
    /// What the client had heard of the server when its newest request was counted.
    heard: u32,
    /// Bytes from here to `hole_end` were left out, and may still come; where both are equal, none.
    hole: u32,
    hole_end: u32,
    /// Of a TLS record, the bytes that are still to come; or [`tls::LOST`].
    record_left: u32,
    /// TLS: the first bytes of a record's header whose others are in the next segment, and how many.
    split: [u8; 4],
    split_len: u8,
    /// What it speaks: one of [`speaks`].
    speaks: u8,
    /// Some of [`is`].
    is: u8,
    /// TLS: what encryption adds to a record, in bytes.
    overhead: u8,
    /// TLS: records of application data so far, as far as it matters.
    records: u8,
    /// HTTP/2: records of this turn so far, as far as it matters.
    turn_records: u8,
    /// HTTP/2: length of a HEADERS frame that was counted, and is like the others; 0 before the first.
    headers_bytes: u16,
}

const _: () = assert!(size_of::<Conversation>() == 32);

/// What a connection speaks.
mod speaks {
    // 0 is something else, or what was not understood: turns alone tell.
    /// HTTP/1 in the clear.
    pub(super) const HTTP1: u8 = 1;
    /// TLS, at its first messages.
    pub(super) const TLS_HELLO: u8 = 2;
    /// TLS, behind the client's ChangeCipherSpec.
    pub(super) const TLS_CHANGED: u8 = 3;
    /// TLS, with its handshake behind it.
    pub(super) const TLS: u8 = 4;
}

/// What else is known of a connection.
mod is {
    /// The next request needs no word of the server before it: the first one.
    pub(super) const OPEN: u8 = 1;
    /// Requests were seen that did not wait for an answer.
    pub(super) const PIPELINED: u8 = 2;
    /// HTTP/2.
    pub(super) const HTTP2: u8 = 4;
    /// HTTP/2 whose preface was counted in the place of a request that comes after it.
    pub(super) const PREFACE_COUNTED: u8 = 8;
    /// No request but the first was counted: what the server has said since may be session tickets.
    pub(super) const FIRST: u8 = 16;
    /// TLS whose client offers HTTP/2.
    pub(super) const OFFERS_HTTP2: u8 = 32;
    /// TLS that has sent what is as long as an alert: one ends a connection.
    pub(super) const ALERTED: u8 = 64;
    /// A connection of which nothing was seen but the middle of something. Its beginning may have been refused: when that comes
    /// again, it is one.
    pub(super) const UNSEEN: u8 = 128;
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

/// Farther from what is expected than any window that is in use: another connection with the same ports, or nonsense.
const FAR_BYTES: u32 = 1 << 23;

/// What a first segment may have at most, where it is nothing that is known here, to be taken for a request and not for a
/// part of something larger that began before anything was remembered.
const FIRST_BYTES_MAX: u32 = 1024;

/// The answer that asks for the body: `HTTP/1.1 100 Continue` and an empty line. No answer to a request is as short.
const CONTINUE_BYTES: u32 = 25;

/// The part of a frame that is new to a conversation.
#[derive(Clone, Copy)]
struct Fresh {
    at: u32,
    end: u32,
    /// What its sender has heard of the server.
    acknowledged: u32,
}

impl Fresh {
    #[inline(always)]
    const fn len(self) -> u32 {
        self.end - self.at
    }
}

/// Where a segment belongs among what was sent before.
enum Place {
    /// Nothing was remembered. Of what cannot be told it is a request up to so many bytes.
    Unknown(u32),
    /// Sent before.
    Repeated,
    /// It goes on where the last one ended, or overlaps it by so many bytes.
    Next(u32),
    /// It leaves out so many bytes.
    Ahead(u32),
    /// Among what was left out.
    InHole,
    /// Nowhere near.
    Far,
}

/// What a conversation asks of the frame besides its bytes. Where a verifier follows every path, each is a function of its
/// own there.
pub trait Walk: Frame + Sized {
    /// How many of what is sought are in the payload from `at` to `end`.
    #[inline(always)]
    fn found(&self, at: u32, end: u32, sought: Sought) -> u32 {
        sought.found(self, at, end)
    }

    /// Whether its first byte, the one before `next`, is part of what is sought, see [`Sought::is_at`].
    #[inline(always)]
    fn is_at(&self, sought: Sought, start: u32, next: u32, end: u32) -> bool {
        sought.is_at(self, start, next, end)
    }

    /// How many requests begin in this record: 0, 1, or several of HTTP/2.
    #[inline(always)]
    fn record(&self, conversation: &mut Conversation, record: Record, acknowledged: u32) -> u32 {
        conversation.record(record, acknowledged)
    }
}

impl Walk for &[u8] {}

/// Judges a segment with payload, of the conversation last remembered as `known`.
pub fn turn<F: Walk>(frame: &F, segment: &Segment, known: Option<Conversation>) -> Turn {
    let mut newest = known.unwrap_or_default();
    if known.is_some() && newest.continues(frame, segment) {
        return Turn { requests: 0, newest };
    }
    let requests = newest.turn(frame, segment, known.is_some());
    Turn { requests, newest }
}

/// Whether `count` is at or behind `other`, on the circle that sequence numbers are.
#[inline(always)]
const fn passed(count: u32, other: u32) -> bool {
    count.wrapping_sub(other) < 1 << 31
}

impl Conversation {
    /// Goes on by a segment with payload in which nothing can begin: what was sent before, the next part of a record, or of what
    /// is neither a request nor an answer to anything. Says false, and does nothing, where that is not certain at first sight.
    #[inline(always)]
    pub fn continues<F: Frame>(&mut self, frame: &F, segment: &Segment) -> bool {
        let bytes = segment.payload_bytes;
        let behind = self.next.wrapping_sub(segment.sequence);
        if self.has(is::UNSEEN) {
            return false;
        }
        if behind != 0 {
            return behind >= bytes && behind <= FAR_BYTES && self.hole == self.hole_end;
        }
        if self.speaks >= speaks::TLS {
            if !self.stays_in_record(bytes) {
                return false;
            }
        } else {
            let (at, end) = (segment.payload_at, segment.payload_at + bytes);
            let may_begin = self.speaks != speaks::HTTP1
                || self.has(is::PIPELINED)
                || self.heard != segment.acknowledged
                || http1::begins(frame, at, end);
            if may_begin {
                return false;
            }
        }
        self.next = segment.sequence.wrapping_add(bytes);
        true
    }

    /// Goes on by a segment with payload, from what is remembered if that `is_known`, and says how many requests begin in it.
    #[inline(always)]
    pub fn turn<F: Walk>(&mut self, frame: &F, segment: &Segment, is_known: bool) -> u32 {
        let mut fresh = Fresh {
            at: segment.payload_at,
            end: segment.payload_at + segment.payload_bytes,
            acknowledged: segment.acknowledged,
        };
        let end = segment.sequence.wrapping_add(segment.payload_bytes);
        let mut is_late = false;
        let place = match is_known {
            false => Place::Unknown(FIRST_BYTES_MAX),
            true if !self.has(is::UNSEEN) => self.place(segment.sequence, segment.payload_bytes),
            // What the server has answered began with it, whatever it was.
            true if self.heard_since(fresh.acknowledged) > CONTINUE_BYTES => Place::Far,
            true => Place::Unknown(0),
        };
        match place {
            Place::Unknown(bytes_max) => *self = Self::begun(frame, fresh, end, Some(bytes_max)),
            Place::Far => *self = Self::begun(frame, fresh, end, None),
            Place::Repeated => return 0,
            Place::Next(repeated) => {
                fresh.at += repeated;
                self.next = end;
            }
            Place::Ahead(left_out) => self.leave_out(left_out, segment.sequence, end),
            Place::InHole => {
                // What overlaps its end is the newest as well.
                is_late = passed(self.next, end);
                self.fill(segment.sequence, end);
            }
        }
        // Data in a SYN, of which the client could not say what it has heard.
        if self.heard == 0 {
            self.heard = fresh.acknowledged;
        }
        match self.speaks {
            speaks::HTTP1 => self.http1(frame, fresh),
            speaks::TLS_HELLO | speaks::TLS_CHANGED | speaks::TLS => self.tls(frame, fresh, is_late),
            _ => self.anything(fresh),
        }
    }

    /// The conversation that begins with this segment, before it is judged. Where that might be the middle of something, so
    /// that nothing is counted which began before: then there is a `bytes_max` of what may be a request all the same.
    #[inline(always)]
    fn begun<F: Frame>(frame: &F, fresh: Fresh, end: u32, bytes_max: Option<u32>) -> Self {
        let newest = Self { next: end, heard: fresh.acknowledged, hole: end, hole_end: end, ..Self::default() };
        let open = is::OPEN | is::FIRST;
        match tls::record_at(frame, fresh.at, fresh.end) {
            Some(record) if record.is_handshake() => Self { speaks: speaks::TLS_HELLO, is: open, ..newest },
            Some(_) => newest.in_tls(if bytes_max.is_none() { open } else { 0 }),
            None if http1::may_begin(frame, fresh.at, fresh.end) => Self { speaks: speaks::HTTP1, is: open, ..newest },
            None if bytes_max.is_none_or(|bytes_max| fresh.len() <= bytes_max) => Self { is: open, ..newest },
            None => Self { is: is::UNSEEN, ..newest },
        }
    }

    #[inline(always)]
    fn place(&self, sequence: u32, len: u32) -> Place {
        let ahead = sequence.wrapping_sub(self.next);
        let behind = self.next.wrapping_sub(sequence);
        if ahead > FAR_BYTES && behind > FAR_BYTES {
            Place::Far
        } else if ahead != 0 && ahead <= FAR_BYTES {
            Place::Ahead(ahead)
        } else if self.hole != self.hole_end && passed(sequence, self.hole) && !passed(sequence, self.hole_end) {
            Place::InHole
        } else if behind < len {
            Place::Next(behind)
        } else {
            Place::Repeated
        }
    }

    /// A segment comes that leaves out so many bytes.
    #[inline(always)]
    fn leave_out(&mut self, bytes: u32, sequence: u32, end: u32) {
        if self.hole == self.hole_end {
            self.hole = self.next;
        }
        self.hole_end = sequence;
        self.next = end;
        self.record_left = tls::without(self.record_left, bytes);
        self.split_len = 0;
        self.leave_out_finished();
    }

    /// A segment comes that was left out.
    #[inline(always)]
    const fn fill(&mut self, sequence: u32, end: u32) {
        if sequence == self.hole {
            self.hole = if passed(end, self.hole_end) { self.hole_end } else { end };
        }
        if !passed(self.next, end) {
            self.next = end;
            self.record_left = tls::LOST;
            self.split_len = 0;
        }
    }

    #[inline(always)]
    fn anything(&mut self, fresh: Fresh) -> u32 {
        let is_request = self.has(is::OPEN) || self.heard_since(fresh.acknowledged) > CONTINUE_BYTES;
        if is_request {
            self.counted(fresh.acknowledged);
        }
        is_request as u32
    }

    /// A turn began, by a client that had heard so much.
    #[inline(always)]
    const fn counted(&mut self, acknowledged: u32) {
        self.is &= !(is::OPEN | is::FIRST);
        self.heard = acknowledged;
    }

    /// How many bytes the client has heard since its newest request, as far as 32 bits tell; none where it says that it has heard
    /// somewhat less, as what comes late does.
    #[inline(always)]
    const fn heard_since(&self, acknowledged: u32) -> u32 {
        let since = acknowledged.wrapping_sub(self.heard);
        if since < u32::MAX - FAR_BYTES { since } else { 0 }
    }

    #[inline(always)]
    const fn has(&self, what: u8) -> bool {
        self.is & what != 0
    }
}
