//! Requests of HTTP/1 under TLS, by the headers of its records.

use super::conversation::{CONTINUE, Turn};

const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const HEADER: usize = 5;
const LENGTH_MAX: usize = 16_384 + 2_048;
/// What TLS 1.3 adds to a record.
const OVERHEAD_1_3: usize = 17;
/// Taken for what is added where that is not known.
const OVERHEAD_UNKNOWN: usize = 24;
/// A client's Finished message of TLS 1.3, by the two lengths of hashes, alone and with an empty list of certificates.
const FINISHED_1_3: [usize; 4] = [53, 61, 69, 77];
/// The longest record that a Finished message of TLS 1.2 is in, and the message.
const FINISHED_1_2_MAX: usize = 112;
const FINISHED_1_2: usize = 16;
/// Records of application data before the Finished message of TLS 1.3 that are not of an application.
const BEFORE_FINISHED_MAX: usize = 3;
/// What TLS 1.3 sends at an end.
const ALERT_BYTES: usize = 2;
/// Where it may be HTTP/2, its frames that are no requests, and the longest of them.
const CONTROL: [usize; 4] = [9, 13, 14, CONTROL_MAX];
const CONTROL_MAX: usize = 17;
/// Nothing that a server says before it answers is as long, of this many bytes or more.
const ANSWER_MIN: u32 = 700;
/// A body that was held back for `100 Continue`.
const BODY_MIN: usize = 8192;

#[derive(Clone, Debug)]
pub(super) struct Tls {
    phase: Phase,
    /// What encryption adds to a record.
    overhead: usize,
    /// Of application data, as long as there was no Finished message.
    records: usize,
    /// Has sent what is as long as an alert, of which there is one.
    is_alerted: bool,
    ahead: Ahead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Hello,
    Changed,
    Finished,
    /// Seen from the middle on.
    Unknown,
}

/// What comes before the next record.
#[derive(Clone, Debug)]
enum Ahead {
    /// So much of the last one.
    Rest(usize),
    /// The rest of its header, of which this was in the last segment.
    Header(Vec<u8>),
    /// Nobody knows.
    Lost,
}

/// A record's type and length, where the bytes begin with one.
pub(super) fn record(bytes: &[u8]) -> Option<(u8, usize)> {
    let [kind, 3, 0..=4, ..] = *bytes else { return None };
    record_of_any_version(kind, bytes)
}

fn record_of_any_version(kind: u8, header: &[u8]) -> Option<(u8, usize)> {
    let length = usize::from(u16::from_be_bytes([*header.get(3)?, *header.get(4)?]));
    ((20..=23).contains(&kind) && (1..=LENGTH_MAX).contains(&length)).then_some((kind, length))
}

impl Tls {
    pub(super) const fn at_hello() -> Self {
        Self { phase: Phase::Hello, overhead: 0, records: 0, is_alerted: false, ahead: Ahead::Rest(0) }
    }

    pub(super) fn in_the_middle() -> Self {
        Self { phase: Phase::Unknown, overhead: OVERHEAD_UNKNOWN, ..Self::at_hello() }
    }

    /// Some bytes never came.
    pub(super) fn leave_out(&mut self, bytes: usize) {
        self.ahead = match self.ahead {
            Ahead::Rest(left) if bytes <= left => Ahead::Rest(left - bytes),
            Ahead::Rest(_) | Ahead::Header(_) | Ahead::Lost => Ahead::Lost,
        };
        // The end of the handshake is among them, which only TLS 1.3 sends without having waited.
        if matches!(self.phase, Phase::Hello | Phase::Changed) {
            (self.phase, self.overhead) = (Phase::Finished, OVERHEAD_1_3);
        }
    }

