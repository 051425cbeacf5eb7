//! Which of a client's segments begin a request. Pure: what is remembered of the connection is an argument, as are the
//! segment, the frame that it lies in, and what the server's own TCP says of the connection ([`Peer`]).
//!
//! A request is what begins a new *turn*: new payload, sent after the server has said something since the last
//! request. In the clear each request's own first line tells ([`clear`]), or a frame's header ([`http2`]); under TLS records' headers ([`tls`]).
//!
//! What the server's TCP has received and sent is the truth, and what the client claims is not: payload that the
//! server has is a repetition, payload outside its window is nothing, and what the server has said is what it has
//! sent. Without a socket, as on a host that forwards, the client's own numbers do ([`turn`] without a [`Peer`]).
//!
//! Nothing is free without a bound: docs/COUNTING.md has each exception, and what it costs when a client abuses it.

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

/// What is remembered of a TCP connection: 56 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Conversation {
    /// The number of the connection's first byte, as far as it is known.
    begins_at: u32,
    /// The first byte that the client has not sent yet.
    next: u32,
    /// What the server had said when the newest request was counted.
    heard: u32,
    /// Where the newest request that was counted began.
    counted_at: u32,
    /// Bytes from here to `hole_end` were left out, and may still come; where both are equal, none.
    hole: u32,
    hole_end: u32,
    /// Of a TLS record, of HTTP/2's preface, or of a frame of it in the clear, the bytes to come; or [`LOST`].
    record_left: u32,
    /// What the server had said when a record came that may end the handshake, or a free frame of control after it.
    control_at: u32,
    /// Some of [`is`].
    is: u16,
    /// TLS: length of the newest record that may be a HEADERS frame of HTTP/2; 0 before the first of a turn.
    headers_bytes: u16,
    /// TLS, and HTTP/2 in the clear: the first bytes of a record's or frame's header whose others are in the next
    /// segment, and how many. HTTP/1 in the clear: the last bytes, and whether they are known.
    split: [u8; 4],
    split_len: u8,
    /// What it speaks: one of [`speaks`].
    speaks: u8,
    /// TLS: what encryption adds to a record, in bytes.
    overhead: u8,
    /// TLS: records of application data so far, as far as it matters.
    records: u8,
    /// TLS: records of this turn that may be HEADERS frames of HTTP/2; until that is spoken, those of one length.
    turn_records: u8,
    /// HTTP/2: frames of control that may still be free, of those that follow no long answer.
    controls_left: u8,
    /// TLS 1.3: records that may end the handshake; behind it, not 0 where that did not tell what encryption adds.
    ending_records: u8,
    /// Some of [`also`].
    also: u8,
    /// What the client acknowledged in the newest segment asked about.
    acknowledged: u32,
    /// The segments that still pass after its reset, and the refused request: an [`ended::Ended`].
    ended: ended::Ended,
}

const _: () = assert!(size_of::<Conversation>() == 56);

/// What a connection speaks.
mod speaks {
    /// HTTP/1 in the clear, or anything else that is not TLS.
    pub(super) const CLEAR: u8 = 0;
    /// HTTP/2 in the clear.
    pub(super) const HTTP2: u8 = 1;
    /// TLS, at its first messages.
    pub(super) const TLS_HELLO: u8 = 2;
    /// TLS, behind the client's ChangeCipherSpec.
    pub(super) const TLS_CHANGED: u8 = 3;
    /// TLS, with its handshake behind it.
    pub(super) const TLS: u8 = 4;
    /// What may go on as HTTP/2's preface.
    pub(super) const PREFACE: u8 = 5;
}

