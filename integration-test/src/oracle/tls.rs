//! Requests under TLS, found by the headers of its records: of HTTP/1, and of HTTP/2 by the lengths of its frames.

use super::conversation::{Ahead, CONTINUE, Moment, Turn};

const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const HEADER: usize = 5;
const LENGTH_MAX: usize = 16_384 + 2_048;
/// Maximum number of records of one segment that are inspected.
const RECORDS_MAX: usize = 24;
/// Number of bytes that TLS 1.3 adds to a record.
const OVERHEAD_1_3: usize = 17;
/// Number of bytes that Java adds to a record, which is 16 more, and the length of its Finished record.
const OVERHEAD_OF_JAVA: usize = 33;
const FINISHED_OF_JAVA: usize = 85;
/// Length of a Finished record, either Java's with the shorter hash or others' with the longer one.
const FINISHED_OF_EITHER: usize = 69;
/// Number of bytes assumed to be added to a record where it is unknown.
const OVERHEAD_UNKNOWN: usize = 24;
/// Maximum length of a record with a Finished message of TLS 1.2, and the length of the message.
const FINISHED_1_2_MAX: usize = 112;
const FINISHED_1_2: usize = 16;
/// Properties of a TLS 1.3 record with a Finished message. Its length has a maximum, or is a multiple of the padding
/// plus a tag. It is the third record at the latest.
const FINISHED_1_3_MAX: usize = 128;
const FINISHED_AMONG: usize = 3;
const PADDING: usize = 64;
const TAG: usize = 16;
/// Length of an alert, which TLS 1.3 sends at an end.
const ALERT: usize = 2;
/// Minimum length of a server's answer: more than it sends while a body is uploaded. It grows by one byte for each
/// `BODY_PER_HEARD` bytes of the body.
const ANSWER_MIN: u32 = 240;
const FIRST_ANSWER_MIN: u32 = 1_000;
const BODY_PER_HEARD: u32 = 32;
/// Length of a body that waited for `100 Continue`.
const BODY_MIN: usize = 8192;
/// Length of two session tickets of a server.
const TICKETS: std::ops::RangeInclusive<u32> = 480..=580;
/// Maximum length of a server's session tickets.
const TICKETS_MAX: u32 = 2100;
/// Maximum length of a server's data after a preface, without and with tickets, and of two interim answers to a body.
const SETTINGS: u32 = 150;
const TICKETS_AND_SETTINGS: u32 = 690;
const INTERIM: u32 = 130;
/// Maximum length of a server's first flight without a certificate, and the length of one session ticket.
const RESUMED_MAX: u32 = 400;
const TICKET: std::ops::RangeInclusive<u32> = 240..=300;

/// Lengths of HTTP/2 frames in bytes: an acknowledgement of settings, single control frames that may be free, and two
/// control frames in one record. `WINDOW` is the number of bytes that a server sends before its window is enlarged.
const SETTINGS_ACK: usize = 9;
const CONTROL: [usize; 2] = [13, CONTROL_MAX];
const CONTROL_MAX: usize = 17;
const CONTROL_TWICE: usize = 26;
const WINDOW: u32 = 16_384;
/// Number of control frames that are free without an answer, and the number of first records that may contain the
/// acknowledgement.
const CONTROLS_FREE: usize = 3;
const ACK_AMONG: usize = 32;
/// Maximum length of a start of HTTP/2 without a request.
const PREFACE_MAX: usize = 90;
/// Lengths of HEADERS frames: the shortest; a length below any request of HTTP/1; the longest of several in one record.
/// Then the maximum difference of such frames, the longest behind another of its turn, and the longest of all.
const HEADERS_MIN: usize = 10;
const HTTP1_MIN: usize = 27;
const HEADERS_SHORT: usize = 64;
const HEADERS_ALIKE: usize = 16;
const LATER_HEADERS_MAX: usize = 700;
const HEADERS_MAX: usize = 4096;
/// Length of a PRIORITY frame. Browsers send many at once, and none is a request.
const PRIORITY: usize = 14;
/// Number of records of equal length after which further ones count as requests.
const ALIKE: u32 = 2;
/// Maximum number of concurrent streams of a server.
const STREAMS_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(super) struct Tls {
    phase: Phase,
    /// Number of bytes that encryption adds to a record.
    overhead: usize,
    /// Number of records of application data, early or behind the handshake.
    records: usize,
    /// Number of records that may belong to the handshake's end, or of any records if the added length is unknown.
    /// `ending_heard` is the client's acknowledgement number when it sent the first of them.
    ending: usize,
    ending_heard: u32,
    /// The client has sent a record as long as an alert, and sends one alert at most.
    is_alerted: bool,
    /// The server sends one more ticket at most: it showed no certificate, or has sent the first one.
    has_one_ticket: bool,
    ahead: Ahead,
    /// True once a record's position was unknown.
    is_cut: bool,
    /// The server had sent nothing yet when the incomplete header began.
    is_header_early: bool,
    http2: Http2,
}

