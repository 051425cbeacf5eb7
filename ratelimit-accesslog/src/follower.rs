//! Follows one log across rotation, truncation and restarts.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;

use crate::event::Event;
use crate::file::{Begin, Budget, OpenFile, Truncated, modified_ns};
use crate::lines::Tally;
use crate::open::{Source, find_copy, find_renamed, identify, open, state_of};
use crate::position::{FilePosition, Position};
use crate::socket::Listening;
use crate::watch::Watch;

/// Maximum number of rotated files that are read at once.
const OLD_MAX: usize = 4;
/// Number of closed files with a remembered position, in case the log's name links to one of them again.
const CLOSED_MAX: usize = 8;
/// Size of one read in bytes.
const CHUNK: usize = 64 * 1024;

/// Bounds of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of bytes read in one poll.
    pub bytes_per_poll: u64,
    /// Maximum number of lines handed on in one poll. A FIFO may exceed it by the lines of one read of 64 KiB.
    pub lines_per_poll: u64,
    /// Maximum length of a line in bytes, without its newline, at most 64 KiB. Longer lines are skipped and counted.
    pub line_max: usize,
    /// Maximum number of bytes that one file may be behind. Beyond it, reading continues at a 64th of this many bytes
    /// before the end.
    pub behind_max: u64,
    /// Time in nanoseconds for which a rotated file stays open after its last line. A server may write to it until it
    /// has opened the new one.
    pub linger_ns: u64,
}

impl Limits {
    /// Bounds of a daemon that polls every few milliseconds.
    pub const DEFAULT: Self = Self {
        bytes_per_poll: 8 << 20,
        lines_per_poll: 50_000,
        line_max: 16 << 10,
        behind_max: 64 << 20,
        linger_ns: 300_000_000_000,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Condition of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Lines are read as they come.
    Following,
    /// No file has the log's name. A file that appears later is read from its start.
    Missing,
    /// The process may not read the log, or not search its directory.
    NoPermission,
    /// The path is a directory.
    IsDirectory,
    /// Opening or reading fails for the reason given, a predicate such as "is a device, not a log".
    Failing(String),
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Following => "is followed",
            Self::Missing => "does not exist, it is read once it exists",
            Self::NoPermission => "cannot be read, this process lacks the permission",
            Self::IsDirectory => "is a directory, not a log",
            Self::Failing(reason) => reason,
        })
    }
}

/// Result of one poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// Lines handed on.
    pub lines: u64,
    /// Bytes of the lines handed on, with their newlines.
    pub bytes: u64,
    /// Lines that were too long, or datagrams that have an embedded newline.
    pub skipped_lines: u64,
    /// Bytes that were read or jumped over and not handed on. An unfinished line that another file's start cut
    /// counts too.
    pub skipped_bytes: u64,
    /// Bytes that were written and not read yet. None for a FIFO or a socket, where the kernel bounds them.
    pub lag: Option<u64>,
    /// Condition of the log.
    pub state: State,
    /// True if another poll would find more at once.
    pub more: bool,
    /// Events to tell the operator.
    pub events: Vec<Event>,
}

