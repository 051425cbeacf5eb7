//! Incremental parser for the boundaries of RESP2 values in a byte stream. Pure.

use super::{ANSWER_BYTES_MAX, DEPTH_MAX, ELEMENTS_MAX, Excess, LINE_BYTES_MAX};

/// Maximum number of digits of a length.
const NUMBER_BYTES_MAX: usize = 20;

/// Maximum bytes that are kept of an error text.
const WORDS_BYTES_MAX: usize = 512;

/// First bytes of TLS records: an alert, a handshake.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

/// Event in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framed<'a> {
    /// A top-level value begins. Holds its type byte.
    Begins(u8),
    /// Text of a top-level error.
    Error(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the type byte of a value.
    Kind,
    /// Within the line that follows the type byte.
    Line(u8),
    /// Within a string and its line end. Holds the remaining bytes.
    Text(u64),
}

/// Parser state.
#[derive(Debug)]
pub(super) struct Frames {
    is_bounded: bool,
    at: At,
    /// Current line, up to the kept maximum.
    line: Vec<u8>,
    line_bytes: usize,
    /// Number of values that each enclosing array still expects.
    open: Vec<u64>,
    /// Bytes of the current top-level value.
    bytes: u64,
    elements: u64,
}

impl Frames {
    /// Creates a parser without bounds.
    pub(super) const fn unbounded() -> Self {
        Self::new(false)
    }

    /// Creates a parser that enforces the bounds on answers.
    pub(super) const fn bounded() -> Self {
        Self::new(true)
    }

    const fn new(is_bounded: bool) -> Self {
        Self { is_bounded, at: At::Kind, line: Vec::new(), line_bytes: 0, open: Vec::new(), bytes: 0, elements: 0 }
    }

    /// Returns true within a value.
    pub(super) const fn is_within(&self) -> bool {
        !self.open.is_empty() || !matches!(self.at, At::Kind)
    }

    /// Parses the next bytes and passes each event to `tell`. Fails if a bound is exceeded or a byte is invalid.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        mut tell: impl FnMut(Framed<'_>) -> Result<(), Excess>,
    ) -> Result<(), Excess> {
        while let Some((first, rest)) = bytes.split_first() {
            match self.at {
                At::Kind => {
                    self.begin(*first, &mut tell)?;
                    self.count(1)?;
                    bytes = rest;
                }
                At::Line(kind) => {
                    let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                    let (now, later) = bytes.split_at(end);
                    self.keep(now, kind)?;
                    self.count(now.len() as u64)?;
                    bytes = later;
                    if now.ends_with(b"\n") {
                        self.end_line(kind, &mut tell)?;
                    }
                }
                At::Text(left) => {
                    let now = left.min(bytes.len() as u64);
                    self.count(now)?;
                    bytes = &bytes[usize::try_from(now).unwrap_or(bytes.len())..];
                    self.at = At::Text(left - now);
                    if left == now {
                        self.end_value();
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, kind: u8, tell: &mut impl FnMut(Framed<'_>) -> Result<(), Excess>) -> Result<(), Excess> {
        if self.open.is_empty() {
            (self.bytes, self.elements) = (0, 0);
            if TLS_RECORDS.contains(&kind) {
                return Err(Excess::Tls);
            }
        }
        // The fleet uses RESP2, which has no other types.
        if !matches!(kind, b'+' | b'-' | b':' | b'$' | b'*') {
            return Err(Excess::Garbled);
        }
        if self.open.is_empty() {
            tell(Framed::Begins(kind))?;
        }
        self.at = At::Line(kind);
        self.line.clear();
        self.line_bytes = 0;
        Ok(())
    }

    fn count(&mut self, more: u64) -> Result<(), Excess> {
        self.bytes = self.bytes.saturating_add(more);
        if self.is_bounded && self.bytes > ANSWER_BYTES_MAX { Err(Excess::Bytes) } else { Ok(()) }
    }

    fn keep(&mut self, part: &[u8], kind: u8) -> Result<(), Excess> {
        self.line_bytes += part.len();
        let is_number = matches!(kind, b'$' | b'*');
        if is_number && self.line_bytes > NUMBER_BYTES_MAX + 2 {
            return Err(Excess::Garbled);
        }
        if self.line_bytes > LINE_BYTES_MAX {
            return Err(Excess::Line);
        }
        let room = WORDS_BYTES_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        Ok(())
    }

    fn end_line(&mut self, kind: u8, tell: &mut impl FnMut(Framed<'_>) -> Result<(), Excess>) -> Result<(), Excess> {
        let words = self.line.trim_ascii_end();
        match kind {
            b'$' => match number(words)? {
                None => self.end_value(),
                Some(length) => {
                    let left = length.saturating_add(2);
                    if self.is_bounded && self.bytes.saturating_add(left) > ANSWER_BYTES_MAX {
                        return Err(Excess::Bytes);
                    }
                    self.at = At::Text(left);
                }
            },
            b'*' => match number(words)? {
                None | Some(0) => self.end_value(),
                Some(length) => {
                    self.elements = self.elements.saturating_add(length);
                    if self.is_bounded && self.elements > ELEMENTS_MAX {
                        return Err(Excess::Elements);
                    }
                    if self.open.len() == DEPTH_MAX {
                        return Err(Excess::Depth);
                    }
                    self.open.push(length);
                    self.at = At::Kind;
                }
            },
            _ => {
                if kind == b'-' && self.open.is_empty() {
                    tell(Framed::Error(words))?;
                }
                self.end_value();
            }
        }
        Ok(())
    }

    fn end_value(&mut self) {
        self.at = At::Kind;
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.open.pop();
        }
    }
}

/// Parses a length. None if it is negative, which represents an absent value.
fn number(digits: &[u8]) -> Result<Option<u64>, Excess> {
    let number: i64 = str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(Excess::Garbled)?;
    Ok(u64::try_from(number).ok())
}
