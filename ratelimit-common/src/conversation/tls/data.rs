//! What is in records of application data, by how long they are: requests of HTTP/1 and HTTP/2, bodies, and frames of
//! control.

use super::super::{CONTINUE_BYTES, Conversation, also, is, speaks};
use super::{HEADER_BYTES, Moment, OVERHEAD_1_3, OVERHEAD_OF_JAVA, Record};

/// Frames of HTTP/2 that are no request are as long: PING and GOAWAY are the longest.
pub(super) const CONTROL_BYTES_MAX: u16 = 17;
/// HTTP/2: WINDOW_UPDATE and RST_STREAM; PING and GOAWAY; two WINDOW_UPDATEs in one record, of the stream and of the
/// connection.
const CONTROL_BYTES: [u16; 3] = [13, CONTROL_BYTES_MAX, 26];
/// HTTP/2: what the server has said before a client makes its windows larger again.
const WINDOW_HEARD_MIN: u32 = 16_384;
/// HTTP/2: frames of control that follow no long answer and count nothing, of a connection; and one more for each
/// stream that it opens beside others, which it may reset.
pub(super) const CONTROLS_FREE_MAX: u8 = 3;
/// HTTP/2: a client's preface without a request: its 24 bytes, settings of 9 + 6 each, larger windows of 13 each.
const PREFACE_BYTES_MAX: u16 = 90;
/// HTTP/2: the acknowledgement of the server's settings, which each client has to send; and a frame that only ends a
/// body.
const SETTINGS_ACK_BYTES: u16 = 9;
/// What Java adds to each record more than others do.
const PADDED_BY_JAVA: u16 = (OVERHEAD_OF_JAVA - OVERHEAD_1_3) as u16;
/// It is among the first records.
pub(super) const SETTINGS_ACK_AMONG: u8 = 32;
/// TLS 1.3: an alert, the one thing that a client sends at an end and that is no application's.
const ALERT_BYTES: u16 = 2;
/// TLS 1.3: a server's two session tickets, as OpenSSL's are, which it sends before it answers the first request.
pub(super) const TICKETS_BYTES: core::ops::RangeInclusive<u32> = 480..=580;
/// The most that tickets are, with a client's certificate in each.
const TICKETS_BYTES_MAX: u32 = 2_100;
/// And the first of them, where the second is still on its way.
const TICKET_BYTES: core::ops::RangeInclusive<u32> = 240..=300;
/// HTTP/2: what a server may say between a client's preface and its first request: settings, their acknowledgement and
/// a window, each in a record; and with session tickets. No answer is as short as the first; few are as short as the
/// second with tickets in it.
const SETTINGS_HEARD_MAX: u32 = 150;
const PREFACE_HEARD_MAX: u32 = 690;
/// HTTP/1: two interim answers, as of a proxy and of what is behind it, while a body is sent.
const INTERIM_RECORDS_BYTES_MAX: u32 = 130;
/// HTTP/2: a record of more is no HEADERS frame, but part of a body.
const HEADERS_BYTES_MAX: u16 = 4_096;
/// HTTP/2: frames of headers for one site differ by little but for what is new in them; a body's DATA frame does so by
/// chance.
const HEADERS_ALIKE_BYTES: u16 = 16;
/// HTTP/2: PRIORITY. Browsers send one for each picture of a page at once; for who sends headers as short it is none.
const PRIORITY_BYTES: u16 = 14;
/// HTTP/2: frames of headers so short, all of the same length, may be several in one record.
const HEADERS_SHORT_BYTES: u16 = 64;
/// HTTP/2: how many streams servers take at once.
const STREAMS_MAX: u8 = 128;
/// HTTP/2: the shortest HEADERS frame: its header, and one field.
const HEADERS_BYTES_MIN: u16 = 10;
/// What a server may say while a body is sent, of windows: a record in the middle of a segment, or one too long for
/// headers, follows an answer only where more was heard, and as much more as a server says of windows for what was
/// sent.
const HEARD_IN_BODY_MAX: u32 = 240;
/// The same behind a connection's first request: of tickets and settings too.
const HEARD_AT_FIRST_MAX: u32 = 1_000;
/// Bytes of a body for which a server says one more. // 35 or 70 for every 4 KB or more, as measured of Go's
const BODY_BYTES_PER_HEARD: u32 = 32;
/// HTTP/2: so many records of one turn, as long as each other, are requests.
const ALIKE_MIN: u8 = 2;
/// HTTP/2: a later record of one turn that is longer is part of a body.
const LATER_HEADERS_BYTES_MAX: u16 = 700;
/// HTTP/1: the shortest request that names its host has more (`GET / HTTP/1.1`, `Host: a`).
const HTTP1_BYTES_MIN: u16 = 27;
/// HTTP/1: a record of that much may be the body that `Expect: 100-continue` delayed.
const BODY_RECORD_MIN: u16 = 8_192;

