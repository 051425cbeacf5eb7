//! One open file that lines are read from.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};

use crate::event::Event;
use crate::follower::Limits;
use crate::lines::{Splitter, Tally};
use crate::position::{FilePosition, HEAD_MAX, hash, read_head};

/// Bytes and lines that one poll may still read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
}

impl Budget {
    fn is_spent(self) -> bool {
        self.bytes == 0 || self.lines == 0
    }
}

/// An open file and how far it was read.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    device: u64,
    inode: u64,
    is_fifo: bool,
    /// Offset of the first byte that was not read. Bytes of an unfinished line are before it.
    offset: u64,
    /// Size in bytes at the last check.
    size: u64,
    links: u64,
    modified_ns: u64,
    /// First bytes of the file, at most [`HEAD_MAX`] and at most `offset`.
    head: Vec<u8>,
    splitter: Splitter,
    /// Time of the last byte read, or of the file's rotation if that is later.
    pub(crate) quiet_since: u64,
}

/// Place at which reading of a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// First byte of the file.
    Start,
    /// First line that begins at or after the present end.
    End,
    /// Position stored before a restart.
    At(FilePosition),
}

/// State of a file before it was truncated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truncated {
    pub(crate) position: FilePosition,
    /// Bytes of an unfinished line, which were counted as skipped.
    pub(crate) pending: u64,
}

impl OpenFile {
    /// Begins to read an open file.
    pub(crate) fn new((file, metadata): (File, Metadata), begin: Begin, limits: &Limits, now: u64) -> Self {
        let mut this = Self {
            file,
            device: metadata.dev(),
            inode: metadata.ino(),
            is_fifo: metadata.file_type().is_fifo(),
            offset: 0,
            size: 0,
            links: metadata.nlink(),
            modified_ns: 0,
            head: Vec::new(),
            splitter: Splitter::new(limits.line_max, false),
            quiet_since: now,
        };
        this.take_metadata(&metadata);
        match begin {
            Begin::Start => {}
            Begin::End if this.is_fifo => {}
            Begin::End => this.go_to(this.size, &mut Tally::default()),
            Begin::At(position) => {
                this.offset = position.offset;
                this.head = read_head(&this.file, position.head_len.into()).unwrap_or_default();
                this.splitter = Splitter::new(limits.line_max, position.is_mid_line);
            }
        }
        this
    }

    /// Returns true if the metadata describe this file.
    pub(crate) fn is(&self, metadata: &Metadata) -> bool {
        self.id() == (metadata.dev(), metadata.ino())
    }

