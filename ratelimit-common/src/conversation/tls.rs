//! TLS: its records' headers are in the clear, and tell by type and length what is in them.

use super::search::Sought;
use super::{CONTINUE_BYTES, Conversation, Fresh, Walk, is, speaks};
use crate::packet::Frame;

/// [`Conversation::record_left`] where it is not known where the next record begins: it is looked for at the beginning of each
/// segment.
pub(super) const LOST: u32 = u32::MAX;

/// Records of one segment that are looked at: requests of a browser that asks for much at once are of about 60 bytes.
const RECORDS_MAX: u32 = 24;

const HEADER_BYTES: u32 = 5;
/// RFC 8446, section 5.2, and what older versions add: 2^14 + 2048.
const LENGTH_MAX: u16 = 16_384 + 2_048;

const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// What TLS 1.3 adds to a record: the true type, and the tag of its ciphers.
const OVERHEAD_1_3: u8 = 17;
/// The same of Java, which pads each by 16 bytes; and its Finished, with the longer of the two hashes, which tells.
const OVERHEAD_OF_JAVA: u8 = 33;
const FINISHED_OF_JAVA: u16 = 85;
/// The most that a cipher without padding adds: where it is not known.
const OVERHEAD_MAX: u8 = 24;
/// A TLS 1.2 Finished message; encrypted, it tells what encryption adds.
const FINISHED_1_2_BYTES: u16 = 16;
const FINISHED_1_2_RECORD_MAX: u16 = 112;
/// A TLS 1.3 Finished message's record is shorter (53 or 69 bytes, 85 where Java pads it), or padded to a block. What is neither,
/// before it, is a client's certificate.
const FINISHED_1_3_RECORD_MAX: u16 = 128;
/// Blocks that records are padded to are multiples of this; behind them is the tag.
const PADDED_BYTES: u16 = 64;
const TAG_BYTES: u16 = 16;
/// A client's certificate, the proof of it, and its Finished: a server takes no more records of them.
const FINISHED_AMONG: u8 = 3;

/// Frames of HTTP/2 that are no request are as long: PING and GOAWAY are the longest.
const CONTROL_BYTES_MAX: u16 = 17;
/// HTTP/2: WINDOW_UPDATE and RST_STREAM; PING and GOAWAY; two WINDOW_UPDATEs in one record, of the stream and of the connection.
const CONTROL_BYTES: [u16; 3] = [13, CONTROL_BYTES_MAX, 26];
/// HTTP/2: what the server has said before a client makes its windows larger again.
const WINDOW_HEARD_MIN: u32 = 16_384;
/// HTTP/2: frames of control that follow no long answer and count nothing, of a connection.
const CONTROLS_FREE_MAX: u8 = 3;
/// HTTP/2: a client's preface without a request: its 24 bytes, settings of 9 + 6 each, larger windows of 13 each.
const PREFACE_BYTES_MAX: u16 = 90;
/// HTTP/2: the acknowledgement of the server's settings, which each client has to send.
const SETTINGS_ACK_BYTES: u16 = 9;
/// It is among the first records.
const SETTINGS_ACK_AMONG: u8 = 32;
/// TLS 1.3: an alert, the one thing that a client sends at an end and that is no application's.
const ALERT_BYTES: u16 = 2;
/// TLS 1.3: a server's two session tickets, as OpenSSL's are, which it sends before it answers the first request.
const TICKETS_BYTES: core::ops::RangeInclusive<u32> = 480..=580;
/// The most that tickets are, with a client's certificate in each.
const TICKETS_BYTES_MAX: u32 = 2_100;
/// And the first of them, where the second is still on its way.
const TICKET_BYTES: core::ops::RangeInclusive<u32> = 240..=290;
/// HTTP/2: what a server may say between a client's preface and its first request: settings, their acknowledgement and a window, each in a
/// record; and with session tickets. No answer is as short as the first; few are as short as the second with tickets in it.
const SETTINGS_HEARD_MAX: u32 = 150;
const PREFACE_HEARD_MAX: u32 = 690;
/// HTTP/1: two interim answers, as of a proxy and of what is behind it, while a body is sent.
const INTERIM_BYTES_MAX: u32 = 120;
/// HTTP/2: a record of more is no HEADERS frame, but part of a body.
const HEADERS_BYTES_MAX: u16 = 4_096;
/// HTTP/2: a record as full as records are, of which clients make a body: 16 384 bytes, less what Java pads. Each so costs a client 16 KB.
const FULL_RECORD_MIN: u16 = 16_300;
/// HTTP/2: what is left of a DATA frame of 16 KB behind a record of as much: its header's length, and with it what Java pads.
const BODY_END_BYTES_MAX: u16 = 42;
/// HTTP/2: frames of headers for one site differ by little but for what is new in them; a body's DATA frame does so by chance.
const HEADERS_ALIKE_BYTES: u16 = 16;
/// HTTP/2: frames of headers so short, all of the same length, may be several in one record.
const HEADERS_SHORT_BYTES: u16 = 64;
/// HTTP/2: how many streams servers take at once.
const STREAMS_MAX: u16 = 128;
/// HTTP/2: the shortest HEADERS frame: its header, and one field.
const HEADERS_BYTES_MIN: u16 = 10;
/// What a server may say while a body is sent, of tickets, windows and settings: a record in the middle of a segment, or one too
/// long for headers, follows an answer only where more was heard, and as much more as a server says of windows for what was sent.
const HEARD_IN_BODY_MAX: u32 = 1_000;
/// Bytes of a body for which a server says one more. // 35 or 70 for every 4 KB or more, as measured of Go's
const BODY_BYTES_PER_HEARD: u32 = 32;
/// HTTP/2: a later record of one turn that is longer is part of a body.
const LATER_HEADERS_BYTES_MAX: u16 = 700;
/// HTTP/1: the shortest request that names its host has more (`GET / HTTP/1.1`, `Host: a`).
const HTTP1_BYTES_MIN: u16 = 27;
/// HTTP/1: a record of that much may be the body that `Expect: 100-continue` held back.
const BODY_RECORD_MIN: u16 = 8_192;