/// State of HTTP/2 on a connection.
#[derive(Clone, Debug)]
struct Http2 {
    is_offered: bool,
    is_spoken: bool,
    /// The preface was counted as the request behind it.
    is_preface_counted: bool,
    is_acknowledged: bool,
    /// A record since the newest request was too long for headers.
    is_in_body: bool,
    /// Two control frames were free at one time.
    is_pair: bool,
    /// The newest control frame may be a request.
    is_owed: bool,
    /// Acknowledgement number when a control frame was last attributed to an answer.
    control_heard: u32,
    /// Number of control frames that may still be free without an answer.
    controls_left: usize,
    /// Number of HEADERS in this turn, 2 at most, or number of records of equal length before HTTP/2 is detected.
    headers: u32,
    /// Length of the newest of these records.
    headers_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Hello,
    Changed,
    Finished,
}

/// Returns a record's type and length, if the bytes begin with a record.
pub(super) fn record(bytes: &[u8]) -> Option<(u8, usize)> {
    let [kind, 3, 0..=4, high, low, ..] = *bytes else { return None };
    let length = usize::from(u16::from_be_bytes([high, low]));
    ((20..=23).contains(&kind) && (1..=LENGTH_MAX).contains(&length)).then_some((kind, length))
}

/// Returns whether the name of HTTP/2 occurs from `from` on: its length, the name, and something behind.
fn names_http2(payload: &[u8], from: usize) -> bool {
    (from.max(1)..payload.len()).any(|at| matches!(payload[at - 1..], [2, b'h', b'2', _, ..]))
}

impl Tls {
    pub(super) const fn at_hello(moment: Moment) -> Self {
        let http2 = Http2 {
            is_offered: false,
            is_spoken: false,
            is_preface_counted: false,
            is_in_body: false,
            is_pair: false,
            is_owed: false,
            is_acknowledged: false,
            control_heard: moment.heard,
            controls_left: 0,
            headers: 0,
            headers_bytes: 0,
        };
        Self {
            phase: Phase::Hello,
            overhead: 0,
            records: 0,
            ending: 0,
            ending_heard: moment.heard,
            is_alerted: false,
            has_one_ticket: false,
            ahead: Ahead::Rest(0),
            is_cut: false,
            is_header_early: false,
            http2,
        }
    }

    /// Returns the state for a connection seen from the middle. It may use HTTP/2, and has acknowledged the settings.
    pub(super) const fn in_the_middle(moment: Moment) -> Self {
        let mut tls = Self::at_hello(moment);
        tls.phase = Phase::Finished;
        tls.overhead = OVERHEAD_UNKNOWN;
        tls.records = ACK_AMONG;
        tls.http2.controls_left = CONTROLS_FREE;
        tls.http2.is_offered = true;
        tls
    }

    /// Skips bytes that were never seen.
    pub(super) fn leave_out(&mut self, turn: &mut Turn, bytes: usize) {
        self.ahead.leave_out(bytes);
        // The end of the handshake is among them. Only TLS 1.3 sends more without waiting.
        if self.phase != Phase::Finished {
            self.finish(turn, turn.heard, OVERHEAD_1_3);
        }
    }

    /// Forgets the position within a record.
    pub(super) fn lose(&mut self) {
        self.ahead = Ahead::Lost;
    }

    /// Reads a late segment on its own, and returns its number of requests.
    pub(super) fn apart(&mut self, turn: &mut Turn, moment: Moment, payload: &[u8]) -> u64 {
        let (ahead, is_cut, is_header_early) = (self.ahead.apart(), self.is_cut, self.is_header_early);
        let requests = self.requests(turn, moment, payload, 0);
        (self.ahead, self.is_cut, self.is_header_early) = (ahead, is_cut, is_header_early);
        requests
    }