    /// Returns the device and the inode.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    pub(crate) fn is_fifo(&self) -> bool {
        self.is_fifo
    }

    /// Returns the number of bytes that were written and not read.
    pub(crate) fn lag(&self) -> u64 {
        self.size.saturating_sub(self.offset)
    }

    /// Returns the number of bytes that would be skipped if the file were closed now.
    pub(crate) fn unread(&self) -> u64 {
        self.lag() + self.splitter.pending()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.size == 0
    }

    pub(crate) fn is_unlinked(&self) -> bool {
        self.links == 0
    }

    pub(crate) fn modified_ns(&self) -> u64 {
        self.modified_ns
    }

    /// Returns the position after the last whole line.
    pub(crate) fn position(&self) -> FilePosition {
        let offset = self.offset - self.splitter.pending();
        let head = self.head.get(..usize::try_from(offset).unwrap_or(HEAD_MAX)).unwrap_or(&self.head);
        FilePosition {
            device: self.device,
            inode: self.inode,
            offset,
            is_mid_line: self.splitter.is_skipping(),
            head_len: u16::try_from(head.len()).unwrap_or_default(),
            head_hash: hash(head),
        }
    }

    fn take_metadata(&mut self, metadata: &Metadata) {
        self.size = if self.is_fifo { 0 } else { metadata.len() };
        self.links = metadata.nlink();
        self.modified_ns = modified_ns(metadata);
    }

    /// Continues at an offset. If the offset is inside a line, the rest of that line is skipped.
    fn go_to(&mut self, offset: u64, tally: &mut Tally) {
        self.offset = offset;
        let mut before = [0];
        let is_boundary =
            offset == 0 || matches!(self.file.read_at(&mut before, offset - 1), Ok(1) if before == *b"\n");
        self.splitter.restart(!is_boundary, tally);
        self.head = read_head(&self.file, offset).unwrap_or_default();
    }

    /// Reads the file's size, and detects truncation and too long a lag. Returns the former state of a truncated file
    /// that is read from its start now.
    pub(crate) fn look(
        &mut self,
        limits: &Limits,
        tally: &mut Tally,
        events: &mut Vec<Event>,
    ) -> io::Result<Option<Truncated>> {
        if self.is_fifo {
            return Ok(None);
        }
        let mut truncated = None;
        let before = (self.size, self.modified_ns);
        let metadata = self.file.metadata()?;
        self.take_metadata(&metadata);
        let is_shorter = self.size < self.offset;
        if is_shorter || (self.size, self.modified_ns) != before {
            let is_same = read_head(&self.file, self.head.len() as u64).is_none_or(|head| head == self.head);
            if !is_same || is_shorter {
                // A file that lost its end only is not read again from its start.
                let offset = if is_same && !self.head.is_empty() { self.size } else { 0 };
                if offset == 0 {
                    truncated = Some(Truncated { position: self.position(), pending: self.splitter.pending() });
                } else {
                    events.push(Event::Truncated);
                }
                self.go_to(offset, tally);
            }
        }
        if self.lag() > limits.behind_max {
            let to = self.size - limits.behind_max / 64;
            let skipped = to - self.offset;
            tally.skipped_bytes += skipped;
            self.go_to(to, tally);
            events.push(Event::Jumped(skipped));
        }
        Ok(truncated)
    }

    /// Reads available bytes and hands their lines on. Returns true if more is ready. Fails if the file cannot be read.
    pub(crate) fn read(
        &mut self,
        now: u64,
        chunk: &mut [u8],
        budget: &mut Budget,
        tally: &mut Tally,
        sink: &mut impl FnMut(&[u8]),
    ) -> io::Result<bool> {
        loop {
            if budget.is_spent() {
                return Ok(self.is_fifo || self.lag() > 0);
            }
            let room = usize::try_from(budget.bytes).map_or(chunk.len(), |bytes| bytes.min(chunk.len()));
            let Some(room) = chunk.get_mut(..room) else { return Ok(false) };
            let read = if self.is_fifo { self.file.read(room) } else { self.file.read_at(room, self.offset) };
            let read = match read {
                Ok(0) => {
                    if self.is_fifo {
                        // No writer has the FIFO open. The next writer begins a new line.
                        self.splitter.restart(false, tally);
                    }
                    return Ok(false);
                }
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let bytes = room.get(..read).unwrap_or_default();
            let lines_before = tally.lines;
            let lines_max = if self.is_fifo { u64::MAX } else { budget.lines };
            let used = self.splitter.feed(bytes, lines_max, tally, sink);
            self.keep_head(bytes.get(..used).unwrap_or_default());
            self.offset += used as u64;
            self.size = if self.is_fifo { 0 } else { self.size.max(self.offset) };
            self.quiet_since = now;
            budget.bytes -= used as u64;
            budget.lines = budget.lines.saturating_sub(tally.lines - lines_before);
        }
    }

    /// Extends the kept first bytes of the file with bytes that were read at the present offset, if they are adjacent.
    fn keep_head(&mut self, bytes: &[u8]) {
        if !self.is_fifo && self.head.len() < HEAD_MAX && self.offset == self.head.len() as u64 {
            self.head.extend(bytes.iter().take(HEAD_MAX - self.head.len()));
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the time of the last change in nanoseconds since 1970.
pub(crate) fn modified_ns(metadata: &Metadata) -> u64 {
    let seconds = u64::try_from(metadata.mtime()).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(metadata.mtime_nsec()).unwrap_or_default())
}