    /// Behind the handshake, so much and maybe more is left of a record.
    pub(super) fn has_left(&self, bytes: usize) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Unknown)
            && matches!(self.ahead, Ahead::Rest(left) if left >= bytes)
    }

    /// What comes next may be anywhere in a record.
    pub(super) fn lose(&mut self) {
        self.ahead = Ahead::Lost;
    }

    /// A segment that comes late is read by itself.
    pub(super) fn apart(&mut self, turn: &mut Turn, acknowledged: u32, fresh: &[u8]) -> u64 {
        let ahead = std::mem::replace(&mut self.ahead, Ahead::Lost);
        let requests = self.requests(turn, acknowledged, fresh);
        self.ahead = ahead;
        requests
    }

    pub(super) fn requests(&mut self, turn: &mut Turn, acknowledged: u32, fresh: &[u8]) -> u64 {
        let mut requests = 0;
        let ahead = std::mem::replace(&mut self.ahead, Ahead::Lost);
        let was_lost = matches!(ahead, Ahead::Lost);
        // Nothing that may be a request was in this segment.
        let mut begins = matches!(ahead, Ahead::Lost | Ahead::Rest(0));
        let mut at = match ahead {
            Ahead::Lost => 0,
            Ahead::Rest(left) if left >= fresh.len() => {
                self.ahead = Ahead::Rest(left - fresh.len());
                return 0;
            }
            Ahead::Rest(left) => left,
            Ahead::Header(begun) => {
                let missing = HEADER - begun.len();
                // What comes in more than two parts, or alone, is not put together.
                let header = fresh.get(..missing).filter(|_| fresh.len() > 1).map(|rest| [&begun, rest].concat());
                match header.and_then(|header| record_of_any_version(header[0], &header)) {
                    Some((kind, length)) => {
                        requests += self.record(turn, acknowledged, (kind, length), false);
                        missing + length
                    }
                    None => 0,
                }
            }
        };
        let mut is_known = true;
        while is_known && at + HEADER <= fresh.len() {
            let Some((kind, length)) = record(&fresh[at..]) else {
                is_known = false;
                continue;
            };
            let is_small = length <= self.overhead + CONTROL_MAX;
            requests += self.record(turn, acknowledged, (kind, length), begins);
            begins &= is_small;
            at += HEADER + length;
        }
        self.ahead = match at.checked_sub(fresh.len()) {
            _ if !is_known => Ahead::Lost,
            Some(left) => Ahead::Rest(left),
            None if was_lost && at == 0 => Ahead::Lost,
            None => Ahead::Header(fresh[at..].to_vec()),
        };
        if requests == 0 && matches!(self.ahead, Ahead::Lost) { self.turn_alone(turn, acknowledged) } else { requests }
    }

    /// Where nobody knows where records begin, turns alone tell.
    fn turn_alone(&self, turn: &mut Turn, acknowledged: u32) -> u64 {
        let heard = turn.heard_since(acknowledged);
        if heard as usize <= CONTINUE as usize + HEADER + self.overhead {
            return 0;
        }
        let are_tickets = turn.is_first && (480..=580).contains(&heard);
        *turn = Turn { heard: acknowledged, is_open: false, is_first: false };
        u64::from(!are_tickets)
    }

    fn record(&mut self, turn: &mut Turn, acknowledged: u32, (kind, length): (u8, usize), begins: bool) -> u64 {
        match (self.phase, kind) {
            (Phase::Hello, CHANGE_CIPHER_SPEC) => self.phase = Phase::Changed,
            (Phase::Changed, HANDSHAKE) if length <= FINISHED_1_2_MAX => {
                self.finish(turn, acknowledged, length.saturating_sub(FINISHED_1_2));
            }
            (Phase::Finished | Phase::Unknown, APPLICATION_DATA) => {
                return self.data(turn, acknowledged, length, begins);
            }
            (Phase::Hello | Phase::Changed, APPLICATION_DATA) if FINISHED_1_3.contains(&length) => {
                self.finish(turn, acknowledged, OVERHEAD_1_3);
            }
            (Phase::Hello | Phase::Changed, APPLICATION_DATA) => {
                self.records += 1;
                // Before the server has said anything, it is early data.
                if turn.heard_since(acknowledged) == 0 {
                    self.overhead = OVERHEAD_1_3;
                    return self.data(turn, acknowledged, length, begins);
                }
                if self.records > BEFORE_FINISHED_MAX {
                    self.finish(turn, acknowledged, OVERHEAD_1_3);
                }
            }
            _ => {}
        }
        0
    }

    /// What the server has said so far is of the handshake.
    fn finish(&mut self, turn: &mut Turn, acknowledged: u32, overhead: usize) {
        (self.phase, self.overhead) = (Phase::Finished, overhead);
        turn.heard = acknowledged;
    }

    fn data(&mut self, turn: &mut Turn, acknowledged: u32, length: usize, begins: bool) -> u64 {
        let bytes = length.saturating_sub(self.overhead);
        if bytes == ALERT_BYTES && self.overhead == OVERHEAD_1_3 && !self.is_alerted {
            self.is_alerted = true;
            return 0;
        }
        if self.phase == Phase::Unknown && CONTROL.contains(&bytes) {
            return 0;
        }
        let heard = turn.heard_since(acknowledged);
        if turn.is_open {
            // What was heard before it are the tickets.
            let is_first = turn.is_first && heard == 0;
            *turn = Turn { heard: acknowledged, is_open: false, is_first };
            return 1;
        }
        if heard == 0 || !begins && heard < ANSWER_MIN {
            return 0;
        }
        // Behind its handshake a server of TLS 1.3 sends tickets, which are no answer.
        let may_be_tickets = self.overhead == OVERHEAD_1_3 && turn.is_first;
        let no_answer = CONTINUE as usize + HEADER + self.overhead;
        let is_body =
            heard as usize <= no_answer || may_be_tickets && (bytes >= BODY_MIN || (480..=580).contains(&heard));
        *turn = Turn { heard: acknowledged, is_open: false, is_first: false };
        u64::from(!is_body)
    }
}