    pub(super) fn requests(&mut self, turn: &mut Turn, moment: Moment, payload: &[u8], repeated: usize) -> u64 {
        self.http2.is_offered |= self.phase == Phase::Hello && names_http2(payload, repeated);
        let fresh = &payload[repeated..];
        let mut requests = 0;
        let ahead = std::mem::replace(&mut self.ahead, Ahead::Lost);
        let mut was_lost = matches!(ahead, Ahead::Lost);
        self.is_cut |= was_lost;
        // True if nothing in this segment so far may be a request.
        let mut begins = matches!(ahead, Ahead::Lost | Ahead::Rest(0));
        let mut at = match ahead {
            Ahead::Lost => 0,
            Ahead::Rest(left) if left >= fresh.len() => {
                self.ahead = Ahead::Rest(left - fresh.len());
                return self.answered(turn, moment);
            }
            Ahead::Rest(left) => left,
            Ahead::Header(begun) => {
                let Some((begun, here)) = self.ahead.join(begun, fresh, HEADER) else { return 0 };
                match record(&begun) {
                    Some(record) => {
                        // A record of a handshake is as early as its header began.
                        let is_early = self.is_header_early && self.phase != Phase::Finished;
                        let heard = if is_early { turn.heard } else { moment.heard };
                        requests += self.record(turn, Moment { heard, ..moment }, record, false);
                        here + record.1
                    }
                    None => {
                        (was_lost, self.is_cut) = (true, true);
                        0
                    }
                }
            }
        };
        let mut is_known = true;
        for _ in 0..RECORDS_MAX {
            if !is_known || at + HEADER > fresh.len() {
                break;
            }
            let Some((kind, length)) = record(&fresh[at..]) else {
                is_known = false;
                continue;
            };
            let is_small = length <= self.overhead + CONTROL_MAX;
            requests += self.record(turn, moment, (kind, length), begins);
            begins &= is_small;
            at += HEADER + length;
        }
        self.ahead = match at.checked_sub(fresh.len()) {
            _ if !is_known => Ahead::Lost,
            Some(left) => Ahead::Rest(left),
            None if was_lost && at == 0 => Ahead::Lost,
            None if at + HEADER > fresh.len() => {
                self.is_header_early = turn.heard == moment.heard;
                Ahead::Header(fresh[at..].to_vec())
            }
            None => Ahead::Lost,
        };
        if requests == 0 && matches!(self.ahead, Ahead::Lost) { self.turn_alone(turn, moment) } else { requests }
    }

    /// Counts a request by the server's answer alone, where positions of records are only guessed.
    fn answered(&mut self, turn: &mut Turn, moment: Moment) -> u64 {
        if self.is_cut && self.is_answer(*turn, moment) { self.turn_alone(turn, moment) } else { 0 }
    }

    /// Counts requests by turns alone, where the positions of records are unknown.
    fn turn_alone(&mut self, turn: &mut Turn, moment: Moment) -> u64 {
        let heard = turn.heard_since(moment);
        let is_first = turn.is_open && self.phase == Phase::Finished;
        let is_answer = if self.http2.is_in_body { self.is_answer(*turn, moment) } else { heard > self.no_answer() };
        if !is_first && !is_answer {
            return 0;
        }
        // The client may have been asked for the body along with the tickets.
        let are_as_long = [heard, heard.saturating_sub(self.no_answer())].iter().any(|heard| TICKETS.contains(heard));
        let are_tickets = turn.is_first && !is_first && are_as_long;
        self.takes(turn, moment);
        u64::from(!are_tickets)
    }

    /// Returns the length of a record that is no answer: `100 Continue`, or control frames.
    fn no_answer(&self) -> u32 {
        // A server adds as much as others do, whatever its client does.
        let overhead = if self.is_1_3() { OVERHEAD_1_3 } else { self.overhead };
        CONTINUE + u32::try_from(HEADER + overhead).expect("some bytes")
    }

    /// Counts a request, so its body is still to come.
    fn takes(&mut self, turn: &mut Turn, moment: Moment) {
        turn.takes(moment);
        self.http2.is_in_body = false;
    }

