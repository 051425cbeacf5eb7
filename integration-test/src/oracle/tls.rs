//! Requests under TLS, by the headers of its records: of HTTP/1, and of HTTP/2 by the lengths of its frames.

use super::conversation::{Ahead, CONTINUE, Moment, Turn};

const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const HEADER: usize = 5;
const LENGTH_MAX: usize = 16_384 + 2_048;
/// Of one segment, so many records are looked at.
const RECORDS_MAX: usize = 24;
/// What TLS 1.3 adds to a record.
const OVERHEAD_1_3: usize = 17;
/// Java adds 16 more, to its Finished too.
const OVERHEAD_OF_JAVA: usize = 33;
const FINISHED_OF_JAVA: usize = 85;
/// Java's with the shorter hash, and others' with the longer one.
const FINISHED_OF_EITHER: usize = 69;
/// Taken for what is added where that is not known.
const OVERHEAD_UNKNOWN: usize = 24;
/// The longest record that a Finished message of TLS 1.2 is in, and the message.
const FINISHED_1_2_MAX: usize = 112;
const FINISHED_1_2: usize = 16;
/// The same of TLS 1.3, which comes third at the latest; or it is padded to so many bytes, and has a tag.
const FINISHED_1_3_MAX: usize = 128;
const FINISHED_AMONG: usize = 3;
const PADDING: usize = 64;
const TAG: usize = 16;
/// What TLS 1.3 sends at an end.
const ALERT: usize = 2;
/// Nothing that a server says while a body is sent is as much, and one more byte for each so many of the body.
const ANSWER_MIN: u32 = 240;
const FIRST_ANSWER_MIN: u32 = 1_000;
const BODY_PER_HEARD: u32 = 32;
/// A body that waited for `100 Continue`.
const BODY_MIN: usize = 8192;
/// Two of a server's tickets, and the first of them.
const TICKETS: std::ops::RangeInclusive<u32> = 480..=580;
/// More than tickets are, whatever is in them.
const TICKETS_MAX: u32 = 2100;
/// What a server says behind a preface, without tickets and with them; and twice, to a body.
const SETTINGS: u32 = 150;
const TICKETS_AND_SETTINGS: u32 = 690;
const INTERIM: u32 = 130;
/// A server's first flight, without a certificate.
const RESUMED_MAX: u32 = 400;
const TICKET: std::ops::RangeInclusive<u32> = 240..=300;

/// HTTP/2's frames, in bytes: the acknowledgement of settings; those of control that may be free one by one; two in
/// one record; and what a server has said before a window is made larger.
const SETTINGS_ACK: usize = 9;
const CONTROL: [usize; 2] = [13, CONTROL_MAX];
const CONTROL_MAX: usize = 17;
const CONTROL_TWICE: usize = 26;
const WINDOW: u32 = 16_384;
/// How many of them are free without that, and among how many records the acknowledgement is.
const CONTROLS_FREE: usize = 3;
const ACK_AMONG: usize = 32;
/// The longest beginning of HTTP/2 without a request.
const PREFACE_MAX: usize = 90;
/// HEADERS: the shortest; what is shorter than any request of HTTP/1; the longest that may come several to a record;
/// how much they differ; the longest behind another one of its turn; the longest of all.
const HEADERS_MIN: usize = 10;
const HTTP1_MIN: usize = 27;
const HEADERS_SHORT: usize = 64;
const HEADERS_ALIKE: usize = 16;
const LATER_HEADERS_MAX: usize = 700;
const HEADERS_MAX: usize = 4096;
/// Of which a browser sends many at once, none a request.
const PRIORITY: usize = 14;
/// Behind so many as long as each other, more are requests.
const ALIKE: u32 = 2;
/// Streams that a server takes at once.
const STREAMS_MAX: usize = 128;

#[derive(Clone, Debug)]
pub(super) struct Tls {
    phase: Phase,
    /// What encryption adds to a record.
    overhead: usize,
    /// Records of application data, early or behind the handshake.
    records: usize,
    /// Those that may be of the handshake's end so far, or any where it did not say what encryption adds; and what the
    /// client had heard when it sent the first.
    ending: usize,
    ending_heard: u32,
    /// Has sent what is as long as an alert, of which there is one.
    is_alerted: bool,
    /// The server sends one ticket at most: it showed no certificate, or has sent the first.
    has_one_ticket: bool,
    ahead: Ahead,
    /// Once it was unknown where a record begins.
    is_cut: bool,
    /// Where a header is to be put together: the server had said nothing yet when it began.
    is_header_early: bool,
    http2: Http2,
}