impl Conversation {
    /// Whether the server has said more than it says while a body is sent.
    #[inline(always)]
    pub(super) const fn is_answered(&self, moment: Moment) -> bool {
        let sent = moment.sequence.wrapping_sub(self.counted_at);
        let first = if self.has(is::FIRST) { HEARD_AT_FIRST_MAX } else { HEARD_IN_BODY_MAX };
        self.heard_since(moment.said) > first + sent / BODY_BYTES_PER_HEARD
    }

    #[inline(always)]
    pub(super) fn application_data(&mut self, record: Record, moment: Moment) -> u32 {
        let bytes = record.length.saturating_sub(self.overhead as u16);
        let is_among_first = self.records < SETTINGS_ACK_AMONG;
        if is_among_first {
            self.records += 1;
        }
        // None is early.
        let may_be_alert = self.speaks == speaks::TLS && self.is_tls_1_3() && !self.has(is::ALERTED);
        if bytes == ALERT_BYTES && may_be_alert {
            self.is |= is::ALERTED;
            return 0;
        }
        self.owed(moment) + self.data(bytes, is_among_first, record.begins_segment, moment)
    }

    /// Data of so many bytes, which is no alert.
    #[inline(always)]
    fn data(&mut self, bytes: u16, is_among_first: bool, begins_segment: bool, moment: Moment) -> u32 {
        if self.has(is::IN_BODY) {
            if bytes == SETTINGS_ACK_BYTES && self.has(is::OFFERS_HTTP2) {
                // No request of HTTP/1 is as short, and no end of a body.
                self.is |= is::HTTP2;
            }
            if self.has(is::HTTP2) && !self.is_answered(moment) {
                return 0;
            }
        }
        // Before all of them is a preface.
        if self.has(is::OFFERS_HTTP2) && !self.has(is::OPEN) && self.is_control(bytes, is_among_first, moment) {
            return 0;
        }
        let by_http1 = if self.has(is::HTTP2) { None } else { self.http1_record(bytes, begins_segment, moment) };
        let requests = match by_http1 {
            Some(requests) => requests,
            None => self.http2_record(bytes, moment),
        };
        if bytes > HEADERS_BYTES_MAX {
            self.is |= is::IN_BODY;
        }
        requests
    }

    /// HTTP/2: 1 where what was taken for a frame of control was answered, and so was a request. The server says a
    /// PING's acknowledgement too, which is as short as what is no answer.
    #[inline(always)]
    fn owed(&mut self, moment: Moment) -> u32 {
        let is_answered = moment.said.wrapping_sub(self.control_at) > self.no_answer_bytes();
        let is_owed = self.has(is::OWED) && is_answered;
        if is_owed {
            self.is &= !is::OWED;
        }
        is_owed as u32
    }