    /// Begins a turn of HTTP/2, and leaves open whether the next request is the first one.
    fn turns(&mut self, turn: &mut Turn, moment: Moment) {
        (turn.heard, turn.at, turn.is_first) = (moment.heard, moment.sequence, false);
        self.http2.is_in_body = false;
    }

    /// Returns whether the server has sent more than it sends while a body of this size is uploaded.
    fn is_answer(&self, turn: Turn, moment: Moment) -> bool {
        let least = if turn.is_first { FIRST_ANSWER_MIN } else { ANSWER_MIN };
        turn.heard_since(moment) > least + moment.sequence.wrapping_sub(turn.at) / BODY_PER_HEARD
    }

    fn record(&mut self, turn: &mut Turn, moment: Moment, (kind, length): (u8, usize), begins: bool) -> u64 {
        match (self.phase, kind) {
            (Phase::Hello, CHANGE_CIPHER_SPEC) => self.phase = Phase::Changed,
            (Phase::Changed, HANDSHAKE) if length <= FINISHED_1_2_MAX => {
                self.finished(turn, moment, length.saturating_sub(FINISHED_1_2));
            }
            (Phase::Finished, APPLICATION_DATA) => return self.data(turn, moment, length, begins),
            // Application data before the server has sent anything is early data.
            (Phase::Hello | Phase::Changed, APPLICATION_DATA) if turn.heard_since(moment) == 0 => {
                self.overhead = OVERHEAD_1_3;
                return self.data(turn, moment, length, begins);
            }
            (Phase::Hello | Phase::Changed, APPLICATION_DATA) => {
                if self.ending == 0 {
                    self.ending_heard = moment.heard;
                } else if self.ending_heard != moment.heard || begins {
                    // A server answers the end of a handshake and not its middle, and the end arrives in one piece. So
                    // the end came before.
                    self.finished(turn, Moment { heard: self.ending_heard, ..moment }, OVERHEAD_1_3);
                    return self.data(turn, moment, length, begins);
                }
                self.ending += 1;
                if length <= FINISHED_1_3_MAX || length % PADDING == TAG || self.ending >= FINISHED_AMONG {
                    let overhead = if length == FINISHED_OF_JAVA { OVERHEAD_OF_JAVA } else { OVERHEAD_1_3 };
                    self.ending = usize::from(length == FINISHED_OF_EITHER);
                    self.finished(turn, moment, overhead);
                }
                return 0;
            }
            _ => {}
        }
        self.answered(turn, moment)
    }

    /// Ends the handshake. Everything that the server has sent so far belongs to it.
    fn finished(&mut self, turn: &mut Turn, moment: Moment, overhead: usize) {
        self.has_one_ticket = (1..RESUMED_MAX).contains(&moment.heard.wrapping_sub(turn.heard));
        (turn.heard, turn.at) = (moment.heard, moment.sequence);
        self.finish(turn, moment.heard, overhead);
    }

    fn finish(&mut self, turn: &mut Turn, heard: u32, overhead: usize) {
        // A turn begins, and early data is no part of it.
        self.http2.is_in_body = false;
        // The server's next data may be the answer to early data.
        turn.is_first &= turn.is_open;
        (self.phase, self.overhead, self.records) = (Phase::Finished, overhead, 0);
        (self.http2.control_heard, self.http2.headers, self.http2.controls_left) = (heard, 0, CONTROLS_FREE);
    }

    fn data(&mut self, turn: &mut Turn, moment: Moment, length: usize, begins: bool) -> u64 {
        let bytes = length.saturating_sub(self.overhead);
        let is_among_first = self.records < ACK_AMONG;
        self.records = (self.records + 1).min(ACK_AMONG);
        if bytes == ALERT && self.phase == Phase::Finished && self.is_1_3() && !self.is_alerted {
            self.is_alerted = true;
            return 0;
        }
        let answered = moment.heard.wrapping_sub(self.http2.control_heard);
        let is_owed = self.http2.is_owed && answered > self.no_answer();
        self.http2.is_owed &= !is_owed;
        u64::from(is_owed) + self.of_data(turn, moment, bytes, begins, is_among_first)
    }

