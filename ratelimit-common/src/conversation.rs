//! Detection of the client segments that begin a request. The code is pure: the remembered connection, the segment, its
//! frame and the state of the server's socket ([`Peer`]) are arguments.
//!
//! A request begins a new *turn*: new payload that is sent after the server has said something since the last request.
//! Request lines show it in clear text ([`clear`]), frame headers in HTTP/2 ([`http2`]), and record headers in TLS
//! ([`tls`]).
//!
//! The server's socket is trusted, and the client's claims are not. Payload that the server already has is a
//! retransmission. Payload outside the server's window is ignored. Without a socket, as on a host that forwards, the
//! client's own sequence numbers are used ([`turn`] without a [`Peer`]).
//!
//! Every uncounted exception is bounded: docs/COUNTING.md lists each one, and its cost when a client abuses it.

mod accounted;
mod also;
mod clear;
pub mod ended;
mod head;
mod http2;
mod likely;
mod place;
mod search;
#[cfg(test)]
mod tests;
mod tls;

pub use accounted::{ACCOUNTED_BYTES, SHORT_BYTES};
pub use likely::Likely;
use place::{FAR_BYTES, Place, passed};
pub use search::{BLOCK_BYTES, Found, Hit, Sought};
pub use tls::{Moment, Record};

use crate::packet::{Frame, Segment};

/// State that is remembered of one TCP connection: 56 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Conversation {
    /// Sequence number of the connection's first payload byte, as far as it is known.
    begins_at: u32,
    /// Sequence number of the first byte that the client has not sent yet.
    next: u32,
    /// Sequence number up to which the server had sent ([`Peer::said`]) when the newest request was counted.
    heard: u32,
    /// Sequence number at which the newest counted request began.
    counted_at: u32,
    /// Start of the bytes that were left out and may still arrive, up to `hole_end`. Both are equal if there are none.
    hole: u32,
    hole_end: u32,
    /// Bytes still to come of a TLS record, of HTTP/2's preface or of a clear-text HTTP/2 frame; or [`LOST`].
    record_left: u32,
    /// Server's sequence number ([`Peer::said`]) at a record that may end the handshake, or at a later free control
    /// frame.
    control_at: u32,
    /// Flags of [`is`].
    is: u16,
    /// TLS: length in bytes of the newest record that may be an HTTP/2 HEADERS frame; 0 before the first one of a turn.
    headers_bytes: u16,
    /// TLS and clear-text HTTP/2: first bytes of a record or frame header that continues in the next segment;
    /// `split_len` is their number. Clear-text HTTP/1: the last 4 bytes; `split_len` is 1 if they are known.
    split: [u8; 4],
    split_len: u8,
    /// Protocol of the connection: a code of [`speaks`].
    speaks: u8,
    /// TLS: bytes that encryption adds to a record.
    overhead: u8,
    /// TLS: number of application data records so far, counted up to [`tls`]'s `SETTINGS_ACK_AMONG`.
    records: u8,
    /// TLS: records of this turn that may be HTTP/2 HEADERS frames; before HTTP/2 is detected, those of one length.
    turn_records: u8,
    /// HTTP/2: number of control frames that may still be free although they follow no long answer.
    controls_left: u8,
    /// TLS 1.3: records that may end the handshake. After it: not 0 if it did not tell what encryption adds.
    ending_records: u8,
    /// Flags of [`also`].
    also: u8,
    /// Acknowledgement number of the newest segment that was judged by the socket or by the client's numbers.
    acknowledged: u32,
    /// Segments that still pass after a reset, or the position of a refused request: see [`ended::Ended`].
    ended: ended::Ended,
}

const _: () = assert!(size_of::<Conversation>() == 56);