/// When a record is sent: where its segment begins, and what the server had said by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// [`Segment::sequence`](crate::packet::Segment::sequence).
    pub sequence: u32,
    /// [`Peer::said`](super::Peer::said).
    pub said: u32,
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What is in it.
    pub kind: u8,
    /// Whether nothing that might be a request is before it in its segment.
    pub begins_segment: bool,
    /// How many bytes come behind the header.
    pub length: u16,
}

impl Record {
    #[inline(always)]
    const fn parse([kind, major, minor, high, low]: [u8; HEADER_BYTES as usize]) -> Option<Self> {
        let length = u16::from_be_bytes([high, low]);
        let is_one = kind >= CHANGE_CIPHER_SPEC
            && kind <= APPLICATION_DATA
            && major == 3
            && minor <= 4
            && length != 0
            && length <= LENGTH_MAX;
        if is_one { Some(Self { kind, begins_segment: false, length }) } else { None }
    }

    #[inline(always)]
    pub(super) const fn is_handshake(self) -> bool {
        self.kind == HANDSHAKE
    }
}

/// The record that begins here, if one does.
#[inline(always)]
pub(super) fn record_at<F: Frame>(frame: &F, at: u32, end: u32) -> Option<Record> {
    if at + HEADER_BYTES > end {
        return None;
    }
    let [kind, major, minor, high] = frame.bytes::<4>(at as usize)?;
    let [_, low] = frame.bytes::<2>(at as usize + 3)?;
    Record::parse([kind, major, minor, high, low])
}

/// What of a record is left behind `bytes` that nobody saw.
#[inline(always)]
pub(super) const fn without(record_left: u32, bytes: u32) -> u32 {
    if bytes == 0 {
        record_left
    } else if record_left != LOST && bytes <= record_left {
        record_left - bytes
    } else {
        LOST
    }
}

/// Whether this `h`, the byte before `next`, is in HTTP/2's name in a ClientHello (RFC 7301), which has its length before it.
#[inline(always)]
pub(super) fn is_http2<F: Frame>(frame: &F, next: u32) -> bool {
    match frame.bytes::<4>(next as usize - 2) {
        Some([length, _, digit, _]) => length == 2 && digit == b'2',
        None => false,
    }
}

