//! How many requests begin in a segment of TCP, by what its client has sent and heard so far. HTTP/2 is not in it.

use std::ops::Range;

use super::tls::{self, Tls};

/// Farther away, it is another connection.
const FAR: u32 = 1 << 23;
/// What is unknown, and longer, is the middle of something.
const FIRST_BYTES_MAX: usize = 1024;
/// `HTTP/1.1 100 Continue` and an empty line.
pub(super) const CONTINUE: u32 = 25;

#[derive(Clone, Debug)]
pub(super) struct Conversation {
    /// Number of the byte that comes next.
    next: u32,
    /// What was left out, as far as it is remembered.
    hole: Option<Range<u32>>,
    speaks: Speaks,
    turn: Turn,
}

#[derive(Clone, Debug)]
enum Speaks {
    Http1 {
        /// Has sent several requests at once.
        is_pipelined: bool,
    },
    Tls(Tls),
    Anything,
    /// Nobody knows: nothing was seen but the middle of something.
    Unseen,
}

/// Where the client is in its talk with the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// What the client had heard when its newest request was counted; 0 is not known.
    pub(super) heard: u32,
    /// The next request is the first.
    pub(super) is_open: bool,
    /// No turn was taken since the first.
    pub(super) is_first: bool,
}

impl Turn {
    /// Bytes heard since; none where it is less than was heard before, as long as it is not far less.
    pub(super) fn heard_since(self, acknowledged: u32) -> u32 {
        let less = self.heard.wrapping_sub(acknowledged);
        if (1..=FAR + 1).contains(&less) { 0 } else { acknowledged.wrapping_sub(self.heard) }
    }
}

impl Conversation {
    /// The conversation with this segment, and the requests that begin in it.
    pub(super) fn turn(known: Option<&Self>, sequence: u32, acknowledged: u32, payload: &[u8]) -> (Self, u64) {
        let end = sequence.wrapping_add(u32::try_from(payload.len()).expect("a packet's length"));
        let Some(known) = known else { return Self::begin(end, acknowledged, payload, Some(FIRST_BYTES_MAX)) };
        if matches!(known.speaks, Speaks::Unseen) {
            // The server has answered something, which began with this one.
            let is_answered = known.turn.heard_since(acknowledged) > CONTINUE;
            return Self::begin(end, acknowledged, payload, (!is_answered).then_some(0));
        }
        let mut now = known.clone();
        let ahead = difference(sequence, known.next);
        if ahead.unsigned_abs() > FAR {
            return Self::begin(end, acknowledged, payload, None);
        }
        let mut repeated = 0;
        let mut is_late = false;
        if ahead > 0 {
            let start = known.hole.as_ref().map_or(known.next, |hole| hole.start);
            now.hole = Some(start..sequence);
            if let Speaks::Tls(tls) = &mut now.speaks {
                tls.leave_out(ahead.unsigned_abs() as usize);
            }
            now.next = end;
        } else if let Some(hole) = known.hole.clone().filter(|hole| is_in(hole, sequence)) {
            if sequence == hole.start {
                now.hole = Some(end..hole.end).filter(|left| difference(left.end, left.start) > 0);
            }
            is_late = difference(end, known.next) <= 0;
            if !is_late {
                now.next = end;
                if let Speaks::Tls(tls) = &mut now.speaks {
                    tls.lose();
                }
            }
        } else if difference(end, known.next) > 0 {
            repeated = ahead.unsigned_abs() as usize;
            now.next = end;
        } else {
            return (now, 0);
        }
        // The rest of a record is looked at no further.
        let is_rest = ahead == 0 && matches!(&known.speaks, Speaks::Tls(tls) if tls.has_left(payload.len()));
        if now.turn.heard == 0 && !is_rest {
            now.turn.heard = acknowledged;
        }
        let requests = now.requests(acknowledged, &payload[repeated..], is_late);
        (now, requests)
    }