/// Reads one log. Never waits, and does nothing between polls.
///
/// A regular log without a resume position is read from its end, at the next whole line. A log that did not exist at
/// the first poll is read from its start. After a rename, the former file is read to its end before the new one, and
/// stays open until it is quiet for [`Limits::linger_ns`]. Compressing or removing a file that is open loses nothing.
///
/// A file that was truncated in place (`copytruncate`) is read from its start, also if it has grown again, which its
/// first bytes show. Lines that were not read before are read from its copy, if an uncompressed file beside it has the
/// same first bytes and a name that begins as the log's does. Lines that the server writes between the copy and the
/// truncation are in neither file and are lost. A server that does not append (`O_APPEND`) leaves NUL bytes before its
/// next line, which then is too long or malformed.
///
/// A file that was rotated twice between two polls, without ever being seen under the log's name, is not read either.
///
/// Between polls, wait with `poll(2)` on [`Follower::written`]. A socket should be polled at once: the kernel queues few
/// datagrams (`net.unix.max_dgram_qlen`), and servers drop those beyond. A file should also be polled at an interval,
/// which bounds the delay after a rotation and on file systems that report no writes. The path must not be on a file
/// system whose operations can block, such as NFS.
#[derive(Debug)]
pub struct Follower {
    source: Source,
    limits: Limits,
    resume: Option<Position>,
    /// True if the next file is read from its start.
    begins_at_start: bool,
    current: Option<OpenFile>,
    /// Rotated files that are still read, oldest first.
    old: Vec<OpenFile>,
    /// Positions of files that were closed, oldest first.
    closed: VecDeque<FilePosition>,
    socket: Option<Listening>,
    /// None if the system allows no watch.
    watch: Option<Watch>,
    chunk: Vec<u8>,
}

impl Follower {
    /// Returns a follower that has opened nothing yet. `resume` is the value that [`Follower::position`] returned for
    /// the same source. Sockets and FIFOs ignore it.
    #[must_use]
    pub fn new(source: Source, resume: Option<Position>, limits: Limits) -> Self {
        let limits = Limits {
            bytes_per_poll: limits.bytes_per_poll.max(1),
            lines_per_poll: limits.lines_per_poll.max(1),
            line_max: limits.line_max.min(CHUNK),
            ..limits
        };
        let (current, socket) = (None, None);
        let (old, closed, chunk) = (Vec::new(), VecDeque::new(), vec![0; CHUNK + 1]);
        let watch = if matches!(source, Source::File(_)) { Watch::new() } else { None };
        Self { source, limits, resume, begins_at_start: false, current, old, closed, socket, watch, chunk }
    }