impl Conversation {
    /// In the middle of something: all that might not be a request is not.
    #[inline(always)]
    pub(super) const fn in_tls(mut self, is: u16) -> Self {
        self.speaks = speaks::TLS;
        self.overhead = OVERHEAD_MAX;
        self.records = SETTINGS_ACK_AMONG;
        self.is = is | is::OFFERS_HTTP2;
        self.split_len = 0;
        self
    }

    /// How many requests begin in this payload. One that comes late is judged by itself, and its successors go on from
    /// where they are.
    #[inline(always)]
    pub(super) fn tls<F: Walk>(&mut self, frame: &F, fresh: Fresh, is_late: bool) -> u32 {
        if self.speaks == speaks::TLS_HELLO && frame.found(fresh.at, fresh.end, Sought::Http2) != 0 {
            self.is |= is::OFFERS_HTTP2;
        }
        let (record_left, split_len) = (self.record_left, self.split_len);
        if is_late {
            (self.record_left, self.split_len) = (LOST, 0);
        }
        let requests = self.records(frame, fresh);
        if is_late {
            (self.record_left, self.split_len) = (record_left, split_len);
        }
        requests
    }

    /// Goes on by so many bytes where all of them belong to the record that is under way; else false, and nothing is done.
    #[inline(always)]
    pub(super) const fn stays_in_record(&mut self, bytes: u32) -> bool {
        let stays = self.split_len == 0 && self.record_left != LOST && self.record_left >= bytes;
        if stays {
            self.record_left -= bytes;
        }
        stays
    }

    /// Goes through the records that begin in this payload.
    #[inline(always)]
    fn records<F: Walk>(&mut self, frame: &F, fresh: Fresh) -> u32 {
        if self.stays_in_record(fresh.len()) {
            // Where it is a guess that there is a record, an answer says that there is none.
            return if self.has(is::UNSEEN) && self.is_answered(fresh.moment()) { self.lost(fresh) } else { 0 };
        }
        let was_lost = self.record_left == LOST;
        let begins_at = fresh.at;
        let mut begins_segment = self.record_left == 0 || was_lost;
        let mut requests = 0;
        let mut at = fresh.at;
        if self.split_len != 0 {
            begins_segment = false;
            match self.joined(frame, fresh) {
                Some(record) => {
                    requests = frame.record(self, record, fresh.moment());
                    at += HEADER_BYTES - self.split_len as u32 + record.length as u32;
                }
                None => self.record_left = LOST,
            }
            self.split_len = 0;
        } else if self.record_left != LOST {
            at += self.record_left;
        }
        let mut is_known = true;
        for _ in 0..RECORDS_MAX {
            if at + HEADER_BYTES > fresh.end {
                break;
            }
            let Some(mut record) = record_at(frame, at, fresh.end) else {
                is_known = false;
                break;
            };
            // What is no request anyway may be before one.
            record.begins_segment = begins_segment;
            begins_segment &= record.length <= self.overhead as u16 + CONTROL_BYTES_MAX;
            let more = frame.record(self, record, fresh.moment());
            requests = frame.forget_u32(requests + more);
            at = frame.forget_u32(at + HEADER_BYTES + record.length as u32);
        }
        self.record_left = match () {
            () if !is_known => LOST,
            () if at >= fresh.end => at - fresh.end,
            () if was_lost && at == begins_at => LOST,
            () if at + HEADER_BYTES > fresh.end => self.split(frame, at, fresh.end),
            () => LOST,
        };
        if requests == 0 && self.record_left == LOST { self.lost(fresh) } else { requests }
    }

    /// A segment of which it cannot be told where its records begin. Until one begins a segment turns alone tell, or to hide them
    /// would be a way around.
    #[inline(always)]
    fn lost(&mut self, fresh: Fresh) -> u32 {
        let heard = self.heard_since(fresh.said);
        let is_open = self.has(is::OPEN) && self.speaks == speaks::TLS;
        if !is_open && heard <= self.no_answer_bytes() {
            return 0;
        }
        let are_tickets = self.has(is::FIRST) && !is_open && TICKETS_BYTES.contains(&heard);
        self.counted(fresh);
        !are_tickets as u32
    }

