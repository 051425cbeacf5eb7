//! Number of requests that begin in a TCP segment, derived from what its client has sent and acknowledged so far. There
//! is no socket to query.

use std::ops::Range;

use super::frames::{self, Frames};
use super::tls::{self, Tls};

/// Distance of sequence numbers from which a segment belongs to another connection.
const FAR: u32 = 1 << 23;
/// Size in bytes of `HTTP/1.1 100 Continue` and an empty line.
pub(super) const CONTINUE: u32 = 25;
/// Maximum size in bytes of two interim answers in the clear.
const INTERIM: u32 = 80;
/// Number of bytes before a version's `/` that are inspected.
const NAME: usize = 4;
/// Offset of the `/` in the HTTP/2 preface's version.
const VERSION_AT: usize = 10;

#[derive(Clone, Debug)]
pub(super) struct Conversation {
    /// Sequence number of the next byte.
    next: u32,
    /// Sequence numbers that were left out, as far as they are remembered.
    hole: Option<Range<u32>>,
    speaks: Speaks,
    turn: Turn,
}

#[derive(Clone, Debug)]
enum Speaks {
    Clear(Clear),
    /// Number of bytes that may be of a preface, and the state of HTTP/2 if it continues as one.
    Preface(usize, Frames),
    Http2(Frames),
    Tls(Tls),
}

/// State of a connection that does not use TLS.
#[derive(Clone, Debug)]
struct Clear {
    /// Last bytes before the next one, as many as a version's name has. `None` if they are unknown.
    last: Option<[u8; 4]>,
    /// A request without a version was counted.
    is_ahead: bool,
}

/// Position of the next TLS record or HTTP/2 frame.
#[derive(Clone, Debug)]
pub(super) enum Ahead {
    /// Known: the next one begins after this many bytes.
    Rest(usize),
    /// Incomplete: these bytes of the next header were in the last segment.
    Header(Vec<u8>),
    /// Unknown, because bytes were never seen.
    Lost,
}

impl Ahead {
    /// Skips bytes that were never seen.
    pub(super) fn leave_out(&mut self, bytes: usize) {
        *self = match self {
            Self::Rest(left) if bytes <= *left => Self::Rest(*left - bytes),
            Self::Rest(_) | Self::Header(_) | Self::Lost => Self::Lost,
        };
    }

    /// Returns the position, and sets it to unknown while a late segment is read on its own.
    pub(super) fn apart(&mut self) -> Self {
        std::mem::replace(self, Self::Lost)
    }

    /// Completes a header of `bytes` bytes with this segment. Returns the header and how many of its bytes are in the
    /// segment. Returns `None` if the header is still incomplete.
    pub(super) fn join(&mut self, mut begun: Vec<u8>, fresh: &[u8], bytes: usize) -> Option<(Vec<u8>, usize)> {
        let here = (bytes - begun.len()).min(fresh.len());
        begun.extend_from_slice(&fresh[..here]);
        if begun.len() < bytes {
            *self = Self::Header(begun);
            return None;
        }
        Some((begun, here))
    }
}

/// State of the client's exchange with the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Acknowledgement number when the newest request was counted.
    pub(super) heard: u32,
    /// Sequence number of that request's segment.
    pub(super) at: u32,
    /// The next request is the first one.
    pub(super) is_open: bool,
    /// No turn was taken since the first one.
    pub(super) is_first: bool,
}

/// Position of a segment: its sequence number, and its acknowledgement number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) sequence: u32,
    pub(super) heard: u32,
}

impl Turn {
    /// Returns the number of bytes acknowledged since. A lower acknowledgement number gives 0, unless it is far lower.
    pub(super) fn heard_since(self, moment: Moment) -> u32 {
        let less = self.heard.wrapping_sub(moment.heard);
        if (1..=FAR + 1).contains(&less) { 0 } else { moment.heard.wrapping_sub(self.heard) }
    }

    /// Counts a request, which begins a new turn.
    pub(super) fn takes(&mut self, moment: Moment) {
        *self = Self { heard: moment.heard, at: moment.sequence, is_open: false, is_first: false };
    }
}