    /// HTTP/2: whether it is taken for a frame of control, as it is as long as one. Few of them come unless the server
    /// has said much.
    #[inline(always)]
    fn is_control(&mut self, bytes: u16, is_among_first: bool, moment: Moment) -> bool {
        let [short, long, two] = CONTROL_BYTES;
        // Where Finished did not tell what Java adds, as behind a certificate, this does.
        let may_be_java = self.ending_records != 0 && !self.has(is::HTTP2);
        let is_of_java = may_be_java && bytes == SETTINGS_ACK_BYTES + PADDED_BY_JAVA;
        if (bytes == SETTINGS_ACK_BYTES || is_of_java) && is_among_first && !self.has(is::ACKNOWLEDGED) {
            self.is |= is::HTTP2 | is::ACKNOWLEDGED;
            if is_of_java {
                self.overhead = OVERHEAD_OF_JAVA;
            }
            return true;
        }
        let is_window_of_java = may_be_java && self.has(is::PREFACE_COUNTED) && bytes == short + PADDED_BY_JAVA;
        let is_priority = bytes == PRIORITY_BYTES && self.headers_bytes > PRIORITY_BYTES + HEADERS_ALIKE_BYTES;
        if is_window_of_java || is_priority {
            return self.is_left();
        }
        if bytes != SETTINGS_ACK_BYTES && bytes != short && bytes != long && bytes != two {
            return false;
        }
        let since_control = moment.said.wrapping_sub(self.control_at);
        let since_request = self.heard_since(moment.said);
        // Where it is a guess that there is a frame, few are.
        let may_be_window = since_request >= WINDOW_HEARD_MIN && (!self.is_guessed() || self.is_left());
        if may_be_window && since_control >= WINDOW_HEARD_MIN {
            self.control_at = moment.said;
            self.is &= !is::PAIRED;
            return true;
        }
        // Two at one moment: of the stream, and of the connection.
        if may_be_window && since_control == 0 && !self.has(is::PAIRED) {
            self.is |= is::PAIRED;
            return true;
        }
        if bytes == two {
            return false;
        }
        if bytes == short && self.is_left() {
            return true;
        }
        // RST_STREAM, PING and GOAWAY, or what ends a body; or a request as long, which the server then answers.
        // Several at one moment are as good as one.
        if since_control == 0 && self.has(is::OWED) {
            return true;
        }
        // A body's empty end comes behind the windows that the server opens for the rest of it.
        let quiet = if bytes == SETTINGS_ACK_BYTES { SETTINGS_HEARD_MAX } else { self.no_answer_bytes() };
        let is_turn = since_request > quiet;
        if since_control != 0 && is_turn {
            self.is |= is::OWED;
            self.control_at = moment.said;
            return true;
        }
        // Of a turn that counts already.
        if !is_turn && bytes != self.headers_bytes {
            return true;
        }
        self.is_left()
    }

    /// HTTP/2: whether one more frame of control may be free, and takes it.
    #[inline(always)]
    const fn is_left(&mut self) -> bool {
        let is_left = self.controls_left != 0;
        self.controls_left = self.controls_left.saturating_sub(1);
        is_left
    }

    /// HTTP/1, as far as is known; none where this shows that it is HTTP/2, and is a record of that.
    #[inline(always)]
    fn http1_record(&mut self, bytes: u16, begins_segment: bool, moment: Moment) -> Option<u32> {
        let heard = self.heard_since(moment.said);
        if self.has(is::OPEN) {
            self.is &= !is::OPEN;
            if self.has(is::OFFERS_HTTP2) && bytes <= PREFACE_BYTES_MAX {
                self.is |= is::PREFACE_COUNTED;
            }
            if TICKET_BYTES.contains(&heard) {
                self.also |= also::ONE_TICKET;
            } else if heard != 0 {
                // The tickets were said before.
                self.is &= !is::FIRST;
            }
            self.turned(moment);
            self.turn_records = 1;
            return Some(1);
        }
        let is_interim =
            heard != 0 && heard <= INTERIM_RECORDS_BYTES_MAX && (bytes >= BODY_RECORD_MIN || self.has(is::IN_BODY));
        // HTTP/1 says nothing but `100 Continue` before it has a body, and begins no request with so little.
        let is_http2 = is_interim && heard != self.no_answer_bytes()
            || self.has(is::IN_BODY)
                && heard > self.no_answer_bytes()
                && bytes < HTTP1_BYTES_MIN
                && !self.is_answered(moment);
        if is_http2 && self.has(is::OFFERS_HTTP2) {
            self.is |= is::HTTP2;
            return Some(0);
        }
        if is_interim {
            return Some(0);
        }
        if heard <= self.no_answer_bytes() || !begins_segment && heard <= INTERIM_RECORDS_BYTES_MAX {
            // HTTP/2: the request itself, behind a preface that was counted for it.
            self.is &= !is::PREFACE_COUNTED;
            return Some(self.is_one_of_many(bytes) as u32);
        }
        let is_behind_preface = self.has(is::PREFACE_COUNTED);
        let most = PREFACE_HEARD_MAX - self.has_one_ticket() as u32 * *TICKET_BYTES.end();
        let are_tickets = self.is_tls_1_3()
            && self.has(is::FIRST)
            && (bytes >= BODY_RECORD_MIN && heard <= TICKETS_BYTES_MAX
                || !self.has_one_ticket() && TICKETS_BYTES.contains(&heard)
                || is_behind_preface && heard >= *TICKET_BYTES.start() && heard <= most)
            || is_behind_preface && heard <= SETTINGS_HEARD_MAX;
        // Behind the first of the tickets comes the second, and no third.
        if !are_tickets || !TICKET_BYTES.contains(&heard) || self.has_one_ticket() {
            self.is &= !is::FIRST;
        }
        self.also |= also::ONE_TICKET;
        let may_be_headers = (HEADERS_BYTES_MIN..HTTP1_BYTES_MIN).contains(&bytes);
        if may_be_headers && self.has(is::OFFERS_HTTP2) && !are_tickets {
            self.is |= is::HTTP2;
            return None;
        }
        self.turned(moment);
        (self.turn_records, self.headers_bytes) = (1, 0);
        if are_tickets {
            self.is &= !is::PREFACE_COUNTED;
        }
        Some(!are_tickets as u32)
    }

