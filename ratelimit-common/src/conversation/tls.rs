//! Request counting for TLS by record headers, which are in the clear. Type and length show what a record contains.

mod data;

use data::{CONTROL_BYTES_MAX, CONTROLS_FREE_MAX, SETTINGS_ACK_AMONG, TICKETS_BYTES};

use super::search::Sought;
use super::{Conversation, Entered, Fresh, LOST, Step, Walk, also, is, speaks};
use crate::packet::Frame;

/// Maximum number of records that are read in one segment. The requests of a browser that sends many at once take about
/// 60 bytes each.
const RECORDS_MAX: u32 = 24;

const HEADER_BYTES: u32 = 5;
/// Maximum record length in bytes: that of TLS 1.2, 2^14 + 2048. RFC 8446, section 5.2, allows less.
const LENGTH_MAX: u16 = 16_384 + 2_048;

const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// Bytes that TLS 1.3 adds to a record: the true type, and the cipher's tag.
const OVERHEAD_1_3: u8 = 17;
/// Bytes that Java adds to a TLS 1.3 record, with its 16 bytes of padding. The next constant, the length of Java's
/// Finished record with the longer hash, shows that a client is Java.
const OVERHEAD_OF_JAVA: u8 = 33;
const FINISHED_OF_JAVA: u16 = 85;
/// Length of Java's Finished record with the shorter hash, and of other clients' with the longer one.
const FINISHED_AMBIGUOUS: u16 = 69;
/// Maximum bytes that a cipher without padding adds. Used if the true number is unknown.
const OVERHEAD_MAX: u8 = 24;
/// Length of a TLS 1.2 Finished message in bytes. Its encrypted record shows how much encryption adds.
const FINISHED_1_2_BYTES: u16 = 16;
const FINISHED_1_2_RECORD_MAX: u16 = 112;
/// Maximum length of a TLS 1.3 Finished record: 53 or 69 bytes, 85 with Java's padding. Records padded to a block may
/// be longer. Any other record before it belongs to a client certificate.
const FINISHED_1_3_RECORD_MAX: u16 = 128;
/// Divisor of the block sizes that records are padded to. The tag comes behind the block.
const PADDED_BYTES: u16 = 64;
const TAG_BYTES: u16 = 16;
/// Maximum number of records that end a TLS 1.3 handshake: the client's certificate, its proof and Finished.
const FINISHED_AMONG: u8 = 3;

/// Minimum bytes of a server's first flight with a certificate. The smallest ones, with 256-bit ECDSA, have 450 bytes
/// and more.
const CERTIFIED_BYTES_MIN: u32 = 400;

/// Position in both streams at which a record is sent: the start of its segment, and what the server had said by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Value of [`Segment::sequence`](crate::packet::Segment::sequence).
    pub sequence: u32,
    /// Value of [`Peer::said`](super::Peer::said).
    pub said: u32,
}

/// Header of a TLS record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Content type of the record.
    pub kind: u8,
    /// True if nothing before the record in its segment may be a request.
    pub begins_segment: bool,
    /// Number of bytes behind the header.
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

/// Returns the record that begins at `at`, if its header is complete and valid.
#[inline(always)]
pub(super) fn record_at<F: Frame>(frame: &F, at: u32, end: u32) -> Option<Record> {
    if at + HEADER_BYTES > end {
        return None;
    }
    let [kind, major, minor, high] = frame.bytes::<4>(at as usize)?;
    let [_, low] = frame.bytes::<2>(at as usize + 3)?;
    Record::parse([kind, major, minor, high, low])
}

/// Returns whether this `h`, the byte before `next`, begins the name `h2` in a ClientHello. ALPN puts the length before
/// the name (RFC 7301).
#[inline(always)]
pub(super) fn is_http2<F: Frame>(frame: &F, next: u32) -> bool {
    match frame.bytes::<4>(next as usize - 3) {
        Some([_, length, _, digit]) => length == 2 && digit == b'2',
        None => false,
    }
}

impl Conversation {
    /// Returns whether one record may contain several requests, which then count as one.
    #[inline(always)]
    pub const fn shares_records(&self) -> bool {
        self.speaks == speaks::TLS
    }

    /// Switches the connection to TLS in the middle of its data. Every record that may be something other than a
    /// request is taken as such.
    #[inline(always)]
    pub(super) const fn speak_tls(&mut self, is: u16) {
        self.speaks = speaks::TLS;
        self.overhead = OVERHEAD_MAX;
        self.records = SETTINGS_ACK_AMONG;
        self.controls_left = CONTROLS_FREE_MAX;
        self.is = is | is::OFFERS_HTTP2;
        self.split_len = 0;
    }

    #[inline(always)]
    const fn has_one_ticket(&self) -> bool {
        self.also & also::ONE_TICKET != 0
    }