/// What is known of HTTP/2.
#[derive(Clone, Debug)]
struct Http2 {
    is_offered: bool,
    is_spoken: bool,
    /// Its preface was counted for the request behind it.
    is_preface_counted: bool,
    is_acknowledged: bool,
    /// Since the newest request, a record was too long for headers.
    is_in_body: bool,
    /// Two frames of control were free at one time.
    is_pair: bool,
    /// The newest may be a request.
    is_owed: bool,
    /// What was heard when a frame of control was last taken for an answer's.
    control_heard: u32,
    /// Frames of control that may still be free without an answer.
    controls_left: usize,
    /// Of this turn, 2 at most; or those that are as long as each other.
    headers: u32,
    /// Length of the newest.
    headers_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Hello,
    Changed,
    Finished,
}

/// A record's type and length, where the bytes begin with one.
pub(super) fn record(bytes: &[u8]) -> Option<(u8, usize)> {
    let [kind, 3, 0..=4, high, low, ..] = *bytes else { return None };
    let length = usize::from(u16::from_be_bytes([high, low]));
    ((20..=23).contains(&kind) && (1..=LENGTH_MAX).contains(&length)).then_some((kind, length))
}

/// Whether HTTP/2's name is somewhere behind `from`: its length, itself, and something behind it.
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

    /// It may speak HTTP/2, and has acknowledged the settings.
    pub(super) const fn in_the_middle(moment: Moment) -> Self {
        let mut tls = Self::at_hello(moment);
        tls.phase = Phase::Finished;
        tls.overhead = OVERHEAD_UNKNOWN;
        tls.records = ACK_AMONG;
        tls.http2.controls_left = CONTROLS_FREE;
        tls.http2.is_offered = true;
        tls
    }

    /// Some bytes were never seen.
    pub(super) fn leave_out(&mut self, turn: &mut Turn, bytes: usize) {
        self.ahead.leave_out(bytes);
        // The end of the handshake is among them, which only TLS 1.3 sends without having waited.
        if self.phase != Phase::Finished {
            self.finish(turn, turn.heard, OVERHEAD_1_3);
        }
    }

    /// What comes next may be anywhere in a record.
    pub(super) fn lose(&mut self) {
        self.ahead = Ahead::Lost;
    }

    /// A segment that comes late is read by itself.
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
        // Nothing that may be a request was in this segment.
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
                        // Of a handshake, it is as early as it began.
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

    /// Where it is a guess that there is a record, an answer says that there is none.
    fn answered(&mut self, turn: &mut Turn, moment: Moment) -> u64 {
        if self.is_cut && self.is_answer(*turn, moment) { self.turn_alone(turn, moment) } else { 0 }
    }

    /// Where it is not known where records begin, turns alone tell.
    fn turn_alone(&mut self, turn: &mut Turn, moment: Moment) -> u64 {
        let heard = turn.heard_since(moment);
        let is_first = turn.is_open && self.phase == Phase::Finished;
        let is_answer = if self.http2.is_in_body { self.is_answer(*turn, moment) } else { heard > self.no_answer() };
        if !is_first && !is_answer {
            return 0;
        }
        // With them the body may have been asked for.
        let are_as_long = [heard, heard.saturating_sub(self.no_answer())].iter().any(|heard| TICKETS.contains(heard));
        let are_tickets = turn.is_first && !is_first && are_as_long;
        self.takes(turn, moment);
        u64::from(!are_tickets)
    }

    /// A record that is no answer: `100 Continue`, or frames of control.
    fn no_answer(&self) -> u32 {
        // A server adds no more than others, whatever its client does.
        let overhead = if self.is_1_3() { OVERHEAD_1_3 } else { self.overhead };
        CONTINUE + u32::try_from(HEADER + overhead).expect("some bytes")
    }

    /// A request is counted, so its body is still to come.
    fn takes(&mut self, turn: &mut Turn, moment: Moment) {
        turn.takes(moment);
        self.http2.is_in_body = false;
    }

    /// The same of HTTP/2, which does not ask for the first.
    fn turns(&mut self, turn: &mut Turn, moment: Moment) {
        (turn.heard, turn.at, turn.is_first) = (moment.heard, moment.sequence, false);
        self.http2.is_in_body = false;
    }

    /// Whether the server has said more than it says while a body of that much is sent.
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
            // Before the server has said anything, it is early data.
            (Phase::Hello | Phase::Changed, APPLICATION_DATA) if turn.heard_since(moment) == 0 => {
                self.overhead = OVERHEAD_1_3;
                return self.data(turn, moment, length, begins);
            }
            (Phase::Hello | Phase::Changed, APPLICATION_DATA) => {
                if self.ending == 0 {
                    self.ending_heard = moment.heard;
                } else if self.ending_heard != moment.heard || begins {
                    // The server answers the end of a handshake and not the middle of one, and the end comes in one
                    // piece: so it came before.
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

    /// What the server has said so far is of the handshake.
    fn finished(&mut self, turn: &mut Turn, moment: Moment, overhead: usize) {
        self.has_one_ticket = (1..RESUMED_MAX).contains(&moment.heard.wrapping_sub(turn.heard));
        (turn.heard, turn.at) = (moment.heard, moment.sequence);
        self.finish(turn, moment.heard, overhead);
    }

    fn finish(&mut self, turn: &mut Turn, heard: u32, overhead: usize) {
        // A turn begins: what was early is no part of what comes now.
        self.http2.is_in_body = false;
        // Behind early data, what is said next may be its answer.
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
        // The first of all is the preface, however long it is.
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
            // What was heard before it are the tickets.
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
        // Behind its handshake a server of TLS 1.3 sends tickets, and one of HTTP/2 settings, which are no answer.
        let is_preface_counted = self.http2.is_preface_counted;
        let are_settings = is_preface_counted && heard <= SETTINGS;
        let most = TICKETS_AND_SETTINGS - if self.has_one_ticket { *TICKET.end() } else { 0 };
        let with_settings = is_preface_counted && (*TICKET.start()..=most).contains(&heard);
        let are_alone = !self.has_one_ticket && TICKETS.contains(&heard) || bytes >= BODY_MIN && heard <= TICKETS_MAX;
        let are_tickets = are_settings || self.is_1_3() && turn.is_first && (are_alone || with_settings);
        // After one, there may be another, and no third.
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

    /// A record that may be headers.
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
            // The preface was counted for it, and nothing was answered.
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

    /// Whether a record as long is a frame of control, which is free: once where all have to send it, after much was
    /// heard, or rarely.
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
        // Where it is a guess that there is one, few are.
        let may_be_window = heard >= WINDOW && (!self.is_cut || http2.spends());
        if may_be_window && since_control >= WINDOW {
            (http2.control_heard, http2.is_pair) = (moment.heard, false);
            return true;
        }
        // Two at one time, and not three, are of one stream, and of the connection.
        if may_be_window && since_control == 0 && !http2.is_pair {
            http2.is_pair = true;
            return true;
        }
        if bytes == CONTROL_TWICE {
            return false;
        }
        // So many come unasked, whatever was said before.
        if bytes == CONTROL[0] && http2.spends() {
            return true;
        }
        if since_control == 0 && http2.is_owed {
            return true;
        }
        let no_answer = if bytes == SETTINGS_ACK { SETTINGS } else { no_answer };
        // What else is as long may be a request: it is one if the server answers it. Several at one time are not told
        // apart.
        if heard > no_answer && since_control != 0 {
            (http2.is_owed, http2.control_heard) = (true, moment.heard);
            return true;
        }
        heard <= no_answer && bytes != http2.headers_bytes || http2.spends()
    }
}

impl Http2 {
    /// Each stream beside others may be reset.
    fn earns(&mut self, streams: usize) {
        self.controls_left = (self.controls_left + streams).min(255);
    }

    /// One more is free, if there is one.
    fn spends(&mut self) -> bool {
        let is_left = self.controls_left > 0;
        self.controls_left = self.controls_left.saturating_sub(1);
        is_left
    }

    /// Before it is known that HTTP/2 is spoken: whether it is as long as the two before it.
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
