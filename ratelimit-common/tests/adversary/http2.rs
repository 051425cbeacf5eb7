//! Small HTTP/2 server (RFC 9113). It knows frames, and that headers are in HEADERS and CONTINUATION.

use std::collections::VecDeque;

use crate::link::Server;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER_BYTES: usize = 9;

pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
}

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn preface() -> Vec<u8> {
    [PREFACE, &frame(kind::SETTINGS, 0, &[0; 18]), &frame(kind::WINDOW_UPDATE, 0, &[0; 4])].concat()
}

pub(crate) fn frame(kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&[high, middle, low, kind, flags, 0, 0, 0, 1], content].concat()
}

pub(crate) struct Http2 {
    buffer: Vec<u8>,
    buffer_said: u32,
    has_preface: bool,
    accepted: Vec<u32>,
    owed: VecDeque<u32>,
    answers: VecDeque<u32>,
    body_bytes: u32,
    /// Number of body bytes that the server accepts before it enlarges the window.
    window_each: u32,
    has_ended: bool,
}

impl Http2 {
    pub(crate) fn new(answers: &[u32], window_each: u32) -> Self {
        Self {
            buffer: Vec::new(),
            buffer_said: 0,
            has_preface: false,
            accepted: Vec::new(),
            owed: VecDeque::new(),
            answers: answers.iter().copied().collect(),
            body_bytes: 0,
            window_each,
            has_ended: false,
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, len: usize) {
        match kind {
            kind::HEADERS => {
                self.accepted.push(self.buffer_said);
                if flags & END_STREAM != 0 {
                    self.answers();
                }
            }
            kind::DATA => {
                self.body_bytes += u32::try_from(len).unwrap();
                while self.body_bytes >= self.window_each {
                    self.body_bytes -= self.window_each;
                    self.owed.push_back(13);
                }
                if flags & END_STREAM != 0 {
                    self.answers();
                }
            }
            kind::SETTINGS if flags & ACK == 0 => self.owed.push_back(9),
            kind::PING if flags & ACK == 0 => self.owed.push_back(17),
            _ => {}
        }
    }

    fn answers(&mut self) {
        self.answers.rotate_left(1);
        self.owed.push_back(self.answers[0]);
    }
}

impl Server for Http2 {
    fn reads(&mut self, bytes: &[u8], said: u32) {
        if self.buffer.is_empty() {
            self.buffer_said = said;
        }
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        if !self.has_preface {
            if self.buffer.len() < PREFACE.len() {
                return;
            }
            self.has_preface = true;
            self.has_ended |= !self.buffer.starts_with(PREFACE);
            at = PREFACE.len();
        }
        while let Some(&[high, middle, low, kind, flags]) = self.buffer[at..].first_chunk::<5>() {
            let end = at + HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize;
            if self.has_ended || self.buffer.len() < end {
                break;
            }
            self.frame(kind, flags, end - at - HEADER_BYTES);
            at = end;
            self.buffer_said = said;
        }
        self.buffer.drain(..at);
    }

    fn owes(&mut self) -> &mut VecDeque<u32> {
        &mut self.owed
    }

    fn accepted(&self) -> &[u32] {
        &self.accepted
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}
