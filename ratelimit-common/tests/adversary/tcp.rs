//! TCP receiver of a server, as in Linux: `tcp_sequence`, `tcp_data_queue`, `tcp_data_queue_ofo`, `tcp_ofo_queue`
//! (net/ipv4/tcp_input.c, Linux 6.18). Bytes are counted from the connection's first.

use ratelimit_common::conversation::Peer;

/// Bytes that a client can send before the server announces a larger window.
pub(crate) const WINDOW_BYTES: i64 = 65_535;

/// Payload that the server's TCP has, and what the server had said when the limiter judged it.
#[derive(Clone)]
pub(crate) struct Piece {
    pub(crate) at: i64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) said: u32,
}

impl Piece {
    pub(crate) fn end(&self) -> i64 {
        self.at + i64::try_from(self.bytes.len()).unwrap()
    }
}

pub(crate) struct Receiver {
    /// Sequence number of the first byte.
    begins_at: u32,
    /// Next byte expected, `rcv_nxt`.
    pub(crate) received: i64,
    /// Next byte expected at the last window announcement, `rcv_wup`.
    told_at: i64,
    /// Sequence number of the next byte that the server will write, `write_seq`.
    pub(crate) said: u32,
    /// Out-of-order segments, sorted by position.
    out_of_order: Vec<Piece>,
    /// True once a FIN was sent.
    pub(crate) has_ended: bool,
}

impl Receiver {
    pub(crate) const fn new(begins_at: u32, said: u32) -> Self {
        Self { begins_at, received: 0, told_at: 0, said, out_of_order: Vec::new(), has_ended: false }
    }

    pub(crate) fn number(&self, at: i64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "on the circle that sequence numbers are")]
        let at = at as u32;
        self.begins_at.wrapping_add(at)
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer {
            received: self.number(self.received),
            window_end: self.number(self.told_at + WINDOW_BYTES),
            said: self.said,
            is_first: u8::from(self.received == 0),
            has_ended: u8::from(self.has_ended),
            ..Peer::default()
        }
    }

    /// Returns whether the receiver processes a segment at all.
    pub(crate) const fn takes(&self, at: i64, end: i64) -> bool {
        end >= self.told_at && at <= self.told_at + WINDOW_BYTES
    }

    /// Receives a segment, and passes bytes that are in order to `reads`.
    pub(crate) fn receives(&mut self, piece: Piece, mut reads: impl FnMut(&[u8], u32)) {
        let window_end = self.told_at + WINDOW_BYTES;
        if !self.takes(piece.at, piece.end()) || piece.end() <= self.received || piece.at >= window_end {
            return;
        }
        if piece.at > self.received {
            self.keeps(piece);
            return;
        }
        self.reads(&piece, &mut reads);
        while self.out_of_order.first().is_some_and(|next| next.at <= self.received) {
            let next = self.out_of_order.remove(0);
            self.reads(&next, &mut reads);
        }
        self.told_at = self.received;
    }

    fn reads(&mut self, piece: &Piece, reads: &mut impl FnMut(&[u8], u32)) {
        if piece.end() > self.received {
            let new = usize::try_from(self.received - piece.at).unwrap();
            reads(&piece.bytes[new..], piece.said);
            self.received = piece.end();
        }
    }

    /// Keeps an out-of-order segment. Older segments stay, unless the new one contains them entirely.
    fn keeps(&mut self, piece: Piece) {
        if self.out_of_order.iter().any(|kept| kept.at <= piece.at && piece.end() <= kept.end()) {
            return;
        }
        self.out_of_order.retain(|kept| kept.at < piece.at || kept.end() > piece.end());
        let place = self.out_of_order.partition_point(|kept| kept.at <= piece.at);
        self.out_of_order.insert(place, piece);
    }
}