    /// Whether the server has said more than it says while a body is sent.
    #[inline(always)]
    const fn is_answered(&self, moment: Moment) -> bool {
        let sent = moment.sequence.wrapping_sub(self.counted_at);
        self.heard_since(moment.said) > HEARD_IN_BODY_MAX + sent / BODY_BYTES_PER_HEARD
    }

    /// Keeps the beginning of a header whose rest is in the next segment.
    #[inline(always)]
    fn split<F: Frame>(&mut self, frame: &F, at: u32, end: u32) -> u32 {
        let len = end - at;
        // A byte alone cannot be read, so it is read with the one before it.
        let bytes = match len {
            1 => frame.bytes::<2>(at as usize - 1).map(|[_, kind]| [kind, 0, 0, 0]),
            2 | 3 => frame.bytes::<2>(at as usize).map(|[kind, major]| [kind, major, 0, 0]),
            _ => frame.bytes::<4>(at as usize),
        };
        let Some(bytes) = bytes else { return LOST };
        self.split = bytes;
        #[expect(clippy::cast_possible_truncation, reason = "less than a header")]
        let split_len = len as u8;
        self.split_len = split_len;
        0
    }

    /// The header whose beginning was in the last segment.
    #[inline(always)]
    fn joined<F: Frame>(&self, frame: &F, fresh: Fresh) -> Option<Record> {
        let rest = HEADER_BYTES - self.split_len as u32;
        if fresh.len() < rest || fresh.len() < 2 {
            return None;
        }
        let [kind, _, _, high] = self.split;
        let length = match rest {
            1 => frame.bytes::<2>(fresh.at as usize).map(|[low, _]| [high, low])?,
            _ => frame.bytes::<2>((fresh.at + rest) as usize - 2)?,
        };
        Record::parse([kind, 3, 3, length[0], length[1]])
    }

    /// How many requests begin in this record, and what it is to the conversation otherwise.
    #[inline(always)]
    pub fn record(&mut self, record: Record, moment: Moment) -> u32 {
        match record.kind {
            HANDSHAKE => self.handshake(record, moment),
            CHANGE_CIPHER_SPEC => {
                if self.speaks == speaks::TLS_HELLO {
                    self.speaks = speaks::TLS_CHANGED;
                }
                0
            }
            APPLICATION_DATA if self.speaks == speaks::TLS => {
                let owed = self.owed(moment);
                owed + self.application_data(record, moment)
            }
            APPLICATION_DATA => self.first_data(record, moment),
            // Alerts, and what is none of these.
            _ => 0,
        }
    }

    #[inline(always)]
    fn handshake(&mut self, record: Record, moment: Moment) -> u32 {
        if self.speaks == speaks::TLS_CHANGED && record.length <= FINISHED_1_2_RECORD_MAX {
            #[expect(clippy::cast_possible_truncation, reason = "at most FINISHED_1_2_RECORD_MAX")]
            let overhead = record.length.saturating_sub(FINISHED_1_2_BYTES) as u8;
            self.finished(overhead, moment);
        }
        0
    }

    /// TLS 1.3: early data, or what ends the handshake: the Finished message, and before it a certificate and the proof of it. The server
    /// takes nothing else there.
    #[inline(always)]
    fn first_data(&mut self, record: Record, moment: Moment) -> u32 {
        if self.heard_since(moment.said) == 0 {
            // Sent before the server has said anything: early data, which is as long as it likes.
            self.overhead = OVERHEAD_1_3;
            return self.application_data(record, moment);
        }
        if self.ending_records == 0 {
            self.control_at = moment.said;
        } else if moment.said != self.control_at || record.begins_segment {
            // The server says nothing before it has the handshake's end, and a client sends all of that at once: so it was before this.
            self.finished(OVERHEAD_1_3, Moment { said: self.control_at, ..moment });
            return self.application_data(record, moment);
        }
        self.ending_records += 1;
        let is_padded = record.length % PADDED_BYTES == TAG_BYTES;
        if record.length <= FINISHED_1_3_RECORD_MAX || is_padded || self.ending_records >= FINISHED_AMONG {
            let is_of_java = record.length == FINISHED_OF_JAVA;
            self.finished(if is_of_java { OVERHEAD_OF_JAVA } else { OVERHEAD_1_3 }, moment);
        }
        0
    }