    fn of_data(&mut self, turn: &mut Turn, moment: Moment, bytes: usize, begins: bool, is_among_first: bool) -> u64 {
        if self.http2.is_in_body {
            self.http2.is_spoken |= self.http2.is_offered && bytes == SETTINGS_ACK;
            if self.http2.is_spoken && !self.is_answer(*turn, moment) {
                return 0;
            }
        }
        // The first record is the preface, whatever its length.
        if self.http2.is_offered && !turn.is_open && self.is_control(*turn, moment, bytes, is_among_first) {
            return 0;
        }
        let requests = match self.http2.is_spoken {
            true => self.http2(turn, moment, bytes),
            false => self.http1(turn, moment, bytes, begins),
        };
        self.http2.is_in_body |= bytes > HEADERS_MAX;
        requests
    }

    fn http1(&mut self, turn: &mut Turn, moment: Moment, bytes: usize, begins: bool) -> u64 {
        let heard = turn.heard_since(moment);
        if turn.is_open {
            // The data acknowledged before it was tickets.
            let is_second_to_come = TICKET.contains(&heard);
            self.has_one_ticket |= is_second_to_come;
            let is_first = turn.is_first && (heard == 0 || is_second_to_come);
            self.takes(turn, moment);
            turn.is_first = is_first;
            self.http2.headers = 1;
            self.http2.is_preface_counted |= self.http2.is_offered && bytes <= PREFACE_MAX;
            return 1;
        }
        let is_body = bytes >= BODY_MIN || self.http2.is_in_body;
        let is_interim = is_body && (1..=INTERIM).contains(&heard);
        let is_rest = self.http2.is_in_body && bytes < HTTP1_MIN && heard > self.no_answer();
        let is_no_interim = is_interim && heard != self.no_answer();
        if self.http2.is_offered && (is_no_interim || is_rest && !self.is_answer(*turn, moment)) {
            self.http2.is_spoken = true;
            return 0;
        }
        if is_interim {
            return 0;
        }
        if heard <= self.no_answer() || !begins && heard <= INTERIM {
            self.http2.is_preface_counted = false;
            return u64::from(self.http2.is_one_of_many(bytes));
        }
        // After the handshake a TLS 1.3 server sends tickets, and an HTTP/2 server settings. Neither is an answer.
        let is_preface_counted = self.http2.is_preface_counted;
        let are_settings = is_preface_counted && heard <= SETTINGS;
        let most = TICKETS_AND_SETTINGS - if self.has_one_ticket { *TICKET.end() } else { 0 };
        let with_settings = is_preface_counted && (*TICKET.start()..=most).contains(&heard);
        let are_alone = !self.has_one_ticket && TICKETS.contains(&heard) || bytes >= BODY_MIN && heard <= TICKETS_MAX;
        let are_tickets = are_settings || self.is_1_3() && turn.is_first && (are_alone || with_settings);
        // After one ticket there may be another, but no third.
        turn.is_first &= are_tickets && TICKET.contains(&heard) && !self.has_one_ticket;
        self.has_one_ticket = true;
        let is_first = turn.is_first;
        if self.http2.is_offered && !are_tickets && (HEADERS_MIN..HTTP1_MIN).contains(&bytes) {
            self.http2.is_spoken = true;
            return self.http2(turn, moment, bytes);
        }
        self.takes(turn, moment);
        turn.is_first = is_first;
        (self.http2.headers, self.http2.headers_bytes) = (1, 0);
        if are_tickets {
            self.http2.is_preface_counted = false;
        }
        u64::from(!are_tickets)
    }

    fn is_1_3(&self) -> bool {
        [OVERHEAD_1_3, OVERHEAD_OF_JAVA].contains(&self.overhead)
    }

    /// Counts a record that may be headers.
    fn http2(&mut self, turn: &mut Turn, moment: Moment, bytes: usize) -> u64 {
        if bytes > HEADERS_MAX {
            let is_answered = self.is_answer(*turn, moment);
            if is_answered {
                self.turns(turn, moment);
            }
            return u64::from(is_answered);
        }
        let heard = turn.heard_since(moment);
        let is_turn = heard > self.no_answer();
        self.http2.is_owed = false;
        if is_turn {
            self.turns(turn, moment);
            self.http2.headers = 0;
        }
        if bytes < HEADERS_MIN {
            return u64::from(is_turn);
        }
        let http2 = &mut self.http2;
        let (before, known) = (http2.headers, http2.headers_bytes);
        http2.headers = before.max((before + 1).min(2));
        if std::mem::take(&mut http2.is_preface_counted) && heard <= TICKETS_MAX {
            // The preface was counted for it, and there was no answer.
            (http2.headers_bytes, http2.headers) = (bytes, 1);
            return 0;
        }
        if before == 0 && (HEADERS_MIN..=HEADERS_SHORT).contains(&known) && bytes > known && bytes.is_multiple_of(known)
        {
            let several = (bytes / known).min(STREAMS_MAX);
            http2.earns(several);
            return several as u64;
        }
        let is_body = match before {
            0 => false,
            1 => known == 0 || bytes.abs_diff(known) > HEADERS_ALIKE || bytes > LATER_HEADERS_MAX,
            _ => bytes > LATER_HEADERS_MAX,
        };
        if is_body {
            return 0;
        }
        if before > 0 {
            http2.earns(1);
        }
        http2.headers_bytes = bytes;
        1
    }

