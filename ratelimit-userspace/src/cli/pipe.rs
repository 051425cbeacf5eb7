//! `ratelimitd log`: hands each line of standard input to the daemon's log socket. The server that writes the lines never
//! waits: a line that the socket does not take at once is lost, and counted.

use std::io::{self, BufRead, Read as _, stdin};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Exit;

/// Socket that lines are handed to, unless another is named.
pub(super) const SOCKET_DEFAULT: &str = "/run/ratelimitd/log.sock";
/// Length in bytes of the longest line that the daemon reads.
const LINE_MAX: u64 = 16 * 1024;
/// Period in which a socket that is not there is looked for.
const RETRIED_EVERY: Duration = Duration::from_secs(1);
/// Period in which lost lines are told.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Lines that were read, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    sent: u64,
    /// Lines that were too long, or that the socket did not take.
    lost: u64,
}

/// Hands on standard input until it ends.
///
/// # Errors
/// Fails if standard input cannot be read.
pub(super) fn forward_stdin(socket: &Path) -> anyhow::Result<Exit> {
    forward(stdin().lock(), socket)?;
    Ok(Exit::Done)
}

fn forward(mut input: impl BufRead, path: &Path) -> io::Result<Lines> {
    let (mut lines, mut told, mut line) = (Lines::default(), Told::default(), Vec::new());
    let mut socket = Socket { path, connected: None, tried: None };
    while input.by_ref().take(LINE_MAX + 1).read_until(b'\n', &mut line)? > 0 {
        let is_whole = line.ends_with(b"\n");
        if line.len() as u64 > LINE_MAX && !is_whole {
            skip_line(&mut input)?;
            lines.lost += 1;
            told.tell(lines, path, &format!("a line is longer than {} KiB", LINE_MAX / 1024));
        } else {
            match socket.send(line.strip_suffix(b"\n").unwrap_or(&line)) {
                Ok(()) => lines.sent += 1,
                Err(why) => {
                    lines.lost += 1;
                    told.tell(lines, path, &why);
                }
            }
        }
        line.clear();
    }
    Ok(lines)
}

/// Reads on to the end of the line.
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

/// Daemon's socket, which may come later, and go and come again.
struct Socket<'a> {
    path: &'a Path,
    connected: Option<UnixDatagram>,
    tried: Option<Instant>,
}

impl Socket<'_> {
    fn send(&mut self, line: &[u8]) -> Result<(), String> {
        if self.connected.is_none() {
            if self.tried.is_some_and(|tried| tried.elapsed() < RETRIED_EVERY) {
                return Err("nobody receives there".to_owned());
            }
            self.tried = Some(Instant::now());
            self.connected = Some(self.connect().map_err(|error| error.to_string())?);
        }
        let sent = self.connected.as_ref().map_or(Ok(0), |socket| socket.send(line));
        match sent {
            Ok(_) => Ok(()),
            Err(error) => {
                // A full buffer empties again; anything else is a socket that is gone.
                if error.kind() != io::ErrorKind::WouldBlock {
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
    fn each_line_becomes_a_datagram_and_one_that_is_too_long_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let (longest, too_long) = ("x".repeat(16 * 1024 - 1), "y".repeat(40_000));
        let input = format!("first\n{longest}\n{too_long}\n\nlast");
        assert_eq!(forward(input.as_bytes(), &path).unwrap(), Lines { sent: 4, lost: 1 });
        assert_eq!(received(&socket), ["first", &longest, "", "last"]);
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