/// What else is known of a connection.
mod is {
    /// The next request needs no word of the server before it: the first one.
    pub(super) const OPEN: u16 = 1;
    /// In the clear: a request was counted whose first line has not ended yet.
    pub(super) const AHEAD: u16 = 2;
    /// HTTP/2.
    pub(super) const HTTP2: u16 = 4;
    /// HTTP/2 whose preface was counted in the place of a request that comes after it.
    pub(super) const PREFACE_COUNTED: u16 = 8;
    /// No request but the first was counted: what the server has said since may be session tickets.
    pub(super) const FIRST: u16 = 16;
    /// TLS whose client offers HTTP/2.
    pub(super) const OFFERS_HTTP2: u16 = 32;
    /// TLS that has sent what is as long as an alert: one ends a connection.
    pub(super) const ALERTED: u16 = 64;
    /// Its beginning was not seen, so what it speaks is a guess.
    pub(super) const UNSEEN: u16 = 128;
    /// HTTP/2 that has sent what is as long as the one acknowledgement of the server's first settings.
    pub(super) const ACKNOWLEDGED: u16 = 256;
    /// More than its first segment came before the server had any: what it takes and speaks is not known.
    pub(super) const DOUBTED: u16 = 512;
    /// TLS: since the newest request was counted, a record was too long for headers of HTTP/2, and so part of a body.
    pub(super) const IN_BODY: u16 = 1024;
    /// HTTP/2: a second frame of control was free at the moment when one was that followed a long answer.
    pub(super) const PAIRED: u16 = 2048;
    /// HTTP/2: the newest frame of control followed an answer, and may be a request: one if it is answered.
    pub(super) const OWED: u16 = 4096;
    /// Once it was not known where a record begins, or a frame of HTTP/2 in the clear: since then it is a guess.
    pub(super) const CUT: u16 = 8192;
    /// TLS: the split header began when the server had said nothing since the newest request, or the handshake.
    pub(super) const EARLY: u16 = 16_384;
    /// Its socket had some of it when its newest segment was judged: what the server takes first is known.
    pub(super) const TAKEN: u16 = 32_768;
}

/// What the server's TCP says of the connection, at the time of a segment. Sequence numbers in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// The next byte that it expects (`rcv_nxt`).
    pub received: u32,
    /// The first byte that it does not take yet (`rcv_wup + rcv_wnd`).
    pub window_end: u32,
    /// The next byte that its program will give it to send (`write_seq`).
    pub said: u32,
    /// 1: it has received no payload yet.
    pub is_first: u8,
    /// 1: it has ended its side, so it answers nothing any more.
    pub has_ended: u8,
    /// 1: it has answered a SYN, and waits for the end of the handshake.
    pub is_opening: u8,
    /// Zero.
    pub reserved: u8,
}

const _: () = assert!(size_of::<Peer>() == 16);

/// What a segment is to its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Requests that begin in it.
    pub requests: u32,
    /// Whether the guard counts it: it begins no request, and is short, or the one in [`ACCOUNTED_BYTES`] of what is
    /// long.
    pub is_unaccounted: bool,
    /// What to remember once they are admitted. Until then the connection stays as it is: repetitions are judged again.
    pub newest: Conversation,
}

/// [`Conversation::record_left`] where the next record or frame is looked for at the beginning of each segment.
const LOST: u32 = u32::MAX;

/// The answer that asks for the body: `HTTP/1.1 100 Continue` and an empty line. No answer to a request is as short.
const CONTINUE_BYTES: u32 = 25;

/// The part of a frame that is new to a conversation.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Fresh {
    /// Where it begins in the frame.
    pub at: u32,
    /// And where it ends.
    pub end: u32,
    /// The number of its first byte.
    sequence: u32,
    /// What the server has said, as it says itself, or as the client says that it has heard.
    said: u32,
}

impl Fresh {
    #[inline(always)]
    const fn len(self) -> u32 {
        self.end - self.at
    }