/// Codes of the protocol that a connection speaks.
mod speaks {
    /// HTTP/1 in the clear, or any other protocol that is not TLS.
    pub(super) const CLEAR: u8 = 0;
    /// HTTP/2 in the clear.
    pub(super) const HTTP2: u8 = 1;
    /// TLS, during the first handshake messages.
    pub(super) const TLS_HELLO: u8 = 2;
    /// TLS, after the client's ChangeCipherSpec.
    pub(super) const TLS_CHANGED: u8 = 3;
    /// TLS, after the handshake.
    pub(super) const TLS: u8 = 4;
    /// Clear text that may continue as HTTP/2's preface.
    pub(super) const PREFACE: u8 = 5;
}

/// Flags of a connection: [`Conversation::is`].
mod is {
    /// The next request needs no data from the server before it: it is the first one.
    pub(super) const OPEN: u16 = 1;
    /// Clear text: a request was counted whose first line has not ended yet.
    pub(super) const AHEAD: u16 = 2;
    /// The connection speaks HTTP/2.
    pub(super) const HTTP2: u16 = 4;
    /// HTTP/2: the preface was counted in place of the request that comes after it.
    pub(super) const PREFACE_COUNTED: u16 = 8;
    /// Only the first request was counted so far, so data that the server sent since may be session tickets.
    pub(super) const FIRST: u16 = 16;
    /// TLS: the client offers HTTP/2.
    pub(super) const OFFERS_HTTP2: u16 = 32;
    /// TLS: the client has sent a record as long as an alert. One alert ends a connection.
    pub(super) const ALERTED: u16 = 64;
    /// The connection's beginning was not seen, so its protocol is a guess.
    pub(super) const UNSEEN: u16 = 128;
    /// HTTP/2: the client has sent a record as long as the one acknowledgement of the server's first settings.
    pub(super) const ACKNOWLEDGED: u16 = 256;
    /// More than the first segment came before the server had received any: the bytes that it takes are unknown.
    pub(super) const DOUBTED: u16 = 512;
    /// TLS: since the newest counted request, a record was too long for HTTP/2 headers, and so was part of a body.
    pub(super) const IN_BODY: u16 = 1024;
    /// HTTP/2: a second control frame was free right after one that followed a long answer.
    pub(super) const PAIRED: u16 = 2048;
    /// HTTP/2: the newest control frame followed an answer and may be a request. An answer to it proves that.
    pub(super) const OWED: u16 = 4096;
    /// The start of a record or clear-text HTTP/2 frame was lost once. Since then, the positions are a guess.
    pub(super) const CUT: u16 = 8192;
    /// TLS: when the split header began, the server had sent nothing since the newest request or the handshake.
    pub(super) const EARLY: u16 = 16_384;
    /// At the newest segment, the server had received payload and had not closed: its first bytes are known.
    pub(super) const TAKEN: u16 = 32_768;
}

/// State of the server's socket at the time of a segment. Sequence numbers are in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Next byte that the server expects (`rcv_nxt`).
    pub received: u32,
    /// First byte beyond the server's receive window (`rcv_wup + rcv_wnd`).
    pub window_end: u32,
    /// Sequence number of the next byte that the server's program will write (`write_seq`).
    pub said: u32,
    /// 1 if the server has received no payload yet.
    pub is_first: u8,
    /// 1 if the server has closed its side, so it sends no more answers.
    pub has_ended: u8,
    /// 1 if the server has answered a SYN and waits for the end of the handshake.
    pub is_opening: u8,
    /// Padding, always 0.
    pub reserved: u8,
}

const _: () = assert!(size_of::<Peer>() == 16);

/// Result of judging one segment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Number of requests that begin in the segment.
    pub requests: u32,
    /// True if the guard counts the segment. Such a segment begins no request, and is short, or is the one that stands
    /// for [`ACCOUNTED_BYTES`] of long segments.
    pub is_unaccounted: bool,
    /// State to remember once the requests are admitted. Retransmissions are judged by the old state until then.
    pub newest: Conversation,
}

/// Value of [`Conversation::record_left`] if the next record's position is unknown; each segment may then begin one.
const LOST: u32 = u32::MAX;