    /// Returns whether a record of this length is a free control frame. One is free once where every client must send
    /// it, after many received bytes, or rarely.
    fn is_control(&mut self, turn: Turn, moment: Moment, bytes: usize, is_among_first: bool) -> bool {
        let no_answer = self.no_answer();
        let http2 = &mut self.http2;
        let without_padding =
            bytes.checked_sub(OVERHEAD_OF_JAVA - OVERHEAD_1_3).filter(|_| self.ending > 0 && !http2.is_spoken);
        let is_of_java = without_padding == Some(SETTINGS_ACK);
        if (bytes == SETTINGS_ACK || is_of_java) && is_among_first && !http2.is_acknowledged {
            (http2.is_spoken, http2.is_acknowledged) = (true, true);
            if is_of_java {
                self.overhead = OVERHEAD_OF_JAVA;
            }
            return true;
        }
        let is_window_of_java = http2.is_preface_counted && without_padding == Some(CONTROL[0]);
        if is_window_of_java || bytes == PRIORITY && http2.headers_bytes > PRIORITY + HEADERS_ALIKE {
            return http2.spends();
        }
        if !CONTROL.contains(&bytes) && ![SETTINGS_ACK, CONTROL_TWICE].contains(&bytes) {
            return false;
        }
        let since_control = moment.heard.wrapping_sub(http2.control_heard);
        let heard = turn.heard_since(moment);
        // Few are free while positions of records are only guessed.
        let may_be_window = heard >= WINDOW && (!self.is_cut || http2.spends());
        if may_be_window && since_control >= WINDOW {
            (http2.control_heard, http2.is_pair) = (moment.heard, false);
            return true;
        }
        // Two at one time, but not three, belong to a stream and to the connection.
        if may_be_window && since_control == 0 && !http2.is_pair {
            http2.is_pair = true;
            return true;
        }
        if bytes == CONTROL_TWICE {
            return false;
        }
        // This many come unasked, whatever was sent before.
        if bytes == CONTROL[0] && http2.spends() {
            return true;
        }
        if since_control == 0 && http2.is_owed {
            return true;
        }
        let no_answer = if bytes == SETTINGS_ACK { SETTINGS } else { no_answer };
        // Other frames of this length may be requests, and are if the server answers. Several at one time cannot be
        // told apart.
        if heard > no_answer && since_control != 0 {
            (http2.is_owed, http2.control_heard) = (true, moment.heard);
            return true;
        }
        heard <= no_answer && bytes != http2.headers_bytes || http2.spends()
    }
}

impl Http2 {
    /// Adds one free control frame for each further stream, which may be reset.
    fn earns(&mut self, streams: usize) {
        self.controls_left = (self.controls_left + streams).min(255);
    }

    /// Takes one free control frame, and returns whether there was one.
    fn spends(&mut self) -> bool {
        let is_left = self.controls_left > 0;
        self.controls_left = self.controls_left.saturating_sub(1);
        is_left
    }

    /// Returns whether a record is as long as the two before it, as long as HTTP/2 is not detected.
    fn is_one_of_many(&mut self, bytes: usize) -> bool {
        let may_be = self.is_offered && (HEADERS_MIN..=LATER_HEADERS_MAX).contains(&bytes);
        let is_alike = may_be && bytes.abs_diff(self.headers_bytes) <= 1;
        self.headers = if is_alike { self.headers + 1 } else { 1 };
        self.headers_bytes = bytes;
        let is_one = self.headers > ALIKE;
        self.is_spoken |= is_one;
        is_one
    }
}