    /// So many of its first bytes are not new, or were looked at.
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

/// How late a segment comes.
mod late {
    pub(super) const NO: u8 = 0;
    pub(super) const IN_HOLE: u8 = 1;
    /// Over what was seen already.
    pub(super) const AGAIN: u8 = 2;
}

/// A segment that its conversation has taken in, and in which something may begin.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Entered {
    fresh: Fresh,
    /// What was so of the conversation, if the segment comes late: its fields of the same names.
    record_left: u32,
    split: [u8; 4],
    /// Of [`is`], what says where records begin.
    is: u16,
    split_len: u8,
    /// One of [`late`].
    is_late: u8,
    /// 1: it is a guess what the connection speaks.
    is_doubted: u32,
}

/// What a conversation asks of the frame besides its bytes. Where a verifier follows every path, each but
/// [`Walk::repeat`] is a function of its own there.
pub trait Walk: Frame + Sized {
    /// What of that is sought is in the payload from `at` to `end`.
    #[inline(always)]
    fn found(&self, at: u32, end: u32, sought: Sought) -> Found {
        sought.found(self, at, end)
    }

    /// Takes steps until one says that it was the last, or as many were taken: where they have led. Where a verifier
    /// follows every path, it follows one step.
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

    /// What the byte before `next` is part of, see [`Sought::at`].
    #[inline(always)]
    fn what_is_at(&self, sought: Sought, start: u32, next: u32, end: u32) -> Hit {
        sought.at(self, start, next, end)
    }

    /// How many requests begin in this record: 0, 1, or several of HTTP/2.
    #[inline(always)]
    fn record(&self, conversation: &mut Conversation, record: Record, moment: Moment) -> u32 {
        conversation.record(record, moment)
    }

    /// How many requests begin in a segment of which it cannot be told where its records begin: 0 or 1.
    #[inline(always)]
    fn lost(&self, conversation: &mut Conversation, moment: Moment) -> u32 {
        conversation.lost(moment)
    }

    /// How many bytes of HTTP/2's preface are in a payload.
    #[inline(always)]
    fn preface(&self, conversation: &mut Conversation, fresh: Fresh) -> u32 {
        conversation.preface(self, fresh.at, fresh.end)
    }

    /// [`Conversation::clear`].
    #[inline(always)]
    fn clear(&self, conversation: &mut Conversation, entered: &mut Entered) -> u32 {
        conversation.clear(self, entered)
    }

    /// [`Conversation::http2`].
    #[inline(always)]
    fn http2(&self, conversation: &mut Conversation, entered: &Entered) -> u32 {
        conversation.http2(self, entered)
    }

    /// [`Conversation::tls`].
    #[inline(always)]
    fn tls(&self, conversation: &mut Conversation, entered: &Entered) -> u32 {
        conversation.tls(self, entered)
    }
}

impl Walk for &[u8] {}

/// One of many, see [`Walk::repeat`].
pub trait Step {
    /// Takes it. Whether there may be another.
    fn step<F: Walk>(&mut self, frame: &F) -> bool;
}

/// Judges a segment with payload, of the conversation last remembered as `known`, by what the server's TCP says of it;
/// by the client's own numbers where that is not known.
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

/// How many requests come with a SYN that has this payload: a server with TCP Fast Open answers each. None where it
/// begins HTTP/2, as what comes behind a SYN is not known by it: a client sends it again without.
#[inline(always)]
pub fn with_syn<F: Walk>(frame: &F, at: u32, end: u32) -> Option<u32> {
    if may_be_http2(frame, at, end) {
        return None;
    }
    let versions = frame.found(at, end, Sought::Version).count();
    Some(if versions == 0 { 1 } else { versions })
}

/// Whether a connection that begins with this payload may speak HTTP/2 in the clear.
#[inline(always)]
pub fn may_be_http2<F: Frame>(frame: &F, at: u32, end: u32) -> bool {
    http2::is_preface(frame, at, end, 0)
}