impl Conversation {
    /// Returns the conversation after this segment, and the number of requests that begin in it.
    pub(super) fn turn(known: Option<&Self>, sequence: u32, acknowledged: u32, payload: &[u8]) -> (Self, u64) {
        let end = sequence.wrapping_add(u32::try_from(payload.len()).expect("a packet's length"));
        let moment = Moment { sequence, heard: acknowledged };
        let Some(known) = known else { return Self::begin(end, moment, payload) };
        let mut now = known.clone();
        let ahead = difference(sequence, known.next);
        if ahead.unsigned_abs() > FAR {
            return Self::begin(end, moment, payload);
        }
        let mut repeated = 0;
        let mut is_late = false;
        if ahead > 0 {
            let start = known.hole.as_ref().map_or(known.next, |hole| hole.start);
            now.hole = Some(start..sequence);
            now.next = end;
            now.leave_out(ahead.unsigned_abs() as usize);
        } else if let Some(hole) = known.hole.clone().filter(|hole| is_in(hole, sequence)) {
            if sequence == hole.start {
                now.hole = Some(end..hole.end).filter(|left| difference(left.end, left.start) > 0);
            }
            is_late = difference(end, known.next) <= 0;
            if !is_late {
                now.next = end;
                now.lose();
            }
        } else if difference(end, known.next) > 0 {
            repeated = ahead.unsigned_abs() as usize;
            now.next = end;
        } else {
            return (now, 0);
        }
        let first_new = sequence.wrapping_add(u32::try_from(repeated).expect("a packet's length"));
        let requests = now.requests(Moment { sequence: first_new, ..moment }, payload, repeated, is_late);
        (now, requests)
    }

    fn begin(end: u32, moment: Moment, payload: &[u8]) -> (Self, u64) {
        let speaks = match tls::record(payload) {
            Some((tls::HANDSHAKE, _)) => Speaks::Tls(Tls::at_hello(moment)),
            Some(_) => Speaks::Tls(Tls::in_the_middle(moment)),
            None if frames::is_preface(payload, 0) => Speaks::Preface(0, Frames::behind_preface()),
            None => Speaks::Clear(Clear { last: Some([0; 4]), is_ahead: false }),
        };
        let turn = Turn { heard: moment.heard, at: moment.sequence, is_open: true, is_first: true };
        let mut new = Self { next: end, hole: None, speaks, turn };
        let requests = new.requests(moment, payload, 0, false);
        (new, requests)
    }

    /// Skips bytes that were never seen.
    fn leave_out(&mut self, bytes: usize) {
        match &mut self.speaks {
            Speaks::Clear(clear) => clear.last = None,
            Speaks::Preface(..) => self.lose(),
            Speaks::Http2(frames) => frames.leave_out(bytes),
            Speaks::Tls(tls) => tls.leave_out(&mut self.turn, bytes),
        }
    }

    /// Forgets what preceded the next segment.
    fn lose(&mut self) {
        match &mut self.speaks {
            Speaks::Clear(clear) => clear.last = None,
            Speaks::Preface(_, frames) => {
                frames.lose();
                self.speaks = Speaks::Http2(frames.clone());
            }
            Speaks::Http2(frames) => frames.lose(),
            Speaks::Tls(tls) => tls.lose(),
        }
    }

    /// Continues with the preface, and returns the number of its bytes in this segment.
    fn go_on_with_preface(&mut self, fresh: &[u8]) -> usize {
        let Speaks::Preface(known, frames) = &self.speaks else { return 0 };
        if !frames::is_preface(fresh, *known) {
            let is_ahead = !self.turn.is_open && *known <= VERSION_AT;
            self.speaks = Speaks::Clear(Clear { last: None, is_ahead });
            return 0;
        }
        let here = (frames::PREFACE.len() - known).min(fresh.len());
        self.speaks = match known + here {
            all if all == frames::PREFACE.len() => Speaks::Http2(frames.clone()),
            known => Speaks::Preface(known, frames.clone()),
        };
        here
    }

    fn requests(&mut self, moment: Moment, payload: &[u8], mut repeated: usize, is_late: bool) -> u64 {
        if !is_late {
            repeated += self.go_on_with_preface(&payload[repeated..]);
        }
        let Self { speaks, turn, .. } = self;
        match speaks {
            Speaks::Clear(clear) => {
                let fresh = &payload[repeated..];
                let (requests, preface_at) = clear.requests(turn, moment, fresh, is_late);
                let Some(at) = preface_at else { return requests };
                // The preface continues behind the `/` of its version, which was counted as the first request.
                *speaks = Speaks::Preface(VERSION_AT + 1, Frames::behind_another_preface());
                let here = self.go_on_with_preface(&fresh[at + 1..]);
                let (Speaks::Preface(_, frames) | Speaks::Http2(frames)) = &mut self.speaks else { return requests };
                let requests = requests + frames.requests(&mut self.turn, moment, &fresh[at + 1 + here..]);
                if is_late {
                    frames.lose();
                    self.speaks = Speaks::Http2(frames.clone());
                }
                requests
            }
            Speaks::Preface(_, frames) | Speaks::Http2(frames) if is_late => {
                frames.apart(turn, moment, &payload[repeated..])
            }
            Speaks::Preface(_, frames) | Speaks::Http2(frames) => frames.requests(turn, moment, &payload[repeated..]),
            Speaks::Tls(tls) if is_late => tls.apart(turn, moment, payload),
            Speaks::Tls(tls) => tls.requests(turn, moment, payload, repeated),
        }
    }
}

