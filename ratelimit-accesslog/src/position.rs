//! Position in a log: which files are being read, and how far each was read.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use serde::{Deserialize, Serialize};

/// Number of bytes at a file's beginning that identify it beside its inode.
pub(crate) const HEAD_MAX: usize = 256;

/// Place up to which a log was read. Everything before it was handed on, nothing after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Files that were being read, oldest first. The last one had the log's name, or had it last. Empty if the log
    /// did not exist.
    pub files: Vec<FilePosition>,
    /// Time at which the last file was modified, in nanoseconds since 1970 by the file system's clock.
    pub modified_ns: u64,
}

/// Place up to which one file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePosition {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number of the file.
    pub inode: u64,
    /// Offset in bytes of the first byte that was not handed on.
    pub offset: u64,
    /// True if the bytes from `offset` to the next newline are the rest of a line that is not handed on.
    pub is_mid_line: bool,
    /// Number of bytes at the file's beginning that `head_hash` covers, at most 256 and at most `offset`.
    pub head_len: u16,
    /// Hash (64-bit FNV-1a) of the file's first bytes. Distinguishes a reused inode and a rewritten file.
    pub head_hash: u64,
}

impl FilePosition {
    /// Returns true if the open file is the one of this position: same inode, same first bytes, same device. Device
    /// numbers may change when the host starts, so a hash over at least one byte outweighs them.
    pub(crate) fn is_of(&self, file: &File, device: u64, inode: u64) -> bool {
        self.inode == inode && (self.device == device || self.head_len > 0) && self.is_head_of(file)
    }

    /// Returns true if the open file has the same first bytes.
    pub(crate) fn is_head_of(&self, file: &File) -> bool {
        read_head(file, self.head_len.into())
            .is_some_and(|head| head.len() == usize::from(self.head_len) && hash(&head) == self.head_hash)
    }
}

/// Returns the first `length` bytes of a file, at most [`HEAD_MAX`], fewer where the file is shorter. None if the file
/// cannot be read.
pub(crate) fn read_head(file: &File, length: u64) -> Option<Vec<u8>> {
    let mut head = vec![0; usize::try_from(length).map_or(HEAD_MAX, |length| length.min(HEAD_MAX))];
    let mut filled = 0;
    while let Some(room) = head.get_mut(filled..)
        && !room.is_empty()
    {
        match file.read_at(room, filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    head.truncate(filled);
    Some(head)
}

/// Returns the 64-bit FNV-1a hash, which is the same in each version of the daemon.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