    /// `unknown_max`: what is unknown and longer may be the middle of something. None where the beginning was not missed, or does
    /// not matter.
    fn begin(end: u32, acknowledged: u32, payload: &[u8], unknown_max: Option<usize>) -> (Self, u64) {
        let (speaks, is_open) = match tls::record(payload) {
            Some((tls::HANDSHAKE, _)) => (Speaks::Tls(Tls::at_hello()), true),
            Some(_) => (Speaks::Tls(Tls::in_the_middle()), unknown_max.is_none()),
            None if is_first_of_http1(payload) => (Speaks::Http1 { is_pipelined: false }, true),
            None if unknown_max.is_none_or(|max| payload.len() <= max) => (Speaks::Anything, true),
            None => (Speaks::Unseen, false),
        };
        let turn = Turn { heard: acknowledged, is_open, is_first: is_open };
        let mut new = Self { next: end, hole: None, speaks, turn };
        let requests = new.requests(acknowledged, payload, false);
        (new, requests)
    }

    fn requests(&mut self, acknowledged: u32, fresh: &[u8], is_late: bool) -> u64 {
        let Self { speaks, turn, .. } = self;
        match speaks {
            Speaks::Http1 { is_pipelined } => http1(is_pipelined, turn, acknowledged, fresh),
            Speaks::Tls(tls) if is_late => tls.apart(turn, acknowledged, fresh),
            Speaks::Tls(tls) => tls.requests(turn, acknowledged, fresh),
            Speaks::Anything => {
                let is_request = turn.is_open || turn.heard_since(acknowledged) > CONTINUE;
                if is_request {
                    *turn = Turn { heard: acknowledged, is_open: false, is_first: false };
                }
                u64::from(is_request)
            }
            Speaks::Unseen => 0,
        }
    }
}

fn http1(is_pipelined: &mut bool, turn: &mut Turn, acknowledged: u32, fresh: &[u8]) -> u64 {
    let next_turn = Turn { heard: acknowledged, is_open: false, is_first: false };
    if is_request(fresh) || turn.is_open || *is_pipelined {
        let behind_lines = (1..fresh.len()).filter(|&at| begins_behind_line(fresh, at));
        let found = u64::from(is_request(fresh)) + behind_lines.count() as u64;
        // The first is one whatever its method is.
        let requests = found.max(u64::from(turn.is_open));
        *is_pipelined |= requests > 1;
        if requests > 0 {
            *turn = next_turn;
            return requests;
        }
    }
    let heard = turn.heard_since(acknowledged);
    if heard > 0 {
        *turn = next_turn;
    }
    u64::from(heard > CONTINUE && !is_web_socket(fresh))
}

/// Any method, as far as eight bytes tell, or an empty line before it.
fn is_first_of_http1(bytes: &[u8]) -> bool {
    let letters = bytes.iter().take(8).take_while(|byte| byte.is_ascii_uppercase()).count();
    letters == 8 || letters >= 3 && bytes.get(letters) == Some(&b' ') || matches!(bytes[0], b'\r' | b'\n')
}

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"];

/// A method, a space, and the beginning of a target where there is room for it in eight bytes.
fn is_request(bytes: &[u8]) -> bool {
    let eight = &bytes[..bytes.len().min(8)];
    let behind = METHODS.iter().find_map(|method| eight.strip_prefix(method.as_bytes())?.strip_prefix(b" "));
    // Zero is a byte that is not there.
    behind.is_some_and(|target| target.first().is_none_or(|&byte| byte == 0 || byte > b' '))
}

/// The same behind an empty line, where as much of a method will do as the segment has; or behind any line that may be the end of
/// an empty one which began in the segment before.
fn begins_behind_line(segment: &[u8], at: usize) -> bool {
    let (before, rest) = segment.split_at(at);
    let is_behind_empty = at >= 4 && (before.ends_with(b"\n\r\n") || before.ends_with(b"\n\n"));
    let may_be_behind_empty = at < 4 && before.ends_with(b"\n");
    let is_cut_off = rest.len() <= 8 && rest.iter().all(u8::is_ascii_uppercase);
    is_request(rest) && (is_behind_empty || may_be_behind_empty) || is_cut_off && is_behind_empty
}

/// RFC 6455, section 5.2: no reserved bit but compression's, an opcode that there is, masked.
fn is_web_socket(bytes: &[u8]) -> bool {
    bytes.len() >= 6 && bytes[0] & 0x30 == 0 && [0, 1, 2, 8, 9, 10].contains(&(bytes[0] & 0xf)) && bytes[1] >= 0x80
}

fn is_in(range: &Range<u32>, number: u32) -> bool {
    difference(number, range.start) >= 0 && difference(number, range.end) < 0
}

/// How far `to` is ahead of `from`, on the circle that the numbers are.
fn difference(to: u32, from: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}