impl Conversation {
    /// Goes on by a segment with payload, from what is remembered if that `is_known`; how many requests begin in it.
    #[inline(always)]
    pub fn turn<F: Walk>(&mut self, frame: &F, segment: &Segment, is_known: bool, peer: Option<Peer>) -> u32 {
        match self.enter(frame, segment, is_known, peer) {
            Some(mut entered) => self.speak(frame, &mut entered),
            None => 0,
        }
    }

    /// The first half of [`Conversation::turn`]: where the segment belongs. None where nothing can begin in it.
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
        // What the server has not taken yet may not be what was seen of it, so that what that speaks is a guess.
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
            // Counted is what comes to its beginning, and here what can be told for certain.
            Place::MiddleOfFirst => begins = Some(is::UNSEEN),
            Place::Next(received) => {
                fresh.skip(received);
                self.next = end;
                // What was seen before this the server may get otherwise.
                if self.speaks == speaks::CLEAR && peer.is_some_and(|peer| peer.received != fresh.sequence) {
                    self.split_len = 0;
                }
            }
            Place::Ahead { left_out, received } => {
                fresh.skip(received);
                self.leave_out(left_out, fresh.sequence, end, peer.is_some());
            }
            Place::InHole => {
                // What overlaps its end is the newest as well.
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

    /// The second half: how many requests begin in it, by what is spoken.
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
            // It was judged by itself, and its successors go on from where they are.
            (self.record_left, self.split, self.split_len) = (entered.record_left, entered.split, entered.split_len);
            self.is = self.is & !(is::CUT | is::EARLY) | entered.is;
        }
        requests
    }

    /// Whether it is not known what it speaks, as its beginning was not seen.
    #[inline(always)]
    const fn is_unseen_clear(&self) -> bool {
        self.speaks == speaks::CLEAR && self.has(is::UNSEEN)
    }

    /// What it speaks, where its beginning was not seen and its payload looks like a record of TLS, or like a frame of
    /// HTTP/2.
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

    /// Makes it the conversation that begins with this segment, or with this record of TLS, before it is judged.
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
            // Before its first byte is nothing; before what was not seen, something.
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

    /// A first fragment of it comes: what was seen before it the server may have otherwise, and what is seen before
    /// the last one.
    #[inline(always)]
    pub const fn come_in_fragments(&mut self, is_known: bool) {
        self.also |= also::IN_FRAGMENTS | if is_known { 0 } else { also::UNREAD };
    }

    /// The first byte that the client has not sent yet.
    #[inline(always)]
    pub const fn next(&self) -> u32 {
        self.next
    }

    #[inline(always)]
    const fn lose(&mut self) {
        self.record_left = LOST;
        self.split_len = 0;
    }

    /// A turn began, and was counted.
    #[inline(always)]
    const fn counted(&mut self, moment: Moment) {
        self.is &= !(is::OPEN | is::FIRST);
        self.turned(moment);
    }

    /// A turn began.
    #[inline(always)]
    const fn turned(&mut self, moment: Moment) {
        self.is &= !is::IN_BODY;
        self.heard = moment.said;
        self.counted_at = moment.sequence;
    }

    /// How many bytes the server has said since the newest request, as far as 32 bits tell; none where it says that it
    /// has said somewhat less, as what comes late does.
    #[inline(always)]
    const fn heard_since(&self, said: u32) -> u32 {
        let since = said.wrapping_sub(self.heard);
        if since < u32::MAX - FAR_BYTES { since } else { 0 }
    }

    #[inline(always)]
    const fn has(&self, what: u16) -> bool {
        self.is & what != 0
    }

    /// Whether it is a guess that it is within a record.
    #[inline(always)]
    const fn may_be_in_none(&self) -> bool {
        self.is_guessed() || self.also & also::IN_FRAGMENTS != 0
    }

    /// Whether it is a guess where its records or frames begin.
    #[inline(always)]
    const fn is_guessed(&self) -> bool {
        self.has(is::UNSEEN | is::CUT)
    }
}
