//! Reader for lines of any length from an input of any size, in bounded memory.

use std::io::{self, BufRead, BufReader, Read};

/// Maximum length of a line in bytes. Servers refuse requests that are far shorter.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Size of the read buffer in bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// Reader that splits an input into lines.
pub(super) struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    /// Number of NUL bytes at the start of lines, which are removed: `copytruncate` leaves a hole where it cut.
    pub(super) nuls: u64,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(BUFFER_BYTES, input), line: Vec::new(), nuls: 0 }
    }

    /// Returns the next line without its end; none at the end of the input. A line longer than [`LINE_BYTES_MAX`] is
    /// cut.
    pub(super) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        self.skip_nuls()?;
        if self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() as u64 == LINE_BYTES_MAX {
            self.input.skip_until(b'\n')?;
        }
        Ok(Some(&self.line))
    }

    /// Returns the next `count` bytes, but at most [`LINE_BYTES_MAX`], and skips the end of line after them.
    pub(super) fn bytes(&mut self, count: u64) -> io::Result<&[u8]> {
        self.line.clear();
        self.input.by_ref().take(count.min(LINE_BYTES_MAX)).read_to_end(&mut self.line)?;
        io::copy(&mut self.input.by_ref().take(count.saturating_sub(LINE_BYTES_MAX)), &mut io::sink())?;
        self.input.skip_until(b'\n')?;
        Ok(&self.line)
    }

    /// Returns the next N bytes, across line ends; none if fewer are left.
    pub(super) fn exactly<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            read => read.map(|()| Some(bytes)),
        }
    }

    fn skip_nuls(&mut self) -> io::Result<()> {
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            let nuls = buffer.iter().take_while(|byte| **byte == 0).count();
            let is_all = nuls > 0 && nuls == buffer.len();
            self.input.consume(nuls);
            self.nuls = self.nuls.saturating_add(nuls as u64);
            if !is_all {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_one_line_and_takes_no_memory() {
        let mut long = vec![b'a'; 5 << 20];
        long.extend_from_slice(b"\nnext\n\nlast");
        let mut lines = Lines::new(io::Cursor::new(long));
        assert_eq!(lines.next().expect("read").map(<[u8]>::len), Some(1 << 20));
        for line in ["next", "", "last"] {
            assert_eq!(lines.next().expect("read"), Some(line.as_bytes()));
        }
        assert_eq!(lines.next().expect("read"), None);
        assert!(lines.line.capacity() <= 2 << 20);
    }

    #[test]
    fn nuls_before_a_line_are_no_part_of_it_however_many() {
        let mut holes = vec![0; 3 << 20];
        holes.extend_from_slice(b"one\n\0\0two\0\n\0");
        let mut lines = Lines::new(io::Cursor::new(holes));
        assert_eq!(lines.next().expect("read"), Some(b"one".as_slice()));
        assert_eq!(lines.next().expect("read"), Some(b"two\0".as_slice()));
        assert_eq!(lines.next().expect("read"), None);
        assert_eq!((lines.nuls, lines.line.capacity() < 1 << 10), ((3 << 20) + 3, true));
    }
}
