//! Classification of application data records by length: requests of HTTP/1 and HTTP/2, bodies, and control frames.

use super::super::{CONTINUE_BYTES, Conversation, also, is, speaks};
use super::{HEADER_BYTES, Moment, OVERHEAD_1_3, OVERHEAD_OF_JAVA, Record};

/// Length of the longest HTTP/2 frames that are no requests, PING and GOAWAY, in bytes.
pub(super) const CONTROL_BYTES_MAX: u16 = 17;
/// HTTP/2: lengths of WINDOW_UPDATE and RST_STREAM, of PING and GOAWAY, and of two WINDOW_UPDATEs in one record. The
/// two are for the stream and for the connection.
const CONTROL_BYTES: [u16; 3] = [13, CONTROL_BYTES_MAX, 26];
/// HTTP/2: minimum bytes from the server before a client enlarges its windows again.
const WINDOW_HEARD_MIN: u32 = 16_384;
/// HTTP/2: number of free control frames of a connection that follow no long answer. Each stream opened beside others
/// adds one, since the client may reset it.
pub(super) const CONTROLS_FREE_MAX: u8 = 3;
/// HTTP/2: maximum length of a client preface without a request. It has 24 bytes, SETTINGS of 9 + 6 for each value, and
/// WINDOW_UPDATEs of 13.
const PREFACE_BYTES_MAX: u16 = 90;
/// HTTP/2: length of the acknowledgement of the server's settings, which each client must send. A frame that only ends
/// a body has this length too.
const SETTINGS_ACK_BYTES: u16 = 9;
/// Bytes that Java adds to each record beyond what other clients add.
const PADDED_BY_JAVA: u16 = (OVERHEAD_OF_JAVA - OVERHEAD_1_3) as u16;
/// Number of first records among which the acknowledgement of the server's settings comes.
pub(super) const SETTINGS_ACK_AMONG: u8 = 32;
/// TLS 1.3: length of an alert, the only record besides application data that a client sends at the end.
const ALERT_BYTES: u16 = 2;
/// TLS 1.3: total bytes of two session tickets as OpenSSL sends them, before the answer to the first request.
pub(super) const TICKETS_BYTES: core::ops::RangeInclusive<u32> = 480..=580;
/// Maximum total bytes of session tickets, each with a client certificate in it.
const TICKETS_BYTES_MAX: u32 = 2_100;
/// Bytes of the first session ticket, while the second one is still on its way.
const TICKET_BYTES: core::ops::RangeInclusive<u32> = 240..=300;
/// HTTP/2: maximum bytes from the server between a client's preface and its first request. They are settings, their
/// acknowledgement and a window update, each in a record. Every answer is longer. The next constant includes session
/// tickets; few answers are as short.
const SETTINGS_HEARD_MAX: u32 = 150;
const PREFACE_HEARD_MAX: u32 = 690;
/// HTTP/1: maximum bytes of two interim answers during a body, for example one from a proxy and one from the server
/// behind it.
const INTERIM_RECORDS_BYTES_MAX: u32 = 130;
/// HTTP/2: maximum length of a HEADERS record. A longer record is part of a body.
const HEADERS_BYTES_MAX: u16 = 4_096;
/// HTTP/2: maximum difference in length between HEADERS frames for one site. A body's DATA frame is as close only by
/// chance.
const HEADERS_ALIKE_BYTES: u16 = 16;
/// HTTP/2: length of a PRIORITY frame. Browsers send one at once for each picture of a page. Clients with headers as
/// short get no such exception.
const PRIORITY_BYTES: u16 = 14;
/// HTTP/2: maximum length of HEADERS frames that may share a record, if all have the same length.
const HEADERS_SHORT_BYTES: u16 = 64;
/// HTTP/2: number of streams that servers accept at once.
const STREAMS_MAX: u8 = 128;
/// HTTP/2: minimum length of a HEADERS frame: its header, and one field.
const HEADERS_BYTES_MIN: u16 = 10;
/// Bytes of window updates that a server may send while a body is sent. Certain records follow an answer only if more
/// was heard: those in the middle of a segment, and those too long for headers. [`BODY_BYTES_PER_HEARD`] adds to this
/// bound.
const HEARD_IN_BODY_MAX: u32 = 240;
/// Value of [`HEARD_IN_BODY_MAX`] after a connection's first request, with tickets and settings.
const HEARD_AT_FIRST_MAX: u32 = 1_000;
/// Bytes of a body that allow the server one more byte. Go's server sends 35 or 70 bytes for every 4 KB or more, as
/// measured.
const BODY_BYTES_PER_HEARD: u32 = 32;
/// HTTP/2: number of records of one turn, each as long as the one before, after which further ones are requests.
const ALIKE_MIN: u8 = 2;
/// HTTP/2: maximum length of HEADERS after the first record of a turn. A longer record is part of a body.
const LATER_HEADERS_BYTES_MAX: u16 = 700;
/// HTTP/1: length of the shortest request that names its host (`GET / HTTP/1.1`, `Host: a`).
const HTTP1_BYTES_MIN: u16 = 27;
/// HTTP/1: minimum length of a record that may be the body that `Expect: 100-continue` delayed.
const BODY_RECORD_MIN: u16 = 8_192;

