//! What is packed by gzip, unpacked as it is read, in the memory of one window. Damage ends it, and is told.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use flate2::read::MultiGzDecoder;

/// How it begins.
pub(super) const MAGIC: [u8; 2] = [0x1f, 0x8b];

const WHOLE: u8 = 0;
const CUT_OFF: u8 = 1;
const DAMAGED: u8 = 2;

/// How the unpacking went, told to who has given the reader away.
#[derive(Clone, Debug, Default)]
pub(super) struct Condition(Arc<AtomicU8>);

impl Condition {
    /// What is wrong with it, a clause; none where nothing is, so far.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match self.0.load(Ordering::Relaxed) {
            WHOLE => None,
            CUT_OFF => Some("its gzip data is cut off"),
            _ => Some("its gzip data is damaged"),
        }
    }
}

/// Unpacks one member after the other.
pub(super) struct Gunzip<R> {
    decoder: MultiGzDecoder<R>,
    condition: Condition,
}

impl<R: Read> Gunzip<R> {
    pub(super) fn new(packed: R) -> (Self, Condition) {
        let condition = Condition::default();
        (Self { decoder: MultiGzDecoder::new(packed), condition: condition.clone() }, condition)
    }
}

impl<R: Read> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.condition.problem().is_some() {
            return Ok(0);
        }
        let condition = match self.decoder.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => CUT_OFF,
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => DAMAGED,
            read => return read,
        };
        self.condition.0.store(condition, Ordering::Relaxed);
        Ok(0)
    }
}
