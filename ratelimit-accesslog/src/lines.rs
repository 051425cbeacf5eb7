//! Splits bytes into lines, with a bound on how much of an unfinished line is kept.

/// Totals of one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Lines handed on.
    pub(crate) lines: u64,
    /// Bytes of the lines handed on, with their newlines.
    pub(crate) bytes: u64,
    /// Lines that exceed the bound and were handed on in part, and datagrams with an embedded newline, which were not
    /// handed on.
    pub(crate) skipped_lines: u64,
    /// Bytes that were not handed on.
    pub(crate) skipped_bytes: u64,
}

/// State of the line that is being read.
#[derive(Debug)]
pub(crate) struct Splitter {
    line_max: usize,
    /// Beginning of a line without its newline, at most `line_max` bytes.
    pending: Vec<u8>,
    /// True if the bytes up to the next newline belong to a line that is not handed on.
    is_skipping: bool,
}

impl Splitter {
    /// Returns a splitter that hands on at most `line_max` bytes of each line, without its newline.
    pub(crate) fn new(line_max: usize, is_mid_line: bool) -> Self {
        Self { line_max, pending: Vec::new(), is_skipping: is_mid_line }
    }

    /// Returns the number of kept bytes of an unfinished line.
    pub(crate) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Returns true if the bytes up to the next newline are not handed on.
    pub(crate) fn is_skipping(&self) -> bool {
        self.is_skipping
    }

    /// Discards an unfinished line and counts its bytes as skipped.
    pub(crate) fn restart(&mut self, is_mid_line: bool, tally: &mut Tally) {
        tally.skipped_bytes += self.pending();
        self.pending.clear();
        self.is_skipping = is_mid_line;
    }

    /// Hands lines of `chunk` to `sink`, at most `lines_max` whole ones. Returns the number of bytes used.
    pub(crate) fn feed(
        &mut self,
        chunk: &[u8],
        lines_max: u64,
        tally: &mut Tally,
        sink: &mut impl FnMut(&[u8]),
    ) -> usize {
        let mut rest = chunk;
        let mut lines = 0;
        while !rest.is_empty() && lines < lines_max {
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                self.keep(rest, tally, sink);
                return chunk.len();
            };
            let (line, after) = rest.split_at(length);
            rest = after.get(1..).unwrap_or_default();
            let size = self.pending() + length as u64 + 1;
            if self.is_skipping {
                self.is_skipping = false;
                tally.skipped_bytes += size;
                continue;
            }
            if self.pending.len() + length > self.line_max {
                self.hand_on_cut(line, sink);
                tally.skipped_lines += 1;
                tally.skipped_bytes += size;
                continue;
            }
            if self.pending.is_empty() {
                sink(line);
            } else {
                self.pending.extend_from_slice(line);
                sink(&self.pending);
                self.pending.clear();
            }
            lines += 1;
            tally.lines += 1;
            tally.bytes += size;
        }
        chunk.len() - rest.len()
    }

    /// Keeps the beginning of a line, or begins to skip the line if it exceeds the bound.
    fn keep(&mut self, part: &[u8], tally: &mut Tally, sink: &mut impl FnMut(&[u8])) {
        if self.is_skipping {
            tally.skipped_bytes += part.len() as u64;
        } else if self.pending.len() + part.len() > self.line_max {
            tally.skipped_lines += 1;
            tally.skipped_bytes += self.pending() + part.len() as u64;
            self.hand_on_cut(part, sink);
            self.is_skipping = true;
        } else {
            self.pending.extend_from_slice(part);
        }
    }

    /// Hands on as much of a line as the bound allows. The client's address is at the beginning; the client can choose
    /// the line's length.
    fn hand_on_cut(&mut self, part: &[u8], sink: &mut impl FnMut(&[u8])) {
        let room = self.line_max - self.pending.len();
        self.pending.extend_from_slice(part.get(..room).unwrap_or(part));
        sink(&self.pending);
        self.pending.clear();
    }
}