/// Length of `HTTP/1.1 100 Continue` and an empty line, which asks for a body. Every final answer is longer.
const CONTINUE_BYTES: u32 = 25;

/// Part of a frame's payload that is new to the connection.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Fresh {
    /// Offset of the first new byte in the frame.
    pub at: u32,
    /// Offset in the frame behind the last new byte.
    pub end: u32,
    /// Sequence number of the byte at `at`.
    sequence: u32,
    /// Sequence number up to which the server has sent: by its socket, or by the client's acknowledgement.
    said: u32,
}

impl Fresh {
    #[inline(always)]
    const fn len(self) -> u32 {
        self.end - self.at
    }

    /// Skips `bytes` bytes at the start, which are not new or were read already.
    #[inline(always)]
    const fn skip(&mut self, bytes: u32) {
        self.at += bytes;
        self.sequence = self.sequence.wrapping_add(bytes);
    }

    #[inline(always)]
    const fn moment(self) -> Moment {
        Moment { sequence: self.sequence, said: self.said }
    }
}

/// Codes that say whether a segment is out of order.
mod late {
    pub(super) const NO: u8 = 0;
    pub(super) const IN_HOLE: u8 = 1;
    /// Retransmission of bytes that were seen already but that the server does not have.
    pub(super) const AGAIN: u8 = 2;
}

/// Segment that was placed in its connection and may contain the start of a request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Entered {
    fresh: Fresh,
    /// State of the connection before a late segment, restored after it: the fields of the same names.
    record_left: u32,
    split: [u8; 4],
    /// The flags of [`is`] that concern where records begin, from before a late segment.
    is: u16,
    split_len: u8,
    /// A code of [`late`].
    is_late: u8,
    /// 1 if the protocol of the connection is a guess.
    is_doubted: u32,
}

/// Operations on a frame that a conversation needs, besides reading bytes. Under a verifier that follows every path,
/// each one except [`Walk::repeat`] is a separate function.
pub trait Walk: Frame + Sized {
    /// Returns the occurrences of `sought` in the payload from `at` to `end`.
    #[inline(always)]
    fn found(&self, at: u32, end: u32, sought: Sought) -> Found {
        sought.found(self, at, end)
    }

    /// Runs steps until one was the last, or `most` steps ran, and returns the final state. A verifier follows one
    /// step.
    #[inline(always)]
    fn repeat<S: Step>(&self, most: u32, mut steps: S) -> S {
        for _ in 0..most {
            if !steps.step(self) {
                break;
            }
        }
        steps
    }

    /// Returns the likely places of a block, see [`Sought::likely`].
    #[inline(always)]
    fn likely(&self, sought: Sought, start: u32, block: u32, end: u32) -> Likely {
        sought.likely(self, start, block, end)
    }

    /// Returns what the byte before `next` is part of, see [`Sought::at`].
    #[inline(always)]
    fn what_is_at(&self, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
        sought.at(self, start, next, end)
    }

    /// Returns the number of requests that begin in this record: 0, 1, or several for HTTP/2.
    #[inline(always)]
    fn record(&self, conversation: &mut Conversation, record: Record, moment: Moment) -> u32 {
        conversation.record(record, moment)
    }

    /// Returns the number of requests, 0 or 1, that begin in a segment whose record boundaries are unknown.
    #[inline(always)]
    fn lost(&self, conversation: &mut Conversation, moment: Moment) -> u32 {
        conversation.lost(moment)
    }

    /// Returns the number of bytes in this payload that belong to HTTP/2's preface.
    #[inline(always)]
    fn preface(&self, conversation: &mut Conversation, fresh: Fresh) -> u32 {
        conversation.preface(self, fresh.at, fresh.end)
    }

    /// Calls [`Conversation::clear`].
    #[inline(always)]
    fn clear(&self, conversation: &mut Conversation, entered: &mut Entered) -> u32 {
        conversation.clear(self, entered)
    }

