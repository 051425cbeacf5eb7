//! Requests of HTTP/2 in the clear, found by the headers of its frames.

use super::conversation::{Ahead, CONTINUE, Moment, Turn, versions};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of a frame's header, and of its part with the length and the type.
const HEADER: usize = 9;
const HEAD: usize = 4;
const HEADERS: u8 = 1;
/// Limits on the type and length of frames that are searched for where no frame's position is known.
const KIND_MAX: u8 = 9;
const LENGTH_MAX: usize = 16_384;

#[derive(Clone, Debug)]
pub(super) struct Frames {
    ahead: Ahead,
    /// True once a frame's position was unknown.
    was_lost: bool,
    is_preface_counted: bool,
}

impl Frames {
    pub(super) const fn behind_preface() -> Self {
        Self { ahead: Ahead::Rest(0), was_lost: false, is_preface_counted: false }
    }

    /// Returns the state behind another protocol. It is unknown whether the server accepts the preface.
    pub(super) const fn behind_another_preface() -> Self {
        Self { ahead: Ahead::Rest(0), was_lost: true, is_preface_counted: true }
    }

    pub(super) fn leave_out(&mut self, bytes: usize) {
        self.ahead.leave_out(bytes);
    }

    pub(super) fn lose(&mut self) {
        self.ahead = Ahead::Lost;
    }

    /// Reads a late segment on its own, and returns its number of requests.
    pub(super) fn apart(&mut self, turn: &mut Turn, moment: Moment, fresh: &[u8]) -> u64 {
        let (ahead, was_lost) = (self.ahead.apart(), self.was_lost);
        let requests = self.requests(turn, moment, fresh);
        (self.ahead, self.was_lost) = (ahead, was_lost);
        requests
    }

    pub(super) fn requests(&mut self, turn: &mut Turn, moment: Moment, fresh: &[u8]) -> u64 {
        self.was_lost |= matches!(self.ahead, Ahead::Lost);
        let mut requests = self.headers(fresh);
        if requests > 0 && std::mem::take(&mut self.is_preface_counted) {
            requests -= 1;
        }
        self.is_preface_counted |= turn.is_open && requests == 0;
        let is_turn = turn.is_open || self.was_lost && turn.heard_since(moment) > CONTINUE;
        let others = match versions(fresh) {
            0 => u64::from(is_turn),
            versions => versions,
        };
        let requests = requests.max(others);
        if requests > 0 {
            turn.takes(moment);
        }
        requests
    }

    /// Returns the number of HEADERS frames that begin here.
    fn headers(&mut self, fresh: &[u8]) -> u64 {
        let is_sought = matches!(self.ahead, Ahead::Lost);
        let mut headers = 0;
        let mut at = match std::mem::replace(&mut self.ahead, Ahead::Lost) {
            Ahead::Lost => 0,
            Ahead::Rest(left) => left,
            Ahead::Header(begun) => {
                let Some((begun, here)) = self.ahead.join(begun, fresh, HEAD) else { return 0 };
                let (kind, length) = head(&begun).expect("all of it is there");
                headers += u64::from(kind == HEADERS);
                here + HEADER - HEAD + length
            }
        };
        loop {
            if at >= fresh.len() {
                self.ahead = Ahead::Rest(at - fresh.len());
                return headers;
            }
            let Some((kind, length)) = head(&fresh[at..]) else {
                self.ahead = Ahead::Header(fresh[at..].to_vec());
                return headers;
            };
            if is_sought && (kind > KIND_MAX || length > LENGTH_MAX) {
                return headers;
            }
            headers += u64::from(kind == HEADERS);
            at += HEADER + length;
        }
    }
}

/// Returns whether the bytes match the preface from offset `known` on, as far as both go.
pub(super) fn is_preface(bytes: &[u8], known: usize) -> bool {
    bytes.iter().zip(&PREFACE[known..]).all(|(byte, expected)| byte == expected)
}

/// Returns a frame's type and length.
fn head(bytes: &[u8]) -> Option<(u8, usize)> {
    let &[high, middle, low, kind] = bytes.first_chunk()?;
    Some((kind, u32::from_be_bytes([0, high, middle, low]) as usize))
}
