//! TLS server as far as record headers are concerned: 1.3 (RFC 8446) and 1.2 (RFC 5246). Record contents are not
//! encrypted, since a client that knows its keys can choose the ciphertext.

use std::collections::VecDeque;

use crate::link::Server;

const HEADER_BYTES: usize = 5;
const LENGTH_MAX: usize = 16_384 + 256;
const TAG_BYTES: usize = 16;
/// Bytes that TLS 1.2 adds to a record: a nonce and a tag.
const ADDED_1_2: usize = 24;

pub(crate) mod kind {
    pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const DATA: u8 = 23;
}

pub(crate) const FINISHED: u8 = 20;

pub(crate) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    begin(&mut record, kind, content.len());
    record.extend_from_slice(content);
    record
}

fn begin(stream: &mut Vec<u8>, kind: u8, length: usize) {
    let [high, low] = u16::try_from(length).unwrap().to_be_bytes();
    stream.extend_from_slice(&[kind, 3, 3, high, low]);
}

/// Returns a TLS 1.3 record in encrypted form, with `padding` bytes of padding.
pub(crate) fn sealed(kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
    let mut record = Vec::new();
    seal(&mut record, kind, content, padding);
    record
}

/// Appends a TLS 1.3 record in encrypted form to a stream.
pub(crate) fn seal(stream: &mut Vec<u8>, kind: u8, content: &[u8], padding: usize) {
    begin(stream, kind::DATA, content.len() + 1 + padding + TAG_BYTES);
    stream.extend_from_slice(content);
    stream.push(kind);
    stream.resize(stream.len() + padding + TAG_BYTES, 0);
}

/// Returns a TLS 1.2 record in encrypted form.
pub(crate) fn sealed_1_2(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    seal_1_2(&mut record, kind, content);
    record
}

/// Appends a TLS 1.2 record in encrypted form to a stream.
pub(crate) fn seal_1_2(stream: &mut Vec<u8>, kind: u8, content: &[u8]) {
    begin(stream, kind, content.len() + ADDED_1_2);
    stream.extend_from_slice(content);
    stream.resize(stream.len() + ADDED_1_2, 0);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Hello,
    Finished,
    Data,
    Ended,
}

pub(crate) struct Tls {
    /// Server that reads the records' contents.
    pub(crate) app: Box<dyn Server>,
    pub(crate) is_1_3: bool,
    /// True if the server accepts requests before the handshake's end.
    pub(crate) takes_early_data: bool,
    /// Bytes of the server's first flight. The next field has the bytes of its tickets after the handshake.
    pub(crate) flight: u32,
    pub(crate) tickets: Vec<u32>,
    stage: Stage,
    buffer: Vec<u8>,
    record_said: u32,
    owed: VecDeque<u32>,
}

impl Tls {
    pub(crate) fn new(app: Box<dyn Server>, is_1_3: bool) -> Self {
        let (flight, tickets) = if is_1_3 { (1371, vec![279, 279]) } else { (1223, vec![327]) };
        let (stage, owed) = (Stage::Hello, VecDeque::new());
        Self { app, is_1_3, takes_early_data: false, flight, tickets, stage, buffer: Vec::new(), record_said: 0, owed }
    }

    fn record(&mut self, kind: u8, sealed: &[u8]) {
        let (kind, content) = match (self.stage, self.is_1_3, kind) {
            (Stage::Hello, ..) | (_, true, kind::CHANGE_CIPHER_SPEC) | (Stage::Finished, false, _) => (kind, sealed),
            (_, true, kind::DATA) => {
                let inner = &sealed[..sealed.len().saturating_sub(TAG_BYTES)];
                let end = inner.iter().rposition(|byte| *byte != 0);
                end.map_or((0, &[][..]), |end| (inner[end], &inner[..end]))
            }
            (_, true, _) => (0, sealed),
            (_, false, _) if sealed.len() < ADDED_1_2 => (0, sealed),
            (_, false, _) => (kind, &sealed[..sealed.len() - ADDED_1_2]),
        };
        let first = content.first().copied();
        match (self.stage, kind) {
            (Stage::Hello, kind::HANDSHAKE) => {
                self.owed.push_back(self.flight);
                self.stage = Stage::Finished;
            }
            (Stage::Finished, kind::CHANGE_CIPHER_SPEC) => {}
            (Stage::Finished, kind::HANDSHAKE) if first == Some(FINISHED) => {
                self.owed.extend(&self.tickets);
                self.stage = Stage::Data;
            }
            // Certificates and their proofs.
            (Stage::Finished, kind::HANDSHAKE) if matches!(first, Some(11 | 15 | 16)) => {}
            (Stage::Finished, kind::DATA) if self.takes_early_data => self.data(content),
            (Stage::Data, kind::DATA) => self.data(content),
            _ => self.stage = Stage::Ended,
        }
    }

    fn data(&mut self, content: &[u8]) {
        self.app.reads(content, self.record_said);
        let added = u32::try_from(HEADER_BYTES + if self.is_1_3 { TAG_BYTES + 1 } else { ADDED_1_2 }).unwrap();
        let owed = self.app.owes().drain(..).map(|bytes| bytes + added * bytes.div_ceil(16_384));
        self.owed.extend(owed);
        if self.app.has_ended() {
            self.stage = Stage::Ended;
        }
    }
}

impl Server for Tls {
    fn reads(&mut self, bytes: &[u8], said: u32) {
        if self.buffer.is_empty() {
            self.record_said = said;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(&[kind, major, _, high, low]) = buffer[at..].first_chunk::<HEADER_BYTES>() {
            let len = usize::from(u16::from_be_bytes([high, low]));
            if major != 3 || !(20..=23).contains(&kind) || len > LENGTH_MAX {
                self.stage = Stage::Ended;
            }
            let end = at + HEADER_BYTES + len;
            if self.stage == Stage::Ended || buffer.len() < end {
                break;
            }
            self.record(kind, &buffer[at + HEADER_BYTES..end]);
            at = end;
            self.record_said = said;
        }
        buffer.drain(..at);
        self.buffer = buffer;
    }

    fn owes(&mut self) -> &mut VecDeque<u32> {
        &mut self.owed
    }

    fn accepted(&self) -> &[u32] {
        self.app.accepted()
    }

    fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }
}