    /// Calls [`Conversation::http2`].
    #[inline(always)]
    fn http2(&self, conversation: &mut Conversation, entered: &Entered) -> u32 {
        conversation.http2(self, entered)
    }

    /// Calls [`Conversation::tls`].
    #[inline(always)]
    fn tls(&self, conversation: &mut Conversation, entered: &Entered) -> u32 {
        conversation.tls(self, entered)
    }
}

impl Walk for &[u8] {}

/// Loop body for [`Walk::repeat`].
pub trait Step {
    /// Runs one step. Returns whether another one may follow.
    fn step<F: Walk>(&mut self, frame: &F) -> bool;
}

/// Judges a segment with payload, given the remembered connection state `known`. Uses the server's socket state, or the
/// client's own numbers if there is no [`Peer`].
pub fn turn<F: Walk>(frame: &F, segment: &Segment, known: Option<Conversation>, peer: Option<Peer>) -> Turn {
    let mut newest = known.unwrap_or_default();
    if newest.goes_on(frame, segment) {
        return Turn { requests: 0, is_unaccounted: false, newest };
    }
    let requests = newest.turn(frame, segment, known.is_some(), peer);
    let is_unaccounted =
        requests == 0 && newest.is_unaccounted(segment, known.is_none_or(|known| known.next != newest.next));
    Turn { requests, is_unaccounted, newest }
}

/// Returns the number of requests in the payload of a SYN, since a server with TCP Fast Open answers them. Returns None
/// if the payload begins HTTP/2, as the bytes behind the SYN are unknown. A client then sends the payload again without
/// the SYN.
#[inline(always)]
pub fn with_syn<F: Walk>(frame: &F, at: u32, end: u32) -> Option<u32> {
    if may_be_http2(frame, at, end) {
        return None;
    }
    let versions = frame.found(at, end, Sought::Version).count();
    Some(if versions == 0 { 1 } else { versions })
}

/// Returns whether a connection that begins with this payload may speak HTTP/2 in the clear.
#[inline(always)]
pub fn may_be_http2<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    http2::is_preface(frame, at, end, 0)
}

impl Conversation {
    /// Updates the connection by a segment with payload, and returns the number of requests that begin in it. If
    /// `is_known` is false, the old state is ignored.
    #[inline(always)]
    pub fn turn<F: Walk>(&mut self, frame: &F, segment: &Segment, is_known: bool, peer: Option<Peer>) -> u32 {
        match self.enter(frame, segment, is_known, peer) {
            Some(mut entered) => self.speak(frame, &mut entered),
            None => 0,
        }
    }

