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
mod tls;

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
    reserved: [u8; 3],
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

/// Judges a segment with payload, of the conversation last remembered as `known`.
#[inline(always)]
pub fn turn<F: Frame>(frame: &F, segment: &Segment, known: Option<Conversation>) -> Turn {
    let fresh = Fresh {
        at: segment.payload_at,
        end: segment.payload_at + segment.payload_bytes,
        acknowledged: segment.acknowledged,
    };
    let end = segment.sequence.wrapping_add(segment.payload_bytes);
    let Some(mut newest) = known else {
        return begun(frame, fresh, end, false);
    };
    // Data in a SYN, of which the client could not say what it has heard.
    if newest.heard == 0 {
        newest.heard = fresh.acknowledged;
    }
    match newest.place(segment.sequence, segment.payload_bytes) {
        Place::Far => begun(frame, fresh, end, true),
        Place::Repeated => Turn { requests: 0, newest },
        Place::Next(repeated) => {
            newest.next = end;
            newest.goes_on(frame, Fresh { at: fresh.at + repeated, ..fresh }, 0)
        }
        Place::Ahead(left_out) => {
            if newest.hole == newest.hole_end {
                newest.hole = newest.next;
            }
            newest.hole_end = segment.sequence;
            newest.next = end;
            newest.goes_on(frame, fresh, left_out)
        }
        Place::InHole => {
            if segment.sequence == newest.hole {
                newest.hole = if passed(end, newest.hole_end) { newest.hole_end } else { end };
            }
            newest.comes_late(frame, fresh)
        }
    }
}

/// The first segment of a connection, or of what is remembered of it: then (`is_known` false) nothing is counted that might
/// be the middle of something.
#[inline(always)]
fn begun<F: Frame>(frame: &F, fresh: Fresh, end: u32, is_known: bool) -> Turn {
    let mut newest = Conversation {
        next: end,
        heard: fresh.acknowledged,
        hole: end,
        hole_end: end,
        is: is::OPEN | is::FIRST,
        ..Conversation::default()
    };
    let requests = match tls::record_at(frame, fresh.at, fresh.end) {
        Some(record) if record.is_handshake() => {
            newest.speaks = speaks::TLS_HELLO;
            return newest.goes_on(frame, fresh, 0);
        }
        Some(_) => {
            newest.enter_tls();
            if is_known {
                return newest.goes_on(frame, fresh, 0);
            }
            // Its beginning was not seen. It speaks in turns from here on.
            newest.is = 0;
            let _not_counted = newest.records(frame, fresh);
            0
        }
        None if http1::begins(frame, fresh.at, fresh.end) => {
            newest.speaks = speaks::HTTP1;
            return newest.goes_on(frame, fresh, 0);
        }
        None => (is_known || fresh.len() <= FIRST_BYTES_MAX) as u32,
    };
    newest.is &= !is::OPEN;
    Turn { requests, newest }
}

/// Whether `count` is at or behind `other`, on the circle that sequence numbers are.
#[inline(always)]
const fn passed(count: u32, other: u32) -> bool {
    count.wrapping_sub(other) < 1 << 31
}

impl Conversation {
    #[inline(always)]
    fn place(&self, sequence: u32, len: u32) -> Place {
        let ahead = sequence.wrapping_sub(self.next);
        let behind = self.next.wrapping_sub(sequence);
        if ahead > FAR_BYTES && behind > FAR_BYTES {
            Place::Far
        } else if ahead != 0 && ahead <= FAR_BYTES {
            Place::Ahead(ahead)
        } else if behind < len {
            Place::Next(behind)
        } else if self.hole != self.hole_end && passed(sequence, self.hole) && !passed(sequence, self.hole_end) {
            Place::InHole
        } else {
            Place::Repeated
        }
    }

    /// New payload, behind all that came before but for `left_out` bytes.
    #[inline(always)]
    fn goes_on<F: Frame>(mut self, frame: &F, fresh: Fresh, left_out: u32) -> Turn {
        let requests = match self.speaks {
            speaks::HTTP1 => self.http1(frame, fresh),
            speaks::TLS_HELLO | speaks::TLS_CHANGED | speaks::TLS => {
                self.record_left = tls::without(self.record_left, left_out);
                if left_out != 0 {
                    self.split_len = 0;
                }
                if self.speaks == speaks::TLS_HELLO && tls::offers_http2(frame, fresh) {
                    self.is |= is::OFFERS_HTTP2;
                }
                self.records(frame, fresh)
            }
            _ => self.anything(fresh),
        };
        Turn { requests, newest: self }
    }

    /// Payload that was left out before.
    #[inline(always)]
    fn comes_late<F: Frame>(mut self, frame: &F, fresh: Fresh) -> Turn {
        let requests = match self.speaks {
            speaks::HTTP1 => self.http1(frame, fresh),
            speaks::TLS_HELLO | speaks::TLS_CHANGED | speaks::TLS => self.late_record(frame, fresh),
            _ => self.anything(fresh),
        };
        Turn { requests, newest: self }
    }

    #[inline(always)]
    fn anything(&mut self, fresh: Fresh) -> u32 {
        if self.heard_since(fresh) == 0 {
            return 0;
        }
        self.heard = fresh.acknowledged;
        1
    }

    /// How many bytes the client has heard since its newest request; none where it says that it has heard less.
    #[inline(always)]
    const fn heard_since(&self, fresh: Fresh) -> u32 {
        let since = fresh.acknowledged.wrapping_sub(self.heard);
        if since < 1 << 31 { since } else { 0 }
    }

    #[inline(always)]
    const fn has(&self, what: u8) -> bool {
        self.is & what != 0
    }
}