    /// TLS 1.3, where what ended the handshake is not there: only then does a client go on before it is answered.
    #[inline(always)]
    pub(super) fn leave_out_finished(&mut self) {
        if self.speaks == speaks::TLS_HELLO || self.speaks == speaks::TLS_CHANGED {
            self.finished(OVERHEAD_1_3, Moment { said: self.heard, sequence: self.counted_at });
        }
    }

    #[inline(always)]
    fn finished(&mut self, overhead: u8, moment: Moment) {
        self.speaks = speaks::TLS;
        self.heard = moment.said;
        self.counted_at = moment.sequence;
        self.control_at = moment.said;
        self.overhead = overhead;
        self.records = 0;
        self.turn_records = 0;
    }

    #[inline(always)]
    fn application_data(&mut self, record: Record, moment: Moment) -> u32 {
        let bytes = record.length.saturating_sub(self.overhead as u16);
        let is_among_first = self.records < SETTINGS_ACK_AMONG;
        if is_among_first {
            self.records += 1;
        }
        if bytes == ALERT_BYTES && self.is_tls_1_3() && !self.has(is::ALERTED) {
            self.is |= is::ALERTED;
            return 0;
        }
        // Before all of them is a preface.
        if self.has(is::OFFERS_HTTP2) && !self.has(is::OPEN) && self.is_control(bytes, is_among_first, moment) {
            return 0;
        }
        if self.has(is::HTTP2) {
            return self.http2_record(bytes, moment);
        }
        self.http1_record(bytes, record.begins_segment, moment)
    }

    /// HTTP/2: 1 where what was taken for a frame of control was answered, and so was a request. The server says a PING's acknowledgement too,
    /// which is as short as what is no answer.
    #[inline(always)]
    fn owed(&mut self, moment: Moment) -> u32 {
        let is_answered = moment.said.wrapping_sub(self.control_at) > self.no_answer_bytes();
        let is_owed = self.has(is::OWED) && is_answered;
        self.is &= !is::OWED;
        is_owed as u32
    }

    /// HTTP/2: whether it is taken for a frame of control, as it is as long as one. Few of them come unless the server has said much.
    #[inline(always)]
    fn is_control(&mut self, bytes: u16, is_among_first: bool, moment: Moment) -> bool {
        if bytes == SETTINGS_ACK_BYTES && is_among_first && !self.has(is::ACKNOWLEDGED) {
            self.is |= is::HTTP2 | is::ACKNOWLEDGED;
            return true;
        }
        let [short, long, two] = CONTROL_BYTES;
        if bytes != short && bytes != long && bytes != two {
            return false;
        }
        let since_control = moment.said.wrapping_sub(self.control_at);
        let since_request = self.heard_since(moment.said);
        let since = if since_request < since_control { since_request } else { since_control };
        if since >= WINDOW_HEARD_MIN {
            self.control_at = moment.said;
            self.is &= !is::PAIRED;
            return true;
        }
        // Two at one moment: of the stream, and of the connection.
        if since_control == 0 && since_request >= WINDOW_HEARD_MIN && !self.has(is::PAIRED) {
            self.is |= is::PAIRED;
            return true;
        }
        if bytes == two {
            return false;
        }
        if bytes == short && self.controls < CONTROLS_FREE_MAX {
            self.controls += 1;
            return true;
        }
        // RST_STREAM, PING and GOAWAY, or a request as long, which the server then answers. Of several at one moment one is.
        if since_control != 0 && since_request > self.no_answer_bytes() {
            self.is |= is::OWED;
            self.control_at = moment.said;
            return true;
        }
        self.controls = self.controls.saturating_add(1);
        self.controls <= CONTROLS_FREE_MAX
    }