    /// Places the segment: the first half of [`Conversation::turn`]. Returns None if no request can begin in it.
    #[inline(always)]
    pub fn enter<F: Walk>(
        &mut self,
        frame: &F,
        segment: &Segment,
        is_known: bool,
        peer: Option<Peer>,
    ) -> Option<Entered> {
        let fragments = self.also & (also::IN_FRAGMENTS | also::UNREAD);
        let is_known = is_known && fragments & also::UNREAD == 0;
        let mut fresh = Fresh {
            at: segment.payload_at,
            end: segment.payload_at + segment.payload_bytes,
            sequence: segment.sequence,
            said: match peer {
                Some(peer) => peer.said,
                None => segment.acknowledged,
            },
        };
        let place = match peer {
            Some(peer) => self.place(segment, is_known, peer),
            None => self.place_by_client(segment, is_known),
        };
        let end = segment.sequence.wrapping_add(segment.payload_bytes);
        // The server may yet take other bytes than those seen so far, so the protocol that they show is a guess.
        let is_doubted = is_known && matches!(peer, Some(peer) if peer.is_first != 0);
        let mut is_late = late::NO;
        let (mut begins, mut was_http2) = (None, false);
        match place {
            Place::Repeated | Place::Outside => return None,
            Place::Begins(before) => {
                fresh.skip(before);
                let is_again = is_known && peer.is_some() && self.begins_at == fresh.sequence;
                was_http2 = is_again && matches!(self.speaks, speaks::HTTP2 | speaks::PREFACE);
                begins = Some(is::OPEN | is::FIRST | if is_again { is::DOUBTED } else { 0 });
            }
            Place::Middle => begins = Some(is::OPEN | is::UNSEEN),
            // The segment at the connection's beginning is counted when it arrives. Here, only certain requests count.
            Place::MiddleOfFirst => begins = Some(is::UNSEEN),
            Place::Next(received) => {
                fresh.skip(received);
                self.next = end;
                // The server may receive other bytes than those that were seen before this segment.
                if self.speaks == speaks::CLEAR && peer.is_some_and(|peer| peer.received != fresh.sequence) {
                    self.split_len = 0;
                }
            }
            Place::Ahead { left_out, received } => {
                fresh.skip(received);
                self.leave_out(left_out, fresh.sequence, end, peer.is_some());
            }
            Place::InHole => {
                // A segment that overlaps the hole's end is also the newest one.
                is_late = passed(self.next, end) as u8 * late::IN_HOLE;
                self.fill(segment.sequence, end);
            }
            Place::Again(received) => {
                fresh.skip(received);
                is_late = late::AGAIN;
                self.doubt(end);
            }
        }
        let may_be_record = begins.is_some() || self.is_unseen_clear();
        let record = if may_be_record { tls::record_at(frame, fresh.at, fresh.end) } else { None };
        if let Some(is) = begins {
            self.begin(frame, fresh, record, end, is);
        }
        if was_http2 {
            self.speaks = speaks::HTTP2;
            self.lose();
        }
        if fragments != 0 {
            self.also &= !also::IN_FRAGMENTS;
            if peer.is_some() {
                self.also |= also::IN_FRAGMENTS;
                self.is |= is::DOUBTED;
            }
        }
        self.acknowledged = segment.acknowledged;
        self.is &= !is::TAKEN;
        if let Some(peer) = peer
            && peer.is_first == 0
            && peer.has_ended == 0
        {
            self.is |= is::TAKEN;
            if peer.said != self.heard {
                self.also |= also::ANSWERED;
            }
        }
        if peer.is_some_and(|peer| peer.has_ended != 0) {
            return None;
        }
        if self.is_unseen_clear() {
            self.guess(frame, fresh, record);
        }
        Some(Entered {
            fresh,
            record_left: self.record_left,
            split: self.split,
            is: self.is & (is::CUT | is::EARLY),
            split_len: self.split_len,
            is_late,
            is_doubted: (is_doubted || self.has(is::DOUBTED | is::UNSEEN)) as u32,
        })
    }

    /// Judges the payload by the protocol: the second half of [`Conversation::turn`]. Returns the number of requests
    /// that begin in the payload.
    #[inline(always)]
    pub fn speak<F: Walk>(&mut self, frame: &F, entered: &mut Entered) -> u32 {
        let is_late = entered.is_late != late::NO;
        if is_late {
            self.lose();
        } else if self.speaks == speaks::PREFACE {
            entered.fresh.skip(frame.preface(self, entered.fresh));
        }
        let (mut requests, mut is_other) = (0, false);
        if self.speaks == speaks::CLEAR {
            requests = frame.clear(self, entered);
            is_other = self.speaks != speaks::CLEAR;
        }
        requests += match self.speaks {
            speaks::CLEAR => 0,
            speaks::HTTP2 | speaks::PREFACE => frame.http2(self, entered),
            _ => self.tls_or_clear(frame, entered),
        };
        if is_late && is_other {
            self.lose();
        } else if is_late {
            // The late segment was judged by itself. Later segments continue from the saved state.
            (self.record_left, self.split, self.split_len) = (entered.record_left, entered.split, entered.split_len);
            self.is = self.is & !(is::CUT | is::EARLY) | entered.is;
        }
        requests
    }