    /// Returns the socket to wait for, if the source is one and is bound.
    #[must_use]
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    /// Returns a descriptor that becomes readable when the log is written to, until the next poll. It is the socket if
    /// the source is one. None if writes are not reported.
    #[must_use]
    pub fn written(&self) -> Option<BorrowedFd<'_>> {
        self.socket().or_else(|| self.watch.as_ref().filter(|_| !self.is_unreported()).map(|watch| watch.as_fd()))
    }

    /// Returns true if the kernel does not report writes to the log's file, such as a FIFO.
    #[must_use]
    pub fn is_unreported(&self) -> bool {
        let is_watched = |file: &OpenFile| self.watch.as_ref().is_some_and(|watch| watch.has(file.id()));
        self.current.as_ref().is_some_and(|current| !is_watched(current))
    }

    /// Returns the position up to which the log was read. None for a FIFO, a socket, or a log that could not be opened
    /// yet for lack of permission.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        if matches!(self.source, Source::Socket { .. }) {
            return None;
        }
        if let Some(resume) = &self.resume {
            return Some(resume.clone());
        }
        let open = || self.old.iter().chain(&self.current).filter(|file| !file.is_fifo());
        let files: Vec<_> = open().map(OpenFile::position).collect();
        let modified_ns = open().next_back().map_or(0, OpenFile::modified_ns);
        let is_known = !files.is_empty() || (self.begins_at_start && self.current.is_none());
        is_known.then_some(Position { files, modified_ns })
    }

    /// Reads the available lines and hands each whole line to `sink`, without its newline. `now` is in nanoseconds.
    pub fn poll(&mut self, now: u64, sink: &mut impl FnMut(&[u8])) -> Polled {
        let mut tally = Tally::default();
        let mut events = Vec::new();
        let mut budget = Budget { bytes: self.limits.bytes_per_poll, lines: self.limits.lines_per_poll };
        let (found, read, lag) = match self.source.clone() {
            Source::Socket { path, group } => {
                (Ok(()), self.poll_socket(&path, group.as_deref(), &mut budget, &mut tally, sink), None)
            }
            Source::File(path) => {
                // Later writes make the descriptor readable again, also those that this poll reads.
                if let Some(watch) = &self.watch {
                    watch.drain();
                }
                let found = self.look(&path, now, &mut tally, &mut events);
                let read = self.read(now, &mut budget, &mut tally, &mut events, sink);
                let is_fifo = self.current.as_ref().is_some_and(OpenFile::is_fifo);
                let lag = self.old.iter().chain(&self.current).map(OpenFile::lag).sum();
                (found, read, (!is_fifo).then_some(lag))
            }
        };
        let Tally { lines, bytes, skipped_lines, skipped_bytes } = tally;
        let more = read.as_ref().is_ok_and(|more| *more);
        let state = found.and(read.map(drop)).err().unwrap_or(State::Following);
        Polled { lines, bytes, skipped_lines, skipped_bytes, lag, state, more, events }
    }

    fn poll_socket(
        &mut self,
        path: &Path,
        group: Option<&str>,
        budget: &mut Budget,
        tally: &mut Tally,
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<bool, State> {
        if let Some(socket) = &self.socket
            && !socket.is_in_place()
        {
            // Servers that connected earlier may still have datagrams in its queue.
            socket.read(self.limits.line_max, &mut self.chunk, budget, tally, sink).ok();
            self.socket = None;
        }
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.socket.insert(Listening::bind(path, group)?),
        };
        socket.read(self.limits.line_max, &mut self.chunk, budget, tally, sink).map_err(|error| state_of(&error))
    }

    /// Opens the log, or the file that replaced it.
    fn look(&mut self, path: &Path, now: u64, tally: &mut Tally, events: &mut Vec<Event>) -> Result<(), State> {
        let found = identify(path);
        if let (Ok(metadata), Some(current)) = (&found, &self.current)
            && current.is(metadata)
        {
            return Ok(());
        }
        let opened = match found.and_then(|_| open(path)) {
            Ok(opened) => opened,
            Err(state) => {
                self.begins_at_start |= state == State::Missing;
                return Err(state);
            }
        };
        if let Some(resume) = self.resume.take() {
            self.resume_at(path, &resume, opened, now, events);
        } else {
            self.switch_to(opened, now, tally, events);
        }
        self.begins_at_start = true;
        self.watch_files();
        Ok(())
    }

    /// Has the kernel report writes to the open files. Writes to a FIFO are not reported.
    fn watch_files(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        for file in self.old.iter().chain(&self.current).filter(|file| !file.is_fifo()) {
            watch.add(file.id(), file);
        }
    }

    /// Continues where reading ended before the process did.
    fn resume_at(
        &mut self,
        path: &Path,
        resume: &Position,
        opened: (File, Metadata),
        now: u64,
        events: &mut Vec<Event>,
    ) {
        let (file, metadata) = &opened;
        let mut begin = None;
        for position in resume.files.iter().skip(resume.files.len().saturating_sub(OLD_MAX + 1)) {
            if position.is_of(file, metadata.dev(), metadata.ino()) {
                begin = Some(Begin::At(*position));
            } else if let Some(found) = find_renamed(path, position).or_else(|| find_copy(path, position)) {
                self.old.push(OpenFile::new(found, Begin::At(*position), &self.limits, now));
            } else if !events.contains(&Event::RestLost) {
                events.push(Event::RestLost);
            }
        }
        let begin = begin.unwrap_or_else(|| {
            let is_newer = modified_ns(metadata) >= resume.modified_ns;
            if !resume.files.is_empty() {
                events.push(if is_newer { Event::BeganAtStart } else { Event::BeganAtEnd });
            }
            if is_newer { Begin::Start } else { Begin::End }
        });
        self.current = Some(OpenFile::new(opened, begin, &self.limits, now));
    }

    /// Begins to read the file that has the log's name now, and keeps the former one open.
    fn switch_to(&mut self, opened: (File, Metadata), now: u64, tally: &mut Tally, events: &mut Vec<Event>) {
        let (file, metadata) = &opened;
        let returned = self.old.iter().position(|old| old.is(metadata)).map(|index| self.old.remove(index));
        let closed = self.closed.iter().rev().find(|closed| closed.is_of(file, metadata.dev(), metadata.ino()));
        let begin = match closed {
            Some(closed) => Begin::At(*closed),
            None if self.begins_at_start => Begin::Start,
            None => Begin::End,
        };
        let next = returned.unwrap_or_else(|| OpenFile::new(opened, begin, &self.limits, now));
        if let Some(mut former) = self.current.replace(next) {
            events.push(Event::Rotated);
            former.quiet_since = now;
            self.keep_old(former, tally, events);
        }
    }

    /// Reads rotated files, oldest first, and then the log. Returns whether more is ready.
    fn read(
        &mut self,
        now: u64,
        budget: &mut Budget,
        tally: &mut Tally,
        events: &mut Vec<Event>,
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<bool, State> {
        let mut more = false;
        let mut failed = None;
        let mut truncated = Vec::new();
        for file in self.old.iter_mut().chain(&mut self.current) {
            match file.look(&self.limits, tally, events) {
                Ok(found) => truncated.extend(found),
                Err(error) => failed = Some(error),
            }
        }
        for truncated in truncated {
            self.read_copy_of(truncated, now, tally, events);
        }
        for file in self.old.iter_mut().chain(&mut self.current) {
            match file.read(now, &mut self.chunk, budget, tally, sink) {
                Ok(is_more) => more |= is_more,
                Err(error) => failed = Some(error),
            }
        }
        self.close_quiet(now, tally);
        match failed {
            None => Ok(more),
            Some(error) => Err(self.failed(&error)),
        }
    }

    /// Begins to read the rest of a truncated file from its copy, if there is one.
    fn read_copy_of(&mut self, truncated: Truncated, now: u64, tally: &mut Tally, events: &mut Vec<Event>) {
        let Truncated { position, pending } = truncated;
        match find_copy(self.source.path(), &position) {
            Some(copy) => {
                tally.skipped_bytes -= pending;
                self.keep_old(OpenFile::new(copy, Begin::At(position), &self.limits, now), tally, events);
                events.push(Event::CopiedAndTruncated);
            }
            None => events.push(Event::Truncated),
        }
    }

    /// Keeps a file that no longer has the log's name, to read it to its end.
    fn keep_old(&mut self, file: OpenFile, tally: &mut Tally, events: &mut Vec<Event>) {
        self.old.push(file);
        if self.old.len() > OLD_MAX {
            let unread = self.old.remove(0).unread();
            tally.skipped_bytes += unread;
            events.push(Event::Dropped(unread));
        }
    }

    /// Describes a failed read. A stale handle is opened again at the same position.
    fn failed(&mut self, error: &io::Error) -> State {
        if error.raw_os_error() == Some(Errno::ESTALE as i32) {
            self.resume = self.position();
            self.current = None;
            self.old.clear();
        }
        state_of(error)
    }

    /// Closes rotated files that nothing was written to for a while. As long as the log's new file is empty, the
    /// server may not have opened it yet, so only files without a name are closed.
    fn close_quiet(&mut self, now: u64, tally: &mut Tally) {
        let is_used = self.current.as_ref().is_some_and(|current| !current.is_empty());
        let linger_ns = self.limits.linger_ns;
        let is_quiet = |file: &mut OpenFile| {
            now.saturating_sub(file.quiet_since) >= linger_ns && file.lag() == 0 && (is_used || file.is_unlinked())
        };
        for file in self.old.extract_if(.., is_quiet) {
            tally.skipped_bytes += file.unread();
            if !file.is_fifo() {
                self.closed.push_back(file.position());
            }
        }
        self.closed.drain(..self.closed.len().saturating_sub(CLOSED_MAX));
    }
}