    /// HTTP/2 that is not known as such yet: whether this record of a turn is as long as the two before it, as many
    /// requests at once are.
    #[inline(always)]
    const fn is_one_of_many(&mut self, bytes: u16) -> bool {
        let is_alike = self.has(is::OFFERS_HTTP2)
            && bytes >= HEADERS_BYTES_MIN
            && bytes <= LATER_HEADERS_BYTES_MAX
            && bytes.abs_diff(self.headers_bytes) <= 1;
        self.headers_bytes = bytes;
        self.turn_records = if is_alike { self.turn_records + 1 } else { 1 };
        let is_one = self.turn_records > ALIKE_MIN;
        if is_one {
            self.is |= is::HTTP2;
        }
        is_one
    }

    #[inline(always)]
    const fn is_tls_1_3(&self) -> bool {
        self.overhead == OVERHEAD_1_3 || self.overhead == OVERHEAD_OF_JAVA
    }

    /// A record of so many bytes is no answer: `100 Continue`, or HTTP/2's frames of control.
    #[inline(always)]
    pub(super) const fn no_answer_bytes(&self) -> u32 {
        // Of what Java adds, a server adds half.
        let overhead = if self.is_tls_1_3() { OVERHEAD_1_3 } else { self.overhead };
        CONTINUE_BYTES + HEADER_BYTES + overhead as u32
    }

    /// A record of HTTP/2 that may be headers. The second in a turn may as well be the body that belongs to the first,
    /// unless it is as long; a third is a request of its own.
    #[inline(always)]
    fn http2_record(&mut self, bytes: u16, moment: Moment) -> u32 {
        let heard = self.heard_since(moment.said);
        if bytes > HEADERS_BYTES_MAX {
            let is_answered = self.is_answered(moment);
            if is_answered {
                self.counted(moment);
            }
            return is_answered as u32;
        }
        let is_turn = heard > self.no_answer_bytes();
        self.is &= !is::OWED;
        if is_turn {
            self.counted(moment);
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
        if self.has(is::PREFACE_COUNTED) {
            self.is &= !is::PREFACE_COUNTED;
            // Not behind an answer.
            if heard <= TICKETS_BYTES_MAX {
                self.headers_bytes = bytes;
                self.turn_records = 1;
                return 0;
            }
        }
        let known = self.headers_bytes;
        let is_short = (HEADERS_BYTES_MIN..=HEADERS_SHORT_BYTES).contains(&known);
        if before == 0 && is_short && bytes > known && bytes.is_multiple_of(known) {
            #[expect(clippy::cast_possible_truncation, reason = "less than STREAMS_MAX")]
            let several = if bytes / known < STREAMS_MAX as u16 { (bytes / known) as u8 } else { STREAMS_MAX };
            self.controls_left = self.controls_left.saturating_add(several);
            return several as u32;
        }
        let may_be_body = before == 1 && (known == 0 || bytes.abs_diff(known) > HEADERS_ALIKE_BYTES);
        if may_be_body || before != 0 && bytes > LATER_HEADERS_BYTES_MAX {
            return 0;
        }
        if before != 0 {
            self.controls_left = self.controls_left.saturating_add(1);
        }
        self.headers_bytes = bytes;
        1
    }
}