    /// Returns whether the protocol is unknown because the connection's beginning was not seen.
    #[inline(always)]
    const fn is_unseen_clear(&self) -> bool {
        self.speaks == speaks::CLEAR && self.has(is::UNSEEN)
    }

    /// Sets the protocol of a connection whose beginning was not seen, by a TLS record or an HTTP/2 frame.
    #[inline(always)]
    fn guess<F: Frame>(&mut self, frame: &F, fresh: Fresh, record: Option<Record>) {
        if record.is_some() {
            self.speak_tls(self.is);
            self.record_left = 0;
        } else if http2::is_frame(frame, fresh.at, fresh.end) {
            self.speaks = speaks::HTTP2;
            self.lose();
        }
    }

    /// Resets the state to a connection that begins with this segment or TLS record, before that is judged.
    #[inline(always)]
    fn begin<F: Frame>(&mut self, frame: &F, fresh: Fresh, record: Option<Record>, end: u32, is: u16) {
        *self = Self {
            begins_at: fresh.sequence,
            next: end,
            heard: fresh.said,
            counted_at: fresh.sequence,
            hole: end,
            hole_end: end,
            control_at: fresh.said,
            is,
            // No byte comes before the first one. Unseen bytes before it count as unknown.
            split_len: (is & is::UNSEEN == 0) as u8,
            ..Self::default()
        };
        match record {
            Some(record) if record.is_handshake() => {
                self.speaks = speaks::TLS_HELLO;
                self.split_len = 0;
            }
            Some(_) => self.speak_tls(is),
            None if is & is::UNSEEN == 0 && http2::is_preface(frame, fresh.at, fresh.end, 0) => {
                self.speaks = speaks::PREFACE;
                self.record_left = http2::PREFACE_BYTES;
                self.split_len = 0;
            }
            None => {}
        }
    }

    /// Records a first fragment. The server may have received other bytes than those seen up to the last fragment.
    #[inline(always)]
    pub const fn come_in_fragments(&mut self, is_known: bool) {
        self.also |= also::IN_FRAGMENTS | if is_known { 0 } else { also::UNREAD };
    }

    /// Returns the sequence number of the first byte that the client has not sent yet.
    #[inline(always)]
    pub const fn next(&self) -> u32 {
        self.next
    }

    #[inline(always)]
    const fn lose(&mut self) {
        self.record_left = LOST;
        self.split_len = 0;
    }

    /// Records that a turn began and was counted.
    #[inline(always)]
    const fn counted(&mut self, moment: Moment) {
        self.is &= !(is::OPEN | is::FIRST);
        self.turned(moment);
    }

    /// Records that a turn began, without counting a request.
    #[inline(always)]
    const fn turned(&mut self, moment: Moment) {
        self.is &= !is::IN_BODY;
        self.heard = moment.said;
        self.counted_at = moment.sequence;
    }

    /// Returns the number of bytes that the server has sent since the newest request, modulo 2^32. Returns 0 if `said`
    /// is slightly older than that request, as for a late segment.
    #[inline(always)]
    const fn heard_since(&self, said: u32) -> u32 {
        let since = said.wrapping_sub(self.heard);
        if since < u32::MAX - FAR_BYTES { since } else { 0 }
    }

    #[inline(always)]
    const fn has(&self, what: u16) -> bool {
        self.is & what != 0
    }

    /// Returns whether the connection may not be inside a record: that is a guess, or fragments came.
    #[inline(always)]
    const fn may_be_in_none(&self) -> bool {
        self.is_guessed() || self.also & also::IN_FRAGMENTS != 0
    }

    /// Returns whether the positions of its records or frames are a guess.
    #[inline(always)]
    const fn is_guessed(&self) -> bool {
        self.has(is::UNSEEN | is::CUT)
    }
}