    /// Returns the number of requests that begin in this payload. If TLS is only a guess, requests in clear text count
    /// too. The searches are here and not in callees, since a verifier adds up the stack of nested functions.
    #[inline(always)]
    pub(super) fn tls_or_clear<F: Walk>(&mut self, frame: &F, entered: &Entered) -> u32 {
        let fresh = entered.fresh;
        if self.speaks == speaks::TLS_HELLO && frame.found(fresh.at, fresh.end, Sought::Http2).count() != 0 {
            self.is |= is::OFFERS_HTTP2;
        }
        let requests = frame.tls(self, entered);
        if entered.is_doubted == 0 {
            return requests;
        }
        let versions = frame.found(fresh.at, fresh.end, Sought::Version).count();
        if versions <= requests {
            return requests;
        }
        self.counted(fresh.moment());
        versions
    }

    /// Returns the number of requests that begin in the records of this payload.
    #[inline(always)]
    pub fn tls<F: Walk>(&mut self, frame: &F, entered: &Entered) -> u32 {
        self.records(frame, entered.fresh)
    }

    /// Consumes `bytes` bytes of the current record if all of them belong to it. Otherwise returns false and changes
    /// nothing.
    #[inline(always)]
    pub(super) const fn stays_in_record(&mut self, bytes: u32) -> bool {
        let stays = self.split_len == 0 && self.record_left != LOST && self.record_left >= bytes;
        if stays {
            self.record_left -= bytes;
        }
        stays
    }

    /// Walks through the records that begin in this payload, and returns the number of their requests.
    #[inline(always)]
    fn records<F: Walk>(&mut self, frame: &F, fresh: Fresh) -> u32 {
        if self.stays_in_record(fresh.len()) {
            // If the record is only a guess, an answer from the server shows that there is none.
            return if self.may_be_in_none() && self.is_answered(fresh.moment()) {
                frame.lost(self, fresh.moment())
            } else {
                0
            };
        }
        let mut was_lost = self.record_left == LOST;
        if was_lost {
            self.is |= is::CUT;
        }
        let begins_at = fresh.at;
        let mut begins_segment = self.record_left == 0 || was_lost;
        let mut requests = 0;
        let mut at = fresh.at;
        if self.split_len != 0 {
            begins_segment = false;
            let Some((head, here)) = self.join_head(frame, at, fresh.end, HEADER_BYTES) else {
                return if self.record_left == LOST { frame.lost(self, fresh.moment()) } else { 0 };
            };
            match Record::parse(head) {
                Some(record) => {
                    let is_early = self.has(is::EARLY) && self.speaks != speaks::TLS;
                    let said = if is_early { self.heard } else { fresh.said };
                    requests = frame.record(self, record, Moment { said, ..fresh.moment() });
                    at += here + record.length as u32;
                }
                None => {
                    was_lost = true;
                    self.is |= is::CUT;
                }
            }
        } else if self.record_left != LOST {
            at += self.record_left;
        }
        let (moment, end) = (fresh.moment(), fresh.end);
        let records = Records { conversation: self, moment, at, end, requests, begins_segment, is_known: true };
        let Records { at, requests, is_known, .. } = frame.repeat(RECORDS_MAX, records);
        self.record_left = match () {
            () if !is_known => LOST,
            () if at >= fresh.end => at - fresh.end,
            () if was_lost && at == begins_at => LOST,
            () if at + HEADER_BYTES > fresh.end => {
                self.is &= !is::EARLY;
                if self.heard == fresh.said {
                    self.is |= is::EARLY;
                }
                self.keep_head(frame, at, fresh.end);
                self.record_left
            }
            () => LOST,
        };
        if requests == 0 && self.record_left == LOST { frame.lost(self, fresh.moment()) } else { requests }
    }

    /// Returns the number of requests, 0 or 1, in a segment with unknown record boundaries. Only turns count until a
    /// segment begins with a record. Otherwise, hiding the boundaries would evade the count.
    #[inline(always)]
    pub fn lost(&mut self, moment: Moment) -> u32 {
        let heard = self.heard_since(moment.said);
        let is_open = self.has(is::OPEN) && self.speaks == speaks::TLS;
        let is_answer = match self.has(is::IN_BODY) {
            true => self.is_answered(moment),
            false => heard > self.no_answer_bytes(),
        };
        if !is_open && !is_answer {
            return 0;
        }
        // The server sent `100 Continue` with its tickets, and the client had delayed its body for that.
        let are_as_long =
            TICKETS_BYTES.contains(&heard) || TICKETS_BYTES.contains(&heard.saturating_sub(self.no_answer_bytes()));
        let are_tickets = self.has(is::FIRST) && !is_open && are_as_long;
        self.counted(moment);
        !are_tickets as u32
    }

