//! `ratelimitd log`: sends each line of standard input to the daemon's log socket. The server that writes the lines
//! never waits. A line that the socket does not accept within a second is lost, and counted.

use std::io::{self, BufRead, Read as _, stdin};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};

use crate::error::Exit;

/// Socket that lines are sent to by default.
pub(super) const SOCKET_DEFAULT: &str = "/run/ratelimitd/log.sock";
/// Length in bytes of the longest line that the daemon reads.
const LINE_MAX: u64 = 16 * 1024;
/// Maximum number of bytes that wait for the socket.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of lines that wait for the socket.
const QUEUE_LINES_MAX: usize = 1 << 16;
/// Time that a line waits for a full socket. Then lines are lost until the socket takes one.
const WAIT_MS: u16 = 1_000;
/// Interval between attempts to connect to a socket that does not exist.
const RETRIED_EVERY: Duration = Duration::from_secs(1);
/// Interval between reports of lost lines.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Numbers of lines, by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    sent: u64,
    /// Lines that the socket did not accept.
    lost: u64,
}

/// Sends standard input to the socket until it ends.
///
/// # Errors
/// Fails if standard input cannot be read.
pub(super) fn forward_stdin(socket: &Path) -> anyhow::Result<Exit> {
    forward(stdin().lock(), socket)?;
    Ok(Exit::Done)
}

/// Reads lines as fast as they arrive, and sends them in a thread, because the kernel queues few datagrams.
fn forward(mut input: impl BufRead, path: &Path) -> io::Result<Lines> {
    let (queue, queued) = sync_channel(QUEUE_LINES_MAX);
    let (waiting, unqueued) = (AtomicUsize::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let (of_thread, unsent) = (&waiting, &unqueued);
        let sender = scope.spawn(move || send_all(queued, path, of_thread, unsent));
        let read = read_all(&mut input, |line| {
            let has_room = waiting.load(Ordering::Relaxed) + line.len() <= QUEUE_BYTES_MAX;
            if !has_room || queue.try_send(line.to_vec()).is_err() {
                unqueued.fetch_add(1, Ordering::Relaxed);
            } else {
                waiting.fetch_add(line.len(), Ordering::Relaxed);
            }
        });
        drop(queue);
        let mut lines = sender.join().map_err(|_| io::Error::other("the thread that sends lines ended"))?;
        lines.lost += unqueued.load(Ordering::Relaxed);
        read.map(|()| lines)
    })
}

/// Passes on each line with its newline, cut to [`LINE_MAX`] bytes.
fn read_all(input: &mut impl BufRead, mut hand_on: impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    while input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? > 0 {
        if line.len() as u64 == LINE_MAX && !line.ends_with(b"\n") {
            skip_line(input)?;
        }
        hand_on(&line);
        line.clear();
    }
    Ok(())
}

/// Sends each line, and counts those that are lost. `waiting` is the number of queued bytes, `unqueued` the number of
/// lines that found no room.
fn send_all(queued: Receiver<Vec<u8>>, path: &Path, waiting: &AtomicUsize, unqueued: &AtomicU64) -> Lines {
    let (mut lines, mut told) = (Lines::default(), Told::default());
    let mut socket = Socket { path, connected: None, tried: None, is_stuck: false };
    for line in queued {
        waiting.fetch_sub(line.len(), Ordering::Relaxed);
        match socket.send(line.strip_suffix(b"\n").unwrap_or(&line)) {
            Ok(()) => lines.sent += 1,
            Err(why) => {
                lines.lost += 1;
                let lost = lines.lost + unqueued.load(Ordering::Relaxed);
                told.tell(Lines { lost, ..lines }, path, &why);
            }
        }
    }
    lines
}

/// Skips the rest of the line.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let read = input.fill_buf()?;
        let end = read.iter().position(|byte| *byte == b'\n');
        let (bytes, is_end) = (end.map_or(read.len(), |at| at + 1), end.is_some() || read.is_empty());
        input.consume(bytes);
        if is_end {
            return Ok(());
        }
    }
}

