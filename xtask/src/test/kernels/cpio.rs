//! Writer for the archive that a kernel unpacks as its initial file system: cpio's "newc" format
//! (Documentation/driver-api/early-userspace/buffer-format.rst, Linux 6.1).

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
/// Header size: "070701" and 13 numbers of 8 digits.
const HEADER_BYTES: usize = 110;

pub(super) struct Archive<W> {
    out: W,
    /// Number of entries, used as inode number. Equal numbers would be hard links.
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, entries: 0 }
    }

    /// Adds a directory. `path` is relative to the root, and its parent must have been added.
    pub(super) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY, &[])
    }

    pub(super) fn executable(&mut self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.entry(path, EXECUTABLE, bytes)
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{path} has 4 GiB or more")))?;
        let path_len = path.len() + 1;
        self.entries += 1;
        // Owner, group, links and time; length; device numbers; length of the path; no checksum.
        write!(self.out, "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{len:08x}", self.entries, 0, 0, 1, 0)?;
        write!(self.out, "{:08x}{:08x}{:08x}{:08x}{path_len:08x}{:08x}{path}\0", 0, 0, 0, 0, 0)?;
        self.pad(HEADER_BYTES + path_len)?;
        self.out.write_all(bytes)?;
        self.pad(bytes.len())
    }

    /// Pads to a multiple of 4 bytes.
    fn pad(&mut self, len: usize) -> io::Result<()> {
        self.out.write_all(&[0; 3][..len.next_multiple_of(4) - len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(entry: &[u8], at: usize) -> u32 {
        u32::from_str_radix(std::str::from_utf8(&entry[6 + 8 * at..][..8]).unwrap(), 16).unwrap()
    }

    #[test]
    fn an_archive_has_its_entries_on_multiples_of_four_bytes() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("bin").unwrap();
        archive.executable("bin/t", b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        // 110 + 4 (+2), then 110 + 6 and 5 (+3), then 110 + 11 (+3).
        assert_eq!(bytes.len(), 116 + 116 + 8 + 124);
        let (directory, rest) = bytes.split_at(116);
        let (file, trailer) = rest.split_at(124);
        assert_eq!((number(directory, 1), number(directory, 6), &directory[110..]), (0o040_755, 0, &b"bin\0\0\0"[..]));
        assert_eq!((number(file, 1), number(file, 6), number(file, 11)), (0o100_755, 5, 6));
        assert_eq!(&file[110..], b"bin/t\x0012345\0\0\0");
        assert!(trailer.starts_with(b"070701") && trailer[110..].starts_with(b"TRAILER!!!\0"));
        assert_ne!(number(directory, 0), number(file, 0));
    }
}