    /// Updates the state by one record, and returns the number of requests that begin in it.
    #[inline(always)]
    pub fn record(&mut self, record: Record, moment: Moment) -> u32 {
        match record.kind {
            HANDSHAKE => self.handshake(record, moment),
            CHANGE_CIPHER_SPEC if self.speaks == speaks::TLS_HELLO => self.speaks = speaks::TLS_CHANGED,
            APPLICATION_DATA => {
                let is_data = self.speaks == speaks::TLS || self.is_early_or_first(record, moment);
                return if is_data { self.application_data(record, moment) } else { 0 };
            }
            // Alerts and unknown types.
            _ => {}
        }
        // If the header is only a guess, an answer from the server shows that there is none.
        if self.is_guessed() && self.is_answered(moment) { self.lost(moment) } else { 0 }
    }

    #[inline(always)]
    fn handshake(&mut self, record: Record, moment: Moment) {
        if self.speaks == speaks::TLS_CHANGED && record.length <= FINISHED_1_2_RECORD_MAX {
            #[expect(clippy::cast_possible_truncation, reason = "at most FINISHED_1_2_RECORD_MAX")]
            let overhead = record.length.saturating_sub(FINISHED_1_2_BYTES) as u8;
            self.finished(overhead, moment);
        }
    }

    /// TLS 1.3, before the handshake's end: returns whether the record is early data, or the first one after the
    /// handshake. The handshake ends with the client's optional certificate, its proof and Finished; the server accepts
    /// nothing else there.
    #[inline(always)]
    fn is_early_or_first(&mut self, record: Record, moment: Moment) -> bool {
        if self.heard_since(moment.said) == 0 {
            // The record came before any server data, so it is early data of any length.
            self.overhead = OVERHEAD_1_3;
            return true;
        }
        if self.ending_records == 0 {
            self.control_at = moment.said;
        } else if moment.said != self.control_at || record.begins_segment {
            // The server sends nothing before the handshake's end, and a client sends that end at once. So the
            // handshake ended before this record.
            self.finished(OVERHEAD_1_3, Moment { said: self.control_at, ..moment });
            return true;
        }
        self.ending_records += 1;
        let is_padded = record.length % PADDED_BYTES == TAG_BYTES;
        if record.length <= FINISHED_1_3_RECORD_MAX || is_padded || self.ending_records >= FINISHED_AMONG {
            let is_of_java = record.length == FINISHED_OF_JAVA;
            self.ending_records = (record.length == FINISHED_AMBIGUOUS) as u8;
            self.finished(if is_of_java { OVERHEAD_OF_JAVA } else { OVERHEAD_1_3 }, moment);
        }
        false
    }

    /// TLS 1.3: ends the handshake if the records that end it were left out. A client sends more before an answer only
    /// after those records.
    #[inline(always)]
    pub(super) fn leave_out_finished(&mut self) {
        if self.speaks == speaks::TLS_HELLO || self.speaks == speaks::TLS_CHANGED {
            self.finished(OVERHEAD_1_3, Moment { said: self.heard, sequence: self.counted_at });
        }
    }

    #[inline(always)]
    fn finished(&mut self, overhead: u8, moment: Moment) {
        if !self.has(is::OPEN) {
            // After early data, the server's next data may be the answer to it.
            self.is &= !is::FIRST;
        }
        let flight = moment.said.wrapping_sub(self.heard);
        self.also &= !also::ONE_TICKET;
        if flight != 0 && flight < CERTIFIED_BYTES_MIN {
            self.also |= also::ONE_TICKET;
        }
        self.speaks = speaks::TLS;
        self.turned(moment);
        self.control_at = moment.said;
        self.overhead = overhead;
        self.records = 0;
        self.turn_records = 0;
        self.controls_left = CONTROLS_FREE_MAX;
    }
}

/// State of the walk over the records that begin in one segment.
struct Records<'a> {
    conversation: &'a mut Conversation,
    moment: Moment,
    at: u32,
    end: u32,
    requests: u32,
    begins_segment: bool,
    /// False once a position holds no record.
    is_known: bool,
}

impl Step for Records<'_> {
    #[inline(always)]
    fn step<F: Walk>(&mut self, frame: &F) -> bool {
        if self.at + HEADER_BYTES > self.end {
            return false;
        }
        let Some(mut record) = record_at(frame, self.at, self.end) else {
            self.is_known = false;
            return false;
        };
        record.begins_segment = self.begins_segment;
        // Records too short for a request may precede one.
        self.begins_segment &= record.length <= self.conversation.overhead as u16 + CONTROL_BYTES_MAX;
        self.requests += frame.record(self.conversation, record, self.moment);
        self.at += HEADER_BYTES + record.length as u32;
        true
    }
}