impl Conversation {
    /// Returns whether the server has sent more than it sends while a body is received.
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
        // Early data has no alerts.
        let may_be_alert = self.speaks == speaks::TLS && self.is_tls_1_3() && !self.has(is::ALERTED);
        if bytes == ALERT_BYTES && may_be_alert {
            self.is |= is::ALERTED;
            return 0;
        }
        self.owed(moment) + self.data(bytes, is_among_first, record.begins_segment, moment)
    }

    /// Counts the requests in a record of `bytes` bytes of data that is no alert.
    #[inline(always)]
    fn data(&mut self, bytes: u16, is_among_first: bool, begins_segment: bool, moment: Moment) -> u32 {
        if self.has(is::IN_BODY) {
            if bytes == SETTINGS_ACK_BYTES && self.has(is::OFFERS_HTTP2) {
                // No HTTP/1 request and no end of a body is as short.
                self.is |= is::HTTP2;
            }
            if self.has(is::HTTP2) && !self.is_answered(moment) {
                return 0;
            }
        }
        // A preface comes before all control frames.
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

    /// HTTP/2: returns 1 if a supposed control frame was answered, and so was a request. A PING's acknowledgement is
    /// too short to count as an answer.
    #[inline(always)]
    fn owed(&mut self, moment: Moment) -> u32 {
        let is_answered = moment.said.wrapping_sub(self.control_at) > self.no_answer_bytes();
        let is_owed = self.has(is::OWED) && is_answered;
        if is_owed {
            self.is &= !is::OWED;
        }
        is_owed as u32
    }

    /// HTTP/2: returns whether a record counts as a control frame, by its length. Few are accepted unless the server
    /// has sent much.
    #[inline(always)]
    fn is_control(&mut self, bytes: u16, is_among_first: bool, moment: Moment) -> bool {
        let [short, long, two] = CONTROL_BYTES;
        // After a client certificate, Finished does not show what Java adds, but this record does.
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
        // If the frame's position is a guess, few are accepted.
        let may_be_window = since_request >= WINDOW_HEARD_MIN && (!self.is_guessed() || self.is_left());
        if may_be_window && since_control >= WINDOW_HEARD_MIN {
            self.control_at = moment.said;
            self.is &= !is::PAIRED;
            return true;
        }
        // Two at one point: one for the stream, one for the connection.
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
        // RST_STREAM, PING, GOAWAY or the end of a body; or a request of that length, which the server then answers.
        // Several at one point count as one.
        if since_control == 0 && self.has(is::OWED) {
            return true;
        }
        // The empty end of a body follows the window updates that the server sends during the body.
        let quiet = if bytes == SETTINGS_ACK_BYTES { SETTINGS_HEARD_MAX } else { self.no_answer_bytes() };
        let is_turn = since_request > quiet;
        if since_control != 0 && is_turn {
            self.is |= is::OWED;
            self.control_at = moment.said;
            return true;
        }
        // The frame belongs to a turn that counts already.
        if !is_turn && bytes != self.headers_bytes {
            return true;
        }
        self.is_left()
    }

    /// HTTP/2: takes one of the free control frames. Returns false if none is left.
    #[inline(always)]
    const fn is_left(&mut self) -> bool {
        let is_left = self.controls_left != 0;
        self.controls_left = self.controls_left.saturating_sub(1);
        is_left
    }

    /// Counts the requests of a record on a connection that is taken for HTTP/1. Returns None if the record shows
    /// HTTP/2 and must be judged as such.
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
                // The server sent the tickets before.
                self.is &= !is::FIRST;
            }
            self.turned(moment);
            self.turn_records = 1;
            return Some(1);
        }
        let is_interim =
            heard != 0 && heard <= INTERIM_RECORDS_BYTES_MAX && (bytes >= BODY_RECORD_MIN || self.has(is::IN_BODY));
        // An HTTP/1 server sends only `100 Continue` during a body, and no HTTP/1 request is as short.
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
            // HTTP/2: the request itself, after a preface that was counted for it.
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
        // The second ticket follows the first one, and no third.
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

    /// Returns whether this record of a turn is about as long as the two before it. Many HTTP/2 requests at once look
    /// like this, so the connection is then taken for HTTP/2.
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

    /// Returns the maximum length of a record that is no answer: `100 Continue`, or HTTP/2 control frames.
    #[inline(always)]
    pub(super) const fn no_answer_bytes(&self) -> u32 {
        // A server adds half of what Java adds.
        let overhead = if self.is_tls_1_3() { OVERHEAD_1_3 } else { self.overhead };
        CONTINUE_BYTES + HEADER_BYTES + overhead as u32
    }

    /// Counts the requests of an HTTP/2 record that may be headers. The second record of a turn may be the body of the
    /// first, unless both have about one length. A third record is a request of its own.
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
            // Too short for headers: part of a header block, or a control frame beyond the free ones.
            return is_turn as u32;
        }
        let before = self.turn_records;
        if before < 2 {
            self.turn_records += 1;
        }
        if self.has(is::PREFACE_COUNTED) {
            self.is &= !is::PREFACE_COUNTED;
            // Only if the record does not follow an answer.
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
