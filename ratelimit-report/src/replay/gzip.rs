//! Decompression of gzip data as it is read, in the memory of one window. Damage ends the data and is reported.

use std::io::{self, BufRead as _, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use flate2::bufread::GzDecoder;

/// Magic bytes of gzip data.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

const WHOLE: u8 = 0;
const CUT_OFF: u8 = 1;
const DAMAGED: u8 = 2;
const SHREDDED: u8 = 3;

/// Number of members that may be arbitrarily small. Starting a member costs as much as decompressing some kB, and no
/// tool writes members of a few bytes.
const MEMBERS_FREE: u64 = 10_000;
/// Minimum mean size of further members in bytes.
const MEMBER_BYTES_MIN: u64 = 256;

/// State of the decompression, shared with the caller who gave the reader away.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition(Arc<AtomicU8>);

impl Condition {
    /// Returns the problem as a clause; none if the data is valid so far.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match self.0.load(Ordering::Relaxed) {
            WHOLE => None,
            CUT_OFF => Some("its gzip data is cut off"),
            SHREDDED => Some("its gzip data has more members than content: unpack it with zcat, and pack it again"),
            _ => Some("its gzip data is damaged"),
        }
    }
}

/// Reader that decompresses one member after the other.
pub(super) struct Gunzip<R> {
    /// Current member; none at the end.
    member: Option<GzDecoder<BufReader<R>>>,
    members: u64,
    unpacked_bytes: u64,
    condition: Condition,
}

impl<R: Read> Gunzip<R> {
    pub(super) fn new(packed: R) -> (Self, Condition) {
        let condition = Condition::default();
        let member = Some(GzDecoder::new(BufReader::new(packed)));
        (Self { member, members: 1, unpacked_bytes: 0, condition: condition.clone() }, condition)
    }

    /// Starts the next member after one has ended.
    fn next(&mut self) -> io::Result<()> {
        let Some(mut packed) = self.member.take().map(GzDecoder::into_inner) else { return Ok(()) };
        if packed.fill_buf()?.is_empty() {
            return Ok(());
        }
        self.members += 1;
        if self.members > MEMBERS_FREE + self.unpacked_bytes / MEMBER_BYTES_MIN {
            self.end(SHREDDED);
        } else {
            self.member = Some(GzDecoder::new(packed));
        }
        Ok(())
    }

    fn end(&mut self, condition: u8) {
        self.member = None;
        self.condition.0.store(condition, Ordering::Relaxed);
    }
}

impl<R: Read> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = self.member.as_mut().filter(|_| !buffer.is_empty()) {
            match member.read(buffer) {
                Ok(0) => self.next()?,
                Ok(read) => {
                    self.unpacked_bytes += read as u64;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.end(CUT_OFF),
                Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                    self.end(DAMAGED);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(0)
    }
}