impl Clear {
    /// Counts the versions that end a line. Without a version, counts one for the turn, to which the next version
    /// belongs. Also returns the position of the HTTP/2 preface's version, if a preface continues there.
    fn requests(&mut self, turn: &mut Turn, moment: Moment, fresh: &[u8], is_late: bool) -> (u64, Option<usize>) {
        let before = self.last.filter(|_| !is_late);
        let all = || (0..fresh.len()).filter(|&at| is_version(before, fresh, at));
        let preface_at = all().find(|&at| {
            let begun = at.min(VERSION_AT);
            frames::is_preface(&fresh[at - begun..], VERSION_AT - begun)
        });
        let versions = all().filter(|&at| preface_at.is_none_or(|preface| at <= preface)).count() as u64;
        if !is_late {
            self.last = match (self.last, fresh.last_chunk()) {
                (_, Some(last)) => Some(*last),
                (Some(last), None) => [&last, fresh].concat().last_chunk().copied(),
                (None, None) => None,
            };
        }
        if versions > 0 {
            let requests = versions - u64::from(self.is_ahead);
            self.is_ahead = false;
            turn.takes(moment);
            return (requests, preface_at);
        }
        let is_request = turn.is_open || turn.heard_since(moment) > INTERIM;
        if is_request {
            turn.takes(moment);
            self.is_ahead = true;
        }
        (u64::from(is_request), None)
    }
}

/// Returns the number of versions that end a line, without knowledge of the bytes before.
pub(super) fn versions(payload: &[u8]) -> u64 {
    (0..payload.len()).filter(|at| is_version(None, payload, *at)).count() as u64
}

/// Returns whether the byte at `at` is the `/` of a version that ends a line. Bytes outside the segment are assumed to
/// match, except for those of `before`, if they are known.
fn is_version(before: Option<[u8; 4]>, segment: &[u8], at: usize) -> bool {
    if segment[at] != b'/' {
        return false;
    }
    let name: Vec<Option<u8>> = (1..=NAME)
        .rev()
        .map(|back| match at.checked_sub(back) {
            Some(at) => Some(segment[at]),
            None => before.map(|before| before[NAME + at - back]),
        })
        .collect();
    let is = |other: &[u8]| name.iter().zip(other).all(|(byte, other)| byte.is_none_or(|byte| byte == *other));
    let is_http = name.iter().zip(b"HTTP").all(|(byte, is)| byte.is_none_or(|byte| byte.eq_ignore_ascii_case(is)));
    let is_named = is_http || is(b"RTSP") || is(b" ICE") || is(b"\tICE");
    // Preceded by its length, it is a protocol name that TLS offers.
    let is_offered = at > NAME && segment[at - NAME - 1] == 8;
    is_named && !is_offered && is_number(&segment[at + 1..segment.len().min(at + 9)])
}

/// Returns whether the known bytes behind a version's `/`, up to eight, can be a version's end. That is numbers with a
/// dot between them, optional blanks, and a line's end.
fn is_number(known: &[u8]) -> bool {
    let line = known.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0);
    let number: Vec<u8> = line.iter().copied().take_while(|byte| !is_blank(byte)).collect();
    let blanks = &line[number.len()..];
    let ends = line.len() < known.len() || !blanks.is_empty();
    let mut parts = number.split(|byte| *byte == b'.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next());
    let are_digits = major.iter().chain(minor.unwrap_or_default()).all(u8::is_ascii_digit);
    // A dot needs digits before it.
    let is_whole = minor.is_some() && !major.is_empty();
    are_digits && parts.next().is_none() && blanks.iter().all(is_blank) && (is_whole || !ends && minor.is_none())
}

fn is_in(range: &Range<u32>, number: u32) -> bool {
    difference(number, range.start) >= 0 && difference(number, range.end) < 0
}

/// Returns how far `to` is ahead of `from` in the circular space of sequence numbers.
fn difference(to: u32, from: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}
