//! HTTP/1 server by the grammar of RFC 9112, as lenient as any real one. It accepts empty lines before a request, lines
//! that end with LF alone, and several blanks between and after the words of a first line. It also accepts any token as
//! a method, and versions in any case.

use std::collections::VecDeque;

use crate::link::Server;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    FirstLine,
    Field,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    Trailer,
    Nothing,
}

/// Length of a `100 Continue` answer in bytes.
pub(crate) const CONTINUE_BYTES: u32 = 25;

pub(crate) struct Http1 {
    expects: Expects,
    line: Vec<u8>,
    line_said: u32,
    accepted: Vec<u32>,
    owed: VecDeque<u32>,
    answers: VecDeque<u32>,
    /// Bytes that the server's TLS adds to an answer.
    pub(crate) overhead: u32,
    body_bytes: u64,
    is_chunked: bool,
    is_invited: bool,
    is_last: bool,
}

impl Http1 {
    /// Creates a server with answers of these lengths, in turn.
    pub(crate) fn new(answers: &[u32]) -> Self {
        Self {
            expects: Expects::FirstLine,
            line: Vec::new(),
            line_said: 0,
            accepted: Vec::new(),
            owed: VecDeque::new(),
            answers: answers.iter().copied().collect(),
            overhead: 0,
            body_bytes: 0,
            is_chunked: false,
            is_invited: false,
            is_last: false,
        }
    }

    fn says(&mut self, bytes: u32) {
        self.owed.push_back(bytes + self.overhead);
    }

    fn answers(&mut self) {
        self.answers.rotate_left(1);
        self.says(self.answers[0]);
    }

    fn fails(&mut self) {
        self.says(300);
        self.expects = Expects::Nothing;
    }

    fn line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        match self.expects {
            Expects::FirstLine => self.first_line(line),
            Expects::Field if line.is_empty() => self.head_ends(),
            Expects::Field => self.field(line),
            Expects::ChunkSize => {
                let size = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
                match std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok()) {
                    Some(0) => self.expects = Expects::Trailer,
                    // An empty line follows each chunk.
                    Some(size) if size < 1 << 32 => self.expects = Expects::Chunk(size),
                    Some(_) | None => self.fails(),
                }
            }
            Expects::Chunk(_) => self.expects = if line.is_empty() { Expects::ChunkSize } else { Expects::Nothing },
            Expects::Trailer if line.is_empty() => self.body_ends(),
            Expects::Trailer | Expects::Body(_) | Expects::Nothing => {}
        }
    }

    fn first_line(&mut self, line: &[u8]) {
        if line.is_empty() {
            return;
        }
        let words: Vec<_> = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty()).collect();
        let is_token =
            |word: &[u8]| word.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte));
        (self.body_bytes, self.is_chunked, self.is_invited, self.is_last) = (0, false, false, false);
        match words[..] {
            [method, _, version] if is_token(method) && is_version(version) && !line.starts_with(b" ") => {
                self.is_last = version.ends_with(b"1.0");
                self.expects = Expects::Field;
            }
            // HTTP/0.9: the request has no more lines, and its answer ends the connection.
            [b"GET", _] => {
                self.accepted.push(self.line_said);
                self.answers();
                self.expects = Expects::Nothing;
            }
            _ => self.fails(),
        }
    }

    fn field(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return self.fails() };
        let (name, value) = (line[..colon].to_ascii_lowercase(), line[colon + 1..].trim_ascii());
        match name.as_slice() {
            b"content-length" => match std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()) {
                Some(bytes) => self.body_bytes = bytes,
                None => self.fails(),
            },
            b"transfer-encoding" => self.is_chunked = true,
            b"expect" => self.is_invited = true,
            b"connection" => self.is_last = value == b"close",
            _ => {}
        }
    }

    fn head_ends(&mut self) {
        self.accepted.push(self.line_said);
        if self.is_invited && (self.is_chunked || self.body_bytes != 0) {
            self.says(CONTINUE_BYTES);
        }
        match (self.is_chunked, self.body_bytes) {
            (true, _) => self.expects = Expects::ChunkSize,
            (false, 0) => self.body_ends(),
            (false, bytes) => self.expects = Expects::Body(bytes),
        }
    }

    fn body_ends(&mut self) {
        self.answers();
        self.expects = if self.is_last { Expects::Nothing } else { Expects::FirstLine };
    }
}

/// Returns whether a word is a version: `HTTP/1.1`, more digits, or trailing bytes that Python takes for blanks. Like
/// Node, it also accepts versions of RTSP and ICE.
fn is_version(word: &[u8]) -> bool {
    let is_blank = |byte: &u8| matches!(byte, 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0);
    let blanks = word.iter().rev().take_while(|byte| is_blank(byte)).count();
    let version = &word[..word.len() - blanks];
    let Some((name, number)) = version.iter().position(|byte| *byte == b'/').map(|slash| version.split_at(slash))
    else {
        return false;
    };
    let is_name = name.eq_ignore_ascii_case(b"HTTP") || matches!(name, b"RTSP" | b"ICE");
    let mut parts = number[1..].split(|byte| *byte == b'.');
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    is_name && parts.by_ref().take(2).filter(|part| are_digits(part)).count() == 2 && parts.next().is_none()
}

impl Server for Http1 {
    fn reads(&mut self, bytes: &[u8], said: u32) {
        let mut rest = bytes;
        while !rest.is_empty() && self.expects != Expects::Nothing {
            if let Expects::Body(left) | Expects::Chunk(left) = self.expects
                && left != 0
            {
                let is_chunk = matches!(self.expects, Expects::Chunk(_));
                let taken = usize::try_from(left).unwrap().min(rest.len());
                rest = &rest[taken..];
                let left = left - taken as u64;
                self.expects = if is_chunk { Expects::Chunk(left) } else { Expects::Body(left) };
                if self.expects == Expects::Body(0) {
                    self.body_ends();
                }
                continue;
            }
            if self.line.is_empty() && self.expects == Expects::FirstLine {
                self.line_said = said;
            }
            let end = rest.iter().position(|byte| *byte == b'\n');
            self.line.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            rest = end.map_or(&[], |end| &rest[end + 1..]);
            if end.is_some() {
                self.line();
            }
        }
    }

    fn owes(&mut self) -> &mut VecDeque<u32> {
        &mut self.owed
    }

    fn accepted(&self) -> &[u32] {
        &self.accepted
    }

    fn has_ended(&self) -> bool {
        self.expects == Expects::Nothing
    }
}
