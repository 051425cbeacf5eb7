//! Sender of an adversary: a stream in any segments, in any order, with any decoys beside it.

use crate::link::{Link, Sent, Server};
use crate::random::Random;

/// Random habits of an adversary on one connection.
pub(crate) struct Sender {
    /// Intended stream, from its first byte.
    pub(crate) stream: Vec<u8>,
    /// Minimum and maximum bytes of a segment.
    segment: (usize, usize),
    /// Plays a trick once in this many segments.
    tricks_once_in: usize,
    /// Maximum number of segments that arrive together.
    together: usize,
    /// Receives the server's answers once in this many segments.
    answers_once_in: usize,
}

/// Decoys that look like the start of something else.
const LOOKS: [&[u8]; 9] = [
    b"\x16\x03\x01\x02\x00\x01",
    b"\x17\x03\x03\x48\x00",
    b"\x17\x03\x03\x00\x13",
    b"\x14\x03\x03\x00\x01\x01",
    b"GET / HTTP/1.1\r\n\r\n",
    b"/1.1\r\n",
    b"HTTP",
    b"XXXX/",
    b"\r\n\r\n",
];

impl Sender {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self {
            stream: Vec::new(),
            segment: random.of_these(&[(1, 3), (1, 60), (8, 200), (400, 700), (1448, 1448), (1, 4200), (1448, 4200)]),
            tricks_once_in: random.of_these(&[1, 2, 4, 16, 1_000_000]),
            together: random.of_these(&[1, 1, 2, 8]),
            answers_once_in: random.of_these(&[1, 1, 2, 5, 40]),
        }
    }

    /// Sends one segment, or plays one trick.
    pub(crate) fn step<S: Server>(&mut self, link: &mut Link<S>, random: &mut Random) {
        if random.once_in(self.tricks_once_in) {
            self.trick(link, random);
        } else {
            let at = link.tcp.received;
            self.send(link, random, at);
        }
        self.rest(link, random);
    }

    fn rest<S: Server>(&self, link: &mut Link<S>, random: &mut Random) {
        if random.once_in(self.together) {
            link.arrives(random.between(1, 9));
        }
        if random.once_in(self.answers_once_in) {
            link.answers(random.between(1, 3));
        }
    }

    /// Sends segments one after the other, from the position that the server has reached.
    pub(crate) fn send<S: Server>(&mut self, link: &mut Link<S>, random: &mut Random, from: i64) {
        let mut at = from;
        for _ in 0..random.between(1, self.together) {
            let Some(payload) = self.part(random, at) else { return };
            if !link.sends(&Sent { at, payload, acknowledged: random.word(), is_lost: false }) {
                return;
            }
            at += i64::try_from(payload.len()).unwrap();
        }
    }

    fn part(&self, random: &mut Random, at: i64) -> Option<&[u8]> {
        let begin = usize::try_from(at).ok().filter(|begin| *begin < self.stream.len())?;
        let bytes = random.between(self.segment.0, self.segment.1);
        Some(&self.stream[begin..(begin + bytes).min(self.stream.len())])
    }

    fn trick<S: Server>(&mut self, link: &mut Link<S>, random: &mut Random) {
        let received = link.tcp.received;
        let near = received + i64::try_from(random.below(120)).unwrap() - 60;
        let at = match random.below(8) {
            0 | 1 => received,
            2..=4 => near,
            5 => received + i64::try_from(random.below(4000)).unwrap(),
            6 => received + i64::try_from(random.below(140_000)).unwrap() - 70_000,
            _ => received + i64::from(random.word()),
        };
        let acknowledged = random.word();
        let is_lost = random.once_in(2);
        match random.below(4) {
            // True bytes of the stream: early, late, repeated or lost.
            0 | 1 => {
                if let Some(payload) = self.part(random, at) {
                    link.sends(&Sent { at, payload, acknowledged, is_lost });
                }
            }
            // Other bytes. Those that arrive become the stream.
            trick => {
                let mut payload = random.of_these(&LOOKS).to_vec();
                if at < 0 && random.once_in(2) {
                    payload.resize(usize::try_from(-at).unwrap_or(60).min(60), b'x');
                    payload.extend_from_slice(random.of_these(&LOOKS));
                    payload.extend_from_slice(self.part(random, 0).unwrap_or_default());
                }
                payload.resize(random.of_these(&[payload.len(), payload.len(), 20, 60, 1448]).max(1), b'x');
                if trick == 2
                    && let Some(part) = self.part(random, at)
                {
                    payload = part.to_vec();
                    let place = random.below(payload.len());
                    payload[place] ^= 1 << random.below(8);
                }
                link.sends(&Sent { at, payload: &payload, acknowledged, is_lost });
            }
        }
    }

    /// Sends the whole stream until the server has it, or until no more passes.
    pub(crate) fn finish<S: Server>(&mut self, link: &mut Link<S>, random: &mut Random) {
        link.settles();
        for _ in 0..4 {
            let at = link.tcp.received;
            self.send(link, random, at);
            link.settles();
        }
    }
}