    #[inline(always)]
    fn http1_record(&mut self, bytes: u16, begins_segment: bool, moment: Moment) -> u32 {
        let heard = self.heard_since(moment.said);
        if self.has(is::OPEN) {
            self.is &= !is::OPEN;
            if self.has(is::OFFERS_HTTP2) && bytes <= PREFACE_BYTES_MAX {
                self.is |= is::PREFACE_COUNTED;
            }
            if heard != 0 {
                // The tickets were said before.
                self.is &= !is::FIRST;
            }
            self.turned(moment);
            return 1;
        }
        if heard == 0 || !begins_segment && !self.is_answered(moment) {
            // HTTP/2: the request itself, behind a preface that was counted for it.
            self.is &= !is::PREFACE_COUNTED;
            return 0;
        }
        if heard <= self.no_answer_bytes() {
            self.is &= !is::PREFACE_COUNTED;
            return 0;
        }
        if bytes >= BODY_RECORD_MIN && heard <= INTERIM_BYTES_MAX {
            return 0;
        }
        let is_behind_preface = self.has(is::PREFACE_COUNTED);
        let are_tickets = self.is_tls_1_3()
            && self.has(is::FIRST)
            && (bytes >= BODY_RECORD_MIN && heard <= TICKETS_BYTES_MAX
                || TICKETS_BYTES.contains(&heard)
                || is_behind_preface && heard >= *TICKET_BYTES.start() && heard <= PREFACE_HEARD_MAX)
            || is_behind_preface && heard <= SETTINGS_HEARD_MAX;
        self.is &= !is::FIRST;
        let may_be_headers = (HEADERS_BYTES_MIN..HTTP1_BYTES_MIN).contains(&bytes);
        if may_be_headers && self.has(is::OFFERS_HTTP2) && !are_tickets {
            self.is |= is::HTTP2;
            return self.http2_record(bytes, moment);
        }
        self.turned(moment);
        if are_tickets {
            self.is &= !is::PREFACE_COUNTED;
        }
        !are_tickets as u32
    }

    #[inline(always)]
    const fn is_tls_1_3(&self) -> bool {
        self.overhead == OVERHEAD_1_3 || self.overhead == OVERHEAD_OF_JAVA
    }

    /// A turn is over.
    #[inline(always)]
    const fn turned(&mut self, moment: Moment) {
        self.heard = moment.said;
        self.counted_at = moment.sequence;
    }

    /// A record of so many bytes is no answer: `100 Continue`, or HTTP/2's frames of control.
    #[inline(always)]
    const fn no_answer_bytes(&self) -> u32 {
        CONTINUE_BYTES + HEADER_BYTES + self.overhead as u32
    }

    /// A record of HTTP/2 that may be headers. The second in a turn may as well be the body that belongs to the first,
    /// unless it is as long; a third is a request of its own.
    #[inline(always)]
    fn http2_record(&mut self, bytes: u16, moment: Moment) -> u32 {
        let heard = self.heard_since(moment.said);
        let may_end_body =
            self.has(is::FULL) && bytes <= BODY_END_BYTES_MAX || self.has(is::IN_BODY) && bytes < HEADERS_BYTES_MIN;
        self.is &= !(is::IN_BODY | is::FULL);
        if bytes > HEADERS_BYTES_MAX || may_end_body {
            let is_answered = self.is_answered(moment);
            if is_answered {
                self.turned(moment);
            }
            if bytes > HEADERS_BYTES_MAX {
                self.is |= is::IN_BODY;
            }
            if bytes >= FULL_RECORD_MIN {
                self.is |= is::FULL;
            }
            return is_answered as u32;
        }
        let is_turn = heard > self.no_answer_bytes();
        if is_turn {
            self.turned(moment);
            self.turn_records = 0;
        }
        if bytes < HEADERS_BYTES_MIN {
            // Too short for headers, so it is part of them, or a frame of control too many.
            return is_turn as u32;
        }
        let before = self.turn_records;
        if before < 2 {
            self.turn_records += 1;
        }
        let known = self.headers_bytes;
        let is_short = (HEADERS_BYTES_MIN..=HEADERS_SHORT_BYTES).contains(&known);
        if before == 0 && is_short && bytes > known && bytes.is_multiple_of(known) {
            let several = bytes / known;
            return if several < STREAMS_MAX { several as u32 } else { STREAMS_MAX as u32 };
        }
        let may_be_body = before == 1 && bytes.abs_diff(known) > HEADERS_ALIKE_BYTES;
        if may_be_body || before != 0 && bytes > LATER_HEADERS_BYTES_MAX {
            return 0;
        }
        self.headers_bytes = bytes;
        if self.has(is::PREFACE_COUNTED) {
            self.is &= !is::PREFACE_COUNTED;
            return 0;
        }
        1
    }
}