/// The daemon's socket, which may appear later, vanish and return.
struct Socket<'a> {
    path: &'a Path,
    connected: Option<UnixDatagram>,
    tried: Option<Instant>,
    /// True if the socket stayed full for the maximum wait and has not accepted a line since.
    is_stuck: bool,
}

impl Socket<'_> {
    fn send(&mut self, line: &[u8]) -> Result<(), String> {
        if self.connected.is_none() {
            if self.tried.is_some_and(|tried| tried.elapsed() < RETRIED_EVERY) {
                return Err("nothing receives there".to_owned());
            }
            self.tried = Some(Instant::now());
            self.connected = Some(self.connect().map_err(|error| error.to_string())?);
        }
        let Some(socket) = &self.connected else { return Ok(()) };
        let mut sent = socket.send(line);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) && !self.is_stuck {
            // Try the line again, whatever the result.
            poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)], WAIT_MS).ok();
            sent = socket.send(line);
        }
        match sent {
            Ok(_) => {
                self.is_stuck = false;
                Ok(())
            }
            Err(error) => {
                self.is_stuck = error.kind() == io::ErrorKind::WouldBlock;
                // A full buffer drains; any other error means that the socket is gone.
                if !self.is_stuck {
                    self.connected = None;
                }
                Err(error.to_string())
            }
        }
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(self.path)?;
        Ok(socket)
    }
}

/// Time of the last message about lost lines.
#[derive(Default)]
struct Told(Option<Instant>);

impl Told {
    fn tell(&mut self, lines: Lines, path: &Path, why: &str) {
        if self.0.is_some_and(|told| told.elapsed() < TOLD_EVERY) {
            return;
        }
        self.0 = Some(Instant::now());
        eprintln!(
            "ratelimitd log: {}: {why}; {} lines are lost so far, {} were sent",
            path.display(),
            lines.lost,
            lines.sent
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 32 * 1024];
        std::iter::from_fn(|| {
            socket.recv(&mut buffer).ok().map(|bytes| String::from_utf8_lossy(&buffer[..bytes]).into_owned())
        })
        .collect()
    }

    #[test]
    fn each_line_becomes_a_datagram_and_one_that_is_too_long_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let (longest, too_long) = ("x".repeat(16 * 1024 - 1), "y".repeat(40_000));
        let input = format!("first\n{longest}\n{too_long}\n\nlast");
        assert_eq!(forward(input.as_bytes(), &path).unwrap(), Lines { sent: 5, lost: 0 });
        assert_eq!(received(&socket), ["first", &longest, &too_long[..16 * 1024], "", "last"]);
    }

    #[test]
    fn a_burst_that_the_kernel_does_not_queue_is_sent_as_the_socket_empties() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let reader = thread::spawn(move || {
            let mut buffer = [0; 64];
            (0..20_000).filter(|_| socket.recv(&mut buffer).is_ok()).count()
        });
        let input = "line\n".repeat(20_000);
        assert_eq!(forward(input.as_bytes(), &path).unwrap(), Lines { sent: 20_000, lost: 0 });
        assert_eq!(reader.join().unwrap(), 20_000);
    }

    #[test]
    fn a_socket_that_takes_nothing_loses_lines_and_nobody_waits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.sock");
        let input = "line\n".repeat(10_000);
        let begun = Instant::now();
        assert_eq!(forward(input.as_bytes(), &path).unwrap(), Lines { sent: 0, lost: 10_000 });
        let full = UnixDatagram::bind(&path).unwrap();
        let lines = forward(input.as_bytes(), &path).unwrap();
        assert_eq!(lines.sent + lines.lost, 10_000);
        assert!(lines.lost > 0 && lines.sent == received(&full).len() as u64, "{lines:?}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
